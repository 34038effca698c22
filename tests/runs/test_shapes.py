import pytest

from workbench.errors import RunError
from workbench.runs.files import read_json, write_json
from workbench.runs.shapes import problem_of, too_deep

STATUS = {"state": "done", "error": None, "owner": {}, "times": {}}
RESULT = {"headline": None, "checks": {}, "numbers": {}, "claims": {}}


@pytest.mark.parametrize(
    "name, value",
    [
        ("params.json", []),
        ("params.json", None),
        ("env.json", "text"),
        ("env.json", {"packages": ["trl"]}),
        ("status.json", []),
        ("status.json", {}),
        ("status.json", STATUS | {"state": "lost"}),
        ("status.json", STATUS | {"state": ["done"]}),
        ("status.json", STATUS | {"error": {"a": 1}}),
        ("status.json", STATUS | {"owner": None}),
        ("status.json", STATUS | {"owner": {"pid": "12"}}),
        ("status.json", STATUS | {"owner": {"pid": 0}}),
        ("status.json", STATUS | {"owner": {"pid": -1}}),
        ("status.json", STATUS | {"owner": {"pid": True}}),
        ("status.json", STATUS | {"owner": {"pid": 2**40}}),
        ("status.json", STATUS | {"owner": {"job": "--user=me"}}),
        ("status.json", STATUS | {"owner": {"log": 3}}),
        ("status.json", STATUS | {"times": {"done": "yesterday"}}),
        ("status.json", STATUS | {"times": {"done": 1e300}}),
        ("status.json", STATUS | {"times": {"done": float("nan")}}),
        ("status.json", STATUS | {"times": [1]}),
        ("result.json", 3),
        ("result.json", RESULT | {"headline": "text"}),
        ("result.json", RESULT | {"headline": {"name": "x"}}),
        ("result.json", RESULT | {"headline": {"name": 1, "value": 2}}),
        ("result.json", RESULT | {"checks": [True]}),
        ("result.json", RESULT | {"claims": {"A0.1": {"verdict": None}}}),
        ("result.json", RESULT | {"claims": {"A0.1": "agrees"}}),
        ("progress.json", {}),
        ("progress.json", {"step": "a", "max_steps": 3}),
        ("progress.json", {"step": 1, "max_steps": -3}),
        ("stop.json", {"reason": 1}),
    ],
)
def test_what_a_run_cannot_have_written_is_refused_and_the_file_is_named(tmp_path, name, value):
    assert problem_of(name, value)
    if value == value and "nan" not in str(value):
        write_json(tmp_path / name, value)
        with pytest.raises(RunError, match=f"{name}: "):
            read_json(tmp_path / name, {})


@pytest.mark.parametrize(
    "name, value",
    [
        ("params.json", {"seed": 1, "stop": None, "list": [1]}),
        ("env.json", {"packages": {"trl": "1.12.0"}, "seed": None, "gpus": []}),
        ("status.json", STATUS | {"owner": {"job": "9_1", "log": None}, "times": {"queued": 0}}),
        ("status.json", {"state": "running", "owner": {"pid": 1, "started": "12", "host": "a"}}),
        ("result.json", RESULT | {"headline": {"name": "reward", "value": None}, "more": 1}),
        ("progress.json", {"step": 0, "max_steps": 80, "finished": False}),
        ("other.json", [1]),
    ],
)
def test_what_runs_write_is_taken_and_what_else_they_hold_too(name, value):
    assert problem_of(name, value) == ""


def test_depth_is_counted_and_not_the_number_of_brackets():
    deep = []
    for _ in range(50):
        deep = [deep]
    assert too_deep(str(deep), deep)
    wide = [[] for _ in range(50)]
    assert not too_deep(str(wide), wide)
