"""How often the verdicts about curves are wrong: simulated runs whose truth is known, judged by the library itself.

    python -m benchmarks.error_rates [--repeats 1000] [--seed 0] [--mean 1] [--out FILE.json]

docs/error_rates.md shows the stored result, and that of `python -m benchmarks.controls --rates`: how often the recorded
controls are wrong (data/measured/control.json).
"""

from collections.abc import Callable

import numpy as np
from scipy import stats
from scipy.signal import lfilter

from tools.record import csv_next_to_page, csv_text, made_section, made_with, measured, parser, publish, table
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
    lose: float = 0,
    loud: float = 1,
) -> Callable:
    """A process whose reward rises from the first step.

    Its seeds are `apart`, of other `speeds` (log), `never` learn, or `lose` all from a step of their own on.
    """

    def seed(rng: np.random.Generator, rho: float) -> np.ndarray:
        learned = rise(STEPS, slower * 20 * np.exp(speeds * rng.normal()))
        y = learned if rng.random() >= never else np.full(len(STEPS), -25.0)
        if lose and rng.random() < lose:
            y = np.where(rng.uniform(20, 80) < STEPS, -25.0, y)
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
    "the same, 1 of 5 loses what it learned": case(dense(lose=0.2), truth="same"),
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


def shown_again(rng: np.random.Generator, seeds: int, repeats: int) -> float:
    """How often an experiment shows the difference that another one of as many seeds named as detectable."""
    named = [
        seed_interval(rng.normal(size=seeds), rng, statistic=np.mean, resamples=500).detectable for _ in range(repeats)
    ]
    shown = [
        seed_interval(one + rng.normal(size=seeds), rng, statistic=np.mean, resamples=500).low > 0 for one in named
    ]
    return float(np.mean(shown))


VALUES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "exponential": lambda rng, size: rng.exponential(size=size),
    "share of 40": lambda rng, size: rng.binomial(40, 0.3, size=size) / 40,
    "one of five fails": lambda rng, size: np.where(rng.random(size) < 0.2, -4.0, 0.5 * rng.normal(size=size)),
    "one of five fails, others agree": lambda rng, size: np.where(
        rng.random(size) < 0.2, -4.0, 0.2 * rng.normal(size=size)
    ),
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


# What is asked of `another_seed`, the truths that it is asked of, and the verdict that is counted.
QUESTIONS = (
    ("says different, but the process is the same", ("same",), DIFFERENT),
    ("says same process, but the difference exceeds the tolerance", ("other",), SAME),
    ("says different, and is right", ("other", "within"), DIFFERENT),
)
_SEED_HEADS = [f"{n} seed{'s' * (n > 1)}" for n in SEEDS]


def _verdict_rates(truths: tuple[str, ...], verdict: str) -> dict[str, list[float]]:
    """Return case and noise -> how often a verdict is given, in per cent, for each number of seeds."""
    cases = measured("error_rates")["another_seed"].items()
    return {
        name: [100 * cell[verdict] for cell in one["seeds"].values()] for name, one in cases if one["truth"] in truths
    }


def seeds_csv() -> str:
    """Make error_rates.csv: every case of `another_seed`."""
    rows = []
    for question, truths, verdict in QUESTIONS:
        for name, rates in _verdict_rates(truths, verdict).items():
            rows.append([question, *name.split("; "), *(f"{rate:.1f}" for rate in rates)])
    return csv_text(["another_seed", "case", "noise", *_SEED_HEADS], rows)


def changes_csv() -> str:
    """Make error_rates_change.csv: `change_interval` by length and autocorrelation."""
    head = ["steps", "autocorrelation"]
    head += ["changed, of noise alone", "the true change inside, of a rise by 3", "that rise seen (above 0)"]
    cases = measured("error_rates")["change_interval"].items()
    return csv_text(head, [[*name.split("; "), *(f"{100 * v:.1f}" for v in rates.values())] for name, rates in cases])


def _seeds_in_brief() -> list[list[str]]:
    """Return a row for each question: the lowest and the highest rate of its cases."""
    rows = []
    for question, truths, verdict in QUESTIONS:
        by_seeds = zip(*_verdict_rates(truths, verdict).values(), strict=True)
        rows.append([question, *(f"{min(rates):.1f} to {max(rates):.1f}" for rates in by_seeds)])
    return rows


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


PARTED = (
    "it parts where it samples something else than the recorded run of its seed; from then on it is like another seed"
)
NOTES = {
    "rate x 0.5": "it changes the curve no more than another machine's starter does, and is not seen",
    "positions off; reward": "with transformers missing position ids cancel in GRPO's ratio: the reward cannot show them",
    "positions off; padding/max_difference": "the padding monitor shows what the reward cannot (in decades)",
}


def trainings_csv() -> str:
    """Make error_rates_controls.csv: real trainings, of others, with other rounding and with one fault."""
    control, rows = measured("control"), []
    for found in control["documented"].items():
        run, metric, tolerance, verdicts, rate = _of_others(found)
        note = f"one process: different would be wrong, in {rate}% (95%)"
        rows.append(["seeds that others published", run, metric, tolerance, verdicts, "", note])
    for name, one in control["older"]["rounding"].items():
        steps = ", ".join(str(step or "never") for step in one["parts at step"])
        for metric, found in one["metrics"].items():
            note = f"parts at step {steps}: {PARTED}"
            rows.append([f"other rounding: {name}", "starter, recorded seeds", metric, "", *_judged(found), note])
    for name, one in control["older"]["damaged"].items():
        for metric, found in one["metrics"].items():
            note = NOTES.get(name, NOTES.get(f"{name}; {metric}", ""))
            rows.append([f"fault: {name}", f"{one['control']}, other seeds", metric, "", *_judged(found), note])
    return csv_text(
        ["what", "run", "metric", "tolerance", "verdicts", "worst fifth, from the recorded mean", "note"], rows
    )


def control_section(control: dict) -> list[str]:
    """Make the part of the page about the positive control."""
    lines = []
    for name, one in control["controls"].items():
        tolerance = " ".join(f"{value:g}" for value in one["tolerance"])
        shares = [f"{100 * rates[DIFFERENT]:.1f}" for rates in one["simulated"].values()]
        lines.append([name, f"{tolerance} {one['unit']}", *shares, *map(_counted, one["left out"].values())])
    shifts = [f"shift {shift}" for shift in one["simulated"]]
    return [
        "## The positive control",
        "",
        "A control is a documented run with ten recorded seeds and a tolerance. `another_seed` says whether a run of the same",
        f"recipe is one more of these seeds. In {control['repeats']} simulated experiments the seeds have the mean and",
        "covariance of the recorded ones, and the judged one is shifted by so many units: *different* at shift 0 should be at",
        "most 5%. The tolerance of each fifth of the steps covers 99% of simulated runs on other machines, where the toy model",
        "`starter` comes out differently. The last columns are real: each recorded seed is judged by the other nine, and runs",
        "on starters made without another tenth of the corpus with the tolerance that the others give.",
        "",
        *table(["control; metric", "tolerance of the fifths", *shifts, "recorded seeds", "newly made starters"], lines),
        "",
        "More real trainings: eight seeds each that others published, judged by the other seven (tolerance: a tenth of what",
        "their mean moves), other rounding, and trainers with one fault.",
        "",
        *csv_next_to_page("error_rates_controls.csv"),
        "",
    ]


def power_rows() -> list[list[str]]:
    """Work out the power table: deviations, and per cent of experiments in which 3, 5, 8, 10 and 20 pairs show it."""
    rows = []
    for d in (0.5, 1.0, 1.5, 2.0, 3.0):
        bounds = [(n, stats.t.ppf(0.975, n - 1)) for n in (3, 5, 8, 10, 20)]
        rows.append([f"{d:g}", *(f"{100 * stats.nct.sf(t, n - 1, d * np.sqrt(n)):.0f}" for n, t in bounds)])
    return rows


def provenance() -> list[tuple[str, str, str]]:
    """Say what made each result of the page."""
    result, control = measured("error_rates"), measured("control")
    asked = f"--repeats {result['repeats']} --seed {result['seed']} --out data/measured/error_rates.json"
    rates = f"--rates {control['repeats']} --out data/measured/control.json"
    gone = "`git show d662082:benchmarks/verdicts/control.py`, gone"
    return [
        ("simulated runs", f"`python -m benchmarks.error_rates {asked}`", made_with(result)),
        (
            "with `statistic=np.mean`",
            "`python -m benchmarks.error_rates --mean 1`",
            made_with(measured("error_rates_mean")),
        ),
        ("positive control", f"`python -m benchmarks.controls {rates}`", made_with(control)),
        ("other rounding, faults", gone, made_with(control["older"])),
    ]


def page() -> list[str]:
    """Make the lines of docs/evidence/error_rates.md."""
    result = measured("error_rates")
    seeds, means = (
        [[name, *(f"{100 * v:.1f}" for v in row.values())] for name, row in one["seed_interval"].items()]
        for one in (result, measured("error_rates_mean"))
    )
    again = measured("error_rates_mean")["shown_again"]
    shown = ", ".join(f"{100 * rate:.0f}% ({n} seeds)" for n, rate in again.items())
    return [
        "# How often the verdicts are wrong",
        "",
        "The library judges simulated runs, of which the truth is known. Rates are per cent of",
        f"{result['repeats']} experiments, so a rate of 5% is known to about "
        f"{196 * np.sqrt(0.05 * 0.95 / result['repeats']):.1f} points.",
        "",
        "## `another_seed`: is one run one more seed of others?",
        "",
        "Over 80 steps. The table has the lowest and the highest rate of all cases.",
        "",
        *table(["it", *_SEED_HEADS], _seeds_in_brief()),
        "",
        "Of one process at most 5% *different* is the aim; below three seeds it is never said. Never to learn, for one, can be",
        "a matter of luck: in up to 12.5% of cases 3 seeds share one outcome and the next run has another (5 seeds:",
        "7%, 8 seeds: 4%). So below 8 seeds a run that learns sooner, later, never or not for good is mostly inconclusive.",
        "",
        "- Dense rewards rise from -25 to -4 from the first step on. Each seed has its own offset (deviation 1) and noise at",
        "  each step: independent with deviation 1, or autoregressive, AR(0.8), driven by that noise. The tolerance is 5.",
        "- Sparse rewards jump from 0 to 1 around step 40, in each seed at its own step. The noise is 0.03, the tolerance 0.1.",
        "",
        *csv_next_to_page("error_rates.csv"),
        "",
        "## `change_interval`: one run, its last fifth less its first",
        "",
        "*Changed* is wrong: at most 8% at 80 steps of AR(0.8) is the aim. The true change should be inside in 95%. In a short",
        "run with much autocorrelation, noise looks like a trend: 20 steps are too few from 0.8 on, 40 at 0.9.",
        "",
        *csv_next_to_page("error_rates_change.csv"),
        "",
        "## `seed_interval`: the true mean of the seeds lies inside",
        "",
        "The aim is 95%; a t interval below 5 seeds, a bootstrap interval from 5 on. If one of five seeds fails, it holds the",
        "true mean far too seldom. Then report how many seeds fail, with `share_interval`.",
        "",
        *table(
            ["values", "2 seeds", "3", "4", "5", "10", "30"],
            [*([f"{name}: interquartile mean", *row] for name, *row in seeds)]
            + [[f"{name}: mean", *row] for name, *row in means],
        ),
        "",
        "## Power: the chance to see a difference of so many deviations",
        "",
        "The chance, in per cent, that the t interval of the mean of paired differences leaves out 0; exact for normal",
        "differences. `seeds_needed` answers the reverse question. Each `inconclusive` verdict names the difference that",
        f"would show in 80% of experiments; in simulated ones it does in {shown}.",
        "In 40 runs of Qwen3-8B on stock TRL 1.8, the difference of two arms in held-out score, on the same 500 questions,",
        "scatters by 0.84 to 1.36 points between seeds: one point takes 8 to 17 seeds.",
        "",
        *table(["deviations", *(f"{n} seeds" for n in (3, 5, 8, 10, 20))], power_rows()),
        "",
        *control_section(measured("control")),
        *made_section(provenance()),
    ]


def main() -> None:
    args = parser(__doc__, repeats=1000, seed=0, mean=0).parse_args()
    few = {"repeats": args.repeats, "seed": args.seed}
    if args.mean:  # of `seed_interval` with the mean alone
        shown = {str(n): shown_again(np.random.default_rng(args.seed), n, args.repeats) for n in (3, 5, 8, 10)}
        means = {"seed_interval": coverages(args.repeats, args.seed, np.mean), "shown_again": shown}
        return publish(few | means, args.out)
    publish(simulate(args.repeats, args.seed), args.out)


if __name__ == "__main__":
    main()
