import io
import json
import math
import pickle

import pandas as pd
import pytest

from workbench.audit.rules_data import log_damage
from workbench.audit.trends import highest_reward
from workbench.errors import ParameterError, RunError
from workbench.logs import rows
from workbench.logs.names import NAMES, canonical
from workbench.logs.read import read, read_logs, recorded_logs
from workbench.logs.settings import facts_of, read_arguments
from workbench.runs.files import training_folders

LINE = {"loss": 0.1, "grad_norm": 0.5, "reward": 0.25, "completions/mean_length": 7.0, "completions/clipped_ratio": 0.5}


def write_state(folder, rows, **more):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows, **more}))
    return path


def one(path):
    (log,) = read_logs(path)
    return log


def test_a_trl_folder_is_read_with_completions_and_settings(tmp_path):
    write_state(tmp_path / "checkpoint-2", [{"step": 1, **LINE}, {"step": 2, **LINE}, {"step": 2, "eval_reward": 1}])
    steps = [{"step": step, **LINE} for step in (1, 2, 10)]
    write_state(tmp_path / "checkpoint-10", [*steps, {"step": 10, "train_runtime": 9}])
    (tmp_path / "checkpoint-10" / "config.json").write_text('{"model_type": "gpt2", "eos_token_id": 3}')
    (tmp_path / "checkpoint-10" / "training_args.bin").write_bytes(pickle.dumps({"num_generations": 99}))
    (tmp_path / "completions").mkdir()
    for step in (1, 2):
        rows = {"step": step, "prompt": ["p", "p", "q", "q"], "completion": list("abcd"), "match": [1.0, 0, 0, 0]}
        pd.DataFrame(rows).to_parquet(tmp_path / "completions" / f"completions_{step:05d}.parquet")
    log = one(tmp_path)
    assert list(log.steps["step"]) == [1, 2, 10]
    assert log.metric("mean_length").tolist() == [7, 7, 7]
    assert (len(log.completions), log.num_generations) == (8, 2)
    assert log.completions["reward"].sum() == 2
    assert log.facts == {"model_type": "gpt2", "eos_token_ids": [3], "reward_functions": 0}


def test_a_pasted_console_log_is_read_among_other_lines_and_bars(tmp_path):
    path = tmp_path / "console.txt"
    path.write_text(
        "Some weights were not initialised\n"
        " 10%|█         | 1/10 [00:01<00:09]\r{'loss': 0.1, 'reward': 0.5, 'completions/mean_length': 7.0, 'epoch': 0.1}\n"
        "{'loss': '0.2', 'reward': '0.75', 'grad_norm': 'nan', 'epoch': '0.2'}\n"
        "{'nothing': 'here'}\n" + "x" * 3_000_000 + "\n{'train_runtime': 3.0, 'reward': 9}\n"
    )
    log = one(path)
    assert log.metric("reward").tolist() == [0.5, 0.75]
    assert any("no step numbers" in d for d in log.damage)
    assert log_damage(log).verdict == "not found"


@pytest.mark.parametrize(
    ("name", "text", "rewards"),
    [
        ("history.csv", "\ufeff_step,train/global_step,train/reward\r\n0,10,0.5\r\n1,20,\r\n2,30,1\r\n", [0.5, 1]),
        ("chart.csv", 'Step,"a run - train/reward","a run - train/reward__MIN"\n10,0.5,0\n20,1,0\n', [0.5, 1]),
        ("verl.jsonl", '{"step": 1, "data": {"reward": 0.5}}\n{"step": 2, "data": {"reward": 1}}\n{"st', [0.5, 1]),
        ("table.TSV", "step\treward\n1\t0.5\n2\t1\n", [0.5, 1]),
        ("nested.jsonl", '{"step": 1, "train": {"reward": 0.5}}\n{"step": 2, "train": {"reward": 1}, "eval": {}}\n', [0.5, 1]),
        ("decimal_comma.csv", "step;reward;kl\r\n1;0,5;0,025\r\n2;1;0,1\r\n", [0.5, 1]),
        ("semicolons.csv", "step;reward;kl\r\n1;1,204;1,025\r\n2;1,5;3,125\r\n", [1.204, 1.5]),
        ("three_decimals.csv", "step;reward;kl\r\n1;1,204;1,025\r\n2;1,500;3,125\r\n", [1.204, 1.5]),
        ("thousands.csv", "step;reward;kl\r\n1;1,204;1.025\r\n2;1,500;3.125\r\n", [1204, 1500]),
        ("thousands.csv", 'step,reward\n1,"1,024.5"\n2,999\n', [1024.5, 999]),
        ("percent.csv", "step,reward\n1,12.5%\n2,7 %\n", [0.125, 0.07]),
        ("epochs.csv", "epoch,step,reward\n0,0,0.1\n0,1,0.2\n1,0,0.3\n1,1,0.4\n", [0.1, 0.2, 0.3, 0.4]),
        ("spaced.jsonl", '{ "step": 1, "reward": 0.5 }\n{ "step": 2, "reward": 1 }\n', [0.5, 1]),
        ("own.jsonl", '{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 1}\n', [0.5, 1]),
    ],
)  # fmt: skip
def test_other_tools_logs_are_read_under_the_same_names(tmp_path, name, text, rewards):
    path = tmp_path / name
    path.write_text(text, newline="")
    log = one(path)
    assert log.metric("reward").tolist() == rewards
    assert "completions" in log.lacks
    assert bool(log.damage) == (name == "verl.jsonl")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("trainer_state.json", b'{"log_history": [{"st', "not JSON"),
        ("trainer_state.json", b"[1, 2]", "no log_history"),
        ("trainer_state.json", b'{"log_history": [{"step": 1, "loss": 0.5}]}', "no reward"),
        ("state.json", pickle.dumps({"log_history": []}), "pickle"),
        ("state.log", pickle.dumps({"log_history": []}), "pickle"),
        ("part.parquet", b"PAR1\x15\x04", "completions only"),
        ("a.csv", b"", "no table"),
        ("a.csv", b"step,loss,accuracy\n1,0.5,0.9\n", "no reward"),
        ("a.csv", b"step,reward\nx,y\n", "no step with a number"),
        ("a.txt", b"nothing here\n", "no line like"),
        ("a.jsonl", b'{"a\n', "no line is a JSON object"),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match=says):
        read_logs(tmp_path / name)


def test_the_closing_summary_is_no_step():
    assert rows.steps_of([LINE, {"train_runtime": 3.0, "reward": 9.0}])["reward"].tolist() == [0.25]


def test_an_empty_folder_and_no_folder_are_errors(tmp_path):
    empty = r"no log in this folder, which is empty; expected trainer_state\.json.*; a trainer with record_dir writes its log"
    with pytest.raises(RunError, match=empty):
        read_logs(tmp_path)
    with pytest.raises(RunError, match="no such file or folder"):
        read_logs(tmp_path / "absent")
    with pytest.raises(RunError, match="a web address, and nothing is downloaded"):
        read_logs("https://wandb.ai/a/b")
    for logged in ([{"step": 1, **LINE}], pd.DataFrame([LINE]), 3):
        with pytest.raises(ParameterError, match=f"path is a {type(logged).__name__}: .*save_state"):
            read_logs(logged)


def test_numbers_that_are_not_finite_are_damage_and_no_values(tmp_path):
    rows = [{"step": s, "reward": 0.5, "grad_norm": 1.0, "loss": 0.1} for s in range(1, 11)]
    rows[4] |= {"reward": float("inf"), "grad_norm": float("nan")}
    log = one(write_state(tmp_path, rows))
    assert log.damage == (
        "grad_norm is no number in 1 of 10 steps, first in step 5",
        "reward is infinite in 1 of 10 steps",
    )


def test_a_cut_part_of_completions_is_damage_the_others_are_read(tmp_path):
    write_state(tmp_path, [{"step": 1, **LINE}])
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (1, 2):
        table = pd.DataFrame({"step": [step], "prompt": ["p"], "completion": ["c"]})
        table.to_parquet(folder / f"completions_{step:05d}.parquet")
    path = folder / "completions_00002.parquet"
    path.write_bytes(path.read_bytes()[:200])
    log = one(tmp_path)
    assert len(log.completions) == 1
    assert "cut short or damaged" in log.damage[0]


def test_numbers_logged_next_to_the_rewards_are_no_rewards(tmp_path):
    write_state(tmp_path, [{"step": 1, **LINE, "rewards/match/mean": 0.5, "rewards/brief/mean": 0.5}])
    (tmp_path / "completions").mkdir()
    rows = {"step": [1, 1], "prompt": ["p", "p"], "completion": ["c", "d"], "match": [1.0, 0], "brief": [0, 1.0]}
    pd.DataFrame(rows | {"words": [70, 80]}).to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    log = one(tmp_path)
    assert log.completions["reward"].tolist() == [1, 1]
    assert highest_reward(log) is None  # 1 is not the most that two functions can give


def test_epochs_separate_two_runs_from_a_resumed_one_in_a_log(tmp_path):
    def log_of(*epochs):
        lines = [f"{{'loss': '0.1', 'reward': '0.{n}', 'epoch': '{n / 10}'}}" for n in epochs]
        (tmp_path / "console.txt").write_text("\n".join(lines))
        return one(tmp_path / "console.txt")

    assert log_damage(log_of(*range(10), *range(10))).cause == "two-runs"
    assert log_damage(log_of(*range(10))).verdict == "not found"
    resumed = log_of(1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9)
    assert resumed.steps["reward"].tolist() == [n / 10 for n in range(1, 10)]
    assert log_damage(resumed).cause == "twice"


def test_a_run_that_has_not_logged_yet_does_not_hide_the_others(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps({"step": 1, **LINE}) * (name == "b"))
    assert one(tmp_path).name == str(tmp_path / "b")
    write_state(tmp_path / "a", [{"step": 1, **LINE}])
    assert one(tmp_path / "a").kind == "trainer_state.json"


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_all_runs_of_one_metrics_file_are_read(tmp_path):
    rows = [{"run": run, "step": step, **LINE} for run in "ab" for step in (1, 2, 3)]
    path = write_lines(tmp_path / "both" / "metrics.jsonl", rows)
    (path.parent / "completions.jsonl").write_text('{"step": 1, "prompt": "p", "completion": "c", "reward": 1.0}\n')
    names = [f"{path}: run a", f"{path}: run b"]
    for place in (path.parent, tmp_path, path):
        logs = read_logs(place)
        assert [log.name for log in logs] == names
        assert all(log.steps["step"].tolist() == [1, 2, 3] and log.completions is None for log in logs)
    (note,) = read_logs(path.parent)[0].notes
    assert note.startswith("the completions of this folder are left out: they do not say which of the 2 runs")


@pytest.mark.parametrize("name", ["metrics.jsonl", "log.jsonl"])
def test_lines_of_evaluations_and_samples_are_no_runs(tmp_path, name):
    rows = [{"type": "train", "step": step, **LINE} for step in range(1, 11)]
    rows += [{"type": "eval", "step": step, "reward": 0.9} for step in (5, 10)]
    rows += [{"type": "sample_rollout", "step": 5, "prompt": "p", "response": "r"}] * 2
    rows += [{"type": "config", "step": 0, "seed": 1}]
    write_lines(tmp_path / name, rows)
    log = one(tmp_path)
    assert (log.steps["step"].tolist(), log.order) == (list(range(1, 11)), tuple(range(1, 11)))
    assert set(log.steps["reward"]) == {LINE["reward"]} and ": type" not in log.name
    left_out = "left out: they are no steps of a training"
    assert log.notes == (f"4 lines of evaluations or samples are {left_out}", f"lines with type config are {left_out}")


def test_an_evaluation_at_a_step_of_its_own_is_none(tmp_path):
    rows = [{"step": n, "split": "train", **LINE} for n in range(1, 21) if n % 5]
    rows += [{"step": n, "split": "eval", "reward": 0.95} for n in range(0, 21, 5)]
    write_lines(tmp_path / "log.jsonl", sorted(rows, key=lambda row: row["step"]))
    log = one(tmp_path)
    assert set(log.steps["reward"]) == {LINE["reward"]} and len(log.steps) == 16
    assert log_damage(log).verdict == "not found"  # no step is missing where an evaluation stands


def asynchronous(lost):
    """Lines of rollouts, and of a training that is four steps behind and lost from a step on."""
    for n in range(64):
        if n < 60:
            yield {"step": n, "kind": "rollout", "reward": 0.2 + n / 100}
        if n >= 4:
            number = math.nan if n - 4 >= lost else 0.3
            yield {"step": n - 4, "kind": "train", "loss": number, "grad_norm": number}


@pytest.mark.parametrize(("lost", "severity"), [(99, None), (30, "problem")])
@pytest.mark.parametrize("lines", [None, -8])
def test_a_training_behind_its_rollouts_is_one_run(tmp_path, lines, lost, severity):
    write_lines(tmp_path / "log.jsonl", list(asynchronous(lost))[:lines])
    log = one(tmp_path)
    assert log.steps["step"].is_monotonic_increasing and {"reward", "loss", "grad_norm"} <= set(log.steps)
    found = log_damage(log)
    assert (found.severity if found.verdict == "found" else None) == severity, found.says


def test_metrics_in_objects_are_read(tmp_path):
    rows = [{"step": n, "actor": {"grad_norm": 0.3}, "critic": {"score": {"mean": n / 9}}} for n in range(9)]
    write_lines(tmp_path / "log.jsonl", rows)
    assert one(tmp_path).steps[["reward", "grad_norm"]].values.tolist() == [[n / 9, 0.3] for n in range(9)]


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("kinds", [{}, {"phase": "update"}])
def test_lines_of_rollout_and_update_are_one_step(tmp_path, updates, kinds):
    rows = []
    for step in range(1, 11):
        rows += [{"step": step, "reward": step / 10, "own": 1.0, **({"phase": "rollout"} if kinds else {})}]
        rows += [{"step": step, "grad_norm": 0.0, "loss": float("nan"), **kinds} for _ in range(updates)]
        rows += [{"step": step, "reward": 9.0, "phase": "eval"}] * bool(kinds)
    write_lines(tmp_path / "log.jsonl", rows)
    log = one(tmp_path)
    assert log.steps["reward"].tolist() == [step / 10 for step in range(1, 11)]
    assert log.steps["grad_norm"].tolist() == [0.0] * 10 and log.raw("loss").isna().all()
    assert (len(log.order) == 10) == bool(kinds or updates == 1)
    assert bool(log.notes) == bool(kinds)


def test_of_several_lines_a_step_the_means_count(tmp_path):
    rows = [{"step": n, "sample": k, "reward": float(k > n % 4)} for n in range(1, 21) for k in range(4)]
    write_lines(tmp_path / "log.jsonl", rows)
    log = one(tmp_path)
    assert log.steps["reward"].tolist() == [(3 - n % 4) / 4 for n in range(1, 21)]
    found = log_damage(log)
    assert (found.severity, found.cause) == ("note", "several-lines")
    write_lines(tmp_path / "log.jsonl", [*rows[:60], *rows])  # it was started again
    log = one(tmp_path)
    assert log.steps["reward"].tolist() == [1.0 * (n % 4 < 3) for n in range(1, 21)]
    assert log_damage(log).cause == "two-runs"


def test_a_line_that_is_printed_again_counts_once(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(
        "".join(f"[rank{k}] Step {n} | loss: 0.{n} | reward: 0.5\n" for n in range(1, 10) for k in range(4))
    )
    assert one(path).order == tuple(range(1, 10))


def test_a_share_in_another_unit_is_left_out_and_named(tmp_path):
    write_lines(
        tmp_path / "log.jsonl", [{"step": n, "reward": 0.5, "frac_reward_zero_std": 10.0 * n} for n in range(1, 4)]
    )
    log = one(tmp_path)
    assert log.metric("zero_std_share") is None
    assert log.damage == ("frac_reward_zero_std goes up to 30 and is no share from 0 to 1: it is left out",)


@pytest.mark.parametrize(
    "line",
    ["step {}: reward 0.5, loss {}", "step={} reward=0.5 loss={} lr=1e-06", "Step {} | loss {} | reward 0.5",
     "2026-11-28 12:00:00,123 INFO step={} loss={} reward=0.5"],
)  # fmt: skip
def test_a_loss_that_is_nan_within_a_line_is_read(tmp_path, line):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{line.format(n, 'nan' if n > 20 else 0.1)}\n" for n in range(1, 41)))
    log = one(path)
    assert log.order == tuple(range(1, 41)) and log_damage(log).cause == "not-finite"


@pytest.mark.parametrize("more", [", epoch: {}", ", best: {}", ", eval_acc: {}"])
@pytest.mark.parametrize("places", [[25, 50], [50]])
def test_lines_that_say_more_hide_no_others(tmp_path, more, places):
    path = tmp_path / "log.txt"
    lines = [f"step {n}: reward: 0.5, loss: 0.{n}{more.format(n // 25) if n in places else ''}" for n in range(1, 61)]
    path.write_text("\n".join(lines))
    log = one(path)
    assert (log.order, log.damage) == (tuple(range(1, 61)), ())


def test_an_evaluation_in_a_steps_own_row_hides_no_step(tmp_path):
    rows = [
        {"step": n, "reward": 0.5, "loss": 0.1} | ({"eval_reward": 0.4} if n % 10 == 0 else {}) for n in range(1, 61)
    ]
    rows[29]["loss"] = float("nan")
    write_lines(tmp_path / "metrics.jsonl", rows)
    log = one(tmp_path)
    assert log.order == tuple(range(1, 61)) and "first in step 30" in str(log.damage)


@pytest.mark.parametrize("line", ["global_step={} reward=0.5 loss=0.1", "INFO global_step: {}, step: 1, reward: 0.5"])
def test_a_global_step_is_the_step_of_a_line(tmp_path, line):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{line.format(n)}\n" for n in range(1, 13)))
    assert one(path).order == tuple(range(1, 13))


@pytest.mark.parametrize(
    "evaluation",
    [
        "Step {} eval: loss=0.9, reward=0.99, kl=1",
        "Step {} | eval | loss=0.9 | reward=0.99",
        "Eval at step {}: reward=0.99, loss=1",
        "Evaluation after step {}: reward: 0.99, loss: 0.9",
        "[eval] step {}: reward=0.99, loss=0.9",
        "eval step {}: {{'reward': 0.99, 'length': 3}}",
        "--- Evaluation at step {} ---\nreward: 0.99\nmean_length: 3",
    ],
)
@pytest.mark.parametrize("step", ["Step {0}: loss=0.1, reward=0.{0}", "step {0}: {{'reward': 0.{0}, 'kl': 0.1}}"])
def test_an_evaluation_between_steps_is_none(tmp_path, step, evaluation):
    lines = [[step.format(n)] + [evaluation.format(n)] * (n % 2 == 0) for n in range(1, 7)]
    path = tmp_path / "log.txt"
    path.write_text("\n".join(line for of in lines for line in of))
    assert one(path).metric("reward").tolist() == [n / 10 for n in range(1, 7)]


def test_a_rate_makes_no_step_of_an_evaluation(tmp_path):
    named = {"reward": 0.5, "eval_reward": 0.3}
    rows = [{"step": n, name: value, "lr": 1e-6} for n in range(1, 20) for name, value in named.items()]
    write_lines(tmp_path / "metrics.jsonl", rows)
    assert (one(tmp_path).order, one(tmp_path).damage) == (tuple(range(1, 20)), ())


def test_nan_in_our_own_record_is_found_from_the_first_step_on(tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [{"step": n, "reward": 0.5, "loss": None} for n in range(1, 31)])
    assert "null" in (tmp_path / "metrics.jsonl").read_text() and log_damage(one(tmp_path)).cause == ""
    (tmp_path / "recipe.json").write_text("{}")
    assert log_damage(one(tmp_path)).cause == "not-finite"


def test_a_checkpoint_that_goes_on_from_the_folders_state_counts(tmp_path):
    steps = [{"step": n, **LINE} for n in range(1, 7)]
    write_state(tmp_path, [*steps[:3], {"step": 3, "train_runtime": 9}])
    write_state(tmp_path / "checkpoint-3", steps[:3])
    assert one(tmp_path).order == (1, 2, 3)
    write_state(tmp_path / "checkpoint-6", steps)
    assert one(tmp_path).order == tuple(range(1, 7))
    write_state(tmp_path / "checkpoint-6", [{**row, "reward": 0.1} for row in steps])  # of another training
    assert one(tmp_path).order == (1, 2, 3)


def test_openrlhfs_bar_of_three_episodes_is_one_run(tmp_path):
    bar = "Episode [{}/3]: 20%|██    | {}/12 [00:10<00:40, 10.2s/it, policy_loss=0.1, reward=0.{}, response_length=200]"
    (tmp_path / "log.txt").write_text("\r".join(bar.format(e, s, e) for e in (1, 2, 3) for s in range(1, 13)))
    log = one(tmp_path / "log.txt")
    assert (len(log.steps), log.damage) == (36, ())


def test_a_supervised_training_before_it_is_no_part_of_a_run(tmp_path):
    supervised = [{"loss": "1.5", "grad_norm": "1.2", "epoch": n / 40} for n in range(1, 81)]
    steps = [{**{name: str(value) for name, value in LINE.items()}, "epoch": n / 1000} for n in range(1, 61)]
    (tmp_path / "log.txt").write_text("\n".join(map(str, [*supervised, *steps])))
    log = one(tmp_path / "log.txt")
    assert len(log.steps) == 60 and "80 lines of another training, before this one, are left out" in log.notes


@pytest.mark.parametrize("names", [("step", "global_step"), ("iter", "iter")])
def test_the_number_that_goes_on_is_the_step(tmp_path, names):
    rows = [{names[0]: n % 5, names[1]: n, "reward": n / 20, "loss": 0.1} for n in range(1, 16)]
    write_lines(tmp_path / "metrics.jsonl", rows)
    assert (one(tmp_path).order, one(tmp_path).damage) == (tuple(range(1, 16)), ())


def test_a_first_step_with_one_metric_less_counts(tmp_path):
    lines = [f"Step {n} | loss: 0.5 | reward: 0.1{' | kl: 0.01' if n > 1 else ''}" for n in range(1, 6)]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    assert one(tmp_path / "log.txt").order == (1, 2, 3, 4, 5)


def test_a_text_of_several_lines_in_a_csv_is_read(tmp_path):
    rows = "".join(f'{n},0.5,0.1,"one\ntwo\nthree\nfour"\n' for n in range(1, 6))
    (tmp_path / "log.csv").write_text(f"step,reward,loss,sample\n{rows}")
    assert one(tmp_path / "log.csv").order == (1, 2, 3, 4, 5)


def test_evaluations_of_many_prompts_a_step_are_no_steps(tmp_path):
    # charbull/wordle-rl-gemma 41ceaa1: a line a step, and 20 of an evaluation each 30 steps, each with a word of its own
    rows = [{"log_type": "train", "step": n, "secret_word": f"W{n % 30}", "final_reward": n / 9} for n in range(1, 61)]
    rows += [
        {"log_type": "eval", "step": n, "secret_word": f"W{i}", "final_reward": -1.0}
        for n in (30, 60)
        for i in range(20)
    ]
    write_lines(tmp_path / "metrics.jsonl", rows)
    log = one(tmp_path)
    assert log.steps["reward"].tolist() == [n / 9 for n in range(1, 61)]
    assert log.notes == ("40 lines of evaluations or samples are left out: they are no steps of a training",)


def test_every_name_of_a_metric_stands_once_in_the_table():
    spellings = [spelling for known in NAMES.values() for spelling in known]
    assert len(spellings) == len(set(spellings))
    assert canonical(["a"]) == {}


def test_the_progress_bar_of_a_long_log_counts_every_byte(tmp_path, monkeypatch):
    bars = []

    class Bar(rows.tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs | {"disable": False, "file": io.StringIO()})
            bars.append(self)

    monkeypatch.setattr(rows, "tqdm", Bar)
    path = tmp_path / "train.log"
    path.write_bytes((repr(LINE).encode() + b"\n") * 3 + b"x" * 2_500_000 + b"\n" + repr(LINE).encode())
    one(path)
    assert [(bar.n, bar.total) for bar in bars] == [(path.stat().st_size,) * 2]


def test_a_run_resumed_from_before_its_last_lines_is_one_run(tmp_path):
    steps = [6, 12, 18, 12, 18, 24, 30, 36]  # logged every 6 steps, resumed from checkpoint-10
    write_state(tmp_path, [{"step": s, **LINE} for s in steps])
    assert log_damage(one(tmp_path)).cause == "twice"
    write_state(tmp_path, [{"step": s, **LINE} for s in [6, 12, 18, 6, 12, 18, 24]])
    assert log_damage(one(tmp_path)).cause == "two-runs"


def test_a_file_that_is_no_log_does_not_hide_the_one_beside_it(tmp_path):
    (tmp_path / "log.jsonl").write_text("".join(json.dumps({"step": n, **LINE}) + "\n" for n in (1, 2)))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    assert one(tmp_path).name == str(tmp_path / "log.jsonl")
    (tmp_path / "log.jsonl").unlink()
    with pytest.raises(RunError, match="no reward"):
        read_logs(tmp_path)


def test_a_console_log_that_powershell_wrote_is_read(tmp_path):
    (tmp_path / "log.txt").write_text("{'loss': 0.1, 'reward': 0.5, 'epoch': 0.1}\r\n" * 2, encoding="utf-16")
    assert one(tmp_path / "log.txt").metric("reward").tolist() == [0.5, 0.5]


def test_a_metric_that_begins_later_is_not_damaged(tmp_path):
    lines = [{"step": n, "reward": 0.5} | ({"loss": 0.1} if n > 10 else {}) for n in range(1, 101)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert one(tmp_path / "log.jsonl").damage == ()


def test_links_to_a_models_files_in_the_hubs_cache_are_read(tmp_path):
    for name, value in {"config.json": {"model_type": "gpt2"}, "generation_config.json": {"eos_token_id": 3}}.items():
        (tmp_path / "blobs").mkdir(exist_ok=True)
        (tmp_path / "blobs" / name).write_text(json.dumps(value))
        (tmp_path / "snapshot").mkdir(exist_ok=True)
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
    write_state(tmp_path / "run", [{"step": n, **LINE} for n in range(1, 9)])
    facts = facts_of(tmp_path / "snapshot", links=True)
    assert facts == ({"model_type": "gpt2", "eos_token_ids": [3]}, [])
    refused = facts_of(tmp_path / "snapshot")
    assert refused[0] == {} and "not a plain file" in refused[1][0]


def test_settings_are_read_where_they_stand_and_no_script_is_run(tmp_path):
    (tmp_path / "log.csv").write_text("step,reward\n" + "".join(f"{n},0.{n}\n" for n in range(9)))
    config = "trl.GRPOConfig('out', num_generations=4, scale_rewards='batch', beta=b)"
    (tmp_path / "train.py").write_text(f"raise SystemExit\nargs = {config}")
    facts = read(tmp_path).facts
    assert (facts["num_generations"], facts["scale_rewards"], facts["settings_from"]) == (4, "batch", "train.py")
    (tmp_path / "other.py").write_text("GRPOConfig(num_generations=8, scale_rewards='batch')")
    assert "num_generations" not in read(tmp_path).facts, "two scripts do not agree"
    (tmp_path / "other.py").write_text("def broken(:")
    assert read(tmp_path).facts["num_generations"] == 4


def test_verls_config_and_a_notebooks_own_cells_hold_settings(tmp_path):
    line = "step:{} - critic/score/mean:0.5 - response_length/mean:9.0\n"
    config = "(main)  'data': {'max_response_length': 256,\n"
    (tmp_path / "a.log").write_text(config + "".join(map(line.format, range(9))))
    assert read(tmp_path / "a.log").facts["max_completion_length"] == 256
    rows = "".join(f"<tr><td>{n}</td><td>1</td></tr>" for n in range(9))
    table = f"<table><tr><th>Step</th><th>reward</th></tr>{rows}"
    cells = [{"cell_type": "code", "source": ["!pip install trl\n"], "outputs": []}]
    shown = [{"data": {"text/html": table + "</table>"}}]
    cells += [{"cell_type": "code", "source": "GRPOConfig(max_completion_length = 200)", "outputs": shown}]
    (tmp_path / "b.ipynb").write_text(json.dumps({"cells": cells}))
    assert read(tmp_path / "b.ipynb").facts["max_completion_length"] == 200


def test_two_tables_of_one_cell_are_two_runs_with_two_names(tmp_path):
    table = "<table><tr><th>Step</th><th>reward</th></tr><tr><td>1</td><td>0.5</td></tr></table>"
    cell = {"cell_type": "code", "source": "", "outputs": [{"data": {"text/html": table}}] * 2}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    names = [log.name.rpartition(": ")[2] for log in read_logs(tmp_path / "a.ipynb")]
    assert names == ["cell 1, table 1", "cell 1, table 2"]


def test_the_audit_and_known_defects_read_a_record_alike(tmp_path):
    overrides = {"mask_truncated_completions": True, "scale_rewards": False, "max_completion_length": 64}
    recipe = {"num_generations": 4, "max_completion_length": 32}
    record = {"trainer": "GRPOTrainer", "recipe": recipe, "overrides": overrides}
    (tmp_path / "recipe.json").write_text(json.dumps(record | {"stops": {"stop": ["</a>"], "min_tokens": 8}}))
    facts, arguments = facts_of(tmp_path)[0], read_arguments(tmp_path)
    known = overrides | {"num_generations": 4, "scale_rewards": "none"}
    assert known.items() <= facts.items() and known.items() <= arguments.items()
    assert facts["stop_strings"] == arguments["generation_kwargs"]["stop"] == ["</a>"] and facts["min_tokens"] == 8


def test_stops_of_a_record_are_generation_kwargs_of_stock_alone(tmp_path):
    stops = {"stop": ["</a>"], "stop_token_ids": [5]}
    for source, trainer, own in (("workbench", "GRPOTrainer", None), ("watched", "GRPOTrainer", stops)):
        record = {"recipe": {"backend": "vllm"}, "trainer": trainer, "stops": stops, "source": source}
        (tmp_path / "recipe.json").write_text(json.dumps(record))
        assert read_arguments(tmp_path).get("generation_kwargs") == own


def test_settings_are_found_in_a_watchs_folder_and_named_below(tmp_path):
    arm = tmp_path / "arms" / "one" / "seed-0"
    arm.mkdir(parents=True)
    (arm / "recipe.json").write_text(json.dumps({"recipe": {"seed": 3}, "trainer": "GRPOTrainer"}))
    with pytest.raises(ParameterError, match="below it are trainings: arms/one/seed-0"):
        read_arguments(tmp_path)
    (tmp_path / "_watch").mkdir()
    (tmp_path / "_watch" / "recipe.json").write_text(json.dumps({"recipe": {"seed": 4}, "source": "watched"}))
    assert read_arguments(tmp_path)["seed"] == 4


def test_arguments_in_a_file_of_another_kind_are_refused(tmp_path):
    """The advice to repair or remove a file is for those that a run wrote."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(ParameterError, match=r"pyproject.toml: expected TRL's arguments in a .json or .yaml file"):
        read_arguments(tmp_path / "pyproject.toml")


def test_a_training_that_is_recorded_twice_counts_once(tmp_path):
    """A trainer with `record_dir` that is also watched; and one of TRL's own, of which the watch has the only record."""
    for place in (".", "checkpoints/_watch", "open/_watch"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "metrics.jsonl").write_text(json.dumps({"step": 1, **LINE}) + "\n")
    write_state(tmp_path / "open" / "checkpoint-1", [{"step": 1, **LINE}])
    logs, damaged = recorded_logs(tmp_path)
    assert [log.name for log in logs] == [".", "open/_watch"] and damaged == []
    assert training_folders(tmp_path) == [tmp_path, tmp_path / "open/_watch"]
    assert len(read_logs(tmp_path)) == 2


def test_a_training_that_trl_alone_saved_is_recorded(tmp_path):
    write_state(tmp_path / "mine" / "checkpoint-2", [{"step": 1, **LINE}])
    (tmp_path / "log.txt").write_text("{'loss': 0.0, 'reward': 0.0}\n" * 9)
    assert [log.name for log in recorded_logs(tmp_path)[0]] == ["mine"]


@pytest.mark.parametrize(("counted", "steps"), [(0, [2, 5, 8]), (None, [1, 2, 3])])
def test_a_trackers_lines_count_where_the_trainer_counts_none(tmp_path, counted, steps):
    rows = [
        {"_step": 3 * n + 2, "train/global_step": n + 1 if counted is None else counted, "reward": 0.1 * n}
        for n in range(3)
    ]
    path = tmp_path / "history.jsonl"
    path.write_text(
        "".join(
            json.dumps({"_step": row["_step"] - 1, "train/global_step": 0, "gpu": 1.0}) + "\n" + json.dumps(row) + "\n"
            for row in rows
        )
    )
    assert list(read(path).steps["step"]) == steps


def test_a_printed_config_is_no_step(tmp_path):
    config = "GRPO Config: {'learning_rate': 1e-06, 'eval_steps': 500, 'eval_strategy': 'no', 'seed': 1}\n"
    lines = "".join(f"Step {n}, loss: 0.{n}, mean_reward: 0.{n}\n" for n in range(1, 9))
    (tmp_path / "a.log").write_text(config + lines)
    assert len(read(tmp_path / "a.log").steps) == 8
