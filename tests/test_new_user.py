"""What a new user tries and what happens: each row of `docs/what_happens.md` is run here, and the page is these rows.

PYTHONPATH=tests/helpers python tests/test_new_user.py > docs/what_happens.md
"""

import contextlib
import dataclasses
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from conftest import ROOT, TRAINS, need, until, workbench, write_notebook, write_run

from workbench import __version__, cli
from workbench.errors import MissingDependencyError, ParameterError
from workbench.experiments.recipes import make_recipe, resolve_model
from workbench.generation.stops import StopSpec
from workbench.runs.run import list_runs

EXAMPLE = "05_grpo_docs_example"
PAGE = ROOT / "docs" / "what_happens.md"
HEAD = """\
# What a new user tries, and what happens

Each row is a test of `tests/test_new_user.py`, which also writes this page. "Refused" is one line on stderr and exit code 2,
before any folder is made or any model is loaded.

| | what is tried | what happens |
|---|---|---|
"""


@dataclasses.dataclass(frozen=True)
class Row:
    tried: str
    happens: str
    test: Callable
    slow: bool


ROWS: list[Row] = []


def row(tried: str, happens: str, slow: bool = False) -> Callable:
    """The decorated test shows this row."""

    def add(test: Callable) -> Callable:
        ROWS.append(Row(tried, happens, test, slow))
        return test

    return add


def refused(folder: Path, *arguments, says: str, env=None) -> str:
    """Its stderr: one line, and no folder is made."""
    code, out, err = answer(*arguments, "--runs-dir", folder / "runs", env=env)
    assert (code, out) == (2, "")
    assert err.startswith("workbench: ")
    assert err.count("\n") == 1
    assert re.search(says, err), err
    assert not (folder / "runs").exists()
    return err


def ended(code: int, folder: Path, *arguments, env=None) -> str:
    """What `workbench ...` prints on both streams, with runs in `folder`, where it ends with this code."""
    found, out, err = answer(*arguments, "--runs-dir", folder / "runs", env=env)
    assert found == code and "Traceback" not in err, out + err
    return out + err


def answer(*arguments, env=None) -> tuple[int, str, str]:
    """`workbench ...` in this process, which starts sooner than one of its own: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, env or {}), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            code = end.code
    return code, out.getvalue(), err.getvalue()


def only_run(folder: Path):
    (run,) = list_runs(folder / "runs")
    return run


# --- names and values ------------------------------------------------------------------------------------------------

# tried, what happens, the arguments behind `workbench COMMAND EXAMPLE`, the message, the environment
REFUSED = [
    ("`-p stesp=80`, a wrong parameter name", "did you mean 'steps'? and all there are",
     "run -p stesp=80", "unknown parameter 'stesp': did you mean 'steps'?.*target"),
    ("`-p steps=eighty`", "expected int in 0..1000000",
     "run -p steps=eighty", "parameter steps='eighty': expected int in 0..1000000"),
    ("`-p steps=1e3`", "papermill would have made it the float 1000.0",
     "run -p steps=1e3", "parameter steps='1e3': expected int"),
    ("`-p learning_rate=3`", "expected float in 0..1",
     "run -p learning_rate=3", r"learning_rate=3.0: expected float in 0\.\.1"),
    ("`-p backend=sglang`", "one of transformers, vllm",
     "run -p backend=sglang", "expected one of transformers, vllm"),
    ("`-p out_dir=here`", "the runner sets it; choose the folder with --runs-dir",
     "run -p out_dir=here", "'out_dir' is set by the runner; .*--runs-dir"),
    ("`-p interactive=yes`", "a run of the command line is not interactive, JupyterLab is",
     "run -p interactive=yes", "'interactive' is set by the runner; .*JupyterLab"),
    ("`-p comparisons=1`", "expected true or false",
     "run -p comparisons=1", "comparisons='1': expected true or false$"),
    ("`-p model=`, also with `--dry-run`", "expected a text",
     "run -p model=", "model='': expected a text, such as .*'starter'$"),
    ("`workbench run` with `-p seed=0..4`", "several values are for `workbench sweep`",
     "run -p seed=0..4", "expected int in .*several values are for `workbench sweep`"),
    ("`workbench run NOTEBOOK --steps 80`", "written `-p steps=80`",
     "run --steps 80", "unrecognized arguments: --steps 80; .* `-p steps=80`$"),
    ("a sweep over `seed=0..9999999`", "at most 10000 runs",
     "sweep -p seed=0..9999999", "at most 10000 runs in a sweep"),
    ("`--resume` where nothing was interrupted", "nothing to resume, and the states of the runs there are",
     "run --resume", "nothing to resume: runs of 05_grpo_docs_example"),
    ("`--gpus 8` on a machine with fewer", "the GPUs that are visible",
     "run --gpus 8", r"gpus=8: .*visible here: 2 \(0, 1\)"),
    ("a sweep with `--gpus 1`, also with `--dry-run`, where no GPU is visible", "1 asked, none visible here",
     "sweep -p seed=0..4 --gpus 1", "gpus=1: 1 asked for each run, none visible here"),
    ("`--jobs 0`, also with `--dry-run`", "expected at least 1", "run --jobs 0", "jobs=0: expected at least 1"),
]  # fmt: skip


def refusal(arguments: str, says: str) -> Callable:
    def test(folder: Path) -> None:
        command, *rest = arguments.split()
        env = {"CUDA_VISIBLE_DEVICES": "" if command == "sweep" else "0,1"}
        for dry in ([], ["--dry-run"]):
            refused(folder, command, EXAMPLE, *rest, *dry, says=says, env=env)

    test.__name__ = "-".join(arguments.split())
    return test


@row("`workbench run 05_grpo`, half a name", "refused: not found, and the notebooks there are")
def half_a_name(folder):
    refused(folder, "run", "05_grpo", says=f"notebook '05_grpo': not found; there are 00_start_here, .*{EXAMPLE}")


for tried, happens, arguments, says in REFUSED:
    row(tried, f"refused: {happens}")(refusal(arguments, says))


@row("`-p model=hf_…`, an access token in a parameter", "refused without repeating it: it would be in every report")
def token(folder):
    secret = "hf_" + "aB3dE5" * 6
    assert secret not in refused(folder, "run", EXAMPLE, "-p", f"model={secret}", says="looks like an? .*environment")


ANOTHER = "`-p model=Qwen/Qwen2-0.5B-Instruct -p backend=vllm --dry-run`"


@row(ANOTHER, "the plan: run folder, all parameters, GPUs, and a hint that `dataset` is still the starter's")
def plan_of_another_model(folder):
    model = "Qwen/Qwen2-0.5B-Instruct"
    plan = ["run", EXAMPLE, "-p", f"model={model}", "-p", "backend=vllm", "--dry-run"]
    lines = [
        " ".join(line.split()) for line in ended(0, folder, *plan, env={"CUDA_VISIBLE_DEVICES": "0,1"}).splitlines()
    ]
    assert lines[:2] == [f"run {EXAMPLE}", f"folder {folder / 'runs' / EXAMPLE / 'TIME'}"]
    assert lines[2].startswith(f"parameters seed=0, model='{model}', dataset='starter', backend='vllm', steps=0, ")
    assert lines[3].startswith("0 means steps: the recipe's own (starter 80, documented 2500); learning_rate: ")
    assert lines[4] == "GPUs 1 for each run, of 0, 1"
    assert re.match("hint dataset='starter' is still the toy's, .* -p dataset=", lines[5])
    assert not (folder / "runs").exists()


WITHOUT_SLURM = {"PATH": str(Path(sys.executable).parent)}


@row("`--executor slurm` on a laptop", "refused: no sbatch here; what to do instead")
def slurm_on_a_laptop(folder):
    says = "--executor slurm: no sbatch and srun on PATH; start it on a Slurm login node$"
    refused(folder, "run", EXAMPLE, "--executor", "slurm", env=WITHOUT_SLURM, says=says)


@row("the same with `--dry-run`", "the plan and the sbatch script; a line on stderr says what was not checked")
def slurm_dry_run_on_a_laptop(folder):
    said = ended(0, folder, "run", EXAMPLE, "--executor", "slurm", "--dry-run", env=WITHOUT_SLURM)
    assert said.startswith(f"run    {EXAMPLE}\n       folder ")
    assert "\n       GPUs        none for each run, from Slurm\n#!/bin/bash\n" in said
    assert "\nnot checked: --executor slurm: no sbatch and srun on PATH; " in said
    assert not (folder / "runs").exists()


@row("`--mem 64G --time 4:00:00`, as sbatch takes them", "`--mem=64G` and 240 minutes in the sbatch script")
def sbatch_forms(folder):
    options = ["--executor", "slurm", "--mem", "64G", "--time", "4:00:00", "--dry-run"]
    script = ended(0, folder, "run", EXAMPLE, *options, env=WITHOUT_SLURM)
    assert {"#SBATCH --mem=64G", "#SBATCH --time=240"} <= set(script.splitlines())


@row("a batch that groups do not fill: `num_generations=8`, batch 12", "ParameterError that names both numbers")
def unfilled_groups(folder):
    with pytest.raises(ParameterError, match=r"12.*num_generations|num_generations.*12"):
        make_recipe("starter", num_generations=8, per_device_train_batch_size=12)


@row("`StopSpec(stop_token_ids='</s>')`, a string for ids", "ParameterError: ids are integers; a string goes to `stop`")
def string_for_ids(folder):
    with pytest.raises(ParameterError, match="expected token ids from 0; strings go to stop="):
        StopSpec(stop_token_ids="</s>")


NO_VLLM = "`backend=vllm` where vLLM is not installed"


@row(NO_VLLM, "MissingDependencyError, before training: use transformers or install it", slow=True)
def without_vllm(folder):
    hide = "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'vllm' else f(n, *a)"
    code = f"{hide}\nfrom workbench.experiments.recipes import *\ngrpo_config(make_recipe(backend='vllm'), 'x')"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert "MissingDependencyError: backend='vllm': vLLM is not installed; use backend='transformers'" in process.stderr


# --- folders and disks -----------------------------------------------------------------------------------------------


@row("`workbench report` before any run", "refused: no runs, and how to make one")
def report_without_runs(folder):
    refused(folder, "report", says="no runs in .*; make one with `workbench run NOTEBOOK`")


@row("`workbench notebooks` where notebooks of these names lie", "refused by name; nothing is copied or overwritten")
def copy_over_own_notebooks(folder):
    own = write_notebook(folder / "notebooks" / "00_start_here.ipynb")
    text = own.read_text()
    code, out, err = answer("notebooks", own.parent)
    assert (code, out) == (2, "") and "00_start_here.ipynb there already; move them away" in err
    assert [p.name for p in own.parent.iterdir()] == [own.name]
    assert own.read_text() == text


@row("`workbench logs 2025`, a run that is not there", "refused: not found, and the newest there are")
def unknown_run(folder):
    write_run(folder / "runs", "2026-1")
    assert f"run '2025': not found; the newest are {EXAMPLE}/2026-1" in ended(2, folder, "logs", "2025")


SAME_ID = "`workbench logs RUN` where runs of two notebooks have this id"


@row(SAME_ID, "refused: write NOTEBOOK/RUN; new runs share no id")
def run_of_two_notebooks(folder):
    for notebook in ("a", "b"):
        write_run(folder / "runs", "2026-1", notebook=notebook)
    said = ended(2, folder, "logs", "2026-1")
    assert said.endswith("there are several: a/2026-1, b/2026-1; write NOTEBOOK/RUN\n")


@row("`workbench status 05_grpo_docs_example`", "a line for each run of this notebook")
def status_of_a_notebook(folder):
    for notebook, run in ((EXAMPLE, "2026-1"), (EXAMPLE, "2026-2"), ("other", "2026-3")):
        write_run(folder / "runs", run, notebook=notebook)
    tally = "2 of 2 runs are done and no check failed"
    lines = [f"{EXAMPLE} 2026-1: done", f"{EXAMPLE} 2026-2: done", tally]
    assert ended(0, folder, "status", EXAMPLE).splitlines() == lines


@row("`workbench cancel` of a run that has ended", "refused: is done; only a queued or running run can be cancelled")
def cancel_what_has_ended(folder):
    write_run(folder / "runs", "2026-1")
    assert "is done; only a queued or running run can be cancelled" in ended(2, folder, "cancel", "2026-1")


@row("`--runs-dir` names a file", "one line with the system's word and the path, exit code 1")
def runs_dir_is_a_file(folder):
    (folder / "runs").touch()
    said = ended(1, folder, "run", write_notebook(folder / "hand_made.ipynb"))
    assert said.startswith("workbench: [Errno 20] Not a directory")


DAMAGED = "a row that names the file and says to repair or remove it; other runs are shown; exit code 1"


@row("a `status.json` damaged by hand", DAMAGED)
def damaged_file(folder):
    run, _ = write_run(folder / "runs", "2026-1"), write_run(folder / "runs", "2026-2")
    (run.path / "status.json").write_text("{")
    said = ended(1, folder, "status")
    assert "status.json: not JSON" in said and "repair or remove the file" in said
    assert "2026-2: done" in said


@row("a run folder copied to another machine and reported there", "works: all that a report needs is in the folder")
def copied_folder(folder):
    run = write_run(folder / "runs", "2026-1", result={"results": [{"says": "holds", "holds": True}]})
    shutil.move(run.path, folder / "elsewhere")
    assert answer("report", folder / "elsewhere", "--out", folder / "reports")[0] == 0
    assert "holds" in (folder / "elsewhere" / "report.html").read_text()


FREE_SPACE = "one line: free space, then go on; what was written stays, `--resume` works"


@row("the disk fills up while a notebook runs", FREE_SPACE, slow=True)
def full_disk(folder):
    disk = folder / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk], capture_output=True)
    need(mount.returncode == 0, "the right to mount a small disk")
    try:
        fill = (
            "from pathlib import Path\n(run.path / 'metrics.jsonl').write_text('{\"step\": 1}\\n')\n"
            f"if not Path({str(folder / 'filled')!r}).exists():\n    Path({str(folder / 'filled')!r}).touch()\n"
            "    (run.path / 'big').write_bytes(b'x' * 5_000_000)"
        )
        notebook = write_notebook(folder / "hand_made.ipynb", fill)
        process = workbench("run", notebook, "-q", "--runs-dir", disk / "runs")
        assert process.returncode == 1
        assert "No space left on device; free space; a run goes on with" in process.stderr
        assert "Traceback" not in process.stderr
        assert "interrupted" in workbench("status", "--runs-dir", disk / "runs").stdout
        (big,) = disk.rglob("big")
        assert (big.parent / "metrics.jsonl").read_text() == '{"step": 1}\n'
        big.unlink()
        again = workbench("run", notebook, "-q", "--resume", "--runs-dir", disk / "runs")
        assert again.returncode == 0, again.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


# --- notebooks and runs ----------------------------------------------------------------------------------------------


@row("a notebook of another language", "refused: the kernel is of R; only Python notebooks run here")
def another_language(folder):
    notebook = write_notebook(folder / "mine.ipynb")
    for name in ("python3", "ir"):  # one that is installed, one that is not
        notebook.write_text(notebook.read_text().replace('"python"', '"R"').replace('"python3"', f'"{name}"'))
        refused(folder, "run", notebook, says=f"the kernel {name} is of R; only Python notebooks run here")


@row("a cell raises", "state failed with cell and error; exit code 1; the report shows the traceback", slow=True)
def cell_raises(folder):
    notebook = write_notebook(folder / "mine.ipynb", "{}['reward']")
    process = workbench("run", notebook, "-q", "--runs-dir", folder / "runs")
    assert process.returncode == 1
    assert re.search("failed: cell .*KeyError: 'reward'", process.stdout)
    assert "KeyError" in (only_run(folder).path / "report.html").read_text()


KILLED = "the kernel is killed, as by the kernel's memory killer"


@row(KILLED, "state interrupted: the kernel died; papermill says completed", slow=True)
def killed_kernel(folder):
    notebook = write_notebook(folder / "mine.ipynb", "import os\nos.kill(os.getpid(), 9)")
    process = workbench("run", notebook, "-q", "--runs-dir", folder / "runs")
    assert process.returncode == 130
    assert "interrupted: the kernel died" in process.stdout


CTRL_C = "Ctrl-C in the middle of training, then `--resume`"


@row(CTRL_C, "interrupted, then done; every step is logged once", slow=True)
def ctrl_c(folder):
    notebook = write_notebook(folder / "mine.ipynb", TRAINS)
    arguments = ["run", str(notebook), "-q", "--runs-dir", str(folder / "runs")]
    process = subprocess.Popen([sys.executable, "-m", "workbench", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    until(lambda: [p for p in folder.glob("runs/*/*/metrics.jsonl") if p.read_text().count("\n") > 3])
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert only_run(folder).status["state"] == "interrupted"
    again = workbench(*arguments, "--resume")
    assert again.returncode == 0, again.stderr
    assert only_run(folder).metrics["step"].tolist() == list(range(1, 17))


@row("the same sweep a second time", "skips what is done, and says so", slow=True)
def sweep_twice(folder):
    notebook = write_notebook(folder / "mine.ipynb")
    arguments = ["sweep", notebook, "-p", "seed=0..1", "--jobs", "2", "--runs-dir", folder / "runs"]
    assert workbench(*arguments).returncode == 0
    again = workbench(*arguments)
    assert again.returncode == 0
    assert again.stdout.count("skip ") == 2
    assert len(list_runs(folder / "runs")) == 2


@row("`-p model=/models/none`, a folder that is not there", "ParameterError in the set-up cell: no such folder")
def no_such_model(folder):
    with pytest.raises(ParameterError, match="model='/models/none': no such folder or file"):
        resolve_model("/models/none")


@row("a hub id without network", "MissingDependencyError in the set-up cell: cannot be reached; what works offline")
def no_network(folder):
    says = "not found on the hub, or no hub can be reached.*use model='starter' or"
    with pytest.raises(MissingDependencyError, match=says):
        resolve_model("Qwen/none")


@row("a data set without a `prompt` column", "failed in the set-up cell: the columns it has", slow=True)
def no_prompt_column(folder):
    (folder / "data.csv").write_text("question,answer\na,b\n")
    process = workbench("run", EXAMPLE, "-q", "-p", f"dataset={folder / 'data.csv'}", "--runs-dir", folder / "runs")
    assert process.returncode == 1
    assert "expected a column `prompt`, it has ['question', 'answer']" in process.stdout
    assert not (only_run(folder).path / "metrics.jsonl").exists()


@row("`workbench --version`", "its version")
def which_version(folder):
    assert answer("--version") == (0, f"workbench {__version__}\n", "")


A_LINE_EACH = "a line for each package it asks for, back end and tool; exit code 1 only for an error"


@row("`workbench doctor` in a fresh environment", A_LINE_EACH)
def doctor(folder):
    code, out, _ = answer("doctor")
    assert code == 0 and re.search("ok +trl: 1.16.0", out), out
    (folder / "trl-0.0.1.dist-info").mkdir()
    (folder / "trl-0.0.1.dist-info" / "METADATA").write_text("Name: trl\nVersion: 0.0.1\n")
    process = workbench("doctor", env={"PYTHONPATH": str(folder)})
    assert process.returncode == 1
    assert 'error    trl: 0.0.1; the workbench takes "trl<1.17,>=1.12"' in process.stdout


def as_case(row: Row):
    return pytest.param(row.test, id=row.test.__name__, marks=[pytest.mark.slow] if row.slow else [])


@pytest.mark.parametrize("shown", list(map(as_case, ROWS)))
def test_row(shown, tmp_path):
    shown(tmp_path)


def page() -> str:
    return HEAD + "".join(f"| {n} | {r.tried} | {r.happens} |\n" for n, r in enumerate(ROWS, 1))


def test_the_page_is_these_rows():
    assert len(ROWS) >= 20
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    sys.stdout.write(page())
