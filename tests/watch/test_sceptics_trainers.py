"""What a sceptic put past the check of RLOO, GMPO, distillations and AsyncGRPO, and what is healthy there."""

import copy

import async_cases
import distillation_cases
import numpy as np
import pytest
import torch
import trl
from async_cases import samples
from distillation_cases import DistillationTrainer
from peft import get_peft_model
from step_cases import LORA, make
from transformers import AutoModelForCausalLM
from trl import DistillationConfig
from trl.experimental.gmpo import GMPOTrainer

from workbench import check_step
from workbench.errors import ParameterError
from workbench.experiments.recipes import resolve_model
from workbench.watch.attach import StepCheck

pytestmark = pytest.mark.slow


def watched(trainer):
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    assert check.on
    return check.reports


class WithoutKl(trl.RLOOTrainer):
    """Takes nothing off the rewards, whatever beta is."""

    def _generate_and_score_completions(self, inputs):
        beta, self.beta = self.beta, 0.0
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self.beta = beta


class WrongSign(trl.RLOOTrainer):
    def _generate_and_score_completions(self, inputs):
        self.beta = -self.beta
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self.beta = -self.beta


class OfThePolicy(trl.RLOOTrainer):
    """Scores the samples once, and takes these log-probs for the reference's too."""

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if model is self.ref_model:
            return (self.own, *result[1:])
        self.own = result[0].detach()
        return result


class LogsOtherKl(trl.RLOOTrainer):
    def _generate_and_score_completions(self, inputs):
        result = super()._generate_and_score_completions(inputs)
        self._metrics["train"]["kl"][-1] += 1
        return result


OF_RLOO = [
    (trl.RLOOTrainer, "same", ""),
    (WithoutKl, "different", "beta=0.05, and the reference is not scored for the rewards: no KL is taken off them"),
    (WrongSign, "different", "the KL is added to the rewards, where beta=0.05 takes it off"),
    (OfThePolicy, "cannot tell", "where each row is scored alone: is the reference the policy?"),
]


@pytest.mark.parametrize("cls, verdict, says", OF_RLOO)
def test_half_precision_hides_no_kl_in_rloos_rewards(cls, verdict, says, tmp_path):
    trainer = make(tmp_path, cls, beta=0.05, bf16=True, learning_rate=1e-4, max_steps=2, disable_tqdm=True)
    first, second = (report["advantages"] for report in watched(trainer).values())
    assert second.verdict == verdict and says in second.cause, second
    assert first.verdict == ("cannot tell" if cls is WithoutKl else "same"), first
    assert cls is WithoutKl or "its sign and beta are not seen" in first.cause, first


def test_a_kl_that_rloo_logs_otherwise_is_named(tmp_path):
    metrics = check_step(make(tmp_path, LogsOtherKl, beta=0.05))["metrics"]
    assert metrics.verdict == "different" and "kl is logged as 1, but is 0" in metrics.cause, metrics


@pytest.mark.parametrize("fields, said", [({"delta": 2.0}, True), ({"beta": 0.1, "epsilon": 0.4}, False)])
def test_fields_that_gmpos_loss_does_not_read_are_said(fields, said, tmp_path):
    loss = check_step(make(tmp_path, GMPOTrainer, **fields))["loss"]
    assert (loss.verdict == "cannot tell" and "GMPO's loss does not read delta=2.0" in loss.cause) is said, loss


# --- AsyncGRPO -----------------------------------------------------------------------------------------------------------


def without_baseline(rows):
    for row in rows:
        row.advantage = row.metrics["reward"] / (row.metrics["reward_std"] + 1e-8)


def of_the_batch(rows):
    rewards = np.array([row.metrics["reward"] for row in rows])
    for row in rows:
        row.metrics = row.metrics | {"reward_std": float(rewards.std())}
        row.advantage = float((row.metrics["reward"] - rewards.mean()) / (rewards.std() + 1e-8))


def too_large(rows):
    for row in rows:
        row.advantage *= 1.012


def part_of_a_group(rows):
    del rows[3::4]


def queued_twice(rows):
    rows[:4] = copy.deepcopy(rows[4:])


def of_two_prompts(rows):
    for row, other in ((1, 5), (3, 7)):
        rows[row].group_id, rows[other].group_id = rows[other].group_id, rows[row].group_id
    for group in (0, 1):
        own = [row for row in rows if row.group_id == group]
        rewards = np.array([row.metrics["reward"] for row in own])
        for row in own:
            row.metrics = row.metrics | {"reward_std": float(rewards.std())}
            row.advantage = float((row.metrics["reward"] - rewards.mean()) / (rewards.std() + 1e-8))


def in_parts(rows):
    """One conversation of three rows, and one other of its group, whose rewards have the deviation of the whole group."""
    rows[:4] = async_cases.samples(groups=1, generations=1, turns=2, fork=True) + rows[:2]
    for row, reward in zip(rows[:4], (1.0, 1.0, 1.0, 0.0), strict=True):
        row.group_id, row.metrics = 0, {"reward": reward, "reward_std": float(np.std([1, 0, 0, 0]))}
        row.advantage = (reward - 0.25) / (row.metrics["reward_std"] + 1e-8)
    del rows[4:]


QUEUES = [
    (lambda rows: None, "same", "2 groups"),
    (without_baseline, "different", "2 of 2 groups have another baseline than the mean of their rewards"),
    (of_the_batch, "cannot tell", "another mean and deviation than the rewards of their rows here"),
    (too_large, "different", "2 of 2 groups do not follow from their rewards"),
    (part_of_a_group, "same", "none is whole here"),
    (in_parts, "same", "none is whole here"),
    (of_two_prompts, "cannot tell", "2 groups have rows that begin with several prompts"),
]


@pytest.mark.parametrize("change, verdict, says", QUEUES)
def test_a_queued_baseline_is_the_mean_of_its_group(change, verdict, says, tmp_path):
    rows = samples()
    change(rows)
    trainer = async_cases.make(
        tmp_path, per_device_train_batch_size=len(rows), bf16=True, gradient_accumulation_steps=1
    )
    advantages = check_step(trainer, batch=rows)["advantages"]
    assert advantages.verdict == verdict and says in advantages.cause, advantages


def test_a_tools_tokens_make_no_copies_improbable(tmp_path):
    """Two rows whose answers are short and likely, with a long answer of a tool between."""
    rows = samples(groups=1, turns=2, tokens=(1,))
    first, tool = rows[0], np.arange(60, 120)
    ids, mask = np.insert(first.input_ids, -1, tool), np.insert(first.completion_mask, -1, 0 * tool)
    for row in rows[:2]:
        row.input_ids, row.completion_mask, row.old_log_probs = (
            ids,
            mask,
            np.insert(first.old_log_probs, -1, 0.0 * tool),
        )
    trainer = async_cases.make(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=1)
    sampling = check_step(trainer, batch=rows)["sampling"]
    assert "holds one completion" not in sampling.cause, sampling


def test_rows_that_a_check_repeats_are_no_copies(tmp_path):
    trainer = async_cases.make(tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=1)
    sampling = check_step(trainer, batch=samples(groups=1, tokens=(20,)))["sampling"]
    assert sampling.verdict == "same", sampling


def test_a_group_that_is_queued_twice_is_named(tmp_path):
    rows = samples()
    queued_twice(rows)
    trainer = async_cases.make(tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=1)
    sampling = check_step(trainer, batch=rows)["sampling"]
    assert sampling.verdict == "different" and "a group holds one completion 2 times" in sampling.cause, sampling


# --- distillations -------------------------------------------------------------------------------------------------------


class SamplesEverySecond(DistillationTrainer):
    def _prepare_inputs(self, batch):
        if self.model.training and self._step % 2 and self._buffered_inputs is not None:
            return self._buffered_inputs[0]
        return super()._prepare_inputs(batch)


class OneSeed(DistillationTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        torch.manual_seed(42)
        return super()._generate_single_turn(*args, **kwargs)


LATER = [
    (DistillationTrainer, "", ""),
    (SamplesEverySecond, "batches", "this update trains the completions of update 1 again"),
    (OneSeed, "sampling", "step 1 drew its tokens from the same random numbers"),
]


@pytest.mark.parametrize("cls, stage, says", LATER)
def test_later_updates_of_a_distillation_are_compared(cls, stage, says, tmp_path):
    reports = watched(distillation_cases.make(tmp_path, cls, learning_rate=1e-3, max_steps=2))
    assert reports[1].first is None
    first = reports[2].first
    assert (first.name if first else "") == stage and says in (first.cause if first else ""), first


class OneForEqualPrompts(DistillationTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        made = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        first = {}
        return [first.setdefault(tuple(ids), own) for ids, own in zip(prompt_ids, made, strict=True)]


@pytest.mark.parametrize("cls, verdict", [(DistillationTrainer, "same"), (OneForEqualPrompts, "different")])
def test_one_completion_for_equal_prompts_is_named(cls, verdict, tmp_path):
    trainer = distillation_cases.make(tmp_path, cls, **distillation_cases.MANY)
    assert check_step(trainer)["sampling"].verdict == verdict


def of_teacher(folder, policy, teacher, cls=DistillationTrainer):
    args = DistillationConfig(str(folder), **distillation_cases.BASE)
    data = distillation_cases.Dataset.from_dict({"prompt": distillation_cases.PROMPTS * 4})
    return cls(policy, teacher, args, data)


def starter():
    return AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.float32)


class SmallerGradient(DistillationTrainer):
    """A layer's MLP gets 0.7 of its gradient."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        for parameter in self.accelerator.unwrap_model(self.model).model.layers[0].mlp.parameters():
            parameter.grad.mul_(0.7)
        return loss


@pytest.mark.parametrize("cls, verdict", [(DistillationTrainer, "same"), (SmallerGradient, "different")])
def test_a_teacher_in_bf16_leaves_the_students_limits(cls, verdict, tmp_path):
    report = check_step(of_teacher(tmp_path, starter(), distillation_cases.teacher().bfloat16(), cls))
    assert report["gradient"].verdict == verdict, report
    assert report["loss"].verdict == "same" and "float32" in report["log-probs"].cause, report


def test_a_teacher_that_is_the_student_is_named(tmp_path):
    whole, base = starter(), starter()
    for student, teacher in (
        (whole, whole),
        (get_peft_model(base, LORA["peft_config"]), base),
    ):  # which PEFT changes in place
        stage = check_step(of_teacher(tmp_path, student, teacher))["teacher"]
        assert stage.verdict == "different" and "which move with it" in stage.cause, stage


def test_rows_of_a_distillation_fill_its_micro_batches(tmp_path):
    trainer = distillation_cases.make(tmp_path, **distillation_cases.TWO)
    with pytest.raises(ParameterError, match="batch has 3 rows, expected 2 or a multiple"):
        check_step(trainer, batch=[{"prompt": "One"}] * 3)
