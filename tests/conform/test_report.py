"""Losses written again in torch are the same everywhere, planted faults are wrong, and choices of other trainers are named."""

import functools
import time

import numpy as np
import pytest
import torch

from workbench.conform import NotOffered, conform_report, with_torch
from workbench.conform.definitions import DEFINITIONS
from workbench.errors import ParameterError

from .losses import FAULTS, LOSS_FAULTS, torch_advantages, torch_loss

WITHOUT_KL = (
    "reinforce",
    "dual_clip",
    "decoupled_ppo",
    "icepop",
    "dppo",
    "rloo",
    "distillation",
)  # none of their cases has it
LOSSES = [name for name, definition in DEFINITIONS.items() if not definition.of_rewards]


@pytest.mark.parametrize("name", [*LOSSES, "grpo_advantages", "rloo_advantages"])
def test_a_healthy_function_is_the_same_in_each_case(name):
    report = conform_report(torch_advantages() if DEFINITIONS[name].of_rewards else torch_loss(), name)
    assert len(report.of("same")) == len(report.results) > 10, report


@pytest.mark.parametrize("name", LOSSES)
def test_each_planted_fault_is_wrong(name):
    start, verdicts = time.process_time(), {}
    advantages = "rloo_advantages" if name == "rloo" else "grpo_advantages"
    for fault in FAULTS:
        function, asked = (torch_loss(fault), name) if fault in LOSS_FAULTS else (torch_advantages(fault), advantages)
        report = conform_report(function, asked)
        verdicts[fault] = len(report.of("wrong"))
        assert not report.of("other by choice"), report
    print(name, verdicts, f"{time.process_time() - start:.2f} s")
    absent = {"kl"} if name in WITHOUT_KL else set()
    absent |= {"clip"} if name in ("reinforce", "distillation") else set()
    assert {fault for fault, wrong in verdicts.items() if not wrong} == absent


def clipped_loss(ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    a = advantages[:, None]
    return (-torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)) * mask


def ratios(logps: torch.Tensor, old_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (logps - old_logps).masked_fill(mask == 0, 0.0).exp()


@with_torch
def mean_of_means(logps, old_logps, advantages, mask):
    return clipped_loss(ratios(logps, old_logps, mask), advantages, mask).sum() / mask.sum().clamp(min=1)


def test_a_mean_over_the_micro_batch_is_wrong_and_named():
    report = conform_report(mean_of_means, "dapo")
    assert {result.case for result in report.of("wrong")} == {
        "two micro-batches",
        "two unequal micro-batches",
        "three unequal micro-batches",
        "a micro-batch left out",
        "two processes",
        "two processes with two micro-batches each",
    }
    assert {result.says for result in report.of("wrong")} == {
        "divisor: the tokens of each micro-batch (loss_type='bnpo')"
    }
    assert not conform_report(mean_of_means, "bnpo").of("wrong")
    smallest = report.of("wrong")[0]
    text = "two micro-batches: -0.393857, expected 0.00921449; slope of row 1, token 0: 0.0728097, expected 0.109214"
    assert str(smallest).startswith(text) and text in str(report)


def two_outcomes(logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    logps = logps.masked_fill(mask == 0, -1.0)
    return torch.stack([logps, torch.log(-torch.expm1(logps))], dim=-1)


def test_distillation_by_micro_batch_means_is_wrong():
    @with_torch
    def means(logps, ref_logps, mask):
        policy, teacher = two_outcomes(logps, mask), two_outcomes(ref_logps, mask)
        tokens = (policy.exp() * (policy - teacher)).sum(-1)
        return (tokens * mask).sum() / mask.sum().clamp(min=1)

    report = conform_report(means, "distillation")
    assert {result.says for result in report.of("wrong")} == {
        "divisor: the tokens of each micro-batch (loss_type='bnpo')"
    }
    assert {result.case.removeprefix("distilled: ") for result in report.of("wrong")} == {
        "two micro-batches",
        "two unequal micro-batches",
        "three unequal micro-batches",
        "two processes",
        "a micro-batch left out",
        "two processes with two micro-batches each",
    }


def test_the_forward_divergence_is_a_choice():
    @with_torch
    def forward(logps, ref_logps, mask, total_tokens):
        policy, teacher = two_outcomes(logps, mask), two_outcomes(ref_logps, mask)
        tokens = (teacher.exp() * (teacher - policy)).sum(-1)
        return (tokens * mask).sum() / max(total_tokens, 1)

    report = conform_report(forward, "distillation")
    assert not report.of("wrong") and len(report.of("other by choice")) == 10
    assert {result.says for result in report.of("other by choice")} == {
        "KL(teacher || policy), forward (divergence_beta=0.0)"
    }


def test_another_divisor_is_a_choice():
    @with_torch
    def rows_first(logps, old_logps, advantages, mask):
        rows = clipped_loss(ratios(logps, old_logps, mask), advantages, mask).sum(1)
        return (rows / mask.sum(1).clamp(min=1)).mean()

    report = conform_report(rows_first, "dapo")
    assert not report.of("wrong")
    assert {result.says for result in report.of("other by choice")} == {
        "divisor: the tokens of each row, then the rows (loss_type='grpo')"
    }


def test_a_dual_clip_is_a_choice_also_with_another_divisor():
    @with_torch
    def dual(logps, old_logps, advantages, mask, total_tokens):
        loss = clipped_loss(ratios(logps, old_logps, mask), advantages, mask)
        limited = torch.where(advantages[:, None] < 0, torch.minimum(loss, -3 * advantages[:, None] * mask), loss)
        return limited.sum() / max(total_tokens, 1)

    report = conform_report(dual, "dapo")
    assert not report.of("wrong")
    (result,) = report.of("other by choice")
    assert result.case == "ratios far above 1"
    assert result.says == "dual clip: with a negative advantage a ratio counts 3 at most (delta=3.0)"

    @with_torch
    def with_delta(logps, old_logps, advantages, mask, total_tokens, delta):
        limit = 3.0 if delta is None else delta
        loss = clipped_loss(ratios(logps, old_logps, mask), advantages, mask)
        limited = torch.where(advantages[:, None] < 0, torch.minimum(loss, -limit * advantages[:, None] * mask), loss)
        return limited.sum() / max(total_tokens, 1)

    report = conform_report(with_delta, "dapo")
    assert [result.case for result in report.of("other by choice")] == ["ratios far above 1"] and not report.of("wrong")
    both = conform_report(dual, "grpo")
    says = {result.case: result.says for result in both.of("other by choice")}
    assert "loss_type='dapo'" in says["four rows"] and "delta=3.0" in says["ratios far above 1"]


@pytest.mark.parametrize(
    "estimator, formula",
    [
        (lambda d: d, "the KL term is k1, the log-ratio (kl_estimator='k1')"),
        (lambda d: d**2 / 2, "the KL term is k2, half the square of the log-ratio (kl_estimator='k2')"),
    ],
)
def test_another_estimate_of_the_kl_is_a_choice(estimator, formula):
    @with_torch
    def with_kl(logps, old_logps, ref_logps, advantages, mask, total_tokens, beta):
        loss = clipped_loss(ratios(logps, old_logps, mask), advantages, mask)
        kl = beta * estimator((logps - ref_logps).masked_fill(mask == 0, 0.0))
        return (loss + kl).sum() / max(total_tokens, 1)

    report = conform_report(with_kl, "dapo")
    assert not report.of("wrong")
    assert {result.says for result in report.of("other by choice")} == {formula}


def test_other_advantages_of_several_rewards_are_wrong():
    report = conform_report(lambda rewards, reward_weights: np.nansum(rewards, axis=1), "gdpo_advantages")
    assert [result.verdict for result in report.results] == ["wrong"] * 3


def group_advantages(rewards, groups, scale_rewards="group", ddof=1, added=1e-4, alone=0.0):
    advantages = np.zeros_like(rewards)
    for group in np.unique(groups):
        rows = np.flatnonzero((groups == group) & ~np.isnan(rewards))
        if (groups == group).sum() == 1:
            advantages[rows] = alone * rewards[rows]
        elif len(rows) > 1:
            spread = {"group": rewards[rows], "batch": rewards, "none": None}[scale_rewards]
            scale = 1.0 if spread is None else np.nanstd(spread, ddof=ddof) + added
            advantages[rows] = (rewards[rows] - rewards[rows].mean()) / scale
    return advantages


@pytest.mark.parametrize(
    "choice, formula",
    [
        ({"ddof": 0}, "the deviation of a population, which divides by n (ddof=0)"),
        ({"added": 1e-8}, "1e-6 or less added to the deviation (added=1e-06)"),
        ({"alone": 1.0}, "a group of one has its reward as advantage (alone=1.0)"),
    ],
)
def test_a_choice_of_advantages_is_named(choice, formula):
    assert not conform_report(group_advantages, "grpo_advantages").of("wrong")

    def other(rewards, groups, scale_rewards):
        return group_advantages(rewards, groups, scale_rewards, **choice)

    report = conform_report(other, "grpo_advantages")
    assert not report.of("wrong")
    assert {result.says for result in report.of("other by choice")} == {formula}


def test_the_mean_of_the_whole_batch_is_wrong():
    def batch_mean(rewards, groups, scale_rewards):
        if scale_rewards == "group":
            return group_advantages(rewards, groups)
        centred = np.nan_to_num(rewards - np.nanmean(rewards))
        return centred if scale_rewards == "none" else centred / (np.nanstd(rewards, ddof=1) + 1e-4)

    wrong = conform_report(batch_mean, "grpo_advantages").of("wrong")
    assert {result.case for result in wrong} == {"grpo: scale batch", "grpo: scale none"}


def test_two_choices_of_advantages_are_named_together():
    def other(rewards, groups, scale_rewards):
        return group_advantages(rewards, groups, scale_rewards, ddof=0, alone=1.0)

    report = conform_report(other, "grpo_advantages")
    assert not report.of("wrong") and len(report.of("other by choice")) > 5


def test_nan_behind_the_end_is_wrong_where_a_loss_multiplies():
    @with_torch
    def multiplies(logps, old_logps, advantages, mask, total_tokens):
        loss = clipped_loss((logps - old_logps).exp(), advantages, mask)
        return loss.sum() / max(total_tokens, 1)

    wrong = conform_report(multiplies, "dapo").of("wrong")
    assert [result.case for result in wrong] == [
        "nan behind the end (old)",
        "nan behind the end (all but the policy's)",
    ]
    assert "nan, expected 0.545712" in str(wrong[0])


def test_a_loss_may_change_its_numbers_in_place():
    @with_torch
    def in_place(logps, old_logps, advantages, mask, total_tokens):
        logps.masked_fill_(mask == 0, 0.0)
        return clipped_loss(ratios(logps, old_logps, mask), advantages, mask).sum() / max(total_tokens, 1)

    report = conform_report(in_place, "dapo")
    assert not report.of("wrong") and len(report.of("same")) > 10


def test_a_loss_may_want_its_log_probs_by_position():
    def loss(logps, old_logps, advantages, mask, total_tokens, unknown=0.2, *, epsilon):
        ratio = np.exp(np.where(mask > 0, logps - old_logps, 0.0))
        plain, limited = (r * advantages[:, None] for r in (ratio, ratio.clip(1 - epsilon, 1 + unknown)))
        slopes = np.where(plain <= limited, -plain, 0.0) * mask / max(total_tokens, 1)
        return -(np.minimum(plain, limited) * mask).sum() / max(total_tokens, 1), slopes

    @functools.wraps(loss)
    def value_and_grad(*args, **options):
        if not args:
            raise ValueError("differentiating with respect to argument 0 requires a positional argument")
        return loss(*args, **options)

    for function in (loss, value_and_grad):
        report = conform_report(function, "dapo")
        assert not report.of("wrong") and len(report.of("same")) > 10, report


def test_nan_in_the_gradient_alone_is_wrong():
    @with_torch
    def chooses(logps, old_logps, advantages, mask, total_tokens):
        loss = clipped_loss((logps - old_logps).exp(), advantages, torch.ones_like(mask))
        return torch.where(mask > 0, loss, 0.0).sum() / max(total_tokens, 1)

    (first, *_) = conform_report(chooses, "dapo").of("wrong")
    assert first.value == pytest.approx(first.expected) and np.isnan(first.slope)


def test_an_error_in_one_case_is_shown_with_the_case():
    def fails(case):
        if case.micro_batches > 1:
            raise ZeroDivisionError("no tokens")
        return torch_loss()(case)

    report = conform_report(fails, "dapo")
    assert len(report.of("wrong")) == 6
    assert str(report.of("wrong")[0]) == "two micro-batches: raised ZeroDivisionError: no tokens"


def test_what_a_function_does_not_offer_is_no_fault():
    def plain(case):
        if case.needs:
            raise NotOffered("plain cases alone")
        return torch_loss()(case)

    report = conform_report(plain, "grpo")
    assert not report.of("wrong") and {result.says for result in report.of("not offered")} == {"plain cases alone"}
    says = {result.case: result.says for result in conform_report(mean_of_means, "bnpo").of("not offered")}
    assert says["kl"] == "no parameter beta" and "two processes" not in says


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda logprobs: 0.0, "parameter 'logprobs': expected `case` or one of advantages, beta"),
        (
            lambda logps: 0.0,
            "returned float: expected (value, slopes), slopes the derivative of the loss by each of logps, of shape (1, 1)",
        ),
        (lambda logps: (0.0, logps[0]), "returned slopes of shape"),
        (with_torch(lambda logps: logps), "returned a tensor of shape (1, 1): expected a scalar"),
        (with_torch(lambda logps: (logps.sum(), {})), "returned tuple: expected a scalar tensor, the loss alone"),
    ],
)
def test_an_adapter_that_fits_no_case_is_refused(function, says):
    with pytest.raises(ParameterError, match=r"none of the 39 cases of dapo has an answer: ") as error:
        conform_report(function, "dapo")
    assert says in str(error.value)


def test_an_unknown_definition_is_refused():
    with pytest.raises(ParameterError, match="did you mean 'dapo'"):
        conform_report(mean_of_means, "dapoo")
