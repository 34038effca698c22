"""Four stories of a new user, from the command to what is left on the disk."""

import re
import shutil
import subprocess

import pytest
from conftest import call, need, workbench, write_notebook, write_run

from workbench.runs.run import list_runs

EXAMPLE = "05_grpo_docs_example"
SECRET = "hf_" + "aB3dE5" * 6


def only_run(root):
    (run,) = list_runs(root)
    return run


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run 06_grpo", "notebook '06_grpo': not found; there are 00_start_here, .*07_"),
        (f"run {EXAMPLE[:-1]}", f"did you mean '{EXAMPLE}'\\? there are 00_start_here"),
        (
            "run tests/conftest.py",
            "tests/conftest.py: expected a notebook, a file ending in .ipynb; start a script with",
        ),
        (f"run {EXAMPLE} -p stesp=80", "unknown parameter 'stesp': did you mean 'steps'?.*target"),
        (f"run {EXAMPLE} -p steps=1e3", "parameter steps='1e3': expected int in 0..1000000"),
        (f"run {EXAMPLE} -p seed=0..4", "expected int in .*only `workbench sweep` takes several values"),
        (f"run {EXAMPLE} --steps 80", "unrecognized arguments: --steps 80; .* `-p steps=80`$"),
        (f"run {EXAMPLE} -p model={SECRET}", "looks like an? .*environment"),
        (f"run {EXAMPLE} -p seed=0-4", "did you mean the range 0..4\\? `workbench sweep` takes it"),
        (f"sweep {EXAMPLE} -p seed=0-2", "expected int in 0..1000000; did you mean the range 0..2\\?"),
        (f"sweep {EXAMPLE} -p seed=0:2,7", "seed='0:2': .* did you mean the range 0..2\\?"),
        (f"sweep {EXAMPLE} -p seed=0..9999999", "at most 10000 runs in a sweep"),
    ],
)
def test_mistyped_command_is_refused_in_one_line(capsys, tmp_path, command, says):
    for dry in ([], ["--dry-run"]):
        code, out, err = call(capsys, *command.split(), *dry, "--runs-dir", tmp_path / "runs")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert re.search(says, err) and SECRET not in err
    assert not (tmp_path / "runs").exists()


def test_dry_run_shows_the_plan_of_another_model(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    model = "Qwen/Qwen2-0.5B-Instruct"
    command = [
        "run",
        EXAMPLE,
        "-p",
        f"model={model}",
        "-p",
        "backend=vllm",
        "--dry-run",
        "--runs-dir",
        tmp_path / "runs",
    ]
    code, out, err = call(capsys, *command)
    lines = [" ".join(line.split()) for line in (out + err).splitlines()]
    assert code == 0 and lines[:2] == [f"run {EXAMPLE}", f"folder {tmp_path / 'runs' / EXAMPLE / 'TIME'}"]
    assert lines[2].startswith(f"parameters seed=0, model='{model}', dataset='', backend='vllm', steps=0, ")
    assert lines[3].startswith("0 means steps: the recipe's own (starter 80, documented 2500); learning_rate: ")
    assert lines[4] == "GPUs 1 for each run, of 0, 1"
    assert not any(line.startswith("hint") for line in lines)  # the data follow from the model
    assert not (tmp_path / "runs").exists()


ROW = '{"prompt": "a", "answer": "b"}\n'


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("right.jsonl", ROW * 3, "data +.*right.jsonl: 3 rows; columns prompt, answer"),
        ("other.jsonl", '{"question": "a"}', "other.jsonl': expected a column `prompt`, it has .*question"),
        ("broken.jsonl", '{"prompt": ', "broken.jsonl': cannot be read as .jsonl"),
        ("absent.jsonl", None, "absent.jsonl': no such folder or file"),
    ],
)
def test_dry_run_opens_the_data_set(capsys, tmp_path, monkeypatch, name, text, says):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    code, out, err = call(capsys, "run", EXAMPLE, "-p", f"dataset={name}", "--dry-run")
    assert code == (0 if name == "right.jsonl" else 2)
    assert re.search(says, out + err), out + err


def test_dry_run_leaves_other_columns_to_the_notebook(capsys, tmp_path):
    (tmp_path / "other.jsonl").write_text('{"question": "a"}')
    command = ["run", "04", "-p", f"dataset={tmp_path / 'other.jsonl'}", "-p", "column=question", "--dry-run"]
    code, out, _ = call(capsys, *command)
    assert code == 0 and "rows; columns" not in out


def test_dry_run_asks_no_hub(capsys):
    code, out, _ = call(capsys, "run", EXAMPLE, "-p", "dataset=trl-lib/tldr", "--dry-run")
    assert code == 0 and "trl-lib/tldr, on the hub: not opened" in out


FILL = """\
from pathlib import Path
(run.path / 'metrics.jsonl').write_text('{{"step": 1}}\\n')
if not Path({filled!r}).exists():
    Path({filled!r}).touch()
    (run.path / 'big').write_bytes(b'x' * 5_000_000)"""


@pytest.mark.rare
@pytest.mark.slow
def test_full_disk_ends_a_run_that_resumes_later(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk], capture_output=True)
    need(mount.returncode == 0, "the right to mount a small disk")
    try:
        notebook = write_notebook(tmp_path / "hand_made.ipynb", FILL.format(filled=str(tmp_path / "filled")))
        process = workbench("run", notebook, "-q", "--runs-dir", disk / "runs")
        assert process.returncode == 3 and "Traceback" not in process.stderr
        assert "No space left on device; free some space, then continue a run with" in process.stderr
        status = only_run(disk / "runs").status
        assert status["state"] == "failed" and "No space left on device" in status["error"]
        (big,) = disk.rglob("big")
        assert (big.parent / "metrics.jsonl").read_text() == '{"step": 1}\n'
        big.unlink()
        again = workbench("run", notebook, "-q", "--resume", "--runs-dir", disk / "runs")
        assert again.returncode == 0, again.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


def test_run_folder_moved_elsewhere_is_reported_there(capsys, tmp_path):
    run = write_run(tmp_path / "runs", "2026-1", result={"results": [{"says": "the reward rises", "holds": True}]})
    shutil.move(run.path, tmp_path / "elsewhere")
    assert call(capsys, "report", tmp_path / "elsewhere", "--out", tmp_path / "reports")[0] == 0
    assert "the reward rises" in (tmp_path / "elsewhere" / "report.html").read_text()
