"""Published losses against their own differences, their limits, each other, polgrad, and the page that shows them."""

import csv
import inspect
import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import ROOT

from workbench.replay import published
from workbench.replay.grpo_math import (
    Loss,
    LossRow,
    LossSettings,
    gmpo_loss,
    group_advantages,
    grpo_loss,
    leave_one_out_advantages,
    rloo_loss,
    sampler_correction,
)
from workbench.replay.published import (
    average_weights,
    binary_divergence,
    cispo_loss,
    decoupled_ppo_loss,
    dppo_loss,
    dual_clip_loss,
    geometric_weight,
    gspo_token_loss,
    icepop_weights,
    kl_loss,
    kl_terms,
    penalized_returns,
    reinforce_loss,
    reinforce_pp_advantages,
)

LOSSES = {
    "reinforce": reinforce_loss,
    "ppo": partial(dual_clip_loss, c=np.inf),
    "dual clip": partial(dual_clip_loss, epsilon_high=0.3, c=1.5),
    "decoupled": partial(decoupled_ppo_loss, cap=1.3),
    "gspo token": partial(gspo_token_loss, epsilon=0.1, epsilon_high=0.1),
    "cispo": partial(cispo_loss, low=0.8, high=1.2),
    "dppo, tv": partial(dppo_loss, low=0.1, high=0.1),
    "dppo, kl": partial(dppo_loss, low=0.02, high=0.02, kind="kl"),
    "dppo, squared": partial(dppo_loss, low=0.1, high=0.1, squared=0.5),
    "k1": partial(kl_loss, estimator="k1"),
    "k2": partial(kl_loss, estimator="k2"),
    "k3": partial(kl_loss, estimator="k3"),
}
HELD = ("gspo token", "cispo")  # they hold a weight constant, of which a difference of the value knows nothing
AVERAGES = ("rows", "tokens", "sums", 8)
PPO = LOSSES["ppo"]


def made_rows(seed: int = 0, lengths=(4, 1, 3, 5)) -> list[LossRow]:
    """Rows of both signs, one with an advantage for each token, one with a token of a tool, one masked whole."""
    random = np.random.default_rng(seed)
    rows = []
    for i, length in enumerate(lengths):
        logps = -random.exponential(1.0, length)
        old, ref, sampled = (np.minimum(logps + random.normal(0, 0.4, length), -0.01) for _ in range(3))
        mask = np.zeros(length) if i == 2 else (np.arange(length) != 1).astype(float)
        advantage = random.normal(size=length) if i == 3 else random.normal()
        weight = random.uniform(0.5, 2, length) if i == 0 else None
        rows.append(LossRow(logps, advantage, mask, old, ref, sampled, weight))
    return rows


def plain(rows: list[LossRow]) -> list[LossRow]:
    return [replace(row, correction=None) for row in rows]


def assert_same(got: Loss, expected: Loss):
    assert got.value == pytest.approx(expected.value, abs=1e-12)
    for slopes, others in zip(got.slopes, expected.slopes, strict=True):
        assert slopes == pytest.approx(others, abs=1e-12)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("name", LOSSES)
def test_slopes_are_central_differences_of_the_value(name, average):
    step = 1e-6
    for seed in range(5):
        rows = made_rows(seed)
        held = {"frozen": [row.logps for row in rows]} if name in HELD else {}
        slopes = LOSSES[name](rows, average=average).slopes
        for i, row in enumerate(rows):
            for t in range(len(row.mask)):
                moves = [step * sign * (np.arange(len(row.mask)) == t) for sign in (1, -1)]
                moved = [[*rows[:i], replace(row, logps=row.logps + move), *rows[i + 1 :]] for move in moves]
                up, down = (LOSSES[name](others, average=average, **held).value for others in moved)
                assert slopes[i][t] == pytest.approx((up - down) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_masked_batch_has_neither_loss_nor_slope(name):
    rows = [replace(row, mask=np.zeros_like(row.mask)) for row in made_rows()]
    for average in AVERAGES:
        got = LOSSES[name](rows, average=average)
        assert got.value == 0 and all((slopes == 0).all() for slopes in got.slopes)


def test_micro_batches_add_up_to_the_mean_over_tokens():
    rows = plain(made_rows())
    tokens = sum(row.mask.sum() for row in rows)
    parts = [PPO(part, average=tokens / len(part)) for part in (rows[:1], rows[1:])]
    whole = PPO(rows)
    assert sum(part.value for part in parts) == pytest.approx(whole.value)
    assert_same(replace(whole, slopes=[slopes for part in parts for slopes in part.slopes]), whole)


def test_a_budget_of_tokens_is_the_divisor_of_dr_grpo():
    settings = LossSettings(loss_type="dr_grpo", max_completion_length=8)
    assert_same(PPO(made_rows(), average=8), grpo_loss(made_rows(), settings))


def test_dual_clip_without_a_limit_is_the_clip():
    for seed in range(10):
        for average, loss_type in (("rows", "grpo"), ("tokens", "bnpo"), ("sums", "luspo")):
            expected = grpo_loss(made_rows(seed), LossSettings(loss_type=loss_type))
            assert_same(dual_clip_loss(made_rows(seed), c=np.inf, average=average), expected)


def test_dual_clip_is_trls_delta_beyond_the_clip():
    for seed in range(10):
        expected = grpo_loss(made_rows(seed), LossSettings(loss_type="bnpo", delta=1.5))
        assert_same(dual_clip_loss(made_rows(seed), c=1.5), expected)


def test_gspo_on_rows_of_one_token_is_grpo():
    for seed in range(10):
        rows = made_rows(seed, (1, 1, 1, 1))
        assert_same(gspo_token_loss(rows, 0.2, 0.2), PPO(rows, average="rows"))


def test_gspo_token_is_gspo_if_a_row_has_one_advantage():
    settings = LossSettings(loss_type="grpo", importance_sampling_level="sequence")
    for seed in range(10):
        rows = plain(made_rows(seed))
        alike = [replace(row, advantage=float(np.mean(row.advantage))) for row in rows]
        assert_same(gspo_token_loss(alike, 0.2, 0.2), grpo_loss(alike, settings))
    assert not np.allclose(gspo_token_loss(rows, 0.2, 0.2).slopes[3], grpo_loss(rows, settings).slopes[3])


def test_decoupled_ppo_at_the_behaviour_is_ppo():
    for seed in range(10):
        rows = [replace(row, sampled_logps=row.old_logps) for row in plain(made_rows(seed))]
        assert_same(decoupled_ppo_loss(rows), PPO(rows))
        assert_same(decoupled_ppo_loss([replace(row, sampled_logps=None) for row in rows]), PPO(rows))


def test_decoupled_ppo_with_a_cap_is_truncated_sampling():
    for seed in range(10):
        rows = made_rows(seed)
        weights = [
            sampler_correction(row.old_logps, row.sampled_logps, row.mask, "token_truncate", clip_max=1.3)
            for row in rows
        ]
        corrected = [replace(row, correction=weight) for row, weight in zip(rows, weights, strict=True)]
        assert_same(decoupled_ppo_loss(rows, cap=1.3), grpo_loss(corrected, LossSettings(loss_type="bnpo")))


def test_corrections_without_limits_are_the_plain_ratios():
    for row in made_rows():
        ratios = np.exp((row.old_logps - row.sampled_logps) * row.mask)
        assert icepop_weights(row.old_logps, row.sampled_logps, row.mask, 0.0, np.inf) == pytest.approx(ratios)
        for mode in ("token_truncate", "token_mask"):
            got = sampler_correction(row.old_logps, row.sampled_logps, row.mask, mode, clip_max=None)
            assert got == pytest.approx(ratios)
        mean = geometric_weight(row.old_logps, row.sampled_logps, row.mask)
        product = sampler_correction(row.old_logps, row.sampled_logps, row.mask, "sequence_mask", clip_max=None)
        assert mean ** max(row.mask.sum(), 1) == pytest.approx(product)


def test_cispo_within_wide_limits_has_slopes_of_the_ratio():
    for seed in range(10):
        rows = made_rows(seed)
        wide = cispo_loss(rows, 0.0, np.inf)
        assert_same(replace(wide, value=0.0), replace(PPO(rows, np.inf, np.inf), value=0.0))
        expected = grpo_loss(rows, LossSettings(loss_type="cispo", epsilon_high=1.2))
        assert_same(cispo_loss(rows, 0.0, 1.2), expected)


def test_dppo_without_limits_is_the_plain_ratio():
    for seed in range(10):
        rows = [replace(row, old_logps=row.sampled_logps) for row in made_rows(seed)]
        assert_same(dppo_loss(rows, np.inf, np.inf), PPO(rows, np.inf, np.inf))


def test_dppo_leaves_out_only_tokens_moved_their_own_way():
    old, new = np.log([0.2, 0.6]), np.log([0.6, 0.2])
    for sign, left in ((1.0, [0, -1 / 3]), (-1.0, [3, 0])):
        got = dppo_loss([LossRow(new, sign, np.ones(2), sampled_logps=old)], average="sums")
        assert got.slopes[0] == pytest.approx(left)


def test_dppo_has_a_limit_for_each_sign_of_the_advantage():
    old, new = np.log([0.2, 0.6]), np.log([0.6, 0.2])  # both moved by 0.4
    for sign, left in ((1.0, [-3, -1 / 3]), (-1.0, [3, 0])):
        got = dppo_loss([LossRow(new, sign, np.ones(2), sampled_logps=old)], 0.3, 0.5, average="sums")
        assert got.slopes[0] == pytest.approx(left)


def test_two_part_divergences_are_lower_bounds():
    random = np.random.default_rng(0)
    for p, q in random.dirichlet(np.ones(5), (100, 2)):
        whole = {"tv": np.abs(p - q).sum() / 2, "kl": (q * np.log(q / p)).sum()}
        for kind, divergence in whole.items():
            parts = binary_divergence(np.log(p), np.log(q), kind)
            assert (parts >= -1e-12).all() and (parts <= divergence + 1e-12).all()


def test_reinforce_on_the_sampling_policy_has_rloos_slopes():
    for seed in range(10):
        rows = [replace(row, advantage=1.5, old_logps=row.logps) for row in plain(made_rows(seed))]
        for slopes, others in zip(reinforce_loss(rows).slopes, rloo_loss(rows).slopes, strict=True):
            assert slopes == pytest.approx(others)


def test_leave_one_out_is_the_centred_reward_scaled():
    rewards = np.random.default_rng(0).normal(size=12)
    scaled = group_advantages(rewards, 4, "none") * 4 / 3
    assert leave_one_out_advantages(rewards, 4) == pytest.approx(scaled)


def test_reinforce_pp_has_mean_0_and_variance_1_over_tokens():
    rows = made_rows(lengths=(4, 1, 3, 5, 2, 2))
    masks = [np.ones_like(row.mask) for row in rows]
    kls = [kl_terms(row.old_logps, row.ref_logps, "k1")[0] for row in rows]
    for groups, ddof in ((None, 0), (3, 0), (3, 1)):
        got = np.concatenate(reinforce_pp_advantages([1.0, 0, 0, 3, 2, 2], masks, kls, 0.1, groups, ddof))
        assert got.mean() == pytest.approx(0, abs=1e-12) and got.std(ddof=ddof) == pytest.approx(1)
    assert all((got == 0).all() for got in reinforce_pp_advantages([1.0] * 6, masks))


def test_the_penalty_to_come_begins_with_that_of_the_row():
    row = made_rows()[3]
    kl = kl_terms(row.old_logps, row.ref_logps, "k1")[0]
    returns = penalized_returns(2.0, kl, row.mask, 0.3)
    assert returns[0] == pytest.approx(2.0 - 0.3 * (kl * row.mask).sum())
    assert returns[-1] == pytest.approx(2.0 - 0.3 * kl[-1])
    assert (penalized_returns(2.0, kl, row.mask, 0.0) == 2.0 * row.mask).all()


def test_the_mean_slope_of_k2_alone_is_the_gradient_of_kl():
    logits, reference = np.array([0.3, -1.0, 0.9]), np.log([0.2, 0.5, 0.3])

    def policy(z):
        return z - np.log(np.exp(z).sum())

    def divergence(z):
        return (np.exp(policy(z)) * (policy(z) - reference)).sum()

    logps, step = policy(logits), 1e-6
    gradient = [(divergence(logits + step * e) - divergence(logits - step * e)) / (2 * step) for e in np.eye(3)]
    scores = np.eye(3) - np.exp(logps)  # row v: the gradient of token v's log-prob by the logits
    means = {k: np.exp(logps) * kl_terms(logps, reference, k)[1] @ scores for k in ("k1", "k2", "k3", "k1+", "k3+")}
    assert means["k1"] == pytest.approx(np.zeros(3), abs=1e-12)
    for estimator in ("k2", "k1+", "k3+"):
        assert means[estimator] == pytest.approx(gradient, abs=1e-6)
    assert np.abs(means["k3"] - gradient).max() > 0.05
    for estimator in ("k1", "k3"):  # the values of these two are right in the mean
        assert (np.exp(logps) * kl_terms(logps, reference, estimator)[0]).sum() == pytest.approx(divergence(logits))


def test_k1_in_the_reward_is_k2_in_the_loss():
    for seed in range(10):
        rows = plain(made_rows(seed))
        penalized = [replace(row, advantage=-0.3 * (row.logps - row.ref_logps)) for row in rows]
        expected = kl_loss(rows, 0.3, "k2", "tokens").slopes
        for slopes, others in zip(reinforce_loss(penalized, "tokens").slopes, expected, strict=True):
            assert slopes == pytest.approx(others)


def test_a_correction_of_the_sampler_leaves_the_penalty_alone():
    assert_same(kl_loss(made_rows()), kl_loss(plain(made_rows())))


def test_unknown_names_are_refused():
    rows, logps = made_rows(), np.zeros(1)
    with pytest.raises(ValueError, match="average 'mean': expected rows, tokens, sums, or a number of tokens"):
        average_weights(rows, "mean")
    with pytest.raises(ValueError, match="estimator 'k4': expected k1, k2, k3"):
        kl_terms(logps, logps, "k4")
    with pytest.raises(ValueError, match="kind 'js': expected tv or kl"):
        binary_divergence(logps, logps, "js")


# The worked case of the page, and what polgrad gives for it (`tools/polgrad_numbers.py` says how).
POLGRAD = json.loads((ROOT / "tests" / "data" / "polgrad.json").read_text(encoding="utf-8"))


def worked_rows(mode: str = "", low: float | None = None, high: float | None = None) -> list[LossRow]:
    rows = []
    for i, advantage in enumerate(POLGRAD["row_advantages"]):
        policy, old, sampled, reference = (
            np.log(POLGRAD["probabilities"][name][i]) for name in POLGRAD["probabilities"]
        )
        rows.append(LossRow(policy, advantage, np.ones_like(policy), old, reference, sampled))
    if not mode:
        return rows
    return [
        replace(row, correction=sampler_correction(row.old_logps, row.sampled_logps, row.mask, mode, low, high))
        for row in rows
    ]


SEQUENCE = LossSettings(loss_type="grpo", importance_sampling_level="sequence")
OF_POLGRAD = {
    "ppo, rows": lambda: PPO(worked_rows(), average="rows"),
    "ppo, sums": lambda: PPO(worked_rows(), average="sums"),
    "ppo, tokens": lambda: PPO(worked_rows()),
    "ppo, 10": lambda: PPO(worked_rows(), average=10),
    "dual clip": lambda: dual_clip_loss(worked_rows()),
    "gspo": lambda: grpo_loss(worked_rows(), SEQUENCE),
    "gspo token": lambda: gspo_token_loss(worked_rows(), 0.2, 0.2),
    "cispo": lambda: cispo_loss(worked_rows(), 0.0, 1.2),
    "cispo, two limits": lambda: cispo_loss(worked_rows(), 0.8, 1.2),
    "reinforce": lambda: reinforce_loss(worked_rows()),
    "truncated by token": lambda: decoupled_ppo_loss(worked_rows(), cap=2.0),
    "truncated by row": lambda: PPO(worked_rows("sequence_truncate", None, 2.0)),
    "k1": lambda: kl_loss(worked_rows(), 1.0, "k1", "tokens"),
    "k2": lambda: kl_loss(worked_rows(), 1.0, "k2", "tokens"),
    "k3": lambda: kl_loss(worked_rows(), 1.0, "k3", "tokens"),
}


@pytest.mark.parametrize("name", POLGRAD["losses"])
def test_losses_are_those_of_polgrad(name):
    expected = POLGRAD["losses"][name]
    assert_same(OF_POLGRAD[name](), Loss(expected["value"], [np.array(slopes) for slopes in expected["slopes"]], []))


def test_advantages_are_those_of_polgrad():
    rewards, masks = POLGRAD["rewards"], [np.ones(1)] * 6  # polgrad normalizes over rows, which is over tokens here
    plus = {
        name: np.concatenate(reinforce_pp_advantages(rewards, masks, num_generations=groups, ddof=1))
        for name, groups in (("reinforce++", None), ("reinforce++ with a baseline", 3))
    }
    got = plus | {
        "dr. grpo": group_advantages(rewards, 3, "none"),
        "rloo": leave_one_out_advantages(rewards, 3),
        "reinforce++, no scale": np.array(rewards) - np.mean(rewards),
    }
    for name, expected in POLGRAD["advantages"].items():
        assert got[name] == pytest.approx(expected, abs=1e-12), name


PAGE = ROOT / "docs" / "reference" / "losses.csv"
WORKED_REWARDS = [1.0, 0.0, 3.0, 1.0]
WORKED_MASKS = [np.ones(length) for length in (2, 4, 1, 1)]
ON_THE_PAGE = {
    "GRPO": OF_POLGRAD["ppo, rows"],
    "PPO; DAPO": OF_POLGRAD["ppo, tokens"],
    "Dr. GRPO": OF_POLGRAD["ppo, 10"],
    "Dual clip": OF_POLGRAD["dual clip"],
    "GSPO": OF_POLGRAD["gspo"],
    "GSPO-token": OF_POLGRAD["gspo token"],
    "GMPO": lambda: gmpo_loss(worked_rows(), LossSettings(epsilon=0.4)),
    "CISPO": lambda: cispo_loss(worked_rows()),
    "DPPO, TV": lambda: dppo_loss(worked_rows()),
    "DPPO, KL": lambda: dppo_loss(worked_rows(), 0.05, 0.05, "kl"),
    "DPPO of prime-rl": lambda: dppo_loss(worked_rows(), squared=1e-3),
    "Decoupled PPO": lambda: decoupled_ppo_loss(worked_rows()),
    "Truncated sampling, token": lambda: PPO(worked_rows("token_truncate", None, 3.0)),
    "Truncated sampling, row": lambda: PPO(worked_rows("sequence_truncate", None, 3.0)),
    "Masked sampling, token": lambda: PPO(worked_rows("token_mask", None, 3.0)),
    "Masked sampling, row": lambda: PPO(worked_rows("sequence_mask", None, 3.0)),
    "IcePop": lambda: PPO(worked_rows("token_mask", 0.5, 5.0)),
    "Geometric mask": lambda: PPO(
        [
            replace(row, correction=geometric_weight(row.old_logps, row.sampled_logps, row.mask, 0.5, 1.6))
            for row in worked_rows()
        ]
    ),
    "REINFORCE; RLOO": OF_POLGRAD["reinforce"],
    "RLOO of TRL": lambda: rloo_loss(worked_rows()),
    "k1 in the loss": OF_POLGRAD["k1"],
    "k2 in the loss; k1 in the reward": OF_POLGRAD["k2"],
    "k3 in the loss": OF_POLGRAD["k3"],
    "Leave one out": lambda: [leave_one_out_advantages(WORKED_REWARDS, 2)],
    "Leave one out, not scaled": lambda: [group_advantages(WORKED_REWARDS, 2, "none")],
    "REINFORCE++": lambda: reinforce_pp_advantages(WORKED_REWARDS, WORKED_MASKS),
    "REINFORCE++ with a baseline": lambda: reinforce_pp_advantages(WORKED_REWARDS, WORKED_MASKS, num_generations=2),
}

# Where a cell says what another form gives for the worked case: the same from our functions with that framework's constants.
OF_OTHERS = {
    "Dr. GRPO": lambda: [PPO(worked_rows(), average=4).value, PPO(worked_rows()).value],
    "GSPO": lambda: [
        grpo_loss(worked_rows(), replace(SEQUENCE, loss_type="bnpo")).value,
        grpo_loss(worked_rows(), replace(SEQUENCE, loss_type="bnpo")).value,
        grpo_loss([replace(row, old_logps=row.sampled_logps) for row in worked_rows()], SEQUENCE).value,
    ],
    "CISPO": lambda: [cispo_loss(worked_rows(), low, high).value for low, high in ((0, 0.2), (0.8, 1.2), (1, 6))],
    "Decoupled PPO": lambda: [PPO(worked_rows()).value],
    "REINFORCE++": lambda: [reinforce_pp_advantages(WORKED_REWARDS, WORKED_MASKS, ddof=1)[2].item()],
}


def shown(got: Loss | list) -> str:
    """A loss and its slopes, or advantages, as the page writes them: rows apart by a semicolon."""
    rows = got.slopes if isinstance(got, Loss) else got
    text = "; ".join(" ".join(f"{value + 0.0:.4g}" for value in np.round(row, 4)) for row in rows)
    return f"{got.value:.4f}: {text}" if isinstance(got, Loss) else text


def test_the_page_shows_what_the_functions_give():
    with PAGE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cells = {row["loss or estimator"]: row["worked case"] for row in rows}
    assert cells == {name: shown(of_case()) for name, of_case in ON_THE_PAGE.items()}
    number = re.compile(r"(-?\d\.\d{3,4})(?:\)| for)")
    parted = {row["loss or estimator"]: number.findall(row["TRL 1.16.0"] + row["where others part"]) for row in rows}
    written = {name: list(map(float, numbers)) for name, numbers in parted.items() if numbers}
    assert written == {name: pytest.approx(of_case(), abs=6e-4) for name, of_case in OF_OTHERS.items()}
    named = " ".join(row["function"] for row in rows)
    public = [
        name
        for name, part in inspect.getmembers(published, inspect.isfunction)
        if part.__module__ == published.__name__
    ]
    assert [name for name in public if not name.startswith("_") and name not in named] == []


def test_a_token_of_probability_1_is_masked_as_one_next_to_it():
    assert binary_divergence(np.log([0.1, 1.0]), np.zeros(2), "kl").round(3).tolist() == [2.303, 0.0]
    near, at = (LossRow(np.log([0.1]), -1.0, np.ones(1), sampled_logps=np.array([x])) for x in (-1e-9, 0.0))
    assert dppo_loss([at], kind="kl").value == dppo_loss([near], kind="kl").value == 0


def test_a_batch_with_too_few_tokens_to_scale_has_no_advantages():
    assert [row.tolist() for row in reinforce_pp_advantages([1.0, 0.0], [np.zeros(2), np.zeros(1)])] == [[0, 0], [0]]
    assert reinforce_pp_advantages([1.0], [np.ones(1)], ddof=1)[0].tolist() == [0]
