"""The reference of a step against TRL's own code and against finite differences."""

import itertools
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from trl import GRPOConfig
from trl.trainer.utils import nanstd

from workbench.replay.grpo_math import (
    Loss,
    LossRow,
    LossSettings,
    group_advantages,
    grpo_loss,
    leave_one_out_advantages,
    loss_mask,
    normalized_advantages,
    rloo_loss,
    row_rewards,
    sampler_correction,
)
from workbench.replay.stages import check_ends, check_loss
from workbench.replay.step import MicroRows, SampledRow, Step

LENGTHS = (5, 3, 4, 5)
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
OPTIONS = {
    "plain": {},
    "sequence": {"importance_sampling_level": "sequence"},
    "kl": {"beta": 0.3},
    "kl, corrected": {"beta": 0.3, "use_bias_correction_kl": True},
    "kl, corrected, sequence": {"beta": 0.3, "use_bias_correction_kl": True, "importance_sampling_level": "sequence"},
    "two sides": {"delta": 1.4, "epsilon_high": 0.3},
    "a limit within the clip": {"delta": 1.1, "epsilon_high": 0.3},
    "entropy quantile": {"top_entropy_quantile": 0.5},
    "off-policy mask": {"off_policy_mask_threshold": 0.05},
    "entropy bonus": {"entropy_coef": 0.1, "top_entropy_quantile": 0.7},
}


# TRL rounds SAPO's default temperature of 1.05 to float32; this one needs no rounding.
EXACT = {"sapo_temperature_neg": 1.25}


def made_rows(seed: int = 0, correction: str = "") -> list[LossRow]:
    """Rows whose ratios lie on both sides of the clip, one of them masked whole, one with a token of a tool."""
    random = np.random.default_rng(seed)
    rows = []
    for i, (length, advantage) in enumerate(zip(LENGTHS, (1.0, -0.7, 0.4, -1.2), strict=True)):
        logps = -random.exponential(1.0, length)
        old, ref, sampled = (logps + random.normal(0, 0.3, length) for _ in range(3))
        mask = loss_mask(length, ended=i != 2, mask_truncated=True, tool_mask=(np.arange(length) != 1).astype(float))
        weight = sampler_correction(old, sampled, mask, correction, 0.8, 1.2) if correction else None
        rows.append(LossRow(logps, advantage, mask, old, ref, sampled, weight, random.uniform(0, 2, length)))
    return rows


def padded(rows, name: str) -> torch.Tensor:
    values = [torch.tensor(getattr(row, name)) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)


class OneProcess(SimpleNamespace):
    num_processes, sync_gradients = 1, True

    def gather(self, value):
        return value

    def gather_for_metrics(self, value):
        return value

    def pad_across_processes(self, value, **_):
        return value

    def reduce(self, value, reduction):
        return value


def loss_of_trl(rows, settings: LossSettings, accumulation: int, items: float, trainer=trl.GRPOTrainer):
    """TRL's own `_compute_loss` on log-probs that are given: the loss, and its gradient by them and by the entropies."""
    args = GRPOConfig(
        use_cpu=True, bf16=False, report_to=[], **(vars(settings) | {"steps_per_generation": accumulation})
    )
    logps, entropies = padded(rows, "logps").requires_grad_(), padded(rows, "entropies").requires_grad_()
    ids = torch.zeros_like(logps, dtype=torch.long)
    corrected = rows[0].correction is not None
    self = SimpleNamespace(
        **(
            vars(args)
            | {
                "args": args,
                "accelerator": OneProcess(),
                "model": SimpleNamespace(training=True),
                "use_vllm": corrected,
                "vllm_importance_sampling_correction": corrected,
                "epsilon_low": args.epsilon,
                "epsilon_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
                "aux_loss_enabled": False,
                "use_adaptive_entropy": False,
                "current_gradient_accumulation_steps": accumulation,
                "_entropy_bonus_enabled": settings.entropy_coef != 0,
                "_metrics": {"train": defaultdict(list)},
                "_get_per_token_logps_and_entropies": lambda *_, **__: (logps, entropies, None),
                "get_off_policy_mask": getattr(trainer, "get_off_policy_mask", None),
                "get_gamma_weights": getattr(trainer, "get_gamma_weights", None),
            }
        )
    )
    self.get_high_entropy_mask = lambda *a: trl.GRPOTrainer.get_high_entropy_mask(self, *a)
    inputs = {
        "prompt_ids": ids[:, :0],
        "prompt_mask": ids[:, :0],
        "completion_ids": ids,
        "completion_mask": padded(rows, "mask"),
        "advantages": torch.tensor([row.advantage for row in rows], dtype=torch.float64),
        "old_per_token_logps": padded(rows, "old_logps"),
        "ref_per_token_logps": padded(rows, "ref_logps"),
        "sampling_per_token_logps": padded(rows, "sampled_logps"),
        "num_items_in_batch": torch.tensor(items),
    }
    inputs["old_logps"] = (inputs["old_per_token_logps"] * inputs["completion_mask"]).sum(1)
    if corrected:
        ones = [np.ones(len(row.mask) if len(row.correction) > 1 else 1) for row in rows]
        weights = [row.correction * one for row, one in zip(rows, ones, strict=True)]
        inputs["importance_sampling_ratio"] = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(w) for w in weights], batch_first=True, padding_value=1.0
        )
    loss = trainer._compute_loss(self, None, inputs)
    loss.backward()
    return loss.item(), logps.grad.numpy(), None if entropies.grad is None else entropies.grad.numpy()


def assert_equal_to_trl(rows, settings, accumulation=2, items=23.0):
    value, by_logp, by_entropy = loss_of_trl(rows, settings, accumulation, items)
    got = grpo_loss(rows, settings, accumulation, items, share=1 / accumulation)
    assert got.value == pytest.approx(value, abs=1e-12)
    for i, slopes in enumerate(got.slopes):
        assert slopes == pytest.approx(by_logp[i, : len(slopes)], abs=1e-12)
    for i, slopes in enumerate(got.entropy_slopes):
        assert slopes == pytest.approx(by_entropy[i, : len(slopes)], abs=1e-12)


@pytest.mark.parametrize("others", [[], [0.01] * 40, [5.0] * 40])
def test_a_quantile_over_all_processes_is_trls_own(others, monkeypatch):
    """With entropies of another process that are all lower or higher TRL keeps all or hardly any of these tokens."""

    def gather(self, value):
        return torch.cat([value, torch.tensor(others)]) if value.dim() else value

    monkeypatch.setattr(OneProcess, "gather", gather)
    rows, settings = made_rows(), LossSettings(loss_type="grpo", top_entropy_quantile=0.5)
    value, by_logp, _ = loss_of_trl(rows, settings, 2, 23.0)
    counted = np.concatenate([row.entropies[row.mask > 0] for row in rows])
    threshold = float(torch.quantile(torch.tensor([*counted, *others]).float(), 0.5))
    got = grpo_loss(rows, settings, 2, 23.0, 1 / 2, threshold)
    assert got.value == pytest.approx(value, abs=1e-12)
    for i, slopes in enumerate(got.slopes):
        assert slopes == pytest.approx(by_logp[i, : len(slopes)], abs=1e-12)
    alone = grpo_loss(rows, settings, 2, 23.0, 1 / 2)
    assert (alone.value == got.value) == (not others)


@pytest.mark.parametrize("share", [0.4, 0.7, 0.8])
def test_a_quantile_of_tokens_is_trls_own_in_float32(share):
    """In float32 0.6 * 25 is above 15, so the token at place 15 is below the quantile of 26 entropies."""
    rng = np.random.default_rng(0)
    for tokens in (11, 26, 31, 46, 51, 61):
        entropies = rng.exponential(0.3, tokens).astype(np.float32).astype(float)
        row = LossRow(-np.ones(tokens), 1.0, np.ones(tokens), *[-np.ones(tokens)] * 3, None, entropies)
        assert_equal_to_trl([row], LossSettings(loss_type="grpo", top_entropy_quantile=share))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_loss_and_slopes_are_trls_own(loss_type, options):
    settings = LossSettings(loss_type=loss_type, **EXACT, **OPTIONS[options])
    for seed in range(5):
        assert_equal_to_trl(made_rows(seed), settings)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_corrected_loss_is_trls_own(loss_type, mode):
    for seed in range(5):
        assert_equal_to_trl(made_rows(seed, mode), LossSettings(loss_type=loss_type, **EXACT))


def test_rloo_loss_and_slopes_are_trls_own():
    for seed in range(5):
        rows = made_rows(seed)
        value, by_logp, _ = loss_of_trl(rows, LossSettings(), 1, 1.0, trl.RLOOTrainer)
        got = rloo_loss(rows)
        assert got.value == pytest.approx(value, abs=1e-12)
        for i, slopes in enumerate(got.slopes):
            assert slopes == pytest.approx(by_logp[i, : len(slopes)], abs=1e-12)


@pytest.mark.parametrize("loss_type", ["grpo", "sapo", "luspo"])
@pytest.mark.parametrize("options", ["plain", "kl, corrected, sequence", "two sides"])
def test_slopes_are_finite_differences(loss_type, options):
    """cispo, vespo and the entropy mask hold weights fixed, of which differences know nothing."""
    settings, rows, step = LossSettings(loss_type=loss_type, **OPTIONS[options]), made_rows(), 1e-6
    slopes = grpo_loss(rows, settings).slopes
    for i, row in enumerate(rows):
        for t in range(len(row.mask)):
            moved = [replace(row, logps=row.logps + sign * step * (np.arange(len(row.mask)) == t)) for sign in (1, -1)]
            up, down = (grpo_loss([*rows[:i], new, *rows[i + 1 :]], settings).value for new in moved)
            assert slopes[i][t] == pytest.approx((up - down) / (2 * step), abs=1e-6)


def test_unknown_loss_type_is_refused():
    with pytest.raises(ValueError, match="loss_type 'ppo': expected one that TRL has"):
        grpo_loss(made_rows(), LossSettings(loss_type="ppo"))


def test_the_only_judged_row_of_a_group_gets_nothing():
    nan = float("nan")
    assert leave_one_out_advantages([1.0, nan, 2.0, 4.0], 2).tolist() == [0, 0, -2, 2]
    assert normalized_advantages([[1.0], [None], [2.0], [2.0]], 2).tolist() == [0, 0, 0, 0]


def test_a_mask_that_leaves_nothing_gives_no_nan():
    rows = [replace(row, mask=np.zeros_like(row.mask)) for row in made_rows()]
    for loss_type, options in itertools.product(LOSSES, OPTIONS.values()):
        got = grpo_loss(rows, LossSettings(loss_type=loss_type, **options))
        assert got.value == 0 and all((slopes == 0).all() for slopes in got.slopes)


def test_rewards_that_judge_nothing_are_no_zero():
    assert np.isnan(row_rewards([[None, None]])).all()


def test_a_factor_is_named_if_a_micro_batchs_loss_is_nearly_0():
    micro = [MicroRows([], [], [], None, loss) for loss in (2.0, 1e-12)]
    step = Step("GRPO", "float32", 1, 0, {"loss_type": "dapo"}, [], [], [], None, [], micro)
    losses = [Loss(value, [np.ones(2)], []) for value in (0.5, -1e-12)]
    assert check_loss(step, losses).cause.endswith("4 times as much")


@pytest.mark.parametrize("mask, trained", [([1, 1, 1], True), ([1, 1, 0], False)])
def test_tokens_behind_an_end_are_trained_if_the_mask_has_them(mask, trained):
    row = SampledRow([1], [5, 6, 7], np.ones(3), True, 2, False, np.array(mask))
    ends = check_ends(SimpleNamespace(rows=[row]), str)
    assert ends.verdict == "different" and ends.cause.startswith("1 rows keep up to 1 tokens behind their end")
    assert ("which the loss then trains" in ends.cause) == trained


def test_the_only_judged_row_of_a_group_counts_in_the_batch():
    rewards = torch.tensor([[1.0, torch.nan], [torch.nan, 2.0], [0.0, 0.0], [1.0, 1.0]])
    grouped = rewards.view(-1, 2, 2)  # the lines of TRL's trainer
    mean = torch.nanmean(grouped, dim=1, keepdim=True)
    per_func = ((grouped - mean) / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)).view(-1, 2).nansum(dim=1)
    theirs = (per_func - torch.nanmean(per_func)) / (nanstd(per_func) + 1e-4)
    assert normalized_advantages(rewards.numpy(), 2) == pytest.approx(theirs.numpy(), abs=1e-6)
    assert normalized_advantages([[1.0], [None], [0.0], [1.0]], 2).round(2).tolist() == [0, 0, -1, 1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda: group_advantages([1.0, 0.0], 2, "gruop"),
        lambda: sampler_correction(np.log([0.9]), np.log([0.1]), np.ones(1), "token_trunc"),
        lambda: grpo_loss(made_rows(), LossSettings(importance_sampling_level="seq")),
    ],
    ids=["scale", "correction", "level"],
)
def test_an_unknown_word_means_no_other_formula(ask):
    with pytest.raises(ValueError, match=r"expected (one of )?(group|token)"):
        ask()
