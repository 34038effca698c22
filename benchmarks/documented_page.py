"""docs/baselines.md: a row for each documented run, made of data/baselines and data/sources.json and of nothing else."""

from collections import Counter
from pathlib import Path
from urllib.parse import quote

import numpy as np

from benchmarks.pages import table, write_page
from workbench.curves.curve import Curve
from workbench.curves.documented import Baseline, list_baselines, load_baseline, load_sources
from workbench.curves.verdicts import trend

BARS = "▁▂▃▄▅▆▇█"


def spark(curve: Curve, width: int = 16) -> str:
    """A curve as bars between its own lowest and highest value.

    Example:
        >>> spark(Curve("a", range(1, 9), range(8), "points"), width=4)
        '▁▃▆█'
    """
    parts = [part.mean() for part in np.array_split(curve.y, min(width, len(curve.y)))]
    low, size = min(parts), (max(parts) - min(parts)) or 1.0
    return "".join(BARS[round((part - low) / size * (len(BARS) - 1))] for part in parts)


def _link(row: dict) -> str:
    if not row["commit"] or "*" in row["file"] or " at " in row["file"]:
        return row["repository"]
    return (
        f"[{row['repository']}](https://github.com/{row['repository']}/blob/{row['commit'][:12]}/{quote(row['file'])})"
    )


def _row(run: Baseline, files: list[dict]) -> list[str]:
    source = _link(files[0]) + (f" and {len(files) - 1} more files" if len(files) > 1 else "")
    if "reward" not in run.curves:
        said = "; ".join(f"{name} {part['value']:g}" for name, part in run.figures.items())
        return [run.title, run.task, "", "", said or ", ".join(run.curves), source]
    curve = run.curve()
    fifth = max(1, len(curve.y) // 5)
    change = f"{curve.y[:fifth].mean():.3g} to {curve.y[-fifth:].mean():.3g}"
    return [run.title, run.task, spark(curve), f"{change} {curve.unit}", trend(curve).word, source]


def page() -> list[str]:
    """The lines of the page."""
    runs, rows = [load_baseline(name) for name in list_baselines()], load_sources()
    files = {run.name: [row for row in rows if row["run"] == run.name] for run in runs}
    runs.sort(key=lambda run: (run.task.lower(), run.recipe, run.title))
    words = Counter(trend(run.curve()).word for run in runs if "reward" in run.curves)
    other = {row["repository"] for row in rows} - {"this project"}
    several = [(run, files[run.name]) for run in runs if len({row["loads"] for row in files[run.name]} - {None}) > 1]
    several += [(run, files[run.name]) for run in runs if len({row["repository"] for row in files[run.name]}) > 1]
    counted = ", ".join(f"{n} {word}" for word, n in words.most_common())
    return [
        "# Documented runs",
        "",
        f"{len(runs)} runs from {len(other)} repositories and from this project. Nearly all are a single seed. They are",
        "references, not targets. This page is written by `python -m benchmarks.documented page`;",
        "[data/README.md](../data/README.md) says how one is added, and [documented_verdicts.md](documented_verdicts.md)",
        "how often the verdicts are wrong. A commit is the newest that could be had",
        "when the figures were taken, in November 2026; a repository may have changed since.",
        "",
        "## Every run",
        "",
        f"Does the reward rise? Of {sum(words.values())} with a curve: {counted}.",
        "The bars go from each run's own lowest to its own highest, and compare with no other row.",
        "",
        *table(
            ["run", "task", "reward", "first fifth to last", "verdict", "source"],
            [_row(run, files[run.name]) for run in runs],
        ),
        "",
        "## One table in several files",
        "",
        "The same numbers, step for step, in several files. A notebook is often saved with the output that it had before it",
        "was changed, so this does not say what was run. Where the files' code loads several models, the curve is of one of",
        "them at most.",
        "",
        *table(
            ["run", "files", "repositories", "commit of the first", "models that the code of the files loads"],
            [
                [
                    run.title,
                    str(len(found)),
                    str(len({row["repository"] for row in found})),
                    (found[0]["commit"] or found[0]["blob"])[:7],
                    ", ".join(sorted({row["loads"] for row in found if row["loads"]})) or "-",
                ]
                for run, found in {run.name: (run, found) for run, found in several}.values()
            ],
        ),
        "",
    ]


def write(path: Path) -> None:
    """Write the page."""
    write_page(path, page())
