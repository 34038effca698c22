import multiprocessing
import os
import signal
import subprocess
import time

import pytest
from conftest import write_notebook, write_run

from workbench.errors import ParameterError, RunError
from workbench.lab.batch import gpus
from workbench.lab.batch.execute import execute_run
from workbench.lab.batch.gpus import LeftOut, check_gpus, describe_gpus, hold, visible_gpus
from workbench.lab.batch.plan import plan_run
from workbench.lab.reports.index import build_index
from workbench.runs.run import list_runs, set_status
from workbench.runs.summary import RunSummary


@pytest.fixture(autouse=True)
def locks_of_its_own(tmp_path, monkeypatch):
    """No lock of a real GPU is touched: the names are made up, their locks lie in the test's folder."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    for name in ("SLURM_JOB_ID", "WORKBENCH_GPUS_HANDED_OUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")


VALUES = [("0,1", ["0", "1"]), ("", []), ("-1", []), (" GPU-a , MIG-b ", ["GPU-a", "MIG-b"])]


@pytest.mark.parametrize(("value", "names"), VALUES)
def test_the_gpus_are_those_that_cuda_visible_devices_leaves(monkeypatch, value, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert visible_gpus() == names


def test_without_the_variable_nvidia_smi_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    put_nvidia_smi(tmp_path, monkeypatch, "printf '0\\n1\\n2\\n'")
    assert visible_gpus() == ["0", "1", "2"]
    put_nvidia_smi(tmp_path, monkeypatch, "echo No devices were found; exit 6")
    assert visible_gpus() == []
    put_nvidia_smi(tmp_path, monkeypatch, "echo no driver; exit 9")
    assert visible_gpus() == []


def test_a_folder_in_path_that_may_not_be_read_is_no_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidia-smi").mkdir()  # "permission denied" for root too
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermissionError):
        subprocess.run(["nvidia-smi"])
    assert visible_gpus() == []


def put_nvidia_smi(folder, monkeypatch, script):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_PAUSE_S", 0.01)
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_nvidia_smi_that_failed_once_is_asked_again(monkeypatch, tmp_path):
    put_nvidia_smi(tmp_path, monkeypatch, f"[ -e {tmp_path}/asked ] && echo 0 && exit; touch {tmp_path}/asked; exit 15")
    with hold(1, print) as devices:
        assert devices["CUDA_VISIBLE_DEVICES"] == "0"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo GPU is lost >&2; exit 15", r"failed 3 times \(exit code 15: GPU is lost\)"),
        ("exec sleep 9", "timed out after 0.2"),
    ],
)
def test_gpus_are_unknown_if_nvidia_smi_fails(monkeypatch, tmp_path, script, says):
    monkeypatch.setattr(gpus, "_PATIENCE_S", 0.2)
    put_nvidia_smi(tmp_path, monkeypatch, script)
    with pytest.raises(RunError, match=says):
        visible_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0a1b")  # whose lock is called as nvidia-smi numbers it
    with pytest.raises(RunError, match=says), hold(1, print):
        pass


def test_run_fails_if_nvidia_smi_fails(monkeypatch, tmp_path):
    put_nvidia_smi(tmp_path, monkeypatch, "exit 15")
    path = write_notebook(tmp_path / "hand_made.ipynb")
    run = plan_run(str(path), {}, root=tmp_path / "runs").prepare()
    assert execute_run(run, notebook=path, quiet=True) == "failed"
    assert "it is unknown which GPUs there are" in run.status["error"]
    assert not (run.path / "executed.ipynb").exists()


def test_more_gpus_than_there_are_is_refused_naming_those(monkeypatch):
    check_gpus(None)
    check_gpus(2)
    with pytest.raises(ParameterError, match=r"gpus=3: .* visible here: 2 \(7, 8\)"):
        check_gpus(3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ParameterError, match=r"gpus=1: each run asks for 1, none visible here"):
        check_gpus(1)
    with pytest.raises(ParameterError, match="gpus=-1: expected 0 or more"):
        check_gpus(-1)


@pytest.mark.parametrize(
    ("visible", "count", "words"),
    [("7,8", None, "1 for each run, of 7, 8"), ("7,8", 2, "2 for each run, of 7, 8"), ("7,8", 0, "none, of 7, 8"),
     ("", None, "none visible here")]
)  # fmt: skip
def test_what_a_run_would_get_is_said_in_words(monkeypatch, visible, count, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert describe_gpus(count) == words


def give_up(why):
    raise TimeoutError(why)


@pytest.mark.parametrize("job", [None, "1"])
def test_two_holders_never_share_a_gpu_and_a_third_says_it_waits(monkeypatch, job):
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    reasons = []
    with hold(None, reasons.append) as first, hold(1, reasons.append) as second:
        assert {first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]} == {"7", "8"}
        assert reasons == []
        with pytest.raises(TimeoutError, match="waits for 1 of the GPUs 7, 8"), hold(1, give_up):
            pass
        with pytest.raises(TimeoutError, match="waits for 2"), hold(2, give_up):
            pass
    with hold(2, reasons.append) as both:
        assert both["CUDA_VISIBLE_DEVICES"] == "7,8"


def test_none_asked_hides_all_of_them():
    with hold(0, print) as devices:
        assert devices["CUDA_VISIBLE_DEVICES"] == ""


def test_what_a_job_or_a_run_around_has_handed_out_is_left_alone(monkeypatch):
    monkeypatch.setenv("WORKBENCH_GPUS_HANDED_OUT", "1")
    with hold(1, print) as devices, hold(1, print):
        assert devices == {}


def test_a_part_of_a_gpu_whose_name_has_slashes_is_held(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-a/1/0,MIG-GPU-a/2/0")
    with hold(1, give_up) as first, hold(1, give_up) as second:
        assert [first["CUDA_VISIBLE_DEVICES"], second["CUDA_VISIBLE_DEVICES"]] == ["MIG-GPU-a/1/0", "MIG-GPU-a/2/0"]


def _hold_for_ever(started):
    with hold(2, print):
        started.set()
        time.sleep(600)


def test_a_killed_holder_lets_go():
    context = multiprocessing.get_context("fork")
    started = context.Event()
    process = context.Process(target=_hold_for_ever, args=(started,))
    process.start()
    assert started.wait(30)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with hold(2, print) as devices:
        assert devices["CUDA_VISIBLE_DEVICES"] == "7,8"


def test_runs_with_other_temporary_folders_share_their_locks(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "mine"))
    with hold(1, print) as first:
        assert first["CUDA_VISIBLE_DEVICES"] == "7"
        monkeypatch.setenv("TMPDIR", str(tmp_path / "other"))
        monkeypatch.setattr("tempfile.tempdir", None)
        with pytest.raises(TimeoutError, match="too many are taken"), hold(1, give_up):
            pass


def test_an_unwritable_home_says_where_the_locks_could_lie(monkeypatch):
    monkeypatch.delenv("WORKBENCH_CACHE")
    monkeypatch.setenv("HOME", "/dev/null/home")
    says = r"/dev/null/home.*set WORKBENCH_CACHE to a folder for GPU locks"
    with pytest.raises(ParameterError, match=says), hold(1, print):
        pass


def test_gpus_are_not_handed_out_without_locks(monkeypatch):
    monkeypatch.setattr(gpus, "try_lock", lambda number: None)
    with pytest.raises(ParameterError, match="its file system has no locks; set WORKBENCH_CACHE"), hold(1, print):
        pass


# --- a GPU that is broken --------------------------------------------------------------------------------------------

ON_A_STUB = "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] != '1', 'this GPU is broken'"


@pytest.mark.slow
def test_one_broken_gpu_of_three_fails_no_run_of_six(here, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    path = write_notebook(tmp_path / "on_a_stub.ipynb", ON_A_STUB)
    arguments = ["-p", "seed=0..5", "--jobs", "3", "--runs-dir", tmp_path / "runs", "--out", tmp_path / "reports"]
    done = here("sweep", path, *arguments)
    assert done.returncode == 0, done.stderr
    runs = list_runs(tmp_path / "runs")
    assert [run.status["state"] for run in runs] == ["done"] * 6
    assert {run.status["gpus"] for run in runs} == {"0", "2"}
    tried = [[each["environment"]["cuda_visible_devices"] for each in run.executions] for run in runs]
    twice = [gpus for gpus in tried if len(gpus) > 1]  # those that had begun before the first failure was seen
    assert {first for first, _ in twice} == {"1"}
    assert done.stderr.count("failed on GPU 1 before its first training step") == len(twice)


FAILED = {"state": "failed", "error": "broken", "gpus": "7"}


def test_a_gpu_is_left_out_unless_the_run_fails_elsewhere_too():
    left_out = LeftOut(None)
    assert "failed on GPU 7 before its first training step (broken)" in left_out.retries("a", FAILED, trained=False)
    assert left_out.environ()["CUDA_VISIBLE_DEVICES"] == "8"
    assert left_out.retries("a", {"state": "done", "gpus": "8"}, trained=False) == ""
    assert left_out.names == {"7"}
    assert left_out.retries("b", FAILED | {"gpus": "8"}, trained=False) == ""  # there is no other
    assert left_out.names == {"7"}


def test_a_run_that_fails_on_two_gpus_leaves_both_to_others():
    left_out = LeftOut(None)
    assert left_out.retries("a", FAILED, trained=False)
    assert left_out.retries("a", FAILED | {"gpus": "8"}, trained=False) == ""
    assert left_out.names == set()
    assert left_out.environ()["CUDA_VISIBLE_DEVICES"] == "7,8"


@pytest.mark.parametrize(
    ("status", "trained", "count"),
    [
        (FAILED, True, None),
        (FAILED | {"state": "interrupted"}, False, None),
        (FAILED | {"gpus": "7,8"}, False, 2),
        ({"state": "failed", "error": "broken"}, False, None),
    ],
)
def test_no_run_is_tried_again_where_no_gpu_is_suspected(status, trained, count):
    left_out = LeftOut(count)
    assert left_out.retries("a", status, trained) == ""
    assert left_out.names == set()


def test_status_and_pages_name_the_gpu_of_a_run(tmp_path):
    run = write_run(tmp_path / "runs", "20261126-120000", executed=__file__)
    without = build_index([run], tmp_path / "reports").read_text()
    set_status(run.path, "running", gpus="GPU-1a")
    set_status(run.path, "failed", "broken")
    assert "failed: broken, GPU GPU-1a, " in RunSummary.of(run).line
    assert RunSummary.of(run).row["gpus"] == "GPU-1a"
    assert "<th>GPU</th>" in build_index([run], tmp_path / "reports").read_text()
    assert "<th>GPU</th>" not in without
    set_status(run.path, "queued")
    assert "gpus" not in run.status
