"""Samples with a real vLLM engine (in the process of on_vllm.py); the judging is in test_sampling.py."""

import json
from collections import Counter
from itertools import permutations

import generation_cases

from workbench.experiments.sampling import Rollout, Sampling, VLLMSampler, generate
from workbench.experiments.toys.starter import starter_corpus, starter_model
from workbench.generation.stops import StopRule, StopSpec
from workbench.training.sync_on_cpu import cpu_engine

LIMIT = 32
GREEDY = Sampling(max_completion_length=LIMIT, temperature=0)
SEEDS = (5, 5, 6)


def specs(tokenizer, stops: dict) -> dict[str, StopSpec]:
    """A stop of each kind; `stops` is what `stops_that_part` has found."""
    (one, *two), (string, *strings) = stops["ids"], stops["strings"]
    return generation_cases.specs(tokenizer) | {
        "id": StopSpec(stop_token_ids=(one,)),
        "string": StopSpec(stop=(string,)),
        "two of each": StopSpec(stop=tuple(strings), stop_token_ids=tuple(two)),
        "never": StopSpec.never(),
    }


def stops_that_part(sampler) -> dict:
    """Three ids and three strings of the model's own greedy rows that end them at different places, whatever the model says."""
    rows, tokenizer = generate(sampler, prompts(), sampling=GREEDY), sampler.tokenizer
    ids = held_by_some([row.completion_ids[:-1] for row in rows])
    strings = held_by_some([[row.completion[n : n + 3] for n in range(len(row.completion) - 2)] for row in rows])
    for stops in zip(permutations(ids, 3), permutations(strings, 3), strict=False):
        found = {"ids": list(stops[0]), "strings": list(stops[1])}
        rules = {n: StopRule(spec, tokenizer) for n, spec in specs(tokenizer, found).items() if not spec.ignore_eos}
        ends = {name: [rule.find_end(row.completion_ids) for row in rows] for name, rule in rules.items()}
        different = {tuple(end.index for end in of_rows) for of_rows in ends.values()}
        kinds = {type(end.stop) for end in ends["two of each"] if end.stop not in rules["eos"].stop_ids}
        if len(different) == len(ends) and kinds == {int, str}:
            return found
    raise AssertionError(f"no ids of {ids} and strings of {strings} part the rows")


def held_by_some(rows: list) -> list:
    """What some of the rows hold and some do not, two or more each; what most hold comes first."""
    counts = Counter(thing for row in rows for thing in sorted(set(row)))
    return [thing for thing, n in counts.most_common() if 2 <= n <= len(rows) - 2]


def prompts(count: int = 64) -> list[str]:
    """Prompts with the first characters of their completions: after the prompt alone greedy rows are nearly all alike."""
    rows = starter_corpus()[:: 5600 // 64][:count]
    return [row["prompt"] + row["completion"][: n % 24] for n, row in enumerate(rows)]


def greedy(sampler, stops: dict) -> dict[str, list[dict]]:
    """StopSpec's name -> a row per prompt."""
    return {
        name: [as_dict(r) for r in generate(sampler, prompts(), stops=spec, sampling=GREEDY)]
        for name, spec in specs(sampler.tokenizer, stops).items()
    }


def seeded(sampler) -> list[list[dict]]:
    """The same eight rows, four prompts twice, once per seed."""
    ways = [Sampling(LIMIT, top_p=0.9, num_generations=2, seed=seed) for seed in SEEDS]
    return [[as_dict(row) for row in generate(sampler, prompts(4), sampling=way)] for way in ways]


def as_dict(rollout: Rollout) -> dict:
    return {"ids": list(rollout.completion_ids), "text": rollout.completion, "reason": rollout.finish_reason,
            "stop": rollout.stop, "engine": rollout.engine_finish_reason, "logprobs": list(rollout.logprobs)}  # fmt: skip


def result(stops: str) -> dict:
    from vllm import LLM

    # An engine of its own: its log-probs are raw, those of TRL's engines are of what the logits became.
    model = str(starter_model())
    fields = {"dtype": "float32", "gpu_memory_utilization": 0.2, "max_model_len": 256, **cpu_engine(model)}
    sampler = VLLMSampler(LLM(model, **fields))
    return {"greedy": greedy(sampler, json.loads(stops)), "seeded": seeded(sampler)}
