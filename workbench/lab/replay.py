"""`workbench replay`: the stages of recorded steps, on the terminal."""

import json
from pathlib import Path

from ..errors import ParameterError, RunError
from ..replay.dump_stages import report_of
from ..replay.dumps import Dump, is_dump, load_dump
from ..replay.file import SavedStep, files_of, load_step
from ..replay.file import replay as stages_of
from ..replay.report import StepReport
from ..runs.files import jsonable
from ..runs.text import one_line, printable


def replay(run: str, number: int | None, root: Path | None, *, tokens: int | None, as_json: bool) -> int:
    """Print the stages of a step of a run, or of a step in a file; returns 1 where one differs."""
    different = False
    for path in _files(run, number, root):
        saved = load_dump(path) if is_dump(path) else load_step(path)
        if number is not None and saved.number != number:
            raise ParameterError(f"--step {number}: {path} is step {saved.number}")
        report = report_of(saved) if isinstance(saved, Dump) else stages_of(saved)
        different |= report.first is not None
        if as_json:
            for stage in report.stages:
                print(json.dumps(jsonable({"file": str(path), "step": saved.number} | vars(stage))))
        else:
            print(one_line(_title(path, saved)), printable(str(report)), sep="\n")
        if tokens is not None:
            print(_tokens(report, tokens))
    return int(different)


def _files(run: str, number: int | None, root: Path | None) -> list[Path]:
    place = Path(run)
    if place.is_file():
        return [place]
    if place.is_dir():
        return files_of(place, number)
    if is_dump(place) or place.suffix == ".gz":
        raise RunError(f"{run}: no such file")
    from .batch.manage import find_run  # loads what looks at processes

    return files_of(find_run(run, root).path, number)


def _title(path: Path, saved: SavedStep | Dump) -> str:
    if isinstance(saved, Dump):
        number = "a step" if saved.number is None else f"step {saved.number}"
        return (
            f"{number}, {len(saved.rows)} completions, dumped by {saved.framework}: {path} ({saved.size / 1000:.0f} KB)"
        )
    step = saved.step
    by = f"TRL {saved.versions['trl']}" if "trl" in saved.versions else ", ".join(map(" ".join, saved.versions.items()))
    title = ", ".join(filter(None, [f"step {saved.number} of {step.kind}", f"{len(step.rows)} completions", by]))
    title += f", process {step.rank} of {step.processes}" * (step.processes > 1)
    return f"{title}: {path} ({saved.size / 1000:.0f} KB)"


def _tokens(report: StepReport, row: int) -> str:
    if not report.rows:
        raise ParameterError(f"--tokens {row}: a dump of another framework holds no loss of which a token has a share")
    if not 0 <= row < len(report.rows):
        raise ParameterError(f"--tokens {row}: the loss took {len(report.rows)} completions, from 0 on")
    table = report.tokens(row).drop(columns="logp_alone")
    return printable(table.assign(token=[repr(text) for text in table["token"]]).to_string(index=False))
