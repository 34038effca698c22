"""Duplicate report on a million prompts, and the cost of group checks and of shared generation.

    python -m benchmarks.cost.groups [--rows 1000000] [--repeats 5] [--out FILE.json]

The second part needs vLLM (in process); its variants take turns in one process, figures are medians.
"""

import json
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.record import publish, start
from workbench.diagnostics import duplicate_report
from workbench.experiments.instruments.duplicate_prompts import equal_prompt_batch, make_trainer, score_batch
from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.toys.search_task import CLOSE
from workbench.experiments.vllm_server import sharing_engines
from workbench.generation.stops import StopSpec
from workbench.runs.environment import hardware
from workbench.training.grpo import GRPOTrainer


def million(rows: int) -> dict:
    """Seconds and peak memory (MiB, of the whole process) of the report on a JSONL file of generated prompts."""
    rng = random.Random(0)
    words = [f"word{n}" for n in range(2000)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        with path.open("w") as file:
            for _ in range(rows):
                prompt = " ".join(rng.choices(words, k=rng.choice((1, 12, 20))))
                file.write(json.dumps({"prompt": prompt}) + "\n")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start = time.perf_counter()
        report = duplicate_report(path, prompts_per_batch=32)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "seconds": seconds, "MiB before": before, "MiB peak": peak, "repeated": report.exact}


def checks(repeats: int) -> dict:
    """Share of a step's generation and scoring that the layout check takes."""
    rows = equal_prompt_batch(load_prompts("search").to_list(), 4, 8, 0.5)
    trainer = make_trainer(GRPOTrainer, resolve_model("search"), 32, vllm=False)
    steps, layouts = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        score_batch(trainer, rows, 8)
        steps.append(time.perf_counter() - start)
        start = time.perf_counter()
        trainer._check_layout([row["prompt"] for row in rows])
        layouts.append(time.perf_counter() - start)
    return {"step seconds": statistics.median(steps), "check seconds": statistics.median(layouts)}


def sharing(repeats: int) -> dict:
    """Seconds, requests and prompt tokens for 32 rows of one prompt, alone and shared."""
    rows = equal_prompt_batch(load_prompts("search").to_list(), 4, 8, 1.0)
    result: dict = {"alone": [], "shared": []}
    with sharing_engines():
        for _ in range(repeats):
            for name, share in {"alone": False, "shared": True}.items():
                options = {"stops": StopSpec(stop=(CLOSE,)), "generation_seed": 1, "share_generation": share}
                trainer = make_trainer(GRPOTrainer, resolve_model("search"), 32, vllm=True, **options)
                score_batch(trainer, rows, 8)  # weights are synced, caches filled
                start = time.perf_counter()
                got = score_batch(trainer, rows, 8)
                seconds = time.perf_counter() - start
                result[name].append((seconds, got["requests"], got["prompt_tokens"]))
    names = ("seconds", "requests", "prompt tokens")
    return {k: dict(zip(names, map(statistics.median, zip(*v, strict=True)), strict=True)) for k, v in result.items()}


def main() -> None:
    args = start(__doc__, rows=1_000_000, repeats=5)
    result = {"environment": hardware(), "duplicate report": million(args.rows)}
    result |= {"group checks": checks(args.repeats), "shared generation": sharing(args.repeats)}
    publish(result, args.out)


if __name__ == "__main__":
    main()
