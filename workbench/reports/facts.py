"""What a reader needs to judge a run, from its folder alone: verdicts, method, environment, sample, limits."""

import ast
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence

from ..errors import RunError
from ..runs.files import completion_parts, read_json
from ..runs.run import SET_BY_RUNNER, Run
from ..runs.tokens import map_text
from .clean import shortened

_SAMPLE = 5
_MOST_TEXT = 2000  # characters of one completion or parameter
_MOST_LOG = 4000
_COLUMNS = ("step", "prompt", "completion", "finish_reason", "reward")
_UNFINISHED = {
    "queued": "The run has not started.",
    "running": "The run is still going: this page shows how far it was when the page was built.",
    "failed": "The run failed: what follows the failing cell was not run.",
    "interrupted": "The run was interrupted: what follows was not run. It can go on with --resume.",
}


def number(value) -> str:
    """A value for a table: floats to four digits, long text cut."""
    return f"{value:.4g}" if isinstance(value, float) else shortened(str(value), _MOST_TEXT)


def shown(value, hide: Callable[[str], str]):
    """A JSON value as the page shows it: each text without what is hidden, and cut."""
    return map_text(value, lambda text: shortened(text, _MOST_TEXT, change=hide))


def count_verdicts(checks: Mapping) -> dict[str, int]:
    """How many checks hold, fail and were not run, those that occur."""
    held = [value if isinstance(value, bool) else None for value in checks.values()]
    counts = {"hold": held.count(True), "fail": held.count(False), "not run": held.count(None)}
    return {word: n for word, n in counts.items() if n}


def parameter_rows(params: Mapping, known: Mapping[str, tuple[str, str]]) -> list[dict]:
    """A row for each parameter: value, the notebook's default where it differs, and the notebook's help."""
    rows = []
    for name, value in params.items():
        default, told = known.get(name, ("", ""))
        rows.append(
            {"name": name, "value": number(value), "help": told, "default": default if _differs(value, default) else ""}
        )
    return rows


def _differs(value, default: str) -> bool:
    try:
        return bool(default) and ast.literal_eval(default) != value
    except (ValueError, SyntaxError):
        return True


def repeat_command(notebook: str, params: Mapping, known: Mapping[str, tuple[str, str]]) -> str:
    """The command that repeats the run: its parameters where they differ from the notebook's defaults."""
    given = {k: v for k, v in params.items() if k not in SET_BY_RUNNER and (k not in known or _differs(v, known[k][0]))}
    return shlex.join(["workbench", "run", notebook, *(p for k, v in given.items() for p in ("-p", f"{k}={v}"))])


def times(status: Mapping) -> dict[str, str]:
    """State -> when, in UTC, and how long the run took."""
    found = {k: v for k, v in status.get("times", {}).items() if isinstance(v, int | float)}
    told = {state: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when)) for state, when in found.items()}
    if (seconds := duration(status)) is not None:
        told["took"] = duration_text(seconds)
    return told


def duration(status: Mapping) -> float | None:
    """Seconds from the start to the end of the last execution; None when one of them is unknown."""
    found, state = status.get("times", {}), status["state"]
    if state in ("queued", "running") or "running" not in found or found.get(state, 0) < found["running"]:
        return None
    return found[state] - found["running"]


def duration_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def environment(env: Mapping) -> dict[str, str]:
    """`env.json` as one line of text each."""
    made = {}
    for name, value in env.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = shlex.join(map(str, value)) if name == "argv" else ", ".join(map(str, value))
        if value not in ("", None):
            made[name.replace("_", " ")] = str(value)
    return made


def progress(run: Run) -> dict[str, str]:
    """Of a run that is not done: steps so far and the last line of its metrics."""
    told = {}
    if at := read_json(run.path / "progress.json", {}):
        told["steps"] = f"{at.get('step')} of {at.get('max_steps')}"
    try:
        last = run.metrics.iloc[-1].dropna()
    except (RunError, IndexError):
        return told
    return told | {f"last logged {name}": number(value) for name, value in list(last.items())[:12]}


def log_tail(run: Run) -> str:
    """The end of `log.txt`."""
    try:
        with (run.path / "log.txt").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _MOST_LOG))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def sample_completions(run: Run, most: int = _SAMPLE) -> tuple[list[dict], int]:
    """The first and the last recorded completions, `most` of each, and how many there are; reads no more than that."""
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(p) for p in completion_parts(run.path / "completions.parquet")]
    total = sum(f.metadata.num_rows for f in files)
    if not total:
        return [], 0
    rows = _rows(files, most if total > 2 * most else 2 * most)
    if total > 2 * most:
        tail: list[dict] = []
        for file in reversed(files):
            groups = range(file.num_row_groups - 1, -1, -1)
            for group in groups:
                tail = file.read_row_group(group).to_pylist()[-most:] + tail
                if len(tail) >= most:
                    break
            if len(tail) >= most:
                break
        rows += tail[-most:]
    return [{k: row[k] for k in _COLUMNS if k in row} for row in rows], total


def _rows(files, most: int) -> list[dict]:
    rows: list[dict] = []
    for file in files:
        for batch in file.iter_batches(batch_size=most):
            rows += batch.to_pylist()
            if len(rows) >= most:
                return rows[:most]
    return rows


def limits(run: Run, status: Mapping, result: Mapping, env: Mapping, parts) -> list[str]:
    """What this report cannot support, in sentences.

    Args:
        run: the run; `status`, `result`, `env` as they are shown.
        parts: of its notebook, `notebook.Notebook`; None when the runner executed none.
    """
    told = [_UNFINISHED[status["state"]]] if status["state"] in _UNFINISHED else []
    if parts and parts.executed < parts.cells and status["state"] != "done":
        told.append(f"{parts.executed} of {parts.cells} code cells were executed.")
    if run.toy:
        told.append("Toy scale: the model is an embedded one; nothing here is a number about a real model.")
    told += check_limits(result)
    if "seed" in run.params:
        told.append("This is one run with one seed; how far another seed would be from it is unknown.")
    if not env:
        told.append("No environment was recorded: versions and hardware are unknown.")
    elif not env.get("git_commit"):
        told.append("No git commit was recorded: which code ran is known by package versions only.")
    elif "uncommitted" in str(env["git_commit"]):
        told.append("The code had uncommitted changes, so the commit alone does not repeat the run.")
    if parts and parts.controls:
        told.append(f"{parts.controls} interactive controls of the notebook are not in this page.")
    return told


def check_limits(result: Mapping) -> list[str]:
    """A sentence for each check that fails or was not run, and for the claims that were not."""
    told = [f"Does not hold: {name}." for name, ok in result.get("checks", {}).items() if ok is False]
    reasons: dict[str, list[str]] = {}
    for name, value in result.get("checks", {}).items():
        if not isinstance(value, bool):
            reasons.setdefault(_reason(value), []).append(f"check “{name}”")
    for name, claim in result.get("claims", {}).items():
        if isinstance(claim, Mapping) and str(claim.get("verdict", "")).startswith("not run"):
            reasons.setdefault(_reason(claim["verdict"]), []).append(f"claim {name}")
    return told + [f"Not run ({reason}): {', '.join(names)}." for reason, names in reasons.items()]


def _reason(value) -> str:
    return re.sub(r"^not run:? ?", "", str(value)) or "no reason given"


def differing(values: Sequence[Mapping]) -> tuple[dict, list[str]]:
    """What many mappings share, and the names of what differs among them."""
    if not values:
        return {}, []
    names = list(dict.fromkeys(name for value in values for name in value))
    same = {n: values[0].get(n) for n in names if all(v.get(n) == values[0].get(n) for v in values)}
    return same, [n for n in names if n not in same]
