import json
import os
import re
import socket
import subprocess
import sys
import time

import psutil
import pytest
from conftest import ROOT, call, daily, until, write_notebook, write_run

from workbench.errors import RunError
from workbench.lab.batch import manage
from workbench.runs import lock
from workbench.runs.files import read_json, write_json
from workbench.runs.run import list_runs, set_status
from workbench.runs.stop_request import stop_request
from workbench.runs.summary import RunSummary

TRAIN = """\
import time
from workbench.errors import TrainingStopped
from workbench.runs.files import write_json
from workbench.runs.stop_request import stop_request
for step in range(1, 601):
    write_json(run.path / "progress.json", {"step": step, "max_steps": 600, "elapsed_s": step / 10})  # whole at any moment
    print(f"step {step}", flush=True)
    time.sleep(0.1)
    if why := stop_request(run.path):
        raise TrainingStopped(f"stopped after step {step}: {why}")"""


def going(tmp_path, *cells):
    """A `workbench run` process of a notebook with these cells, and its run once the notebook runs."""
    path, quiet = write_notebook(tmp_path / "hand_made.ipynb", *cells), subprocess.DEVNULL
    command = [sys.executable, "-m", "workbench", "run", str(path), "-q", "--runs-dir", str(tmp_path / "runs")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet)
    until(lambda: [run for run in list_runs(tmp_path / "runs") if run.status["state"] == "running"])
    return process, list_runs(tmp_path / "runs")[0]


def test_a_run_is_found_by_id_notebook_and_id_folder_or_as_last(tmp_path):
    first, second = write_run(tmp_path, "2026-1"), write_run(tmp_path, "2026-2")
    names = ("2026-1", "05_grpo_docs_example/2026-1", str(first.path))
    assert [manage.find_run(name, tmp_path).path for name in names] == [first.path] * 3
    assert manage.find_run("last", tmp_path).path == second.path


def test_a_notebook_s_name_means_all_of_its_runs(tmp_path, capsys):
    runs = [write_run(tmp_path, f"2026-{n}") for n in (1, 2)]
    other = write_run(tmp_path, "2026-3", notebook="other")
    for name in (runs[0].notebook, f"{runs[0].notebook}.ipynb"):
        assert manage.find_runs(name, tmp_path) == runs
    assert manage.find_runs("2026-3", tmp_path) == [other]
    (runs[-1].path / "log.txt").write_text("of the newest")
    assert call(capsys, "logs", runs[0].notebook, "--runs-dir", tmp_path) == (0, "of the newest", "")
    assert call(capsys, "status", "--runs-dir", tmp_path)[1].endswith("; audit: 3 not audited\n")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("logs 2025", "run '2025': not found; the newest are .*b/2026-1"),
        ("logs 2026-1", "there are several: a/2026-1, b/2026-1; write NOTEBOOK/RUN"),
        ("cancel a/2026-1", "is done; only a queued or running run can be cancelled"),
    ],
)
def test_run_that_cannot_be_meant_is_refused(capsys, tmp_path, command, says):
    for notebook in "ab":
        write_run(tmp_path, "2026-1", notebook=notebook)
    code, out, err = call(capsys, *command.split(), "--runs-dir", tmp_path)
    assert (code, out) == (2, "") and re.search(says, err)
    none = call(capsys, "logs", "last", "--runs-dir", tmp_path / "none")
    assert none[0] == 2 and "there are no runs yet; `workbench run NOTEBOOK` makes one" in none[2]


def test_status_shows_every_run_from_its_folder(capsys, tmp_path):
    result = {"headline": {"name": "reward", "value": -4.0}, "results": [{"says": "a", "holds": False}]}
    write_run(tmp_path, "1", result=result)
    run = write_run(tmp_path, "2", state="running")
    write_json(run.path / "progress.json", {"step": 3, "max_steps": 80, "elapsed_s": 1.0})
    failed = write_run(tmp_path, "3")
    set_status(failed.path, "failed", "cell 3: ValueError: \x1b[31mno\x1b[0m \x1b]0;title\x07")
    lock.let_go(write_run(tmp_path, "4", state="running").path)  # its process was killed
    code, out, _ = call(capsys, "status", "--runs-dir", tmp_path)
    lines = out.splitlines()
    assert code == 1
    assert lines[-1].endswith("; audit: 3 not audited; 2 failed: "
                              "05_grpo_docs_example/1, 05_grpo_docs_example/3")  # fmt: skip
    assert call(capsys, "status", "--runs-dir", tmp_path, "2", "4")[0] == 0
    assert lines[0].endswith(" 1: done, reward -4, 1 checks failed: a; not audited")
    assert f" 2: running, step 3/80, on {socket.gethostname()}, process {os.getpid()}, " in lines[1]
    assert lines[2].endswith(r" 3: failed: cell 3: ValueError: no \x1b]0;title\x07; not audited")
    assert " 4: interrupted: the process that ran it is gone" in lines[3]
    _, out, _ = call(capsys, "status", "--runs-dir", tmp_path, "--json", "2")
    (row,) = map(json.loads, out.splitlines())
    assert (row["state"], row["progress"], row["owner"]["pid"]) == ("running", "step 3/80", os.getpid())
    assert call(capsys, "status", "--runs-dir", tmp_path / "none")[:2] == (0, f"no runs in {tmp_path / 'none'}\n")


def test_logs_shows_what_was_printed_without_terminal_commands(capsys, tmp_path):
    run = write_run(tmp_path, "1")
    (run.path / "log.txt").write_text("h\u00e9llo\n\x1b[31mred\x1b[0m \x1b]8;;https://example.org\x07link\rend\u202e\n")
    code, out, _ = call(capsys, "logs", "1", "--runs-dir", tmp_path)
    assert (code, out) == (0, "h\u00e9llo\nred \\x1b]8;;https://example.org\\x07link\nend\\u202e\n")
    write_run(tmp_path, "2")
    code, out, err = call(capsys, "logs", "2", "--runs-dir", tmp_path)
    assert (code, out) == (2, "")
    assert "no log, which `workbench run` writes; the run is done" in err


def test_only_force_cancels_another_machines_run_and_it_says_so(tmp_path):
    run = write_run(tmp_path, "1", state="running")
    status = read_json(run.path / "status.json", {})
    lock.let_go(run.path)
    write_json(run.path / "status.json", status | {"owner": {"pid": os.getpid(), "host": "elsewhere"}})
    with pytest.raises(RunError, match=r"is running on elsewhere, .*cannot be checked from here; cancel it there"):
        manage.cancel(run)
    manage.cancel(run, grace=0, force=True)
    assert run.status["state"] == "interrupted"
    assert "cancelled with --force while running on elsewhere, as its status says" in run.status["error"]


@pytest.fixture
def started():
    """Starts a process that lives until the test ends and whose command ends in a word."""
    children = []

    def start(word: str) -> psutil.Process:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", word]))
        process = psutil.Process(children[-1].pid)
        until(process.cmdline)  # empty for a moment while the program is loaded
        return process

    yield start
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def process(started):
    return started("ipykernel_launcher")


def owned_by(process: psutil.Process, tmp_path):
    run = write_run(tmp_path, "1", state="running")  # the lock is held, by this process
    set_status(run.path, "running", owner={"pid": process.pid, "host": socket.gethostname()})
    return run


def test_a_run_in_a_notebook_s_kernel_is_left_to_jupyterlab(process, tmp_path):
    run = owned_by(process, tmp_path)
    with pytest.raises(RunError, match=f"a notebook's kernel, process {process.pid}; interrupt it in JupyterLab"):
        manage.cancel(run)
    assert run.status["state"] == "running"


def test_a_folder_from_elsewhere_can_end_no_process_of_mine(started, tmp_path):
    mine = started("workbench")
    run = owned_by(mine, tmp_path)
    with pytest.raises(RunError, match=f"process {mine.pid} does not hold its lock and was not ended"):
        manage.cancel(run)
    assert mine.is_running()


def test_a_process_of_another_user_is_named(process, tmp_path, monkeypatch):
    def deny(_):
        raise psutil.AccessDenied(process.pid)

    run = owned_by(process, tmp_path)
    monkeypatch.setattr(psutil.Process, "cmdline", deny)
    with pytest.raises(RunError, match=f"process {process.pid} belongs to another user"):
        manage.cancel(run)


def test_a_run_of_slurm_is_cancelled_there(tmp_path, monkeypatch):
    run = write_run(tmp_path, "1")
    set_status(run.path, "queued", owner={"job": "9_1"})
    monkeypatch.setattr(manage, "refresh", lambda runs: None)
    monkeypatch.setattr(manage, "cancel_job", lambda run: set_status(run.path, "interrupted", "Slurm: cancelled"))
    manage.cancel(run)
    assert run.status["error"] == "Slurm: cancelled"


@pytest.mark.slow
def test_cancel_lets_a_step_finish_and_log_follows_to_the_end(capsys, tmp_path):
    process, run = going(tmp_path, TRAIN)
    pieces = manage.read_log(run, follow=True)
    assert "step 1" in next(pieces) + next(pieces)
    code, out, _ = call(capsys, "cancel", run.id, "--runs-dir", tmp_path / "runs")
    assert code == 0
    assert f"hand_made {run.id}: interrupted: stopped after step " in out
    assert ": cancelled" in out
    assert process.wait(30) == 130
    assert "step 600" not in "".join(pieces)  # it ends with the run


SLEEPS = "import time; time.sleep(600)"


@pytest.mark.slow
@pytest.mark.parametrize("cell", daily([SLEEPS, TRAIN], SLEEPS))
def test_what_does_not_train_or_gets_no_grace_is_ended_at_once(capsys, tmp_path, cell):
    process, run = going(tmp_path, cell)
    began = time.monotonic()
    grace = ["--grace", "0"] if cell == TRAIN else []
    assert call(capsys, "cancel", run.id, *grace, "--runs-dir", tmp_path / "runs")[0] == 0
    assert run.status["error"] == "stopped by Ctrl-C or SIGTERM"
    assert process.wait(30) == 130
    assert time.monotonic() - began < 45  # it did not wait for the grace of a training


@pytest.mark.slow
def test_a_run_waits_for_a_free_gpu_says_why_and_then_gets_it(tmp_path, monkeypatch):
    from workbench.lab.batch.gpus import hold

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "made-up")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    cell = "import os\n(run.path / 'gpu').write_text(os.environ['CUDA_VISIBLE_DEVICES'])"
    path = write_notebook(tmp_path / "hand_made.ipynb", cell)
    command = [sys.executable, "-m", "workbench", "run", str(path), "-q", "--runs-dir", str(tmp_path / "runs")]
    with hold(1, print):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        until(lambda: list_runs(tmp_path / "runs"))
        (run,) = list_runs(tmp_path / "runs")
        until(lambda: run.status["error"])
        assert run.status["state"] == "queued"
        assert "waits for 1 of the GPUs made-up" in RunSummary.of(run).line
    assert process.wait(60) == 0
    assert (run.path / "gpu").read_text() == "made-up"


# What shows secrets in each way that a cell has. The second is put together, so the source does not hold it.
SHOWS = """\
import os
import ipywidgets as w
from IPython.display import HTML, display
token, value = os.environ["HF_TOKEN"], "S3cret" + "Value42"
print(token)
display(HTML(f"<b>{token}</b>"))
display({"image/png": "iVBORw0KGgo="}, raw=True)
print("HF_TOKEN=", end="", flush=True)
print(value, flush=True)
late, text = w.Password(), w.Text(value="stays")
late.value = value
display(w.Text(description="api_key", value=value), w.HTML("HF_TOKEN=" + value), late, text)
display(HTML(f"<th>HF_TOKEN</th><td>{value}</td>"))
display({"application/json": {"api_key": [value]}}, raw=True)"""
PRINTS_A_KEY = """\
import logging
lines = [f"MIIE{n}" + "AbCdEfGh" * 7 for n in range(8)]
key = ["-----BEGIN " + "PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----", "shown behind it"]
for line in key:
    print(line, flush=True)
logging.basicConfig(level="INFO", format="%(asctime)s [%(levelname)s] %(message)s")
for line in key:
    logging.info(line)
print("\\n".join(key))"""
RAISES = """\
password = 'S3cretOfTheTraceback42'
raise RuntimeError("401 for " + token + password * 0)"""


@pytest.mark.slow
def test_no_secret_is_in_any_file_or_output_of_a_run(here, tmp_path, monkeypatch):
    """All that a run leaves and prints; runs/test_secrets.py has the forms, lab/reports/test_redact.py each place of a page."""
    secret, runs = "hf_" + "aB3dE5" * 6, tmp_path / "runs"
    path = write_notebook(tmp_path / "hand_made.ipynb", SHOWS, PRINTS_A_KEY, RAISES)
    monkeypatch.setenv("HF_TOKEN", secret)
    process = here("run", path, "--runs-dir", runs)
    assert process.returncode == 1 and "401 for [token]" in process.stdout
    (run,) = list_runs(runs)
    texts = {"run": process.stdout + process.stderr}
    pages = [tmp_path / "reports", tmp_path / "copies"]
    for command in (["status", "--runs-dir", runs], ["status", "--runs-dir", runs, "--json"], ["logs", run.path],
                    ["report", "--runs-dir", runs, "--out", pages[0]], ["report", run.path, "--redact", "--out", pages[1]],
                    ["run", path, f"--token={secret}"]):  # fmt: skip
        outcome = here(*command)
        texts[str(command[:3])] = outcome.stdout + outcome.stderr
    files = [file for root in (runs, *pages) for file in root.rglob("*") if file.is_file()]
    texts |= {str(file): file.read_text(errors="replace") for file in files}
    written = {file.name for file in files}
    assert {
        "log.txt",
        "status.json",
        "params.json",
        "env.json",
        "executed.ipynb",
        "report.html",
        "index.html",
    } <= written
    shown = (secret, "S3cretValue42", "AbCdEfGh" * 2)  # the cell's own code has the last once
    assert [name for name, text in texts.items() if any(part in text for part in shown)] == []
    assert texts[str(run.path / "log.txt")].count("shown behind it") == 3
    assert "unrecognized arguments: --token=[token]" in texts[str(["run", path, f"--token={secret}"])]
    executed = (run.path / "executed.ipynb").read_text()
    outputs = [output for cell in json.loads(executed)["cells"] for output in cell.get("outputs", [])]
    raised = str([output for output in outputs if "traceback" in output])
    assert "password" in raised and "S3cretOfTheTraceback42" not in raised  # in the colours of IPython
    assert executed.count("[token]") >= 10 and "iVBORw0KGgo=" in executed and '"stays"' in executed
    assert "401 for [token]" in run.status["error"] and "[token]" in texts[str(run.path / "log.txt")]


def test_a_refused_cancel_leaves_no_stop_request(tmp_path, monkeypatch):
    """Else the next training in the run's kernel would end at once."""
    run = write_run(tmp_path, "1", state="running")
    write_json(run.path / "progress.json", {"step": 1, "max_steps": 4, "elapsed_s": 1.0, "finished": False})
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: ["python", "-m", "ipykernel_launcher"])
    with pytest.raises(RunError, match="interrupt it in JupyterLab"):
        manage.cancel(run, grace=0.1)
    assert stop_request(run.path) is None
