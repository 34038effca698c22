"""What a reader needs to judge a run, from its folder alone: verdicts, method, environment, sample, limits."""

import contextlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from ...errors import RunError
from ...runs.completions import ends_of_completions
from ...runs.files import last_metrics, read_json, read_tail
from ...runs.results import load_claims, results_of
from ...runs.run import GOING, Run
from ...runs.secrets import map_text
from ...runs.summary import duration, duration_text
from .clean import shortened
from .outputs import terminal_text
from .sparkline import logs_by_arm

_SAMPLE = 5
_MOST_TEXT = 2000  # characters of one completion or parameter
_MOST_LOG = 4000
_OF_A_FINDING = ("title", "severity", "says", "advice", "because", "expected")
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


def quoted(value) -> str:
    """The same, with quotes where spaces at an end of a text would not be seen."""
    return f'"{number(value)}"' if isinstance(value, str) and value != value.strip() else number(value)


def shown(value, hide: Callable[[str], str]):
    """A JSON value as the page shows it: each text without what is hidden, and cut."""
    return map_text(value, lambda text: shortened(text, _MOST_TEXT, change=hide))


def times(status: Mapping) -> dict[str, str]:
    """State -> when, in UTC, and how long the run took."""
    found = {k: v for k, v in status.get("times", {}).items() if isinstance(v, int | float)}
    rows = {state: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(when)) for state, when in found.items()}
    seconds = None if status["state"] in GOING else duration(status)
    return rows if seconds is None else rows | {"took": duration_text(seconds)}


def environment(env: Mapping) -> dict[str, str]:
    """`env.json` as one line of text each."""
    lines = {}
    for name, value in env.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = shlex.join(map(str, value)) if name == "argv" else ", ".join(map(str, value))
        if value not in ("", None):
            lines[name.replace("_", " ")] = str(value)
    return lines


def progress(run: Run) -> dict[str, str]:
    """Of a run that is not done: steps so far and the last line of its metrics."""
    rows = {}
    with contextlib.suppress(RunError, OSError):  # a file of the notebook's own that is called so
        if at := read_json(run.path / "progress.json", {}):
            rows["steps"] = f"{at['step']} of {at['max_steps']}"
    try:
        last = {k: v for k, v in last_metrics(run.path / "metrics.jsonl").items() if v is not None}
    except (RunError, OSError):
        return rows
    return rows | {f"last logged {name}": number(value) for name, value in list(last.items())[:12]}


def log_tail(run: Run, hide: Callable[[str], str]) -> str:
    """The end of `log.txt`, without what is hidden: more is read than shown, so that no secret is cut in two."""
    try:
        text = read_tail(run.path / "log.txt", _MOST_LOG + 16_000)
    except FileNotFoundError:
        return ""
    except (RunError, OSError) as error:
        text = str(error)
    return hide(terminal_text(text))[-_MOST_LOG:]


def sample_completions(run: Run, most: int = _SAMPLE) -> tuple[list[dict], int, list[str]]:
    """The first and the last recorded completions, `most` of each, how many there are, and a sentence for each damaged part."""
    try:
        rows, total, damaged = ends_of_completions(run.path, most)
    except RunError as error:
        return [], 0, [f"{error}."]
    return [{k: row[k] for k in _COLUMNS if k in row} for row in rows], total, damaged


def limits(run: Run, status: Mapping, result: Mapping, env: Mapping, parts) -> list[str]:
    """Return what this report cannot support, in sentences; `parts` of its notebook, None when the runner executed none."""
    lines = [_UNFINISHED[status["state"]]] if status["state"] in _UNFINISHED else []
    if parts and parts.executed < parts.cells and status["state"] != "done":
        lines.append(f"{parts.executed} of {parts.cells} code cells were executed.")
    if run.toy:
        lines.append("Toy scale: the model is an embedded one, so no number here is about a real model.")
    if len(done := run.executions) > 1:
        codes = "different" if len({e["notebook"].get("code") for e in done}) > 1 else "the same"
        hosts = ", ".join(dict.fromkeys(str(e["environment"].get("host")) for e in done))
        lines.append(f"The run was executed {len(done)} times, with {codes} code, on {hosts}; see executions.jsonl.")
    lines += check_limits(result)
    lines += _seeds(run)
    if not env:
        lines.append("No environment was recorded: versions and hardware are unknown.")
    elif not env.get("git_commit"):
        lines.append("No git commit was recorded: only the package versions say which code ran.")
    elif "uncommitted" in str(env["git_commit"]):
        lines.append("The code had uncommitted changes, so the commit alone does not repeat the run.")
    if parts and parts.controls:
        lines.append(f"Interactive controls of the notebook that this page leaves out: {parts.controls}.")
    if parts and parts.unknown:
        lines.append(f"Cells of an unknown type that this page leaves out: {parts.unknown}.")
    return lines


def _seeds(run: Run) -> list[str]:
    """A sentence where something was trained with one seed alone."""
    found = logs_by_arm(run)
    if not found and (run.path / "metrics.jsonl").exists():
        return ["This is one run with one seed; how far another seed would be from it is unknown."]
    single = [name for name, logs in found.items() if len(logs) == 1]
    names = ", ".join(single[:12]) + (f" and {len(single) - 12} more" if len(single) > 12 else "")
    return [f"Trained with one seed only, so how far another would be is unknown: {names}."] if single else []


def about_claim(claim: str) -> str:
    """The words of a published claim with their links, as HTML; an id that the data do not have stays text."""
    known = load_claims().get(claim)
    return Markup(known.as_html()) if known else claim


def check_limits(result: Mapping) -> list[str]:
    """A sentence for each check that failed, and for what was left out."""
    results = results_of(result)
    failed = [f"Failed: {r.says}." for r in results if r.verdict == "failed"]
    reasons: dict[str, list[str]] = {}
    for r in results:
        if r.verdict in ("skipped", "not tested"):
            reasons.setdefault(r.reason, []).append(f"“{r.says}”")
    return failed + [f"Not run ({reason}): {', '.join(names)}." for reason, names in reasons.items()]


def audit_rows(audit: Mapping) -> list[dict]:
    """The findings of an `audit.json` as rows, those not expected first; a finding in several trainings is one row."""
    rows: dict[tuple, dict] = {}
    for training in audit.get("trainings", []):
        for finding in training["findings"]:
            key = (finding["expected"], finding["severity"] != "problem", finding["title"])
            row = rows.setdefault(key, {name: finding[name] for name in _OF_A_FINDING})
            row.setdefault("trainings", []).append(str(training.get("name") or "the run"))
    return [rows[key] for key in sorted(rows, key=lambda key: key[:2])]


def differing(values: Sequence[Mapping]) -> tuple[dict, list[str]]:
    """Return what many mappings share, and the names of what differs among them."""
    names = list(dict.fromkeys(name for value in values for name in value))
    same = {n: values[0].get(n) for n in names if all(v.get(n) == values[0].get(n) for v in values)}
    return same, [n for n in names if n not in same]
