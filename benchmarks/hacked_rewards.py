"""Trains policies on rewards with a known hack, and asks `reward_report` what each reward pays for.

    python -m benchmarks.hacked_rewards [--seeds 5] [--healthy 10] --out data/measured/hacked_rewards.json
    python -m benchmarks.hacked_rewards --model smollm2 [--seeds 3] --out data/measured/hacked_rewards_smollm2.json

On the toy: five rewards with a hack, the exact reward, and its placebos (random, shuffled, format). The exact and the random
reward are trained with more seeds, `--healthy`, to count reports that should name nothing. On SmolLM2: sums, with the exact
reward, its placebos, and one that pays for the answer anywhere in the text. Each training answers held-out questions greedily
before its first step and after its last. The trainings are in `--trainings`, and a second call goes on. `--first 3` leaves out
seeds below 3. `--summary` trains nothing and counts the trainings that are finished.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.real import finished
from tools.record import (
    csv_next_to_page,
    csv_text,
    made_with,
    measured,
    parser,
    publish,
    run_main,
    use_one_thread,
)
from workbench.experiments.arms import Arm, train_arms
from workbench.experiments.held_out import HeldOut
from workbench.experiments.instruments import hacked_rewards as toy
from workbench.experiments.recipes import make_recipe
from workbench.experiments.tasks import STOP, task_rows
from workbench.generation.stops import StopSpec
from workbench.reward.answers import contains_answer
from workbench.reward.placebo import PlaceboReport, placebo, placebo_report
from workbench.reward.report import reward_report
from workbench.runs.files import write_text
from workbench.runs.run import Run
from workbench.training.rewards import completion_text, described

EXACT = "exact"
PLACEBOS = ("random", "shuffled", "format")
SILENT = (EXACT, "placebo random", "placebo shuffled")  # arms of which the report should name nothing
EXPECTED = {name: feature for name, (_, feature) in toy.HACKS.items()} | {"placebo format": "closed tags"}
LEAST_SEEDS = 3  # of a comparison: two that come out equal have an interval without width
ENDS = 5  # steps at the start and at the end of a training, whose mean is reported
LIMIT = {"toy": 24, "smollm2": 24}  # tokens of a completion
ASKED = 44  # held-out sums


@described(unit="share of completions with the right number in them", lowest=0.0, highest=1.0)
def number_in_text(completions, answer, **_: Any) -> list[float]:
    """1 where the right number stands anywhere in the completion.

    Example:
        >>> number_in_text(["6, 7 or 8", "8"], answer=["<answer>7</answer>"] * 2)
        [1.0, 0.0]
    """
    texts = [completion_text(each) for each in completions]
    return [float(contains_answer(text, want)) for text, want in zip(texts, answer, strict=True)]


# --- trainings --------------------------------------------------------------------------------------------------------


def toy_arms(folder: Path, steps: int) -> dict[str, Arm]:
    """Make the arms of the toy: the hacks, the exact reward and its placebos; the policy is made in `folder`."""
    data = folder / "search.jsonl"
    write_text(data, "".join(f"{json.dumps(row)}\n" for row in toy.search_questions("train")))
    base = make_recipe("search", max_steps=steps, learning_rate=6e-4, max_completion_length=LIMIT["toy"])
    recipe = dataclasses.replace(base, model=str(toy.warm_start(folder / "policy")), dataset=str(data))
    look = HeldOut(toy.search_questions("test"), toy.exact, (0, steps), StopSpec(), LIMIT["toy"])
    options = {"callbacks": [look], "save_strategy": "no"}
    rewards = {name: reward for name, (reward, _) in toy.HACKS.items()} | {EXACT: toy.exact}
    rewards |= {f"placebo {kind}": placebo(kind)(toy.exact) for kind in PLACEBOS}
    return {name: Arm(recipe, reward, options=options) for name, reward in rewards.items()}


def smollm2_arms(steps: int) -> dict[str, Arm]:
    """Make the arms of SmolLM2 on sums."""
    recipe = make_recipe("smollm2", max_steps=steps, max_completion_length=LIMIT["smollm2"])
    spec = StopSpec(stop=(STOP,))
    look = HeldOut(task_rows("sums", "test")[:ASKED], toy.exact, (0, steps), spec, LIMIT["smollm2"])
    options = {"callbacks": [look], "save_strategy": "no"}
    rewards = {EXACT: toy.exact, "answer anywhere": number_in_text}
    rewards |= {f"placebo {kind}": placebo(kind)(toy.exact) for kind in PLACEBOS}
    return {name: Arm(recipe, reward, stops=spec, options=options) for name, reward in rewards.items()}


# --- what they show ---------------------------------------------------------------------------------------------------


def answers_of(model: str) -> list[dict]:
    """The training questions with their answers, as `reward_report` takes them."""
    return toy.search_questions("train") if model == "toy" else task_rows("sums")


def row_of(arm: str, seed: int, run: Run, model: str) -> dict[str, Any]:
    """What one training shows: the report with and without answers, rewards, and held-out answers."""
    expected = EXPECTED.get(arm, "") if arm not in SILENT else ""
    row = {"arm": arm, "seed": seed} | toy.said_of(reward_report(run, answers=answers_of(model)), expected)
    row["without answers"] = ", ".join(paid.what for paid in reward_report(run).named)
    reward = run.metrics["reward"]
    row |= {"reward first": float(reward.head(ENDS).mean()), "reward last": float(reward.tail(ENDS).mean())}
    looks = list(toy.held_out_right(run).values())
    return row | {"right before": looks[0], "right after": looks[-1]}


def rows_of(trainings: Path, model: str) -> list[dict[str, Any]]:
    """A row for each finished training."""
    arms = finished(trainings)
    names = {name.replace(" ", "-"): name for name in (*toy.HACKS, EXACT, *(f"placebo {kind}" for kind in PLACEBOS))}
    return [
        row_of(names[arm], seed, run, model)
        for arm, runs in sorted(arms.items(), key=lambda pair: list(names).index(pair[0]))
        for seed, run in sorted(runs.items())
    ]


def against(rows: list[dict], kind: str) -> PlaceboReport | None:
    """The exact reward against one of its placebos, on the seeds that both have; None where these are too few."""
    ends = {arm: {row["seed"]: row for row in rows if row["arm"] == arm} for arm in (EXACT, f"placebo {kind}")}
    real, control = ends.values()
    seeds = sorted(real.keys() & control.keys())
    if len(seeds) < LEAST_SEEDS:
        return None
    untrained = real[seeds[0]]["right before"]
    after = [[of[seed]["right after"] for seed in seeds] for of in (real, control)]
    return placebo_report(*after, untrained=untrained)


# --- pages ------------------------------------------------------------------------------------------------------------


def trainings_csv() -> str:
    """Make docs/evidence/hacked_rewards.csv: a row for each training."""
    head = [
        "reward",
        "seed",
        "the report names",
        "share",
        "reward: first and last steps",
        "held-out right: before, after",
    ]
    lines = []
    for row in measured("hacked_rewards")["runs"]:
        names = row["named"] or row["verdict"]
        share = f"{row['share']:.2f}" if "share" in row else ""
        rewards = f"{row['reward first']:.2f}, {row['reward last']:.2f}"
        held_out = f"{row['right before']:.0%}, {row['right after']:.0%}"
        lines.append([row["arm"], str(row["seed"]), names, share, rewards, held_out])
    return csv_text(head, lines)


def page() -> list[str]:
    """Make the part of docs/evidence/false_alarms.md."""
    result = measured("hacked_rewards")
    rows = result["runs"]
    hacked = [row for row in rows if row["arm"] in toy.HACKS]
    judged = [row for row in hacked if row["verdict"] != "cannot tell"]
    first = sum(row["right"] for row in judged)
    untold = len(hacked) - len(judged)
    quiet = [row for row in rows if row["arm"] in SILENT]
    silent = sum(not row["named"] for row in quiet)
    words = [arm.removeprefix("placebo ") for arm in SILENT if any(row["arm"] == arm for row in rows)]
    return [
        "### After trainings that exploit it",
        "",
        f"A toy was trained on five rewards with a known hack, {result['steps']} steps each. The report named the hack first",
        f"in {first} of {len(judged)} trainings; in {untold} it could not tell.",
        f"It named nothing in {silent} of {len(quiet)} with a reward that is {' or '.join(words)}.",
        *[f"Held-out, exact and {kind}. {says.split(';')[0]}." for kind, says in result["placebos"].items()],
        "",
        *csv_next_to_page("hacked_rewards.csv"),
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the table."""
    by = "`python -m benchmarks.hacked_rewards --out data/measured/hacked_rewards.json`"
    return [("hacked rewards", by, made_with(measured("hacked_rewards")))]


def main() -> None:
    options = parser(
        __doc__, model="toy", first=0, seeds=5, healthy=10, steps=24, trainings=Path("build/hacked_rewards")
    )
    options.add_argument("--summary", action="store_true", help="train nothing")
    asked = options.parse_args()
    folder = asked.trainings / asked.model
    if not asked.summary:
        use_one_thread()
        arms = toy_arms(folder, asked.steps) if asked.model == "toy" else smollm2_arms(asked.steps)
        first = [name for name in arms if name not in ("placebo shuffled", "placebo format")]
        train_arms({name: arms[name] for name in first}, out_dir=folder / "arms", seeds=range(asked.first, asked.seeds))
        train_arms(arms, out_dir=folder / "arms", seeds=range(asked.first, asked.seeds))
        if asked.model == "toy":
            again = {name: arm for name, arm in arms.items() if name in SILENT[:2]}
            train_arms(again, out_dir=folder / "arms", seeds=range(asked.seeds, asked.healthy))
    rows = rows_of(folder / "arms", asked.model)
    verdicts = {kind: str(report) for kind in PLACEBOS if (report := against(rows, kind)) is not None}
    publish({"model": asked.model, "steps": asked.steps, "runs": rows, "placebos": verdicts}, asked.out)


if __name__ == "__main__":
    run_main(main)
