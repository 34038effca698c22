"""Turns of real tools, environments and rollout functions in `check_step`: what was sampled stands in the rows, or not."""

import pytest
import trl
from configuration_models import TWO_TURNS, calling, in_library, rolling_out, tokenizer, two_turns
from configuration_runs import STOCK, build

from workbench.diagnostics.check_step import check_step
from workbench.diagnostics.step_callbacks import StepRecorder
from workbench.diagnostics.step_file import replay_step

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("who", ["stock", "ours"])
@pytest.mark.parametrize("turns", [calling, in_library, rolling_out])
def test_turns_of_a_healthy_step_are_the_same(who, turns):
    report = check_step(build(who, "GRPO", TWO_TURNS, **turns()))
    assert report["turns"].verdict == "same" and report["mask"].verdict == "same", report


def letter_by_letter(ids: list[int]) -> list[list[int]]:
    """For each token the ids of its text, encoded letter by letter."""
    return [[i for letter in tokenizer().decode([token]) for i in tokenizer().encode(letter)] for token in ids]


def encoded_again(prompts, trainer):
    output = two_turns(prompts, trainer)
    for n, ids in enumerate(output["completion_ids"]):
        again = letter_by_letter(ids)
        output["env_mask"][n] = [own for own, new in zip(output["env_mask"][n], again, strict=True) for _ in new]
        output["completion_ids"][n] = [token for new in again for token in new]
    return output


def answers_in_the_loss(prompts, trainer):
    return {name: value for name, value in two_turns(prompts, trainer).items() if name != "env_mask"}


class AsksAnew(trl.GRPOTrainer):
    """Encodes the text of the first turn again, to ask for the second one."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        if kwargs.get("num_generations") == 1:
            prompt_ids = [[token for new in letter_by_letter(ids) for token in new] for ids in prompt_ids]
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)


@pytest.mark.parametrize("rolling", [encoded_again, answers_in_the_loss])
def test_a_rollout_function_with_a_fault_is_found(rolling):
    first = check_step(build("stock", "GRPO", TWO_TURNS, **rolling_out() | {"rollout_func": rolling})).first
    assert first is not None and first.name == "turns" and "were not sampled there" in first.cause


def test_a_turn_that_is_encoded_again_is_found(monkeypatch):
    monkeypatch.setitem(STOCK, "GRPO", AsksAnew)
    first = check_step(build("stock", "GRPO", TWO_TURNS, **calling())).first
    assert first is not None and first.name == "turns" and "decoded and encoded again" in first.cause


def test_a_rollout_that_samples_elsewhere_cannot_be_told():
    def elsewhere(prompts, trainer):
        ids = [tokenizer().encode(prompt) for prompt in prompts]
        return {
            "prompt_ids": ids,
            "completion_ids": [[5, 6, 7] for _ in ids],
            "logprobs": None,
            "turns": [1] * len(ids),
        }

    turns = check_step(build("stock", "GRPO", TWO_TURNS, **rolling_out() | {"rollout_func": elsewhere}))["turns"]
    assert (turns.verdict, turns.cause) == (
        "cannot tell",
        "the rollout function samples by a way that is not seen here",
    )


def test_a_kept_step_with_turns_is_replayed(tmp_path):
    trainer = build("stock", "GRPO", TWO_TURNS, **calling())
    StepRecorder(trainer, tmp_path, [2])
    trainer.train()
    report = replay_step(tmp_path / "steps/step-000002.json.gz")
    assert report["turns"].verdict == "same" and report.first is None
