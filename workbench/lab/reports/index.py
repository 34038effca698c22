"""Pages over many runs: the index with sorting and filtering, and the comparison of runs that belong together."""

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ...errors import WorkbenchError
from ...runs.parameters import SET_BY_RUNNER, check_notebook_name
from ...runs.results import Result, count_verdicts, results_of
from ...runs.run import Run
from ...runs.summary import RunSummary, audit_tally, duration_text
from . import facts
from .clean import clean_html
from .notebook import Notebook, read_notebook
from .page import hider, render, write_page
from .run_page import build_report
from .sparkline import sparkline

WITHOUT_NUMBERS = re.compile(r"[-+]?\d[\d.,e%+-]*")


def build_index(runs: Sequence[Run], folder: Path, *, redact: bool = False, root: Path | None = None) -> Path:
    """Put each run's report into `folder`, and into the run's own, and write `index.html` over them.

    A card for the newest run of each notebook, in the notebooks' order; then a table of all runs, newest first. Each is
    rendered again: a page that lies there may be anyone's. With `root`, nothing is written into a run's own folder that lies
    elsewhere, behind a link.
    """
    hide = hider(runs, redact)
    runs = sorted(runs, key=lambda r: r.id, reverse=True)
    rows = _index_rows(runs, folder, hide, redact, root=root)
    audits = _audits(runs)
    cards = _cards(rows, runs, hide)
    others = sorted(p.name for p in folder.glob("*.html") if p.name != "index.html")
    comparisons = {hide(name.removesuffix(".html")): _link(Path(name)) for name in others}
    values = {
        "title": "Workbench: runs",
        "rows": rows,
        "cards": cards,
        "comparisons": comparisons,
        "redacted": redact,
        "audits": audits,
    }
    return write_page(folder / "index.html", render("index.html.j2", script="index.js", **values))


def build_comparison(
    runs: Sequence[Run],
    path: Path,
    *,
    title: str,
    outcome: str,
    sections: Mapping[str, str],
    command: str = "",
    limits: Sequence[str] = (),
    redact: bool = False,
) -> Path:
    """One page over runs that belong together: verdicts, sections, runs, completions, method, environment, limits."""
    hide = hider(runs, redact)
    params, envs = [r.params for r in runs], [r.env for r in runs]
    shared, varied = facts.differing(params)
    env, env_varied = facts.differing([{k: v for k, v in e.items() if k not in ("argv", "seed")} for e in envs])
    rows = _index_rows(runs, path.parent, hide, redact, only=varied)
    rows.sort(key=_audit_rank)
    values = {
        "outcome": outcome,
        "audits": _audits(runs),
        "results": _results_over(runs),
        "completions": [(run.id, *_last_completion(run)) for run in runs if run.status["state"] == "done"][:10],
        "shared": {k: facts.number(v) for k, v in shared.items()},
        "varied": {k: _distinct(p.get(k) for p in params) for k in varied},
        "command": command,
        "environment": facts.environment(env),
        "env_varied": {k.replace("_", " "): _distinct(e.get(k) for e in envs) for k in env_varied},
        "limits": [*limits, *_limits_over(runs, env)],
    }
    html = {hide(name): clean_html(source, hide) for name, source in sections.items()}
    page = render(
        "comparison.html.j2",
        title=hide(title),
        rows=rows,
        sections=html,
        toy=any(run.toy for run in runs),
        redacted=redact,
        script="index.js",
        **facts.shown(values, hide),
    )
    return write_page(path, page)


def _cards(rows: Sequence[Mapping], runs: Sequence[Run], hide: Callable[[str], str]) -> list[dict]:
    """Title, finding, picture and state of the newest run of each notebook that is done, else of the newest."""
    newest: dict[str, tuple[Mapping, Run]] = {}
    for row, run in zip(rows, runs, strict=True):
        known = newest.get(run.notebook)
        if known is None or (row["state"] == "done" and known[0]["state"] != "done"):
            newest[run.notebook] = (row, run)
    cards = []
    for name in sorted(newest):
        row, run = newest[name]
        parts = Notebook(hide)
        with contextlib.suppress(Exception):  # whatever is odd in one notebook, its card has a name and a state
            if executed := read_notebook(run):
                parts.read(executed)
        cell = row["cells"].get("headline") or {"note": ""}
        card = {"title": parts.title or row["notebook"], "finding": cell["note"], "figure": parts.figure}
        card |= {name: row[name] for name in ("state", "mark", "link", "error")}
        cards.append(card | {"audit": row["cells"].get("audit")})
    return cards


def _audits(runs: Sequence[Run]) -> dict[str, str]:
    """Return what the audits of the runs found, in words with a colour; rows say which runs cannot be read, and why."""
    summaries = []
    for run in runs:
        with contextlib.suppress(Exception):
            summaries.append(RunSummary.of(run))
    problems = any(summary.findings.problems for summary in summaries)
    return {"text": audit_tally(summaries), "mark": "bad" if problems else "plain"}


# --- the table of runs ---------------------------------------------------------------------------------------------


def _index_rows(
    runs: Sequence[Run],
    folder: Path,
    hide: Callable[[str], str],
    redact: bool,
    only: Sequence[str] = (),
    root: Path | None = None,
) -> list[dict]:
    """A row a run, with each run's report put into `folder`; `only`: names of the parameters to show, all if empty."""
    rows: list[dict] = []
    used: set[Path] = set()
    for run in runs:
        row, problem = {"notebook": run.notebook, "id": run.id, "state": "damaged", "error": "", "cells": {}}, ""
        row["mark"] = "bad"
        try:
            row = _index_row(run, only, hide)
        except Exception as error:  # whatever is odd in one run, the others are shown
            problem = _reason(run, error)
        row = facts.shown(row, hide)
        name = f"{row['notebook']}/{row['id']}"
        links = (Path(f"{name}-{n}.html" if n else f"{name}.html") for n in itertools.count())
        link = next(path for path in links if not used & {path, _microscope(path)})
        used |= {link, _microscope(link)}
        try:
            check_notebook_name(row["notebook"])
            row["curve"] = sparkline(run)
            build_report(run, redact=redact, path=folder / link, hide=hide)
            if not redact and (root is None or lies_below(run, root)):
                _copy_pages(run, folder / link)
        except Exception as error:
            problem = problem or _reason(run, error)
            with contextlib.suppress(OSError):
                (folder / link).unlink(missing_ok=True)
        rows.append(row | {"link": "" if problem else _link(link), "error": hide(problem)[:300] or row["error"]})
    if not any(row["cells"].get("GPU", {}).get("text") for row in rows):
        for row in rows:
            row["cells"].pop("GPU", None)
    return rows


def _microscope(page: Path) -> Path:
    """The page of completions of a run whose report is `page`."""
    return page.with_name(f"{page.stem}-microscope.html")


def _reason(run: Run, error: Exception) -> str:
    """Return what is wrong with a run, in a line; of an error that nobody foresaw also its kind."""
    return str(error) if isinstance(error, WorkbenchError) else f"{run.path}: {type(error).__name__}: {error}"


def lies_below(run: Run, root: Path) -> bool:
    """Return True if the run lies in this folder of runs itself, False if a link leads to it elsewhere."""
    return run.path.is_relative_to(root.resolve())


def _copy_pages(run: Run, page: Path) -> None:
    """Put the report of a run and its page of completions into the run's own folder, too."""
    with contextlib.suppress(OSError):  # the run's folder may be another's, or read-only
        write_page(run.path / "report.html", page.read_text(encoding="utf-8"))
        microscope = _microscope(page)
        if microscope.is_file():
            write_page(run.path / microscope.name, microscope.read_text(encoding="utf-8"))


def _link(path: Path) -> str:
    return quote(os.fsencode(path))


def _index_row(run: Run, only: Sequence[str], hide: Callable[[str], str]) -> dict:
    """Return what the table shows of a run. A new column is a line of `cells`."""
    summary = RunSummary.of(run)
    status, result = summary.status, summary.result
    seconds = None if summary.going else summary.seconds
    results = results_of(result)
    counts = count_verdicts(results, claims=False)
    headline = result.get("headline") or {}
    value = headline.get("value", "")
    shown = {k: v for k, v in run.params.items() if (k in only if only else k not in SET_BY_RUNNER)}
    shown = facts.shown(shown, hide)  # before they are cut
    audit = _cell("", kind="audit")
    if not summary.going:
        findings = summary.findings
        audit = _cell(findings.names, findings.rank, "audit", note=findings.worst[:300]) | {"mark": findings.mark}
    cells = {
        "audit": audit,
        "headline": _cell(headline.get("name", ""), kind="finding", note=results[0].says[:1000] if results else ""),
        "value": _cell(facts.number(value), value, "num value"),
        "checks": _cell(", ".join(f"{n} {word}" for word, n in counts.items()), counts.get("failed", 0), "word"),
        "started (UTC)": _cell(facts.times(status).get("running", "").removesuffix(" UTC"), label="started"),
        "took": _cell(
            "" if seconds is None else duration_text(seconds),
            "" if seconds is None else f"{seconds:.1f}",
            "num",
            label="took",
        ),
        "GPU": _cell(str(status.get("gpus", ""))[:100], kind="word", label="GPU"),
        "parameters": _cell(", ".join(f"{k}={facts.quoted(v)}" for k, v in shown.items())[:1000], kind="params"),
    }
    if counts:
        cells["checks"]["mark"] = (
            "bad" if counts.get("failed") else "good" if set(counts) <= {"passed", "skipped"} else "odd"
        )
    error = str(status.get("error") or "")[:300]
    row = {"notebook": run.notebook, "id": run.id, "state": status["state"], "mark": summary.mark}
    return row | {"error": error, "cells": cells}


def _audit_rank(row: Mapping) -> int:
    """What the rows of a comparison are sorted by: the worst finding first; what goes on, and cannot be read, at the end."""
    rank = row["cells"].get("audit", {}).get("sort", "")
    return 1 if rank == "" else rank


def _cell(text: str, sort="", kind: str = "", label: str = "", note: str = "") -> dict:
    """Text, what it is sorted by where that is not the text, its CSS class, its name on a phone, and text below it."""
    return {"text": text, "sort": sort, "kind": kind, "mark": "", "label": label, "note": note}


# --- over several runs ---------------------------------------------------------------------------------------------


def _results_over(runs: Sequence[Run]) -> list[dict]:
    """Each result by its place in the notebook: what it says in the first run, how often each verdict, where it failed."""
    places: dict[tuple[str, int], list[tuple[str, Result]]] = {}
    for run in runs:
        seen: Counter[str] = Counter()
        for found in results_of(run.result):
            key = found.claim or WITHOUT_NUMBERS.sub("", found.says)  # the sentence has numbers that differ
            places.setdefault((key, seen[key]), []).append((run.id, found))
            seen[key] += 1
    table = []
    for members in places.values():
        counts = Counter(found.verdict for _, found in members)
        table.append(
            {
                "says": members[0][1].says,
                "about": facts.about_claim(members[0][1].claim),
                "verdict": ", ".join(f"{word} in {n}" for word, n in counts.items()),
                "failed": [run_id for run_id, found in members if found.verdict == "failed"],
            }
        )
    return table


def _distinct(values) -> str:
    seen = list(dict.fromkeys(facts.number(v) for v in values if v not in ("", None)))
    return ", ".join(seen[:12]) + (f" and {len(seen) - 12} more" if len(seen) > 12 else "")


def _last_completion(run: Run) -> tuple[dict, int]:
    rows, total, _ = facts.sample_completions(run, 1)
    return ({k: facts.number(v) for k, v in rows[-1].items()} if rows else {}), total


def _limits_over(runs: Sequence[Run], env: Mapping) -> list[str]:
    lines = list(dict.fromkeys(line for run in runs for line in facts.check_limits(run.result)))
    if any("uncommitted" in str(run.env.get("git_commit", "")) for run in runs):
        lines.append("The code had uncommitted changes, so the commit alone does not repeat the runs.")
    if runs and not env:
        lines.append("The runs share no recorded environment.")
    return lines + _differing_code(runs)


def _differing_code(runs: Sequence[Run]) -> list[str]:
    """Sentences that name the runs that were resumed with other code, and the runs of a notebook with code that differs."""
    resumed: list[str] = []
    last: dict[str, dict[str, list[str]]] = {}  # notebook -> code -> runs
    for run in runs:
        codes: list[str] = []
        with contextlib.suppress(WorkbenchError, OSError):  # the run's own row says what is damaged
            codes = [str(done["notebook"].get("code"))[:16] for done in run.executions]
        if codes:
            last.setdefault(run.notebook, {}).setdefault(codes[-1], []).append(run.id)
        if len(set(codes)) > 1:
            resumed.append(run.id)
    lines = [f"Resumed with other code than they began with: {_distinct(resumed)}."] if resumed else []
    for notebook, groups in last.items():
        if len(groups) > 1:
            each = "; ".join(f"{_distinct(ids)} with {code}" for code, ids in groups.items())
            lines.append(
                f"The runs of {notebook} were executed with different code, which may explain a difference: {each}."
            )
    return lines
