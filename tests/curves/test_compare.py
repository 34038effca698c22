import dataclasses
import json
import re

import numpy as np
import pytest
from conftest import ROOT

from benchmarks.verdicts.error_rates import CASES, NOISES, page, verdicts
from workbench.curves import compare
from workbench.curves.compare import (
    another_seed,
    as_judged,
    control_check,
    control_verdicts,
    documented_verdicts,
    list_controls,
    of_control,
    why_not_control,
)
from workbench.curves.curve import Curve
from workbench.curves.documented import list_baselines, load_baseline
from workbench.errors import ParameterError
from workbench.runs.run import Run

STEPS = np.arange(1, 81)


def rise(steps, tau: float = 20.0):
    return 21 * (1 - np.exp(-steps / tau)) - 25


def curve(y=None, *, seed=None, unit="characters", steps=STEPS, **parts) -> Curve:
    y = rise(steps) if y is None else np.asarray(y, float)
    scatter = 0 if seed is None else np.random.default_rng(seed).normal(size=len(steps))
    return Curve(parts.pop("label", "mine"), steps, y + scatter, unit, **parts)


def seeds(n=5, y=None, first=0, **parts) -> list[Curve]:
    return [curve(y, seed=first + s, label=f"seed {first + s}", **parts) for s in range(n)]


MINE = curve(seed=99)
SAME_CASES = [name for name, about in CASES.items() if about["truth"] == "same"]

# --- error rates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAME_CASES)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_one_more_seed_is_said_to_be_different_in_5_per_cent_at_most_also_where_seeds_start_late_or_never_learn(
    n, name
):
    """With one seed it was 9% to 52% where onsets are 8 to 20 steps apart, and 29% where one of five never learns."""
    found = verdicts(np.random.default_rng(7), n, 0.0, 60, CASES[name])
    assert found["different"] <= (0 if n < 3 else 0.05), found


@pytest.mark.parametrize("name", ["8 higher", "20 higher", "falls instead of rising", "no rise, ends equal"])
def test_what_exceeds_the_tolerance_by_far_is_different_for_ten_seeds_and_never_the_same_process(name):
    three, ten = (verdicts(np.random.default_rng(3), n, 0.8, 30, CASES[name]) for n in (3, 10))
    assert three["same process"] == 0 == ten["same process"]
    assert ten["different"] >= 0.9, ten


def test_the_page_of_error_rates_shows_what_the_simulation_recorded_and_all_of_it_is_within_bounds():
    recorded = json.loads((ROOT / "data" / "measured" / "verdicts" / "error_rates.json").read_text())
    control = json.loads((ROOT / "data" / "measured" / "verdicts" / "control.json").read_text())
    assert (ROOT / "docs" / "error_rates.md").read_text() == "\n".join(page(recorded, control))
    same = [row["seeds"] for row in recorded["another_seed"].values() if row["truth"] == "same"]
    assert len(same) == len(SAME_CASES) * len(NOISES)
    assert max(cell["different"] for row in same for cell in row.values()) <= 0.06  # of 5%, known to 1.4 points
    assert recorded["change_interval"]["80; 0.8"]["changed"] <= 0.08


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_within_the_tolerance_is_the_same_process_and_the_reason_has_the_numbers():
    found = another_seed(MINE, seeds(), tolerance=5)
    assert found.verdict == "same process" and abs(found.difference) < 1 and found.seeds == 5
    assert re.fullmatch(
        r"fifth \d of 5 is 0\.\d+ (above|below) the mean of 5 seeds, the tolerance is 5 characters; over 80 steps",
        found.reason,
    )
    assert another_seed(MINE, [MINE] * 3, tolerance=1e-9).verdict == "same process"


@pytest.mark.parametrize("n, verdict", [(1, "inconclusive"), (2, "inconclusive"), (3, "different"), (10, "different")])
def test_one_or_two_seeds_cannot_tell_and_three_can(n, verdict):
    found = another_seed(curve(rise(STEPS) + 60), seeds(n), tolerance=5)
    assert found.verdict == verdict, found
    assert n > 2 or f"{n} seed{'s' * (n > 1)} cannot tell how far another would be" in found.reason


@pytest.mark.parametrize("y", [np.full(80, -25.0), rise(STEPS, 200), rise(np.maximum(STEPS - 40, 0))])
def test_one_that_learns_never_slowly_or_later_is_inconclusive_below_8_seeds_and_different_from_there(y):
    few, many = (another_seed(curve(y, seed=50), seeds(n), tolerance=3) for n in (5, 8))
    assert (
        few.verdict == "inconclusive"
        and "5 seeds cannot tell that from one that learns sooner, later or never" in few.reason
    )
    assert many.verdict == "different"


def test_one_that_loses_what_it_learned_or_goes_elsewhere_is_different_for_five_seeds_too():
    for y in (rise(STEPS) - 20 * (STEPS > 64), -rise(STEPS), rise(STEPS)[::-1]):
        assert another_seed(curve(y, seed=50), seeds(), tolerance=3).verdict == "different"


def test_further_than_the_tolerance_but_within_the_scatter_of_seeds_is_inconclusive():
    apart = [curve(rise(STEPS) + 6 * n, label=f"seed {n}") for n in range(5)]
    found = another_seed(curve(rise(STEPS) + 24), apart, tolerance=1)
    assert found.verdict == "inconclusive" and "but one more seed would lie within" in found.reason


# --- over the same steps ---------------------------------------------------------------------------------------------


def _covers_its_steps(name: str) -> bool:
    """Whether a documented reward was logged throughout, at ten points or more; evaluations leave gaps."""
    found = load_baseline(name).curves.get("reward", {"points": ()})
    x = [point[0] for point in found["points"]]
    return len(x) > 9 and x[1] - x[0] <= found.get("steps_per_point", np.inf) + 1


@pytest.mark.parametrize("every", [5, 10])
@pytest.mark.parametrize("name", [name for name in list_baselines() if _covers_its_steps(name)])
def test_a_documented_run_logged_every_5_or_10_steps_is_the_same_process_as_itself(name, every):
    """Eight of sixteen could not be compared, though every step was covered."""
    documented = load_baseline(name).curve()
    low, high = compare.stretches(documented)
    steps = np.arange(low[0] + 1, high[-1] + 1)
    values = documented.y[np.clip(np.searchsorted(high, steps), 0, len(high) - 1)]
    n = len(steps) // every
    means = values[: n * every].reshape(n, every).mean(1)
    logged = Curve(
        "mine", low[0] + every * np.arange(1, n + 1), means, documented.unit, documented.low, documented.high
    )
    found = another_seed(logged, [documented], tolerance=0.1 * np.ptp(documented.y) or 1e-9)
    if n < 5:
        assert found.verdict == "not comparable" and f"mine has {n} points; 5 or more are needed" in found.reason
    else:
        assert found.verdict == "same process", found


@pytest.mark.parametrize("at, x", [("end", 4), ("centre", 2.5)])
def test_a_point_is_compared_with_the_steps_that_it_is_the_mean_of(at, x):
    means = rise(STEPS).reshape(-1, 4).mean(1)
    for span in (None, 4):
        binned = Curve("documented", np.arange(20) * 4 + x, means, "characters", at=at, span=span)
        found = another_seed(binned, [curve()], tolerance=1e-6)
        assert found.verdict == "same process", found


def test_an_evaluation_is_compared_with_that_of_its_own_step():
    every_50 = Curve("documented", np.arange(50, 501, 50), np.arange(50, 501, 50), "share", span=1)
    every_10 = Curve("measured", np.arange(10, 501, 10), np.arange(10, 501, 10), "share")
    assert another_seed(every_50, [every_10], tolerance=1e-6).difference == 0


def test_a_seed_that_ended_early_is_left_out_and_named():
    short = Curve("seed 7", STEPS[:20], np.full(20, 50.0), "characters")
    found = another_seed(MINE, [*seeds(3), short], tolerance=5)
    assert (found.verdict, found.seeds) == ("same process", 3)
    assert found.reason.endswith("over 80 steps; seed 7 ended at step 20 of 80 and is left out")


def test_a_run_cut_off_early_is_not_comparable_and_one_cut_late_says_how_many_steps_were_compared():
    early, late = (another_seed(MINE, [curve(rise(STEPS[:n]), steps=STEPS[:n])], tolerance=5) for n in (30, 70))
    assert str(early) == "not comparable: only 30 of the 80 steps of mine are covered by every run"
    assert late.verdict == "same process" and "over 70 steps" in late.reason


@pytest.mark.parametrize(
    "other, reason",
    [({"unit": "tokens"}, "seed 0 is in tokens, mine in characters"),
     ({"high": 9.0}, r"seed 0 ranges over (-inf, 9], mine over (-inf, inf)"),
     ({"y": np.where(STEPS == 40, np.nan, 1)}, "seed 0: not finite at step 40")]
)  # fmt: skip
def test_other_units_and_ranges_and_values_that_are_not_finite_are_not_comparable(other, reason):
    found = another_seed(MINE, seeds(2, **other), tolerance=5)
    assert (found.verdict, found.reason) == ("not comparable", reason)


def test_a_tolerance_of_nothing_and_no_seeds_are_errors():
    with pytest.raises(ParameterError, match="tolerance=0: expected more than 0 characters"):
        another_seed(MINE, seeds(), tolerance=0)
    with pytest.raises(ParameterError, match="no seed to compare with mine"):
        another_seed(MINE, [], tolerance=1)


def test_documented_runs_of_the_same_unit_get_a_verdict_and_others_no_row():
    w3ng = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo")
    own = w3ng.curve()
    table = documented_verdicts({"mine": [own], "other": seeds(2)}, [load_baseline(name) for name in list_baselines()])
    assert table[["measured", "documented", "verdict"]].to_numpy().tolist() == [["mine", w3ng.title, "same process"]]
    with pytest.raises(ParameterError, match="tolerance=-1: expected more than 0"):
        documented_verdicts({"mine": [own]}, [w3ng], tolerance=-1)


# --- recorded controls -----------------------------------------------------------------------------------------------

CONTROLS = list_controls()
STARTER, GPT2 = (load_baseline(f"workbench-{name}-docs-example") for name in ("starter", "starter-gpt2"))
PADDING = "padding/max_difference"
each_metric = pytest.mark.parametrize("control, metric", [(c, m) for c in CONTROLS for m in c.recorded["tolerance"]],
                                      ids=lambda v: getattr(v, "name", v))  # fmt: skip


@pytest.fixture
def same_weights(monkeypatch):
    monkeypatch.setattr(compare, "_other_weights", lambda control: "")


def test_the_controls_are_the_two_starters_and_what_they_judge_is_the_reward_and_the_padding_monitor():
    assert {c.name: list(c.recorded["tolerance"]) for c in CONTROLS} == {
        STARTER.name: ["reward"],
        GPT2.name: ["reward", PADDING],
    }


@each_metric
def test_every_recorded_seed_is_the_same_process_as_the_other_nine(control, metric):
    recorded = [as_judged(one, metric) for one in control.curves_by_seed(metric)]
    assert len(recorded) == control.seeds == 10
    for one in recorded:
        others = [other for other in recorded if other is not one]
        assert another_seed(one, others, tolerance=control.recorded["tolerance"][metric]).verdict == "same process"


def against(y, control=STARTER, metric="reward"):
    recorded = [as_judged(one, metric) for one in control.curves_by_seed(metric)]
    one = dataclasses.replace(control.curves_by_seed(metric)[0], label="mine", y=y)
    return another_seed(as_judged(one, metric), recorded, tolerance=control.recorded["tolerance"][metric]).verdict


def test_a_curve_that_learns_otherwise_is_different():
    x, mean = np.arange(1, 81), np.mean([one.y for one in STARTER.curves_by_seed()], axis=0)
    for y in (np.interp(x / 3, x, mean), mean[::-1], np.full(80, mean[0]), mean - 5):
        assert against(y) == "different"


def test_a_padding_error_that_the_reward_cannot_show_is_different_and_another_rounding_is_not():
    mean = np.mean([one.y for one in GPT2.curves_by_seed(PADDING)], axis=0)
    assert against(2 * mean, GPT2, PADDING) == "same process"
    assert against(mean + 0.5, GPT2, PADDING) == "different"


def made_up_run(folder, rewards, seed=7, **recipe):
    """A run's folder as the control's recipe would leave it."""
    training = json.loads(json.dumps(STARTER.recorded["training"]))
    training["recipe"] |= {"seed": seed} | recipe
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(training))
    lines = [json.dumps({"step": n, "reward": r, "elapsed_s": n}) for n, r in enumerate(rewards, 1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return Run(folder)


def test_runs_of_a_control_s_recipe_are_judged_wherever_they_lie_and_others_are_not(tmp_path, same_weights):
    mean = np.mean([one.y for one in STARTER.curves_by_seed()], axis=0)
    folder = tmp_path / "05_example" / "one"
    run = made_up_run(folder, mean)
    made_up_run(folder / "arms" / "tuned" / "seed-3", np.full(80, -20.0), seed=3)
    made_up_run(folder / "arms" / "other" / "seed-3", mean, learning_rate=1e-6)
    table = control_verdicts([run])
    assert table[["run", "training", "seed", "metric", "verdict"]].to_numpy().tolist() == [
        ["05_example/one", "", 7, "reward", "same process"],
        ["05_example/one", "arms/tuned/seed-3", 3, "reward", "different"],
    ]
    assert control_check(table) is False
    assert control_check(table[:1]) is True


def test_a_run_that_is_not_whole_is_not_comparable_and_the_check_says_so(tmp_path, same_weights):
    table = control_verdicts([made_up_run(tmp_path / "05_example" / "one", [-20.0] * 30)])
    assert control_check(table).startswith("not run: not comparable: 05_example, seed 7 has 30 points up to step 30")
    (tmp_path / "05_example" / "one" / "metrics.jsonl").unlink()
    assert "no metrics; the run logged no step" in control_verdicts([Run(tmp_path / "05_example" / "one")])["reason"][0]
    assert control_check(control_verdicts([Run(tmp_path)])[:0]).startswith("not run: no training here")


def test_a_metric_that_is_logged_every_fifth_step_is_judged(tmp_path, same_weights):
    (seed, *_), verdicts = GPT2.curves_by_seed(PADDING), []
    for name, y in {"own": seed.y, "stock": 1 + seed.x / 100}.items():
        measured = dict(zip(seed.x, y, strict=True))
        lines = [{"step": n, "elapsed_s": n} | ({PADDING: measured[n]} if n in measured else {}) for n in range(1, 51)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        (tmp_path / name / "recipe.json").write_text(json.dumps(GPT2.recorded["training"]))
        verdicts.append(of_control(Run(tmp_path / name), GPT2, PADDING).verdict)
    assert verdicts == ["same process", "different"]


def test_a_control_of_other_weights_than_those_shipped_is_not_comparable(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "SHIPPED", tmp_path / "manifest.json")
    run = made_up_run(tmp_path / "05_example" / "one", np.mean([one.y for one in STARTER.curves_by_seed()], axis=0))
    assert of_control(run, STARTER).verdict == "same process"  # nothing is shipped
    compare.SHIPPED.write_text(json.dumps({"model.safetensors": "another"}))
    found = of_control(run, STARTER)
    assert found.verdict == "not comparable" and found.reason.startswith(
        f"other weights: {STARTER.name} was recorded on weights"
    )
    compare.SHIPPED.write_text(json.dumps({"model.safetensors": STARTER.recorded["weights_sha256"]}))
    assert of_control(run, STARTER).verdict == "same process"


def test_another_recipe_is_named_by_its_difference_and_a_metric_without_tolerance_is_an_error():
    training = json.loads(json.dumps(STARTER.recorded["training"]))
    assert why_not_control(training, STARTER) == ""
    training["recipe"] |= {"seed": 4, "learning_rate": 1e-6}
    assert why_not_control(training, STARTER) == "recipe.learning_rate is 1e-06, of the control 0.0003"
    with pytest.raises(ParameterError, match="metric='loss': workbench-starter-docs-example judges reward"):
        of_control(Run("nowhere"), STARTER, "loss")


def test_the_recorded_benchmark_tells_every_damaged_trainer_by_the_metric_that_can_and_no_other_rounding():
    found = json.loads((ROOT / "data" / "measured" / "verdicts" / "control.json").read_text())
    for one in found["rounding"].values():
        assert all(set(metric["verdicts"]) == {"same process"} for metric in one["metrics"].values())
    told = {name: {m for m, v in one["metrics"].items() if set(v["verdicts"]) == {"different"}}
            for name, one in found["damaged"].items()}  # fmt: skip
    assert told["wrong sign"] == told["rate x 0.1"] == {"reward"}
    assert told["positions off"] == {PADDING}
    assert all(one["simulated"]["0"]["different"] <= 0.05 for one in found["controls"].values())
