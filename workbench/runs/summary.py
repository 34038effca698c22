"""A run in a line, for all that show it: the command line, bars, the index, widgets; and many runs in a line."""

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from ..errors import RunError
from .files import files_named, read_json
from .findings import RunFindings
from .results import results_of
from .run import GOING, Run
from .secrets import hide_tokens
from .text import one_line


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """What a line about a run says; `status`, `result` and `findings` as they were when it was read."""

    run: Run
    status: Mapping
    result: Mapping
    findings: RunFindings

    @classmethod
    def of(cls, run: Run, status: Mapping | None = None) -> "RunSummary":
        """Read a run; `status` where it was read before."""
        return cls(run, status or run.status, run.result, RunFindings.of(run.audit))

    @property
    def going(self) -> bool:
        return self.status["state"] in GOING

    @property
    def failed(self) -> list[str]:
        """What the failed checks say."""
        return [r.says for r in results_of(self.result) if r.verdict == "failed"]

    @property
    def succeeded(self) -> bool:
        """Whether the run is done and no check of it failed, whatever the audit found."""
        return self.status["state"] == "done" and not self.failed

    @property
    def mark(self) -> str:
        """`good`, `bad` or `odd`: the colour of its state. Of a run that is done it takes the audit to be good."""
        if self.going:
            return "odd"
        return self.findings.mark if self.succeeded else "bad"

    def problem_counts(self, fail_on: str | None = None) -> bool:
        """Say whether the audit found a problem that makes an exit code 1; `fail_on` is `problem` or `nothing`.

        None: a problem counts in a notebook of the user's own.
        """
        counts = not self.run.shipped if fail_on is None else fail_on == "problem"
        return counts and bool(self.findings.problems)

    @property
    def seconds(self) -> float | None:
        """How long the run has taken, all executions together; None where that is unknown."""
        return duration(self.status)

    @property
    def outcome(self) -> str:
        """State, error, headline, and which checks failed."""
        text = self.status["state"] + (f": {self.status['error']}" if self.status.get("error") else "")
        if headline := self.result.get("headline"):
            value = headline["value"]
            text += f", {headline['name']} {value:.4g}" if isinstance(value, float) else f", {headline['name']} {value}"
        if self.failed:
            text += f", {len(self.failed)} checks failed: {'; '.join(self.failed)}"
        return one_line(text)

    @property
    def outcome_and_audit(self) -> str:
        """The outcome of a run that has ended, and what the audit found."""
        return f"{self.outcome}; {one_line(self.findings.line)}"

    @property
    def line(self) -> str:
        """`notebook id: running, step 12/80, on host a, process 7, 31 s`, and for an ended run its outcome and audit."""
        parts = [self.outcome]
        if self.going:
            owner, error = self.status["owner"], self.status["error"]
            where = f"job {owner['job']}" if owner.get("job") else f"on {owner.get('host')}, process {owner.get('pid')}"
            parts = [self.status["state"] + (f" ({error})" if error else ""), steps_of(self.run), where]
        if gpus := self.status.get("gpus"):
            parts.append(f"GPU {gpus}")
        took = [] if self.seconds is None else [f"{self.seconds:.0f} s"]
        audit = [] if self.going else [self.findings.line]
        return f"{title(self.run)}: " + one_line("; ".join([", ".join([*filter(None, parts), *took]), *audit]))

    @property
    def row(self) -> dict:
        """The same as a JSON object, for scripts."""
        row: dict = {"run": str(self.run.path), "notebook": self.run.notebook, "id": self.run.id}
        row |= {key: self.status.get(key) for key in ("state", "error", "times", "owner", "gpus")}
        progress = (self.going and steps_of(self.run)) or None
        row |= {"progress": progress, "headline": self.result.get("headline"), "failed_checks": self.failed}
        return row | {"audit": self.findings.row, "params": self.run.params, "result": self.result}


def tally(summaries: Sequence[RunSummary | None]) -> str:
    """Return how many runs ended well, and what the audit found, in a line; None is a run that never started.

    Example:
        >>> tally([None])
        '0 of 1 runs are done, with no failed check and no problem in the audit'
    """
    present = [summary for summary in summaries if summary is not None]
    good = sum(summary.succeeded and summary.findings.passed for summary in present)
    text = f"{good} of {len(summaries)} runs are done, with no failed check and no problem in the audit"
    audits = audit_tally(present)
    return f"{text}; audit: {audits}" if audits else text


def audit_tally(summaries: Sequence[RunSummary]) -> str:
    """How many of the runs that have ended have which findings, the worst first, such as `1 with a problem, 2 not audited`."""
    ended = sorted((summary.findings for summary in summaries if not summary.going), key=lambda findings: findings.rank)
    return ", ".join(f"{n} {words}" for words, n in Counter(findings.in_a_tally for findings in ended).items())


def duration(status: Mapping) -> float | None:
    """Seconds of all executions of a run, the one that goes on included; None where it never ran."""
    times, state = status.get("times", {}), status["state"]
    if "running" not in times:
        return None
    if state == "running":
        return status.get("ran_s", 0.0) + max(0.0, time.time() - times["running"])
    return status.get("ran_s")


def duration_text(seconds: float) -> str:
    """A duration in the unit that suits it.

    Example:
        >>> duration_text(90), duration_text(3000), duration_text(9000)
        ('90 s', '50 min', '2 h 30 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def title(run: Run) -> str:
    """`notebook id`, which name its folder and so may be anyone's words."""
    return one_line(f"{run.notebook} {run.id}")


def unreadable(run: Run, error: Exception) -> str:
    """The line of a run whose files cannot be read."""
    return f"{title(run)}: cannot be read: {one_line(hide_tokens(str(error)))}"


def latest_progress(run: Run) -> dict | None:
    """`progress.json` of the training that wrote last since `take_run`: a notebook may train several in turn."""
    times = {}
    for path in files_named(run.path, "progress.json"):
        with contextlib.suppress(FileNotFoundError):  # a training that starts anew removes it
            times[path] = path.stat().st_mtime
    for path in sorted(times, key=times.__getitem__, reverse=True):
        with contextlib.suppress(RunError, OSError):  # a file of the notebook's own that is called so
            if times[path] > 0 and (found := read_json(path, None)):
                return found
    return None


def steps_of(run: Run) -> str:
    """`step 3/80` of the training that goes on in a run, or nothing."""
    progress = latest_progress(run)
    return f"step {progress['step']}/{progress['max_steps']}" if progress else ""
