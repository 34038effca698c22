"""Importance ratios of log-probs: against TRL's own lines, and where columns do not fit."""

import functools
import inspect
import math
import textwrap
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.consistency.ratios import CLIP_MAX, CLIP_MIN, MODES, ratio_report
from workbench.errors import ParameterError

_logprobs = st.floats(-12, 0)
_rollouts = st.lists(
    st.lists(st.tuples(_logprobs, st.one_of(st.none(), _logprobs)), min_size=1, max_size=6), min_size=1, max_size=5
)


@functools.cache
def trl_lines():
    """The lines of the installed TRL that make importance ratios, compiled."""
    import trl

    source = inspect.getsource(trl.GRPOTrainer._generate_and_score_completions)
    start = source.index("per_token_logps_diff = (old_per_token_logps")
    stop = source.index("# Compute the per-token log probabilities for the reference model")
    lines = source[:start].rpartition("\n")[2] + source[start:stop].rpartition("\n")[0]
    return compile(textwrap.dedent(lines), "trl", "exec")


def trl_ratios(scored, sampled, mode, clip_min, clip_max):
    """The importance ratios that the installed TRL's own lines make of padded (B, T) log-probs and mask."""
    fields = {"mode": mode, "clip_min": clip_min, "clip_max": clip_max}
    me = SimpleNamespace(**{f"vllm_importance_sampling_{name}": value for name, value in fields.items()})
    width = max(map(len, scored))
    padded = [
        [[math.nan if v is None else v for v in row] + [0.0] * (width - len(row)) for row in x]
        for x in (scored, sampled)
    ]
    old, sampling = torch.tensor(padded, dtype=torch.float64)
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in scored])
    names = {"self": me, "torch": torch, "math": math, "mask": mask}
    names |= {"old_per_token_logps": old, "sampling_per_token_logps": sampling}
    exec(trl_lines(), names)
    return names["vllm_importance_sampling_ratio"].expand(-1, width), mask.bool()


@settings(max_examples=40)
@given(_rollouts, st.sampled_from([(None, 3.0), (0.5, 2.0), (0.5, None)]))
def test_clipped_and_masked_shares_are_those_of_trls_own_code(rollout, bounds):
    scored, sampled = ([[pair[n] for pair in row] for row in rollout] for n in (0, 1))
    report = ratio_report(scored, sampled, clip_min=bounds[0], clip_max=bounds[1])
    table = report.modes().set_index("mode")
    assert list(table.index) == list(MODES)
    for mode in MODES:
        raw, mask = trl_ratios(scored, sampled, mode.replace("mask", "truncate"), None, math.inf)
        ratios, _ = trl_ratios(scored, sampled, mode, *bounds)
        changed = (ratios != raw) & mask
        assert table.loc[mode, "tokens"] == pytest.approx(changed[mask].double().mean().item())
        assert table.loc[mode, "sequences"] == pytest.approx(changed.any(-1).double().mean().item())
        assert table.loc[mode, "mean ratio left"] == pytest.approx(ratios[mask].mean().item(), rel=1e-6)


def test_modes_and_bounds_are_the_installed_trls():
    import trl

    fields = trl.GRPOConfig.__dataclass_fields__
    assert fields["vllm_importance_sampling_clip_max"].default == CLIP_MAX
    assert fields["vllm_importance_sampling_clip_min"].default == CLIP_MIN
    assert fields["vllm_importance_sampling_mode"].default in MODES
    source = inspect.getsource(trl.GRPOTrainer._generate_and_score_completions)
    assert all(f"'{mode}'" in source for mode in MODES)


def test_a_mean_near_zero_hides_what_the_distribution_shows():
    scored = [[-1.0, -2.0], [-1.0, -2.0]]
    report = ratio_report(scored, [[-1.5, -1.5], [-1.0, -2.0]])
    numbers = report.table().set_index("quantity")["value"]
    assert numbers["mean difference per token [nats]"] == 0 and report.outside == 0.5
    assert report.kl() == pytest.approx((math.exp(0.5) - 1.5 + math.exp(-0.5) - 0.5) / 4)
    assert report.quantiles().loc["token", 1] == pytest.approx(math.exp(0.5))
    assert report.quantiles().loc["sequence"].tolist() == pytest.approx([1] * 9)


def test_small_drifts_add_up_to_a_masked_sequence():
    report = ratio_report([[-1.0] * 100], [[-1.012] * 100])  # 0.012 nats a token: e^1.2 > 3
    modes = report.modes().set_index("mode")
    assert report.outside == 0 and modes.loc["token_mask", "tokens"] == 0
    assert modes.loc["sequence_mask", "tokens"] == modes.loc["sequence_mask", "sequences"] == 1
    assert modes.loc["sequence_mask", "mean ratio left"] == 0
    assert modes.loc["sequence_truncate", "mean ratio left"] == 3


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=20))
def test_effective_sample_size_lies_between_one_sample_and_all(logs):
    report = ratio_report([[log] for log in logs], [[-15.0]] * len(logs))
    for level in ("token", "sequence"):
        assert 1 / len(logs) - 1e-9 <= report.effective_sample_size(level) <= 1 + 1e-9
    assert ratio_report([[-1.0]] * 4, [[-1.0]] * 4).effective_sample_size() == 1
    assert ratio_report([[-0.0]] + [[-700.0]] * 3, [[-700.0]] * 4).effective_sample_size() == pytest.approx(0.25)


def test_tokens_with_no_sampled_log_prob_count_as_no_difference():
    report = ratio_report([[-1.0, -9.0], [-2.0]], [[-1.0, None], [math.nan]])
    assert report.missing == 2 and (report.tokens == 0).all()


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (([], []), {}, "scored_logprobs: 0 sequences, .* expected at least 1"),
        (([[-1.0]], [[]]), {}, r"sampled_logprobs: 1 sequences, empty: \[0\]"),
        (([[-1.0]], [[0.4]]), {}, "sampled_logprobs holds positive or infinite"),
        (([[-1.0]], [[-math.inf]]), {}, "sampled_logprobs holds positive or infinite"),
        (([[-1.0, math.nan]], [[-1.0, -2.0]]), {}, "scored_logprobs holds nan or None"),
        (([[None]], [[-1.0]]), {}, "scored_logprobs holds nan or None"),
        (([[-1.0]], [[-1.0], [-1.0]]), {}, "scored_logprobs has 1 sequences and sampled_logprobs has 2"),
        (([[-1.0]], [[-1.0, -1.0]]), {}, "sequence 0: 1 scored_logprobs, 2 sampled_logprobs"),
        (([[-1.0]], [[-1.0]]), {"clip_min": 3.0}, "clip_min=3.0: expected less than clip_max=3.0"),
    ],
)
def test_log_probs_that_cannot_be_compared_say_why(arguments, options, message):
    with pytest.raises(ParameterError, match=message):
        ratio_report(*arguments, **options)


@pytest.mark.parametrize("bounds", [{"clip_max": -1.0}, {"clip_min": math.nan}], ids=str)
def test_a_bound_that_no_ratio_has_is_refused(bounds):
    with pytest.raises(ParameterError, match="expected a number of at least 0, or None"):
        ratio_report([[-1.0]], [[-1.0]], **bounds)
