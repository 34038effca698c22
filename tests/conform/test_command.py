"""`workbench conform` and the option of pytest, on a loss without torch."""

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, call

pytest_plugins = ["pytester"]

LOSS = """
import numpy as np


def policy_loss(logps, old_logps, advantages, mask, total_tokens):
    ratio, a = np.exp(np.where(mask > 0, logps - old_logps, 0)), advantages[:, None]
    plain, limited = ratio * a, np.clip(ratio, 0.8, 1.2) * a
    weight = mask / max(total_tokens, 1)
    return -(np.minimum(plain, limited) * weight).sum(), -np.where(plain <= limited, ratio * a, 0) * weight


def without_clip(logps, old_logps, advantages, mask, total_tokens):
    print("asked")
    ratio, a = np.exp(np.where(mask > 0, logps - old_logps, 0)), advantages[:, None]
    slopes = -ratio * a * mask / max(total_tokens, 1)
    return slopes.sum(), slopes


def advantages(rewards, groups):
    return rewards - np.array([rewards[groups == group].mean() for group in groups])


def ends(logps):
    raise SystemExit(0)
"""
BLOCKED = "torch transformers trl vllm accelerate"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a module `my_loss`, in which commands are called."""
    (tmp_path / "my_loss.py").write_text(LOSS)
    (tmp_path / "my_exit.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("function, code, wrong", [("policy_loss", 0, 0), ("without_clip", 1, 12)])
def test_the_command_needs_no_torch(project, function, code, wrong):
    arguments = ["conform", f"my_loss:{function}", "--as", "dapo"]
    block = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED.split()}))"
    program = f"{block}; from workbench.cli import main; sys.exit(main({arguments}))"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=project, env=env)
    assert done.returncode == code, done.stderr
    title = f"my_loss:{function} as dapo (clipped, the mean over all tokens of the step): {wrong} of 18 cases wrong\n"
    assert done.stdout.startswith(title)
    assert ("no clip (epsilon=inf, epsilon_high=inf, delta=None)" in done.stdout) == bool(code)
    assert set(done.stderr.splitlines()) == ({"asked"} if code else set())


def test_json_has_an_object_for_each_case(project, capsys):
    code, out, err = call(capsys, "conform", "my_loss:without_clip", "--as", "dapo", "--json")
    results = [json.loads(line) for line in out.splitlines()]
    assert set(err.splitlines()) == {"asked"}  # what the function prints
    assert code == 1 and {result["verdict"] for result in results} == {"same", "wrong", "not offered"}
    first = next(result for result in results if result["verdict"] == "wrong")
    assert (first["function"], first["definition"]) == ("my_loss:without_clip", "dapo")
    assert first["value"] != pytest.approx(first["expected"])


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("my_loss --as dapo", "my_loss: expected MODULE:FUNCTION"),
        ("no_loss:f --as dapo", "no_loss:f: ModuleNotFoundError: No module named 'no_loss'"),
        ("no_loss.py:f --as dapo", "no_loss.py: no such file; expected MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("my_loss:advantages --as grpo", "a loss has no `rewards`: a function of these claims to be advantages"),
        ("my_loss:policy_loss --as PPO", "PPO's clip is in dapo, grpo, bnpo and dr_grpo, which differ in the divisor"),
        ("my_exit:f --as dapo", "my_exit:f: SystemExit: 0"),
        ("my_loss:ends --as dapo", "none of the 39 cases of dapo has an answer: raised SystemExit: 0"),
        ("my_loss:policy --as dapo", "my_loss:policy: AttributeError"),
        ("my_loss:LOSS --as dapo", "AttributeError"),
        ("my_loss:np --as dapo", "my_loss:np is module: expected a function"),
        ("my_loss:policy_loss --as grpo2", "did you mean 'grpo'?"),
        ("my_loss:policy_loss --as grpo_advantages", "none of the 13 cases of grpo_advantages has an answer"),
        ("my_loss:policy_loss --as rloo_advantages", "advantages have no `logps`: a function of these claims to be"),
    ],
)
def test_what_cannot_be_asked_ends_with_2(project, capsys, arguments, says):
    code, out, err = call(capsys, "conform", *arguments.split())
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_a_function_in_a_file_is_asked_by_the_files_path(tmp_path, capsys):
    (tmp_path / "loss_in_a_file.py").write_text(LOSS)
    code, out, _ = call(capsys, "conform", f"{tmp_path}/loss_in_a_file.py:policy_loss", "--as", "dapo")
    assert code == 0 and "0 of 18 cases wrong" in out


def test_the_example_of_the_page_is_the_same_in_each_case(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "how-to" / "conform.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n# page_loss.py\n(.*?)^```$", page.replace("my_loss", "page_loss"), re.M | re.S)
    (tmp_path / "page_loss.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = call(capsys, "conform", "page_loss:policy_loss", "--as", "dapo")
    assert code == 0 and "0 of 20 cases wrong" in out


def test_pytest_gets_one_test_for_each_case(pytester):
    pytester.makepyfile(my_loss=LOSS, test_beside_it="def test_mine(): pass")
    plugin = ["-p", "workbench.pytest_plugin"]
    options = ["--conform", "my_loss:policy_loss", "--conform-as"]
    healthy = pytester.runpytest_inprocess(*plugin, *options, "dapo", "-rs")
    healthy.assert_outcomes(passed=19, skipped=21)
    healthy.stdout.fnmatch_lines(["*kl: no parameter beta*"])
    other = pytester.runpytest_inprocess(*plugin, *options, "grpo", "-k", "four or mine")
    other.assert_outcomes(passed=2, deselected=38, warnings=1)
    other.stdout.fnmatch_lines(["*other by choice: four rows: *loss_type='dapo'*"])
    wrong = pytester.runpytest_inprocess(*plugin, "--conform", "my_loss:without_clip", "--conform-as", "dapo")
    wrong.assert_outcomes(passed=7, failed=12, skipped=21)
    wrong.stdout.fnmatch_lines(["FAILED my_loss:without_clip as dapo::four rows*"])
    refused = pytester.runpytest_inprocess(*plugin, "--conform", "my_loss:policy_loss")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*--conform MODULE:FUNCTION and --conform-as NAME go together*"])
    ended = pytester.runpytest_inprocess(*plugin, "--conform", "my_loss:ends", "--conform-as", "dapo")
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*none of the 39 cases of dapo has an answer: raised SystemExit: 0*"])
