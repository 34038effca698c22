"""Runs from anyone: their text is inert, their links are not followed, and an odd file is a row that says so."""

import json
import os
import shutil

import pytest
from conftest import call, write_notebook, write_run

STATUS = {"state": "done", "error": None, "owner": {}, "times": {}}
RESULT = {"headline": None, "results": [], "numbers": {}}
RECORD = ("params.json", "env.json", "status.json", "result.json")
# What is odd, one of each kind -> the file and what stands in it; such a run cannot be read.
UNREADABLE = {
    "cut": ("params.json", '{"seed": '),
    "no text": ("params.json", b"\xff\xfe\x00"),
    "of another type": ("env.json", "[]"),
    "deep": ("status.json", "[" * 5000 + "]" * 5000),
    "without a field": ("status.json", "{}"),
    "a folder": ("result.json", None),
}
# Odd in what a report can do without; such a run is shown.
HARMLESS = {
    "progress is the notebook's own": ("progress.json", '{"done": 3}'),
    "metrics is damaged": ("metrics.jsonl", '{"step": 1}\n{"st\n{"step": 3}\n'),
    "metrics has a number beyond any": ("metrics.jsonl", '{"step": 1, "reward": 1' + "0" * 400 + "}\n" * 2),
    "completions are damaged": ("completions.jsonl", '{"st\n[1]\n{"step": "x"}\n{"step'),
    "completions are a folder": ("completions.jsonl", None),
    "a part of four bytes": ("tokens/part-000001-000001.parquet", b"PAR1"),
    "the notebook has no cells": ("executed.ipynb", "{}"),
    "the log is a folder": ("log.txt", None),
}


def odd_run(root, file: str, content):
    run = write_run(root, "odd", state="running" if "log" in file or "progress" in file else "done")
    path = run.path / file
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    return run


@pytest.fixture
def sound(tmp_path):
    """A run that is listed before the odd one and one that is listed after it."""
    root = tmp_path / "runs"
    return root, write_run(root, "a", result=RESULT), write_run(root, "z", result=RESULT)


# Command -> the files without which it cannot show a run.
NEEDS = {"status": ("status.json", "result.json"), "report": RECORD}
NEEDS["status --json"] = ("status.json", "result.json", "params.json")


# Each odd file with the command that needs all of a record, and each command with one of each kind of file.
@pytest.mark.parametrize(
    ("name", "command"),
    [(name, "report") for name in UNREADABLE]
    + [(name, command) for command in NEEDS if command != "report" for name in ("cut", "without a field", "a folder")],
)
def test_an_unreadable_run_is_a_row_and_the_others_are_shown(capsys, sound, name, command):
    file, content = UNREADABLE[name]
    root, *_ = sound
    odd_run(root, file, content)
    code, out, err = call(capsys, *command.split(), "--runs-dir", root)
    unreadable = [line for line in out.splitlines() if "cannot be read: " in line or '"unreadable"' in line]
    needed = file in NEEDS[command]
    assert (code, err, len(unreadable)) == ((1, "", 1) if needed else (0, "", 0))
    assert all("odd" in line and file in line for line in unreadable)
    if command == "report":
        assert "3 runs" in (root.parent / "reports" / "index.html").read_text()
    else:
        rows = [line for line in out.splitlines() if "docs_example" in line]
        assert len(rows) == 3
        assert "json" in command or [row.split()[1].rstrip(":") for row in rows] == ["a", "odd", "z"]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_run_with_something_odd_beside_its_record_is_shown(capsys, sound, name):
    root, *_ = sound
    odd_run(root, *HARMLESS[name])
    for command in ("status", "report"):
        code, _, err = call(capsys, command, "--runs-dir", root)
        assert (code, err) == (0, ""), command
    assert "3 runs" in (root.parent / "reports" / "index.html").read_text()


@pytest.mark.parametrize(
    "file, kind",
    [*((name, "link") for name in ("log.txt", "env.json", "params.json", "executed.ipynb", "progress.json", "metrics.jsonl")),
     ("log.txt", "pipe"), ("params.json", "pipe")]
)  # fmt: skip
def test_a_link_shows_no_private_file_and_a_pipe_hangs_nothing(capsys, sound, file, kind):
    root, *_ = sound
    private = root.parent / "private"
    run = odd_run(root, file, "{}")
    secret = {
        "executed.ipynb": {"cells": [{"cell_type": "markdown", "source": "s3cr3t"}]},
        "progress.json": {"step": 5157, "max_steps": "s3cr3t"},
    }.get(file, {"s3cr3t": "s3cr3t"})
    private.write_text(json.dumps(secret) + "\n")
    (run.path / file).unlink()
    (run.path / file).symlink_to(private) if kind == "link" else os.mkfifo(run.path / file)
    shown = ""
    for command in ("status", "report"):
        code, out, err = call(capsys, command, "--runs-dir", root)
        assert code == (command == "report" and file in RECORD), command
        shown += out + err
    shown += "".join(call(capsys, "logs", run.path)[1:])
    shown += "".join(page.read_text() for page in root.parent.rglob("*.html"))
    assert "s3cr3t" not in shown


def test_completions_behind_a_link_are_not_shown(capsys, sound, tmp_path):
    root, *_ = sound
    run = write_run(root, "odd", completions=[{"step": 1, "completion": "s3cr3t"}])
    shutil.move(run.path / "completions.jsonl", tmp_path / "elsewhere")
    (run.path / "completions.jsonl").symlink_to(tmp_path / "elsewhere")
    assert call(capsys, "report", "--runs-dir", root)[0] == 0
    pages = [page.read_text() for page in root.parent.rglob("*.html")]
    assert not any("s3cr3t" in page for page in pages)
    assert any("completions.jsonl: a link or a socket, not a plain file" in page for page in pages)


def test_a_report_names_a_damaged_line_and_shows_the_rest(capsys, tmp_path):
    run = write_run(tmp_path / "runs", completions=[{"step": 1, "completion": "of the first line"}])
    with (run.path / "completions.jsonl").open("a") as file:
        file.write("[1]\n")
    assert call(capsys, "report", "--runs-dir", tmp_path / "runs")[0] == 0
    page = (run.path / "report.html").read_text()
    assert "of the first line" in page
    assert "completions.jsonl, line 2: [1] is no object" in page


def test_the_state_of_a_run_names_no_line_of_a_private_file(tmp_path, monkeypatch):
    from workbench.lab.batch import slurm_state

    (tmp_path / "private").write_text("s3cr3t")
    run = write_run(tmp_path / "runs", state="running")
    owner = {"job": "9", "log": str(tmp_path / "private")}
    (run.path / "status.json").write_text(json.dumps(STATUS | {"state": "running", "owner": owner}))
    ended = {"9": slurm_state.JobState("FAILED")}
    monkeypatch.setattr(slurm_state, "ask_slurm", lambda jobs: ended)
    slurm_state.refresh([run])
    assert run.status["error"].startswith("Slurm: ")
    assert "s3cr3t" not in (run.path / "status.json").read_text()


HOSTILE = "\x1b]0;title\x07\u202e"


def test_a_strangers_names_and_texts_cannot_command_the_terminal(capsys, tmp_path, monkeypatch):
    root, line = tmp_path / "runs", "\nall: done"
    result = RESULT | {"headline": {"name": HOSTILE + line, "value": HOSTILE}, "results": []}
    for claim in ("", "A0.1"):
        result["results"] += [{"says": HOSTILE + line, "holds": False, "why": HOSTILE, "claim": claim}]
    run = write_run(root, "1" + HOSTILE + line, notebook="nb" + HOSTILE + line, result=result)
    odd = write_run(root, "2" + HOSTILE + line, notebook="nb" + HOSTILE + line)
    (odd.path / "status.json").write_text("[]")
    help_text = f"seed: int = 0  # {HOSTILE}"
    monkeypatch.setenv("WORKBENCH_NOTEBOOKS", str(tmp_path))
    notebook = write_notebook(tmp_path / "given.ipynb", parameters=help_text)
    write_notebook(tmp_path / ("x" + HOSTILE + line + ".ipynb"))
    for arguments in (["list"], ["list", notebook], ["status"], ["status", odd.path], ["logs", run.path],
                      ["cancel", run.path], ["status", "none"], ["run", "none"]):  # fmt: skip
        code, out, err = call(capsys, *arguments, *(["--runs-dir", root] if arguments[0] != "list" else []))
        assert code in (0, 1, 2)
        assert out + err
        assert not any(c in out + err for c in "\x1b\x07\u202e")
        assert not any(text.startswith("all: done") for text in (out + err).splitlines())
