"""What a run costs beyond plain papermill: short notebooks through `workbench sweep` and through papermill, in turns.

    python benchmarks/batch_overhead.py [--notebooks 100] [--blocks 5] [--no-command] [--out FILE.json]

The notebooks are run in blocks; each block is run one notebook at a time by `workbench sweep` (one command, its start
included), by papermill's `execute_notebook` in one warm process, and by papermill's command, a process for each. Medians over
blocks of seconds per notebook. What is left behind is counted too: kernels, listening ports, temporary files.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat.v4 as v4

from workbench.runs.environment import hardware

PARAMETERS = (
    'seed: int = 0  # which of them; 0..10000\nout_dir: str = ""  # run folder\ninteractive: bool = True  # no widgets'
)
WORK = 'from workbench import Result, open_run, save_result\nrun = open_run("short", out_dir, {"seed": seed})'
SAVE = 'save_result(run, [Result("it ran", True)], {"seed": seed})'


def write_notebook(folder: Path) -> Path:
    cells = [
        v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        v4.new_code_cell(WORK),
        v4.new_code_cell(SAVE),
    ]
    path = folder / "short.ipynb"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.write_text(json.dumps(v4.new_notebook(cells=cells, metadata=kernel)))
    return path


def sweep(notebook: Path, seeds: range) -> None:
    command = [sys.executable, "-m", "workbench", "sweep", str(notebook), "-p", f"seed={seeds[0]}..{seeds[-1]}"]
    subprocess.run([*command, "--runs-dir", str(notebook.parent / "runs")], check=True, capture_output=True)


def papermill_api(notebook: Path, seeds: range) -> None:
    import papermill

    for seed in seeds:
        out = notebook.parent / f"api-{seed}"
        papermill.execute_notebook(
            notebook,
            notebook.parent / "out.ipynb",
            {"seed": seed, "out_dir": str(out)},
            kernel_name="python3",
            progress_bar=False,
        )


def papermill_command(notebook: Path, seeds: range) -> None:
    for seed in seeds:
        command = [
            sys.executable,
            "-m",
            "papermill",
            str(notebook),
            str(notebook.parent / "out.ipynb"),
            "-k",
            "python3",
        ]
        command += ["-p", "seed", str(seed), "-p", "out_dir", str(notebook.parent / f"cli-{seed}"), "--no-progress-bar"]
        subprocess.run(command, check=True, capture_output=True)


def left_behind(scratch: Path) -> dict[str, int]:
    import psutil

    me = psutil.Process()
    children = me.children(recursive=True)
    ports = [c for p in [me, *children] for c in p.net_connections("inet") if c.status == "LISTEN"]
    kernels = [p for p in children if "ipykernel" in " ".join(p.cmdline())]
    files = [p for p in scratch.rglob("*") if p.is_file()]
    return {"kernels": len(kernels), "listening ports": len(ports), "temporary files": len(files)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--notebooks", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument(
        "--no-command", action="store_true", help="leave papermill's command out, the slowest of the three"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size = args.notebooks // args.blocks
    ways = {"workbench sweep": sweep, "papermill, one process": papermill_api, "papermill command": papermill_command}
    if args.no_command:
        del ways["papermill command"]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        os.environ |= {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1", "JUPYTER_RUNTIME_DIR": str(scratch / "jupyter")}
        notebook = write_notebook(Path(folder))
        papermill_api(notebook, range(1))  # loads papermill
        for block in range(args.blocks):
            for name, way in list(ways.items())[:: 1 if block % 2 else -1]:
                start = time.perf_counter()
                way(notebook, range(block * size, (block + 1) * size))
                seconds[name].append((time.perf_counter() - start) / size)
            print(json.dumps({name: round(values[-1], 3) for name, values in seconds.items()}), flush=True)
        left = left_behind(scratch)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    ours = seconds["workbench sweep"]
    overhead = {
        name: statistics.median(a - b for a, b in zip(ours, values, strict=True))
        for name, values in seconds.items()
        if values is not ours
    }
    result = {
        "environment": hardware(),
        "notebooks": size * args.blocks,
        "blocks": args.blocks,
        "seconds per notebook": median,
        "overhead of a run over, seconds": overhead,
        "left behind": left,
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
