"""What size costs: thousands of runs, a million lines of metrics, completions in many parts; seconds and megabytes.

    python benchmarks/size.py [--before FOLDER] [--quick] [--out FILE.json]

`--before` is a checkout of an earlier version (`git worktree add FOLDER COMMIT`), measured in turn with this one on the same
files. Each number is the median of 3 processes of their own: commands as a whole, the rest without imports. Seconds of the
clock and of the processor: on a machine that does other things too, only the latter tell. A case that takes a version longer
than 30 s is measured once.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.runs.environment import hardware

HERE = Path(__file__).parents[1]
LIMIT_S = 900
LONG_S = 30
TIMED = """
import sys, time, warnings
from pathlib import Path
import pandas, pyarrow.json, pyarrow.parquet
from workbench.reports import facts
from workbench.runs.run import Run
run = Run(Path(sys.argv[1]))
began, busy = time.perf_counter(), time.process_time()
{code}
print("SECONDS", time.perf_counter() - began, time.process_time() - busy)
"""


# --- the files ------------------------------------------------------------------------------------------------------


def many_runs(root: Path, count: int) -> None:
    owner = {"pid": 1, "started": 1.0, "host": socket.gethostname()}
    status = {"state": "done", "error": None, "owner": owner, "times": {"queued": 1.0, "running": 2.0, "done": 100.0}}
    result = {"headline": {"name": "reward", "value": -4.0}, "checks": {"a": True}, "numbers": {}, "claims": {}}
    for n in range(count):
        folder = root / ("00_start_here", "05_grpo_docs_example")[n % 2] / f"20260101-{n:06}"
        folder.mkdir(parents=True)
        params = {"seed": n, "model": "starter", "steps": 80}
        for name, value in {"params": params, "env": {"packages": {}}, "status": status, "result": result}.items():
            (folder / f"{name}.json").write_text(json.dumps(value, indent=1))


def long_metrics(folder: Path, lines: int) -> None:
    rng = random.Random(0)
    folder.mkdir(parents=True)
    names = ["loss", "reward", "grad_norm", "entropy", "learning_rate", *(f"completions/length_{k}" for k in range(7))]
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, lines + 1):
            row = {"step": step, "elapsed_s": step / 10} | {name: rng.random() for name in names}
            file.write(json.dumps(row) + "\n")


def many_parts(folder: Path, rows: int, parts: int) -> None:
    """`rows` completions in `parts` files of one step each."""
    (folder / "completions.parquet").mkdir(parents=True)
    each = rows // parts
    texts = {"prompt": ["p" * 200] * each, "completion": ["c" * 400] * each, "finish_reason": ["stop"] * each}
    for step in range(1, parts + 1):
        table = pa.table({"step": [step] * each, **texts, "reward": [0.5] * each})
        pq.write_table(table, folder / "completions.parquet" / f"part-{step:06}.parquet")


# --- measuring ------------------------------------------------------------------------------------------------------


def measured(command: list[str], version: Path, open_files: int | None = None) -> dict:
    """Seconds and peak memory of one process that uses the workbench in `version`; or how it failed."""
    shell = ["bash", "-c", f'ulimit -n {open_files}; exec "$@"', "-", *command] if open_files else command
    env = os.environ | {"PYTHONPATH": str(version), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryDirectory() as cwd:
        began, before = time.perf_counter(), os.times()
        process = subprocess.Popen(shell, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=cwd, text=True)
        peak = 0
        while process.poll() is None:
            if time.perf_counter() - began > LIMIT_S:
                process.kill()
            peak = max(peak, peak_kb(process.pid))
            time.sleep(0.005)
        seconds, after = time.perf_counter() - began, os.times()
        output.seek(0)
        text = output.read()
    if process.returncode:
        return {"failed": f"after {LIMIT_S} s" if seconds > LIMIT_S else text.strip().splitlines()[-1][-80:]}
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    inside = [[float(word) for word in line.split()[1:]] for line in text.splitlines() if line.startswith("SECONDS ")]
    clock, processor = (inside or [[seconds, cpu]])[0]
    return {"seconds": clock, "processor_s": processor, "MB": peak / 1000}


def peak_kb(pid: int) -> int:
    """Peak memory of a process so far; of `getrusage`'s, that of the process that started it is a part."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def median(measure: Callable[[], dict]) -> dict:
    found = [measure()]
    while len(found) < 3 and found[0].get("seconds", LONG_S) < LONG_S:
        found.append(measure())
    if "failed" in found[0]:
        return found[0]
    return {name: round(statistics.median(f[name] for f in found), 2) for name in found[0]}


def cases(folder: Path, quick: bool) -> dict[str, tuple[list[str], int | None]]:
    """What is measured -> its command, and how many files it may open; makes the files."""
    few = 10 if quick else 1
    runs, lines, rows = 10_000 // few, 1_000_000 // few, 100_000 // few
    many_runs(folder / "runs", runs)
    long_metrics(folder / "metrics", lines)
    (folder / "runs" / "00_start_here" / "20260101-000000" / "log.txt").write_text(
        "step 12/80  reward -3.1\n" * (lines * 4)
    )
    cli = [sys.executable, "-m", "workbench"]
    sweep = [*cli, "sweep", str(HERE / "notebooks" / "05_grpo_docs_example.ipynb"), "-p", "seed=0..99", "--dry-run"]
    where = ["--runs-dir", str(folder / "runs")]
    found: dict[str, tuple[list[str], int | None]] = {
        f"status of {runs} runs": ([*cli, "status", *where], None),
        f"list of {runs} runs": ([*cli, "list", *where], None),
        f"plan of 100 points beside {runs} runs": ([*sweep, *where], None),
        f"logs of {lines * 24 // 250_000} MB": ([*cli, "logs", "20260101-000000", *where], None),
    }

    def timed(code: str, of: str) -> list[str]:
        return [sys.executable, "-c", TIMED.format(code=code), str(folder / of)]

    found[f"last of {lines} lines of metrics"] = (timed("facts.progress(run)", "metrics"), None)
    found[f"all of {lines} lines of metrics"] = (timed("assert len(run.metrics) > 1", "metrics"), None)
    for parts in (1, 100, 2_500, rows // 10):
        name = f"parts-{parts}"
        many_parts(folder / name, rows, parts)
        found[f"completions, {rows} rows in {parts} parts"] = (timed("assert len(run.completions) > 1", name), None)
    found["ends of completions in 2500 parts, 1024 files"] = (
        timed("facts.sample_completions(run)", "parts-2500"),
        1024,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="checkout of an earlier version to compare with")
    parser.add_argument("--quick", action="store_true", help="a tenth of each size")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    versions = {"before": args.before.resolve()} if args.before else {}
    versions |= {"now": HERE}
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (command, files) in cases(Path(folder), args.quick).items():
            found[name] = {
                v: median(lambda c=command, p=path, f=files: measured(c, p, f)) for v, path in versions.items()
            }
            print(f"{name:50}", "   ".join(f"{v}: {one}" for v, one in found[name].items()), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"environment": hardware(), "sizes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
