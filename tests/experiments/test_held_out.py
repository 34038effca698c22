import pytest
from transformers import TrainerCallback

from workbench import StopSpec, length_reward
from workbench.experiments import HeldOut, load_prompts, train
from workbench.experiments.held_out import FILE
from workbench.experiments.recipes import Recipe
from workbench.runs.files import json_lines
from workbench.runs.run import Run

pytestmark = pytest.mark.slow

SMALL = Recipe(max_steps=3, num_generations=2, per_device_train_batch_size=4, max_completion_length=8, save_steps=1)


def looks(at):
    return HeldOut(load_prompts("starter").to_list()[:3], length_reward(20), at, StopSpec(), 8)


def lines(folder):
    return [row for _, row in json_lines(folder / FILE)]


def test_held_out_questions_are_answered_and_change_no_number(tmp_path):
    for name, callbacks in (("plain", []), ("asked", [looks([0, 2])])):
        train(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path / name, callbacks=callbacks)
    plain, asked = (Run(tmp_path / name).metrics[["reward", "loss", "grad_norm"]] for name in ("plain", "asked"))
    assert plain.equals(asked)
    assert [row["step"] for row in lines(tmp_path / "asked")] == [0, 0, 0, 2, 2, 2]
    assert {row["finish_reason"] for row in lines(tmp_path / "asked")} <= {"stop", "length"}


class EndsAfterTwo(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == 2


def test_a_look_of_a_resumed_training_stands_there_once(tmp_path):
    for more in ([EndsAfterTwo()], []):
        train(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path, callbacks=[looks(range(4)), *more])
        assert list(Run(tmp_path).metrics["step"]) == ([1, 2] if more else [1, 2, 3])
    assert [row["step"] for row in lines(tmp_path)] == [step for step in range(4) for _ in range(3)]
