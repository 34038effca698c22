import os
import platform
import socket
import subprocess

from conftest import ROOT

from workbench import __version__
from workbench.runs import environment as module
from workbench.runs.environment import environment


def test_the_environment_says_what_others_need_to_repeat_a_run(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/home/somebody/bin/workbench", "run", "00_start_here"])
    found = environment(seed=3)
    assert (found["seed"], found["host"], found["python"]) == (3, socket.gethostname(), platform.python_version())
    assert (found["cores"], found["threads"]) == (os.cpu_count(), "1")
    assert {"trl", "torch"} <= found["packages"].keys()
    assert found["packages"]["workbench"] == __version__
    assert found["cpu"]
    assert found["argv"] == ["workbench", "run", "00_start_here"]  # no folder of a user


def test_the_commit_says_whether_the_code_was_changed():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    assert environment()["git_commit"].removesuffix(" with uncommitted changes") == head


def test_a_machine_without_git_or_gpu_driver_has_an_environment(monkeypatch):
    monkeypatch.setattr(module.os, "environ", {"PATH": ""})
    monkeypatch.setattr(subprocess, "run", _no_such_program)
    found = environment()
    assert (found["gpus"], found["git_commit"], found["threads"]) == ([], "", None)


def _no_such_program(command, **_):
    raise FileNotFoundError(command[0])


def test_no_password_or_token_of_the_command_line_is_recorded(monkeypatch):
    arguments = ["--vllm-server", "http://me:s3cr3tz9@host:8000", "--hf-token", "s3cr3tz9", "-p"]
    arguments += ["model=hf_AbCdEfGhIjKl1234s3cr3tz9"]
    monkeypatch.setattr("sys.argv", ["/bin/workbench", "run", *arguments, "seed=1"])
    told = environment()["argv"]
    assert "tz9" not in " ".join(told)
    assert told[:4] == ["workbench", "run", "--vllm-server", "http://[token]@host:8000"]
    assert told[-1] == "seed=1"


def test_asking_git_for_the_commit_locks_no_repository(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_output", lambda command: asked.append(command) or "text")
    assert module._git_commit() == "text with uncommitted changes"
    (status,) = [command for command in asked if "status" in command]
    assert "--no-optional-locks" in status


def test_what_nvidia_smi_prints_as_it_fails_is_no_gpu(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert environment()["gpus"] == []
