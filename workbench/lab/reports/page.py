"""The kit of every page: templates, what is hidden from text, and values made inert; one self-contained HTML file each.

A page's content security policy allows nothing but inline styles, data images and the page's own script, so text that slipped
through could neither run nor load anything.
"""

import base64
import contextlib
import functools
import getpass
import hashlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from ...errors import RunError
from ...runs.files import move_aside, read_text, write_text
from ...runs.run import Run, runs_root
from ...runs.secrets import hide_tokens
from ...runs.text import visible
from . import facts
from .clean import attribute
from .redact import ODD, Redactor, users_in

_SHORT = 200  # characters of a text that many runs may share, such as the name of a column or a package
_TEMPLATES = Path(__file__).parent / "templates"
_NOTEBOOKS = ("executed.ipynb", "executing.ipynb")


def render(template: str, *, script: str = "", **values) -> str:
    """A page; every value in it is escaped and its invisible characters are labelled, except Markup."""
    if script:
        source = (_TEMPLATES / script).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        values |= {"script": Markup(source), "script_hash": Markup(digest)}
    return _templates().get_template(template).render(number=facts.number, quoted=facts.quoted, **values)


@functools.lru_cache(1)  # compiling a template takes longer than filling it in
def _templates() -> Environment:
    env = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_inert,
        auto_reload=False,  # a template is not looked at again for each page
    )
    env.filters["attribute"] = lambda value: attribute(str(value))
    return env


def _inert(value):
    return value if hasattr(value, "__html__") else visible(str(value))


def write_page(path: Path, html: str) -> Path:
    """Write a page, or a file that belongs to it, whole or not at all; a folder in its place is moved aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        move_aside(path.parent, [path.name], f"{path.name} is a folder, and a page goes there")
    write_text(path, html.encode("utf-8", "replace").decode("utf-8"))
    return path


def default_folder(root: Path | None = None, *, redact: bool = False) -> Path:
    """`reports/` next to the folder of all runs; redacted pages go to `reports-redacted/`, never among the others."""
    return Path(os.path.abspath(root or runs_root())).parent / ("reports-redacted" if redact else "reports")


# --- what is hidden ------------------------------------------------------------------------------------------------


def hider(runs: Sequence[Run], redact: bool) -> Callable[[str], str]:
    """Text -> text without secrets; with `redact` also without the hosts, users and paths of these runs and this machine."""
    if not redact:
        remembered = functools.lru_cache(maxsize=4096)(hide_tokens)
        return lambda text: remembered(text) if len(text) <= _SHORT else hide_tokens(text)
    hosts, commits = {socket.gethostname()}, set()
    for run in runs:
        with contextlib.suppress(OSError, RunError):  # the page shows nothing of a damaged run
            hosts |= {str(run.env.get("host", "")), str(run.status.get("owner", {}).get("host", ""))}
            commits |= {str(run.env.get("git_commit", "")).partition(" ")[0]}
            hosts |= {str(done["environment"].get("host", "")) for done in run.executions}  # it may have been resumed
    users = {os.environ.get("USER", ""), os.environ.get("LOGNAME", "")}
    with contextlib.suppress(KeyError, OSError, RuntimeError):  # in a container a user may have a number and no name
        users |= {Path.home().name, getpass.getuser()}
    users |= {name for text in _texts(runs) for name in users_in(text)}
    folders = {path for run in runs for path in _paths(run) if ODD.search(path)}
    return functools.lru_cache(maxsize=4096)(Redactor(hosts, users, commits, folders).text)


def _paths(run: Run) -> Iterator[str]:
    """The run's folder, those of its notebooks, and the paths that it was given."""
    paths = [str(run.path)]
    with contextlib.suppress(OSError, RunError):  # the page shows nothing of a damaged run
        paths += [str(done["notebook"].get(key, "")) for done in run.executions for key in ("path", "cwd")]
        argv = run.env.get("argv")
        given = [*run.params.values(), *(argv if isinstance(argv, list) else [])]
        paths += [text for text in given if isinstance(text, str) and os.path.exists(text)]
    return filter(os.path.isabs, paths)


def _texts(runs: Sequence[Run]) -> Iterable[str]:
    """Return what of a run may name a home folder."""
    for run in runs:
        yield str(run.path)
        for name in (*_NOTEBOOKS, "log.txt", "executions.jsonl", "params.json", "env.json", "status.json"):
            with contextlib.suppress(OSError, RunError):  # what cannot be read is not shown either
                yield read_text(run.path / name)
