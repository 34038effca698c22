"""The ways in: examples to copy, the container, the agent skill. Each is parsed by what reads it, or its commands run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import ROOT, call, need

from tools.address import install_cell, notebooks_with_install_cell
from workbench.cli import _parser

EXAMPLES = ROOT / "examples"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SKILL = (ROOT / "skills" / "workbench" / "SKILL.md").read_text()


# --- machines ------------------------------------------------------------------------------------------------------


def test_every_command_of_the_cloud_example_is_one(capsys):
    task = yaml.safe_load((EXAMPLES / "sky.yaml").read_text())
    assert task.keys() == {"name", "workdir", "resources", "envs", "setup", "run"}
    assert task["setup"].split() == ["make", "install"]
    lines = [re.sub(r"\$(\w+)", lambda m: task["envs"][m[1]], line) for line in task["run"].splitlines()]
    for line in lines:
        program, *words = shlex.split(line)
        assert program == ".venv/bin/workbench"
        _parser().parse_args(words)
    code, out, _ = call(capsys, *shlex.split(lines[1])[1:], "--dry-run")
    assert code == 0 and f"model='{task['envs']['MODEL']}'" in out


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_two_machines_start_one_training(tmp_path, rank):
    """What the script gives to accelerate and to the training is read by their own parsers."""
    need(find_spec("accelerate"), "accelerate")
    from accelerate.commands.launch import launch_command_parser

    from workbench.experiments.__main__ import parse_fields

    stub = tmp_path / "accelerate"
    stub.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    stub.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HEAD": "10.0.0.1", "GPUS": "4", "OUT": "a run"}
    done = subprocess.run([EXAMPLES / "two_nodes.sh", str(rank)], env=env, capture_output=True, text=True, check=True)
    command, *words = json.loads(done.stdout)
    args = launch_command_parser().parse_args(words)
    assert command == "launch" and args.multi_gpu and args.module
    assert (args.num_machines, args.num_processes, args.machine_rank) == (2, 8, rank)
    assert (args.main_process_ip, args.main_process_port) == ("10.0.0.1", 29500)
    assert args.training_script == "workbench.experiments"
    given = args.training_script_args
    assert given[:2] == ["--out", "a run"]
    assert parse_fields([word for word in given[2:] if word != "-p"])["backend"] == "vllm"


@pytest.mark.parametrize("without", ["rank", "HEAD"])
def test_two_machines_name_what_is_missing(without):
    env = {name: value for name, value in os.environ.items() if name != "HEAD"}
    env |= {} if without == "HEAD" else {"HEAD": "10.0.0.1"}
    arguments = [] if without == "rank" else ["0"]
    done = subprocess.run([EXAMPLES / "two_nodes.sh", *arguments], env=env, capture_output=True, text=True)
    assert done.returncode != 0 and f"expected the {'rank' if without == 'rank' else 'address'}" in done.stderr


# --- the container -------------------------------------------------------------------------------------------------


def container() -> dict[str, list[str]]:
    """The Dockerfile as instruction -> what stands behind it, in order."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n", " ", DOCKERFILE).splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest)
    return found


def test_the_container_starts_the_lab_as_make_does():
    has = container()
    assert has.keys() == {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "EXPOSE", "CMD"}
    command = json.loads(has["CMD"][0])
    shown = subprocess.run([*command, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "jupyter lab" in shown and f"--port={has['EXPOSE'][0]}" in shown


def test_the_devcontainer_installs_as_the_container_does():
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    dev = json.loads(text)
    assert dev["postCreateCommand"] in container()["RUN"]
    versions = {re.search(r"python:([\d.]+)", image)[1] for image in (dev["image"], *container()["FROM"])}
    (least,) = re.findall(r'^requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert versions == {least}


@pytest.mark.rare
@pytest.mark.slow
def test_the_containers_commands_work_in_an_empty_environment(tmp_path):
    """There is no builder here: the same files, another home, and nothing of this environment."""
    need(shutil.which("git") and (ROOT / ".git").exists(), "git and a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        target = tmp_path / "workbench" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    path = f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "TORCH_CPU"))}
    env = kept | {"HOME": str(tmp_path / "home"), "PATH": path}
    (tmp_path / "home").mkdir()
    for line in container()["RUN"]:
        if not line.startswith("apt-get"):
            done = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path / "workbench", env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr[-2000:]
    audit = [".venv/bin/workbench", "audit", "data/audit/masked_stops", "--brief"]
    done = subprocess.run(audit, cwd=tmp_path / "workbench", env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "masked-stops" in done.stdout


# --- the install cell of notebooks ---------------------------------------------------------------------------------

# What a notebook that is opened without a checkout starts as its pip.
STAND_IN = """\
import json, sys
print("pip was called with", json.dumps(sys.argv[1:]))
"""
WITH_INSTALL_CELL = [nbformat.read(path, as_version=4) for path in notebooks_with_install_cell()]
CELL = install_cell(WITH_INSTALL_CELL[0])
REAL_ADDRESS = CELL.source.replace("https://example.org/trl-workbench", "https://git.test/me/workbench")


def test_the_same_folded_cell_comes_first_in_four_notebooks():
    assert [path.name[:2] for path in notebooks_with_install_cell()] == ["00", "05", "07", "08"]
    for notebook in WITH_INSTALL_CELL:
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        assert (first.source, first.metadata, first.outputs) == (CELL.source, CELL.metadata, [])
    assert CELL.metadata.jupyter.source_hidden and CELL.metadata.tags == ["install", "remove-cell"]


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """Run code in an empty environment whose pip is a stand-in; returns the finished process."""
    folder = tmp_path_factory.mktemp("outside")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "empty"], check=True)
    (site,) = folder.glob("empty/lib/python*/site-packages")
    (site / "pip.py").write_text(STAND_IN)

    def run(code: str) -> subprocess.CompletedProcess:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [folder / "empty" / "bin" / "python", "-c", code]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)

    return run


@pytest.mark.slow
def test_outside_a_checkout_the_cell_installs_and_shows_it(outside):
    done = outside(REAL_ADDRESS)
    package = "trl-workbench[train,lab] @ git+https://git.test/me/workbench"
    assert done.returncode == 0, done.stderr
    assert f"pip install '{package}'" in done.stdout
    assert f"pip was called with {json.dumps(['install', '--quiet', package])}" in done.stdout


@pytest.mark.slow
def test_the_cell_says_what_to_do_while_there_is_no_address(outside):
    done = outside(CELL.source)
    assert done.returncode == 1 and "pip was called" not in done.stdout
    assert "https://example.org/trl-workbench is a placeholder" in done.stderr
    assert "uv build" in done.stderr and "%pip install 'FILE.whl[train,lab]'" in done.stderr


@pytest.mark.parametrize("source", [CELL.source, REAL_ADDRESS], ids=["placeholder", "address"])
def test_in_a_checkout_the_cell_does_nothing(source, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *command, **_: pytest.fail(f"started {command}"))
    exec(source, {})
    assert capsys.readouterr() == ("", "")


# --- the skill for agents ------------------------------------------------------------------------------------------

LOSS = """\
import numpy as np


def policy_loss(logps, old_logps, advantages, mask, total_tokens):
    ratio, a = np.exp(np.where(mask > 0, logps - old_logps, 0)), advantages[:, None]
    plain, limited = ratio * a, np.clip(ratio, 0.8, 1.2) * a
    weight = mask / max(total_tokens, 1)
    return -(np.minimum(plain, limited) * weight).sum(), -np.where(plain <= limited, ratio * a, 0) * weight
"""
REWARD = """\
def my_reward(completions, answer, **_):
    return [float(text.strip() == right) for text, right in zip(completions, answer)]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with what the skill's commands name, recorded by a real training."""
    from step_cases import make

    from workbench.training.recording import attach_recorder

    folder = tmp_path_factory.mktemp("project")
    (folder / "my_loss.py").write_text(LOSS)
    (folder / "rewards.py").write_text(REWARD)
    rows = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(1, 31)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(ROOT / "data" / "audit" / "masked_stops", folder / "outputs")
    trainer = make(folder / "checkpoints", max_steps=1, logging_steps=1)
    attach_recorder(trainer, folder / "my_run", [1])
    trainer.train()
    rows = [row | {"step": step, "completion": "2", "reward": n % 2} for step in range(9) for n, row in enumerate(rows)]
    (folder / "my_run" / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_skill_says_when_to_use_it_and_to_say_cannot_tell():
    _, head, text = SKILL.split("---\n", 2)
    about = yaml.safe_load(head)
    assert about.keys() == {"name", "description"} and about["name"] == "workbench"
    fields = json.loads((ROOT / "workbench" / "audit" / "audit.schema.json").read_text())
    assert all(
        f'"{name}"' in json.dumps(fields) for name in ("verdict", "severity", "follows_from", "says", "advice", "lacks")
    )
    assert len(about["description"]) <= 1024 and '## When to say "cannot tell"' in text


@pytest.mark.slow
@pytest.mark.parametrize("line", re.findall(r"^    workbench (.*)$", SKILL, re.M))
def test_a_command_of_the_skill_runs(project, line, capsys, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    for name in ("my_loss", "rewards"):  # names of modules that other tests have, too
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    code, out, err = call(capsys, *shlex.split(line))
    assert code in (0, 1), err
    if "--json" in line:
        assert all(json.loads(row) for row in out.splitlines())
