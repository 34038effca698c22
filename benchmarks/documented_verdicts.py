"""How often the verdicts on documented runs are wrong: simulated runs whose truth is known, judged by the library itself.

    python -m benchmarks.documented_verdicts [--repeats 1000] [--seed 0] [--out FILE.json]

docs/documented_verdicts.md shows the stored result.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.documented import thinned
from benchmarks.error_rates import noise
from tools.record import csv_next_to_page, csv_text, made_with, measured, parser, publish, table
from workbench.curves import place as v
from workbench.curves.curve import Curve

LENGTHS = (20, 25, 40, 60, 100, 200)
OF_TEN = 10  # steps in a logged mean


TREND_COLUMNS = ("noise", "rise", "jump")


def shares(words: list[str]) -> dict[str, float]:
    """How often each word was said."""
    return {word: words.count(word) / len(words) for word in sorted(set(words))}


def repeat(repeats: int, seed: int, once: Callable) -> dict[str, float]:
    """The shares of the words of so many experiments, each with the one generator."""
    rng = np.random.default_rng(seed)
    return shares([once(rng) for _ in range(repeats)])


# --- trends ----------------------------------------------------------------------------------------------------------


def curve(y: np.ndarray, **about) -> Curve:
    return Curve("run", np.arange(1, len(y) + 1), y, "points", **about)


def mixed(rng: np.random.Generator, n: int, rho: float, white: float) -> np.ndarray:
    """Noise of deviation 1, (n,): autoregressive, and a share `white` of the variance that is independent."""
    slow = np.sqrt((1 - white) * (1 - rho**2)) * noise(rng, n + 140, rho)[140:]
    return slow + np.sqrt(white) * rng.normal(size=n)


def right_or_wrong(rng: np.random.Generator, n: int) -> np.ndarray:
    """Noise of deviation about 1, (n,): the share of 16 right answers, whose chance goes up and down slowly."""
    chance = 1 / (1 + np.exp(-mixed(rng, n, 0.9, 0.0)))
    return (rng.binomial(16, chance) / 16 - 0.5) / 0.24


def mean_of_ten(rng: np.random.Generator, n: int) -> np.ndarray:
    """Noise of deviation 1, (n,): the mean of the last ten steps, logged at each."""
    white = rng.normal(size=n + OF_TEN - 1)
    return np.convolve(white, np.full(OF_TEN, OF_TEN**-0.5), "valid")


# Kind of noise -> a draw of n steps. Of AR: autocorrelation of the slow part, and the share of white noise in the variance.
NOISES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "white": lambda rng, n: mixed(rng, n, 0.0, 1.0),
    "AR(0.8)": lambda rng, n: mixed(rng, n, 0.8, 0.0),
    "AR(0.9)": lambda rng, n: mixed(rng, n, 0.9, 0.0),
    "AR(0.8), half white": lambda rng, n: mixed(rng, n, 0.8, 0.5),
    "AR(0.9), 70% white": lambda rng, n: mixed(rng, n, 0.9, 0.7),
    "AR(0.95), half white": lambda rng, n: mixed(rng, n, 0.95, 0.5),
    "16 right or wrong, AR(0.9)": right_or_wrong,
    "mean of ten steps": mean_of_ten,
}


def trends(repeats: int, seed: int) -> dict:
    """How often a trend is seen: in noise, in a rise by 3 deviations that levels off at half of the run, and in a jump."""
    found = {}
    for n in LENGTHS:
        at = np.arange(n)
        shapes = {"noise": 0 * at, "rise": 3 * (1 - np.exp(-at / (n / 4))), "jump": 3.0 * (at >= n // 5)}
        for kind, draw in NOISES.items():
            rates = {}
            for shape, path in shapes.items():
                rng = np.random.default_rng(seed)
                words = [v.trend(curve(path + draw(rng, n))).word for _ in range(repeats)]
                rates[shape] = float(np.mean([word in (v.RISES, v.FALLS) for word in words]))
            found[f"{n}; {kind}"] = rates
            print(n, kind, rates, flush=True)
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
        "one run, printed with 2 decimals": lambda rng: (curve(y := rng.normal(size=100)), curve(y.round(2))),
        "one run, its steps counted from 0": lambda rng: (
            curve(y := rng.normal(size=100)),
            Curve("run", np.arange(100), y, "points"),
        ),
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
    """All rates; those of `trend`, which takes longest, of a fifth of the experiments."""
    few = {"trends": trends(repeats // 5, seed), "flats": flats(repeats // 5, seed)}
    return {"repeats": repeats, "seed": seed} | few | {"copies": copies(repeats, seed), "places": places(repeats, seed)}


def _rows(part: dict, words: tuple[str, ...]) -> list[list[str]]:
    return [[*name.split("; "), *(f"{100 * rates.get(word, 0):.1f}" for word in words)] for name, rates in part.items()]


def _rates(part: dict, words: tuple[str, ...], head: tuple[str, ...]) -> list[str]:
    return table([*head, *words], _rows(part, words))


def trend_csv() -> str:
    """Make documented_trend.csv: how often a trend is seen, by length and kind of noise."""
    rows = _rows(measured("documented_verdicts")["trends"], TREND_COLUMNS)
    return csv_text(["points", "kind of noise", *TREND_COLUMNS], rows)


def place_csv() -> str:
    """Make documented_place.csv: where a run is said to stand, by the spread between people."""
    words = (v.INSIDE, v.ABOVE, v.BELOW)
    rows = _rows(measured("documented_verdicts")["places"], words)
    return csv_text(["between people", "others", "shift, deviations", *words], rows)


def page() -> list[str]:
    """Make the lines of docs/evidence/documented_verdicts.md."""
    result = measured("documented_verdicts")
    repeats = result["repeats"]
    white, slow = (
        100 * max(rates["noise"] for case, rates in result["trends"].items() if (case.endswith("; white")) == is_white)
        for is_white in (True, False)
    )
    return [
        "# How often the verdicts on documented runs are wrong",
        "",
        "`workbench.curves.place` judges documented runs. Here it judges simulated runs, of which the truth is known. This",
        "page is written by",
        "",
        f"    python -m benchmarks.documented_verdicts --repeats {repeats} --seed {result['seed']} "
        "--out data/measured/documented_verdicts.json",
        "    python -m benchmarks.pages",
        "",
        f"Made with {made_with(result)}.",
        "",
        f"All rates are per cent of {repeats} experiments, for `trend` of {repeats // 5}. A rate of 5% is known to about "
        f"{196 * np.sqrt(0.05 * 0.95 / repeats):.1f} points, for `trend` to {196 * np.sqrt(0.05 * 0.95 * 5 / repeats):.0f}.",
        "",
        "## `trend`: does the run rise or fall?",
        "",
        "How often `trend` sees a trend in three kinds of runs: noise of deviation 1 without a trend (at most 5% is the aim),",
        "a rise by 3 that levels off, and a jump by 3 after a fifth of the run. The noise is white, autoregressive as AR(0.9),",
        "a sum of both, the share of 16 right answers over a slow path, or a mean of ten steps that is logged at each.",
        "",
        f"In white noise a trend is seen wrongly in at most {white:.0f}%, in slow noise in up to {slow:.0f}%: noise that is as",
        "slow as a trend looks like one. So each verdict of a rise or fall gives the rate of its length.",
        "Below 25 points the answer is `too few points`, because no test separates slow noise from a trend there.",
        "",
        *csv_next_to_page("documented_trend.csv"),
        "",
        "A reward between 0 and 1 with noise of 0.05 moved by so much over 60 points. Above 0 `rises` is right, up to 0.1",
        "`flat` too.",
        "",
        *_rates(result["flats"], (v.RISES, v.FLAT, v.FALLS, v.UNCLEAR), ("moved by", "autocorrelation")),
        "",
        "## `same_table`: are these the numbers of one run?",
        "",
        "`same table` is right for one run and wrong for two seeds.",
        "",
        *_rates(result["copies"], (v.COPY, v.OTHER, v.UNCLEAR), ("case",)),
        "",
        "## `place`: where does a run stand among others?",
        "",
        "`place` compares a run with runs of other people. With a shift of 0 it is of the same process: inside is right, and",
        "at most 5% outside is the aim. If people's results are skewed, or one of five never learns, up to one run in eight is",
        "wrongly outside. With only 3 others even a large shift is often not seen.",
        "",
        *csv_next_to_page("documented_place.csv"),
        "",
    ]


def main() -> None:
    args = parser(__doc__, repeats=1000, seed=0).parse_args()
    publish(simulate(args.repeats, args.seed), args.out)


if __name__ == "__main__":
    main()
