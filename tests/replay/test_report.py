"""The report of a step: headline, where and how much, links to definitions."""

import ast
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, need

from workbench.errors import ParameterError
from workbench.replay import formulas
from workbench.replay.formulas import FORMULAS, formula_of, trl_line
from workbench.replay.report import STAGES, CheckedRow, Stage, StepReport

LONG = "8 of 16 completions ended, but are left out of the loss: mask_truncated_completions counts them as truncated"
SAME = Stage("sampling", "same", "160 tokens, +1.8 standard errors", 0.03, "160 tokens")
MASK = Stage("mask", "different", LONG, 68.0, "rows 0, 1, 2")
LOSS = Stage("loss", "different", "loss_type 'dapo' gives another loss", 0.0028, "micro-batches 0")
ENDS, REWARDS = Stage("ends", "cannot tell", "nothing says why"), Stage("rewards", "cannot tell", "several processes")
RATIOS = Stage("ratios", "same", "ratios of 1 to 1", 0.0)


def row_of(ratios=(1.0, 1.0, 1.0), prompt="Say <b>"):
    ones = np.ones(3)
    return CheckedRow(
        [1, 2], [3, 4, 5], ["a", "<", "c"], np.array([1, 1, 0]), 0.5, -ones, -ones, np.array(ratios), ones, prompt
    )


def test_the_headline_says_what_is_open_where_nothing_differs():
    assert StepReport([SAME, RATIOS], []).headline == "no stage differs"
    report = StepReport([SAME, ENDS, REWARDS, RATIOS], [])
    assert report.headline == "no stage differs; 2 could not be decided: ends, rewards"


@pytest.mark.parametrize("row", [1, -1, "a"])
def test_a_row_that_is_not_there_is_refused_with_those_that_are(row):
    with pytest.raises(ParameterError, match=f"row={row!r}: expected a row of this step, 0 to 0"):
        StepReport([SAME], [row_of()]).tokens(row)


def test_the_headline_names_the_first_difference_and_its_place():
    report = StepReport([SAME, ENDS, MASK, LOSS], [])
    said = "first: mask, rows 0, 1, 2; also different: loss; 1 could not be decided: ends"
    assert report.headline == said
    assert str(report).startswith(said) and f"<b>{said}</b>" in report._repr_html_()


def test_the_headline_names_what_is_meant_to_differ():
    report = StepReport([SAME, MASK, LOSS], [], "RLOO").with_meant(["mask", "loss"])
    assert report.headline == "no stage differs; meant to differ: mask, loss" and report.kind == "RLOO"


def test_text_and_page_say_where_and_how_much():
    report = StepReport([SAME, MASK, LOSS, Stage("advantages", "same", "", 1.5e-7)], [])
    for shown in (" ".join(str(report).split()), report._repr_html_()):
        assert "rows 0, 1, 2; 68 tokens" in shown
        assert "micro-batches 0; at most 0.0028" in shown
        assert "at most 1.5e-07" in shown
    assert str(report).count("160 tokens") == 1


def test_the_text_has_at_most_100_columns_and_every_word():
    report = StepReport([SAME, MASK, LOSS, RATIOS], [row_of()])
    assert max(map(len, str(report).splitlines())) <= 100
    assert LONG in " ".join(str(report).split())


def test_the_page_has_prompts_a_legend_and_escapes_text():
    page = StepReport([MASK], [row_of(), row_of(prompt="x" * 1000)])._repr_html_()
    assert "Say &lt;b&gt;" in page and page.index("Say &lt;") < page.index(">a</span>")
    assert "... " + "x" * 400 + "<" in page
    assert page.count("<span") == 6 and "struck out" in page
    assert "struck out" not in StepReport([MASK], [])._repr_html_()


def test_a_finding_of_a_step_whose_ratios_are_all_1_names_replay():
    assert StepReport([RATIOS], [row_of()]).advice == ""
    assert "replay" in StepReport([Stage("ratios", "cannot tell")], [row_of()]).advice
    assert "`workbench replay DIR --step 2`" in str(StepReport([RATIOS, LOSS], [row_of()]))
    assert "replay" in StepReport([RATIOS, LOSS], [row_of()])._repr_html_()
    assert StepReport([RATIOS, LOSS], [row_of(ratios=(1.0, 1.2, 1.0))]).advice == ""
    assert StepReport([RATIOS, LOSS], [row_of(ratios=(1.0, np.nan, 1.0))]).advice == ""
    assert StepReport([RATIOS, LOSS], []).advice == ""
    assert StepReport([LOSS], [row_of()]).advice == ""
    assert StepReport([RATIOS, LOSS], [row_of()], "AsyncGRPO").advice == ""  # whose steps are not kept


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_has_a_definition_that_exists(stage, kind):
    *module, name = formula_of(stage, kind).split(".")
    tree: ast.AST
    if module[-1][0].isupper():
        *module, owner = module
        tree = ast.parse((ROOT / "workbench" / "/".join(module)).with_suffix(".py").read_text())
        (tree,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner]
    else:
        tree = ast.parse((ROOT / "workbench" / "/".join(module)).with_suffix(".py").read_text())
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert formula_of(stage, kind) in StepReport([Stage(stage, "same")], [], kind)._repr_html_()


def test_each_stage_that_the_package_judges_is_listed():
    judged = set()
    for path in (ROOT / "workbench").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        for call in calls:
            makes_a_stage = isinstance(call.func, ast.Name) and call.func.id in ("Stage", "compared")
            if makes_a_stage and call.args and isinstance(call.args[0], ast.Constant):
                judged.add(call.args[0].value)
    assert judged - set(STAGES) == set(), "name it in STAGES of replay/report.py"
    assert set(STAGES) - set(FORMULAS) == set(), "name its function in FORMULAS of replay/formulas.py"
    assert set(FORMULAS) - set(STAGES) == set(), "no stage has this name"


WITHOUT_A_LINE = {
    "GRPO": {"images", "teacher", "update"},
    "RLOO": {"images", "teacher", "update", "turns", "mismatch", "correction"},
}


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_a_stage_leads_to_the_line_of_the_installed_trl(kind):
    need(find_spec("trl"), "TRL")
    folder = Path(find_spec("trl").origin).parent / "trainer"
    lines = (folder / f"{kind.lower()}_trainer.py").read_text().splitlines()
    for stage in STAGES:
        address = trl_line(stage, kind)
        if not address:
            assert stage in WITHOUT_A_LINE[kind], "name TRL's method in _OF_TRL of replay/formulas.py"
            continue
        release, file, number = re.fullmatch(
            r"https://github.com/huggingface/trl/blob/v([\d.]+)/trl/trainer/(\w+\.py)#L(\d+)", address
        ).groups()
        assert file == f"{kind.lower()}_trainer.py" and release == formulas._installed_release()
        method, name = formulas._OF_TRL[stage]
        assert (name and f"{name}" in lines[int(number) - 1]) or f"def {method}(" in lines[int(number) - 1], stage
        assert address in StepReport([Stage(stage, "same")], [], kind)._repr_html_()


def test_a_development_version_of_trl_has_no_link(monkeypatch):
    monkeypatch.setattr(formulas, "version", lambda name: "1.17.0.dev0")
    assert trl_line("loss") == ""


def test_the_page_needs_no_trl_and_imports_none():
    code = (
        "import sys; {}; from workbench.replay.report import Stage, StepReport\n"
        "page = StepReport([Stage('loss', 'same')], [])._repr_html_()\n"
        "print('grpo_loss' in page, 'github' in page, bool(sys.modules.get('trl')))"
    )
    for block, link in (("sys.modules['trl'] = None", False), ("0", bool(find_spec("trl")))):
        done = subprocess.run([sys.executable, "-c", code.format(block)], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True", str(link), "False"]
