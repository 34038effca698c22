"""One self-contained HTML file per run and an index of many; no script, no request to any network.

Everything a model wrote is escaped, and the page's content security policy allows nothing but inline styles and data
images, so text that slipped through could neither run nor load anything.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import nbformat
from jinja2 import Environment, FileSystemLoader
from nbconvert import HTMLExporter

from ..runs import Run, runs_root, write_text

_TEMPLATES = Path(__file__).parent / "templates"
_SAMPLE = 5


def build_report(run: Run) -> Path:
    """Write `report.html` into the run folder, from whatever the run has left there, and return its path."""
    result, status = run.result, run.status
    html = _page(
        "run.html.j2",
        title=f"{run.notebook} {run.id}",
        run=run,
        status=status,
        result=result,
        toy=run.toy,
        notebook=_notebook_html(run),
        completions=_sample(run),
        environment=_flat(run.env),
    )
    return _write(run.path / "report.html", html)


def build_index(runs: Sequence[Run], folder: Path, title: str = "Runs") -> Path:
    """Copy each run's report into `folder` and write `index.html` over them, newest first."""
    rows = _index_rows(sorted(runs, key=lambda r: r.id, reverse=True), folder)
    return _write(folder / "index.html", _page("index.html.j2", title=title, rows=rows))


def build_comparison(runs: Sequence[Run], path: Path, *, title: str, sections: Mapping[str, str]) -> Path:
    """One page over runs that belong together: a table that links to their reports, copied beside it, and sections.

    Args:
        runs: in the order of the table.
        path: of the page, an .html file.
        title: its heading.
        sections: heading -> HTML made by this library (figures, tables), put in as it is.
    """
    rows = _index_rows(runs, path.parent)
    toy = any(run.toy for run in runs)
    return _write(path, _page("comparison.html.j2", title=title, rows=rows, sections=sections, toy=toy))


def _index_rows(runs: Sequence[Run], folder: Path) -> list[dict]:
    """A row a run, with each run's report copied into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for run in runs:
        report = run.path / "report.html"
        text = (report if report.is_file() else build_report(run)).read_text(encoding="utf-8")
        link = Path(run.notebook) / f"{run.id}.html"
        (folder / link).parent.mkdir(exist_ok=True)
        _write(folder / link, text)
        rows.append(_index_row(run) | {"link": quote(link.as_posix())})
    return rows


def _index_row(run: Run) -> dict:
    result = run.result
    held = [ok for ok in result.get("checks", {}).values() if isinstance(ok, bool)]
    return {
        "notebook": run.notebook,
        "id": run.id,
        "state": run.status["state"],
        "headline": result.get("headline"),
        "checks": f"{sum(held)} of {len(held)} hold" if held else "",
        "params": ", ".join(f"{k}={v}" for k, v in run.params.items() if k not in ("out_dir", "interactive")),
    }


def _page(template: str, **values) -> str:
    env = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True)
    return env.get_template(template).render(number=_number, **values)


def _number(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _notebook_html(run: Run) -> str:
    path = next((p for p in (run.path / "executed.ipynb", run.path / "executing.ipynb") if p.is_file()), None)
    if path is None:
        return "<p>The notebook was not executed by the runner; open it in JupyterLab.</p>"
    exporter = HTMLExporter(template_name="workbench", extra_template_basedirs=[str(_TEMPLATES)])
    exporter.register_preprocessor("nbconvert.preprocessors.coalescestreams.CoalesceStreamsPreprocessor", enabled=True)
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = exporter.exclude_anchor_links = True
    return exporter.from_notebook_node(nbformat.read(path, as_version=4))[0]


def _sample(run: Run) -> list[dict]:
    table = run.completions
    if table.empty:
        return []
    wanted = [c for c in ("step", "prompt", "completion", "finish_reason", "reward") if c in table]
    chosen = table if len(table) <= 2 * _SAMPLE else table.iloc[[*range(_SAMPLE), *range(-_SAMPLE, 0)]]
    return [{k: _shortened(v) for k, v in row.items()} for row in chosen[wanted].to_dict("records")]


def _shortened(value, most: int = 2000) -> str:
    text = _number(value)
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"


def _flat(env: dict) -> dict[str, str]:
    packages = ", ".join(f"{k} {v}" for k, v in env.get("packages", {}).items())
    shown = {k: v for k, v in env.items() if k != "packages"}
    return {k: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for k, v in shown.items()} | {
        "packages": packages
    }


def _write(path: Path, html: str) -> Path:
    write_text(path, html.encode("utf-8", "replace").decode("utf-8"))  # lone surrogates cannot be written
    return path


def default_folder(root: Path | None = None) -> Path:
    """`reports/` beside the folder of all runs."""
    return Path(os.path.abspath(root or runs_root())).parent / "reports"
