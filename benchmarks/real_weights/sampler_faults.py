"""Is the engine the policy that is trained? Six faults put into trainings of gemma-3-270m on vLLM in process, and none.

    python -m benchmarks.real_weights.sampler_faults [--steps 3]

All weights are trained for three steps at 3e-4 (LoRA: 3e-3), 8 completions of 16 tokens: what the sampler's proof names, and
after how many updates. The cases are the tests' (tests/helpers/sampler_faults.py).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.record import GEMMA, ROOT, Results, gemma_folder, need_room, parser, run_main
from workbench.diagnostics.sampler_verdict import CACHE, IN_SYNC, LATE, LORA, NOT_SYNCED, PRECISION, TOKENS
from workbench.errors import RunError

SCRIPT = ROOT / "tests" / "helpers" / "sampler_faults.py"
CASES = {
    "clean": IN_SYNC,
    "clean, LoRA": IN_SYNC,
    "not synced": NOT_SYNCED,
    "synced late, 1": LATE,
    "lost precision": PRECISION,
    "LoRA not merged": LORA,
    "stale prefix cache": CACHE,
    "other tokenizer": TOKENS,
    "other template": TOKENS,
}


def trained(cases: list[str], steps: int) -> Iterator[tuple[str, dict]]:
    """Each case with what its training gave, as they end: one process has the engine for all.

    Raises:
        RunError: it died.
    """
    need_room("training all weights with an engine", memory=14)
    own = {"SAMPLER_FAULTS_MODEL": str(GEMMA), "SAMPLER_FAULTS_ROWS": "8"}
    own |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "", str(steps), *cases]
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryDirectory() as scratch:
        own["TMPDIR"] = scratch  # the model with a template: 1 GiB
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | own
        ) as process:
            for line in process.stdout:
                if line.startswith("CASE "):
                    yield from json.loads(line.removeprefix("CASE ")).items()
        if process.returncode:
            errors.seek(0)
            raise RunError(f"the trainings died: {errors.read()[-2000:]}")


def named(cause: str, got: dict) -> dict:
    """What was named, whether it is `cause`, at which step, and the largest difference (nats)."""
    decided = [(step, found) for step, found, sure, *_ in got["verdicts"] if found != IN_SYNC and sure]
    causes = {found for _, found in decided} or {IN_SYNC}
    return {
        "named": sorted(causes),
        "after updates": decided[0][0] if decided else None,
        "right": causes == {cause},
        "largest difference": max(difference for *_, difference, _ in got["verdicts"]),
        "verdicts": [text for *_, text in got["verdicts"]],
    }


def main() -> None:
    args = parser(__doc__, steps=3).parse_args()
    gemma_folder()
    results = Results("real_weights.sampler_faults", args.out)
    missing = [case for case in CASES if case not in results.value.get("parts", {})]
    for case, got in trained(missing, args.steps) if missing else ():
        results.part(case, lambda case=case, got=got: named(CASES[case], got))


if __name__ == "__main__":
    run_main(main)
