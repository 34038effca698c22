"""What patches/finish_reasons.diff adds: a sampler's finish reasons decide which completions TRL counts as truncated.

Cause: GRPO and RLOO decide by the last token alone, in two places, whether a completion is truncated. A trainer that knows
better has to give them completions with a false last token.
Harm: false_clipping.py and masked_stopped_rows.py, for every stop but EOS, whoever samples.
Reported: huggingface/trl#2820 asks for stop strings; #7039 is its multi-EOS form.
Patch: `rollout_func` may return `finish_reasons`, a subclass may set them where it samples, and one method asks them.
"""

import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own, reasons = tiny.tokenizer(), []


def rollout(prompts, trainer):
    """Completions that end at one of `tiny.STOPS`, and what the sampler says of each."""
    output = tiny.rollout(prompts, trainer)
    texts = own.batch_decode(output["completion_ids"])
    reasons.extend("stop" if any(stop in text for stop in tiny.STOPS) else "length" for text in texts)
    return output | {"finish_reasons": reasons}


def main() -> None:
    args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO, mask_truncated_completions=True)
    data = tiny.prompts()
    trainer = GRPOTrainer(tiny.model(own), tiny.parity, args, data, processing_class=own, rollout_func=rollout)
    trainer.train()
    log, cut = trainer.state.log_history[0], reasons.count("length") / len(reasons)
    tiny.verdict(
        log["completions/clipped_ratio"] != cut or log["grad_norm"] == 0,
        f"{cut:.0%} of {len(reasons)} completions were truncated; clipped_ratio {log['completions/clipped_ratio']}, "
        f"grad_norm {log['grad_norm']}",
        f"clipped_ratio {cut}, and a gradient from the others",
    )


if __name__ == "__main__":
    main()
