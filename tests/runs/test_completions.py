import errno
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import append_table

from workbench.errors import RunError
from workbench.runs.completions import (
    FILE,
    STEPS,
    ends_of_completions,
    forget_after,
    read_completions,
    read_parts,
    save_tokens,
    token_parts,
)
from workbench.runs.run import Run


def record(folder, steps):
    with (folder / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "elapsed_s": step / 10}) + "\n")
            append_table(folder, pd.DataFrame({"step": step, "completion": [f"{step}a", f"{step}b"]}))


def steps_of(folder):
    return Run(folder).completions["step"].tolist()


def twice(steps):
    return [step for step in steps for _ in "ab"]


# --- reading --------------------------------------------------------------------------------------------------------


def test_nothing_recorded_is_an_empty_table(tmp_path):
    assert read_completions(tmp_path)[0].empty
    assert ends_of_completions(tmp_path, 5) == ([], 0, [])


def test_completions_come_back_as_they_were_recorded(tmp_path):
    rows = {
        "completion": ["a\nb\u2028", "é"],
        "reward": [1.5, float("nan")],
        "seen": [np.float32(2), None],
        "ids": [[1, 2], []],
        "messages": [[{"role": "user", "content": "x"}], []],
        "ok": [True, False],
    }
    append_table(tmp_path, pd.DataFrame({"step": 1, **rows}))
    table = Run(tmp_path).completions
    assert list(table) == ["step", *rows]
    for name in ("completion", "ids", "messages", "ok"):
        assert table[name].tolist() == rows[name]
    assert table["reward"].tolist()[0] == 1.5 and np.isnan(table["reward"].tolist()[1])
    assert (tmp_path / FILE).read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("count", [0, 3, 10, 11, 12, 40, 3000])
def test_the_first_and_the_last_rows_are_found(tmp_path, count):
    append_table(tmp_path, pd.DataFrame({"step": range(count), "text": "x" * 500}))
    rows, total, damaged = ends_of_completions(tmp_path, 5)
    every = list(range(count))
    assert [row["step"] for row in rows] == (every if count <= 10 else every[:5] + every[-5:])
    assert (total, damaged) == (count, [])


@pytest.mark.parametrize("half", ['{"step": 3, "comp', "{", '{"step": 3, "completion": "\\u00', '{"step": 3'])
def test_a_last_line_cut_by_a_kill_never_joins_the_next_step(tmp_path, half):
    record(tmp_path, [1, 2])
    with (tmp_path / FILE).open("a") as file:
        file.write(half)
    assert steps_of(tmp_path) == twice([1, 2])
    forget_after(tmp_path, 2)
    record(tmp_path, [3])
    assert steps_of(tmp_path) == twice([1, 2, 3])


def test_a_damaged_line_is_named_and_the_others_are_shown(tmp_path):
    record(tmp_path, [1, 2, 3])
    lines = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / FILE).write_text("\n".join([lines[0], "[1]", *lines[2:]]) + "\n")
    with pytest.warns(UserWarning, match=r"completions.jsonl, line 2: .* is no object.*the other lines are shown"):
        assert steps_of(tmp_path) == [1, 2, 2, 3, 3]
    assert "line 2" in ends_of_completions(tmp_path, 5)[2][0]


def test_of_a_file_with_damaged_lines_no_row_is_shown_twice(tmp_path):
    (tmp_path / FILE).write_text("x\n" * 8 + "".join(f'{{"step": {step}}}\n' for step in range(6)))
    rows, total, damaged = ends_of_completions(tmp_path, 5)
    assert ([row["step"] for row in rows], total, len(damaged)) == (list(range(6)), 14, 8)


def test_completions_are_not_read_through_a_link(tmp_path):
    (tmp_path / "private").write_text('{"step": 1, "completion": "s3cr3t"}\n')
    (tmp_path / FILE).symlink_to(tmp_path / "private")
    with pytest.raises(RunError, match=r"completions.jsonl: a link"):
        _ = Run(tmp_path).completions


# --- resuming -------------------------------------------------------------------------------------------------------


def test_steps_after_the_checkpoint_and_a_cut_line_are_forgotten(tmp_path):
    record(tmp_path, [1, 2, 3])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "elap')
    assert forget_after(tmp_path, 2) == pytest.approx(0.2)
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2]
    assert steps_of(tmp_path) == twice([1, 2])


def test_a_whole_last_row_without_its_line_end_is_kept(tmp_path):
    for end in ('{"step": 2, "elapsed_s": 0.2}', '{"step": 3}'):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "elapsed_s": 0.1}\n' + end)
        forget_after(tmp_path, 2)
        kept = [row["step"] for row in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())]
        assert kept == ([1, 2] if "2" in end else [1])
        assert (tmp_path / "metrics.jsonl").read_text().endswith("\n")


@pytest.mark.parametrize("name", [FILE, f"{STEPS}/step-000001.json.gz"])
def test_what_a_kill_left_before_the_first_log_is_moved_aside(tmp_path, name, capsys):
    """With `logging_steps=10` nine steps have completions and no metrics."""
    (tmp_path / STEPS).mkdir()
    (tmp_path / name).write_text('{"step": 1}\n')
    (tmp_path / "metrics.jsonl").touch()
    forget_after(tmp_path, 0)
    (kept,) = tmp_path.glob(f"replaced-*/{name}")
    assert kept.read_text() == '{"step": 1}\n' and "a new one begins" in capsys.readouterr().err


def test_resuming_names_a_damaged_line_and_drops_nothing(tmp_path):
    record(tmp_path, [1])
    for line in ('{"step": ', "[1]", '{"loss": 1}'):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
        with pytest.raises(RunError, match=r"metrics.jsonl.*line"):
            forget_after(tmp_path, 2)
        assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("line", ['{"step": 3, "lo', "\0" * 40, "[1]"])
def test_damage_behind_the_checkpoint_goes_with_its_steps(tmp_path, line):
    record(tmp_path, [1, 2])
    for name in ("metrics.jsonl", FILE):
        with (tmp_path / name).open("a") as file:
            file.write(line + "\n")
    record(tmp_path, [4])
    assert forget_after(tmp_path, 2) == pytest.approx(0.2)
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2]
    assert steps_of(tmp_path) == twice([1, 2])


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from workbench.runs.completions import forget_after
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
forget_after(Path(sys.argv[1]), 3)
"""


def test_a_disk_that_fills_while_resuming_destroys_nothing(tmp_path):
    append_table(tmp_path, pd.DataFrame({"step": [1, 2, 3, 4], "completion": [os.urandom(20_000).hex()] * 4}))
    before = (tmp_path / FILE).read_bytes()
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert os.strerror(errno.EFBIG) in done.stderr
    assert (tmp_path / FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


# --- tokens ---------------------------------------------------------------------------------------------------------


def tokens(*steps):
    return pd.DataFrame({"step": steps, "completion_ids": [[step] for step in steps]})


def test_tokens_are_kept_in_parts_and_cut_at_the_checkpoint(tmp_path):
    for steps in ([1], [2, 3, 4], [5]):
        save_tokens(tmp_path, steps[0], steps[-1], tokens(*steps))
    forget_after(tmp_path, 3)
    assert [path.name for path in token_parts(tmp_path)] == ["part-000001-000001.parquet", "part-000002-000003.parquet"]
    table, damaged = read_parts(token_parts(tmp_path))
    assert (table["step"].tolist(), damaged) == ([1, 2, 3], [])
    assert [list(ids) for ids in table["completion_ids"]] == [[1], [2], [3]]


def test_a_damaged_part_is_named_and_the_others_are_read(tmp_path):
    for step in (1, 2, 3):
        save_tokens(tmp_path, step, step, tokens(step))
    first, second, third = token_parts(tmp_path)
    first.write_bytes(b"PAR1")
    pd.DataFrame({"text": ["x"]}).to_parquet(second)
    table, damaged = read_parts([first, second, third])
    assert table["step"].tolist() == [3]
    assert [sentence.partition(": ")[0] for sentence in damaged] == [str(first), str(second)]
