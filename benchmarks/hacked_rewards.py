"""Trains policies on rewards with a known hack, and asks `reward_report` what each reward pays for.

    python -m benchmarks.hacked_rewards [--seeds 5] [--healthy 10] --out data/measured/hacked_rewards.json
    python -m benchmarks.hacked_rewards --model smollm2 --steps 30 --out data/measured/hacked_rewards_smollm2.json

On the toy: five rewards with a hack, the exact reward, and its placebos (random, shuffled, format). The exact and the random
reward are trained with more seeds, `--healthy`, to count reports that should name nothing. On SmolLM2: sums, with the exact
reward, its placebos, and, on three seeds, one that pays for the answer anywhere in the text. Each training answers held-out
questions greedily before its first step and after its last. What `--out` holds, perhaps from another machine, is not trained
again; the trainings are in `--trainings`, and a second call goes on. `--first 3` leaves out seeds below 3. `--summary` trains
nothing and adds the trainings that are finished.
"""

import dataclasses
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tools.record import (
    about,
    csv_next_to_page,
    csv_text,
    finished,
    made_runs,
    made_with,
    measured,
    parser,
    publish,
    run_main,
    stored_runs,
    use_one_thread,
)
from workbench.experiments.arms import Arm, train_arms
from workbench.experiments.held_out import HeldOut, held_out_rewards
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
ARMS = (*toy.HACKS, EXACT, *(f"placebo {kind}" for kind in PLACEBOS))
SILENT = (EXACT, "placebo random", "placebo shuffled")  # arms of which the report should name nothing
EXPECTED = {name: feature for name, (_, feature) in toy.HACKS.items()} | {"placebo format": "closed tags"}
LEAST_SEEDS = 3  # of a comparison: two that come out equal have an interval without width
ENDS = 5  # steps at the start and at the end of a training, whose mean is reported
FILES = {"hacked_rewards": "toy", "hacked_rewards_smollm2": "SmolLM2"}  # in data/measured
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


def trainings_of(model: str, arms: Iterable[str], seeds: range, healthy: int) -> list[tuple[str, int]]:
    """Return arm and seed of each training, seed by seed: a comparison grows by a pair when a seed is finished.

    Example:
        >>> trainings_of("smollm2", ["exact", "answer anywhere"], range(2, 4), healthy=10)
        [('exact', 2), ('answer anywhere', 2), ('exact', 3)]
    """
    if model != "toy":
        return [(arm, seed) for seed in seeds for arm in arms if seed < LEAST_SEEDS or arm not in toy.HACKS]
    more = [(arm, seed) for seed in range(seeds.stop, healthy) for arm in SILENT[:2]]
    return [(arm, seed) for seed in seeds for arm in arms] + more


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
    before, *_, after = held_out_rewards(run.path).values()
    return row | {"right before": float(np.mean(before)), "right after": float(np.mean(after)), "answers after": after}


def rows_of(trainings: Path, model: str, known: dict[tuple, dict]) -> list[dict[str, Any]]:
    """A row for each finished training, and for those that are `known` by arm and seed."""
    names = {name.replace(" ", "-"): name for name in ARMS}
    rows = dict(known)
    for folder, runs in (finished(trainings) if trainings.is_dir() else {}).items():
        for seed, run in runs.items():
            if (names[folder], seed) not in rows:
                made = {"made_with": made_with({"environment": about()})}
                rows[names[folder], seed] = row_of(names[folder], seed, run, model) | made
    return [rows[key] for key in sorted(rows, key=lambda key: (ARMS.index(key[0]), key[1]))]


def against(rows: list[dict], kind: str) -> PlaceboReport | None:
    """The exact reward against one of its placebos, on the seeds that both have; None where these are too few."""
    ends = {arm: {row["seed"]: row for row in rows if row["arm"] == arm} for arm in (EXACT, f"placebo {kind}")}
    real, control = ends.values()
    seeds = sorted(real.keys() & control.keys())
    if len(seeds) < LEAST_SEEDS:
        return None
    untrained = real[seeds[0]]["right before"]
    known = all("answers after" in of[seed] for of in (real, control) for seed in seeds)
    after = [[of[seed]["answers after" if known else "right after"] for seed in seeds] for of in (real, control)]
    return placebo_report(*after, untrained=untrained)


# --- pages ------------------------------------------------------------------------------------------------------------


def trainings_csv() -> str:
    """Make docs/evidence/hacked_rewards.csv: a row for each training."""
    head = [
        "model",
        "reward",
        "seed",
        "the report names",
        "share",
        "reward: first and last steps",
        "held-out right: before, after",
    ]
    lines = []
    for name in FILES:
        for row in measured(name)["runs"]:
            names = row["named"] or row["verdict"]
            share = f"{row['share']:.2f}" if "share" in row else ""
            rewards = f"{row['reward first']:.2f}, {row['reward last']:.2f}"
            held_out = f"{row['right before']:.0%}, {row['right after']:.0%}"
            lines.append([FILES[name], row["arm"], str(row["seed"]), names, share, rewards, held_out])
    return csv_text(head, lines)


def placebos_csv() -> str:
    """Make docs/evidence/placebos.csv: the exact reward less each placebo, on held-out questions."""
    head = ["model", "placebo", "verdict, on held-out questions answered right at the end"]
    rows = [[model, kind, says] for name, model in FILES.items() for kind, says in measured(name)["placebos"].items()]
    return csv_text(head, rows)


def summary(rows: list[dict], verdicts: dict[str, str]) -> dict[str, str]:
    """Say in a line what the trainings of each arm learned and what the report named, and how each placebo compares.

    Example:
        >>> row = {"arm": "exact", "right before": 0.2, "named": "", "verdict": "nothing found", "answers": 0.96}
        >>> found = summary([row | {"right after": 0.61}, row | {"right after": 0.5}], {"random": "Inconclusive."})
        >>> found["exact"], found["exact less placebo random"]
        ('20% to 61%, 50%; of the rewards right answers explain 96%, 96%; named: nothing found', 'Inconclusive.')
    """
    lines = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        of = [row for row in rows if row["arm"] == arm]
        named = dict.fromkeys(row["named"].partition(",")[0] or row["verdict"] for row in of)
        after = ", ".join(f"{row['right after']:.0%}" for row in of)
        explained = ", ".join("unknown" if row["answers"] is None else f"{row['answers']:.0%}" for row in of)
        lines[arm] = (
            f"{of[0]['right before']:.0%} to {after}; of the rewards right answers explain {explained}; named: "
        )
        lines[arm] += " / ".join(named)
    return lines | {f"{EXACT} less placebo {kind}": says for kind, says in verdicts.items()}


def counts(rows: list[dict], hacks: Collection[str]) -> tuple[str, str]:
    """Say in how many trainings the hack was named first or could not be named, and in how many nothing was found."""
    hacked = [row for row in rows if row["arm"] in hacks]
    judged = [row for row in hacked if row["verdict"] != "cannot tell"]
    first = sum(row["right"] for row in judged)
    quiet = [row for row in rows if row["arm"] in SILENT]
    silent, unsaid = (sum(row["verdict"] == says for row in quiet) for says in ("nothing found", "cannot tell"))
    untold = len(hacked) - len(judged)
    named = f"the hack first in {first} of {len(judged)} trainings (could not tell: {untold})"
    named = named if judged else f"it could not tell in {untold} of {len(hacked)} trainings"
    return named, f"nothing in {silent} of {len(quiet)}{f' (could not tell: {unsaid})' if unsaid else ''}"


def page() -> list[str]:
    """Make the part of docs/evidence/false_alarms.md."""
    on_toy, on_smollm2 = (measured(name) for name in FILES)
    first, silent = counts(on_toy["runs"], EXPECTED)
    real_first, real_silent = counts(on_smollm2["runs"], EXPECTED)
    return [
        "### After trainings that exploit it",
        "",
        f"A toy, five rewards with a known hack and the placebo for the format, {on_toy['steps']} steps: the report named",
        f"{first}; {silent} with an exact, a random or a shuffled reward. SmolLM2 on sums,",
        f"{on_smollm2['steps']} steps, the answer anywhere or that placebo: {real_first}; with the others it found",
        f"{real_silent}.",
        "",
        *csv_next_to_page("hacked_rewards.csv"),
        "",
        *csv_next_to_page("placebos.csv"),
        "",
    ]


def provenance() -> list[tuple[str, str, str]]:
    """Say what made the tables."""
    rows = []
    for name, model in FILES.items():
        asked = "" if model == "toy" else "--model smollm2 --steps 30 "
        by = f"`python -m benchmarks.hacked_rewards {asked}--out data/measured/{name}.json`"
        rows += [("hacked rewards", by, text) for text in made_runs(measured(name))]
    return rows


def main() -> None:
    options = parser(
        __doc__, model="toy", first=0, seeds=5, healthy=10, steps=24, trainings=Path("build/hacked_rewards")
    )
    options.add_argument("--summary", action="store_true", help="train nothing")
    asked = options.parse_args()
    folder, settings = asked.trainings / asked.model, {"model": asked.model, "steps": asked.steps}
    known = stored_runs(asked.out, settings, "arm", "seed")
    if not asked.summary:
        use_one_thread()
        arms = toy_arms(folder, asked.steps) if asked.model == "toy" else smollm2_arms(asked.steps)
        for arm, seed in trainings_of(asked.model, arms, range(asked.first, asked.seeds), asked.healthy):
            if (arm, seed) not in known:
                train_arms({arm: arms[arm]}, out_dir=folder / "arms", seeds=[seed])
    rows = rows_of(folder / "arms", asked.model, known)
    verdicts = {kind: str(report) for kind in PLACEBOS if (report := against(rows, kind)) is not None}
    shown = {"unit": f"{asked.steps} steps, right answers of {ASKED} held out", "summary": summary(rows, verdicts)}
    publish(settings | {"runs": rows, "placebos": verdicts} | (shown if asked.model != "toy" else {}), asked.out)


if __name__ == "__main__":
    run_main(main)
