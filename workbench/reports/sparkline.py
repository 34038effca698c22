"""The small curve that a table of runs shows of each, and the trainings that a run holds."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup

from ..errors import RunError
from ..runs.files import files_named, open_plain
from ..runs.run import Run

_WIDTH, _HEIGHT, _EDGE = 120, 30, 2  # pixels
_MOST_POINTS, _MOST_CURVES = 30, 4
_METRIC = "reward"


def trainings(run: Run) -> dict[str, list[Path]]:
    """The trainings below a run that were made with several settings or seeds: name of each setting -> logs, one a seed."""
    found: dict[str, list[Path]] = {}
    for path in files_named(run.path, "metrics.jsonl"):
        if not path.parent.name.startswith("seed-"):
            continue
        found.setdefault(path.parent.parent.relative_to(run.path).as_posix(), []).append(path)
    return found


def sparkline(run: Run) -> Markup:
    """The reward over the steps as an inline drawing: of the run's own log, else of its settings with the most seeds.

    Of a log up to 30 lines are read, whatever its length. Empty where there are no two values to draw.
    """
    own = run.path / "metrics.jsonl"
    logs = [own]
    if not own.exists():
        by_setting = sorted(trainings(run).values(), key=len, reverse=True)
        logs = [paths[0] for paths in by_setting if len(paths) == len(by_setting[0])][:_MOST_CURVES]
    curves = [curve for path in logs if len(curve := _points(path)) > 1]
    return _drawn(curves) if curves else Markup("")


def _points(path: Path) -> list[tuple[float, float]]:
    """Step and value at places spread evenly over a log; none where it cannot be read."""
    try:
        rows = [row for row in _sampled(path) if isinstance(row, dict)]
    except (RunError, OSError):
        return []
    pairs = [(row.get("step"), row.get(_METRIC)) for row in rows]
    return [(x, y) for x, y in pairs if all(type(v) in (int, float) and math.isfinite(v) for v in (x, y))]


def _sampled(path: Path) -> Iterator:
    with open_plain(path) as file:
        size, last = os.fstat(file.fileno()).st_size, -1
        for n in range(_MOST_POINTS):
            file.seek(size * n // _MOST_POINTS)
            if n:
                file.readline(1_000_000)  # the rest of a line
            if (start := file.tell()) > last:
                last = start
                try:
                    yield json.loads(file.readline(1_000_000))
                except (ValueError, RecursionError):  # cut, or no log of ours
                    continue


def _drawn(curves: Sequence[Sequence[tuple[float, float]]]) -> Markup:
    xs, ys = zip(*(point for curve in curves for point in curve), strict=True)
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    across, up = (_WIDTH - 2 * _EDGE) / ((right - left) or 1), (_HEIGHT - 2 * _EDGE) / ((high - low) or 1)
    lines = Markup("")
    for n, curve in enumerate(curves):
        points = " ".join(f"{_EDGE + (x - left) * across:.0f},{_HEIGHT - _EDGE - (y - low) * up:.0f}" for x, y in curve)
        lines += Markup('<polyline class="c{}" points="{}"/>').format(n, points)
    name = f"{_METRIC}, {low:.3g} to {high:.3g}"
    return Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, name, lines
    )
