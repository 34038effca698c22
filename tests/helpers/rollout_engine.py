"""Samples with a real vLLM engine (in the process of on_vllm.py); the judging is in test_sampling.py."""

import generation_cases

from workbench.generation.sampling import Rollout, Sampling, VLLMSampler, generate
from workbench.generation.stops import StopSpec
from workbench.toys.starter import starter_corpus, starter_model
from workbench.training.late_vllm import cpu_engine

LIMIT = 32
GREEDY = Sampling(max_completion_length=LIMIT, temperature=0)
SEEDS = (5, 5, 6)


def specs(tokenizer) -> dict[str, StopSpec]:
    of, to = (tokenizer.encode(text)[0] for text in (" of", " to"))
    return generation_cases.specs(tokenizer) | {
        "two of each": StopSpec(stop=("ing", " a "), stop_token_ids=(of, to)),
        "never": StopSpec.never(),
    }


def prompts(count: int = 64) -> list[str]:
    """Prompts with the first characters of their completions: after the prompt alone greedy rows are nearly all alike."""
    rows = starter_corpus()[:: 5600 // 64][:count]
    return [row["prompt"] + row["completion"][: n % 24] for n, row in enumerate(rows)]


def greedy(sampler, count: int = 64) -> dict[str, list[dict]]:
    """StopSpec's name -> a row per prompt."""
    return {
        name: [as_dict(r) for r in generate(sampler, prompts(count), stops=spec, sampling=GREEDY)]
        for name, spec in specs(sampler.tokenizer).items()
    }


def seeded(sampler) -> list[list[dict]]:
    """The same eight rows, four prompts twice, once per seed."""
    ways = [Sampling(LIMIT, top_p=0.9, num_generations=2, seed=seed) for seed in SEEDS]
    return [[as_dict(row) for row in generate(sampler, prompts(4), sampling=way)] for way in ways]


def as_dict(rollout: Rollout) -> dict:
    return {"ids": list(rollout.completion_ids), "text": rollout.completion, "reason": rollout.finish_reason,
            "stop": rollout.stop, "engine": rollout.engine_finish_reason, "logprobs": list(rollout.logprobs)}  # fmt: skip


def result() -> dict:
    from vllm import LLM

    # An engine of its own: its log-probs are raw, those of TRL's engines are of what the logits became.
    model = str(starter_model())
    fields = {"dtype": "float32", "gpu_memory_utilization": 0.2, "max_model_len": 256, **cpu_engine(model)}
    sampler = VLLMSampler(LLM(model, **fields))
    return {"greedy": greedy(sampler), "seeded": seeded(sampler)}
