"""How sure the shape of one curve is: simulated runs whose truth is known, described by the library itself.

    python benchmarks/shapes.py [--repeats 100] [--seed 0] [--out FILE.json] [--page FILE.md]

`--page` writes the tables as a page of the documentation; it is made of what `--out` writes, and of nothing else.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from workbench.curves.curve import Curve
from workbench.curves.shape import NUMBERS, RISE_NUMBERS, outlines, rise_numbers, shape_of
from workbench.runs.environment import hardware

STEPS = 100
SHARE = (np.arange(STEPS) + 0.5) / STEPS
RISES = {
    "at once": 1 - np.exp(-SHARE / 0.04),
    "saturating": 1 - np.exp(-SHARE / 0.15),
    "even": SHARE,
    "late": 1 / (1 + np.exp(-(SHARE - 0.6) / 0.05)),
    "lost again": np.minimum(1, 4 * SHARE) - np.clip((SHARE - 0.6) * 4, 0, 1),
}
NOISES = (0.1, 0.3)
RHOS = (0.0, 0.6, 0.8)


def noise(rng: np.random.Generator, rho: float) -> np.ndarray:
    """Autoregressive noise of deviation 1, a value a step."""
    return np.sqrt(1 - rho**2) * lfilter([1], [1, -rho], rng.normal(size=STEPS + 60))[60:]


def curve(y: np.ndarray) -> Curve:
    return Curve("simulated", np.arange(1, STEPS + 1), y, "rises")


def truth(rng: np.random.Generator, rise: np.ndarray, deviation: float, rho: float) -> dict[str, float]:
    """The numbers of the curve without noise; its roughness is what the noise makes of the points, over the true rise."""
    share, clean = outlines([curve(rise)])
    found = {name: float(value[0]) for name, value in rise_numbers(share, clean).items()}
    noisy = rise_numbers(
        share, np.stack([outlines([curve(rise + deviation * noise(rng, rho))])[1][0] for _ in range(300)])
    )
    found["roughness"] = float(np.sqrt(np.nanmean((noisy["roughness"] * noisy["rise"]) ** 2)) / found["rise"])
    return found


def held(rng: np.random.Generator, name: str, deviation: float, rho: float, repeats: int) -> dict[str, float | None]:
    """How often a rise is shown, and of those how often each interval holds the truth; None below 20 of them."""
    true = truth(rng, RISES[name], deviation, rho)
    found = [shape_of([curve(RISES[name] + deviation * noise(rng, rho))], rng) for _ in range(repeats)]
    shown = [one.numbers for one in found if one.rises]
    rates = {"shown": len(shown) / repeats, "kept": float(np.mean([one.learns == "yes" for one in found]))}
    for number in RISE_NUMBERS:
        inside = [one[number].low <= true[number] <= one[number].high for one in shown]
        rates[number] = float(np.mean(inside)) if len(inside) >= 20 else None
    return rates


def flat(rng: np.random.Generator, rho: float, repeats: int) -> dict[str, float]:
    """What is said of noise alone.

    Example:
        >>> flat(np.random.default_rng(0), 0.0, 20)["not shown"] >= 0.9
        True
    """
    said = [shape_of([curve(noise(rng, rho))], rng).learns for _ in range(repeats)]
    return {learns: said.count(learns) / repeats for learns in ("not shown", "yes", "yes, then loses it", "no, falls")}


def simulate(repeats: int, seed: int) -> dict:
    """All rates; each cell has a generator of its own, so that a part of the table can be repeated."""
    result: dict = {"environment": hardware(), "repeats": repeats, "seed": seed}
    cells = [(name, deviation, rho) for name in RISES for deviation in NOISES for rho in RHOS]
    result["rises"] = {
        "; ".join(map(str, cell)): held(np.random.default_rng(seed), *cell, repeats=repeats) for cell in cells
    }
    result["flat"] = {str(rho): flat(np.random.default_rng(seed), rho, repeats) for rho in (*RHOS, 0.9)}
    return result


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def page(result: dict) -> str:
    """The page of the documentation that shows a result of `simulate`."""

    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.0f}"

    rises = [[*name.split("; "), *map(percent, rates.values())] for name, rates in result["rises"].items()]
    flats = [[rho, *map(percent, rates.values())] for rho, rates in result["flat"].items()]
    return "\n".join(
        [
            "# The shape of a curve, and how sure it is",
            "",
            "Rewards of other tasks have other units. Their curves can still be compared without units, measured and",
            "documented alike (`workbench/curves/shape.py`): y runs from 0, the mean of the first steps, to 1, the best",
            "running mean; x is the share of the steps; every curve is averaged to 50 points first.",
            "",
            *(f"- **{name}**: {what}." for name, what in NUMBERS.items()),
            "",
            "The error bars of a group of seeds are `seed_interval`'s, see `error_rates.md`. Those of one curve hold within",
            "that run and are simulated here. This page is written by",
            "",
            f"    python benchmarks/shapes.py --repeats {result['repeats']} --seed {result['seed']} "
            "--out data/benchmarks/shapes.json --page docs/shapes.md",
            "",
            f"All rates are per cent of {result['repeats']} runs of {STEPS} steps. Nothing is trained here.",
            "",
            "## One curve that rises by 1",
            "",
            "noise: its deviation at a step. shown: the curve is said to rise; kept: and not to lose it again. The other",
            "columns: of those that are said to rise, the 95% interval holds the number of the curve without noise. Empty:",
            "fewer than 20 runs.",
            "",
            *_table(["rise", "noise", "autocorrelation", "shown", "kept", *RISE_NUMBERS], rises),
            "",
            "Where few runs are said to rise, they are those that noise carried furthest, and their intervals hold less.",
            "Roughness suffers most: of noise that neighbouring steps share, a running mean takes a part for the trend.",
            "",
            "## Noise alone",
            "",
            "What is said of a run that does not change. At most 5% for each of a rise, a rise that is lost, and a fall is",
            "wanted.",
            "",
            *_table(["autocorrelation", "not shown", "yes", "yes, then loses it", "no, falls"], flats),
            "",
        ]
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    result = simulate(args.repeats, args.seed)
    text = page(result)
    print(text)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    if args.page:
        args.page.write_text(text)


if __name__ == "__main__":
    main()
