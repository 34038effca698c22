from conftest import write_run
from widget_samples import METRICS

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.widgets import run_comparer
from workbench.widgets.run_comparer import compare_runs


def test_the_comparer_draws_what_is_chosen_and_says_what_is_left_out(tmp_path):
    runs = [write_run(tmp_path, "a", metrics=METRICS), write_run(tmp_path, "b", state="failed")]
    documented = [load_baseline(name) for name in list_baselines()]
    explorer = run_comparer(runs, documented, tolerance=5.0, unit="characters", high=0.0)
    assert "05_grpo_docs_example/b: failed" in explorer.result.value
    explorer.controls["documented"].value = ()
    assert documented[0].title not in explorer.result.value
    explorer.controls["runs"].value = ()
    assert "refused: nothing to draw" in explorer.state.value
    boxes = explorer.controls["runs"].children[1].children
    assert boxes[1].description == "05_grpo_docs_example b (failed)" and not boxes[0].value
    boxes[0].value = True
    assert explorer.controls["runs"].value == (runs[0],)
    assert "ready" in explorer.state.value


def test_each_pair_of_group_and_documented_run_gets_a_verdict_with_its_reason(tmp_path):
    documented = [load_baseline(name) for name in list_baselines()]
    found = compare_runs([write_run(tmp_path, metrics=METRICS)], documented, tolerance=5.0, unit="characters", high=0.0)
    assert len(found.verdicts) == len(documented)
    assert found.verdicts["why"].str.len().min() > 0
    assert compare_runs([], documented, tolerance=5.0).verdicts.empty
