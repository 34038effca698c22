import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import RunError
from workbench.runs.files import jsonable, load_metrics, read_json, write_json, write_text


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "lone surrogate \ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, ["x" * 100] * 1000)
    code = (
        "from pathlib import Path\nfrom workbench.runs.files import write_json\n"
        f"while True: write_json(Path({str(path)!r}), ['x' * 100] * 1000)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert all(len(read_json(path, None)) == 1000 for _ in range(300))
    finally:
        writer.kill()
        writer.wait()


def test_a_missing_file_reads_as_the_default_and_a_damaged_one_is_named(tmp_path):
    assert read_json(tmp_path / "none.json", {"a": 1}) == {"a": 1}
    (tmp_path / "bad.json").write_text('{"a": ')
    with pytest.raises(RunError, match=r"bad.json: not JSON"):
        read_json(tmp_path / "bad.json", {})


def test_numpy_torch_paths_and_numbers_without_end_become_strict_json(tmp_path):
    import torch

    value = {
        "numpy": np.float32(1.5),
        "array": np.arange(2),
        "bool": np.bool_(True),
        "torch": torch.tensor(2),
        "tensor": torch.tensor([1.0, float("nan")]),
        "path": tmp_path,
        "nan": float("nan"),
        "deep": [(float("-inf"),), {1: np.int64(3)}],
    }
    assert jsonable(value) == {
        "numpy": 1.5,
        "array": [0, 1],
        "bool": True,
        "torch": 2,
        "tensor": [1.0, None],
        "path": str(tmp_path),
        "nan": None,
        "deep": [[None], {"1": 3}],
    }
    assert jsonable(value)["bool"] is True


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_whatever_is_jsonable_is_strict_json_and_stays_the_same_the_second_time(value):
    once = jsonable(value)
    assert json.loads(json.dumps(once, allow_nan=False)) == once == jsonable(once)


@pytest.mark.parametrize("half", ['{"step": 3, "rew', "{", '{"step": 3, "text": "\\u00'])
def test_a_last_line_cut_short_by_a_kill_is_left_out(tmp_path, half):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n' + half)
    assert load_metrics(tmp_path / "metrics.jsonl")["step"].tolist() == [1, 2]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, \n{"step": 3}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2: not JSON"):
        load_metrics(tmp_path / "metrics.jsonl")
