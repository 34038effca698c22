"""Makes baselines.md and its CSVs: a row for each documented run, of data/baselines and data/sources.json alone."""

from collections import Counter
from urllib.parse import quote

import numpy as np

from tools.record import csv_next_to_page, csv_text, table
from workbench.curves.curve import Curve
from workbench.curves.documented import Baseline, list_baselines, load_baseline, load_sources
from workbench.curves.place import RISES, trend
from workbench.curves.stats import ends, share_interval

OWN = "this project"  # as data/sources.json names it
BARS = "▁▂▃▄▅▆▇█"
MOVES_ALIKE = -0.9  # correlation of the changes of reward and truncated share


def spark(curve: Curve, width: int = 16) -> str:
    """Draw a curve as bars between its own lowest and highest value.

    Example:
        >>> spark(Curve("a", range(1, 9), range(8), "points"), width=4)
        '▁▃▆█'
    """
    parts = [part.mean() for part in np.array_split(curve.y, min(width, len(curve.y)))]
    low, size = min(parts), (max(parts) - min(parts)) or 1.0
    return "".join(BARS[round((part - low) / size * (len(BARS) - 1))] for part in parts)


def _source(run: Baseline, row: dict) -> str:
    """Name a repository, or for runs of this project what made them."""
    if "made_with" in run.recorded:
        return f"{row['repository']}: {'; '.join(run.recorded['made_with'])}"
    return row["repository"]


def _link(run: Baseline, row: dict) -> str:
    """Return the address of the file that holds a run; empty where it is no single file of a commit."""
    if "made_with" in run.recorded or not row["commit"] or "*" in row["file"] or " at " in row["file"]:
        return ""
    return f"https://github.com/{row['repository']}/blob/{row['commit'][:12]}/{quote(row['file'])}"


def _row(run: Baseline, files: list[dict]) -> list[str]:
    source = _source(run, files[0])
    if len(files) > 1:
        source += f" and {len(files) - 1} more files"
    link = _link(run, files[0])
    if "reward" not in run.curves:
        figures = "; ".join(f"{name} {part['value']:g}" for name, part in run.figures.items())
        return [run.title, run.task, "", "", figures or ", ".join(run.curves), source, link]
    curve = run.curve()
    change = "{:.3g} to {:.3g}".format(*ends(curve.y))
    return [run.title, run.task, spark(curve), f"{change} {curve.unit}", trend(curve).word, source, link]


def ending_table(runs: list[Baseline]) -> list[str]:
    """Make a table of what the reward follows where each seed's reward and truncated share are known, a row a run."""
    rows = []
    for run in runs:
        parts = [run.curves.get(metric, {}).get("by_seed", {}) for metric in ("reward", "clipped_ratio")]
        seeds = [tuple(np.array(part[seed]) for part in parts) for seed in parts[0] if seed in parts[1]]
        if not seeds:
            continue
        moves = [np.corrcoef(np.diff(reward), np.diff(cut))[0, 1] for reward, cut in seeds]
        right = np.concatenate([reward >= 1 - cut - 1e-9 for reward, cut in seeds])
        truncated = np.mean([cut.mean() for _, cut in seeds])
        alike = f"{sum(move < MOVES_ALIKE for move in moves)} of {len(moves)}"
        spread, as_many = f"{min(moves):.2f} to {max(moves):.2f}", f"{right.sum()} of {right.size}"
        rows.append([run.title, f"{100 * truncated:.0f}%", alike, spread, as_many])
    heads = [
        "run",
        "truncated",
        f"seeds below {MOVES_ALIKE}",
        "correlation of changes",
        "steps with at least as many right as ended",
    ]
    return table(heads, rows)


def answers_without_number(runs: list[Baseline]) -> str:
    """Say how many of the wrong held-out answers that were read hold no number, with the exact 95% interval of the share."""
    names = ("heldout_read", "heldout_read_wrong", "heldout_read_wrong_without_number")
    found = [[run.figures[name]["value"] for name in names] for run in runs if names[0] in run.figures]
    read, wrong, without = np.sum(found, axis=0)
    share = share_interval(int(without), int(wrong))
    return (
        f"{without} of the {wrong} wrong answers among {read} held-out ones that were read, of one seed in each of "
        f"{len(found)} arms: {100 * share.estimate:.0f}% ({100 * share.low:.0f} to {100 * share.high:.0f})."
    )


def _runs() -> tuple[list[Baseline], dict[str, list[dict]]]:
    """Return the runs in the order of the table, and the files of each."""
    runs, rows = [load_baseline(name) for name in list_baselines()], load_sources()
    files = {run.name: [row for row in rows if row["run"] == run.name] for run in runs}
    return sorted(runs, key=lambda run: (run.task.lower(), run.recipe, run.title)), files


def runs_csv() -> str:
    """Make baselines.csv."""
    runs, files = _runs()
    head = ["run", "task", "reward", "first fifth to last", "verdict", "source", "link"]
    return csv_text(head, [_row(run, files[run.name]) for run in runs])


def copies_csv() -> str:
    """Make baselines_copies.csv: the runs whose table several files hold."""
    runs, files = _runs()
    several = [run for run in runs if len({row["loads"] for row in files[run.name]} - {None}) > 1]
    several += [run for run in runs if len({row["repository"] for row in files[run.name]}) > 1]
    rows = []
    for run in {run.name: run for run in several}.values():
        held = files[run.name]
        models = ", ".join(sorted({row["loads"] for row in held if row["loads"]})) or "none"
        commit = (held[0]["commit"] or held[0]["blob"])[:7]
        rows.append([run.title, str(len(held)), str(len({row["repository"] for row in held})), commit, models])
    head = ["run", "files", "repositories", "commit of the first", "models that the code of the files loads"]
    return csv_text(head, rows)


def page() -> list[str]:
    """Make the lines of the page."""
    rows = load_sources()
    runs, _ = _runs()
    judged = {run.name: trend(run.curve()).word for run in runs if "reward" in run.curves}
    mine = {row["run"] for row in rows if row["repository"] == OWN}
    words, own = (Counter(word for name, word in judged.items() if (name in mine) == which) for which in (False, True))
    other = {row["repository"] for row in rows} - {OWN}
    first = {row["run"]: row["repository"] for row in reversed(rows)}  # others hold a copy of its table
    by_place = {place: {judged.get(run) for run, found in first.items() if found == place} for place in other}
    drawn = [found for found in by_place.values() if found - {None}]
    counted, counted_own = (", ".join(f"*{word}* {n}" for word, n in found.most_common()) for found in (words, own))
    return [
        "# Documented runs",
        "",
        f"{len(runs)} runs from {len(other)} repositories and from this project. Most have a single seed. They are references,",
        "not targets. [data/README.md](../data/README.md) says how to add one, and",
        "[documented_verdicts.md](documented_verdicts.md) how often the verdicts are wrong. Each source names the newest",
        "commit in November 2026, when the figures were taken; the repository may have changed since. Runs of this project",
        "name the commit that holds their figures, its date, and the versions that they ran with. This page is written by",
        "`python -m benchmarks.pages`.",
        "",
        "## Every run",
        "",
        f"Does the reward rise? In {sum(RISES in found for found in drawn)} of {len(drawn)} repositories of others one does.",
        "A run counts in the first that has it: some hold many, some a copy of another's.",
        f"Verdicts on their {sum(words.values())} curves: {counted};",
        f"on {sum(own.values())} of this project: {counted_own}.",
        "Some curves are called rising by luck: the test aims at 5%, and slow noise looks like a trend",
        "[more often](documented_verdicts.md).",
        "The bars go from each run's own lowest to its own highest value, so do not compare them between rows.",
        "",
        *csv_next_to_page("baselines.csv"),
        "",
        '<a id="what-a-reward-measured"></a>',
        "",
        "## What a reward measured",
        "",
        "Runs that give reward and truncated share of each seed. Where their changes from step to step correlate near -1, and",
        "at least as many completions are right as ended, the reward says little but whether a completion ended in time.",
        "`workbench audit` names that from one log (`reward-is-ending`).",
        "",
        *ending_table(runs),
        "",
        "DAPO's and AERO's logs of the same study cannot tell. DAPO logs the lengths of a step's first batch and the reward of",
        "the groups that it keeps; AERO logs a rejected rollout as a completion of 0 tokens.",
        "",
        "Held-out answers in which no number was found, as where the answer did not come within the limit:",
        answers_without_number(runs),
        "The other seeds were not read, so it is not said of each run.",
        "",
        "## One table in several files",
        "",
        "These files hold the same numbers, step for step. A notebook is often saved with the output that it had before it was",
        "changed, so the table does not show which code was run. If the code of the files loads several models, the curve can",
        "be of only one of them.",
        "",
        *csv_next_to_page("baselines_copies.csv"),
        "",
    ]
