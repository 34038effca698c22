"""What runs on a Slurm node: one run of a job, stopped in time when Slurm wants the node back, and queued again.

    python -m workbench.lab.batch.node FOLDER INDEX      # of `tasks.json` in the folder that `slurm.submit` made

The job's first process (`run_on_node`) acts on Slurm's notices; the notebook's kernel below it survives them (`shield`).
"""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

from ...runs.files import read_json
from ...runs.run import Run, load_run, set_status, slurm_job
from ...runs.stop_request import clear_stop, request_stop, stop_request
from .gpus import HANDED_OUT
from .slurm_state import ENDED_BY_SLURM, error_summary, slurm_command

NOTICES = (signal.SIGTERM, signal.SIGUSR2)
_SUBMITTER_WAIT_S = 60
_LEAVE_S = 10  # of the grace, for interrupting the notebook and saving it
_ANSWER_S = 15  # an answer of Slurm that takes longer would use up the grace


def run_on_node(folder: str, notebook: str, requeues: int, how: dict) -> None:
    """Execute a submitted run and exit as `workbench run` does: 0 done, 1 failed, 130 interrupted or queued again."""
    from .execute import execute_run

    run = load_run(folder)
    _check_mine(run)
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    if restarts > requeues:
        set_status(run.path, "interrupted", f"Slurm queued it again {restarts} times; --requeues allows {requeues}")
        sys.exit(130)
    os.environ[HANDED_OUT] = "1"  # by Slurm, to this job
    notice = Notice(run, may_requeue=restarts < requeues)
    state = execute_run(run, notebook=notebook, quiet=True, ended=notice.ended, **how)
    if notice.requeue:
        _requeue(run)
    sys.exit({"done": 0, "failed": 1}.get(state, 130))


def _check_mine(run: Run) -> None:
    """Exit unless this job is the one that the run's status names: the submitter writes it there.

    A run that was submitted once more meanwhile names another job, and this one leaves it alone.
    """
    end = time.monotonic() + _SUBMITTER_WAIT_S
    while not (owner := read_json(run.path / "status.json", {}).get("owner", {})).get("job"):
        if time.monotonic() > end:
            sys.exit(f"{run.path}: names no job; `workbench` ended before it recorded the job")
        time.sleep(0.2)
    if owner["job"] != slurm_job():
        sys.exit(f"{run.path}: belongs to job {owner['job']}; this is job {slurm_job()}")


class Notice:
    """Slurm's notice that the job is to end: SIGUSR2 ahead of the time limit, SIGTERM at preemption or cancellation.

    The training is asked to stop after its step; what has not ended shortly before Slurm kills it is interrupted.
    It is made in the main thread, which alone may set signal handlers.
    """

    def __init__(self, run: Run, may_requeue: bool):
        self.requeue = False
        self._run, self._may_requeue = run, may_requeue
        self._signal: int | None = None
        self._over, self._lock = threading.Event(), threading.Lock()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in NOTICES:
            signal.signal(number, self._note)
        threading.Thread(target=self._watch, daemon=True).start()

    def ended(self, state: str, error: str | None) -> tuple[str, str | None]:
        """Return what to record for a notebook that ended: `queued` where the job starts again or Slurm has yet to say why."""
        with self._lock:  # with `_over` set the watcher interrupts nothing
            self._over.set()
        clear_stop(self._run)
        if self._signal is None or state == "done":
            return state, error
        cause, _ = why_ended(_job_fields(), self._signal, time.time())
        if not cause:
            return "queued", f"{ENDED_BY_SLURM}: {error}"
        if not self._may_requeue:
            return "interrupted", f"Slurm: {cause}, and no requeue is left (--requeues): {error}"
        self.requeue = True
        return "queued", f"requeued after {cause}: {error}"

    def _note(self, number, _frame) -> None:
        self._signal = self._signal or number

    def _watch(self) -> None:
        while self._signal is None:
            if self._over.wait(0.2):
                return
        cause, deadline = why_ended(_job_fields(), self._signal, time.time())
        while time.time() < deadline and not self._over.is_set():
            if stop_request(self._run.path) is None:
                with contextlib.suppress(OSError):  # a full disk; it is tried again, and interrupted at the end
                    request_stop(self._run, f"Slurm ends this job: {cause or 'SIGTERM'}")
            self._over.wait(0.5)
        with self._lock:
            if not self._over.is_set():
                os.kill(os.getpid(), signal.SIGINT)
        clear_stop(self._run)


def why_ended(job: dict[str, str], number: int, now: float) -> tuple[str, float]:
    """Why Slurm sent a signal, `preemption`, `time limit` or nothing, and until when the notebook may go on.

    Times are in seconds since 1970; `job`: fields of `scontrol show job`, empty when Slurm does not answer.

    Example:
        >>> why_ended({"JobState": "RUNNING", "EndTime": "1300"}, signal.SIGUSR2, now=1000.0)
        ('time limit', 1290.0)
    """
    if job and job.get("JobState") != "RUNNING":  # it has been ended: what is left is killed in seconds
        return "", now
    end = float(job["EndTime"]) if job.get("EndTime", "").isdigit() else now + 3 * _LEAVE_S
    preempted = job.get("PreemptTime", "").isdigit()
    cause = "preemption" if preempted else "time limit" if number == signal.SIGUSR2 else ""
    return cause, end - min(_LEAVE_S, (end - now) / 3)


def _job_fields() -> dict[str, str]:
    # an array's last task has the array's own SLURM_JOB_ID, so slurm_job() is asked about
    answer = slurm_command("scontrol", "show", "job", "--oneliner", slurm_job(), timeout=_ANSWER_S)
    return dict(re.findall(r"(\w+)=(\S*)", answer.stdout))


def _requeue(run: Run) -> None:
    """Queue this very job again, which ends it; Slurm refuses where the cluster or `--sbatch no-requeue=` forbids it."""
    answer = slurm_command("scontrol", "requeue", slurm_job(), timeout=_ANSWER_S)
    if answer.returncode and _job_fields().get("JobState") == "RUNNING":
        refused = error_summary(answer.stderr)
        error = f"{run.status['error']}; but Slurm refused to requeue it: {refused}; go on with --resume"
        set_status(run.path, "interrupted", error)


# --- in the notebook's kernel ---------------------------------------------------------------------------------------


def shield() -> None:
    """Let this process survive Slurm's notices. The notices still end the processes forked from here.

    Slurm sends its notices to every process of the job, but only the runner above is to act on them: it asks the training
    to stop after its step. Pools of workers are ended by SIGTERM, so forked processes get the default back.
    """

    def ignore(*_):
        pass

    def hold_back() -> None:  # a signal between the fork and `restore` would be lost
        signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)

    def let_through() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)

    def restore() -> None:
        for number in NOTICES:
            signal.signal(number, signal.SIG_DFL)
        let_through()

    for number in NOTICES:
        signal.signal(number, ignore)
    os.register_at_fork(before=hold_back, after_in_parent=let_through, after_in_child=restore)


if __name__ == "__main__":
    tasks = read_json(Path(sys.argv[1]) / "tasks.json", {})
    run_on_node(tasks.pop("runs")[int(sys.argv[2])], **tasks)
