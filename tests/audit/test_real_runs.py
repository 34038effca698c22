import json
from pathlib import Path

import pandas as pd
import pytest

from workbench.audit.report import audit_run

RUNS = Path(__file__).parent / "runs"


def verdicts(name, **given):
    (run,) = audit_run(RUNS / name, **given).runs
    return run, {f.rule: f.verdict for f in run.findings}


@pytest.mark.parametrize("given", [{}, {"limit": 32}])
def test_stock_trl_that_masks_stops_gets_the_one_true_cause(given):
    run, found = verdicts("stock_masked", **given)
    assert run.problems == ["masked-stops", "zero-gradient"]
    zero = next(f for f in run.findings if f.rule == "zero-gradient")
    assert (zero.cause, zero.follows_from) == ("masked", "masked-stops")
    assert found["false-clipping"] == "found"
    assert found["true-clipping"] == found["never-stops"] == "cannot tell"
    assert found["copies"] == found["collapse"] == "not found"


@pytest.mark.parametrize("given", [{}, {"limit": 32}])
def test_its_healthy_twin_has_no_problem_and_is_told_not_to_mask(given):
    run, found = verdicts("stock_unmasked", **given)
    assert run.problems == []
    assert found["masked-stops"] == "not found"
    (clipping,) = [f for f in run.findings if f.verdict == "found"]
    assert clipping.rule == "false-clipping"
    assert clipping.advice.startswith("Do not mask truncated completions")


def as_printed(rows):
    numbers = [{name: f"{value:.4g}" for name, value in row.items() if name != "step"} for row in rows]
    return "\n".join(f" {n}%|##  | {n}/80 [00:01<00:09, 1.2it/s]{row}" for n, row in enumerate(numbers))


def as_wandb(rows):
    table = pd.DataFrame(rows).rename(columns=lambda name: f"train/{'global_step' if name == 'step' else name}")
    return table.assign(_step=range(len(table)), _runtime=0.5).to_csv(index=False)


def as_verl(rows):
    data = [(row["step"], {name: value for name, value in row.items() if name != "step"}) for row in rows]
    return "\n".join(json.dumps({"step": step, "data": metrics}) for step, metrics in data)


@pytest.mark.parametrize(
    ("name", "shape"), [("console.txt", as_printed), ("history.csv", as_wandb), ("run.jsonl", as_verl)]
)
@pytest.mark.parametrize("run", ["stock_masked", "stock_unmasked"])
def test_a_run_in_another_tools_shape_has_the_same_problems(tmp_path, run, name, shape):
    rows = json.loads((RUNS / run / "trainer_state.json").read_text())["log_history"]
    (tmp_path / name).write_text(shape(rows))
    assert audit_run(tmp_path / name).problems == verdicts(run)[0].problems
