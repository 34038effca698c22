"""Logs as people keep them, each made here by hand: what TRL and verl print, notebooks, tables, JSON, packed files."""

import gzip
import io
import json
import sys
import warnings
from importlib.util import find_spec

import pytest
from conftest import ROOT, need
from tensorboard_files import write_events

from workbench.errors import MissingDependencyError, RunError
from workbench.logs import rows as rows_of_logs
from workbench.logs.formats import read_tensorboard, runs_in
from workbench.logs.names import NAMES, canonical
from workbench.logs.read import read, read_logs

EVENTS = ROOT / "tests" / "data" / "logs" / "events.out.tfevents"  # written by TensorBoard 2.20 itself
DICT = "{{'loss': 0.1, 'grad_norm': 0.5, 'reward': {}, 'completions/mean_length': 9.0, 'epoch': {}}}\n"
PRINTED = "".join(DICT.format(n / 10, n / 100) for n in range(1, 7))
VERL = "step:{} - actor/grad_norm:{} - actor/lr:0.000 - critic/score/mean:{} - response_length/mean:17.0\n"


def saved(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def rewards(path):
    return read(path).metric("reward").tolist()


# --- verl -----------------------------------------------------------------------------------------------------------


def test_verls_console_is_read_with_prefixes_colours_and_numpy(tmp_path):
    text = (
        "{'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06}}, 'pad_token_id': 0}, 'loss': 0}\n"
        "\x1b[36m(TaskRunner pid=7)\x1b[0m step:0 - val-core/openai/gsm8k/acc/mean@1:0.24\n"
        "\x1b[36m(TaskRunner pid=7)\x1b[0m "
        + VERL.format(1, "np.float64(0.25)", 0.5)
        + "some other line, step:9 - here\n"
        "(main_task pid=7) " + VERL.format(2, "nan", "\x1b[1m-0.75\x1b[0m") + VERL.format(3, "1e-05", 1)
    )
    log = read(saved(tmp_path / "out.log", text))
    assert (log.kind, log.trainer) == ("verl console log", "verl")
    assert log.steps["step"].tolist() == [1, 2, 3]  # the evaluation before the first step is none
    assert log.metric("reward").tolist() == [0.5, -0.75, 1]
    assert log.metric("grad_norm").tolist()[::2] == [0.25, 1e-05]


def test_an_evaluation_of_verl_is_no_second_line_of_its_step(tmp_path):
    text = VERL.format(1, 1, 0.5) + VERL.format(2, 1, 0.6) + "step:2 - val/test_score:0.7 - timing_s/step:3.0\n"
    assert read(saved(tmp_path / "a.txt", text)).order == (1, 2)


def test_a_line_of_verl_that_a_terminal_broke_is_read_whole(tmp_path):
    text = (
        "step:1 - actor/grad_norm:0.5 - actor/lr(1e-4):0.010 - critic/score/mean:0.25\n    - response_length/mean:17.0\n"
        "step:2 - actor/grad_norm:0.5 - critic/sco\nre/mean:0.75 - response_length/mean:18.0\n2026-01-01 - INFO - saved:1\n"
    )
    log = read(saved(tmp_path / "a.log", text))
    assert log.metric("reward").tolist() == [0.25, 0.75]
    assert log.metric("mean_length").tolist() == [17, 18]


def test_many_metrics_of_some_steps_warn_of_nothing(tmp_path):
    many = " - ".join(f"val-aux/a{n}:0.5" for n in range(120))
    text = "".join(f"step:{n} - critic/score/mean:0.5 - {many if n == 2 else 'actor/lr:0.1'}\n" for n in range(1, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rewards(saved(tmp_path / "a.log", text)) == [0.5] * 4


# --- printed dicts --------------------------------------------------------------------------------------------------


def test_a_dict_that_the_user_s_own_code_prints_is_no_step(tmp_path):
    own = "INFO env said {'step': 0, 'agent_id': 'mm', 'reward': 1.8}\n{'loss': 0.3, 'reward': 7}\n{'reward': 3.0, 'kl': 1}\n"
    log = read(saved(tmp_path / "train.log", PRINTED + own + PRINTED.replace("0.0", "0.1")))
    assert len(log.steps) == 12
    assert log.metric("reward").max() == 0.6
    assert log.notes == ("2 printed dicts that are no steps of a trainer are left out",)


def test_dicts_of_the_user_are_no_log_and_the_error_names_them(tmp_path):
    path = saved(tmp_path / "env.log", "{'step': 0, 'agent_id': 'mm', 'reward': 1.8}\n" * 9)
    with pytest.raises(RunError, match=r"9 other dicts are, such as \{.step., .reward.\}; expected trainer_state"):
        read(path)


def test_quoted_numbers_numpys_words_and_n_of_m_are_read(tmp_path):
    line = "{'loss': '0.1', 'reward': np.float64(0.5), 'grad_norm': tensor(2.), 'global_step/max_steps': '3/40', 'epoch': 1}"
    log = read(saved(tmp_path / "swift.out", line))
    assert (log.steps["step"].tolist(), log.trainer) == ([3], "ms-swift")
    assert (log.metric("reward")[0], log.metric("grad_norm")[0]) == (0.5, 2)


HOSTILE = {
    "points": "{'loss': 1, 'x': '" + "1." * 9000 + "'}\n" * 9,
    "blanks": ("{'loss'" + " " * 10000 + "}") * 300,
    "openings": "{'loss': " * 500_000,
    "no ends": "{'" + "a" * 3_000_000,
    "steps": "step:1 - " * 500_000,
    "digits": "step:1 - a/b:" + "1" * 3_000_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_lines_that_are_nearly_steps_are_none_and_do_no_harm(tmp_path, text):
    with pytest.raises(RunError):
        read(saved(tmp_path / "a.log", text))
    assert rewards(saved(tmp_path / "a.log", text + "\n" + PRINTED))[-1] == 0.6


def test_a_dict_that_a_terminal_broke_is_read_whole(tmp_path):
    text = "{'loss': '0.1',  \n 'grad_norm': '3.3e-06', 'reward':            \n  '0.5', \n 'epoch': '0.1'}\n"
    assert rewards(saved(tmp_path / "a.log", text)) == [0.5]


# --- notebooks ------------------------------------------------------------------------------------------------------


def html_table(columns, rows):
    head = "".join(f"<th>{c}</th>" for c in columns)
    body = "".join("<tr>\n" + "".join(f"<td>{v}</td>\n" for v in row) + "</tr>" for row in rows)
    table = f"<table border=1><thead><tr>{head}</tr></thead>", f"<tbody>{body}</tbody></table><p>"
    return ["<div><progress></progress></div>", *table]


def notebook(path, *outputs):
    cells = [{"cell_type": "markdown", "source": "x"}]
    cells += [{"cell_type": "code", "source": "", "outputs": [output]} for output in outputs]
    return saved(path, json.dumps({"cells": cells, "nbformat": 4}))


HEADS = ["Step", "Training Loss", "reward"]


def test_marks_of_completions_are_no_steps(tmp_path):
    marks = html_table(
        ["text", "step", "reward"], [["a", 0.02, 0.063], ["b", 1.0, 0.682]]
    )  # KhushalM/GRPO_Finetuning 45e13a9
    with pytest.raises(RunError, match="none is a table of steps"):
        read(notebook(tmp_path / "a.ipynb", {"data": {"text/html": marks}}))


OLD = html_table([*HEADS, "completion_length"], [[1, "0.1", "0.25", 200], [2, "No Log", "0.5", 190]])
NEW = html_table([*HEADS, "completions / mean_length", "rewards / f / mean"], [[1, 0, 1, 9, 1]])
LOSSES = html_table(["Step", "Training Loss"], [[10, "3.38"], [20, "2.2"]])


def test_the_table_that_a_trainer_shows_in_a_notebook_is_its_log(tmp_path):
    tables = [{"output_type": "display_data", "data": {"text/html": page}} for page in (LOSSES, OLD)]
    log = read(notebook(tmp_path / "a.ipynb", *tables))
    assert log.kind == "notebook" and log.steps["step"].tolist() == [1, 2]
    assert log.metric("reward").tolist() == [0.25, 0.5]
    assert log.metric("mean_length").tolist() == [200, 190]
    assert log.metric("loss")[0] == 0.1


def test_each_training_of_a_notebook_is_a_run_named_by_its_cell(tmp_path):
    tables = [{"data": {"text/html": page}} for page in (OLD, NEW)]
    first, second = read_logs(notebook(tmp_path / "a.ipynb", *tables))
    assert (first.name[-6:], second.name[-6:]) == ("cell 2", "cell 3")
    assert second.metric("mean_length").tolist() == [9] and second.facts["reward_functions"] == 1


@pytest.mark.parametrize("printed", [PRINTED, VERL.format(1, 1, 0.1) + VERL.format(2, 1, 0.2)])
def test_what_was_printed_in_a_notebook_is_read(tmp_path, printed):
    path = notebook(tmp_path / "a.ipynb", {"output_type": "stream", "text": printed.splitlines(keepends=True)})
    assert rewards(path)[:2] == [0.1, 0.2]


def test_a_notebook_without_a_training_says_what_it_holds(tmp_path):
    path = notebook(tmp_path / "a.ipynb", {"data": {"text/html": LOSSES}}, {"text": "hello"})
    says = "a notebook of 3 cells with 2 saved outputs; none is a table of steps with a reward"
    with pytest.raises(RunError, match=says):
        read(path)


# --- tables ---------------------------------------------------------------------------------------------------------


SPELLINGS = ["critic/score/mean", "critic_score_mean", "critic / score / mean", "train/critic.score.mean"]


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_metric_is_known_whatever_parts_the_words_of_its_name(tmp_path, name):
    assert rewards(saved(tmp_path / "a.csv", f"Step,{name},x\n1,0.5,2\n2,1,3\n")) == [0.5, 1]


def test_every_plain_name_means_one_metric():
    for name, spellings in NAMES.items():
        for spelling in spellings:
            assert canonical([spelling.replace("/", "_")]) == {spelling.replace("/", "_"): name}


def test_verls_score_is_the_reward_before_any_penalty(tmp_path):
    path = saved(tmp_path / "a.csv", "step,critic/rewards/mean,critic/score/mean\n1,-13,0.5\n2,-1,0.25\n")
    assert rewards(path) == [0.5, 0.25]


def test_several_runs_below_each_other_are_several_logs(tmp_path):
    lines = [f"{name},{step},{step / 10},{length}" for name in ("a", "b") for step, length in ((0, 9), (1, 8), (2, 7))]
    logs = read_logs(saved(tmp_path / "runs.csv", "condition,step,accuracy,response_length\n" + "\n".join(lines)))
    assert [log.name[-11:] for log in logs] == ["condition a", "condition b"]
    assert all(log.metric("mean_length").tolist() == [9, 8, 7] for log in logs)
    with pytest.raises(RunError, match="2 runs"):
        read(tmp_path / "runs.csv")


def test_runs_that_only_two_columns_separate_are_several_logs(tmp_path):
    rows = [{"arm": a, "seed": s, "step": n, "reward": 0.5} for n in (1, 2) for a in ("x", "y") for s in (0, 1)]
    logs = read_logs(saved(tmp_path / "runs.json", json.dumps(rows)))
    assert len(logs) == 4 and {len(log.steps) for log in logs} == {2}


def test_a_resumed_run_is_one_though_its_table_has_words(tmp_path):
    rows = "".join(f"{n},0.5,{word}\n" for n, word in ((1, "a"), (2, "b"), (3, "a"), (2, "b"), (3, "a"), (4, "b")))
    assert len(read_logs(saved(tmp_path / "a.csv", "step,reward,note\n" + rows))) == 1


def test_a_chart_of_several_runs_is_a_log_each(tmp_path):
    text = 'Step,"a - reward","a - reward__MIN","b - reward"\n1,0.5,0,\n2,1,0,0.25\n'
    logs = read_logs(saved(tmp_path / "chart.csv", text))
    assert [(log.name[-1], log.metric("reward").tolist()) for log in logs] == [("a", [0.5, 1]), ("b", [0.25])]


def test_of_ten_thousand_columns_the_known_ones_are_read(tmp_path):
    head, row = "".join(f",gpu_{n}" for n in range(10_000)), ",1" * 10_000
    text = f"step,reward{head}\n" + "".join(f"{n},0.5{row}\n" for n in range(20))
    assert rewards(saved(tmp_path / "wide.csv", text)) == [0.5] * 20


# --- JSON -----------------------------------------------------------------------------------------------------------

ROWS = [{"step": n, "loss": 0.1, "reward_mean": n / 10} for n in range(1, 4)]


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        {"total_steps": 3, "steps": ROWS},
        {"config": {"lr": 1e-6, "prompts": [{"text": "a"}]}, "result": {"history": ROWS}},
        {"log_history": ROWS, "evaluations": [{"reward": 9}]},
        {"steps": [1, 2, 3], "history": {"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3]}},
    ],
    ids=["a list", "steps", "below", "log_history", "columns"],
)
def test_the_list_of_steps_in_a_json_file_is_found(tmp_path, value):
    assert rewards(saved(tmp_path / "metrics.json", json.dumps(value, indent=1))) == [0.1, 0.2, 0.3]


def test_several_runs_in_one_json_file_are_several_logs(tmp_path):
    logs = read_logs(saved(tmp_path / "all.json", json.dumps({"grpo": ROWS, "rloo": ROWS[:2]})))
    assert [(log.name[-4:], len(log.steps)) for log in logs] == [("grpo", 3), ("rloo", 2)]


@pytest.mark.parametrize("name", ["kaggle.json", "kaggle.log"])
def test_what_kaggle_keeps_of_a_run_s_output_is_read(tmp_path, name):
    lines = [{"stream_name": "stdout", "time": 1.5, "data": line} for line in (PRINTED[:70], PRINTED[70:])]
    assert rewards(saved(tmp_path / name, "[" + "\n,".join(map(json.dumps, lines)) + "\n]"))[0] == 0.1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "b": [2]}', "no log_history and no other list of objects; its keys are a, b"),
        (
            '[{"prompt": "p", "completion": "c"}]',
            "no reward, completion length or group metric in it by a known name, it has prompt",
        ),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_json_that_is_no_log_says_what_it_has(tmp_path, text, says):
    with pytest.raises(RunError, match=says):
        read(saved(tmp_path / "a.json", text))


# An evaluation, and verl's: aaravarora01/agent-memory-redteam 6605a72, T-zy/Search-R1_inforcement 296204a.
@pytest.mark.parametrize("row", [{"sample_idx": 0, "completion": "c"}, {"step": 0, "output": "c" * 200, "score": 0.5}])
def test_completions_with_their_rewards_are_no_steps(tmp_path, row):
    text = "".join(json.dumps(row | {"reward": n % 2}) + "\n" for n in range(60))
    with pytest.raises(RunError, match="its 60 rows are completions with their rewards"):
        read(saved(tmp_path / "a.jsonl", text))


@pytest.mark.parametrize("more", [{"loss": 0.1}, {"step": 1}])
def test_a_completion_may_stand_next_to_the_numbers_of_its_step(tmp_path, more):
    rows = [{"completion": "c", "reward": n / 9, **{k: v * n for k, v in more.items()}} for n in range(1, 10)]
    assert len(rewards(saved(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))) == 9


def test_json_lines_with_another_ending_are_read(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    for name in ("a.log", "a.json", "a.txt"):
        assert rewards(saved(tmp_path / name, text)) == [0.1, 0.2, 0.3]


# --- packed files, standard input, folders ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"), [("a.log", PRINTED), ("a.csv", "step,reward\n1,0.1\n"), ("a.json", json.dumps(ROWS))]
)
def test_a_packed_log_is_read_as_the_file_in_it(tmp_path, name, text):
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert rewards(tmp_path / f"{name}.gz")[0] == 0.1
    assert read(tmp_path).name == str(tmp_path / f"{name}.gz")


def test_a_packed_file_that_was_made_to_fill_the_disk_is_refused(tmp_path):
    with gzip.open(tmp_path / "bomb.log.gz", "wb") as file:
        for _ in range(130):
            file.write(b"\n" * 1_000_000)
    with pytest.raises(RunError, match="more than 100 MB once it is unpacked"):
        read(tmp_path / "bomb.log.gz")


@pytest.mark.parametrize(
    ("name", "start"), [("a.ipynb", b'{"cells": ['), ("a.csv", b"step,reward\n"), ("a.json", b"[{")]
)
def test_a_file_too_large_for_a_log_is_refused_before_reading(tmp_path, name, start):
    with (tmp_path / name).open("wb") as file:
        file.write(start)
        file.truncate(600_000_000)  # which takes no room on the disk
    with pytest.raises(RunError, match="MB"):
        read(tmp_path / name)


def test_a_packed_file_that_is_cut_short_is_refused(tmp_path):
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(PRINTED.encode())[:-20])
    with pytest.raises(RunError, match="cut short or damaged"):
        read(tmp_path / "a.log.gz")


@pytest.mark.parametrize("text", [PRINTED, json.dumps(ROWS), VERL.format(1, 1, 0.1), "step,reward,loss\n1,0.1,2\n"])
def test_standard_input_is_read_whatever_kind_it_is(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    log = read("-")
    assert (log.name, log.metric("reward")[0]) == ("standard input", 0.1)


@pytest.mark.parametrize(
    "place",
    ["grpo.log", "nohup.out", "log.txt", "run.md", "metrics.json", "wandb/run-1-a/files/output.log",
     "files/output.log"],
)  # fmt: skip
def test_a_folder_with_a_log_among_other_files_is_read(tmp_path, place):
    saved(tmp_path / place, json.dumps(ROWS) if place.endswith(".json") else PRINTED)
    saved(tmp_path / "README.md", "A run.")
    saved(tmp_path / "config.json", '{"model_type": "gpt2"}')
    log = read(tmp_path)
    assert log.name == str(tmp_path / place) and log.metric("reward")[0] == 0.1


def test_a_notebook_in_a_folder_is_read(tmp_path):
    notebook(tmp_path / "a.ipynb", {"data": {"text/html": OLD}})
    assert rewards(tmp_path) == [0.25, 0.5]


def test_a_folder_without_a_log_says_what_is_in_it(tmp_path):
    saved(tmp_path / "model.bin", "x")
    with pytest.raises(RunError, match=r"no log in this folder; it holds model\.bin; expected trainer_state"):
        read(tmp_path)
    saved(tmp_path / "a.txt", "hello")
    saved(tmp_path / "b.csv", "step,loss\n1,2\n")
    with pytest.raises(RunError, match=r"no log in this folder\. b\.csv: no reward.*; a\.txt: no line like"):
        read(tmp_path)


def test_a_link_in_a_folder_is_not_followed_wherever_it_lies(tmp_path):
    saved(tmp_path / "elsewhere/files/output.log", PRINTED)
    (tmp_path / "run/wandb").mkdir(parents=True)
    (tmp_path / "run/wandb/latest").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="no log in this folder"):
        read(tmp_path / "run")


# --- TensorBoard --------------------------------------------------------------------------------------------------


@pytest.fixture
def tensorboard():
    need(find_spec("tensorboard"), "TensorBoard")


@pytest.mark.usefixtures("tensorboard")
def test_a_file_that_tensorboard_wrote_is_read():
    table = read_tensorboard(EVENTS)
    assert table["step"].tolist() == [1, 2, 3, 4, 5]
    assert table["train/reward"].tolist() == [-22.5, -20, -17.5, -15, -12.5]
    assert table["train/completions/mean_length"].tolist() == [14.5, 15.5, 16.5, 17.5, 18.5]
    assert table["new style"].dropna().tolist() == [0.25]  # TensorFlow 2 writes tensors of one number
    assert table["elapsed_s"].tolist() == pytest.approx([0.5, 1, 1.5, 2, 2.5], abs=0.01)  # from the file's first event


@pytest.mark.usefixtures("tensorboard")
def test_a_last_record_cut_short_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / EVENTS.name
    path.write_bytes(EVENTS.read_bytes()[:-9])
    assert read_tensorboard(path)["step"].tolist() == [1, 2, 3, 4]


@pytest.mark.usefixtures("tensorboard")
@pytest.mark.parametrize("content", [b"", b"step,reward\n1,2\n" * 10, b"\x00" * 64])
def test_what_is_no_event_file_is_refused(tmp_path, content):
    path = tmp_path / EVENTS.name
    with pytest.raises(RunError, match=r"no such file; expected an events\.out\.tfevents"):
        read_tensorboard(path)
    path.write_bytes(content)
    with pytest.raises(RunError, match="no scalars in it; expected a TensorBoard file"):
        read_tensorboard(path)


def events_of(folder, *trained):
    """Event files of a folder, named as TensorBoard names them, with the steps of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for n, steps in enumerate(trained):
        rows = [{"step": s, "train/reward": n + s / 100, "train/loss": 0.1} for s in steps]
        write_events(folder / f"events.out.tfevents.{1700000000 + n}.host", rows)


@pytest.mark.parametrize("below", ["", "tensorboard"])
def test_event_files_of_a_resumed_training_are_one_run(tmp_path, below):
    events_of(tmp_path / below, range(1, 61), range(51, 56), range(51, 101))
    (log,) = read_logs(tmp_path)
    assert log.steps["step"].tolist() == list(range(1, 101))
    assert log.metric("reward")[[49, 50, 99]].tolist() == pytest.approx([0.5, 2.51, 3.0])
    assert log.notes == ("3 event files are one training, which was resumed: later ones begin at step 51, 51",)


def test_event_files_of_trainings_from_the_start_are_several(tmp_path):
    events_of(tmp_path, range(1, 21), range(1, 21))
    events_of(tmp_path / "other", range(5, 21))
    assert [len(log.steps) for log in read_logs(tmp_path)] == [20, 20, 16]


def test_a_second_training_that_logs_less_often_is_its_own(tmp_path):
    events_of(tmp_path, range(1, 21), range(10, 101, 10))
    assert [len(log.steps) for log in read_logs(tmp_path)] == [20, 10]


def test_without_tensorboard_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'trl-workbench\[tensorboard\]'"):
        read_tensorboard(EVENTS)


def test_long_json_lines_are_read_in_blocks_as_short_ones_are(tmp_path, monkeypatch):
    rows = [
        {"step": n, "loss": float("nan"), "reward": n / 10, "seed": n % 2, "arm": "ab"[n % 2], "gpu": 7}
        for n in range(20)
    ]
    rows += [{"eval_reward": 1.0, "step": 20}, {"train_runtime": 9.0}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    short = runs_in(tmp_path / "a.jsonl", "a.jsonl")
    monkeypatch.setattr(rows_of_logs, "_ROWS", 6)
    long = runs_in(tmp_path / "a.jsonl", "a.jsonl")
    assert [run.damage for run in long] == [run.damage for run in short] and "in any step" in long[0].damage[0]
    for one, other in zip(long, short, strict=True):
        assert one.label == other.label
        assert one.table.equals(other.table[list(one.table)]) and set(other.table) - set(one.table) == {"gpu"}


@pytest.mark.parametrize("inner", [False, True])
def test_what_a_key_calls_an_evaluation_is_no_training(tmp_path, inner):
    train = {"reward": [0.1 * n for n in range(40)], "loss": [0.01] * 40}
    evaluated = {"reward": [0.0] * 40, "length": [3] * 40}
    (tmp_path / "log.json").write_text(
        json.dumps({"train": train, "eval": {"gsm8k": evaluated} if inner else evaluated})
    )
    log = read(tmp_path / "log.json")
    assert log.steps["reward"].max() > 3 and "calls an evaluation" in log.notes[0]
    (tmp_path / "log.json").write_text(json.dumps({"eval": evaluated}))
    assert len(read(tmp_path / "log.json").steps) == 40
