import json

import pandas as pd
import pytest

from workbench.runs.completions import completion_parts, forget_after, join_completions, save_part
from workbench.runs.run import Run


def record(folder, steps):
    with (folder / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "elapsed_s": step / 10}) + "\n")
            save_part(folder, step, pd.DataFrame({"step": step, "completion": [f"{step}a", f"{step}b"]}))


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


def test_a_part_that_the_joined_file_covers_is_left_out(tmp_path):
    for step in (0, 2, 3, 4):
        covered = range(1, 4) if step == 0 else [step]
        pd.DataFrame({"step": covered}).to_parquet(tmp_path / f"part-{step:06d}.parquet")
    assert [p.name for p in completion_parts(tmp_path)] == ["part-000000.parquet", "part-000004.parquet"]
    assert completion_parts(tmp_path / "nowhere") == []
