import json

import numpy as np
import pytest
from conftest import write_run

from workbench.curves.baselines import list_baselines, load_baseline
from workbench.curves.curve import Curve
from workbench.curves.levels import NO_CURVE, OTHER_UNIT, compare_levels, verdict_tables
from workbench.curves.measured import measured_trainings
from workbench.errors import ParameterError

BASELINES = [load_baseline(name) for name in list_baselines()]
W3NG = load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo")
UNIT = W3NG.reward["unit"]
STEPS = np.arange(1, 111)


def rise(seed: int, unit: str = UNIT, n: int = 110) -> Curve:
    y = -330 * np.exp(-STEPS / 30) - 40 + np.random.default_rng(seed).normal(0, 2, 110)
    return Curve(f"seed {seed}", STEPS[:n], np.minimum(y, 0)[:n], unit, high=0.0)


def test_only_pairs_of_one_unit_and_range_get_a_verdict():
    verdicts, _ = verdict_tables({"mine": [rise(0), rise(1)], "other": [rise(0, "tokens")]}, BASELINES, tolerance=5)
    assert verdicts[["measured", "documented"]].to_numpy().tolist() == [["mine", W3NG.title]]
    assert verdicts["verdict"].isin(["agrees", "differs", "undecided"]).all()


def test_a_reason_stands_once_with_all_names_it_concerns():
    groups = {"mine": [rise(0)], "short": [rise(0, n=12)], "other": [rise(0, "tokens")]}
    _, reasons = verdict_tables(groups, BASELINES, tolerance=5)
    assert reasons["cannot compare"].is_unique
    found = reasons.set_index("cannot compare")
    without = [b.title for b in BASELINES if "reward" not in b.curves]
    assert found.loc[NO_CURVE, "documented"] == "; ".join(without) and found.loc[NO_CURVE, "measured"] == "all"
    assert f"{W3NG.title} (but for mine, short)" in found.loc[OTHER_UNIT, "documented"]
    (few,) = [why for why in found.index if "documented points are covered" in why]
    assert found.loc[few].tolist() == ["short", W3NG.title]


def test_without_groups_there_is_neither_verdict_nor_reason():
    verdicts, reasons = verdict_tables({}, BASELINES, tolerance=5)
    assert verdicts.empty and reasons.empty
    with pytest.raises(ParameterError, match="tolerance=-1"):
        verdict_tables({"mine": [rise(0)]}, [W3NG], tolerance=-1)


def test_without_a_tolerance_it_is_a_tenth_of_the_documented_range():
    verdicts, _ = verdict_tables({"mine": [rise(0), rise(1), rise(2)]}, [W3NG])
    assert np.ptp(W3NG.curve().y) == pytest.approx(328.3) and "tolerance of 33" in verdicts["why"][0]


def test_all_levels_of_a_recorded_run(tmp_path):
    rows = [
        {"step": int(x), "elapsed_s": 36.0 * x, "reward": y, "frac_reward_zero_std": 0.5, "completions/mean_length": 9}
        for x, y in zip(STEPS, rise(0).y, strict=True)
    ]
    run = write_run(tmp_path, metrics=rows)
    (run.path / "recipe.json").write_text(json.dumps({"recipe": {"seed": 1, "max_completion_length": 64}}))
    trainings, _ = measured_trainings([run], unit=UNIT, high=0.0)
    found = compare_levels(trainings, BASELINES, tolerance=5)
    mine = found.shapes.iloc[0]
    assert mine["no gradient"].startswith("0.50 (") and mine["at the cap"].startswith("0.00 (")
    assert found.figures.iloc[-1]["hours"] == "1.1"
    assert len(found.verdicts) == len(found.likeness) == 1
    assert [one.name for one in found.shaped] == found.shapes["curve"].tolist()
