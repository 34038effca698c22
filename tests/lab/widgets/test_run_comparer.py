import json

import pytest
from conftest import write_run
from widget_samples import METRICS, with_problem

from workbench.curves.documented import list_baselines, load_baseline
from workbench.errors import ParameterError
from workbench.lab.widgets import run_comparer
from workbench.lab.widgets.run_comparer import compare_runs


def test_the_comparer_draws_the_chosen_and_says_what_is_left_out(tmp_path):
    runs = [write_run(tmp_path, "a", metrics=METRICS), write_run(tmp_path, "b", state="failed")]
    documented = [load_baseline(name) for name in list_baselines()[:3]]
    explorer = run_comparer(runs, documented, tolerance=5.0)
    assert "05_grpo_docs_example/b: failed" in explorer.result.value
    assert documented[0].title in explorer.result.value
    explorer.controls["documented"].none.click()
    assert documented[0].title not in explorer.result.value
    boxes = explorer.controls["runs"].boxes
    assert boxes[1].description == "05_grpo_docs_example b (failed)"
    for box in boxes:
        box.value = False
    assert "refused: nothing to draw" in explorer.state.value
    boxes[0].value = True
    assert explorer.controls["runs"].value == (runs[0],)
    assert "ready" in explorer.state.value


def test_the_comparer_names_the_problem_of_a_run(tmp_path):
    runs = [with_problem(write_run(tmp_path, "a", metrics=METRICS)), write_run(tmp_path, "b", metrics=METRICS)]
    labels = [box.description for box in run_comparer(runs, []).controls["runs"].boxes]
    assert labels == ["05_grpo_docs_example a (done, audit: problem zero-gradient)", "05_grpo_docs_example b (done)"]


def test_pairs_of_one_unit_get_a_verdict(tmp_path):
    documented = [load_baseline(name) for name in ("w3ng-qwen2.5-1.5b-tldr-grpo", *list_baselines()[:5])]
    metrics = [{"step": n, "elapsed_s": n, "reward": -300 + 2 * n + n % 3} for n in range(1, 111)]
    run = write_run(tmp_path, metrics=metrics)
    reward = {"name": "length", "unit": "characters from the target of 200", "lowest": None, "highest": 0.0}
    (run.path / "recipe.json").write_text(json.dumps({"recipe": {"seed": 1}, "reward_funcs": [reward]}))
    found = compare_runs([run], documented, tolerance=5.0)
    (row,) = found.verdicts.to_dict("records")
    assert row["documented"] == load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").title and row["why"]
    assert row["verdict"] == "inconclusive"  # of one seed
    assert found._repr_html_().count("Is the documented run one more seed?") == 1
    assert compare_runs([], documented, tolerance=5.0).verdicts.empty


def with_unit(run, unit: str):
    """The run, of a reward in this unit that is never above 0."""
    reward = {"name": "length", "unit": unit, "lowest": None, "highest": 0.0}
    (run.path / "recipe.json").write_text(json.dumps({"recipe": {"seed": 1}, "reward_funcs": [reward]}))
    return run


def test_the_comparer_starts_with_the_runs_and_the_three_nearest(tmp_path):
    """It began with all 40 documented curves, in panels with labels of five pixels."""
    metrics = [{"step": n, "elapsed_s": n, "reward": -300 + 2 * n} for n in range(1, 101)]
    run = with_unit(write_run(tmp_path, metrics=metrics), "characters from the target of 20")
    every = [load_baseline(name) for name in list_baselines()]
    explorer = run_comparer([run], every)
    assert explorer.controls["runs"].value == (run,)
    chosen = [load_baseline(name) for name in explorer.controls["documented"].value]
    assert len(chosen) == 3 and {one.reward["unit"] for one in chosen} == {"characters from the target of 20"}
    assert explorer.controls["documented"].head.value == f"documented: 3 of {len(every)}"
    assert [box.value for box in explorer.controls["documented"].boxes[:4]] == [True, True, True, False]
    figure = compare_runs([run], chosen).figure.figure
    width, _ = figure.get_size_inches()
    assert {ax.get_subplotspec().colspan.start for ax in figure.axes} == {0} and width <= 9


def test_without_runs_the_comparer_says_where_they_come_from():
    explorer = run_comparer([], ["w3ng-qwen2.5-1.5b-tldr-grpo"])
    (label,) = explorer.controls["runs"].children
    assert "`workbench run NOTEBOOK` makes one" in label.value and "ready" in explorer.state.value


@pytest.mark.parametrize("interactive", [True, False])
def test_unknown_option_is_refused_before_anything_is_drawn(interactive):
    with pytest.raises(
        ParameterError, match="no option 'tolerence': did you mean 'tolerance'\\? there are tolerance, seed"
    ):
        run_comparer([], [], tolerence=5.0, interactive=interactive)
