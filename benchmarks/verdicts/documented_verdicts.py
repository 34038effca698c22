"""How often the verdicts on documented runs are wrong: simulated runs whose truth is known, judged by the library itself.

    python -m benchmarks.verdicts.documented_verdicts [--repeats 1000] [--seed 0] [--out FILE.json] [--page FILE.md]

`--page` writes docs/documented_verdicts.md, of what `--out` writes and of nothing else.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.documented import thinned
from benchmarks.pages import table, write_page
from benchmarks.record import parser, publish
from benchmarks.verdicts.error_rates import noise
from workbench.curves import verdicts as v
from workbench.curves.curve import Curve
from workbench.runs.environment import hardware

RHOS = (0.0, 0.5, 0.8)
LENGTHS = (20, 40, 60)
BLOCKS = ("fifths, noise judged from the curve", "slope, blocks of 5", "slope, blocks chosen by the data")


def shares(words: list[str]) -> dict[str, float]:
    """How often each word was said."""
    return {word: words.count(word) / len(words) for word in sorted(set(words))}


def repeat(repeats: int, seed: int, once: Callable) -> dict[str, float]:
    """The shares of the words of so many experiments, each with the one generator."""
    rng = np.random.default_rng(seed)
    return shares([once(rng) for _ in range(repeats)])


# --- trends ----------------------------------------------------------------------------------------------------------


def block_length(y: np.ndarray) -> int:
    """The block length of Politis and White (2004, corrected 2009) for a moving block bootstrap of a mean.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> block_length(rng.normal(size=200)), block_length(np.cumsum(rng.normal(size=200))) > 10
        (1, True)
    """
    y, n = y - y.mean(), len(y)
    most, quiet = min(n - 1, int(np.ceil(np.sqrt(n))) + 5), max(5, int(np.sqrt(np.log10(n))))
    covariance = np.array([y[: n - lag] @ y[lag:] / n for lag in range(most + 1)])
    small = np.abs(covariance / covariance[0]) < 2 * np.sqrt(np.log10(n) / n)
    after = next((lag for lag in range(1, most - quiet + 2) if small[lag : lag + quiet].all()), most)
    lags = np.arange(-min(2 * after, most), min(2 * after, most) + 1)
    window = np.clip(2 * (1 - np.abs(lags) / max(1, 2 * after)), 0, 1)  # flat, then down to 0
    values = window * covariance[np.abs(lags)]
    bias, spread = (np.abs(lags) * values).sum(), 4 / 3 * values.sum() ** 2
    return int(np.clip(round((2 * bias**2 / spread * n) ** (1 / 3)), 1, n // 3)) if spread > 0 else n // 3


def slope_leaves_0_out(y: np.ndarray, rng: np.random.Generator, block: int | None = None, resamples: int = 400) -> bool:
    """Whether the 95% interval of the slope, by moving blocks of what a line leaves, leaves 0 out."""
    x = np.linspace(-1, 1, len(y))
    slope = x @ y / (x @ x)
    left = y - y.mean() - slope * x
    block = block or block_length(left)
    starts = rng.integers(len(y) - block + 1, size=(resamples, -(-len(y) // block)))
    drawn = left[(starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, : len(y)]]
    low, high = np.quantile(drawn @ x / (x @ x), [0.025, 0.975])
    return not low <= -slope <= high


def curve(y: np.ndarray, **about) -> Curve:
    return Curve("run", np.arange(1, len(y) + 1), y, "points", **about)


def trends(repeats: int, seed: int) -> dict:
    """Of noise without a trend: what `trend` says, and the two other ways; of rises by 3 deviations: how often it sees them."""
    found = {}
    for n in LENGTHS:
        for rho in RHOS:
            level, up = np.sqrt(1 - rho**2), 3 * (1 - np.exp(-np.arange(n) / (n / 4)))
            flat = repeat(repeats, seed, lambda rng, n=n, rho=rho: v.trend(curve(noise(rng, n, rho))).word)
            rng = np.random.default_rng(seed)
            runs = [noise(rng, n, rho) for _ in range(repeats)]
            fives, chosen = ([slope_leaves_0_out(y, rng, block) for y in runs] for block in (5, None))
            rises = [v.trend(curve(up + level * y)).word for y in runs]
            found[f"{n}; {rho}"] = {
                BLOCKS[0]: flat.get(v.RISES, 0) + flat.get(v.FALLS, 0),
                BLOCKS[1]: float(np.mean(fives)),
                BLOCKS[2]: float(np.mean(chosen)),
                "seen": shares(rises).get(v.RISES, 0),
            }
    return found


def flats(repeats: int, seed: int) -> dict:
    """`flat` of a reward in 0..1 that moved by so much, with noise of 0.05 a point, independent and AR(0.8)."""

    def once(by, rho):
        def draw(rng):
            wiggle = 0.05 * np.sqrt(1 - rho**2) * noise(rng, 60, rho)
            return v.trend(curve(np.clip(0.5 + by * np.linspace(-0.5, 0.5, 60) + wiggle, 0, 1), low=0, high=1)).word

        return draw

    return {f"{by}; {rho}": repeat(repeats, seed, once(by, rho)) for by in (0.0, 0.1, 0.2) for rho in (0.0, 0.8)}


# --- copies ----------------------------------------------------------------------------------------------------------


def copies(repeats: int, seed: int) -> dict:
    """`same_table` of two seeds of a process, and of one run in two forms."""

    def eight(rng, n=100):
        return rng.binomial(8, np.linspace(0.3, 0.7, n)) / 8

    def stuck(rng, n=100):
        return np.where(rng.random(n) < 0.03, 0.25, 0.0)

    def form(y):
        made = thinned(np.arange(1.0, len(y) + 1), y)
        return Curve("thinned", *np.array(made["points"]).T, "points", at=made["at"], span=made["steps_per_point"])

    cases = {
        "two seeds, 8 completions that are right or wrong": lambda rng: (curve(eight(rng)), curve(eight(rng))),
        "two seeds, a reward without steps": lambda rng: (curve(rng.normal(size=100)), curve(rng.normal(size=100))),
        "two seeds, 10 steps": lambda rng: (curve(eight(rng, 10)), curve(eight(rng, 10))),
        "two seeds, stuck at 0 in 97% of steps": lambda rng: (curve(stuck(rng)), curve(stuck(rng))),
        "one run, and the means of two steps each": lambda rng: (curve(y := rng.normal(size=100)), form(y)),
        "one run, printed with 4 decimals": lambda rng: (curve(y := rng.normal(size=100)), curve(y.round(4))),
        "one run, and a copy with one value changed": lambda rng: (
            curve(y := eight(rng)),
            curve(np.where(np.arange(100) == 50, y + 0.125, y)),
        ),
    }
    return {
        name: repeat(repeats, seed, lambda rng, two=two: v.same_table(*two(rng)).word) for name, two in cases.items()
    }


# --- places ----------------------------------------------------------------------------------------------------------


def places(repeats: int, seed: int) -> dict:
    """`place` of one more run of the people's own process, and of one that is shifted by so many deviations between them."""

    def once(people, draw_level, shift):
        def draw(rng):
            levels = draw_level(rng, people + 1)
            levels[0] += shift
            made = [curve(level + 0.2 * rng.normal(size=100)) for level in levels]
            return v.place(made[0], made[1:]).word

        return draw

    spreads = {
        "normal": lambda rng, n: rng.normal(size=n),
        "log-normal": lambda rng, n: np.exp(rng.normal(size=n)) / 2.16,  # of deviation 1
        "1 of 5 never learns": lambda rng, n: np.where(rng.random(n) < 0.2, -4.0, 0.5 * rng.normal(size=n)),
    }
    cases = [(n, name, shift) for name in spreads for n in (3, 5, 8) for shift in (0, 3, 6)]
    return {f"{name}; {n}; {shift}": repeat(repeats, seed, once(n, spreads[name], shift)) for n, name, shift in cases}


def simulate(repeats: int, seed: int) -> dict:
    """All rates."""
    parts = {"trends": trends, "flats": flats, "copies": copies, "places": places}
    return {"environment": hardware(), "repeats": repeats, "seed": seed} | {
        n: part(repeats, seed) for n, part in parts.items()
    }


def _rates(part: dict, words: tuple[str, ...], head: tuple[str, ...]) -> list[str]:
    rows = [[*name.split("; "), *(f"{100 * rates.get(word, 0):.1f}" for word in words)] for name, rates in part.items()]
    return table([*head, *words], rows)


def page(result: dict) -> list[str]:
    """The lines of the page."""
    repeats = result["repeats"]
    return [
        "# How often the verdicts on documented runs are wrong",
        "",
        "`workbench.curves.verdicts` says of documented runs what they show. Here it judges simulated runs whose truth is",
        "known. This page is written by",
        "",
        f"    python -m benchmarks.verdicts.documented_verdicts --repeats {repeats} --seed {result['seed']} "
        "--out data/measured/verdicts/documented_verdicts.json --page docs/documented_verdicts.md",
        "",
        f"All rates are per cent of {repeats} experiments. One of 5% is known to about "
        f"{196 * np.sqrt(0.05 * 0.95 / repeats):.1f} points.",
        "",
        "## `trend`: does the run rise or fall?",
        "",
        "Runs without any trend, whose noise has this autocorrelation: how often is a trend seen? At most 5% is wanted. The",
        "other two columns are bootstraps of the slope, with blocks of 5 points and with a block length chosen by the data",
        "(Politis and White). Both are wrong more often, so `trend` does not use them. The last column: a rise by 3 deviations",
        "of a point, levelling off, that `trend` sees. Twenty points cannot tell noise that lasts from a trend: there, and up",
        "to 40 points with an autocorrelation of 0.8, more than 5% are wrong.",
        "",
        *_rates(result["trends"], (*BLOCKS, "seen"), ("points", "autocorrelation")),
        "",
        "A reward in 0..1 that moved by so much over 60 points with noise of 0.05: flat is right up to 0.1.",
        "",
        *_rates(result["flats"], (v.RISES, v.FLAT, v.FALLS, v.UNCLEAR), ("moved by", "autocorrelation")),
        "",
        "## `same_table`: are these the numbers of one run?",
        "",
        "For two seeds `same table` is wrong, for one run it is right.",
        "",
        *_rates(result["copies"], (v.COPY, v.OTHER, v.UNCLEAR), ("case",)),
        "",
        "## `place`: where does a run stand among others?",
        "",
        "With a shift of 0 the run is of the people's own process: inside is right, at most 5% outside are wanted. With 3",
        "others even a large shift is often not seen. Where results of people are skewed, or one of five never learns, up to",
        "one in eight is wrongly outside.",
        "",
        *_rates(result["places"], (v.INSIDE, v.ABOVE, v.BELOW), ("between people", "others", "shift, deviations")),
        "",
    ]


def main() -> None:
    args = parser(__doc__, repeats=1000, seed=0, page=Path("")).parse_args()
    result = simulate(args.repeats, args.seed)
    publish(result, args.out)
    if args.page.name:
        write_page(args.page, page(result))


if __name__ == "__main__":
    main()
