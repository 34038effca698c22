"""One self-contained HTML file per run: no script, no request to any network, whatever the text in it.

Everything a model wrote is escaped or rebuilt from harmless elements (`clean.py`), and the page's content security policy
allows nothing but inline styles and data images, so text that slipped through could neither run nor load anything.
"""

import base64
import functools
import getpass
import hashlib
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from ..runs.files import write_text
from ..runs.parameters import repeat_command
from ..runs.run import Run, runs_root
from ..runs.tokens import hide_tokens
from . import facts
from .clean import attribute, visible
from .notebook import Budget, Notebook, read_notebook
from .redact import Redactor, users_in

_TEMPLATES = Path(__file__).parent / "templates"


def build_report(run: Run, *, redact: bool = False, path: Path | None = None) -> Path:
    """Write the report of a run, from whatever the run has left there, and return its path.

    Args:
        run: in any state.
        redact: take out host names, user names and absolute paths too; tokens are taken out of every report.
        path: of the page; default `report.html` in the run folder, `report-redacted.html` for a redacted one.
    """
    path = path or run.path / ("report-redacted.html" if redact else "report.html")
    return write_page(path, render("run.html.j2", **_content(run, hider([run], redact), redact)))


def _content(run: Run, hide: Callable[[str], str], redact: bool) -> dict:
    """Everything the page shows, with `hide` applied to each text."""
    budget = Budget()
    parts = Notebook(hide, budget)
    if executed := read_notebook(run):
        parts.read(executed)
    status, result, env, params = (facts.shown(v, hide) for v in (run.status, run.result, run.env, run.params))
    rows, total, damaged = facts.sample_completions(run)
    rows = [{k: facts.number(v) for k, v in facts.shown(row, hide).items()} for row in rows]
    limits = facts.limits(run, status, result, env, parts if executed else None)
    limits += damaged
    if budget.left_out:
        limits.append(f"{budget.left_out} outputs had no room in this page; they are in executed.ipynb.")
    if redact:
        limits.append("Host names, user names, absolute paths and tokens were replaced by labels in this copy.")
    unfinished = status["state"] != "done"
    return {
        "notebook": hide(run.notebook),
        "id": hide(run.id),
        "parts": parts,
        "status": status,
        "result": result,
        "counts": facts.count_verdicts(result.get("checks", {}).values()),
        "toy": run.toy,
        "times": facts.times(status),
        "progress": facts.shown(facts.progress(run), hide) if unfinished else {},
        "log": hide(facts.log_tail(run)) if unfinished else "",
        "completions": rows,
        "total": total,
        "parameters": params,
        "command": repeat_command(hide(run.notebook), params, parts.parameters),
        "environment": facts.environment(env),
        "limits": [hide(line) for line in limits],
    }


# --- what is shown as what -----------------------------------------------------------------------------------------


def hider(runs: Sequence[Run], redact: bool) -> Callable[[str], str]:
    """Text -> text without tokens; with `redact` also without the hosts, users and paths of these runs and this machine."""
    if not redact:
        return hide_tokens
    hosts, commits = {socket.gethostname()}, set()
    for run in runs:
        hosts |= {str(run.env.get("host", "")), str(run.status.get("owner", {}).get("host", ""))}
        commits |= {str(run.env.get("git_commit", "")).partition(" ")[0]}
    users = {getpass.getuser(), os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), Path.home().name}
    users |= {name for text in _texts(runs) for name in users_in(text)}
    return functools.lru_cache(maxsize=4096)(Redactor(hosts, users, commits).text)


def _texts(runs: Sequence[Run]) -> Iterable[str]:
    """What of a run may name a home folder."""
    for run in runs:
        yield str(run.path)
        for name in ("executed.ipynb", "executing.ipynb", "log.txt", "params.json", "env.json", "status.json"):
            if (run.path / name).is_file():
                yield (run.path / name).read_text(encoding="utf-8", errors="replace")


def render(template: str, *, script: str = "", **values) -> str:
    """A page; every value in it is escaped and its invisible characters are labelled, except Markup.

    Args:
        template: file name.
        script: file name of the page's only script, allowed by its hash.
        values: of the template.
    """
    env = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_inert
    )
    env.filters["attribute"] = lambda value: attribute(str(value))
    if script:
        source = (_TEMPLATES / script).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        values |= {"script": Markup(source), "script_hash": Markup(digest)}
    return env.get_template(template).render(number=facts.number, **values)


def _inert(value):
    return value if hasattr(value, "__html__") else visible(str(value))


def write_page(path: Path, html: str) -> Path:
    """Write a page whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html.encode("utf-8", "replace").decode("utf-8"))
    return path


def default_folder(root: Path | None = None, *, redact: bool = False) -> Path:
    """`reports/` beside the folder of all runs; redacted pages go to `reports-redacted/`, never among the others."""
    return Path(os.path.abspath(root or runs_root())).parent / ("reports-redacted" if redact else "reports")
