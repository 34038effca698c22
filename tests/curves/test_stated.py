import numpy as np
from conftest import write_run

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.curves.curve import Curve
from workbench.curves.stated import figures_table, training_hours

BASELINES = [load_baseline(name) for name in list_baselines()]
STEPS = np.arange(1, 81)


def seeds(n: int, unit: str = "characters from the target of 20") -> list[Curve]:
    values = [-20 * np.exp(-STEPS / 10) - 4 + np.random.default_rng(s).normal(0, 0.3, 80) for s in range(n)]
    return [Curve(f"seed {s}", STEPS, v, unit, high=0.0) for s, v in enumerate(values)]


def test_what_a_source_states_stands_in_the_column_of_its_measured_counterpart():
    table = figures_table({"mine": seeds(3)}, BASELINES, hours={"mine": [0.1, 0.1, 0.1]}).set_index("run")
    issue, docs = (load_baseline(f"trl-{name}-qwen2-0.5b-tldr-grpo").title for name in ("3406", "docs"))
    assert table.loc[issue, "peak at step"] == "290" and table.loc[issue, "highest"] == "0"
    assert table.loc[docs, ["settles at step", "hours"]].tolist() == ["2500", "24"]
    assert "0.567" in table.loc[load_baseline("verl-docs-qwen2.5-0.5b-gsm8k").title, "end"]
    mine = table.loc["mine"]
    assert mine["kind"] == "measured, 3 seeds" and mine["steps"] == "80" and mine["hours"] == "0.1"
    assert mine["end"].startswith("-4") and " to " in mine["end"]


def test_what_makes_figures_comparable_is_said():
    table = figures_table({"mine": seeds(1)}, BASELINES).set_index("run")["comparable"]
    assert "values: with the groups of its unit" in table[load_baseline("trl-3406-qwen2-0.5b-tldr-grpo").title]
    assert "hours: no, on 8 GPUs" in table[load_baseline("trl-docs-qwen2-0.5b-tldr-grpo").title]
    verl = table[load_baseline("verl-docs-qwen2.5-0.5b-gsm8k").title]
    assert "nothing was measured in their unit" in verl and "accuracies on held-out data" in verl


def test_a_documented_run_without_published_counterpart_has_no_row():
    table = figures_table({}, BASELINES)
    assert load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").title not in set(table["run"])
    assert set(table["kind"]) == {"documented"}


def test_a_curve_that_does_not_settle_or_is_short_leaves_its_cells_empty():
    rising = Curve("rising", STEPS, 0.0 + STEPS, "x")
    table = figures_table({"rising": [rising], "short": [Curve("short", [1, 2], [0, 1], "x")]}, [])
    assert table["settles at step"].tolist() == ["", ""]
    assert table["hours"].tolist() == ["", ""]


def test_hours_are_up_to_the_last_logged_step(tmp_path):
    assert training_hours(write_run(tmp_path, metrics=[{"step": 1, "elapsed_s": 1800.0}])) == 0.5
    assert np.isnan(training_hours(write_run(tmp_path, "b", metrics=[{"step": 1}])))
