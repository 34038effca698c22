"""Write claims.csv and the table of claims.md from recorded runs: `python -m tools.claims [--runs-dir FOLDER]`."""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.record import csv_text, made_with, table
from workbench.errors import ParameterError
from workbench.lab.batch.notebooks import find_notebook
from workbench.runs.files import write_text
from workbench.runs.parameters import notebook_parameters, repeat_command
from workbench.runs.results import Claim, claim_titles, load_claims, results_of
from workbench.runs.run import Run, check_readable, list_runs

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "claims.md"
BEGIN, END = "<!-- claims: written by `python -m tools.claims` -->", "<!-- end of claims -->"


@dataclasses.dataclass(frozen=True)
class Row:
    """One claim. It has two verdicts: whether it was true when it was reported, and whether it is on what is installed.

    Attributes:
        id, claim: `A0.1`, and what was published.
        measured, verdict: what the latest run found, on the versions that it ran with.
        scale: toy or full, and the TRL of that run.
        command, made_with: repeats the run, and the commit, date and versions of it.
    """

    id: str
    claim: Claim
    measured: str = ""
    verdict: str = "not tested"
    scale: str = ""
    command: str = ""
    made_with: str = ""


def claims_sheet(runs: Sequence[Run]) -> list[Row]:
    """A row for each claim, from the `claims` in the results of runs that are done; an error where one names another claim.

    A row shows the latest run that tested the claim. Runs of a real model come before runs of a toy model. Where runs of
    the same scale disagree, the verdict counts those that agree.
    """
    known = load_claims()
    found: dict[str, list[Run]] = {name: [] for name in known}
    for run in runs:
        for name in claims_of(run, known):
            found[name].append(run)
    return [_row(Row(name, claim), found[name]) for name, claim in known.items()]


def claims_of(run: Run, known: Mapping[str, object]) -> list[str]:
    """Ids of the claims that a run which is done has tested, of those `known`."""
    if run.status["state"] != "done":
        return []
    names = list(dict.fromkeys(r.claim for r in results_of(run.result) if r.claim))
    if not names:
        return []
    check_readable(run)
    for name in names:
        if name not in known:
            raise ParameterError(f"{run.path}: result.json speaks of claim {name!r}; data/claims.json has no such id")
    return names


def _row(untested: Row, runs: list[Run]) -> Row:
    tested = [r for r in runs if _verdict(r, untested.id) != "not tested"]
    full = [r for r in tested if not r.toy]
    speakers = full or tested or runs
    if not speakers:
        return untested
    run = max(speakers, key=lambda r: r.id)
    verdicts = [_verdict(r, untested.id) for r in speakers]
    verdict = verdicts[speakers.index(run)]
    if len(set(verdicts)) > 1:
        counted = ", ".join(f"{word} in {n}" for word, n in Counter(sorted(verdicts)).items())
        verdict = f"{counted} of {len(verdicts)} runs"
    own = [r for r in results_of(run.result) if r.claim == untested.id]
    measured = "; ".join(r.says.rstrip(".") + (f" ({r.reason})" if r.reason else "") for r in own)
    trl = run.env.get("packages", {}).get("trl")
    scale = ("toy" if run.toy else "full") + (f", TRL {trl}" if trl else "")
    row = {"measured": measured, "verdict": verdict, "scale": scale, "command": run_command(run)}
    if run.env.get("packages"):
        row["made_with"] = made_with(
            {"environment": run.env | {"date": "-".join((run.id[:4], run.id[4:6], run.id[6:8]))}}
        )
    return dataclasses.replace(untested, **row)


def _verdict(run: Run, name: str) -> str:
    """Of all results about a claim: their verdict, or how many have which."""
    own = [dataclasses.replace(r, toy=run.toy) for r in results_of(run.result) if r.claim == name]
    counts = Counter(r.verdict for r in own)
    if len(counts) == 1:
        return next(iter(counts))
    return f"in part: {', '.join(f'{n} {word}' for word, n in counts.most_common())}"


def run_command(run: Run) -> str:
    """The command that repeats a run, by the notebook's defaults of today."""
    try:
        known = notebook_parameters(find_notebook(run.notebook))
    except ParameterError:  # the notebook is gone or was rebuilt
        known = {}
    return repeat_command(run.notebook, run.params, known)


def as_markdown(rows: Sequence[Row]) -> str:
    """The sheet as markdown: a row for each write-up with its verdicts, and what they were made with."""
    lines, articles = [], {}
    for article, title in claim_titles().items():
        own = [row for row in rows if row.id.startswith(f"{article}.")]
        counted = ", ".join(f"{verdict} {n}" for verdict, n in verdicts_of(own).most_common())
        lines.append([article, title, counted])
        for made in dict.fromkeys(row.made_with for row in own if row.made_with):
            articles.setdefault(made, []).append(article)
    made_with = [f"- {', '.join(names)}: {made}" for made, names in articles.items()]
    return "\n".join([*table(["ids", "problem", "verdicts"], lines), "", *made_with]) + "\n"


def verdicts_of(rows: Sequence[Row]) -> Counter:
    """How many rows have each verdict."""
    return Counter(row.verdict.partition(":")[0] for row in rows)


def check_tested(rows: Sequence[Row], folder: Path | None) -> None:
    """Raise for a write-up of which no run tested a claim: the sheet that is there would lose its results."""
    for article, title in claim_titles().items():
        if set(verdicts_of([row for row in rows if row.id.startswith(f"{article}.")])) == {"not tested"}:
            raise ParameterError(
                f"{folder or 'runs/'}: no run that is done tests a claim of {article}, {title}; `make report` makes all runs"
            )


def as_csv(rows: Sequence[Row]) -> str:
    """The sheet as CSV: a row for each claim."""
    head = ["id", "published claim", "source", "on the installed version", "scale", "measured"]
    return csv_text([*head, "true when it was reported?", "command"], map(_cells, rows))


def _cells(row: Row) -> list[str]:
    claim = row.claim
    measured = (row.verdict, row.scale, row.measured, claim.when_reported)
    command = f"`{_cell(row.command)}`" if row.command else ""
    return [row.id, _cell(claim.words), claim.source, *map(_cell, measured), command]


def _cell(text: str) -> str:
    """Text for one cell: one line, and tags shown as written where no code span does that anyway."""
    parts = " ".join(text.split()).split("`")
    inside = 1 if len(parts) % 2 else len(parts)  # an odd backtick opens no span
    return "`".join(part if n % 2 == inside else part.replace("<", "&lt;") for n, part in enumerate(parts))


def write_sheet(path: Path, rows: Sequence[Row]) -> None:
    """Write the CSV of a page, and replace what stands between its two markers; an error without one pair of them."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ParameterError(f"{path}: expected the line {BEGIN} and after it {END}, once each")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    write_text(path, f"{before}{BEGIN}\n\n{as_markdown(rows)}\n{END}{after}")
    write_text(path.with_suffix(".csv"), as_csv(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--runs-dir", type=Path, help="folder of all runs (default runs/)")
    folder = parser.parse_args().runs_dir
    sheet = claims_sheet(list_runs(folder))
    check_tested(sheet, folder)
    write_sheet(PAGE, sheet)
