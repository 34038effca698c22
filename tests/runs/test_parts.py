import resource

import pandas as pd
import pytest

from workbench.runs import parts
from workbench.runs.parts import ends_of_completions, read_completions


def write_parts(folder, sizes, **columns):
    step = 0
    (folder / "completions.parquet").mkdir()
    for n, size in enumerate(sizes, 1):
        rows = pd.DataFrame({"step": range(step, step + size), **columns})
        rows.to_parquet(folder / f"completions.parquet/part-{n:06d}.parquet", row_group_size=2)
        step += size
    return list(range(step))


def test_nothing_recorded_is_an_empty_table(tmp_path):
    assert read_completions(tmp_path)[0].empty
    assert ends_of_completions(tmp_path, 5) == ([], 0, [])
    (tmp_path / "completions.parquet").write_text("of stock TRL, say")
    assert ends_of_completions(tmp_path, 5) == ([], 0, [])


@pytest.mark.parametrize("sizes", [[0], [3], [10], [11], [4, 4, 4], [1, 30, 1], [12, 0, 12]])
def test_the_first_and_the_last_rows_are_found_whatever_parts_they_are_in(tmp_path, sizes):
    every = write_parts(tmp_path, sizes)
    rows, total, damaged = ends_of_completions(tmp_path, 5)
    assert [row["step"] for row in rows] == (every if total <= 10 else every[:5] + every[-5:])
    assert (total, damaged) == (len(every), [])


def test_more_parts_than_files_may_be_open_are_read(tmp_path):
    every = write_parts(tmp_path, [1] * 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
    try:
        assert read_completions(tmp_path)[0]["step"].tolist() == every
        assert ends_of_completions(tmp_path, 5)[1] == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_damaged_parts_at_both_ends_are_named_once_and_passed_over(tmp_path):
    every = write_parts(tmp_path, [6] * 5)
    for n in (1, 5):
        (tmp_path / f"completions.parquet/part-{n:06d}.parquet").write_bytes(b"PAR1")
    rows, total, damaged = ends_of_completions(tmp_path, 5)
    assert [row["step"] for row in rows] == every[6:11] + every[19:24]
    assert total == 18
    assert [sentence.partition(": ")[0].rpartition("/")[2] for sentence in damaged] == [
        "part-000001.parquet",
        "part-000005.parquet",
    ]


def test_parts_that_are_joined_while_they_are_read_are_looked_up_again(tmp_path, monkeypatch):
    every = write_parts(tmp_path, [2, 2])
    folder, plain, listed = tmp_path / "completions.parquet", parts.parts_in, []

    def joined_after_listing(where):
        found = plain(where)
        if not listed:
            listed.append(found)
            table = pd.concat([pd.read_parquet(p.path) for p in found])
            table.to_parquet(folder / "part-000001-000002.parquet", index=False)
            for part in found:
                part.path.unlink()
        return found

    monkeypatch.setattr(parts, "parts_in", joined_after_listing)
    assert read_completions(tmp_path)[0]["step"].tolist() == every
