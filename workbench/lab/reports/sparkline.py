"""The small curve that a table of runs shows of each, and the logs of the trainings that a run holds."""

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from ...errors import RunError
from ...runs.files import files_named, load_metrics
from ...runs.run import Run

_WIDTH, _HEIGHT, _EDGE = 120, 30, 2  # pixels
_MOST_POINTS, _MOST_CURVES = 30, 4
_METRIC = "reward"


def logs_by_arm(run: Run) -> dict[str, list[Path]]:
    """The logs of the trainings below a run that were made with several settings or seeds: name of each arm -> one a seed."""
    found: dict[str, list[Path]] = {}
    for path in files_named(run.path, "metrics.jsonl"):
        if path.parent.name.startswith("seed-"):
            found.setdefault(path.parent.parent.relative_to(run.path).as_posix(), []).append(path)
    return found


def sparkline(run: Run) -> Markup:
    """The reward over the steps as an inline drawing: of the run's own log, else of its arms with the most seeds.

    Empty where there are no two values to draw.
    """
    own = run.path / "metrics.jsonl"
    logs = [own]
    if not own.exists():
        arms = sorted(logs_by_arm(run).values(), key=len, reverse=True)
        logs = [paths[0] for paths in arms if len(paths) == len(arms[0])][:_MOST_CURVES]
    curves = [curve for path in logs if len(curve := _points(path)) > 1]
    return _drawn(curves) if curves else Markup("")


def _points(path: Path) -> list[tuple[float, float]]:
    """Step and value at places spread evenly over a log; none where it cannot be read."""
    import pandas as pd

    with contextlib.suppress(RunError, OSError):
        table = load_metrics(path)
        if {"step", _METRIC} <= set(table):
            numbers = table[["step", _METRIC]].apply(pd.to_numeric, errors="coerce").astype(float)
            finite = numbers[numbers.abs().lt(math.inf).all(axis=1)]
            every = -(-len(finite) // _MOST_POINTS)
            return list(finite[:: every or 1].itertuples(index=False, name=None))
    return []


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
