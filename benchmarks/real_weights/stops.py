"""Where ordinary text of a real model ends: the stop audit on gemma-3-270m, stock against ours.

    python -m benchmarks.real_weights.stops [--backend transformers] [--backend vllm] [--limits 64 128 256]

The same prompts and seeds under a `StopSpec` with strings and EOS. Stock TRL on transformers ends a batch at EOS only, so it
runs to the limit unless every row says EOS; ours ends each row at its first stop. vLLM is handed the stops by both; stock TRL
then takes what they ended for cut. The share wasted is of the tokens that were computed.
"""

import functools
import time

from benchmarks.record import Results, gemma_folder, load, need_room, parser, run_main
from workbench.generation.sampling import Sampling, TransformersSampler, VLLMSampler, generate
from workbench.generation.stops import StopRule, StopSpec, trl_finish_reason
from workbench.training.rows import has_gpu

PROMPTS = [
    "Question: Why is the sky blue?\nAnswer:",
    "Question: How do plants make food?\nAnswer:",
    "A short note to a friend:\n",
    "The first law of motion says that",
    "def is_even(n):\n",
    "Shopping list:\n-",
    "Question: What is the capital of Italy?\nAnswer:",
    "Once upon a time there was",
]
STOPS = StopSpec(stop=("\n\n", "Question:", "\ndef "))
GENERATIONS = 2


def audit(sampler, limit: int, stops: StopSpec, asked: StopSpec = STOPS) -> dict:
    """One batch sampled under `stops`: what ended by the stops asked for, what TRL takes for ended, what was for nothing."""
    sampling = Sampling(max_completion_length=limit, temperature=1.0, num_generations=GENERATIONS, seed=limit)
    tokenizer = sampler.tokenizer
    began = time.process_time()
    rollouts = generate(sampler, PROMPTS, stops=stops, sampling=sampling)
    seconds = time.process_time() - began
    # What stock TRL has at hand is the ids as they came; the rule of what was asked for finds their real ends.
    rule = StopRule(asked, tokenizer)
    ends = [rule.find_end(list(rollout.completion_ids)) for rollout in rollouts]
    rows = [list(rollout.completion_ids) for rollout in rollouts]
    by_trl = [trl_finish_reason(row, tokenizer.eos_token_id, tokenizer.pad_token_id) for row in rows]
    useful = sum(min(end.index, len(row)) for end, row in zip(ends, rows, strict=True))
    computed = sum(rollout.sampled_tokens for rollout in rollouts)
    disagree = [r.engine_finish_reason != r.finish_reason for r in rollouts if r.engine_finish_reason]
    return {
        "rows": len(rows),
        "ended by a stop": sum(end.finish_reason == "stop" for end in ends),
        "of them by EOS": sum(end.stop == tokenizer.eos_token_id for end in ends),
        "true clipped ratio": sum(end.finish_reason != "stop" for end in ends) / len(ends),
        "TRL's clipped ratio": by_trl.count("length") / len(rows),
        "computed tokens": computed,
        "share wasted": 1 - useful / computed,
        "processor s": round(seconds, 1),
        "engine disagrees": sum(disagree) if disagree else None,
    }


def main() -> None:
    options = parser(__doc__, limits=[64, 128, 256])
    options.add_argument("--backend", action="append", choices=("transformers", "vllm"), help="default: both")
    args = options.parse_args()
    results = Results("real_weights.stops", args.out)
    folder = gemma_folder()
    results.value["stops"] = [*STOPS.stop, "EOS"]
    for backend in args.backend or ("transformers", "vllm"):
        need_room(f"sampling with {backend}", memory=4)
        sampler = start(backend, folder)
        arms = {"stock": StopSpec(), "ours": STOPS} if backend == "transformers" else {"stops passed on": STOPS}
        for limit in args.limits:
            for name, spec in arms.items():
                results.part(f"{backend}, {limit}, {name}", functools.partial(audit, sampler, limit, spec))


def start(backend: str, folder):
    """A sampler of the model."""
    if backend == "transformers":
        return TransformersSampler(*load(folder))
    from vllm import LLM

    options = {"dtype": "float32", "max_model_len": 512, "enforce_eager": True, "use_tqdm_on_load": False}
    share = {} if has_gpu() else {"gpu_memory_utilization": 0.2}  # on a CPU the engine would want 0.92 of the memory
    return VLLMSampler(LLM(model=str(folder), **options | share))


if __name__ == "__main__":
    run_main(main)
