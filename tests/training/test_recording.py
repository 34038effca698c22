import json

import pytest

from workbench.runs.run import Run
from workbench.training.recording import RunRecorder, forget_after, join_completions


def record(folder, steps):
    recorder = RunRecorder(folder)
    with (folder / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "elapsed_s": step / 10}) + "\n")
            recorder.save_completions(step, {"completion": [f"{step}a", f"{step}b"]})


def steps_of(folder):
    return Run(folder).completions["step"].tolist()


def test_joining_keeps_every_row_in_order(tmp_path):
    record(tmp_path, [1, 2, 3])
    join_completions(tmp_path)
    assert [p.name for p in (tmp_path / "completions.parquet").iterdir()] == ["part-000000.parquet"]
    assert steps_of(tmp_path) == [1, 1, 2, 2, 3, 3]


def test_a_kill_while_joining_loses_and_doubles_nothing(tmp_path):
    record(tmp_path, [1, 2, 3])
    folder = tmp_path / "completions.parquet"
    parts = {p.name: p.read_bytes() for p in folder.iterdir()}
    join_completions(tmp_path)
    for name, content in parts.items():  # killed after the rename, before the first unlink
        (folder / name).write_bytes(content)
    assert steps_of(tmp_path) == [1, 1, 2, 2, 3, 3]
    forget_after(tmp_path, 3)
    assert steps_of(tmp_path) == [1, 1, 2, 2, 3, 3]


def test_a_run_that_goes_on_after_joining_records_further_steps(tmp_path):
    record(tmp_path, [1, 2])
    join_completions(tmp_path)
    record(tmp_path, [3, 4])
    assert steps_of(tmp_path) == [1, 1, 2, 2, 3, 3, 4, 4]
    forget_after(tmp_path, 3)
    assert steps_of(tmp_path) == [1, 1, 2, 2, 3, 3]
    join_completions(tmp_path)
    assert steps_of(tmp_path) == [1, 1, 2, 2, 3, 3]


def test_what_follows_the_checkpoint_is_forgotten_and_a_cut_line_too(tmp_path):
    record(tmp_path, [1, 2, 3])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "elap')
    assert forget_after(tmp_path, 2) == pytest.approx(0.2)
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2]
    assert steps_of(tmp_path) == [1, 1, 2, 2]


def test_rows_scored_in_pieces_end_in_one_part(tmp_path):
    recorder = RunRecorder(tmp_path)
    recorder.add_completions(1, {"completion": ["a"]})
    recorder.add_completions(1, {"completion": ["b"]})
    assert Run(tmp_path).completions["completion"].tolist() == ["a", "b"]


def test_each_logged_step_tells_which_completions_were_really_cut(tmp_path):
    from types import SimpleNamespace

    state = SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=10)
    recorder = RunRecorder(tmp_path)
    recorder.on_train_begin(SimpleNamespace(world_size=1), state, None)
    state.global_step = 1
    ends = {"finish_reason": ["stop", "length"], "trl_finish_reason": ["length"] * 2, "completion_tokens": [3, 5]}
    recorder.save_completions(1, {"completion": ["a", "b"], **ends, "sampled_tokens": [11, 5]})
    recorder.on_log(None, state, None, logs={"loss": 0.0})
    line = Run(tmp_path).metrics.iloc[0]
    assert (line["stops/clipped_ratio"], line["stops/trl_clipped_ratio"], line["stops/wasted"]) == (0.5, 1.0, 0.5)
