"""How often the verdicts about curves are wrong: simulated runs whose truth is known, judged by the library itself.

    python -m benchmarks.error_rates [--repeats 1000] [--seed 0] [--mean 1] [--out FILE.json]

docs/error_rates.md shows the stored result, and that of `python -m benchmarks.controls --rates`: how often the recorded
controls are wrong (data/measured/control.json).
"""

from collections.abc import Callable

import numpy as np
from scipy import stats
from scipy.signal import lfilter

from tools.record import made_with, measured, parser, publish, table
from workbench.curves.compare import DIFFERENT, INCONCLUSIVE, SAME, another_seed
from workbench.curves.curve import Curve
from workbench.curves.stats import change_interval, iqm, seed_interval, share_interval

SEEDS = (1, 2, 3, 5, 8, 10)
STEPS = np.arange(1, 81)
NOISES = {"independent": 0.0, "AR(0.8)": 0.8}
LENGTHS = (20, 40, 80, 250)


def noise(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    """`n` steps of autoregressive noise, driven by a standard normal each step; its deviation is 1 / sqrt(1 - rho**2)."""
    return lfilter([1], [1, -rho], rng.normal(size=n + 60))[60:]


def rise(steps: np.ndarray, scale: float = 20.0) -> np.ndarray:
    """From -25 to -4, as the documented example rises; `scale` steps for 63% of it."""
    return 21 * (1 - np.exp(-steps / scale)) - 25


def dense(
    change: Callable = lambda y: y,
    *,
    slower: float = 1,
    apart: float = 1,
    speeds: float = 0,
    never: float = 0,
    loud: float = 1,
) -> Callable:
    """A process whose reward rises from the first step: its seeds are `apart`, of other `speeds` (log), or `never` learn."""

    def seed(rng: np.random.Generator, rho: float) -> np.ndarray:
        learned = rise(STEPS, slower * 20 * np.exp(speeds * rng.normal()))
        y = learned if rng.random() >= never else np.full(len(STEPS), -25.0)
        return change(y) + apart * rng.normal() + loud * noise(rng, len(STEPS), rho)

    return seed


def sparse(change: Callable = lambda y: y, *, onset: float, never: float = 0) -> Callable:
    """A process whose reward goes from 0 to 1 at a step of its own in each seed, 40 on average, `onset` steps apart."""

    def seed(rng: np.random.Generator, rho: float) -> np.ndarray:
        starts, learns = rng.normal(40, onset), rng.random() >= never
        return change(learns / (1 + np.exp((starts - STEPS) / 3))) + 0.03 * noise(rng, len(STEPS), rho)

    return seed


def case(one: Callable, seeds: Callable | None = None, *, tolerance: float = 5, truth: str = "other") -> dict:
    """What is simulated: the process of the one curve, that of the seeds where it is another, and the tolerance."""
    return {"one": one, "seeds": seeds or one, "tolerance": tolerance, "truth": truth}


CASES = {
    "the same process": case(dense(), truth="same"),
    "the same, this run with twice the noise": case(dense(loud=2), dense(), truth="same"),
    "the same, seeds 5 apart": case(dense(apart=5), truth="same"),
    "the same, speeds of seeds 20% apart": case(dense(speeds=0.2), truth="same"),
    "the same, 1 of 5 never learns": case(dense(never=0.2), truth="same"),
    **{f"sparse, onsets {sd} steps apart": case(sparse(onset=sd), tolerance=0.1, truth="same") for sd in (5, 12, 20)},
    "sparse, onsets 5 steps apart, 1 of 5 never learns": case(sparse(onset=5, never=0.2), tolerance=0.1, truth="same"),
    "sparse, onsets 12 steps apart, 1 of 5 never learns": case(
        sparse(onset=12, never=0.2), tolerance=0.1, truth="same"
    ),
    "4 higher": case(dense(), dense(lambda y: y + 4), truth="within"),
    "6 higher": case(dense(), dense(lambda y: y + 6)),
    "8 higher": case(dense(), dense(lambda y: y + 8)),
    "20 higher": case(dense(), dense(lambda y: y + 20)),
    "a third of the speed": case(dense(), dense(slower=3)),
    "no rise, ends equal": case(dense(), dense(lambda y: np.full(len(y), -4.0))),
    "falls by 15 after step 64": case(dense(lambda y: y - 15 * (STEPS > 64)), dense()),
    "falls instead of rising": case(dense(), dense(lambda y: -y - 29)),
    "sparse, this run never learns, no seed does not": case(sparse(onset=5, never=1), sparse(onset=5), tolerance=0.1),
    "sparse, this run gets to half": case(sparse(lambda y: y / 2, onset=5), sparse(onset=5), tolerance=0.1),
}


def verdicts(rng: np.random.Generator, seeds: int, rho: float, repeats: int, about: dict) -> dict[str, float]:
    """Share of each verdict of `another_seed` over repeated experiments of one curve and `seeds` others.

    Example:
        >>> verdicts(np.random.default_rng(0), 10, 0.0, 20, CASES["falls instead of rising"])
        {'same process': 0.0, 'inconclusive': 0.0, 'different': 1.0}
    """
    found = []
    for _ in range(repeats):
        one = Curve("this run", STEPS, about["one"](rng, rho), "points")
        others = [Curve(f"seed {n}", STEPS, about["seeds"](rng, rho), "points") for n in range(seeds)]
        found.append(another_seed(one, others, tolerance=about["tolerance"]).verdict)
    return {verdict: found.count(verdict) / repeats for verdict in (SAME, INCONCLUSIVE, DIFFERENT)}


def changes(rng: np.random.Generator, n: int, rho: float, repeats: int) -> dict[str, float]:
    """`change_interval`: how often noise alone "changed"; on a rise by 3, how often it holds the true change, or sees it."""
    flat = [change_interval(noise(rng, n, rho)) for _ in range(repeats)]
    curve, ends = rise(np.arange(1, n + 1), n / 4) / 7, max(4, round(0.2 * n))
    truth = curve[-ends:].mean() - curve[:ends].mean()
    rising = [change_interval(curve + noise(rng, n, rho)) for _ in range(repeats)]
    return {
        "changed": float(np.mean([i.low > 0 or i.high < 0 for i in flat])),
        "covers": float(np.mean([i.low <= truth <= i.high for i in rising])),
        "seen": float(np.mean([i.low > 0 for i in rising])),
    }


def coverage(rng: np.random.Generator, seeds: int, draw: Callable, repeats: int, statistic: Callable = iqm) -> float:
    """How often `seed_interval` holds the true value of a statistic; every column of the values is an experiment."""
    truth = statistic(draw(rng, 1_000_000), axis=0)
    interval = seed_interval(draw(rng, (seeds, repeats)), rng, statistic=statistic, resamples=800)
    return float(np.mean((interval.low <= truth) & (truth <= interval.high)))


VALUES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "share of 40": lambda rng, size: rng.binomial(40, 0.3, size=size) / 40,
    "one of five fails": lambda rng, size: np.where(rng.random(size) < 0.2, -4.0, 0.5 * rng.normal(size=size)),
}


def simulate(repeats: int, seed: int) -> dict:
    """All rates; each cell has a generator of its own, so that a part of the table can be repeated."""

    def rng():
        return np.random.default_rng(seed)

    result: dict = {"repeats": repeats, "seed": seed, "another_seed": {}}
    for name, one in CASES.items():
        for kind, rho in NOISES.items():
            cells = {str(n): verdicts(rng(), n, rho, repeats, one) for n in SEEDS}
            result["another_seed"][f"{name}; {kind}"] = {"truth": one["truth"], "seeds": cells}
            print(f"{name}; {kind}", {n: cell[DIFFERENT] for n, cell in cells.items()}, flush=True)
    rhos = (0.0, 0.5, 0.8, 0.9)
    result["change_interval"] = {f"{n}; {r}": changes(rng(), n, r, repeats) for n in LENGTHS for r in rhos}
    result["seed_interval"] = coverages(repeats, seed, iqm)
    return result


def coverages(repeats: int, seed: int, statistic: Callable) -> dict[str, dict[str, float]]:
    """`coverage` of each kind of values by 2 to 30 seeds."""
    return {
        name: {str(n): coverage(np.random.default_rng(seed), n, draw, repeats, statistic) for n in (2, 3, 4, 5, 10, 30)}
        for name, draw in VALUES.items()
    }


def _verdict_table(result: dict, truths: tuple[str, ...], verdict: str) -> list[str]:
    found = {name: one["seeds"] for name, one in result["another_seed"].items() if one["truth"] in truths}
    rows = [
        [*name.split("; "), *(f"{100 * cell[verdict]:.1f}" for cell in cells.values())] for name, cells in found.items()
    ]
    return table(["case", "noise", *(f"{n} seed{'s' * (n > 1)}" for n in SEEDS)], rows)


def _counted(verdicts: list[str]) -> str:
    """`3 of 3 differs`; of several verdicts each is counted."""
    return ", ".join(f"{verdicts.count(v)} of {len(verdicts)} {v}" for v in dict.fromkeys(verdicts))


def _judged(found: dict) -> list[str]:
    return [_counted(found["verdicts"]), ", ".join(f"{value:+.1f}" for value in found["worst"])]


def _of_others(found: tuple[str, dict]) -> list[str]:
    (name, one), verdicts = found, found[1]["verdicts"]
    rate = share_interval(verdicts.count(DIFFERENT), len(verdicts))
    percent = f"{100 * rate.estimate:.0f} ({100 * rate.low:.0f} to {100 * rate.high:.0f})"
    return [*name.split("; "), f"{one['tolerance']:g} {one['unit']}", _counted(verdicts), percent]


def control_section(control: dict) -> list[str]:
    """Make the part of the page about the positive control."""
    simulated, left_out, documented = [], [], control["documented"].items()
    for name, one in control["controls"].items():
        tolerance = " ".join(f"{value:g}" for value in one["tolerance"])
        shares = [f"{100 * rates[DIFFERENT]:.1f}" for rates in one["simulated"].values()]
        simulated.append([name, f"{tolerance} {one['unit']}", *shares])
        left_out.append([name, *map(_counted, one["left out"].values())])
    shifts = list(one["simulated"])
    rounding, damaged = [], []
    older = control["older"]
    for name, one in older["rounding"].items():
        steps = ", ".join(str(step or "never") for step in one["parts at step"])
        rounding += [[name, steps, *_judged(found)] for found in one["metrics"].values()]
    for name, one in older["damaged"].items():
        damaged += [[name, one["control"], metric, *_judged(found)] for metric, found in one["metrics"].items()]
    return [
        "## The positive control",
        "",
        "A control is a documented run with ten recorded seeds and a tolerance. `another_seed` then says whether a run of the",
        "same recipe is one more of these seeds. Nothing is trained for the first three tables:",
        "",
        f"    python -m benchmarks.controls --rates {control['repeats']} --out data/measured/control.json",
        "",
        f"Made with {made_with(control)}.",
        "",
        f"How often the verdict is *different*, in per cent of {control['repeats']} simulated experiments. Their seeds have",
        "the mean and covariance of the recorded ones, and the judged seed is shifted by so many units. At shift 0 it is the",
        "same process, and at most 5% is the aim. The run is judged in fifths of its steps. The tolerance of a fifth covers",
        "99% of simulated runs on other machines, where the toy model `starter` comes out differently.",
        "",
        *table(["control; metric", "tolerance of the fifths", *(f"shift {s}" for s in shifts)], simulated),
        "",
        "Real runs that were left out: each recorded seed is judged by the other nine. Each run on a newly made starter (made",
        "without another tenth of the corpus) is judged with the tolerance that the others give.",
        "",
        *table(["control; metric", "recorded seeds", "newly made starters"], left_out),
        "",
        "Seeds that others published, eight of a run, each judged by the other seven with a tolerance of a tenth of what",
        "their mean moves. All are one process, so `different` is wrong; its rate has the exact 95% interval. Where the mean",
        "hardly moves, the tolerance is small, and `inconclusive` is all that can be said.",
        "",
        *table(
            ["documented run", "metric", "tolerance", "verdicts", "different, per cent"], map(_of_others, documented)
        ),
        "",
        "The last two tables are of new trainings against earlier controls, by a program that is gone",
        f"(`git show d662082:benchmarks/verdicts/control.py`): {made_with(older)}.",
        "",
        "First the starter's run with recorded seeds and other rounding. *Parts at step* is the step at which each of three",
        "runs samples something else than the recorded run of its seed; from then on it is like another seed. *Worst fifth* is",
        "the largest distance from the recorded mean, in characters.",
        "",
        *table(["rounding", "parts at step", "verdict", "worst fifth"], rounding),
        "",
        "Then trainers with one fault, and seeds that were not recorded. With transformers, missing position ids cancel in",
        "GRPO's ratio: the reward cannot show them, and the padding monitor does (in decades). Half the learning rate changes",
        "the curve no more than another machine's starter does, and is not seen.",
        "",
        *table(["damage", "control", "metric", "verdict", "worst fifth"], damaged),
        "",
    ]


def power_rows() -> list[list[str]]:
    """Work out the power table: deviations, and per cent of experiments in which 3, 5, 8, 10 and 20 pairs show it."""
    rows = []
    for d in (0.5, 1.0, 1.5, 2.0, 3.0):
        bounds = [(n, stats.t.ppf(0.975, n - 1)) for n in (3, 5, 8, 10, 20)]
        rows.append([f"{d:g}", *(f"{100 * stats.nct.sf(t, n - 1, d * np.sqrt(n)):.0f}" for n, t in bounds)])
    return rows


def page() -> list[str]:
    """Make the lines of docs/error_rates.md."""
    result = measured("error_rates")
    steps = [[*n.split("; "), *(f"{100 * v:.1f}" for v in r.values())] for n, r in result["change_interval"].items()]
    of_mean = measured("error_rates_mean")
    seeds, means = (
        [[name, *(f"{100 * v:.1f}" for v in row.values())] for name, row in one["seed_interval"].items()]
        for one in (result, of_mean)
    )
    return [
        "# How often the verdicts are wrong",
        "",
        "The library judges simulated runs, of which the truth is known, and at the end real ones. This page is written by",
        "",
        f"    python -m benchmarks.error_rates --repeats {result['repeats']} --seed {result['seed']} "
        "--out data/measured/error_rates.json",
        "    python -m benchmarks.pages",
        "",
        f"Made with {made_with(result)}.",
        "",
        f"All rates are per cent of {result['repeats']} experiments, so a rate of 5% is known to about "
        f"{196 * np.sqrt(0.05 * 0.95 / result['repeats']):.1f} points. Nothing is trained here, except for the positive",
        "control.",
        "",
        "The first three tables are about `another_seed`: is one run one more seed of 1 to 10 others, over 80 steps?",
        "",
        "- Dense rewards rise from -25 to -4 from the first step on. Each seed has its own offset (deviation 1) and noise at",
        "  each step: independent with deviation 1, or autoregressive, AR(0.8), driven by that noise. The tolerance is 5.",
        "- Sparse rewards jump from 0 to 1 around step 40, in each seed at its own step. The noise is 0.03, the tolerance 0.1.",
        "",
        "## `another_seed` says different, but the process is the same",
        "",
        *_verdict_table(result, ("same",), DIFFERENT),
        "",
        "At most 5% is the aim. With one or two seeds the verdict is never *different*. An outcome such as never to learn can",
        "be a matter of luck: in up to 10% of cases 3 seeds share one outcome and the next run has another (5 seeds: 7%, 8",
        "seeds: 4%). So below 8 seeds a run that learns sooner, later or never is inconclusive.",
        "",
        "## `another_seed` says same process, but the difference exceeds the tolerance",
        "",
        *_verdict_table(result, ("other",), SAME),
        "",
        "## `another_seed` says different, and is right",
        "",
        "Almost all other verdicts are inconclusive. The difference of '4 higher' is within the tolerance.",
        "",
        *_verdict_table(result, ("other", "within"), DIFFERENT),
        "",
        "## `change_interval`: one run, its last fifth less its first",
        "",
        "- *changed*: the run is noise without a change, and the interval leaves out 0. The aim is at most 8% at 80 steps of",
        "  AR(0.8).",
        "- *covers*: the run rises by 3, and the interval holds the true change. The aim is 95%.",
        "- *seen*: the interval of that rise lies above 0.",
        "",
        "In a short run with much autocorrelation, noise looks like a trend: 20 steps are too few from 0.8 on, 40 at 0.9.",
        "",
        *table(["steps", "autocorrelation", "changed", "covers", "seen"], steps),
        "",
        "## `seed_interval`: the true interquartile mean lies inside",
        "",
        "The aim is 95%. It is a t interval below 5 seeds, and a bootstrap interval from 5 on.",
        "",
        *table(["values", "2 seeds", "3", "4", "5", "10", "30"], seeds),
        "",
        "The same for the mean (`statistic=np.mean`), by `python -m benchmarks.error_rates --mean 1`",
        f"({made_with(of_mean)}). If one of five seeds fails, the interval holds the true mean far too seldom. Then",
        "report the number of seeds that fail, with its exact interval (`share_interval`).",
        "",
        *table(["values", "2 seeds", "3", "4", "5", "10", "30"], means),
        "",
        "## Power: the chance to see a difference of so many deviations",
        "",
        "The chance, in per cent, that the t interval of the mean of paired differences leaves out 0. It is exact for normal",
        "differences. `seeds_needed` answers the reverse question. In 40 runs of Qwen3-8B on stock TRL 1.8, the difference of",
        "two arms in held-out score scatters by 0.88 to 1.28 points between seeds, so a difference of one point takes 9 to 15",
        "seeds. Each `inconclusive` verdict names the difference that would show in 80% of experiments.",
        "",
        *table(["deviations", *(f"{n} seeds" for n in (3, 5, 8, 10, 20))], power_rows()),
        "",
        "If a page has many verdicts of 95% each, some are wrong by luck: of 100 differences that do not exist, about 5 show.",
        "",
        *control_section(measured("control")),
    ]  # fmt: skip


def main() -> None:
    args = parser(__doc__, repeats=1000, seed=0, mean=0).parse_args()
    few = {"repeats": args.repeats, "seed": args.seed}
    if args.mean:  # of `seed_interval` with the mean alone
        return publish(few | {"seed_interval": coverages(args.repeats, args.seed, np.mean)}, args.out)
    publish(simulate(args.repeats, args.seed), args.out)


if __name__ == "__main__":
    main()
