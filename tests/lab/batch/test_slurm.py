"""Runs as jobs of a real Slurm: a private cluster of two nodes with fake GPUs, see slurm_cluster.py."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
from conftest import ROOT, until, workbench, write_notebook

from workbench import cli
from workbench.errors import ParameterError, RunError
from workbench.lab.batch import slurm, slurm_state
from workbench.lab.batch.slurm import SlurmOptions
from workbench.runs.files import read_json
from workbench.runs.run import create_run, list_runs, set_status

SMALL = SlurmOptions(mem="2G", time=5)
WAIT = "import time\nfor _ in range(3000):\n    time.sleep(0.1)"
TRAIN = """\
import os, time
from workbench.runs.stop_request import stop_request
from workbench import make_recipe
from workbench.experiments import train
calls = []
def reward(completions, **_):
    calls.append(1)
    while len(calls) == 2 and "SLURM_RESTART_COUNT" not in os.environ and not stop_request(run.path):
        (run.path / "training").touch(); time.sleep(0.1)
    return [-float(len(text)) for text in completions]
fields = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8, "save_steps": 50}
train(make_recipe("starter", max_steps=4, **fields), reward_funcs=reward, record_dir=run.path)"""
LOOP = """\
import os, time
from workbench.runs.stop_request import stop_request
from workbench.errors import TrainingStopped
while "SLURM_RESTART_COUNT" not in os.environ:
    (run.path / "training").touch(); time.sleep(0.1)
    if stop_request(run.path):
        raise TrainingStopped("stopped after step 2: " + stop_request(run.path))"""
WHERE = """\
import json, os, time
began = time.time(); time.sleep(4)
where = {k: os.environ[k] for k in ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "MY_SECRET")}
(run.path / "where.json").write_text(json.dumps(where | {"began": began, "ended": time.time()}))"""


@pytest.fixture(scope="module")
def cluster():
    with slurm_cluster.cluster():
        yield


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Submits one run for each list of cells, all as one array; every job has ended with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    runs = []

    def submit(*cells: str, **options) -> list:
        path = write_notebook(tmp_path / f"by_hand_{len(runs)}.ipynb", f"exec({cells!r}[seed])")
        made = [create_run("by_hand", {"seed": n, "steps": 3}, tmp_path / "runs") for n in range(len(cells))]
        slurm.submit(made, path, SlurmOptions(**{"mem": "1G", "time": 5} | options))
        runs.extend(made)
        return made

    yield submit
    for run in runs:
        subprocess.run(["scancel", "--quiet", job(run)], check=False)


def ended(runs, seconds: float = 120) -> list[tuple[str, str]]:
    """State and error of each run once none goes on, by their folders and one question to Slurm a poll."""

    def all_ended():
        slurm_state.refresh(runs)
        return not any(run.status["state"] in ("queued", "running") for run in runs)

    until(all_ended, "the end of all runs", seconds)
    return [(run.status["state"], run.status["error"]) for run in runs]


def running(run) -> None:
    until(lambda: run.status["state"] == "running", "a run to start", 60)


def job(run) -> str:
    return run.status["owner"]["job"]


# --- options, without a cluster ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time": -1}, "slurm time=-1: expected a whole number of at least 0"),
        ({"gpus": "many"}, "slurm gpus='many': expected a number, or a kind and a number as in a100:1"),
        ({"gpus": -1}, "slurm gpus=-1"),
        ({"cpus": True}, "slurm cpus=True"),
        *(({"mem": text}, "--mem .*e.g. 64G") for text in ("lots", "", "-4", "64GB/s", "nan", "inf", "1.5")),
        ({"parallel": 0}, "slurm parallel=0"),
        ({"requeues": -1}, "slurm requeues=-1"),
        ({"partition": "a b"}, "slurm partition='a b'"),
        ({"extra": {"--qos": "x"}}, "without its dashes"),
        ({"extra": {"qos": "x\n#SBATCH -n 9"}}, "without its dashes"),
        ({"extra": {"nodes": "2"}}, "because each run is a single process"),
        ({"extra": {"time": "9"}}, "--sbatch time=9: use --time"),
        ({"extra": {"signal": "INT@9"}}, "expected USR2@SECONDS"),
    ],
)
def test_wrong_option_is_named(fields, message):
    with pytest.raises(ParameterError, match=message):
        SlurmOptions(**fields)


@pytest.mark.parametrize(("given", "parallel"), [([], None), (["--jobs", "1"], 1), (["--jobs", "4"], 4)])
def test_jobs_limit_what_runs_at_a_time_only_where_given(given, parallel):
    args = cli._parser().parse_args(["sweep", "00_start_here", "--executor", "slurm", *given])
    assert cli._slurm_options(args).parallel == parallel


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("60", 60), ("4:00", 4), ("4:30", 5), ("4:00:00", 240), ("1-0", 1440), ("1-2:3", 1563), ("1-2:3:1", 1564),
     ("UNLIMITED", 0)]
)  # fmt: skip
def test_time_limit_is_read_as_sbatch_reads_it(text, minutes):
    assert slurm.parse_time(text) == minutes


@pytest.mark.parametrize("text", ["four hours", "", "1:2:3:4", "-5", "1-", "nan"])
def test_time_limit_in_another_form_is_refused(text):
    with pytest.raises(ParameterError, match=r"--time .*hours:minutes:seconds"):
        slurm.parse_time(text)


def script(folder, count: int = 1, notebook: str = "by_hand", **options) -> list[str]:
    """The lines of a script that are no comments."""
    text = slurm.script(Path(f"{notebook}.ipynb"), count, SlurmOptions(**options), folder)
    return [line for line in text.splitlines() if re.match("#SBATCH|[^#]", line)]


def test_script_asks_for_what_the_options_say(tmp_path):
    asked = {"partition": "low", "time": 7, "gpus": "a100:1", "cpus": 3, "mem": "1536M", "parallel": 4}
    setup = ["module load cuda", "conda activate rl"]
    asked |= {"extra": {"qos": "x y", "hold": ""}, "setup": setup, "python": "apptainer exec x.sif python"}
    *lines, command = script(tmp_path / "a b", 6, **asked)
    assert [line.removeprefix("#SBATCH --") for line in lines] == [
        "job-name=by_hand", "partition=low", "time=7", "cpus-per-task=3", "mem=1536M", "gpus-per-node=a100:1", "nodes=1",
        "array=0-5%4", f"output='{tmp_path}/a b/%A_%a.log'", "open-mode=append", "requeue", "signal=USR2@105",
        "qos='x y'", "hold", *setup,
    ]  # fmt: skip
    srun, _, python = command.partition(" apptainer exec x.sif python -u -m workbench.lab.batch.node ")
    assert srun.startswith("srun ") and python == f"'{tmp_path}/a b' ${{SLURM_ARRAY_TASK_ID:-0}}"


def test_script_has_no_line_for_what_nobody_asked(tmp_path):
    text = "\n".join(script(tmp_path, extra={"mem-per-cpu": "4G"}))
    assert not re.search("partition|gpus|array=|--mem=|{{", text)
    assert "#SBATCH --mem-per-cpu=4G" in text and f"#SBATCH --output={tmp_path}/%j.log" in text
    assert "#SBATCH --mem=64G" in script(tmp_path, mem="64")


def test_percent_in_the_folder_is_no_number_of_a_job(tmp_path):
    """Slurm would put its own numbers for `%j`, and the folder of the log would not exist."""
    assert f"#SBATCH --output='{tmp_path}/r 50%%j/%j.log'" in script(tmp_path / "r 50%j")
    assert f"#SBATCH --output={tmp_path}/%%A/%A_%a.log" in script(tmp_path / "%A", 2)


def test_script_quotes_the_notebook_name(tmp_path):
    lines = script(tmp_path, notebook="$(touch PWNED); `touch PWNED` 'a' #")
    assert [line.startswith("#SBATCH --job-name='") for line in lines if "PWNED" in line] == [True]


DEFAULT = slurm.TEMPLATE.read_text()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            DEFAULT + "{{ colour }}\n",
            {},
            "unknown {{ colour }}; there are job_name, partition, time, cpus, mem, gpus, ",
        ),
        (DEFAULT.replace("{{ command }}", "true"), {}, "has no {{ command }}, which every job needs"),
        (DEFAULT.replace("#SBATCH --array", "##SBATCH --array"), {}, "has no {{ array }}, which every job needs"),
        (DEFAULT.replace("{{ mem }}", "64G"), {"mem": "8G"}, "has no {{ mem }}, so that --mem would be ignored"),
        (
            DEFAULT.replace("{{ setup }}", ""),
            {"setup": ["true"]},
            "has no {{ setup }}, so that --setup would be ignored",
        ),
        ("module load cuda\n" + DEFAULT, {}, "Slurm ignores '#SBATCH --job-name=by_hand' after a command"),
        (b"\xff", {}, "can't decode byte 0xff"),
        (None, {}, "No such file or directory"),
    ],
)
def test_template_with_a_mistake_is_refused(tmp_path, text, options, message):
    template = tmp_path / "mine.sbatch"
    if text:
        template.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ParameterError, match=re.escape(f"--sbatch-template {template}: ") + ".*" + re.escape(message)):
        script(tmp_path, template=template, **options)


def test_template_may_fix_what_no_option_asks(tmp_path):
    template = tmp_path / "mine.sbatch"
    template.write_text(DEFAULT.replace("{{ mem }}", "64G").replace("{{ gpus }}", "2"))
    assert {"#SBATCH --mem=64G", "#SBATCH --gpus-per-node=2"} <= set(script(tmp_path, template=template))


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ({"MaxArraySize": "1001"}, [1001, 1001, 498]),
        ({"MaxArraySize": "0"}, [1] * 2500),
        ({"MaxArraySize": "5000"}, [2500]),
        ({}, [2500]),
    ],
)
def test_sweep_is_cut_into_arrays_of_the_cluster(monkeypatch, config, sizes):
    monkeypatch.setattr(slurm, "slurm_config", lambda: config)
    assert slurm.array_sizes(2500) == sizes


def test_submitted_folder_is_of_the_user_alone(tmp_path, monkeypatch):
    answer = subprocess.CompletedProcess([], 0, "a message of this site\n7;test\n", "")
    monkeypatch.setattr(slurm, "slurm_command", lambda *_, **__: answer)
    monkeypatch.setattr(slurm, "slurm_config", dict)
    runs, before = [create_run("by_hand", {}, tmp_path) for _ in range(2)], os.umask(0o002)
    try:
        slurm.submit(runs, tmp_path / "by_hand.ipynb", SMALL, {"cwd": "/"})
    finally:
        os.umask(before)
    (folder,) = (tmp_path / ".slurm").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in folder.iterdir()) == ["job.sbatch", "tasks.json"]
    tasks = {"runs": [str(run.path) for run in runs], "notebook": str(tmp_path / "by_hand.ipynb")}
    assert read_json(folder / "tasks.json", {}) == tasks | {"requeues": 10, "how": {"cwd": "/"}}
    assert [run.status["owner"] for run in runs] == [
        {"job": f"7_{n}", "log": f"{folder}/7_{n}.log", "cluster": None} for n in range(2)
    ]


# --- a real cluster ------------------------------------------------------------------------------------------------


def high_priority_job(*options: str) -> None:
    """Wants both nodes to itself for a second, so that every job of the partition `low` has to go."""
    command = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--time=1", "--output=/dev/null", *options]
    subprocess.run([*command, "--wrap", "sleep 1"], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.rare
def test_array_of_six_ends_as_each_of_its_runs_did(cluster, starter_folder, submitted):
    slurm.check_slurm(SMALL, 6)
    _, _, training, cancelled, killed, _ = runs = submitted("pass", "1 / 0", TRAIN, WAIT, WAIT, "pass", mem="2G")
    assert len({job(run).partition("_")[0] for run in runs}) == 1
    until(lambda: (training.path / "training").exists(), "the training")
    for run in (cancelled, killed):
        running(run)
    slurm_state.cancel_job(cancelled)
    os.kill(killed.status["owner"]["pid"], signal.SIGKILL)
    slurm_state.refresh(runs)
    assert training.status["state"] == "running"
    high_priority_job()
    until(lambda: "requeued after preemption" in (training.status["error"] or ""), "the preemption")
    states = ended(runs)
    assert states[0] == states[2] == ("done", None) and states[3] == ("interrupted", "Slurm: CANCELLED")
    assert states[1] == ("failed", "cell 3: ZeroDivisionError: division by zero")
    assert states[4][0] == "interrupted" and states[4][1].startswith("Slurm: FAILED (NonZeroExitCode)")
    assert states[5] == ("done", None)
    assert training.metrics["step"].tolist() == [1, 2, 3, 4]
    assert training.completions.groupby("step").size().tolist() == [8] * 4
    assert not (training.path / "stop.json").exists()
    log = "".join(p.read_text() for p in (training.path.parents[1] / ".slurm").glob("*/*.log"))
    assert "ModuleNotFoundError" not in log


@pytest.mark.slow
@pytest.mark.rare
def test_time_limit_queues_a_run_again_while_requeues_are_left(cluster, submitted):
    (again,) = submitted(LOOP, time=1)
    (never,) = submitted(LOOP, time=1, requeues=0)
    assert "_" not in job(again)
    until(lambda: (again.status["error"] or "").startswith("requeued after time limit: stopped after step 2"), "USR2")
    says = (
        "Slurm: time limit, and no requeue is left (--requeues): stopped after step 2: Slurm ends this job: time limit"
    )
    assert ended([again, never]) == [("done", None), ("interrupted", says)]


@pytest.mark.slow
@pytest.mark.rare
def test_lost_node_is_reported_or_its_run_starts_again(cluster, submitted):
    (lost,) = submitted(LOOP, extra={"nodelist": "n2", "no-requeue": ""})
    (moved,) = submitted(LOOP, extra={"nodelist": "n2"})
    for run in (lost, moved):
        until(lambda run=run: (run.path / "training").exists(), "both to run on n2")
    subprocess.run(["scontrol", "update", "nodename=n2", "state=down", "reason=test"], check=True)
    until(lambda: slurm_state.refresh([lost, moved]) or moved.status["state"] == "queued", "the requeue")
    assert ended([lost]) == [("interrupted", "Slurm: NODE_FAIL of n2 (NodeDown)")]
    subprocess.run(["scontrol", "update", "nodename=n2", "state=resume"], capture_output=True, check=False)
    assert ended([moved]) == [("done", None)]


@pytest.mark.slow
@pytest.mark.rare
def test_interrupted_run_goes_on_as_a_new_job(cluster, submitted, tmp_path):
    (run,) = submitted(WAIT)
    running(run)
    slurm_state.cancel_job(run)
    assert ended([run]) == [("interrupted", "Slurm: CANCELLED")]
    first = job(run)
    slurm.submit([run], write_notebook(tmp_path / "by_hand.ipynb"), SMALL)
    assert job(run) != first
    assert ended([run]) == [("done", None)]


@pytest.mark.slow
@pytest.mark.rare
def test_too_much_memory_and_a_failed_start_are_reported(cluster, submitted):
    (greedy,) = submitted("import time\nx = b'x' * 10**9\ntime.sleep(60)", mem="512M")
    (homeless,) = submitted("pass", extra={"begin": "now+2"})
    shutil.rmtree(Path(read_json(homeless.path / "status.json", {})["owner"]["log"]).parent)
    memory, start = ended([greedy, homeless])
    assert memory[0] == start[0] == "interrupted"
    assert re.search("OUT_OF_MEMORY|(?i:exceeded .*memory limit)", memory[1]), memory
    assert start[1].startswith("Slurm: FAILED"), start


@pytest.mark.slow
@pytest.mark.rare
def test_runs_have_gpus_of_their_own_and_hidden_secrets(cluster, submitted, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "hunter2")
    runs = submitted(*[WHERE] * 4, gpus=1)
    assert ended(runs) == [("done", None)] * 4
    where = [json.loads((run.path / "where.json").read_text()) for run in runs]
    pairs = [(a, b) for a, b in itertools.combinations(where, 2) if a["SLURMD_NODENAME"] == b["SLURMD_NODENAME"]]
    together = [(a, b) for a, b in pairs if a["began"] < b["ended"] and b["began"] < a["ended"]]
    assert together and all(a["CUDA_VISIBLE_DEVICES"] != b["CUDA_VISIBLE_DEVICES"] for a, b in together)
    assert {w["MY_SECRET"] for w in where} == {"hunter2"}
    root = runs[0].path.parents[1]
    texts = [p.read_text(errors="replace") for p in root.rglob("*") if p.is_file() and p.name != "where.json"]
    assert texts
    assert not any("hunter2" in text for text in texts)


@pytest.mark.slow
def test_refusal_of_slurm_comes_before_anything_is_made(here, cluster, tmp_path):
    for options, message in (
        (SlurmOptions(partition="gpu"), "slurm partition='gpu': not on this cluster; there are high, low"),
        (SlurmOptions(gpus=3), "Slurm refuses such a job: .*Requested node configuration is not available"),
        (SlurmOptions(time=601), "Slurm refuses such a job: .*time limit"),
        (SlurmOptions(extra={"colour": "red"}), "Slurm refuses such a job: .*--colour=red"),
    ):
        with pytest.raises(ParameterError, match=message):
            slurm.check_slurm(options)
    path = write_notebook(tmp_path / "by_hand.ipynb", "pass")
    sweep = ["sweep", path, "-p", "seed=0..5", "--runs-dir", tmp_path / "runs", "--executor", "slurm"]
    refused = here(*sweep, "--partition", "gpu")
    assert refused.returncode == 2
    assert "there are high, low" in refused.stderr
    shown = here(*sweep, "--mem", "1", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout[shown.stdout.index("#!/bin/bash") :]
    assert "--array=0-5" in text
    assert subprocess.run(["sbatch", "--test-only"], input=text, text=True, capture_output=True).returncode == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_forgotten_job_is_said_to_be(cluster, tmp_path):
    runs = [create_run("by_hand", {}, tmp_path) for _ in range(3)]
    for run, unknown in zip(runs, ("99999", "88888_1"), strict=False):
        set_status(run.path, "running", owner={"job": unknown})
        slurm_state.refresh([run])
        assert run.status["error"].startswith(f"Slurm no longer knows job {unknown}")
    path = write_notebook(tmp_path / "by_hand.ipynb", "pass")
    with pytest.raises(RunError, match="Slurm refused 1 jobs: "):
        slurm.submit(runs[2:], path, SlurmOptions(partition="nope"))
    assert list((tmp_path / ".slurm").iterdir()) == []
    slurm.check_slurm(SMALL, 5000)
    assert slurm.array_sizes(2500) == [1001, 1001, 498]


@pytest.mark.rare
@pytest.mark.slow
def test_command_line_runs_a_sweep_by_a_users_template(cluster, tmp_path):
    cell = "import os\nassert os.environ['FROM_SETUP'] + os.environ['FROM_TEMPLATE'] == '12'"
    path = write_notebook(tmp_path / "by_hand.ipynb", cell)
    root = tmp_path / "runs 50%j"
    sweep = ["sweep", path, "-p", "seed=0,1", "--runs-dir", root, "--executor", "slurm", "--mem", "1"]
    printed = workbench(*sweep, "--print-template").stdout
    assert printed == DEFAULT
    own = printed.replace("{{ setup }}", "{{ setup }}\nexport FROM_TEMPLATE=2")
    (tmp_path / "mine.sbatch").write_text(own.replace("--nodes=1", "--nodes=1 --comment=mine"))
    sweep += ["--sbatch-template", tmp_path / "mine.sbatch", "--setup", "export FROM_SETUP=1", "--cwd", tmp_path]
    process = workbench(*sweep, "--out", tmp_path / "reports")
    assert process.returncode == 0, process.stderr
    assert "2 of 2 runs are done" in process.stdout
    assert len(list_runs(root)) == 2
    assert all(Path(run.status["owner"]["log"]).is_file() for run in list_runs(root))


SCRIPT = ROOT / "examples" / "several_nodes.sbatch"


@pytest.mark.slow
@pytest.mark.rare
def test_several_nodes_script_goes_on_after_its_notice(cluster, starter_folder, tmp_path):
    out = tmp_path / "runs" / "05_grpo_docs_example" / "two-nodes"
    here = {"OUT": str(out), "MODEL": "starter", "DATASET": "starter", "STEPS": "30", "BACKEND": "transformers"}
    here |= {"LAUNCHER": "torchrun", "HEAD": "127.0.0.1", "PORT": str(slurm_cluster.free_ports(1)[0])}
    here |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CI": ""}
    here |= {"FIELDS": "-p per_device_train_batch_size=8 -p num_generations=4 -p max_completion_length=16"}
    here |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    whole = ["sbatch", "--test-only", "--gpus-per-node=2", "--cpus-per-task=4", "--time=60", str(SCRIPT)]
    assert subprocess.run(whole, capture_output=True).returncode == 0
    sizes = ["--gpus-per-node=1", "--cpus-per-task=1", "--mem=3000", "--time=20", f"--output={tmp_path}/log.txt"]
    command = ["sbatch", "--parsable", *sizes, str(SCRIPT)]
    number = subprocess.run(command, env=os.environ | here, text=True, capture_output=True, check=True).stdout.strip()

    def log() -> str:
        return (tmp_path / "log.txt").read_text() if (tmp_path / "log.txt").exists() else ""

    def step() -> int:
        assert state() not in ("FAILED", "NODE_FAIL"), log()[-3000:]
        return read_json(out / "progress.json", {"step": 0})["step"]

    def state() -> str:
        return subprocess.run(["squeue", "-h", "-t", "all", "-j", number, "-o", "%T"], **quiet).stdout.strip()

    quiet = {"text": True, "capture_output": True, "check": False}
    until(lambda: step() >= 2, "two steps")
    subprocess.run(["scancel", "--batch", "--signal=USR2", number], check=True)
    until(lambda: state() in ("PENDING", "COMPLETING"), "the requeue")
    until(lambda: state() == "COMPLETED" or step() < 0, "the end of the training")
    (run,) = list_runs(tmp_path / "runs")
    assert run.status["state"] == "done"
    assert run.metrics["step"].tolist() == list(range(1, 31))
    assert run.completions.groupby("step").size().tolist() == [16] * 30
