"""Which task suits gemma-3-270m: the base model's rate of right answers on held-out questions, temperature 1.

    python -m benchmarks.real_weights.choose_task [--examples 2 4] [--samples 2]

A task suits that the base solves in 20 to 60%: then groups of completions differ, and there is room to learn. Two samples of
each held-out question, with the stop string. Writes data/measured/real_weights/task.json, one task after the other; a task
that stands there is not measured again.
"""

import json
import os

from benchmarks.real_weights.tasks import STOP, TASKS, reward_of, rows
from benchmarks.record import GEMMA, MEASURED, check_weights, need_room, parser, run_main, versions
from workbench.errors import RunError
from workbench.runs.files import write_json

OUT = MEASURED / "real_weights" / "task.json"
MAX_TOKENS = 16


def interval(right: int, of: int) -> list[float]:
    """Wilson's 95% interval of a share."""
    z, p = 1.96, right / of
    centre, half = p + z * z / (2 * of), z * (p * (1 - p) / of + z * z / (4 * of * of)) ** 0.5
    return [round((centre + side * half) / (1 + z * z / of), 3) for side in (-1, 1)]


def measure(llm, task: str, examples: int, samples: int) -> dict:
    """Counts over the held-out questions of a task."""
    from vllm import SamplingParams

    _, held = rows(task, examples)
    asked = [row for row in held for _ in range(samples)]
    # No seed of a request: vLLM's CPU backend fails with one where prompts are split over batches.
    params = SamplingParams(temperature=1.0, max_tokens=MAX_TOKENS, stop=[STOP], include_stop_str_in_output=True)
    made = [output.outputs[0] for output in llm.generate([row["prompt"] for row in asked], params, use_tqdm=False)]
    right = sum(int(reward_of(m.text, row["answer"])) for m, row in zip(made, asked, strict=True))
    ends = [STOP if m.stop_reason == STOP else "EOS" if m.finish_reason == "stop" else "length" for m in made]
    return {
        "task": task,
        "examples": examples,
        "questions": len(held),
        "completions": len(asked),
        "right": right,
        "rate": round(right / len(asked), 3),
        "interval": interval(right, len(asked)),
        "ends": {end: ends.count(end) for end in (STOP, "EOS", "length")},
        "one prompt": asked[0]["prompt"],
        "its completions": [m.text for m in made[:samples]],
    }


def main() -> None:
    options = parser(__doc__, examples=[2, 4], samples=2, model=GEMMA)
    options.set_defaults(out=OUT)
    options.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK")
    args = options.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    need_room("the engine", memory=5, disk=0.1, folder=args.out.parent)
    weights = check_weights(args.model)
    from vllm import LLM

    llm = LLM(model=str(args.model), dtype="float32", enforce_eager=True, max_model_len=160, gpu_memory_utilization=0.2)
    measured: dict = {"what": " ".join(__doc__.split("\n\n")[0].split()), "temperature": 1.0, "max_tokens": MAX_TOKENS}
    measured |= {"weights": weights, "environment": versions(), "tasks": []}
    if args.out.is_file():
        before = json.loads(args.out.read_text())
        if before["weights"] != weights:
            raise RunError(f"{args.out}: measured with other weights; move the file away")
        measured["tasks"] = before["tasks"]
    there = [(found["task"], found["examples"]) for found in measured["tasks"]]
    for examples in args.examples:
        for task in (name for name in args.tasks if (name, examples) not in there):
            found = measure(llm, task, examples, args.samples)
            measured["tasks"].append(found)
            print(
                json.dumps({name: found[name] for name in ("task", "examples", "rate", "interval", "ends")}), flush=True
            )
            write_json(args.out, measured)


if __name__ == "__main__":
    run_main(main)
