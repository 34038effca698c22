"""One self-contained HTML file per run: no script, no request to any network, whatever the text in it.

Everything a model wrote is escaped or rebuilt from harmless elements (`clean.py`), and the page's content security policy
allows nothing but inline styles and data images, so text that slipped through could neither run nor load anything.
"""

import base64
import contextlib
import functools
import getpass
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from ..errors import RunError
from ..runs.files import read_text, write_text
from ..runs.parameters import repeat_command
from ..runs.run import Run, runs_root
from ..runs.tokens import hide_tokens
from . import facts
from .clean import attribute, visible
from .notebook import PAGE_LIMIT, Budget, Notebook, read_notebook
from .redact import Redactor, users_in
from .redacted_notebook import redacted_notebook

_TEMPLATES = Path(__file__).parent / "templates"


def build_report(run: Run, *, redact: bool = False, path: Path | None = None) -> Path:
    """Write the report of a run, from whatever the run has left there, and return its path.

    Args:
        run: in any state.
        redact: take out host names, user names and absolute paths too; tokens are taken out of every report. A copy of the
            executed notebook, redacted alike, goes beside the page, under its name with the ending `.ipynb`.
            Beside either goes the page of all completions, `...-microscope.html`, where some were recorded.
        path: of the page; default `report.html` in the run folder, `report-redacted.html` for a redacted one.

    Raises:
        RunError: a file of the run is damaged; names it.
    """
    stem = path.stem if path else "report-redacted" if redact else run.id
    path = path or run.path / ("report-redacted.html" if redact else "report.html")
    notebook = path.with_suffix(".ipynb") if redact else None
    microscope = _write_microscope(run, path.with_name(f"{stem}-microscope.html"), redact)
    page, copy = render_report(run, notebook.name if notebook else "", microscope)
    if notebook and copy:
        write_page(notebook, json.dumps(copy, indent=1))
    return write_page(path, page)


def _write_microscope(run: Run, path: Path, redact: bool) -> str:
    """Write the page of all completions; its file's name, empty where none can be read."""
    from .microscope import write_microscope  # it renders with this module, and loads what reads tables

    with contextlib.suppress(RunError):
        title = f"Completions of {run.notebook}, run {run.id}"
        if write_microscope(run.path, path, title, hider([run], redact), redacted=redact):
            return path.name
    return ""


def render_report(run: Run, redacted: str = "", microscope: str = "") -> tuple[str, dict | None]:
    """The page of a run, below `PAGE_LIMIT` whatever the run holds, and the redacted copy of its notebook.

    Args:
        run: in any state.
        redacted: name of the file for that copy; empty for a page that is not redacted, of which there is none.
        microscope: name of the page of all completions, to link to.
    """
    hide, executed = hider([run], bool(redacted)), read_notebook(run)
    copy = None
    if redacted and executed:
        with contextlib.suppress(AttributeError, TypeError):  # no notebook as nbformat has it: not shown, so not copied
            copy = redacted_notebook(executed, hide)
    for share in (1, 4, 16, 64):
        content = _content(run, executed, hide, redacted if copy else "", bool(redacted), share)
        page = render("run.html.j2", microscope=quote(os.fsencode(microscope)), **content)
        if len(page.encode("utf-8", "replace")) <= PAGE_LIMIT:
            break
    return page, copy


def _content(run: Run, executed: dict | None, hide: Callable[[str], str], copy: str, redact: bool, share: int) -> dict:
    """Everything the page shows, with `hide` applied to each text, at 1/`share` of the usual length."""
    budget = Budget(text=800_000 // share, source="executed.ipynb" if not redact else copy or "no file of this copy")
    parts = Notebook(hide, budget, most=20_000 // share)
    if executed:
        parts.read(executed)
    checks = run.result.get("checks", {})
    result = run.result | {"checks": facts.failing_first(checks) if len(checks) > 100 else checks}
    status, result, env, params = (facts.shown(v, hide, share) for v in (run.status, result, run.env, run.params))
    rows, total, damaged = facts.sample_completions(run)
    rows = [{k: facts.number(v) for k, v in facts.shown(row, hide, share).items()} for row in rows]
    limits = facts.limits(run, status, result, env, parts if executed else None)
    limits += damaged
    if budget.left_out:
        limits.append(
            f"{budget.left_out:,} parts of the notebook had no room in this page; they are in {budget.source}."
        )
    if share > 1:
        limits.append(f"The page would have passed 5 MB: texts were cut to 1/{share} of what is usually shown.")
    if redact:
        limits.append("Host names, user names, absolute paths and tokens were replaced by labels in this copy.")
    if copy:
        limits.append(f"The notebook with all its outputs, with the same labels, is in {copy}.")
    unfinished = status["state"] != "done"
    return {
        "notebook": hide(run.notebook),
        "id": hide(run.id),
        "parts": parts,
        "status": status,
        "result": result,
        "counts": facts.count_verdicts(checks.values()),
        "claim_counts": facts.shown(facts.count_claims(run.result.get("claims", {})), hide, 25 * share),
        "toy": run.toy,
        "times": facts.times(status),
        "progress": facts.shown(facts.progress(run), hide, share) if unfinished else {},
        "log": facts.log_tail(run, hide, share) if unfinished else "",
        "completions": rows,
        "total": total,
        "parameters": params,
        "command": repeat_command(hide(run.notebook), params, parts.parameters),
        "environment": facts.environment(env),
        "limits": facts.shown(limits, hide, share),
    }


# --- what is shown as what -----------------------------------------------------------------------------------------


def hider(runs: Sequence[Run], redact: bool) -> Callable[[str], str]:
    """Text -> text without tokens; with `redact` also without the hosts, users and paths of these runs and this machine."""
    if not redact:
        return hide_tokens
    hosts, commits = {socket.gethostname()}, set()
    for run in runs:
        with contextlib.suppress(OSError, RunError):  # of a damaged run nothing is shown
            hosts |= {str(run.env.get("host", "")), str(run.status.get("owner", {}).get("host", ""))}
            commits |= {str(run.env.get("git_commit", "")).partition(" ")[0]}
    users = {getpass.getuser(), os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), Path.home().name}
    users |= {name for text in _texts(runs) for name in users_in(text)}
    folders = sorted({str(run.path) for run in runs if " " in str(run.path)}, key=len, reverse=True)
    return functools.lru_cache(maxsize=4096)(Redactor(hosts, users, commits, folders).text)


def _texts(runs: Sequence[Run]) -> Iterable[str]:
    """What of a run may name a home folder."""
    for run in runs:
        yield str(run.path)
        for name in ("executed.ipynb", "executing.ipynb", "log.txt", "params.json", "env.json", "status.json"):
            with contextlib.suppress(OSError, RunError):  # what cannot be read is not shown either
                yield read_text(run.path / name)


def render(template: str, *, script: str = "", **values) -> str:
    """A page; every value in it is escaped and its invisible characters are labelled, except Markup.

    Args:
        template: file name.
        script: file name of the page's only script, allowed by its hash.
        values: of the template.
    """
    if script:
        source = (_TEMPLATES / script).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        values |= {"script": Markup(source), "script_hash": Markup(digest)}
    return _templates().get_template(template).render(number=facts.number, quoted=facts.quoted, **values)


@functools.lru_cache(1)  # compiling a template takes longer than filling it in
def _templates() -> Environment:
    env = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_inert
    )
    env.filters["attribute"] = lambda value: attribute(str(value))
    return env


def _inert(value):
    return value if hasattr(value, "__html__") else visible(str(value))


def write_page(path: Path, html: str) -> Path:
    """Write a page, or what goes beside it, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html.encode("utf-8", "replace").decode("utf-8"))
    return path


def default_folder(root: Path | None = None, *, redact: bool = False) -> Path:
    """`reports/` beside the folder of all runs; redacted pages go to `reports-redacted/`, never among the others."""
    return Path(os.path.abspath(root or runs_root())).parent / ("reports-redacted" if redact else "reports")
