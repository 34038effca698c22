"""vLLM reports why each completion ended; TRL drops that and guesses from the last token.

Cause: VLLMGeneration.generate keeps only ids and log-probabilities of vLLM's outputs (trl/generation/vllm_generation.py:732
on 1.16.0; the server's client and the async worker, async_rollout_worker.py:852, too). `finish_reason` is lost, and the
trainer asks whether the last token is an EOS (trl/trainer/grpo_trainer.py:2302, 2490).
Harm: with `generation_kwargs={"stop": [...]}` every completion that stopped counts as truncated, and is masked with
mask_truncated_completions. The length does not decide either: a completion may stop at the last token that it is allowed, or
be truncated earlier, by max_model_len.
Met by: use_vllm=True with `stop` or `stop_token_ids` in generation_kwargs (GRPO, RLOO).
Reported: huggingface/trl#2820, #3201; #5318 (`truncated` is False for all in the async worker).
Patch: pass `finish_reason` on, and use it.
"""

import tempfile

import engine
import tiny
from trl import GRPOConfig, GRPOTrainer

own = tiny.tokenizer()
options = {"stop": tiny.STOPS, "logit_bias": {own.eos_token_id: -100.0, own.pad_token_id: -100.0}}
fields = tiny.GRPO | engine.COLOCATE | {"max_completion_length": 3, "vllm_max_model_length": 64}
args = GRPOConfig(tempfile.mkdtemp(), **fields, generation_kwargs=options)
trainer = GRPOTrainer(engine.folder(own), tiny.parity, args, tiny.prompts(), processing_class=own)
seen = engine.outputs(engine.without_sync(trainer))
trainer.train()
reasons = [completion.finish_reason for completion in seen]
cut = reasons.count("length") / len(reasons)
at_the_limit = sum(c.finish_reason == "stop" and len(c.token_ids) == 3 for c in seen)
clipped = trainer.state.log_history[0]["completions/clipped_ratio"]
tiny.verdict(
    clipped != cut,
    f"vLLM's finish_reason: {reasons.count('stop')} stop ({at_the_limit} of them with the last token allowed), "
    f"{reasons.count('length')} length; clipped_ratio {clipped}",
    f"clipped_ratio {cut}",
)
