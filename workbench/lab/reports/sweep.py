"""The comparison that a sweep ends in: its runs as a table, and the curves of groups that differ only in the seed."""

import dataclasses
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ...curves.compare import documented_verdicts
from ...curves.curve import Curve
from ...curves.documented import Baseline, list_baselines, load_baseline
from ...curves.figures import show_curves
from ...curves.measured import TAIL, group_table, last_part, measured_groups
from ...runs.files import read_json, write_json
from ...runs.parameters import command_line
from ...runs.run import Run
from .index import build_comparison
from .page import hider


def build_sweep_report(
    notebook: str,
    given: Mapping[str, str],
    entries: Sequence,
    folder: Path,
    *,
    fixed: Mapping[str, object] | None = None,
    redact: bool = False,
) -> Path:
    """Write `<folder>/<notebook>-<grid>.html` and return its path; the same sweep always has the same name.

    `given` is what was varied, name -> text, as on the command line; `entries` have each `varied` (name -> value), `run` (None
    when it never started) and `state`; `fixed` are parameters that do not vary.
    """
    runs, name = [e.run for e in entries if e.run], Path(notebook).name.removesuffix(".ipynb")
    hide, grid = hider(runs, redact), " ".join(f"{k}={v}" for k, v in given.items())
    short = str if redact else last_part  # what is hidden is hidden whole
    labels = _told_apart(
        [", ".join(f"{k}={short(str(v))}" for k, v in e.varied.items() if k != "seed") for e in entries if e.run], hide
    )
    groups, left_out = measured_groups(runs, labels=labels)
    left_out += [f"{e.name}: {e.problem or e.state}" for e in entries if not e.run]
    sections = {}
    if groups:
        rng = np.random.default_rng(0)
        title = f"{hide(name)}: reward over steps"
        sections["Curves"] = show_curves(groups, title=title)._repr_html_()
        sections["Groups"] = group_table(groups, rng).to_html(index=False, float_format="%.4g", na_rep="-")
        sections["Groups"] += (
            f"<p>Each group differs only in the seed. Result: mean of the last {TAIL} steps of each run (of all where "
            "it has fewer), averaged over seeds, and the interval between runs that the table names. Points: logged points "
            "in that mean. A dash: no interval from one seed.</p>"
        )
        verdicts = documented_verdicts(groups, _baselines(left_out))
        if len(verdicts):
            sections["Documented runs in the same unit"] = verdicts.to_html(index=False) + (
                "<p>Is the documented run one more seed of the group? Tolerance: a tenth of the range of the documented "
                "curve.</p>"
            )
    if left_out:
        sections["Not in the figure"] = "".join(f"<p>{html.escape(line)}</p>" for line in left_out)
    constant = {k: _one_value(v) for k, v in (fixed or {}).items()}
    others = " ".join(f"{k}={v}" for k, v in constant.items() if k not in given)
    # The same grid with other constants is another sweep, with a page of its own.
    digest = f"-{hashlib.sha256(others.encode()).hexdigest()[:8]}" if others else ""
    assignments = [f"{k}={v}" for k, v in (constant | dict(given)).items()]
    return build_comparison(
        runs,
        folder / f"{_file_name(hide(name), grid, hide)}{digest}.html",
        title=f"Sweep of {name}: {grid or 'defaults'}{f' ({hide(others)})' if 0 < len(others) <= 80 else ''}",
        outcome=_outcome(entries),
        sections=sections,
        command=command_line("sweep", notebook, assignments),
        limits=_limits(entries, groups),
        redact=redact,
    )


@dataclasses.dataclass(frozen=True)
class Point:
    """A point of a sweep that was executed before: its run, None where it never started, and why it did not."""

    varied: Mapping[str, object]
    run: Run | None
    problem: str = ""

    @property
    def name(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.varied.items())

    @property
    def state(self) -> str:
        return self.run.status["state"] if self.run else "not started"


def remember_sweep(
    notebook: str, given: Mapping[str, str], entries: Sequence, *, fixed: Mapping[str, object] | None = None
) -> None:
    """Write next to the runs of a sweep what `rebuild_sweep_reports` reads; the parameters are those of the page."""
    runs = [e.run for e in entries if e.run]
    if not runs:
        return
    points = [{"varied": e.varied, "run": e.run.id if e.run else None, "problem": e.problem} for e in entries]
    asked = {"notebook": notebook, "given": dict(given), "fixed": dict(fixed or {})}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    write_json(runs[0].path.parent / f"sweep-{digest[:8]}.json", asked | {"points": points})


def rebuild_sweep_reports(root: Path, folder: Path, *, redact: bool = False) -> tuple[list[Path], list[str]]:
    """The page of each sweep below the folder of all runs, from its runs as they are now.

    Returns:
        The pages, and a line for each sweep that cannot be read.
    """
    pages, unread = [], []
    for path in sorted(root.glob("*/sweep-*.json")):
        try:
            sweep = read_json(path, {})
            folders = [path.parent / Path(str(point["run"])).name for point in sweep["points"]]
            runs = [Run(one.resolve()) if (one / "params.json").is_file() else None for one in folders]
            points = [
                Point(point["varied"], run, str(point["problem"]))
                for point, run in zip(sweep["points"], runs, strict=True)
            ]
            given, fixed = sweep["given"], sweep["fixed"]
            pages.append(build_sweep_report(sweep["notebook"], given, points, folder, fixed=fixed, redact=redact))
        except Exception as error:  # whatever is odd in one sweep, the others are shown
            unread.append(f"{path}: no page of this sweep ({type(error).__name__}: {error})")
    return pages, unread


def _one_value(value: object) -> str:
    """A value as `sweep` takes it for one: commas separate values where no quotes are around them."""
    text = str(value)
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if "," in text or text.startswith('"') else text


def _told_apart(labels: list[str], hide: Callable[[str], str]) -> list[str]:
    """Labels without what is hidden; those that become equal by that are numbered, as `[path] (2)`."""
    told: dict[str, dict[str, int]] = {}
    numbers = [told.setdefault(hide(label), {}).setdefault(label, len(told[hide(label)]) + 1) for label in labels]
    return [
        f"{hide(label)} ({n})" if len(told[hide(label)]) > 1 else hide(label)
        for label, n in zip(labels, numbers, strict=True)
    ]


def _baselines(left_out: list[str]) -> list[Baseline]:
    """The documented runs; a line in `left_out` for each that cannot be used."""
    found = []
    for name in list_baselines():
        try:
            one = load_baseline(name)
            _ = [one.curve(metric) for metric in one.curves]
            found.append(one)
        except Exception as error:  # a file of the user's own, in $WORKBENCH_BASELINES
            left_out.append(f"documented run {name}: {error}")
    return found


def _outcome(entries: Sequence) -> str:
    states = Counter(e.state for e in entries).most_common()
    return f"{len(entries)} runs: " + ", ".join(f"{n} {state}" for state, n in states)


def _limits(entries: Sequence, groups: dict[str, list[Curve]]) -> list[str]:
    """Return what the sweep cannot support, in sentences."""
    lines = []
    if left := [e for e in entries if e.state != "done"]:
        lines.append(f"{len(left)} of {len(entries)} runs are not done; nothing here counts them.")
    if single := [name for name, curves in groups.items() if len(curves) == 1]:
        lines.append(f"One seed only, so without an interval: {', '.join(single)}.")
    if few := [f"{name} ({len(curves)})" for name, curves in groups.items() if 1 < len(curves) < 5]:
        lines.append(f"Fewer than 5 seeds, so the interval is wide: {', '.join(few)}.")
    if not groups:
        lines.append("No run that is done has a curve to draw.")
    return lines


def _file_name(notebook: str, grid: str, hide: Callable[[str], str]) -> str:
    """Words of the grid, and a digest where they do not say all of it: a character that no file has, or something hidden."""
    full = f"{notebook}-{grid or 'defaults'}"
    text = re.sub(r"[^\w.,=-]+", "_", hide(full))
    whole = text.encode()  # a file's name has 255 bytes at most
    if text == full.replace(" ", "_") and len(whole) <= 100:
        return text
    return f"{whole[:90].decode('utf-8', 'ignore')}-{hashlib.sha256(full.encode()).hexdigest()[:8]}"
