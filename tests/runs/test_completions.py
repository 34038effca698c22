import errno
import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest

from workbench.errors import RunError
from workbench.runs import completions
from workbench.runs.completions import forget_after, join_completions, save_part
from workbench.runs.run import Run


def record(folder, steps):
    with (folder / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "elapsed_s": step / 10}) + "\n")
            save_part(folder, step, pd.DataFrame({"step": step, "completion": [f"{step}a", f"{step}b"]}))


def steps_of(folder):
    return Run(folder).completions["step"].tolist()


def names(folder):
    return sorted(p.name for p in (folder / "completions.parquet").iterdir())


def twice(steps):
    return [step for step in steps for _ in "ab"]


# --- joining --------------------------------------------------------------------------------------------------------


def test_joining_keeps_every_row_in_order(tmp_path):
    record(tmp_path, [1, 2, 3])
    join_completions(tmp_path)
    assert names(tmp_path) == ["part-000001-000003.parquet"]
    assert steps_of(tmp_path) == twice([1, 2, 3])


def test_parts_are_joined_as_a_training_goes_so_that_they_stay_few(tmp_path, monkeypatch):
    monkeypatch.setattr(completions, "_LOOSE", 4)
    most = 0
    for step in range(1, 201):
        record(tmp_path, [step])
        most = max(most, len(names(tmp_path)))
    assert most <= 4 + 7  # those of one step, and one for each power of two
    assert steps_of(tmp_path) == twice(range(1, 201))


def test_a_row_is_written_anew_only_a_few_times(tmp_path, monkeypatch):
    monkeypatch.setattr(completions, "_LOOSE", 4)
    written = []
    plain = completions._write_joined

    def counting(parts, first, last):
        written.append(last - first + 1)
        plain(parts, first, last)

    monkeypatch.setattr(completions, "_write_joined", counting)
    record(tmp_path, range(1, 257))
    assert sum(written) <= 256 * 7


@pytest.mark.parametrize("left", ["all", "some"])
def test_a_kill_while_joining_loses_and_doubles_nothing(tmp_path, left):
    record(tmp_path, [1, 2, 3])
    folder = tmp_path / "completions.parquet"
    parts = {p.name: p.read_bytes() for p in folder.iterdir()}
    join_completions(tmp_path)
    for name, content in list(parts.items())[: 3 if left == "all" else 2]:  # killed before the last unlink
        (folder / name).write_bytes(content)
    (folder / ".part-000001-000003.parquet.0f").write_bytes(b"half")
    assert steps_of(tmp_path) == twice([1, 2, 3])
    forget_after(tmp_path, 3)
    assert names(tmp_path) == ["part-000001-000003.parquet"]
    assert steps_of(tmp_path) == twice([1, 2, 3])


def test_a_run_that_goes_on_after_joining_records_further_steps(tmp_path):
    record(tmp_path, [1, 2])
    join_completions(tmp_path)
    record(tmp_path, [3, 4])
    assert steps_of(tmp_path) == twice([1, 2, 3, 4])
    forget_after(tmp_path, 3)
    assert steps_of(tmp_path) == twice([1, 2, 3])
    join_completions(tmp_path)
    assert steps_of(tmp_path) == twice([1, 2, 3])


def test_parts_with_other_columns_or_types_are_one_table(tmp_path):
    tables = [{"n": [1]}, {"n": [None]}, {"n": [0.5], "late": ["x"]}, {"tokens": [[1, 2]]}]
    for step, columns in enumerate(tables, 1):
        save_part(tmp_path, step, pd.DataFrame({"step": [step], **columns}))
    before = Run(tmp_path).completions
    join_completions(tmp_path)
    assert names(tmp_path) == ["part-000001-000004.parquet"]
    pd.testing.assert_frame_equal(Run(tmp_path).completions, before)
    assert before["n"].tolist()[::2] == [1, 0.5]
    assert before["tokens"].iloc[3].tolist() == [1, 2]


def test_types_that_do_not_go_together_stay_in_their_parts_and_are_shown(tmp_path):
    for step, value in ((1, 1), (2, "a")):
        save_part(tmp_path, step, pd.DataFrame({"step": [step], "n": [value]}))
    join_completions(tmp_path)
    assert len(names(tmp_path)) == 2
    assert Run(tmp_path).completions["n"].tolist() == [1, "a"]


def test_what_older_versions_joined_is_read_cut_and_joined_on(tmp_path):
    for step in range(5):
        covered = range(1, 4) if step == 0 else [step]
        path = tmp_path / "completions.parquet" / f"part-{step:06d}.parquet"
        path.parent.mkdir(exist_ok=True)
        pd.DataFrame({"step": covered, "completion": "x"}).to_parquet(path)
    assert steps_of(tmp_path) == [1, 2, 3, 4]  # 1 to 3 stand in two files
    forget_after(tmp_path, 2)
    assert steps_of(tmp_path) == [1, 2]
    record(tmp_path, [3])
    join_completions(tmp_path)
    assert steps_of(tmp_path) == [1, 2, 3, 3]


# --- resuming -------------------------------------------------------------------------------------------------------


def test_what_follows_the_checkpoint_is_forgotten_and_a_cut_line_too(tmp_path):
    record(tmp_path, [1, 2, 3])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "elap')
    assert forget_after(tmp_path, 2) == pytest.approx(0.2)
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2]
    assert steps_of(tmp_path) == twice([1, 2])


def test_a_resume_within_joined_steps_keeps_those_before_it(tmp_path):
    record(tmp_path, range(1, 11))
    join_completions(tmp_path)
    forget_after(tmp_path, 4)
    assert names(tmp_path) == ["part-000001-000004.parquet"]
    record(tmp_path, range(5, 8))
    assert steps_of(tmp_path) == twice(range(1, 8))


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from workbench.runs.completions import forget_after
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
forget_after(Path(sys.argv[1]), 3)
"""


def test_a_disk_that_fills_while_resuming_destroys_nothing(tmp_path):
    for step in (1, 2, 3, 4):
        text = os.urandom(20_000).hex()
        save_part(tmp_path, step, pd.DataFrame({"step": [step], "completion": [text]}))
    join_completions(tmp_path)
    before = Run(tmp_path).completions
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert os.strerror(errno.EFBIG) in done.stderr
    pd.testing.assert_frame_equal(Run(tmp_path).completions, before)
    assert names(tmp_path) == ["part-000001-000004.parquet"]


def test_joining_that_fails_leaves_the_parts_and_the_training_goes_on(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    record(tmp_path, [1, 2, 3])
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    join_completions(tmp_path)
    assert len(names(tmp_path)) == 3
    assert steps_of(tmp_path) == twice([1, 2, 3])


def test_a_damaged_line_of_the_metrics_is_named_when_a_run_resumes(tmp_path):
    record(tmp_path, [1])
    for line in ('{"step": ', "[1]", '{"loss": 1}'):
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 2}\n')
        with pytest.raises(RunError, match=r"metrics.jsonl.*line"):
            forget_after(tmp_path, 1)


# --- damage ---------------------------------------------------------------------------------------------------------


def cut_short(path, size=4):
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("size", [0, 4, 300])
def test_a_part_cut_short_is_named_and_the_rest_is_shown_joined_and_kept(tmp_path, size):
    record(tmp_path, range(1, 7))
    cut_short(tmp_path / "completions.parquet/part-000003.parquet", size)
    kept = twice([1, 2, 4, 5, 6])
    with pytest.warns(UserWarning, match=r"part-000003.parquet: cannot be read.*the other parts are shown"):
        assert steps_of(tmp_path) == kept
    join_completions(tmp_path)
    assert names(tmp_path) == ["part-000001-000002.parquet", "part-000003.parquet", "part-000004-000006.parquet"]
    with pytest.warns(UserWarning, match=r"part-000003.parquet: cannot be read"):
        assert steps_of(tmp_path) == kept


def test_a_joined_part_cut_short_hides_no_step_that_is_recorded_after_a_resume(tmp_path):
    record(tmp_path, range(1, 7))
    join_completions(tmp_path)
    cut_short(tmp_path / "completions.parquet/part-000001-000006.parquet")
    forget_after(tmp_path, 3)
    record(tmp_path, [4, 5])
    with pytest.warns(UserWarning, match=r"part-000001-000003.parquet: cannot be read"):
        assert steps_of(tmp_path) == twice([4, 5])


def test_a_damaged_page_within_a_part_is_named_too(tmp_path):
    record(tmp_path, [1, 2])
    path = tmp_path / "completions.parquet/part-000001.parquet"
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(bytes(data))
    with pytest.warns(UserWarning, match=r"part-000001.parquet: cannot be read"):
        assert steps_of(tmp_path) == twice([2])


def test_a_part_without_steps_is_named(tmp_path):
    record(tmp_path, [1])
    pd.DataFrame({"completion": ["x"]}).to_parquet(tmp_path / "completions.parquet/part-000002.parquet")
    with pytest.warns(UserWarning, match="no column `step` of whole numbers"):
        assert steps_of(tmp_path) == twice([1])


def test_parts_are_not_read_through_links(tmp_path):
    record(tmp_path, [1])
    shutil.move(tmp_path / "completions.parquet/part-000001.parquet", tmp_path / "private.parquet")
    (tmp_path / "completions.parquet/part-000001.parquet").symlink_to(tmp_path / "private.parquet")
    with pytest.warns(UserWarning, match=r"part-000001.parquet: a link"):
        assert Run(tmp_path).completions.empty
    shutil.move(tmp_path / "completions.parquet", tmp_path / "elsewhere")
    (tmp_path / "completions.parquet").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"completions.parquet: a link"):
        _ = Run(tmp_path).completions
