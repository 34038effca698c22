"""A stand-in for Slurm's commands, for `every_place`: a job waits once, and runs to its end while squeue is asked again.

So the calls of a sweep have the same order each time. A job is forked from the process that asks, and one that is killed reads
as out of memory, as on a cluster. squeue knows jobs that have not ended, and sacct the others.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from workbench.lab.batch import node, run, slurm, slurm_state
from workbench.runs.files import read_json

REFUSED = "Unable to contact slurm controller (connect failure)"
LOST = "Socket timed out on send/recv operation"  # what was asked is done all the same
_KILLED = -9
_OPEN = os.open  # taken before the harness counts calls: Slurm itself writes the log of a job
_UNKNOWN = "slurm_load_jobs error: Invalid job id specified"


class StubSlurm:
    """The commands of a cluster whose jobs are in a file.

    Args:
        cluster: that file.
        turn: given a command's name, says how it fails this time: `refused`, `lost`, or empty.
        forked: runs a call in a forked process and returns its exit code; its second argument is the file for what it prints.
    """

    def __init__(self, cluster: Path, turn: Callable[[str], str], forked: Callable):
        self._cluster, self._turn, self._forked = cluster, turn, forked

    def install(self) -> None:
        """Put these commands in the place of Slurm's, for the life of this process."""
        for room in (slurm, slurm_state, node):
            room.slurm_command = self.command
        slurm.shutil = SimpleNamespace(which=str, rmtree=slurm.shutil.rmtree)
        slurm_state.shutil = SimpleNamespace(which=str)
        run._POLL_S = 0.0
        node._SUBMITTER_WAIT_S = 0.0  # nobody submits while a job runs

    def command(self, *words: str, **_) -> subprocess.CompletedProcess:
        """What `slurm_command` returns."""
        fault = self._turn(words[0])
        if fault == "refused":
            return subprocess.CompletedProcess(words, 1, "", REFUSED)
        code, out, err = getattr(self, f"_{words[0]}")(words)
        if fault == "lost":
            return subprocess.CompletedProcess(words, 1, "", LOST)
        return subprocess.CompletedProcess(words, code, out, err)

    def run_pending(self) -> None:
        """Let the cluster run all jobs that wait, one after another."""
        for number, job in self._jobs().items():
            if job["state"] == "PENDING":
                printed = self._cluster.with_suffix(".log")
                printed.unlink(missing_ok=True)
                code = self._forked(lambda number=number, job=job: _execute(number, job), printed)
                _write_log(Path(job["folder"]) / f"{number}.log", printed.read_bytes())
                ends = {0: "COMPLETED", _KILLED: "OUT_OF_MEMORY"}
                self._keep(self._jobs() | {number: job | {"state": ends.get(code, "FAILED")}})

    def _jobs(self) -> dict[str, dict]:
        return json.loads(self._cluster.read_text()) if self._cluster.exists() else {}

    def _keep(self, jobs: dict[str, dict]) -> None:
        self._cluster.write_text(json.dumps(jobs))

    def _sinfo(self, words) -> tuple[int, str, str]:
        return 0, "low*\n", ""

    def _scontrol(self, words) -> tuple[int, str, str]:
        return 0, "ClusterName = stub\nMaxArraySize = 1001\n", ""

    def _sbatch(self, words) -> tuple[int, str, str]:
        if "--test-only" in words:
            return 0, "", ""
        folder, jobs = Path(words[-1]).parent, self._jobs()
        count = len(read_json(folder / "tasks.json", {})["runs"])
        array = len({name.partition("_")[0] for name in jobs}) + 1
        names = [f"{array}_{task}" for task in range(count)] if count > 1 else [str(array)]
        new = {name: {"folder": str(folder), "task": n, "state": "PENDING", "asked": 0} for n, name in enumerate(names)}
        self._keep(jobs | new)
        return 0, f"{array}\n", ""

    def _squeue(self, words) -> tuple[int, str, str]:
        if any(job["asked"] for job in self._jobs().values()):
            self.run_pending()
        jobs = self._jobs()
        self._keep({name: job | {"asked": job["asked"] + 1} for name, job in jobs.items()})
        lines = [f"{name}|PENDING|Resources|" for name, job in jobs.items() if job["state"] == "PENDING"]
        return (0, "\n".join(lines), "") if lines else (1, "", _UNKNOWN)

    def _sacct(self, words) -> tuple[int, str, str]:
        ended = {name: job["state"] for name, job in self._jobs().items() if job["state"] != "PENDING"}
        return 0, "".join(f"{name}|{state}|None|n1\n" for name, state in ended.items()), ""


def _write_log(path: Path, printed: bytes) -> None:
    """As Slurm does, where the job's folder is still there."""
    if path.parent.is_dir():
        number = _OPEN(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(number, printed)
        os.close(number)


def _execute(name: str, job: dict) -> int:
    """What a job's script does, see `node`."""
    array, _, task = name.partition("_")
    os.environ["SLURM_JOB_ID"] = array
    if task:
        os.environ |= {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task}
    tasks = read_json(Path(job["folder"]) / "tasks.json", {})
    if not tasks:  # a submitter that took the answer for a refusal has removed it
        sys.exit(1)
    node.run_on_node(tasks.pop("runs")[job["task"]], **tasks)
    return 0
