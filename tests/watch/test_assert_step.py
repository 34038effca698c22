"""`assert_step` and the pytest fixture: what fails, what may be undecided, and a test in a project of its own."""

import subprocess
import sys
import tomllib

import pytest
import trl
from conftest import ROOT
from step_cases import ShorterMask, make

from workbench import assert_step
from workbench.errors import ParameterError
from workbench.experiments.small_step import small_trainer
from workbench.replay.report import STAGES, Stage, StepReport
from workbench.watch import judge
from workbench.watch.assert_step import failures_of

SAME, OPEN = Stage("mask", "same"), Stage("ends", "cannot tell", "nothing says why")
NOISE = Stage("sampling", "cannot tell", "too few tokens")


def one_value(completions, **_):
    return [1.0] * len(completions)


def test_a_stage_fails_that_is_undecided_and_not_allowed():
    assert failures_of(StepReport([NOISE, SAME], []), ["sampling"]) == []
    (failure,) = failures_of(StepReport([NOISE, OPEN, SAME], []), ["sampling"])
    assert failure == "could not be decided, and allow=('sampling',) does not name it: ends"
    assert failures_of(StepReport([NOISE, OPEN], []), []) != []


def test_a_stage_that_differs_fails_though_it_is_allowed():
    report = StepReport([Stage("mask", "different"), SAME], [])
    assert failures_of(report, STAGES) == ["different: mask"]


def test_a_reused_update_repeats_each_stage_of_generation():
    of_generation = set(STAGES[: STAGES.index("batches")])
    repeated = {*judge._OF_GENERATION, *judge._OF_SOME_GENERATIONS}
    assert of_generation - repeated == set(), "name it in _OF_GENERATION of watch/judge.py"


@pytest.mark.parametrize("allow", ["rewrds", ("sampling", "rewrds")])
def test_an_unknown_stage_is_refused_before_the_step_runs(allow):
    with pytest.raises(ParameterError, match=r"'rewrds' is no stage; did you mean 'rewards'.*sampling, ends, turns"):
        assert_step("no trainer", allow=allow)


def test_the_plugin_loads_nothing_heavy():
    code = "import sys, workbench.pytest_plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "trl", "transformers", "datasets", "numpy", "pandas"} & set(loaded)


def test_the_entry_point_names_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("cls", [trl.GRPOTrainer, trl.RLOOTrainer])
def test_a_healthy_trainer_passes_with_nothing_undecided(cls, tmp_path):
    report = assert_step(small_trainer(cls, tmp_path), allow=())
    assert {stage.verdict for stage in report.stages} <= {"same", "rounding"}


@pytest.mark.slow
def test_a_fault_and_an_undecided_stage_raise_with_the_report(tmp_path):
    with pytest.raises(AssertionError, match=r"different: mask.*\nfirst: mask, rows"):
        assert_step(small_trainer(ShorterMask, tmp_path))
    trainer = make(tmp_path, funcs=[one_value])
    with pytest.raises(AssertionError, match=r"allow=\('sampling',\) does not name it: gradient") as error:
        assert_step(trainer)
    assert "no row of this batch has an advantage" in str(error.value)
    assert_step(trainer, allow=("sampling", "gradient", "update"))
    assert_step(small_trainer(ShorterMask, tmp_path), meant=("mask", "loss", "gradient"))


def test_the_small_trainer_refuses_another_class(tmp_path):
    with pytest.raises(ParameterError, match="expected TRL's GRPOTrainer or RLOOTrainer"):
        small_trainer(trl.SFTTrainer, tmp_path)


PROJECT = """
import trl
from workbench import assert_step


class Shorter(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["completion_mask"][:, -1] = 0
        return output


def test_stock(step_trainer):
    trainer = step_trainer(trl.GRPOTrainer, loss_type="bnpo")
    assert trainer.args.loss_type == "bnpo"
    assert_step(trainer)


def test_mine(step_trainer):
    assert_step(step_trainer(Shorter))
"""


@pytest.mark.slow
def test_a_project_of_its_own_has_a_test_in_one_line(tmp_path, capsys):
    """In this process, which has imported TRL already."""
    (tmp_path / "test_mine.py").write_text(PROJECT)
    plugins = ["-p", "workbench.pytest_plugin", "-p", "no:cacheprovider"]
    pytest.main([*plugins, "--rootdir", str(tmp_path), str(tmp_path)])
    shown = capsys.readouterr().out
    assert "1 failed, 1 passed" in shown and "first: mask, rows" in shown, shown[-3000:]
