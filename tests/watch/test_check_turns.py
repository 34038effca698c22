"""Turns of real tools, environments and rollout functions in `check_step`: what was sampled stands in the rows, or not."""

import types

import pytest
import torch
import trl
from configuration_models import TWO_TURNS, calling, in_library, rolling_out, tokenizer, two_turns
from configuration_runs import STOCK, build
from conftest import daily

from workbench.replay.file import replay_step
from workbench.training.recording import StepRecorder
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("who", ["stock", "ours"])
@pytest.mark.parametrize("turns", daily([calling, in_library, rolling_out], calling, rolling_out))
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


class Loop(trl.GRPOTrainer):
    """TRL's loop of tools with something changed in each row: its mask, its tokens, and where the answer begins and ends."""

    def _tool_call_loop(self, *args):
        mask, texts, ids, *rest = super()._tool_call_loop(*args)
        for m, row in zip(mask, ids, strict=True):
            if 0 in m:
                self.change(m, row, m.index(0), len(m) - m[::-1].index(0))
        return mask, texts, ids, *rest


class AnswerTokenInTheLoss(Loop):
    def change(self, mask, ids, start, end):
        mask[end - 1] = 1


class FirstTokenLeftOut(Loop):
    def change(self, mask, ids, start, end):
        mask[end] = 0


class FirstTurnLeftOut(Loop):
    def change(self, mask, ids, start, end):
        mask[:start] = [0] * start


class LastAnswerTokenLost(Loop):
    def change(self, mask, ids, start, end):
        del mask[end - 1], ids[end - 1]


class ShorterAnswer(Loop):
    def change(self, mask, ids, start, end):
        del mask[start + 2 : end - 2], ids[start + 2 : end - 2]


class CutInFront(Loop):
    def change(self, mask, ids, start, end):
        del mask[end : end + 2], ids[end : end + 2]


class OtherOrder(trl.GRPOTrainer):
    """Gives the completions of the first prompts to the last ones."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        return ids[4:] + ids[:4], *rest


class FirstTokenLost(trl.GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        return [row[1:] or row for row in ids], *rest


LOOPS = [AnswerTokenInTheLoss, FirstTokenLeftOut, FirstTurnLeftOut, LastAnswerTokenLost, ShorterAnswer, CutInFront]


@pytest.mark.parametrize(
    "cls", daily([*LOOPS, OtherOrder, FirstTokenLost], AnswerTokenInTheLoss, FirstTurnLeftOut, CutInFront)
)
def test_a_fault_in_the_loop_of_tools_is_found(cls, monkeypatch):
    monkeypatch.setitem(STOCK, "GRPO", cls)
    first = check_step(build("stock", "GRPO", TWO_TURNS, **calling())).first
    assert first is not None and first.name == "turns"


@pytest.mark.parametrize("cls", daily([OtherOrder, FirstTokenLost], OtherOrder))
def test_rows_that_were_not_sampled_are_found_in_one_turn(cls, monkeypatch):
    monkeypatch.setitem(STOCK, "GRPO", cls)
    first = check_step(build("stock", "GRPO")).first
    assert first is not None and first.name == "turns"


def left_out(prompts, trainer):
    output = two_turns(prompts, trainer)
    return output | {"env_mask": [[0, *mask[1:]] for mask in output["env_mask"]]}


def test_sampled_tokens_that_a_rollout_masks_cannot_be_told():
    turns = check_step(build("stock", "GRPO", TWO_TURNS, **rolling_out() | {"rollout_func": left_out}))["turns"]
    assert turns.verdict == "cannot tell" and "8 sampled tokens are left out of the loss" in turns.cause


def aligned(logps, mask):
    return logps


def a_token_on(logps, mask):
    return logps[1:] + logps[:1]


def without_the_answer(logps, mask):
    """The zeros of the answer stand at the end, and the second turn's log-probs at its place."""
    own = [logp for logp, kept in zip(logps, mask, strict=True) if kept]
    return own + [0.0] * (len(mask) - len(own))


CASES = [
    (aligned, "same", ""),
    (a_token_on, "different", "each is that of the token "),
    (without_the_answer, "different", "at the start of their row one behind another"),
]


@pytest.mark.parametrize("place, verdict, why", CASES)
def test_log_probs_of_other_tokens_are_found(place, verdict, why):
    def scored(prompts, trainer):
        output, model = two_turns(prompts, trainer), trainer.accelerator.unwrap_model(trainer.model)
        parts = zip(output["prompt_ids"], output["completion_ids"], output["env_mask"], strict=True)
        output["logprobs"] = [place(log_probs(model, prompt, ids, mask), mask) for prompt, ids, mask in parts]
        return output

    trainer = build("stock", "GRPO", TWO_TURNS, **rolling_out() | {"rollout_func": scored})
    trainer.use_vllm, trainer._last_loaded_step = True, -1  # the rollout function is the engine
    trainer.vllm_generation = types.SimpleNamespace(sync_weights=lambda: None, mode="server")
    report = check_step(trainer)
    assert report["mismatch"].verdict == verdict and why in report["mismatch"].cause, report
    assert report.first is None or report.first.name == "mismatch"


def log_probs(model, prompt, ids, mask):
    with torch.no_grad():
        table = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return [float(table[at, token]) * kept for at, (token, kept) in enumerate(zip(ids, mask, strict=True))]


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
        "the rollout function samples in a way that check_step does not see",
    )


def test_a_kept_step_with_turns_is_replayed(tmp_path):
    trainer = build("stock", "GRPO", TWO_TURNS, **calling())
    StepRecorder(trainer, tmp_path, [2])
    trainer.train()
    report = replay_step(tmp_path / "steps/step-000002.json.gz")
    assert report["turns"].verdict == "same" and report.first is None
