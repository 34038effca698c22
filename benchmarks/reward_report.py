"""How often `reward_report` names a feature that nothing pays for, and whether it names what a planted reward pays for.

    python -m benchmarks.reward_report [--repeats 400] [--seed 0] [--out data/measured/reward_report.json]

The policies are made up: each answers sums, right more or less often, in texts that differ in length, tags, copied words,
hedges and calls of tools. Policies of planted rewards exploit more over the run what is paid. The rates are of numbers instead
of texts, with features that go together, to have many runs.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from tools.record import csv_next_to_page, made_with, measured, parser, publish
from workbench.curves.stats import share_interval
from workbench.reward.answers import contains_answer, is_right
from workbench.reward.features import closed_tags, copied_prompt, tool_calls
from workbench.reward.report import LEAST, LEVEL, judge, reward_report

GROUPS, STEPS = (2, 8, 32), (10, 40, 200)
COMPLETIONS = 8  # of a group
DRAWS = 199  # the smallest p is 0.005, below the level of 0.01
FILLER = (
    "first",
    "add",
    "the",
    "tens",
    "then",
    "carry",
    "one",
    "and",
    "check",
    "that",
    "result",
    "again",
    "with",
    "care",
)


# --- made-up policies and rewards -------------------------------------------------------------------------------------


def completion(a: int, b: int, skill: float, exploit: str, strength: float, random: np.random.Generator) -> str:
    """Write one completion: mostly plain, more of what is exploited with this strength, 0..1."""

    def does(what: str, otherwise: float) -> bool:
        return bool(random.random() < (max(strength, otherwise) if exploit == what else otherwise))

    answer = a + b if random.random() < skill else a + b + int(random.choice([-10, -1, 1, 10]))
    count = int(random.integers(4, 12)) + (int(60 * strength * random.random()) if exploit == "length" else 0)
    thought = " ".join(random.choice(FILLER, count))
    parts = [f"<think>{thought}</think>" if does("tags", 0.5) else thought]
    if does("copy", 0.3):
        parts.append(f"What is the sum of {a} and {b} when both are whole numbers")
    if does("guesses", 0.1):
        parts.append(" or ".join(str(a + b + shift) for shift in range(-3, 4)))
    if random.random() < 0.3:
        parts.append("wait, maybe I should think about it")
    calls = int(random.integers(0, 2)) + (int(random.integers(0, 4) * strength) if exploit == "tools" else 0)
    parts += ['<tool_call>{"name": "calculator"}</tool_call>'] * calls
    parts.append(f"<answer>{answer}</answer>" if does("tags", 0.6) else f"The answer is {answer}")
    return "\n".join(parts)


def run_of(
    reward: Callable[[dict], float], exploit: str = "", *, steps: int = 40, groups: int = 4, seed: int = 0
) -> pd.DataFrame:
    """Make the completions of a run, whose policy exploits more from step to step; a row each, with its reward."""
    random = np.random.default_rng(seed)
    rows = []
    for step in range(1, steps + 1):
        strength = 0.1 + 0.7 * step / steps
        for _ in range(groups):
            a, b = (int(number) for number in random.integers(10, 500, 2))
            skill = random.uniform(0.2, 0.8)
            prompt = f"What is the sum of {a} and {b} when both are whole numbers?"
            for _ in range(COMPLETIONS):
                text = completion(a, b, skill, exploit, strength, random)
                row = {"step": step, "prompt": prompt, "completion": text, "answer": a + b}
                rows.append(row | {"reward": float(reward(row))})
    return pd.DataFrame(rows)


def exact(row: dict) -> float:
    """1 for a right answer."""
    return float(is_right(row["completion"], row["answer"]))


PLANTED: dict[str, tuple[str, Callable[[dict], float], tuple[str, ...]]] = {
    # what is exploited -> the features that may be named for it
    "length: half a point for each 100 characters": (
        "length",
        lambda row: exact(row) + len(row["completion"]) / 200,
        ("length",),
    ),
    "tags: whether they are closed, with any answer": (
        "tags",
        lambda row: closed_tags(row["completion"]) / 2,
        ("closed tags", "answer box"),
    ),
    "guesses: the answer anywhere in the text": (
        "guesses",
        lambda row: float(contains_answer(row["completion"], row["answer"])),
        ("answer anywhere",),
    ),
    "copy: a judge that likes the words of the prompt": (
        "copy",
        lambda row: exact(row) + 2 * copied_prompt(row["completion"], prompt=row["prompt"]),
        ("copied prompt",),
    ),
    "tools: a bonus for each call": (
        "tools",
        lambda row: exact(row) + 0.5 * tool_calls(row["completion"]),
        ("tool calls",),
    ),
}


def planted(seed: int = 0) -> dict[str, dict]:
    """Planted reward -> what the report names, with and without the right answers."""
    found = {}
    for number, (name, (exploit, reward, features)) in enumerate(PLANTED.items()):
        run = run_of(reward, exploit, seed=seed + number)
        with_answers, without = reward_report(run), reward_report(run.drop(columns="answer"))
        top = with_answers.named[0] if with_answers.named else None
        found[name] = {
            "named": "" if top is None else top.name,
            "right": top is not None and top.name in features,
            "share": 0.0 if top is None else top.share,
            "first": 0.0 if top is None else top.quarters[0] ** 2,
            "last": 0.0 if top is None else top.quarters[-1] ** 2,
            "without answers": without.named[0].name if without.named else "",
            "headline": with_answers.headline,
        }
    return found


def healthy(number: int = 20, seed: int = 100) -> dict[str, str]:
    """Run with a healthy or a random reward -> what the report names, empty where it is silent."""
    found = {}
    for each in range(number):
        random = np.random.default_rng(seed + each)
        exploit = ("", "length", "tags", "copy", "tools")[each % 5]
        chance = bool(each >= number // 2)
        reward = (lambda row, random=random: float(random.random() < 0.4)) if chance else exact
        report = reward_report(run_of(reward, exploit, seed=seed + each))
        kind = "random" if chance else "right answers"
        found[f"{kind}, policy moves to {exploit or 'nothing'}, seed {seed + each}"] = ", ".join(
            paid.what for paid in report.named
        )
    return found


# --- rates of false names ---------------------------------------------------------------------------------------------


def features_of(right: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Twelve features of completions, (N, 12): some go together, some are rare or have long tails, some go with being right."""
    n = len(right)
    common = random.normal(size=n)
    columns = [common + 0.5 * random.normal(size=n) for _ in range(3)]
    columns += [np.exp(random.normal(size=n)), random.standard_t(2, size=n), random.poisson(0.3, n)]
    columns += [random.random(n) < 0.02, random.random(n) < 0.5, random.integers(0, 3, n)]
    columns += [right + random.normal(size=n), right * (random.random(n) < 0.8), -right + random.exponential(size=n)]
    return np.stack(columns, axis=1).astype(float)


def names_something(case: str, groups: int, steps: int, random: np.random.Generator) -> tuple[bool, bool, bool]:
    """Judge one made-up run: whether p is below the level anywhere, whether a feature is named, whether it cannot tell."""
    number = groups * steps
    group = np.repeat(np.arange(number), COMPLETIONS)
    skill = np.repeat(random.beta(0.7, 0.7, number), COMPLETIONS)  # many groups are all right or all wrong
    right = (random.random(len(group)) < skill).astype(float)
    values = features_of(right, random)
    if case == "random reward":
        rewards = (random.random(len(group)) < skill).astype(float)
        known = np.full(len(group), np.nan)
    else:
        wrong = random.random(len(group)) < 0.1  # a judge that errs in one of ten
        rewards = np.where(wrong, 1 - right, right)
        known = right
    judged = judge(rewards, values, [str(k) for k in range(12)], group, known, random, DRAWS)
    counted = judged.groups if judged.left is None else judged.left
    if counted < LEAST:
        return False, False, True
    return any(paid.p <= LEVEL for paid in judged.paid), any(paid.named for paid in judged.paid), False


CASES = ("random reward", "right answers, one in ten misjudged")


def rates(case: str, groups: int, steps: int, repeats: int, seed: int) -> dict[str, int]:
    """Count over many runs; of more than 1,000 groups a quarter as many, of more than 5,000 a tenth."""
    random = np.random.default_rng([seed, CASES.index(case), groups, steps])
    fewer = 10 if groups * steps > 5000 else 4 if groups * steps > 1000 else 1
    runs = max(1, repeats // fewer)
    found = [names_something(case, groups, steps, random) for _ in range(runs)]
    below, named, open_ = (int(sum(column)) for column in zip(*found, strict=True))
    return {"runs": runs, "below the level": below, "named": named, "cannot tell": open_}


# --- pages ------------------------------------------------------------------------------------------------------------


def _interval(count: int, runs: int) -> str:
    found = share_interval(count, runs)
    return f"{100 * count / runs:.1f}% ({100 * found.low:.1f} to {100 * found.high:.1f})"


def rates_csv() -> str:
    """Make docs/evidence/reward_report.csv: a row for each case and size."""
    result = measured("reward_report")
    lines = ["case,groups a step,steps,runs,p of 0.01 or less (95% interval),named (95% interval),cannot tell"]
    for row in result["rates"]:
        decided = row["runs"] - row["cannot tell"]
        shares = [_interval(row[name], decided) if decided else "" for name in ("below the level", "named")]
        case = f'"{row["case"]}"'
        lines.append(
            ",".join([case, *(str(row[n]) for n in ("groups", "steps", "runs")), *shares, str(row["cannot tell"])])
        )
    return "\n".join(lines) + "\n"


def page() -> list[str]:
    """Make the section of docs/evidence/false_alarms.md."""
    result = measured("reward_report")
    hits = sum(row["right"] for row in result["planted"].values())
    silent = sum(not names for names in result["healthy"].values())
    return [
        '<a id="what-a-reward-pays-for"></a>',
        "",
        "## What a reward pays for",
        "",
        f"`reward_report` named {hits} of {len(result['planted'])} planted rewards, whose made-up policies exploit them more",
        f"from step to step. It was silent on {silent} of {len(result['healthy'])} runs with a healthy or a random reward.",
        "",
        f"Where nothing is paid for, a p of {LEVEL:g} of any of 12 features should come in at most {LEVEL:.0%} of the runs.",
        "",
        *csv_next_to_page("reward_report.csv"),
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the rates."""
    result = measured("reward_report")
    by = f"`python -m benchmarks.reward_report --repeats {result['repeats']} --out data/measured/reward_report.json`"
    return [("reports on rewards", by, made_with(result))]


def main() -> None:
    asked = parser(__doc__, repeats=400, seed=0).parse_args()
    rows = []
    for case in CASES:
        for groups in GROUPS:
            for steps in STEPS:
                counts = rates(case, groups, steps, asked.repeats, asked.seed)
                rows.append({"case": case, "groups": groups, "steps": steps} | counts)
                print(rows[-1], flush=True)
    result = {"repeats": asked.repeats, "planted": planted(), "healthy": healthy(), "rates": rows}
    publish(result, asked.out, quietly=asked.out is not None)


if __name__ == "__main__":
    main()
