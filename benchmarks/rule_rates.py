"""How often the audit's rules about parts, wasted groups and endings speak without a cause: on made-up and on real logs.

    python -m benchmarks.rule_rates [--repeats 1000] [--seed 0] [--out data/measured/rule_rates.json]

A made-up log has a reward, a truncated share or parts with autoregressive noise of 0.8, over 40 or 200 steps. The real ones are
the healthy controls of `tests/audit/corpus/`.
"""

import json
from collections.abc import Callable

import numpy as np
import pandas as pd

from benchmarks.audit import CORPUS
from benchmarks.false_alarms import rate
from tools.record import made_with, measured, parser, publish, table
from workbench.audit.finding import FOUND
from workbench.audit.report import audit_run
from workbench.audit.rules_ends import reward_is_ending
from workbench.audit.rules_gradient import wasted_groups
from workbench.audit.rules_reward import reward_parts
from workbench.logs.log import Log

RULES = (reward_parts, wasted_groups, reward_is_ending)
STEPS = (40, 200)


def noise(steps: int, random: np.random.Generator) -> np.ndarray:
    """Autoregressive noise of deviation 1, AR(0.8), (N,)."""
    values = random.normal(size=steps + 50)
    for step in range(1, len(values)):
        values[step] = 0.8 * values[step - 1] + 0.6 * values[step]
    return values[50:]


def made_up(steps: int, **metrics: np.ndarray) -> Log:
    return Log("made up", "CSV", pd.DataFrame({"step": np.arange(1.0, steps + 1)} | metrics))


def flat_parts(steps: int, random: np.random.Generator) -> Log:
    """Two parts of the reward that only scatter."""
    parts = {f"rewards/{name}": 0.5 + 0.05 * noise(steps, random) for name in "ab"}
    return made_up(steps, reward=parts["rewards/a"] + parts["rewards/b"], **parts)


def one_part_rises(steps: int, random: np.random.Generator) -> Log:
    """Two parts, of which one rises by six deviations of its noise."""
    rise, rest = (0.5 + 0.05 * noise(steps, random) for _ in range(2))
    rise = rise + np.linspace(0, 0.3, steps)
    return made_up(steps, reward=rise + rest, **{"rewards/a": rise, "rewards/b": rest})


def of_groups(mean: float) -> Callable[[int, np.random.Generator], Log]:
    """Eight groups a step, each with equal rewards by a chance that has this mean; the reward has nothing to do with it."""

    def log(steps: int, random: np.random.Generator) -> Log:
        chance = np.clip(mean + 0.1 * noise(steps, random), 0, 1)
        return made_up(steps, reward=0.5 + 0.1 * noise(steps, random), zero_std_share=random.binomial(8, chance) / 8)

    return log


def of_endings(right: float, dependent: bool) -> Callable[[int, np.random.Generator], Log]:
    """32 completions a step, 30% of them truncated; truncated ones are wrong, or as often right as others."""

    def log(steps: int, random: np.random.Generator) -> Log:
        cut = random.binomial(32, np.clip(0.3 + 0.1 * noise(steps, random), 0.02, 0.9))
        solved = random.binomial(32 - cut if dependent else 32, np.clip(right + 0.05 * noise(steps, random), 0, 1))
        lengths = {"mean_length": np.full(steps, 900.0), "max_length": np.full(steps, 1024.0)}
        return made_up(steps, reward=solved / 32, clipped_ratio=cut / 32, **lengths)

    return log


CASES = {  # what the log is -> how it is made, the rule that is asked, whether it should speak
    "two parts, both flat": (flat_parts, reward_parts, False),
    "two parts, one rises": (one_part_rises, reward_parts, True),
    "20% of the groups are equal": (of_groups(0.2), wasted_groups, False),
    "half of the groups are equal": (of_groups(0.5), wasted_groups, True),
    "70% of the groups are equal": (of_groups(0.7), wasted_groups, True),
    "30% truncated, half are right whether truncated or not": (of_endings(0.5, False), reward_is_ending, False),
    "30% truncated, these wrong, half of the others right": (of_endings(0.5, True), reward_is_ending, False),
    "30% truncated, these wrong, 95% of the others right": (of_endings(0.95, True), reward_is_ending, True),
}


def spoken(case: str, steps: int, repeats: int, seed: int) -> int:
    """In how many of the logs the rule spoke of what it looks for; of parts, said that one rises or falls."""
    make, rule, _ = CASES[case]
    random, count = np.random.default_rng(seed), 0
    for _ in range(repeats):
        finding = rule(make(steps, random))
        count += finding.verdict == FOUND and (
            rule is not reward_parts or "rise" in finding.says or "fall" in finding.says
        )
    return count


def on_controls() -> dict[str, list[str]]:
    """Rule -> the healthy runs of the corpus of which it says something."""
    manifest = json.loads((CORPUS / "manifest.json").read_text())
    healthy = [name for name, known in manifest.items() if known["rule"] is None]
    found: dict[str, list[str]] = {rule.name: [] for rule in RULES}
    for name in healthy:
        (run,) = audit_run(CORPUS / name, **manifest[name]["given"]).runs
        for finding in run.findings:
            if finding.rule in found and finding.verdict == FOUND:
                found[finding.rule].append(f"{name}: {finding.severity}")
    return found | {"of": healthy}


def page() -> list[str]:
    """Make the section of docs/evidence/false_alarms.md."""
    result = measured("rule_rates")
    repeats, of = result["repeats"], len(result["controls"]["of"])
    lines = [
        [case, CASES[case][1].name, "yes" if CASES[case][2] else "no", *(f"{100 * n / repeats:.1f}" for n in counts)]
        for case, counts in result["cases"].items()
    ]
    controls = []
    for rule in RULES:
        spoke = result["controls"][rule.name]
        warned = [run for run in spoke if not run.endswith("note")]
        controls.append([rule.name, rate(len(warned), of), f"{len(spoke) - len(warned)}"])
    return [
        "## Rules about parts, wasted groups and endings",
        "",
        "Three rules judge made-up logs with autoregressive noise, AR(0.8), and the 36 healthy",
        f"controls of `tests/audit/corpus/`. Rates are per cent of {repeats} logs; where nothing should be found, the aim is",
        f"5% at most (± {196 * (0.05 * 0.95 / repeats) ** 0.5:.1f} points).",
        "",
        *table(["the log", "rule", "should it be found?", *(f"{steps} steps" for steps in STEPS)], lines),
        "",
        *table(["rule", "controls with a warning or a problem", "with a note"], controls),
        "",
        "The findings of `wasted-groups` are true: these controls have that many groups with equal rewards.",
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the rates."""
    result = measured("rule_rates")
    by = f"`python -m benchmarks.rule_rates --repeats {result['repeats']} --out data/measured/rule_rates.json`"
    return [("three rules", by, made_with(result))]


def main() -> None:
    asked = parser(__doc__, repeats=1000, seed=0).parse_args()
    cases = {case: [spoken(case, steps, asked.repeats, asked.seed) for steps in STEPS] for case in CASES}
    publish({"repeats": asked.repeats, "cases": cases, "controls": on_controls()}, asked.out, quietly=True)


if __name__ == "__main__":
    main()
