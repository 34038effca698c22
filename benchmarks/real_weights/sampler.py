"""Is what was sampled what is scored? `mismatch_report` on gemma-3-270m: a clean rollout, then one cause at a time.

    python -m benchmarks.real_weights.sampler

Sampled with transformers: as it is scored; in bf16 and scored in fp32; at temperature 0.7 and scored at 1; at top-p 0.8 with
the sampler's log-probs renormalised, as vLLM gives them, and scored without.
"""

import torch

from benchmarks.real_weights.stops import PROMPTS
from benchmarks.record import Results, gemma_folder, load, need_room, parser, peak_gib, run_main
from workbench.diagnostics.logits import cast_copy
from workbench.diagnostics.mismatch import mismatch_report, mismatch_report_of
from workbench.generation.sampling import Sampling, TransformersSampler, generate

TOKENS = 32


def numbers(report) -> dict:
    """The numbers of a report that the page names."""
    print(report.verdict, flush=True)
    table = report.table().set_index("cause")["mean |Δ|"]
    return {
        "verdict": report.verdict,
        "largest cause": report.largest,
        "mean |Δ| by cause": table.to_dict(),
        "share of ratios outside [0.9, 1.1]": report.ratios.outside,
        "outside support": report.outside_support,
        "peak GiB": round(peak_gib(), 2),
    }


def nucleus_logprobs(model, rollouts, top_p: float) -> list[list[float]]:
    """The log-probs of sampled tokens within the nucleus, each row scored alone: what a sampler that renormalises gives."""
    found = []
    for rollout in rollouts:
        ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1]
        probs = logits.softmax(-1)
        ranked = probs.sort(-1, descending=True).values
        kept = ranked.cumsum(-1) - ranked < top_p
        own = probs.gather(-1, torch.tensor(rollout.completion_ids).unsqueeze(-1)).squeeze(-1)
        found.append((own / (ranked * kept).sum(-1)).log().tolist())
    return found


def causes(model, tokenizer) -> dict:
    """Cause -> what samples with it and reports."""

    def sampled(by=model, **how):
        sampling = Sampling(max_completion_length=TOKENS, num_generations=2, seed=1, **how)
        return generate(TransformersSampler(by, tokenizer), PROMPTS[:4], sampling=sampling)

    def dtype():
        return numbers(mismatch_report_of(model, sampled(cast_copy(model, "bfloat16")), sampler_dtype="bfloat16"))

    def temperature():
        return numbers(mismatch_report_of(model, sampled(temperature=0.7), temperature=0.7, scored_temperature=1.0))

    def top_p():
        rollouts = sampled(top_p=0.8)
        parts = [[getattr(r, name) for r in rollouts] for name in ("prompt_ids", "completion_ids")]
        return numbers(mismatch_report(model, *parts, nucleus_logprobs(model, rollouts, 0.8), top_p=0.8))

    def none():
        return numbers(mismatch_report_of(model, sampled()))

    return {"none": none, "dtype": dtype, "temperature": temperature, "top-p": top_p}


def main() -> None:
    args = parser(__doc__).parse_args()
    results = Results("real_weights.sampler", args.out)
    need_room("sampling in fp32 and bf16", memory=5)
    for name, cause in causes(*load(gemma_folder())).items():
        results.part(name, cause)


if __name__ == "__main__":
    run_main(main)
