import pytest
from transformers import TrainerCallback

from workbench import StopSpec, exact_match_reward, length_reward
from workbench.errors import ParameterError
from workbench.experiments import HeldOut, load_prompts, train
from workbench.experiments.held_out import FILE
from workbench.experiments.recipes import Recipe
from workbench.experiments.small_step import small_trainer
from workbench.experiments.train import is_finished, open_folder, training_record
from workbench.runs.files import append_rows, json_lines, open_lines, write_json
from workbench.runs.run import Run
from workbench.training.grpo import GRPOTrainer

SMALL = Recipe(max_steps=3, num_generations=2, per_device_train_batch_size=4, max_completion_length=8, save_steps=1)


FINISHED = {"step": 3, "max_steps": 3, "finished": True}


def looks(at, temperature=0.0):
    return HeldOut(load_prompts("starter").to_list()[:3], length_reward(20), at, StopSpec(), 8, temperature)


def lines(folder):
    return [row for _, row in json_lines(folder / FILE)]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_held_out_questions_are_answered_and_change_no_number(tmp_path, temperature):
    for name, callbacks in (("plain", []), ("asked", [looks([0, 2], temperature)])):
        train(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path / name, callbacks=callbacks)
    plain, asked = (Run(tmp_path / name).metrics[["reward", "loss", "grad_norm"]] for name in ("plain", "asked"))
    assert plain.equals(asked)
    assert [row["step"] for row in lines(tmp_path / "asked")] == [0, 0, 0, 2, 2, 2]
    assert {row["finish_reason"] for row in lines(tmp_path / "asked")} <= {"stop", "length"}


@pytest.mark.slow
def test_two_trainers_of_ones_own_leave_two_files(tmp_path):
    for name in ("a", "b"):
        given = {"callbacks": [looks([1], 0.0)]}
        small_trainer(GRPOTrainer, tmp_path / name, max_steps=1, trainer_options=given).train()
    assert [len(lines(tmp_path / name)) for name in ("a", "b")] == [3, 3]


class EndsAfterTwo(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == 2


@pytest.mark.slow
def test_a_look_of_a_resumed_training_stands_there_once(tmp_path):
    for more in ([EndsAfterTwo()], []):
        train(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path, callbacks=[looks(range(4)), *more])
        assert list(Run(tmp_path).metrics["step"]) == ([1, 2] if more else [1, 2, 3])
    assert [row["step"] for row in lines(tmp_path)] == [step for step in range(4) for _ in range(3)]


@pytest.mark.slow
def test_training_asked_with_other_looks_is_trained_again(tmp_path, capsys):
    """It was there already, and the file had the old looks."""
    calls = []

    def reward(completions, **_):
        calls.append(len(completions))  # a list that counts makes no other reward, be it of the held-out questions
        return [float(len(text)) for text in completions]

    def ask(at):
        held_out = HeldOut(load_prompts("starter").to_list()[:3], reward, at, StopSpec(), 8)
        train(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path, callbacks=[held_out])
        return [row["step"] for row in lines(tmp_path)], "this training is finished" in capsys.readouterr().out

    assert ask([0, 3]) == ([0, 0, 0, 3, 3, 3], False)
    assert ask([0, 3]) == ([0, 0, 0, 3, 3, 3], True)
    assert ask([1, 3]) == ([1, 1, 1, 3, 3, 3], False)


ROWS = [{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d"}]


def record(*, rows=ROWS, reward=None, at=(0, 3), stops=None, limit=8, temperature=0.0):
    asked = HeldOut(rows, reward or length_reward(20), at, stops or StopSpec(), limit, temperature)
    return training_record("GRPOTrainer", SMALL, reward_funcs=length_reward(20), callbacks=[EndsAfterTwo(), asked])


OTHERS = [{"rows": [ROWS[0], {"prompt": "c", "answer": "e"}]}, {"reward": exact_match_reward("answer")}, {"at": (3,)}]
OTHERS += [{"stops": StopSpec(stop=("a",))}, {"limit": 9}, {"temperature": 0.6}, {"rows": []}]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_what_is_asked_of_held_out_questions_is_compared(tmp_path, other):
    open_folder(tmp_path, record())
    write_json(tmp_path / "progress.json", FINISHED)
    assert is_finished(tmp_path, record(at=[3, 0])) and not is_finished(tmp_path, record(**other))
    plain = training_record("GRPOTrainer", SMALL, reward_funcs=length_reward(20), callbacks=[EndsAfterTwo()])
    assert "held_out" not in plain and not is_finished(tmp_path, plain)


def test_an_older_record_counts_if_its_file_has_every_look(tmp_path):
    """Records of before said nothing of held-out questions."""
    plain = training_record("GRPOTrainer", SMALL, reward_funcs=length_reward(20))
    open_folder(tmp_path, plain)
    with open_lines(tmp_path / FILE) as file:
        append_rows(file, [{"step": step, "reward": 0.0} for step in (0, 3) for _ in ROWS])
    assert not is_finished(tmp_path, record())
    write_json(tmp_path / "progress.json", FINISHED)
    for same in ({}, {"at": (3,)}, {"at": (0, 3, 40)}):  # no step 40 is trained
        assert is_finished(tmp_path, record(**same))
    for other in ({"at": (0, 2, 3)}, {"rows": ROWS[:1]}, {"rows": ROWS * 2}):
        assert not is_finished(tmp_path, record(**other))
    open_folder(tmp_path, record())  # from here on it says which questions
    assert is_finished(tmp_path, record()) and not is_finished(tmp_path, record(at=(3,)))


async def late(completions, **_):
    return [0.0 for _ in completions]


def test_an_async_reward_is_refused_before_the_training():
    with pytest.raises(ParameterError, match="expected a function that returns its rewards at once"):
        HeldOut(ROWS, late, [0], StopSpec(), 8)


@pytest.mark.slow
def test_held_out_rewards_get_token_ids_and_state(tmp_path):
    got = []

    def reward(completions, completion_ids, trainer_state, **_):
        got.append((len(completion_ids), trainer_state.global_step))
        return [0.0 for _ in completions]

    held_out = HeldOut(load_prompts("starter").to_list()[:3], reward, [0, 3], StopSpec(), 8)
    train(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path, callbacks=[held_out])
    assert got == [(3, 0), (3, 3)]
