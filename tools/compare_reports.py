"""Compare the saved results of two executions of the notebooks, as of two `make report`: numbers, intervals, verdicts.

    python -m tools.compare_reports runs /elsewhere/runs
    python -m tools.compare_reports runs /elsewhere/runs 03_position_ids_and_padding

Of each notebook the newest finished run in either folder counts. Exits with 1 where a verdict or a parameter differs, a number
lies outside the other's interval, or a sentence or a run has no partner.
"""

import argparse
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from workbench.runs.results import Result, results_of
from workbench.runs.run import Run, list_runs

_NUMBER = r"(?<![\w.])(?<!\w-)-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
PLACES = ("out_dir", "runs_dir")  # parameters that say where, not what
# `0.47 (0.14 to 0.84)`, `96% (92% to 99%)`: a number with its interval. Else a number alone.
_VALUE = re.compile(rf"({_NUMBER})(%?) \(({_NUMBER})%? to ({_NUMBER})%?\)|({_NUMBER})")


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs between two executions.

    Attributes:
        kind: `number`, within the other's interval or without one; `outside` of it; `verdict`; `only in one`; `parameters`.
        notebook, first, second: where, and what the two say; empty where one has nothing to say.
    """

    kind: str
    notebook: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.notebook}: {self.kind}\n    {self.first or '-'}\n    {self.second or '-'}"


def values_in(text: str) -> list[tuple[float, float | None, float | None]]:
    """The numbers of a sentence, in their order, each with the bounds of its interval or None.

    Example:
        >>> values_in("It ends 0.50 (0.14 to 0.87) higher in 2 of 3 seeds")
        [(0.5, 0.14, 0.87), (2.0, None, None), (3.0, None, None)]
    """

    def number(word: str) -> float:
        return float(word.replace(",", ""))

    return [
        (number(m[1]), number(m[3]), number(m[4])) if m[1] else (number(m[5]), None, None)
        for m in _VALUE.finditer(text)
    ]


def outside(first: str, second: str) -> bool:
    """Whether a number of one of two sentences lies outside the interval that the other gives of it."""
    pairs = zip(values_in(first), values_in(second), strict=True)
    asked = [pair for a, b in pairs for pair in ((a[0], *b[1:]), (b[0], *a[1:])) if pair[1] is not None]
    return any(not low <= value <= high for value, low, high in asked)


def _keyed(results: Sequence[Result]) -> dict[tuple, Result]:
    """Results by claim and sentence without its numbers; equal ones are numbered in their order."""
    seen: Counter = Counter()
    keyed = {}
    for result in results:
        key = (result.claim, _VALUE.sub(lambda m: "# (# to #)" if m[1] else "#", result.says))
        keyed[*key, seen[key]] = result
        seen[key] += 1
    return keyed


def compare(notebook: str, first: dict, second: dict) -> list[Difference]:
    """Find what differs between two `result.json` of one notebook."""
    ours, theirs = _keyed(results_of(first)), _keyed(results_of(second))
    found = []
    for key in ours | theirs:
        one, other = ours.get(key), theirs.get(key)
        said = [f"{r.verdict}: {r.says}" if r else "" for r in (one, other)]
        if not one or not other:
            found.append(Difference("only in one", notebook, *said))
        elif one.verdict != other.verdict:
            found.append(Difference("verdict", notebook, *said))
        if one and other and one.says != other.says:
            found.append(Difference("outside" if outside(one.says, other.says) else "number", notebook, *said))
    numbers, others = (result.get("numbers", {}) for result in (first, second))
    for name in numbers | others:
        a, b = (f"{name} = {values[name]:.6g}" if name in values else "" for values in (numbers, others))
        if a != b:
            found.append(Difference("number" if a and b else "only in one", notebook, a, b))
    return found


def _other_parameters(first: Run, second: Run) -> list[Difference]:
    given = [
        {f"{name}={value!r}" for name, value in run.params.items() if name not in PLACES} for run in (first, second)
    ]
    said = [", ".join(sorted(one - other)) for one, other in (given, given[::-1])]
    return [Difference("parameters", first.notebook, *said)] if any(said) else []


def newest(folder: Path, names: Sequence[str] = ()) -> dict[str, Run]:
    """The newest finished run of each notebook in a folder of runs, or of those that are named."""
    done = [run for run in list_runs(folder) if run.status["state"] == "done"]
    return {run.notebook: run for run in done if not names or run.notebook in names}


def main(argv: list[str] | None = None) -> None:
    """Print what differs, the worst last, and exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="folder of runs")
    parser.add_argument("second", type=Path)
    parser.add_argument("names", nargs="*", help="notebooks; default all")
    args = parser.parse_args(argv)
    first, second = newest(args.first, args.names), newest(args.second, args.names)
    found = []
    for name in sorted(first | second):
        if name in first and name in second:
            found += _other_parameters(first[name], second[name])
            found += compare(name, first[name].result, second[name].result)
        else:
            ids = [f"run {runs[name].id}" if name in runs else "" for runs in (first, second)]
            found.append(Difference("only in one", name, *ids))
    worst = ["number", "parameters", "only in one", "outside", "verdict"]
    for one in sorted(found, key=lambda one: worst.index(one.kind)):
        print(one)
    counts = Counter(one.kind for one in found)
    both = first.keys() & second.keys()
    sentences = sum(len(results_of(first[name].result)) for name in both)
    counted = ", ".join(f"{counts[kind]} {kind}" for kind in worst)
    print(f"{len(both)} notebooks in both, {sentences} sentences: {counted}")
    if not both:
        sys.exit("no notebook has a finished run in both folders")
    sys.exit(int(len(found) > counts["number"]))


if __name__ == "__main__":
    main()
