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


def test_pairs_on_one_axis_get_a_verdict_and_every_other_reason_stands_once(tmp_path):
    documented = [load_baseline(name) for name in list_baselines()]
    metrics = [{"step": n, "elapsed_s": n, "reward": -300 + 2 * n + n % 3} for n in range(1, 111)]
    about = {"unit": "characters from the target of 200", "high": 0.0}
    found = compare_runs([write_run(tmp_path, metrics=metrics)], documented, tolerance=5.0, **about)
    (only,) = found.levels.verdicts["documented"]
    assert only == load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").title
    assert found.levels.verdicts["why"].str.len().min() > 0
    assert found.levels.reasons["cannot compare"].is_unique
    assert found._repr_html_().count("another unit, range or axis") == 1
    with_curve = [b.title for b in documented if "reward" in b.curves]
    assert found.levels.shapes["curve"].tolist() == [*found.groups, *with_curve]
    assert compare_runs([], documented, tolerance=5.0).levels.verdicts.empty
