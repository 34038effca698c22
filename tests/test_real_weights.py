"""The experiment on real weights without its model: answers, the split, records that go on, and what is collected."""

import gzip
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import record
from benchmarks.real_weights import choose_task, stop_string, tasks
from workbench.audit.report import audit_run
from workbench.errors import RunError


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<answer>8</answer>", 1.0),
        ("It is <answer> 8\n</answer>", 1.0),
        ("<answer>8</answer> or <answer>9</answer>", 1.0),
        ("<answer>9</answer> or <answer>8</answer>", 0.0),  # the first answer counts
        ("<answer>80</answer>", 0.0),
        ("<answer>8", 0.0),
        ("8", 0.0),
        ("", 0.0),
    ],
)
def test_the_first_whole_answer_decides_the_reward(completion, reward):
    assert tasks.reward_of(completion, "8") == reward


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
    assert not numbers(train) & numbers(held)


def test_the_split_is_the_same_at_every_call():
    assert tasks.rows("sums of one digit") == tasks.rows("sums of one digit")


def test_an_interval_holds_its_share_and_stays_within_0_and_1():
    low, high = choose_task.interval(20, 100)
    assert 0.13 < low < 0.2 < high < 0.3
    assert choose_task.interval(0, 10)[0] == 0 and choose_task.interval(10, 10)[1] == 1


def training(folder, steps, *, finished=False):
    """A made-up training: two completions a step, one of them truncated; right from step 2 on."""
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"arm": "stock-masked", "seed": 0}))
    for step in range(1, steps + 1):
        made = {"step": step, "prompt": "Question: 1?", "answer": "2", "tokens": 5}
        right = {"completion": "<answer>2</answer>", "finish_reason": "stop", "reward": float(step > 1)}
        cut = {"completion": "<answer>22", "finish_reason": "length", "reward": 0.0}
        stop_string.append(folder / "completions.jsonl", [made | right, made | cut])
        line = {"step": step, "completions/clipped_ratio": 1.0, "grad_norm": 0.0, "loss": 0.0, "num_tokens": 10 * step}
        line |= {"frac_reward_zero_std": 1.0, "sampling/sampling_logp_difference/mean": 0.001}
        stop_string.append(folder / "metrics.jsonl", [line])
    for step in range(0, steps + 1, 2):
        row = {
            "step": step,
            "question": 0,
            "finish_reason": "stop",
            "tokens": 5,
            "reward": 1.0,
            "completion": "",
            "answer": "",
        }
        stop_string.append(folder / "held_out.jsonl", [row, row | {"question": 1, "reward": 0.0}])
    if finished:
        (folder / "finished").touch()


def collected_rows(file):
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def test_finished_and_unfinished_trainings_are_collected(tmp_path):
    training(tmp_path / "in" / "a", 4, finished=True)
    training(tmp_path / "in" / "b", 3)
    summary = stop_string.collect(tmp_path / "in", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "stop_string.json").read_text()) == summary
    whole, part = summary["trainings"]
    assert (whole["finished"], whole["steps"], part["finished"], part["steps"]) == (True, 4, False, 3)
    assert whole["curves"]["reward"] == [0, 0.5, 0.5, 0.5]
    assert whole["curves"]["truncated"] == [0.5] * 4 and whole["curves"]["logged clipped ratio"] == [1.0] * 4
    assert whole["curves"]["tokens so far"] == [10, 20, 30, 40]
    assert whole["held out"] == {"step": [0, 2, 4], "reward": [0.5] * 3, "truncated": [0] * 3, "tokens": [10] * 3}
    rows = collected_rows(tmp_path / "out" / "completions-a.jsonl.gz")
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


def test_a_training_that_goes_on_forgets_what_came_after_its_checkpoint(tmp_path):
    training(tmp_path / "a", 5)
    for step in (2, 4):
        (tmp_path / "a" / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    (tmp_path / "a" / "checkpoints" / "checkpoint-2" / "complete").touch()  # 4 was cut while it was written
    step, checkpoint = stop_string.last_checkpoint(tmp_path / "a")
    assert (step, checkpoint.name) == (2, "checkpoint-2")
    stop_string.forget_after(tmp_path / "a", step)
    for name, expected in {"metrics": [1, 2], "completions": [1, 1, 2, 2], "held_out": [0, 0, 2, 2]}.items():
        assert [line["step"] for line in stop_string.read_lines(tmp_path / "a" / f"{name}.jsonl")] == expected


def test_a_new_training_begins_at_step_0(tmp_path):
    assert stop_string.last_checkpoint(tmp_path) == (0, None)


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
    recorded = json.loads((record.ROOT / "data/measured/real_weights/stop_string.json").read_text())["trainings"]
    assert {one["settings"]["arm"] for one in recorded} == set(stop_string.ARMS) and all(
        one["finished"] for one in recorded
    )
    for one in recorded:
        curves, right = one["curves"], one["held out"]["reward"]
        if one["settings"]["arm"] != stop_string.STOCK_MASKED:
            assert right[0] == pytest.approx(0.30, abs=0.01) and right[1] > 0.8
            continue
        assert curves["gradient norm"] == [0] * 60 and all(share == pytest.approx(0.30, abs=0.01) for share in right)
    log = record.ROOT / "data/audit/masked_stops_gemma.jsonl"
    first = tmp_path / "metrics.jsonl"
    first.write_text(log.read_text().splitlines()[0] + "\n")
    assert all("masked-stops" in audit_run(path).problems for path in (log, first))
    readme = " ".join((record.ROOT / "README.md").read_text().split())
    assert "no gradient in any of 60 steps, and 30% of the answers to held-out questions stay right" in readme
    seeds = {one["settings"]["seed"] for one in recorded}
    assert ("one seed of each arm so far" in readme) == (len(seeds) == 1)
