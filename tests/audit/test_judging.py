"""What the audit says of logs that it once judged wrongly: advice that harms, too short logs, causes that are open."""

import json
import re

import numpy as np
import pytest
from made_up import EQUAL, STOPPED, flat, log, rows

from workbench.audit.check import RULES, check
from workbench.audit.report import audit_run
from workbench.audit.rules_clipping import false_clipping
from workbench.audit.rules_data import log_damage
from workbench.audit.rules_ends import masked_stops, reward_is_ending, true_clipping
from workbench.audit.rules_gradient import copies, wasted_groups, zero_gradient
from workbench.audit.rules_learning import collapse, length_runaway, no_learning
from workbench.audit.rules_reward import dead_rewards, reward_parts
from workbench.logs.read import read_logs


def by_rule(made):
    return {finding.rule: finding for finding in check(made)}


# --- advice ---


def test_only_a_stop_of_one_token_goes_to_eos_token_id():
    for facts in ({}, {"stop_strings": ["</search>"]}):
        advice = false_clipping(log(**STOPPED, facts=facts)).advice
        assert "If the stop is one token" in advice
    assert "If the stop" not in false_clipping(log(**STOPPED, facts={"stop_token_ids": [7]})).advice
    for unsure in ({"stop_token_ids": [7], "eos_token_ids": (7,)}, {"stop_token_ids": [7], "stop_strings": ["</a>"]}):
        assert "If the stop is one token" in false_clipping(log(**STOPPED, facts=unsure)).advice
    masked = STOPPED | {"clipped_ratio": 0.9}
    found = masked_stops(log(**masked, facts={"mask_truncated_completions": True}))
    assert found.verdict == "found" and "If the stop is one token" in found.advice


LENGTHS = 162 * np.exp(np.linspace(0, 2.35, 56) + 0.4 * np.random.default_rng(1).normal(size=56))
SCATTER = 5 + 3 * np.random.default_rng(0).normal(size=56)


def test_lengths_that_grow_tenfold_run_away_though_they_scatter():
    found = length_runaway(log(56, mean_length=LENGTHS, reward=SCATTER))
    assert (found.verdict, found.severity) == ("found", "problem")
    assert "e+0" not in found.says


def test_growing_answers_warn_where_the_reward_may_have_risen():
    rises = 0.4 + 0.2 * np.linspace(0, 1, 20) + 0.15 * np.random.default_rng(0).normal(size=20)
    found = length_runaway(log(20, mean_length=lambda x: 10 + 90 * x, reward=rises))
    assert (found.verdict, found.severity) == ("found", "warning")  # its interval holds 0, and a rise by half
    constant = length_runaway(log(20, mean_length=lambda x: 10 + 90 * x, reward=0.5))
    falls = length_runaway(log(20, mean_length=lambda x: 10 + 90 * x, reward=lambda x: 0.5 - 0.4 * x))
    assert [constant.severity, falls.severity] == ["problem", "problem"]


@pytest.mark.parametrize("sign", [{"mean_length": LENGTHS}, {"clipped_ratio": np.linspace(0, 0.5, 56)}])
def test_nobody_who_runs_away_is_told_to_learn_faster(sign):
    assert "Raise the learning rate only where kl" in no_learning(log(56, reward=SCATTER)).advice
    assert no_learning(log(56, reward=SCATTER, **sign)).advice.startswith("Do not raise the learning rate")


def test_a_disputed_clipped_ratio_is_no_sign_of_running_away():
    lengths = {
        "clipped_ratio": 0.9,
        "mean_length": 26.0,
        "max_length": 100.0,
    }  # so many of the longest are more than the mean
    found = {f.rule: f for f in check(log(56, reward=SCATTER, **lengths))}
    assert found["false-clipping"].verdict == "found"
    assert not found["no-learning"].advice.startswith("Do not raise the learning rate")


def test_means_over_five_steps_show_the_limit_they_never_exceed():
    longest = np.r_[np.linspace(100, 3000, 50), [4096, 4096, 4090, 4096, 3900, 4096]]
    cut = {"clipped_ratio": np.where(longest > 2500, 0.4, 0.0), "mean_length": longest / 2, "max_length": longest}
    made = log(56, **cut, reward=flat, entropy=0.4)
    assert (
        false_clipping(made).verdict == "cannot tell"
    )  # each step has a line: the longest of 3,900 was cut below 4,096
    made = log(56, **cut, reward=flat, entropy=0.4)
    made.steps["step"] *= 5
    assert (false_clipping(made).verdict, true_clipping(made).verdict) == ("not found", "found")


# --- all groups equal, and no texts ---

NO_TEXTS = {"grad_norm": 0.0, "zero_std_share": 1.0, "reward": lambda share: 0.3 + 0 * share}


def test_without_texts_equal_rewards_have_copies_as_a_cause_too():
    found = by_rule(log(**NO_TEXTS))
    assert found["copies"].verdict == "cannot tell"
    dead = found["zero-gradient"]
    assert dead.is_problem and "may also be the same text" in dead.says
    assert dead.advice.startswith("Read two completions of one group") and "`seed`" in dead.advice
    assert "prompts for which some completions succeed" in dead.advice


def test_groups_that_differed_at_the_start_are_no_copies():
    later = log(**EQUAL | {"zero_std_share": np.r_[np.full(6, 0.2), np.ones(54)], "grad_norm": 0.0}, reward=flat)
    assert copies(later).verdict == "not found"
    assert "same text" not in zero_gradient(later).says


def test_a_seed_in_the_settings_is_named_as_the_cause(tmp_path):
    history = [
        {"step": n + 1, "reward": 0.1 * (n % 4), "grad_norm": 0.0, "frac_reward_zero_std": 1.0} for n in range(20)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    script = 'args = GRPOConfig(num_generations=4, generation_kwargs={"stop": ["</search>"], "seed": 7})\n'
    (tmp_path / "train.py").write_text(script)
    (run,) = audit_run(tmp_path).runs
    assert run.main == "copies" and "every request the seed 7" in run.findings[0].says
    dead = next(f for f in run.findings if f.rule == "zero-gradient")
    assert (dead.cause, dead.follows_from) == ("copies", "copies")
    for harmless in ('vllm_mode="server"', "use_vllm=False"):
        (tmp_path / "train.py").write_text(script.replace("num", f"{harmless}, num"))
        assert audit_run(tmp_path).runs[0].main == "zero-gradient (equal-rewards)"


# --- a verdict that fits the log ---


@pytest.mark.parametrize(("lines", "severity"), [(4, "warning"), (7, "warning"), (8, "problem")])
def test_nothing_is_a_problem_in_fewer_than_eight_lines(lines, severity):
    dead = by_rule(log(lines, grad_norm=0.0, reward=0.0))["zero-gradient"]
    assert dead.severity == severity
    assert ("too few to call it a problem" in dead.says) == (lines < 8)
    mixed = rows(lines, prompt=lambda s, g, r: f"prompt {r}")
    assert by_rule(log(lines, completions=mixed, facts={"num_generations": 4}))["mixed-groups"].severity == severity


def test_two_steps_of_eleven_without_a_spread_are_chance():
    spread = np.array([1.5, 1.7, 0, 1.5, 0, 1.5, 0.5, 2.0, 5.7, 1.0, 3.0])
    made = {"reward": [-17.25, -10.5, 0, -18.75, -4, -17.25, -0.5, 7.5, -3, -9, -2], "reward_std": spread}
    assert zero_gradient(log(11, **made)).verdict == "not found"
    assert zero_gradient(log(11, **made | {"reward_std": spread * (spread > 1)})).verdict == "found"


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
    assert (log_damage(log_).severity, log_damage(log_).cause) == ("warning", "not-finite")


def test_a_centred_reward_of_1e_7_is_not_taken_for_a_flat_one():
    centred = 1e-7 * np.random.default_rng(0).normal(size=60) - np.linspace(0, 1e-6, 60)
    for spread in ({"reward_std": 0.9}, {}):
        made = log(reward=centred, **spread)
        assert no_learning(made).verdict == "cannot tell"
        assert collapse(made).verdict == "cannot tell"
    assert no_learning(log(reward=0.0)).verdict == "found"


# --- which part of the reward moves ---


def of_parts(reward, **parts):
    return log(reward=reward, **{f"rewards/{name}": means for name, means in parts.items()})


def up(share):
    return 0.1 + 0.39 * share


def down(share):
    return 0.6 - 0.41 * share


def test_a_flat_total_says_which_parts_cancel():
    found = reward_parts(of_parts(lambda share: up(share) + down(share), format=up, correctness=down))
    assert (found.severity, found.cause) == ("warning", "cancel")
    assert found.says.startswith("Parts of the reward go against each other: format +0.3")
    assert "correctness -0.3" in found.says and "total shows no sure change" in found.says
    assert "reward_weights" in found.advice


def test_a_total_that_rises_by_one_part_alone_says_so():
    made = of_parts(lambda share: up(share) + 0.5, polite=up, humour=lambda share: 0.5 + 0 * share, strict=0.0)
    found = reward_parts(made)
    assert (found.verdict, found.severity) == ("found", "note")
    assert found.says.startswith("Only polite rises: polite +0.3")
    assert "humour no sure change" in found.says and "strict 0 in every step, never earned" in found.says
    assert dead_rewards(made).evidence["constant"] == {"strict": 0.0}


def test_a_part_that_moves_under_a_noisy_total_is_named():
    noisy = 5 * np.random.default_rng(0).normal(size=60)
    found = reward_parts(of_parts(noisy + up(np.linspace(0, 1, 60)), format=up, answer=noisy))
    assert found.says.startswith("Only format rises, which the total hides")


@pytest.mark.parametrize(("weight", "expected"), [(0.0, "not found"), (0.0015, "warning")])
def test_a_function_of_weight_0_is_no_part_of_the_reward(weight, expected):
    made = of_parts(up, accuracy=lambda share: 2 * up(share), tokens=lambda share: 300 - 200 * share)
    made.steps["reward"] = 0.5 * made.steps["rewards/accuracy"] + weight * made.steps["rewards/tokens"]
    found = reward_parts(made)
    assert expected in (found.verdict, found.severity)
    assert ("tokens -1.6e+02 (weight 0.0015)" in found.says) == bool(weight)


def test_parts_that_all_rise_are_not_mentioned():
    assert reward_parts(of_parts(up, format=up, answer=up)).verdict == "not found"


def test_the_parts_are_read_from_a_log(tmp_path):
    rows_ = [
        {"Step": n, "reward": 0.5, "rewards / xml_format / mean": n / 30, "rewards / xml_format / std": 0.1}
        | {"rewards / answer / mean": 0.5 - n / 30}
        for n in range(1, 31)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_))
    (made,) = read_logs(tmp_path / "log.jsonl")
    assert list(made.parts) == ["xml_format", "answer"]
    assert set(reward_parts(made).evidence["rise"]) == {"xml_format"}


# --- wasted groups ---


def test_wasted_groups_are_counted_where_no_step_is_wholly_dead():
    share = np.tile([0.5, 0.75, 0.6], 20)
    found = by_rule(
        log(reward=0.5 + 0.01 * np.sin(np.arange(60) * 7.0), zero_std_share=share, grad_norm=0.3, step_time=10.0)
    )
    wasted = found["wasted-groups"]
    assert (found["zero-gradient"].verdict, wasted.verdict, wasted.severity) == ("not found", "found", "warning")
    assert "62% of the groups" in wasted.says and "samples 2.6 completions for each" in wasted.says
    assert wasted.cost == {"share of groups": pytest.approx(0.617, abs=1e-3), "seconds": pytest.approx(370)}
    assert "never solved" in wasted.advice and "mostly solved" in wasted.advice


@pytest.mark.parametrize(("slope", "word", "advice"), [(-0.4, "hard", "never solved"), (0.4, "easy", "mostly solved")])
def test_step_rewards_separate_too_hard_from_too_easy_groups(slope, word, advice):
    share = np.tile([0.25, 0.75, 0.5, 1.0], 15)
    reward = 0.5 + slope * share + 0.02 * np.random.default_rng(0).normal(size=60)
    found = wasted_groups(log(reward=reward, zero_std_share=share))
    assert f"most are too {word}" in found.says and found.advice.startswith(f"For prompts that are {advice}")
    assert found.advice.count("For") == 1


def test_completions_tell_too_hard_groups_from_too_easy_ones():
    half = rows(reward=lambda s, g, r: (0.0, 0.0, 1.0, float(r % 2))[g])
    found = wasted_groups(log(completions=half, facts={"num_generations": 4}))
    assert "In 50% of all groups every completion has the lowest reward, in 25% the highest" in found.says
    assert found.cost["completions"] == 720


def test_few_equal_groups_are_not_mentioned():
    assert wasted_groups(log(zero_std_share=0.2)).verdict == "not found"
    assert wasted_groups(log(reward=flat)).verdict == "cannot tell"


def test_the_best_of_negative_rewards_is_not_called_too_easy():
    share = np.linspace(0, 1, 60)
    reward = -0.11 + 0.01 * share + 0.0005 * np.random.default_rng(0).normal(size=60)
    found = wasted_groups(log(reward=reward, zero_std_share=share))
    assert "too easy" not in found.says and "never solved" in found.advice and "mostly solved" in found.advice


# --- which steps are dead ---


def test_updates_on_the_same_completions_are_dead_as_the_first():
    first = np.arange(60) % 4 == 0  # num_iterations=4: TRL logs rewards with the first update alone
    dead = np.arange(60) // 4 % 2 == 0
    metrics = {"zero_std_share": np.where(first, dead, np.nan), "reward": np.where(first, 0.1 + 0.1 * ~dead, np.nan)}
    found = zero_gradient(log(**metrics, grad_norm=0.1, kl=0.01))
    assert found.cause == "equal-rewards" and found.evidence["steps"] == 32


def test_a_loss_that_is_often_exactly_zero_is_named():
    noise = np.round(3 * np.random.default_rng(0).normal(size=60), 4)
    found = zero_gradient(log(loss=np.where(np.arange(60) % 2, noise, 0.0), reward=flat))
    assert found.cause == "zero-loss" and found.evidence["steps"] == 30


@pytest.mark.parametrize("more", [{}, {"kl": 0.1}, {"grad_norm": 0.3}])
def test_a_loss_that_is_rounded_to_zero_shows_nothing(more):
    small = np.round(0.001 * np.random.default_rng(0).normal(size=60), 4 if not more else 9)
    small[::2] = 0.0
    assert zero_gradient(log(loss=small, reward=flat, **more)).verdict != "found"


def test_ends_below_the_longest_show_where_others_were_cut():
    ended = np.where(np.arange(20) % 4 == 0, 1200.0, 0.0)
    cut = {"clipped_ratio": np.where(ended > 0, 0.95, 1.0), "mean_length": np.where(ended > 0, 5760.0, 6000.0)}
    assert true_clipping(log(20, **cut, max_length=6000.0, reward=0.0)).verdict == "cannot tell"
    found = true_clipping(log(20, **cut, max_length=6000.0, reward=0.0, mean_terminated_length=ended))
    assert (found.verdict, found.severity) == ("found", "problem")


# --- the reward is the ending ---

# The first steps of runs of arvindcr4/tinker-rl-lab (Apache-2.0, manifests/ARM-seed-N.json): truncated shares and rewards.
GRPO_37 = (
    [0.1875, 0.5625, 0, 0.375, 0.0625, 0.375, 0.875, 0.25, 0.5, 0.4375, 0.25, 0.375, 0.1875],
    [0.8125, 0.4375, 1, 0.6875, 0.9375, 0.75, 0.1875, 0.75, 0.5, 0.5625, 0.75, 0.625, 0.8125],
)
DRGRPO_53 = (
    [0.4375, 0.5625, 0.5, 0, 0.3125, 0.8125, 0.4375, 0, 0.1875, 0.3125, 0.1875, 0.375, 0.375, 0.125, 0.25],
    [0.5625, 0.4375, 0.5, 1, 0.6875, 0.4375, 0.625, 1, 0.875, 0.6875, 0.8125, 0.625, 0.625, 0.875, 0.75],
)
DAPO_107 = (  # the lengths are of a step's first batch, the reward is of the groups that DAPO keeps
    [0.1875, 0.5625, 0.125, 0.375, 0.5, 0.375, 0.0625, 0.3125, 0.75, 0.3125, 0.25, 0, 0.0625],
    [0.5, 0.625, 0.375, 0.5, 0.625, 0.5625, 0.625, 0.375, 0.375, 0.6875, 0.375, 0.4375, 0.625],
)


def endings(cut, reward, **more):
    return log(len(cut), clipped_ratio=cut, reward=reward, mean_length=700.0, max_length=1024.0, **more)


@pytest.mark.parametrize(("run", "alike"), [(GRPO_37, "10 of 13"), (DRGRPO_53, "12 of 15")])
def test_a_reward_that_is_the_share_that_ended_is_named(run, alike):
    found = reward_is_ending(endings(*run))
    assert (found.verdict, found.severity) == ("found", "warning")
    assert found.evidence["correlation of changes"] < -0.95 and f"In {alike} steps" in found.says


def test_a_reward_that_goes_its_own_way_is_none():
    assert reward_is_ending(endings(*DAPO_107)).verdict == "not found"
    cut, reward = (np.array(values) for values in GRPO_37)
    assert reward_is_ending(endings(cut / 10, reward)).verdict == "not found"  # 3% truncated
    assert reward_is_ending(endings(cut[:9], reward[:9])).verdict == "cannot tell"


# --- the headline, and what was not checked ---


def test_the_headline_is_no_all_clear_over_steps_without_effect(tmp_path):
    dead = np.arange(60) % 5 > 0
    rows_ = [
        {"step": n + 1, "reward": 0.2 + n / 100, "grad_norm": 0.0 if dead[n] else 0.3}
        | {"frac_reward_zero_std": 1.0 if dead[n] else 0.0}
        for n in range(60)
    ]
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_))
    one, both = audit_run(tmp_path / "a.jsonl"), audit_run(tmp_path)
    assert one.problems == []
    assert str(one).splitlines()[0].startswith(f"{tmp_path / 'a.jsonl'}: in 80% of the steps rewards teach nothing, ")
    assert [line.split()[1] for line in str(both).splitlines()[1:3]] == ["warning", "warning"]


def test_report_ends_with_one_line_about_what_it_cannot_tell(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"step": {n}, "reward": {n / 20}}}\n' for n in range(20)))
    _, *rest = str(audit_run(tmp_path / "a.jsonl")).splitlines()
    text = " ".join(" ".join(rest).split())
    assert re.match(
        rf"checked \d+ of {len(RULES)} rules; this log has rewards\. With --model MODEL \d+ more and with", text
    )
    assert text.endswith("more could speak; --json has what each rule lacks") and len(rest) <= 3


def test_the_line_counts_the_rules_that_a_setting_lets_speak(tmp_path):
    rows_ = [{"step": n, "critic/score/mean": n / 20, "critic/rewards/mean": n / 20} for n in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_))
    text = " ".join(str(audit_run(tmp_path / "a.jsonl")).split())
    (silent,) = (
        [f for f in run.findings if f.verdict == "cannot tell"] for run in audit_run(tmp_path / "a.jsonl").runs
    )
    needs = [f"{f.by.needs} {f.advice}" for f in silent]
    asked = [
        text for text in needs if re.search(r"completions\b(?!/)|rollout_data_dir", text) and "--model" not in text
    ]
    assert f"and with trainer.rollout_data_dir=FOLDER and --completions FOLDER {len(asked)} more" in text


def test_a_fall_from_a_peak_is_seen_in_a_smoothed_curve():
    hill = np.r_[np.linspace(0, 1, 60), np.linspace(1, 0.1, 60)] + 0.02 * np.random.default_rng(0).normal(size=120)
    found = collapse(log(120, reward=hill))
    assert (found.verdict, found.cause) == ("found", "reward")
