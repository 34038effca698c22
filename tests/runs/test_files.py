import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import RunError
from workbench.runs.files import (
    append_rows,
    files_named,
    jsonable,
    last_metrics,
    load_metrics,
    open_lines,
    parse_yaml,
    read_json,
    read_tail,
    read_text,
    write_json,
    write_over,
    write_text,
)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "lone surrogate \ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_rows_are_with_the_system_when_appending_returns(tmp_path):
    with open_lines(tmp_path / "rows.jsonl") as file:
        append_rows(file, [{"step": 1}, {"step": 2}])
        assert (tmp_path / "rows.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, ["x" * 100] * 1000)
    code = "from pathlib import Path; import sys; from workbench.runs.files import write_json\n"
    code += "while True: write_json(Path(sys.argv[1]), ['x' * 100] * 1000)"
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        assert all(len(read_json(path, None)) == 1000 for _ in range(300))
    finally:
        writer.kill()
        writer.wait()


def test_numpy_torch_paths_and_infinities_become_strict_json(tmp_path):
    import torch

    value = {"numpy": np.float32(1.5), "array": np.arange(2), "bool": np.bool_(True), "torch": torch.tensor(2),
             "tensor": torch.tensor([1.0, float("nan")]), "path": tmp_path, "nan": float("nan"),
             "deep": [(float("-inf"),), {1: np.int64(3)}]}  # fmt: skip
    strict = {"numpy": 1.5, "array": [0, 1], "bool": True, "torch": 2, "tensor": [1.0, None], "path": str(tmp_path),
              "nan": None, "deep": [[None], {"1": 3}]}  # fmt: skip
    assert jsonable(value) == strict
    assert jsonable(value)["bool"] is True


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(values)
def test_a_second_jsonable_changes_nothing_of_its_strict_json(value):
    once = jsonable(value)
    assert json.loads(json.dumps(once, allow_nan=False)) == once == jsonable(once)


@pytest.mark.parametrize("half", ['{"step": 3, "rew', "{", '{"step": 3, "text": "\\u00'])
def test_a_last_line_cut_short_by_a_kill_is_left_out(tmp_path, half):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n' + half)
    assert load_metrics(tmp_path / "metrics.jsonl")["step"].tolist() == [1, 2]


@pytest.mark.parametrize("line", ['{"step": 1}{"step": 2}', '{"step": ', "[1]", "nothing", '{"step": "\\ud8'])
def test_a_damaged_line_is_named_by_its_number(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' * 5 + line + "\n" + '{"step": 1}\n' * 5)
    with pytest.raises(RunError, match=r"metrics.jsonl, line 6: "):
        load_metrics(tmp_path / "metrics.jsonl")


# --- a folder from anyone -------------------------------------------------------------------------------------------


def test_links_pipes_and_folders_are_not_opened_nor_waited_for(tmp_path):
    (tmp_path / "private").write_text('{"secret": 1}')
    (tmp_path / "link.json").symlink_to(tmp_path / "private")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("link.json", "pipe.json", "folder.json"):
        for read in (lambda p: read_json(p, {}), read_text, lambda p: read_tail(p, 10), load_metrics, last_metrics):
            with pytest.raises(RunError, match=rf"{name}: .*not opened"):
                read(tmp_path / name)


@pytest.mark.parametrize("text", ['{"a": ', "[" * 200_000, "9" * 5000, "\0{}"])
def test_a_missing_file_is_the_default_and_odd_json_is_named(tmp_path, text):
    assert read_json(tmp_path / "a.json", {"a": 1}) == {"a": 1}
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RunError, match=r"a.json: not JSON"):
        read_json(tmp_path / "a.json", {})


@pytest.mark.parametrize("text", ["", "\n", "\0" * 512])
def test_what_a_power_cut_emptied_reads_as_missing(tmp_path, text):
    (tmp_path / "status.json").write_text(text)
    assert read_json(tmp_path / "status.json", {"a": 1}) == {"a": 1}


def test_a_durable_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def of(number):
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        done.append(("synced", path.name))
        fsync(number)

    monkeypatch.setattr(os, "fsync", of)
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(("named", Path(b).name)), replace(a, b)))
    write_json(tmp_path / "a.json", {}, durable=True)
    assert [what for what, _ in done] == ["synced", "named", "synced"]
    assert done[0][1].startswith(".a.json.")
    assert done[1:] == [("named", "a.json"), ("synced", tmp_path.name)]


def test_a_file_system_that_cannot_sync_is_no_error(tmp_path, monkeypatch):
    def fails(number):
        raise OSError(code, "")

    monkeypatch.setattr(os, "fsync", fails)
    code = errno.EINVAL
    write_json(tmp_path / "a.json", 1, durable=True)
    code = errno.EIO
    with pytest.raises(OSError):
        write_json(tmp_path / "a.json", 2, durable=True)
    assert read_json(tmp_path / "a.json", None) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_is_written_over_only_within_its_blocks(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": "x" * 100})
    write_over(path, {"a": "y"})
    assert read_json(path, {}) == {"a": "y"}
    with pytest.raises(OSError, match="No space left"):
        write_over(path, {"a": "x" * 100_000})
    assert read_json(path, {}) == {"a": "y"}


def test_a_file_larger_than_a_run_writes_is_refused_unread(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(10**12)  # sparse
    with pytest.raises(RunError, match=r"a.json: larger than 64 MB"):
        read_json(tmp_path / "a.json", {})


def test_the_tail_of_a_file_starts_with_a_whole_character(tmp_path):
    (tmp_path / "log.txt").write_text("é" * 10, encoding="utf-8")
    assert read_tail(tmp_path / "log.txt", 5) == "éé"
    assert read_tail(tmp_path / "log.txt", 1000) == "é" * 10


@pytest.mark.parametrize("end", ["", "\n", '\n{"step": 9', "\n\n", "\n{"])
def test_the_last_line_is_found_however_the_file_ends(tmp_path, end):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' * 50_000 + '{"step": 2, "text": "' + "x" * 200_000 + '"}' + end)
    assert last_metrics(path)["step"] == 2
    assert load_metrics(path)["step"].iloc[-1] == 2
    path.write_text(end.lstrip('{"step: 9'))
    assert last_metrics(path) == {}


def test_a_damaged_last_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n[2]\n')
    with pytest.raises(RunError, match=r"metrics.jsonl, \[2\] is no object"):
        last_metrics(tmp_path / "metrics.jsonl")


def test_files_are_found_by_name_though_folders_vanish_meanwhile(tmp_path, monkeypatch):
    for name in ("a", "b/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").touch()
    assert files_named(tmp_path, "metrics.jsonl") == [tmp_path / n / "metrics.jsonl" for n in ("a", "b/c")]
    looked, scandir = [], os.scandir

    def vanishing(path):
        looked.append(path)
        if len(looked) == 2:
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert len(files_named(tmp_path, "metrics.jsonl")) == 1


# --- what a run's files must hold ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, value",
    [("params.json", []), ("env.json", "text"), ("status.json", []), ("status.json", {}), ("status.json", {"state": "lost"}),
     ("status.json", {"state": "done", "times": {"running": "noon"}}), ("status.json", {"state": "done", "gpus": 1}),
     ("status.json", {"state": ["done"]}), ("status.json", {"state": "done", "owner": None}),
     ("status.json", {"state": "done", "owner": {"job": "--user=me"}}), ("status.json", {"state": "done", "owner": {"job": 3}}),
     ("status.json", {"state": "done", "owner": {"log": 5}}), ("status.json", {"state": "done", "ran_s": "1"}),
     ("result.json", 3), ("result.json", {"results": [True]}), ("result.json", {"results": {"a": 1}}),
     ("result.json", {"headline": "best"}), ("result.json", {"headline": {"name": "reward"}}),
     ("result.json", {"numbers": [1]}),
     ("result.json", {"headline": {"name": 1, "value": 2}}), ("result.json", {"results": [{"says": "a", "why": 5}]}),
     ("result.json", {"results": [{"says": "a", "holds": "yes", "why": "b"}]}),
     ("result.json", {"results": [{"says": "a", "holds": True, "claim": []}]}),
     ("progress.json", {}), ("progress.json", {"step": "a", "max_steps": 3})]
)  # fmt: skip
def test_what_a_run_cannot_have_written_is_refused_by_file_name(tmp_path, name, value):
    write_json(tmp_path / name, value)
    with pytest.raises(RunError, match=f"{name}: "):
        read_json(tmp_path / name, {})


@pytest.mark.parametrize(
    "name, value",
    [("params.json", {"seed": 1, "stop": None, "list": [1]}), ("status.json", {"state": "queued", "owner": {"job": "9_1"}}),
     ("status.json", {"state": "running", "owner": {"pid": 1, "started": "12", "host": "a"}}),
     ("result.json", {"headline": {"name": "reward", "value": None}, "more": 1}),
     ("progress.json", {"step": 0, "max_steps": 80, "finished": False}), ("other.json", [1])]
)  # fmt: skip
def test_what_runs_write_is_taken_and_what_else_they_hold_too(tmp_path, name, value):
    write_json(tmp_path / name, value)
    assert read_json(tmp_path / name, {}) == value


# --- YAML of somebody else -------------------------------------------------------------------------------------------

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
LAUGHS += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "its aliases stand for more than 1,000,000 values"),
        ("a: &a [1, *a]", "its aliases stand for more than 1,000,000 values"),
        ("[" * 5000, "not YAML"),
        ("a: [", "not YAML"),
    ],
    ids=["laughs", "of itself", "deep", "torn"],
)
def test_yaml_that_unfolds_without_end_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        parse_yaml(text)


def test_yaml_with_a_few_aliases_is_read():
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: [*a, *a]") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": [{"x": 1}, {"x": 1}],
    }
