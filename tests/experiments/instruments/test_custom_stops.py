"""What runs on real vLLM is judged in test_on_vllm.py."""

import json

from workbench.experiments.instruments import custom_stops


def training(arm, seed, rewards):
    return {"settings": {"arm": arm, "seed": seed}, "curves": {"reward": rewards}}


def test_trainings_on_real_weights_are_curves_by_arm_and_one_without_a_step_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(custom_stops, "packaged", lambda name: tmp_path / name)
    assert custom_stops.real_weight_curves() == {}
    file = tmp_path / "data" / "measured" / "stop_string.json"
    file.parent.mkdir(parents=True)
    trainings = [training("stock-masked", 0, [0.25, 0.5]), training("workbench-masked", 0, [0.5])]
    file.write_text(json.dumps({"trainings": [*trainings, training("stock-masked", 1, [])]}))
    found = custom_stops.real_weight_curves()
    assert {arm: [curve.y.tolist() for curve in curves] for arm, curves in found.items()} == {
        "stock, masked": [[0.25, 0.5]],
        "workbench, masked": [[0.5]],
    }
