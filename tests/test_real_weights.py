"""The experiment on real weights without its model: answers, the split, records that go on, and what is collected."""

import gzip
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import record
from benchmarks.real_weights import choose_task, stop_string, tasks
from workbench.audit.report import audit_run
from workbench.curves.documented import as_text, load_baseline
from workbench.errors import RunError
from workbench.runs.files import read_json


@pytest.mark.parametrize(
    "right", ["<answer>8</answer>", "It is <answer> 8\n</answer>", "<answer>8</answer> or <answer>9</answer>"]
)
def test_the_first_whole_answer_that_is_right_is_rewarded(right):
    assert tasks.reward_of(right, "8") == 1.0


@pytest.mark.parametrize(
    "wrong", ["<answer>9</answer> or <answer>8</answer>", "<answer>80</answer>", "<answer>8", "8", ""]
)
def test_any_other_completion_is_not(wrong):
    assert tasks.reward_of(wrong, "8") == 0.0


@pytest.mark.parametrize("task", tasks.TASKS)
def test_no_held_out_question_is_trained_on_or_shown_as_an_example(task):
    train, held = tasks.rows(task, examples=2, held_out=100)
    assert len(train) >= 20 and 20 <= len(held) <= 100
    asked = [row["prompt"].rpartition("Question: ")[2] for row in train + held]
    assert len(set(asked)) == len(asked)
    shown = train[0]["prompt"].rpartition("Question: ")[0]
    assert shown.count("<answer>") == 2 and not any(question in shown for question in asked)


def test_two_orders_of_a_sum_are_on_one_side_of_the_split():
    def numbers(rows):
        return {tuple(sorted(row["prompt"].rpartition("What is ")[2].strip(" ?\n").split(" + "))) for row in rows}

    train, held = tasks.rows("sums of one digit", held_out=1000)
    assert (train, held) == tasks.rows("sums of one digit", held_out=1000)  # at every call
    assert not numbers(train) & numbers(held)


def test_an_interval_holds_its_share_and_stays_within_0_and_1():
    low, high = choose_task.interval(20, 100)
    assert 0.13 < low < 0.2 < high < 0.3
    assert choose_task.interval(0, 10)[0] == 0 and choose_task.interval(10, 10)[1] == 1


def training(folder, steps, *, seed=0, finished=True):
    """A made-up training: two completions a step, one of them truncated; right from step 2 on."""
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"arm": "stock-masked", "seed": seed}))
    for step in range(1, steps + 1):
        made = {"step": step, "prompt": "Question: 1?", "answer": "2", "tokens": 5}
        right = {"completion": "<answer>2</answer>", "finish_reason": "stop", "reward": float(step > 1)}
        cut = {"completion": "<answer>22", "finish_reason": "length", "reward": 0.0}
        stop_string.append(folder / "completions.jsonl", [made | right, made | cut])
        line = {"step": step, "completions/clipped_ratio": 1.0, "grad_norm": 0.0, "loss": 0.0, "num_tokens": 10 * step}
        line |= {"frac_reward_zero_std": 1.0, "sampling/sampling_logp_difference/mean": 0.001}
        stop_string.append(folder / "metrics.jsonl", [line])
    for step in range(0, steps + 1, 2):
        row = {"step": step, "question": 0, "finish_reason": "stop", "tokens": 5, "reward": 1.0}
        row |= {"completion": "", "answer": ""}
        stop_string.append(folder / "held_out.jsonl", [row, row | {"question": 1, "reward": 0.0}])
    if finished:
        (folder / "finished").touch()


def collected_rows(file):
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def test_finished_trainings_are_added_to_those_collected_before(tmp_path):
    training(tmp_path / "before" / "a", 2)
    training(tmp_path / "before" / "b", 2, seed=1)
    stop_string.collect(tmp_path / "before", tmp_path / "out")
    training(tmp_path / "in" / "c", 2, seed=2)
    training(tmp_path / "in" / "d", 4)  # seed 0 again
    training(tmp_path / "in" / "e", 3, seed=3, finished=False)
    summary = stop_string.collect(tmp_path / "in", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "stop_string.json").read_text()) == summary
    assert [(one["settings"]["seed"], one["steps"]) for one in summary["trainings"]] == [(0, 4), (1, 2), (2, 2)]
    again, *_ = summary["trainings"]
    assert again["curves"]["reward"] == [0, 0.5, 0.5, 0.5]
    assert again["curves"]["truncated"] == [0.5] * 4 and again["curves"]["logged clipped ratio"] == [1.0] * 4
    assert again["curves"]["tokens so far"] == [10, 20, 30, 40]
    assert again["held out"] == {"step": [0, 2, 4], "reward": [0.5] * 3, "truncated": [0] * 3, "tokens": [10] * 3}
    rows = collected_rows(tmp_path / "out" / "completions-d.jsonl.gz")
    assert len(rows) == 4 * 2 + 3 * 2 and {row["of"] for row in rows} == {"training", "held out"}


def test_collecting_twice_writes_the_same_bytes(tmp_path):
    training(tmp_path / "in" / "a", 2)
    contents = []
    for _ in range(2):
        stop_string.collect(tmp_path / "in", tmp_path / "out")
        contents.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()})
    assert contents[0] == contents[1]


def test_completions_of_a_step_that_was_not_finished_are_left_out(tmp_path):
    training(tmp_path / "in" / "a", 2)
    stop_string.append(tmp_path / "in" / "a" / "completions.jsonl", [{"step": 3, "reward": 1.0}])
    with (tmp_path / "in" / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')  # cut while it was written
    (collected,) = stop_string.collect(tmp_path / "in", tmp_path / "out")["trainings"]
    assert collected["steps"] == 2
    assert len(collected_rows(tmp_path / "out" / "completions-a.jsonl.gz")) == 2 * 2 + 2 * 2


def test_a_step_that_is_there_twice_is_refused(tmp_path):
    training(tmp_path / "in" / "a", 2)
    stop_string.append(tmp_path / "in" / "a" / "metrics.jsonl", [{"step": 2}])
    with pytest.raises(RunError, match=r"steps \[1, 2, 2\], expected each step once"):
        stop_string.collect(tmp_path / "in", tmp_path / "out")


def test_a_training_that_goes_on_forgets_what_came_after_its_checkpoint_and_a_new_one_begins_at_step_0(tmp_path):
    assert stop_string.last_checkpoint(tmp_path) == (0, None)
    training(tmp_path / "a", 5)
    for step in (2, 4):
        (tmp_path / "a" / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "checkpoint-2" / "complete").touch()  # 4 was cut while it was written
    step, checkpoint = stop_string.last_checkpoint(tmp_path / "a")
    assert (step, checkpoint.name) == (2, "checkpoint-2")
    stop_string.forget_after(tmp_path / "a", step)
    for name, expected in {"metrics": [1, 2], "completions": [1, 1, 2, 2], "held_out": [0, 0, 2, 2]}.items():
        assert [line["step"] for line in stop_string.read_lines(tmp_path / "a" / f"{name}.jsonl")] == expected


def model(folder, values):
    folder.mkdir()
    save_file({"weight": np.array(values, np.float32)}, folder / "model.safetensors")
    (folder / "provenance.json").write_text("{}")


def test_weights_that_are_cut_short_or_other_ones_are_refused(tmp_path):
    model(tmp_path / "right", [1.0, 2.0])
    known = record.weights_sha256(tmp_path / "right" / "model.safetensors")
    model(tmp_path / "other", [1.0, 3.0])
    with pytest.raises(RunError, match=f"expected {known}"):
        record.check_weights(tmp_path / "other", known)
    model(tmp_path / "cut", [1.0, 2.0])
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(RunError, match="cannot be read"):
        record.check_weights(tmp_path / "cut", known)
    with pytest.raises(RunError, match="no finished model"):
        record.check_weights(tmp_path / "nowhere", known)


def test_readme_says_what_the_recorded_trainings_show_and_the_audit_names_the_cause(tmp_path):
    recorded = json.loads((stop_string.OUT / "stop_string.json").read_text())["trainings"]
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
        rows = collected_rows(stop_string.OUT / f"completions-stock-masked-seed-{one['settings']['seed']}.jsonl.gz")
        for step in (n for n, norm in enumerate(one["curves"]["gradient norm"], 1) if norm):
            of_step = [row for row in rows if row["of"] == "training" and row["step"] == step]
            (kept,) = [row for row in of_step if row["finish_reason"] == "stop" and tasks.STOP not in row["completion"]]
            assert kept["reward"] == 0
    log = record.ROOT / "data/audit/masked_stops_gemma.jsonl"
    first = tmp_path / "metrics.jsonl"
    first.write_text(log.read_text().splitlines()[0] + "\n")
    assert all("masked-stops" in audit_run(path).problems for path in (log, first))
    readme = " ".join((record.ROOT / "README.md").read_text().split())
    assert f"a gradient in {sum(with_gradient)} of {len(with_gradient)} steps" in readme
    assert f"{after[1]} are right after ten steps and {after[-1]} after 60" in readme
    assert len(masked) == 3 and "three seeds of each arm" in readme


def test_the_baselines_of_the_arms_are_those_of_the_recorded_trainings():
    trainings = read_json(stop_string.OUT / "stop_string.json", {})["trainings"]
    for arm in stop_string.ARMS:
        made = stop_string.baseline(arm, trainings)
        path = record.ROOT / "data" / "baselines" / f"{made['name']}.json"
        assert path.read_text(encoding="utf-8") == as_text(made)
        held = load_baseline(made["name"]).curves_by_seed("eval_accuracy")
        assert [len(curve.y) for curve in held] == [7, 7, 7]
