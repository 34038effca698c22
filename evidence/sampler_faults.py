"""Is the engine the policy that is trained? Six faults put into trainings of gemma-3-270m on vLLM in process, and none.

    python evidence/sampler_faults.py [--steps 2]

All weights are trained for two steps at 3e-4 (LoRA: 3e-3), 8 completions of 16 tokens: what the sampler's proof names, and at
which step. The cases are the tests' (tests/helpers/sampler_faults.py). Writes data/evidence/sampler_faults.json.
"""

import json
import os
import subprocess
import sys

from record import GEMMA, ROOT, Results, gemma_folder, need_memory, parser, run_main

from workbench.consistency.probes import CACHE, IN_SYNC, LATE, LORA, NOT_SYNCED, PRECISION, TOKENS
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


def named(case: str, cause: str, steps: int) -> dict:
    """What is named in a training of `case`: its cause or nothing, from which step on, and the largest difference."""
    need_memory(14, "training all weights beside an engine")
    own = {"SAMPLER_FAULTS_MODEL": str(GEMMA), "SAMPLER_FAULTS_ROWS": "8"}
    own |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "", str(steps), case]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RunError(f"{case}: the training died: {done.stderr[-2000:]}")
    got = json.loads(lines[0].removeprefix("RESULT "))[case]
    decided = [(step, found) for step, found, sure, *_ in got["verdicts"] if found != IN_SYNC and sure]
    causes = {found for _, found in decided} or {IN_SYNC}
    return {
        "named": sorted(causes),
        "at step": decided[0][0] if decided else None,
        "right": causes == {cause},
        "largest difference": max(difference for *_, difference, _ in got["verdicts"]),
        "verdicts": [text for *_, text in got["verdicts"]],
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=2)
    args = options.parse_args()
    gemma_folder(GEMMA)
    results = Results("sampler_faults", "python evidence/sampler_faults.py", args.out)
    for case, cause in CASES.items():
        results.part(case, lambda case=case, cause=cause: named(case, cause, args.steps))


if __name__ == "__main__":
    run_main(main)
