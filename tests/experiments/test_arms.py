import contextlib
import dataclasses

import pytest

from workbench import StopSpec, length_reward
from workbench.errors import ParameterError, TrainingStopped
from workbench.experiments import arms as arms_module
from workbench.experiments.arms import Arm, train_arms
from workbench.experiments.recipes import Recipe
from workbench.experiments.train import open_folder, training_record
from workbench.runs.files import read_json, write_json

SMALL = Recipe(max_steps=3, num_generations=2, per_device_train_batch_size=4, max_completion_length=8, save_steps=1)
ARM = Arm(SMALL, length_reward(20))


def trained(arms, folder, capsys, seeds=(0, 1)):
    """The runs, and for each training what was printed of it: one line."""
    runs = train_arms(arms, out_dir=folder, seeds=seeds)
    lines = capsys.readouterr().out.splitlines()
    return runs, [line.rpartition(": ")[2] for line in lines]


@pytest.mark.slow
def test_a_finished_arm_is_reused_only_if_it_is_what_is_asked(tmp_path, capsys):
    runs, words = trained({"a b": ARM, "one": dataclasses.replace(ARM, seeds=1)}, tmp_path, capsys)
    assert words == ["trained"] * 3
    assert [run.path.name for run in runs["a b"]] == ["seed-0", "seed-1"] and len(runs["one"]) == 1
    assert [read_json(run.path / "recipe.json", {})["recipe"]["seed"] for run in runs["a b"]] == [0, 1]
    assert trained({"a b": ARM}, tmp_path, capsys)[1] == ["there already"] * 2
    changes = [
        {"recipe": dataclasses.replace(SMALL, learning_rate=1e-4)},
        {"reward_funcs": length_reward(21)},
        {"stops": StopSpec(stop=(" the",))},
        {"options": {"beta": 0.1}},
    ]
    for change in changes:
        arm = dataclasses.replace(ARM, **change)
        for words in (["trained"], ["there already"]):
            assert trained({"a b": arm}, tmp_path, capsys, seeds=[0])[1] == words, change


@pytest.mark.slow
def test_an_interrupted_arm_goes_on_from_its_last_step(tmp_path, capsys):
    from workbench.runs.run import Run
    from workbench.runs.stop_request import request_stop

    folder, calls = tmp_path / "a" / "seed-0", []

    def reward(completions, **_):
        calls.append(len(completions))
        if len(calls) == 2:
            request_stop(Run(folder), "by the test")
        return [float(len(text)) for text in completions]

    arms = {"a": Arm(SMALL, reward, options={"beta": 0.0})}
    with pytest.raises(TrainingStopped, match="stopped after step 2 of 3"):
        train_arms(arms, out_dir=tmp_path, seeds=[0])
    runs, words = trained(arms, tmp_path, capsys, seeds=[0])
    assert words == ["trained"] and calls == [4, 4, 4]
    assert "step 3/3" in (folder / "log.txt").read_text()
    assert runs["a"][0].metrics["step"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("wrong", [{"learnin_rate": 1.0}, {"num_generations": 3}])
def test_an_arm_that_cannot_train_is_named_before_any_trains(tmp_path, wrong):
    """It was found at its turn, after the arms before it had trained, and the error did not say whose it was."""
    with pytest.raises(ParameterError, match=f"^arm 'second': .*{next(iter(wrong))}"):
        train_arms({"first": ARM, "second": dataclasses.replace(ARM, options=wrong)}, out_dir=tmp_path, seeds=[0])
    assert not list(tmp_path.iterdir())


def test_a_finished_arm_needs_nothing_of_a_training(tmp_path, monkeypatch, capsys):
    """Such as vLLM, where a folder of runs is opened on another machine."""
    recipe = dataclasses.replace(SMALL, backend="vllm", seed=1)
    open_folder(tmp_path / "a" / "seed-1", training_record("GRPOTrainer", recipe, reward_funcs=length_reward(20)))
    write_json(tmp_path / "a" / "seed-1" / "progress.json", {"step": 3, "max_steps": 3, "finished": True})
    monkeypatch.setattr(arms_module, "make_config", lambda *_, **__: pytest.fail("asked"))
    monkeypatch.setattr(arms_module, "sharing_engines", contextlib.nullcontext)
    assert trained({"a": Arm(recipe, length_reward(20))}, tmp_path, capsys, seeds=[1])[1] == ["there already"]


def test_arms_of_one_folder_and_repeated_seeds_are_refused(tmp_path):
    """The second arm moved the first one's runs aside, and both names then led to its own."""
    with pytest.raises(ParameterError, match=r"arms \['KL \+', 'KL -'\]: both would train in KL--"):
        train_arms({"KL +": ARM, "KL -": ARM}, out_dir=tmp_path, seeds=[0])
    with pytest.raises(ParameterError, match=r"seeds=\[0, 1, 0\]: one is there twice"):
        train_arms({"a": ARM}, out_dir=tmp_path, seeds=[0, 1, 0])
    assert not list(tmp_path.iterdir())
