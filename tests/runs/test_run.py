import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import write_run
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import ParameterError, RunError
from workbench.runs import run as run_module
from workbench.runs.files import jsonable, load_metrics, read_json, write_json, write_text
from workbench.runs.run import claim_row, create_run, list_runs, load_run, open_run, runs_root, save_result
from workbench.runs.status import _start_time, owner_lives, set_status

HEADLINE = {"name": "reward", "value": -4.0}


def start_and_end_a_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def own(path, **owner):
    """Put another owner into a run's status."""
    status = json.loads((path / "status.json").read_text())
    write_json(path / "status.json", status | {"owner": status["owner"] | owner})


# --- files ---------------------------------------------------------------------------------------------------------


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


# --- metrics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", ['{"step": 3, "rew', "{", '{"step": 3, "text": "\\u00'])
def test_a_last_line_cut_short_by_a_kill_is_left_out(tmp_path, half):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n' + half)
    assert load_metrics(tmp_path / "metrics.jsonl")["step"].tolist() == [1, 2]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, \n{"step": 3}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl, line 2: not JSON"):
        load_metrics(tmp_path / "metrics.jsonl")


def test_a_run_without_metrics_says_so(tmp_path):
    with pytest.raises(RunError, match="logged no step"):
        _ = write_run(tmp_path).metrics


def test_completions_are_one_table_in_the_order_of_their_parts(tmp_path):
    import pandas as pd

    run = write_run(tmp_path, completions=[{"step": 1, "completion": "a"}])
    pd.DataFrame({"step": [2], "completion": ["b"]}).to_parquet(run.path / "completions.parquet/part-000002.parquet")
    assert run.completions["completion"].tolist() == ["a", "b"]
    assert write_run(tmp_path, "2026-2").completions.empty


# --- status --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_run_whoseowner_lives_keeps_its_state(tmp_path, state):
    assert write_run(tmp_path, state=state).status["state"] == state


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_run_whose_owner_is_gone_reads_as_interrupted_and_stays_so(tmp_path, state):
    run = write_run(tmp_path, state=state)
    own(run.path, pid=start_and_end_a_process())
    assert run.status["state"] == "interrupted"
    on_disk = json.loads((run.path / "status.json").read_text())
    assert on_disk["state"] == "interrupted"
    assert "gone" in on_disk["error"]
    assert {state, "interrupted"} <= on_disk["times"].keys()


def test_a_later_process_with_the_same_id_is_not_the_owner(tmp_path):
    run = write_run(tmp_path, state="running")
    own(run.path, started="1")  # this very process id, another start time
    assert run.status["state"] == "interrupted"


def test_a_run_of_another_machine_is_taken_at_its_word(tmp_path):
    run = write_run(tmp_path, state="running")
    own(run.path, pid=start_and_end_a_process(), host="another")
    assert run.status["state"] == "running"


@pytest.mark.parametrize("state", ["done", "failed", "interrupted"])
def test_a_run_that_ended_keeps_its_state_when_its_owner_is_gone(tmp_path, state):
    run = write_run(tmp_path, state=state)
    own(run.path, pid=start_and_end_a_process())
    assert run.status["state"] == state


def test_an_owner_that_ends_well_while_we_look_is_not_called_interrupted(tmp_path, monkeypatch):
    run = write_run(tmp_path, state="running")
    own(run.path, pid=start_and_end_a_process())
    lives = owner_lives

    def look(owner):  # between our reading of the file and our look for the process, the owner finished
        answer = lives(owner)
        set_status(run.path, "done")
        return answer

    monkeypatch.setattr(run_module, "owner_lives", look)
    assert run.status["state"] == "done"


def test_a_folder_without_status_reads_as_interrupted(tmp_path):
    run = write_run(tmp_path)
    (run.path / "status.json").unlink()
    assert run.status["state"] == "interrupted"


def test_an_unknown_state_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="queued, running, done, failed, interrupted"):
        set_status(tmp_path, "finished")


# --- making and finding --------------------------------------------------------------------------------------------


def test_a_new_run_has_a_folder_of_its_own_with_params_env_and_status(tmp_path):
    first, second = (create_run("nb", {"seed": 3}, tmp_path) for _ in range(2))
    assert first.path != second.path
    assert (first.notebook, first.params, first.status["state"]) == ("nb", {"seed": 3}, "queued")
    assert first.env["seed"] == 3
    assert {"trl", "torch"} <= first.env["packages"].keys()


def test_runs_are_listed_oldest_first_and_other_folders_are_passed_over(tmp_path):
    later = write_run(tmp_path, "2026-2")
    earlier = write_run(tmp_path, "2026-1", notebook="00_tour")
    (tmp_path / "00_tour" / "notes").mkdir()
    assert list_runs(tmp_path) == [earlier, later]
    assert list_runs(tmp_path / "nowhere") == []


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        load_run(tmp_path)


def test_runs_lie_beside_the_notebooks_whether_started_there_or_at_the_top(tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBENCH_RUNS", raising=False)
    (tmp_path / "notebooks").mkdir()
    for folder in (tmp_path, tmp_path / "notebooks"):
        monkeypatch.chdir(folder)
        assert runs_root() == tmp_path / "runs"
    monkeypatch.setenv("WORKBENCH_RUNS", "/elsewhere")
    assert str(runs_root()) == "/elsewhere"


def test_a_notebook_without_a_runner_owns_its_run_and_ends_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    run = open_run("nb", "", {"seed": 1})
    assert run.status["state"] == "running"
    save_result(run, headline=HEADLINE, checks={}, numbers={})
    assert run.status["state"] == "done"


def test_a_notebook_under_a_runner_leaves_the_state_to_it(tmp_path):
    folder = write_run(tmp_path, state="running").path
    own(folder, pid=os.getppid(), started=_start_time(os.getppid()))
    run = open_run("nb", str(folder), {"seed": 9})
    save_result(run, headline=HEADLINE, checks={}, numbers={})
    assert run.path == folder
    assert run.params["seed"] == 1  # the runner's, not overwritten
    assert run.status["state"] == "running"


def test_a_fresh_out_dir_given_by_hand_becomes_a_run(tmp_path):
    run = open_run("nb", str(tmp_path / "new"), {"seed": 2})
    assert (run.params, run.status["state"]) == ({"seed": 2}, "running")


@pytest.mark.parametrize("value", [1, "passed", "not run", None, "not run:"])
def test_a_check_is_true_false_or_a_reason_why_it_was_not_run(tmp_path, value):
    run = write_run(tmp_path)
    with pytest.raises(ParameterError, match="'the check'"):
        save_result(run, headline=HEADLINE, checks={"the check": value}, numbers={})


def test_a_result_comes_back_as_it_was_saved(tmp_path):
    run = write_run(tmp_path)
    checks = {"a": np.bool_(True), "b": False, "c": "not run: needs a GPU"}
    claims = {"A4.3": claim_row("at most 0", "-27 to -1", True), "A4.2": claim_row("jumpy", "smooth", False)}
    save_result(run, headline=HEADLINE, checks=checks, numbers={"n": np.int64(3)}, claims=claims)
    assert run.result["checks"] == {"a": True, "b": False, "c": "not run: needs a GPU"}
    assert run.result["numbers"] == {"n": 3}
    assert [c["verdict"] for c in run.result["claims"].values()] == ["agrees", "differs"]


def test_a_claim_that_could_not_be_tested_says_why():
    assert claim_row("8 GPUs", "", "not run: needs 8 GPUs")["verdict"] == "not run: needs 8 GPUs"


def test_a_folder_counts_as_a_run_only_once_its_status_is_there(tmp_path, monkeypatch):
    seen = []
    plain = write_json

    def looking(path, value):
        plain(path, value)
        seen.extend(r.status["state"] for r in list_runs(tmp_path))

    monkeypatch.setattr(run_module, "write_json", looking)
    create_run("by_hand", {}, tmp_path)
    open_run("by_hand", str(tmp_path / "by_hand" / "given"), {})
    assert "interrupted" not in seen
    assert "queued" in seen
    assert "running" in seen
