"""What the audit says of logs that it once judged wrongly: advice that harms, too short logs, causes that are open."""

import json

import numpy as np
import pytest
from made_up import EQUAL, STOPPED, flat, log, rows

from workbench.audit.check import check
from workbench.audit.report import audit_run
from workbench.audit.rules_clipping import false_clipping
from workbench.audit.rules_data import log_damage
from workbench.audit.rules_ends import masked_stops, true_clipping
from workbench.audit.rules_gradient import copies, zero_gradient
from workbench.audit.rules_learning import collapse, length_runaway, no_learning
from workbench.logs.read import read_logs


def by_rule(made):
    return {finding.rule: finding for finding in check(made)}


# --- advice ------------------------------------------------------------------------------------------------------------


def test_only_a_stop_of_one_token_goes_to_eos_token_id():
    for facts in ({}, {"stop_strings": ["</search>"]}):
        advice = false_clipping(log(**STOPPED, facts=facts)).advice
        assert "Only where the stop is a single token" in advice
    assert "Only where" not in false_clipping(log(**STOPPED, facts={"stop_token_ids": [7]})).advice
    masked = STOPPED | {"clipped_ratio": 0.9}
    found = masked_stops(log(**masked, facts={"mask_truncated_completions": True}))
    assert found.verdict == "found" and "Only where the stop is a single token" in found.advice


LENGTHS = 162 * np.exp(np.linspace(0, 2.35, 56) + 0.4 * np.random.default_rng(1).normal(size=56))
SCATTER = 5 + 3 * np.random.default_rng(0).normal(size=56)


def test_lengths_that_grow_tenfold_run_away_though_they_scatter():
    found = length_runaway(log(56, mean_length=LENGTHS, reward=SCATTER))
    assert (found.verdict, found.severity) == ("found", "problem")
    assert "e+0" not in found.says


@pytest.mark.parametrize("sign", [{"mean_length": LENGTHS}, {"clipped_ratio": np.linspace(0, 0.5, 56)}])
def test_nobody_who_runs_away_is_told_to_learn_faster(sign):
    assert "raise the learning rate" in no_learning(log(56, reward=SCATTER)).advice
    assert no_learning(log(56, reward=SCATTER, **sign)).advice.startswith("Do not raise the learning rate")


def test_means_over_five_steps_show_the_limit_that_they_never_exceed():
    longest = np.r_[np.linspace(100, 3000, 50), [4096, 4096, 4090, 4096, 3900, 4096]]
    cut = {"clipped_ratio": np.where(longest > 2500, 0.4, 0.0), "mean_length": longest / 2, "max_length": longest}
    made = log(56, **cut, reward=flat, entropy=0.4)
    assert false_clipping(made).verdict == "cannot tell"  # each step has a line: the longest of 3,900 was cut below 4,096
    made = log(56, **cut, reward=flat, entropy=0.4)
    made.steps["step"] *= 5
    assert (false_clipping(made).verdict, true_clipping(made).verdict) == ("not found", "found")


# --- all groups equal, and no texts --------------------------------------------------------------------------------------

NO_TEXTS = {"grad_norm": 0.0, "zero_std_share": 1.0, "reward": lambda share: 0.3 + 0 * share}


def test_without_texts_equal_rewards_may_be_copies_and_both_are_named():
    found = by_rule(log(**NO_TEXTS))
    assert found["copies"].verdict == "cannot tell"
    dead = found["zero-gradient"]
    assert dead.is_problem and "may also be the same text" in dead.says
    assert dead.advice.startswith("Read two completions of one group") and "`seed`" in dead.advice
    assert "prompts of which some completions succeed" in dead.advice


def test_groups_that_differed_at_the_start_are_no_copies():
    later = log(**EQUAL | {"zero_std_share": np.r_[np.full(6, 0.2), np.ones(54)], "grad_norm": 0.0}, reward=flat)
    assert copies(later).verdict == "not found"
    assert "same text" not in zero_gradient(later).says


def test_a_seed_in_the_settings_is_named_as_the_cause(tmp_path):
    history = [{"step": n + 1, "reward": 0.1 * (n % 4), "grad_norm": 0.0, "frac_reward_zero_std": 1.0} for n in range(20)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    script = 'args = GRPOConfig(num_generations=4, generation_kwargs={"stop": ["</search>"], "seed": 7})\n'
    (tmp_path / "train.py").write_text(script)
    (run,) = audit_run(tmp_path).runs
    assert run.main == "copies" and "every request the seed 7" in run.findings[0].says
    dead = next(f for f in run.findings if f.rule == "zero-gradient")
    assert (dead.cause, dead.follows_from) == ("copies", "copies")


# --- a verdict that fits the log --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lines", "severity"), [(4, "warning"), (7, "warning"), (8, "problem")])
def test_nothing_is_a_problem_in_fewer_than_eight_lines(lines, severity):
    dead = by_rule(log(lines, grad_norm=0.0, reward=0.0))["zero-gradient"]
    assert dead.severity == severity
    assert ("too few to call it a problem" in dead.says) == (lines < 8)
    mixed = rows(lines, prompt=lambda s, g, r: f"prompt {r}")
    assert by_rule(log(lines, completions=mixed, facts={"num_generations": 4}))["mixed-groups"].severity == severity


def test_a_line_of_nan_is_named_before_anything_else(tmp_path):
    line = "step:83 - actor/kl_loss:nan - actor/entropy_loss:nan - actor/pg_loss:nan - actor/grad_norm:nan - "
    line += "critic/score/mean:-1.000 - response_length/mean:257.000 - response_length/clip_ratio:1.000\n"
    (tmp_path / "train.log").write_text(line)
    (log_,) = read_logs(tmp_path / "train.log")
    first = check(log_)[0]
    assert (first.rule, first.cause, first.severity) == ("log-damage", "not-finite", "warning")
    assert all(name in first.says for name in ("entropy", "kl", "loss"))


def test_an_entropy_that_is_never_computed_is_no_problem(tmp_path):
    lines = [{"step": n, "reward": n / 20, "loss": 0.1, "entropy": float("nan")} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (log_,) = read_logs(tmp_path / "a.jsonl")
    assert (log_damage(log_).severity, log_damage(log_).cause) == ("warning", "unreadable")


def test_a_centred_reward_of_1e_7_is_not_taken_for_a_flat_one():
    centred = 1e-7 * np.random.default_rng(0).normal(size=60) - np.linspace(0, 1e-6, 60)
    for spread in ({"reward_std": 0.9}, {}):
        made = log(reward=centred, **spread)
        assert no_learning(made).verdict == "cannot tell"
        assert collapse(made).verdict == "cannot tell"
    assert no_learning(log(reward=0.0)).verdict == "found"
