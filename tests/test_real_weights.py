"""The experiment on real weights without its model: answers, the split, and what README and the baselines show of it."""

import gzip
import json

import pytest
from conftest import ROOT

from benchmarks import stop_string, tasks
from benchmarks.record import MEASURED, measured
from workbench.audit.report import audit_run
from workbench.curves.documented import as_text, load_baseline

RIGHT = ["<answer>8</answer>", "It is <answer> 8\n</answer>", "<answer>8</answer> or <answer>9</answer>"]
WRONG = ["<answer>9</answer> or <answer>8</answer>", "<answer>80</answer>", "<answer>8", "8", ""]


def test_first_whole_answer_is_rewarded_where_right():
    assert {tasks.reward_of(text, "8") for text in RIGHT} == {1.0}
    assert {tasks.reward_of(text, "8") for text in WRONG} == {0.0}


def test_no_held_out_question_is_trained_on_or_shown():
    train, held = tasks.rows()
    assert (len(train), len(held)) == (99, 99) and (train, held) == tasks.rows()  # the same at every call
    asked = [row["prompt"].rpartition("Question: ")[2] for row in train + held]
    assert len(set(asked)) == len(asked)
    shown = train[0]["prompt"].rpartition("Question: ")[0]
    assert shown.count("<answer>") == 2 and not any(question in shown for question in asked)


def collected_rows(file):
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def test_readme_shows_the_recorded_trainings_and_their_audit():
    recorded = measured("stop_string")["trainings"]
    assert {one["settings"]["arm"] for one in recorded} == set(stop_string.ARMS)
    assert all(one["held out"]["reward"][0] == pytest.approx(0.30, abs=0.01) for one in recorded)
    learned = [one["held out"]["reward"] for one in recorded if one["settings"]["arm"] != stop_string.STOCK_MASKED]
    after = [f"{min(shares):.0%} to {max(shares):.0%}" for shares in zip(*learned, strict=True)]
    masked = [one for one in recorded if one["settings"]["arm"] == stop_string.STOCK_MASKED]
    with_gradient = [norm > 0 for one in masked for norm in one["curves"]["gradient norm"]]
    for one in masked:
        last = max((step for step, norm in enumerate(one["curves"]["gradient norm"], 1) if norm), default=None)
        for step, share in zip(one["held out"]["step"], one["held out"]["reward"], strict=True):
            assert share == pytest.approx(0.30 if last is None or step < last else 0, abs=0.01)
    for one in masked:
        rows = collected_rows(
            MEASURED / "stop_string" / f"completions-stock-masked-seed-{one['settings']['seed']}.jsonl.gz"
        )
        for step in (n for n, norm in enumerate(one["curves"]["gradient norm"], 1) if norm):
            of_step = [row for row in rows if row["of"] == "training" and row["step"] == step]
            (kept,) = [row for row in of_step if row["finish_reason"] == "stop" and tasks.STOP not in row["completion"]]
            assert kept["reward"] == 0
    log = ROOT / "data/audit/masked_stops_gemma.jsonl"
    assert "masked-stops" in audit_run(log).problems
    readme = " ".join((ROOT / "README.md").read_text().split())
    differ = [share < 1 for one in masked for share in one["curves"]["groups without spread"]]
    assert f"In {sum(differ)} of the {len(differ)} blue steps there was something to learn" in readme
    assert f"Only {sum(with_gradient)} of these steps had a gradient" in readme
    assert f"with dips to {min(min(shares[1:]) for shares in learned):.0%} in between" in readme
    assert f"{after[1]} of the answers are right after ten steps and {after[-1]} after 60" in readme
    assert len(masked) == 3 and "three seeds of each arm" in readme


def test_baselines_of_the_arms_are_those_of_the_recorded_trainings():
    trainings = measured("stop_string")["trainings"]
    for arm in stop_string.ARMS:
        made = stop_string.baseline(arm, trainings)
        path = ROOT / "data" / "baselines" / f"{made['name']}.json"
        assert path.read_text(encoding="utf-8") == as_text(made)
        held = load_baseline(made["name"]).curves_by_seed("eval_accuracy")
        assert [len(curve.y) for curve in held] == [7, 7, 7]
