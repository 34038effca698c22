"""Faults at random moments, from a seed, for test_chaos.py: what can be done to a sweep, and what must not be left of it."""

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from conftest import ROOT, write_notebook
from filelock import FileLock, Timeout

from workbench.lab.batch import slurm_state
from workbench.runs.files import read_json
from workbench.runs.run import GOING, Run, list_runs

RUNS, MORE, STEPS, ROWS = 8, 4, 6, 8
FAULTS = 30
DISK_MB = 900
TRAIN = f"""\
import sys
sys.modules["vllm"] = None  # its import takes longer than the training
from workbench import length_reward, make_recipe
from workbench.experiments import train
fields = dict(num_generations=4, per_device_train_batch_size={ROWS}, max_completion_length=8, save_steps=1)
recipe = make_recipe("starter", seed=seed, max_steps={STEPS}, **fields)
trainer = train(recipe, reward_funcs=length_reward(), record_dir=run.path)"""


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of its own, that can be filled and made read-only."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def may_mount(folder: Path) -> bool:
    try:
        with small_disk(folder):
            return True
    except subprocess.CalledProcessError:
        return False


class Chaos:
    """One sweep over trainings, started again until nothing is left to do, while faults happen to it.

    Args:
        disk: of the runs.
        seed: decides the faults and their moments.
        faults: how many.
        runs: trainings; some more where all are done before the last fault.
    """

    how: tuple[str, ...] = ("--jobs", "2")

    def __init__(self, disk: Path, seed: int, faults: int, runs: int = RUNS):
        self.runs = runs
        self.runs_dir, self.disk, self.rng, self.left = disk / "runs", disk, random.Random(seed), faults
        self.mark = {"WORKBENCH_CHAOS": f"{os.getpid()}-{seed}", "TMPDIR": str(disk / "tmp")}
        self.mark["JUPYTER_RUNTIME_DIR"] = str(disk / "jupyter")
        (disk / "tmp").mkdir()
        notebook = write_notebook(disk / "chaotic.ipynb", TRAIN)
        self.command = [sys.executable, "-m", "workbench", "sweep", str(notebook), *self.how]
        self.command += ["--runs-dir", str(self.runs_dir), "--out", str(disk / "reports")]
        self.tally: collections.Counter = collections.Counter()
        self.daemons: list[subprocess.Popen] = []
        self.sweep: subprocess.Popen | None = None

    def run(self) -> None:
        """Until all runs are done; raises when they are not within a few sweeps after the last fault, or within the hour."""
        calm, end = 0, time.monotonic() + 3600
        while calm < 4 and time.monotonic() < end:
            if not self._is_going():
                if self._done() and self.left <= 0:
                    return
                if self.left <= 0:
                    calm += 1
                elif self._done():  # a fast machine ends them before the last fault
                    self.runs += MORE
                self._start()
            self._wait(self.rng.uniform(0.3, 4.0) if self.left > 0 else 0.5)
            if self.left > 0 and (self._pick("ipykernel") or self.rng.random() < 0.2):  # mostly while something trains
                self._fault()
        raise AssertionError(f"not all runs are done: {[r.status for r in list_runs(self.runs_dir)]}\n{self._said()}")

    def _is_going(self) -> bool:
        """Whether a sweep goes on, or a run whose sweep was killed."""
        if self.sweep is not None and self.sweep.poll() is None:
            return True
        runs = list_runs(self.runs_dir)
        with contextlib.suppress(OSError):
            slurm_state.refresh(runs)
        return any(run.status["state"] in GOING for run in runs)

    def processes(self) -> list[psutil.Process]:
        """Every process that the sweeps started, directly or not, and that is still there."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("WORKBENCH_CHAOS") == self.mark["WORKBENCH_CHAOS"]
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _start(self) -> None:
        if self.left > 0 and self.rng.random() < 0.3 and "disk read-only" in self.kinds():
            threading.Thread(target=self._count_read_only).start()
            self._wait(0.2)
        with (self.disk.parent / "said.txt").open("a") as said:
            env = os.environ | self.mark | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
            command = [*self.command, "-p", f"seed=0..{self.runs - 1}"]
            self.sweep = subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=said)
        self.tally["sweeps"] += 1

    def _count_read_only(self) -> None:
        if self._read_only():
            self.tally["disk read-only"] += 1
            self.left -= 1

    def _done(self) -> bool:
        runs = list_runs(self.runs_dir)
        return len(runs) == self.runs and all(run.status["state"] == "done" for run in runs)

    def _said(self) -> str:
        return (self.disk.parent / "said.txt").read_text()[-3000:]

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)

    # --- faults ------------------------------------------------------------------------------------------------------

    def kinds(self) -> dict[str, Callable[[], bool]]:
        """Fault -> what does it; False where there was nothing to do it to."""
        return {
            "kernel killed": lambda: self._signal("ipykernel", signal.SIGKILL),
            "runner killed": lambda: self._signal("forkserver", signal.SIGKILL),
            "kernel and runner killed": self._kill_both,
            "sweep killed": lambda: self._signal("workbench sweep", signal.SIGKILL),
            "kernel stopped": lambda: self._pause("ipykernel"),
            "runner stopped": lambda: self._pause("forkserver"),
            "disk full": self._fill,
            "disk read-only": self._read_only,
        }

    def _fault(self) -> None:
        kinds = self.kinds()
        weights = [3 if "kernel" in name else 2 if "runner" in name else 1 for name in kinds]
        (kind,) = self.rng.choices(list(kinds), weights)
        if kinds[kind]():
            self.tally[kind] += 1
            self.left -= 1

    def _pick(self, part: str) -> psutil.Process | None:
        words = part.split()
        fitting = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if all(word in line for word in words):
                    fitting.append(process)
        return self.rng.choice(sorted(fitting, key=lambda p: p.pid)) if fitting else None

    def _signal(self, part: str, number: int) -> bool:
        process = self._pick(part)
        if process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
        return True

    def _kill_both(self) -> bool:
        kernel = self._pick("ipykernel")
        if kernel is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            runner = kernel.parent()
            kernel.kill()
            if runner and "forkserver" in " ".join(runner.cmdline()):
                runner.kill()
        return True

    def _pause(self, part: str) -> bool:
        process = self._pick(part)
        if process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            self._wait(self.rng.uniform(0.5, 3.0))
            process.resume()
        return True

    def _fill(self) -> bool:
        path = self.disk / "filler"
        free = os.statvfs(self.disk).f_bavail * os.statvfs(self.disk).f_frsize
        with contextlib.suppress(OSError), path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free)
        self._wait(self.rng.uniform(0.5, 2.0))
        path.unlink(missing_ok=True)
        return True

    def _read_only(self) -> bool:
        """A disk on which files are open for writing refuses, so that the moment is mostly that of a sweep's start."""

        def remount(how: str) -> bool:
            return subprocess.run(["mount", "-o", f"remount,{how}", self.disk], capture_output=True).returncode == 0

        if not remount("ro"):
            return False
        self._wait(self.rng.uniform(0.3, 2.0))
        assert remount("rw")
        return True


class SlurmChaos(Chaos):
    """The same on a Slurm whose configuration is in `$SLURM_CONF`."""

    how = ("--executor", "slurm", "--mem", "2", "--time", "10")

    def kinds(self) -> dict[str, Callable[[], bool]]:
        return {
            "kernel killed": lambda: self._signal("ipykernel", signal.SIGKILL),
            "job's process killed": lambda: self._signal("batch.node .slurm", signal.SIGKILL),
            "sweep killed": lambda: self._signal("workbench sweep", signal.SIGKILL),
            "kernel stopped": lambda: self._pause("ipykernel"),
            "node daemon killed": self._restart_node,
        }

    def _daemon(self, node: str) -> subprocess.Popen:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(["slurmd", "-D", "-N", node], start_new_session=True, **quiet)

    def _restart_node(self) -> bool:
        node = self.rng.choice(["n1", "n2"])
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("SLURM_CONF") == os.environ["SLURM_CONF"]
                if mine and process.cmdline() == ["slurmd", "-D", "-N", node]:
                    process.kill()
                    self._wait(1)
                    self.daemons.append(self._daemon(node))
                    return True
        return False


# --- what must hold afterwards ----------------------------------------------------------------------------------------


def problems(chaos: Chaos) -> list[str]:
    """What is wrong with the runs, or left over; nothing where all is well."""
    found = [problem for run in list_runs(chaos.runs_dir) for problem in _of_run(run)]
    end = time.monotonic() + 30
    while (left := chaos.processes()) and time.monotonic() < end:
        time.sleep(0.5)
    found += [f"process left: {' '.join(p.cmdline())[:120]}" for p in left]
    for lock in chaos.disk.rglob("*.lock"):
        try:
            with FileLock(lock).acquire(timeout=0):
                pass
        except Timeout:
            found.append(f"lock held: {lock}")
    temporary = [*chaos.runs_dir.rglob(f".*.{'?' * 32}"), *(chaos.disk / "jupyter").glob("kernel-*")]
    return found + [f"temporary file left: {path}" for path in temporary if path.parent.name != ".slurm"]


def _of_run(run: Run) -> list[str]:
    steps = run.metrics["step"].tolist()
    rows = run.completions.groupby("step").size()
    found = []
    if steps != list(range(1, STEPS + 1)):
        found.append(f"{run.id}: steps {steps}")
    if rows.to_dict() != dict.fromkeys(range(1, STEPS + 1), ROWS):
        found.append(f"{run.id}: completions {rows.to_dict()}")
    settings = read_json(run.path / "recipe.json", {}).get("recipe", {})
    if (settings.get("seed"), settings.get("max_steps")) != (run.params["seed"], STEPS):
        found.append(f"{run.id}: settings {settings}")
    cells = json.loads((run.path / "executed.ipynb").read_text())["cells"]
    states = {cell["metadata"]["papermill"]["status"] for cell in cells if cell["cell_type"] == "code"}
    if states != {"completed"}:
        found.append(f"{run.id}: cells {states}")
    if run.result["headline"] is None:
        found.append(f"{run.id}: no result")
    return found
