import numpy as np
import pandas as pd
import pytest
from made_up import falling, flat, log, rising, rows

from workbench.audit import rules_clipping, rules_data, rules_ends, rules_gradient, rules_learning, rules_sampler
from workbench.audit.check import RULES, check
from workbench.curves.documented import load_baseline

PUBLISHED = np.repeat(load_baseline("unsloth-llama3.1-8b-gsm8k-grpo").curve().y, 5)  # a point is the mean of five steps

STOPPED = {
    "clipped_ratio": 1.0,
    "mean_length": 7.0,
    "max_length": 9.0,
}  # a stop string, read as a cut
CUT = {"clipped_ratio": 0.6, "mean_length": 50.0, "max_length": 64.0}
LIMIT = {"max_completion_length": 64}
MASKED = np.tile([0.0, 0.0, 0.0, 0.4], 15)  # gradients; a step has one where a row of it ended in EOS
MASKS = STOPPED | {"clipped_ratio": np.where(MASKED == 0, 1.0, 0.9), "grad_norm": MASKED, "zero_std_share": 0.1}
EQUAL = {"grad_norm": 0.0, "zero_std_share": 1.0}
UNIT = {"name": "a documented run", "low": 0.0, "high": 1.0, "unit": "share"}
GPT2 = {"model_type": "gpt2"}
SIZE = {"num_generations": 4}
UNEQUAL = rows(prompt=lambda s, g, r: "a prompt " * (g + 1))
LONG = rows(prompt=lambda s, g, r: "one length", reward=lambda s, g, r: float(r % 2))

# rule, a log that shows it, a log that does not, a log that cannot tell
CASES = [
    (
        rules_clipping.false_clipping,
        log(**STOPPED),
        log(**CUT, facts=LIMIT),
        log(clipped_ratio=1.0, mean_length=7, max_length=7),
    ),
    (
        rules_ends.masked_stops,
        log(**MASKS),
        log(**STOPPED, grad_norm=0.4, zero_std_share=0.1),
        log(**STOPPED),
    ),
    (
        rules_ends.true_clipping,
        log(**CUT, facts=LIMIT, reward=flat),
        log(**(CUT | {"clipped_ratio": 0.05}), facts=LIMIT, reward=flat),
        log(clipped_ratio=1.0, mean_length=7, max_length=7, reward=flat),
    ),
    (
        rules_ends.never_stops,
        log(eos_tokens=180, episodes=16 * np.arange(1, 61), facts={"pad_token_id": 0, "eos_token_ids": [1]}),
        log(eos_tokens=15, episodes=16 * np.arange(1, 61)),
        log(reward=flat),
    ),
    (
        rules_ends.added_token,
        log(facts={"eos_token_ids": [1, 500], "tokenizer_ids": frozenset(range(400))}),
        log(facts={"eos_token_ids": [1], "tokenizer_ids": frozenset(range(400))}),
        log(facts={"eos_token_ids": [1]}),
    ),
    (
        rules_gradient.copies,
        log(completions=rows(text=lambda s, g, r: f"{s} {g}"), facts=SIZE, entropy=0.4),
        log(completions=rows(), facts=SIZE, entropy=0.4),
        log(zero_std_share=1.0),
    ),
    (rules_gradient.zero_gradient, log(**EQUAL), log(grad_norm=0.4, zero_std_share=0.3), log(reward=flat)),
    (rules_sampler.stale_sampler, log(logp_difference=lambda x: 0.2 * x), log(logp_difference=0.01), log(reward=flat)),
    (rules_sampler.mismatch, log(logp_difference=0.3), log(logp_difference=0.01), log(reward=flat)),
    (
        rules_sampler.padding_positions,
        log(completions=UNEQUAL, facts=GPT2),
        log(completions=UNEQUAL, facts={"model_type": "qwen2", "rotary": True}),
        log(facts=GPT2),
    ),
    (rules_learning.no_learning, log(reward=flat), log(reward=rising), log(steps=5, reward=flat)),
    (rules_learning.collapse, log(reward=falling), log(reward=rising), log(mean_length=3.0)),
    (
        rules_learning.length_runaway,
        log(mean_length=lambda x: 10 + 90 * x, reward=flat),
        log(mean_length=lambda x: 10 + 90 * x, reward=rising),
        log(mean_length=lambda x: 10 + 90 * x),
    ),
    (
        rules_learning.solved,
        log(reward=np.r_[0.5, np.full(59, 0.99)], facts={"reward_highest": 1.0}),
        log(reward=rising, facts={"reward_highest": 1.0}),
        log(reward=0.99),
    ),
    (
        rules_learning.kl_runaway,
        log(kl=lambda share: 0.01 + 3 * share**2, reward=flat),
        log(kl=lambda share: 0.01 + 3 * share**2, reward=rising),
        log(reward=flat),
    ),
    (
        rules_learning.spikes,
        log(grad_norm=[0.5] * 30 + [900.0] + [0.4] * 29),
        log(grad_norm=[0.5] * 30 + [9.0] + [0.4] * 29),
        log(reward=flat),
    ),
    (rules_data.documented_run, log(250, reward=PUBLISHED), log(250, reward=PUBLISHED + 0.01), None),
    (
        rules_gradient.false_zero_std,
        log(zero_std_share=0.0, grad_norm=np.arange(60) % 2, learning_rate=1e-5, clipped_ratio=0.1),
        log(zero_std_share=np.arange(60) % 2, grad_norm=0.3, learning_rate=1e-5, clipped_ratio=0.1),
        log(zero_std_share=0.0, grad_norm=0.0, learning_rate=1e-5, clipped_ratio=0.1),
    ),
    (
        rules_data.dead_rewards,
        log(facts={"reward_functions": 2, "constant_rewards": {"match": 0.0}}),
        log(facts={"reward_functions": 2, "constant_rewards": {}}),
        log(),
    ),
    (rules_data.log_damage, log(order=[1, 2, 3, 4, 2, 3, 4, 5, 9]), log(), None),
    (
        rules_data.mixed_groups,
        log(completions=rows(prompt=lambda s, g, r: f"prompt {r}"), facts=SIZE),
        log(completions=rows(), facts=SIZE),
        log(completions=rows(prompt=lambda s, g, r: f"prompt {r}")),
    ),
    (
        rules_data.reward_scale,
        log(reward=-30.0, facts={"documented": UNIT}),
        log(reward=rising, facts={"documented": UNIT}),
        log(reward=rising),
    ),
    (
        rules_data.duplicate_prompts,
        log(completions=rows(prompt=lambda s, g, r: f"prompt {g % 2}"), facts=SIZE),
        log(completions=rows(), facts=SIZE),
        log(),
    ),
    (
        rules_data.missing_rewards,
        log(completions=rows(reward=lambda s, g, r: None if r == 2 else 1.0)),
        log(completions=LONG),
        log(mean_length=3.0),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_each_rule_finds_its_fault_leaves_a_healthy_log_alone_and_says_when_it_cannot_tell(case):
    rule, shows, healthy, open_ = case
    found = rule(shows)
    assert found.verdict == "found"
    assert found.says and found.advice
    assert rule(healthy).verdict == "not found"
    if open_ is not None:
        undecided = rule(open_)
        assert undecided.verdict == "cannot tell"
        assert undecided.advice, "it has to say what would decide it"


def test_every_rule_has_a_case():
    assert {case[0] for case in CASES} == set(RULES)


# --- counter-examples: what looks like the fault and is none ---------------------------------------------------------


def test_rows_that_are_really_cut_are_never_called_falsely_clipped():
    limits = np.repeat([64.0, 256.0], 30)  # a limit raised in the middle of the run
    raised = log(clipped_ratio=0.9, mean_length=0.95 * limits, max_length=limits)
    assert rules_clipping.false_clipping(raised).verdict != "found"
    averaged = log(clipped_ratio=0.1, mean_length=12.0, max_length=40.5, facts=LIMIT)  # means over ten steps
    assert rules_clipping.false_clipping(averaged).verdict != "found"
    averaged.steps["step"] *= 10
    averaged.steps["max_length"] = 40.0  # by chance a whole number
    assert rules_clipping.false_clipping(averaged).verdict != "found"
    rounded = log(clipped_ratio=1.0, mean_length=63.98, max_length=64.0, facts=LIMIT)
    assert rules_clipping.false_clipping(rounded).verdict == "not found"


def test_lengths_without_the_words_of_tools_do_not_make_clipping_false():
    assert rules_clipping.false_clipping(log(**STOPPED, tool_calls=1.0)).verdict == "cannot tell"


def test_the_limit_or_the_stop_string_decides_what_lengths_alone_leave_open():
    alike = {"clipped_ratio": 1.0, "mean_length": 7.0, "max_length": 7.0}
    assert rules_clipping.false_clipping(log(**alike)).verdict == "cannot tell"
    assert rules_clipping.false_clipping(log(**alike, facts=LIMIT)).verdict == "found"
    assert rules_clipping.false_clipping(log(**alike, facts={"max_completion_length": 7})).verdict == "not found"
    texts = rows(text=lambda s, g, r: f"<search>{s}{g}{r}</search>")
    stops = {"stop_strings": ["</search>"]}
    assert rules_clipping.false_clipping(log(**alike, completions=texts, facts=stops)).verdict == "found"
    assert rules_clipping.false_clipping(log(**alike, completions=rows(), facts=stops)).verdict == "cannot tell"


def test_stops_that_only_look_clipped_are_a_warning_and_masked_ones_a_problem():
    assert rules_clipping.false_clipping(log(**STOPPED)).severity == "warning"
    assert rules_ends.masked_stops(log(**MASKS)).severity == "problem"


def test_steps_whose_rewards_are_equal_are_no_sign_of_a_mask():
    alike = log(**STOPPED, grad_norm=MASKED, zero_std_share=np.where(MASKED == 0, 1.0, 0.0))
    assert rules_ends.masked_stops(alike).verdict == "not found"  # a full step had a gradient
    assert rules_gradient.zero_gradient(alike).cause == "equal-rewards"


def test_high_clipping_that_still_learns_is_no_problem():
    assert rules_ends.true_clipping(log(**CUT, facts=LIMIT, reward=rising)).severity == "warning"
    assert rules_ends.true_clipping(log(**CUT, facts=LIMIT, reward=flat)).severity == "problem"


@pytest.mark.parametrize(
    ("metrics", "cause"),
    [
        ({"grad_norm": 0.0, "zero_std_share": 0.2, "clipped_ratio": 1.0}, "masked"),
        ({"grad_norm": 0.0, "zero_std_share": 1.0}, "equal-rewards"),
        ({"grad_norm": 0.0, "zero_std_share": 0.2, "clip_region": 1.0}, "clip"),
        ({"grad_norm": 0.31234, "learning_rate": 0.0}, "learning-rate"),
        ({"grad_norm": 0.0, "zero_std_share": 0.2}, "unknown"),
    ],
)
def test_a_zero_gradient_is_told_by_its_cause(metrics, cause):
    found = rules_gradient.zero_gradient(log(**metrics))
    assert (found.verdict, found.cause) == ("found", cause)


def test_a_zero_gradient_of_a_solved_task_is_no_problem():
    rewards = {"reward": 1.0, "facts": {"reward_highest": 1.0}}
    assert rules_gradient.zero_gradient(log(**EQUAL, **rewards)).severity == "note"
    assert rules_gradient.zero_gradient(log(**EQUAL, **(rewards | {"reward": 0.0}))).severity == "problem"
    late = {"grad_norm": np.repeat([0.3, 0.0], 30), "zero_std_share": np.repeat([0.2, 1.0], 30)}
    climbs = np.minimum(np.linspace(0.2, 1.8, 60), 1.0)  # what the reward can reach is not known here
    assert [f.rule for f in check(log(**late, reward=climbs)) if f.is_problem] == []
    drops = log(**late, reward=np.repeat([0.3, 0.0], 30))
    assert "zero-gradient" in [f.rule for f in check(drops) if f.is_problem]


def test_a_policy_that_learned_one_answer_does_not_copy():
    learned = rows(text=lambda s, g, r: f"{s} {g} {r if s < 30 else 0}")
    assert rules_gradient.copies(log(completions=learned, facts=SIZE, entropy=0.4)).verdict == "not found"
    sure = rows(text=lambda s, g, r: f"{s} {g}")
    assert rules_gradient.copies(log(completions=sure, facts=SIZE, entropy=0.001)).verdict == "cannot tell"


def test_entropy_that_falls_while_the_reward_rises_is_learning():
    entropy = {"entropy": lambda x: np.exp(-9 * x)}
    assert rules_learning.collapse(log(**entropy, reward=rising)).verdict == "not found"
    stuck = log(entropy=np.exp(-9 * np.linspace(0, 1, 60)), reward=flat)
    assert (rules_learning.collapse(stuck).verdict, rules_learning.collapse(stuck).cause) == ("found", "entropy")


def test_a_reward_that_rises_and_then_falls_is_a_collapse():
    peak = log(steps=100, reward=lambda x: np.where(x < 0.5, 0.2 + 1.2 * x, 0.8 - 1.1 * (x - 0.5)))
    assert rules_learning.collapse(peak).verdict == "found"


def test_an_entropy_of_steps_whose_tokens_were_all_masked_is_not_taken_for_a_collapse():
    masked = log(**MASKS, entropy=np.where(MASKED == 0, 0.0, 0.4), reward=flat)
    found = {f.rule: f for f in check(masked) if f.verdict == "found"}
    assert "masked-stops" in found and "collapse" not in found
    assert found["zero-gradient"].follows_from == "masked-stops"


def test_a_difference_that_is_large_all_along_is_no_stale_sampler_and_a_growing_one_is_named_by_it():
    assert rules_sampler.stale_sampler(log(logp_difference=0.3)).verdict == "cannot tell"
    noisy = log(logp_difference=lambda x: 0.3 + 0 * x)
    assert rules_sampler.stale_sampler(noisy).verdict == "not found"
    growing = {f.rule: f for f in check(log(logp_difference=lambda x: 0.5 * x))}
    assert growing["mismatch"].follows_from == "stale-sampler"


def test_what_the_dtype_explains_is_no_mismatch():
    small = {"logp_difference": 0.03}
    assert rules_sampler.mismatch(log(**small, facts={"dtype": "bfloat16"})).verdict == "not found"
    assert rules_sampler.mismatch(log(**small, facts={"dtype": "float32"})).verdict == "cannot tell"
    assert rules_sampler.mismatch(log(logp_difference=0.001, facts={"dtype": "float32"})).verdict == "not found"


@pytest.mark.parametrize(
    ("order", "cause"),
    [
        ([*range(1, 30), *range(1, 30)], "two-runs"),
        ([1, 2, 3, 3, 4], "twice"),
        ([1, 3, 2, 4], "order"),
        ([1, 2, 3, 9, 10], "missing"),
        ([1, 10, 20, 30, 40], ""),
    ],
)
def test_damage_is_told_apart(order, cause):
    found = rules_data.log_damage(log(order=order))
    assert found.cause == cause
    assert found.verdict == ("found" if cause else "not found")


def test_groups_told_by_their_prompts_alone_are_no_proof_and_advantages_are():
    pairs = rows(advantage=lambda s, g, r: (1.0, -1.0, 1.0, -1.0)[r])
    assert rules_data.mixed_groups(log(completions=pairs)).verdict == "not found"
    assert rules_data.mixed_groups(log(completions=rows())).verdict == "cannot tell"
    halves = rows(advantage=lambda s, g, r: 1.0 if g % 2 else -1.0)  # groups of 8, each with two prompts
    assert rules_data.mixed_groups(log(completions=halves)).verdict == "cannot tell"
    assert rules_data.mixed_groups(log(completions=halves, facts={"num_generations": 8})).verdict == "found"


def test_prompts_of_one_length_are_not_padded():
    assert rules_sampler.padding_positions(log(completions=LONG, facts=GPT2)).verdict == "not found"


# --- counter-examples that real runs gave -----------------------------------------------------------------------------


def test_steps_that_use_completions_once_more_have_no_missing_reward():
    twice = np.where(np.arange(60) % 2, np.nan, 0.5)  # num_iterations=2
    again = log(reward=twice, mean_length=twice)
    assert rules_data.missing_rewards(again).verdict == "cannot tell"  # means of steps hide rows without one
    assert rules_data.missing_rewards(log(reward=twice, mean_length=7.0)).verdict == "found"
    dead = log(reward=twice, mean_length=twice, grad_norm=0.0, zero_std_share=np.where(np.arange(60) % 2, np.nan, 1.0))
    assert rules_gradient.zero_gradient(dead).evidence["steps by cause"] == {"equal-rewards": 60}


def test_numbers_that_are_no_numbers_are_named_and_a_rare_one_is_damage_alone():
    lost = log(reward=flat, loss=np.where(np.arange(60) < 40, 0.1, np.nan))
    assert (rules_data.log_damage(lost).cause, rules_data.log_damage(lost).severity) == ("not-finite", "problem")
    assert rules_data.log_damage(lost).steps == tuple(range(41, 61))
    once = log(reward=flat, loss=np.where(np.arange(60) == 9, np.nan, 0.1))
    assert rules_data.log_damage(once).verdict == "not found"
    infinite = log(reward=np.where(np.arange(60) % 5, 0.5, np.nan), damage=["reward is infinite in 12 of 60 steps"])
    assert rules_data.log_damage(infinite).cause == "not-finite"
    assert rules_data.missing_rewards(infinite).verdict == "cannot tell"


def test_a_gradient_or_an_entropy_in_a_step_of_clipped_rows_shows_that_none_is_masked():
    alive = log(**STOPPED, grad_norm=MASKED, zero_std_share=0.1)
    assert rules_ends.masked_stops(alive).verdict == "not found"
    alike = {"grad_norm": 0.0, "zero_std_share": 1.0}  # rewards are equal, so the gradient tells nothing
    assert rules_ends.masked_stops(log(**STOPPED, **alike)).verdict == "cannot tell"
    assert rules_ends.masked_stops(log(**STOPPED, **alike, entropy=0.4)).verdict == "not found"
    assert rules_ends.masked_stops(log(**STOPPED, **alike, entropy=0.0)).verdict == "found"


def test_the_entropy_of_completions_of_one_token_tells_nothing_of_a_mask():
    one = STOPPED | {
        "mean_length": 1.0,
        "max_length": 1.0,
        "entropy": 4.6,
    }  # a mean over masked rows
    facts = LIMIT | {"mask_truncated_completions": True}
    assert rules_ends.masked_stops(log(**one, grad_norm=0.0, zero_std_share=0.1, facts=facts)).verdict == "found"


def test_rows_of_one_length_are_cut_where_their_texts_end_in_many_ways_or_differ_much():
    alike = {"clipped_ratio": 1.0, "mean_length": 32.0, "max_length": 32.0}
    calls = rows(text=lambda s, g, r: f"<search>{s}</search>")
    texts = rows(text=lambda s, g, r: f"{'abcdefghijkl'[(s + g + r) % 12]}")
    assert rules_ends.never_stops(log(**alike)).cause == "all-cut"
    assert rules_ends.never_stops(log(**alike, completions=calls)).cause == "all-cut"
    assert rules_ends.never_stops(log(**alike, completions=texts)).severity == "problem"
    assert rules_ends.never_stops(log(**alike, entropy=0.5)).severity == "problem"
    ended = np.where(np.arange(60) == 30, 0.9, 1.0)  # some rows stop, so the sampler can
    assert rules_ends.never_stops(
        log(**(alike | {"clipped_ratio": ended}), facts={"max_completion_length": 32})
    ).verdict == ("not found")


def test_ppo_s_eos_tokens_may_be_padding():
    counts = {"eos_tokens": 180, "episodes": 16 * np.arange(1, 61)}
    for facts in ({}, {"pad_token_id": 1, "eos_token_ids": [1]}):
        assert rules_ends.never_stops(log(**counts, facts=facts)).verdict == "cannot tell"
    ppo = log(**counts, completions=UNEQUAL, facts=GPT2)
    assert rules_sampler.padding_positions(ppo).verdict == "not found"  # TRL's PPO passes position ids
    assert rules_gradient.copies(ppo).verdict == "not found"


def test_texts_of_the_last_of_several_steps_do_not_contradict_their_mean():
    texts = rows(text=lambda s, g, r: "<search>a</search>")
    several = log(clipped_ratio=0.5, completions=texts, facts={"stop_strings": ["</search>"]})
    assert rules_clipping.false_clipping(several).verdict == "found"
    several.steps["step"] *= 5
    assert rules_clipping.false_clipping(several).verdict == "cannot tell"


def test_advantages_show_groups_where_no_prompt_stands_twice():
    shuffled = rows(prompt=lambda s, g, r: f"{s} {g} {r}", advantage=lambda s, g, r: (1.5, -0.5, -0.5, -0.5)[r])
    found = rules_data.mixed_groups(log(completions=shuffled))
    assert (found.verdict, found.evidence["num_generations"]) == ("found", 4)


def test_a_policy_that_is_sure_of_short_answers_is_not_called_a_copier():
    short = {"completions": rows(text=lambda s, g, r: "yes"), "facts": SIZE, "entropy": 0.1}
    assert rules_gradient.copies(log(**short, mean_length=2.0)).verdict == "cannot tell"
    assert rules_gradient.copies(log(**short, mean_length=50.0)).verdict == "found"


def test_steps_without_gradient_in_a_run_that_learns_are_a_warning():
    some = {"grad_norm": np.tile([0.0, 0.4], 30), "zero_std_share": np.tile([1.0, 0.2], 30)}
    assert rules_gradient.zero_gradient(log(**some, reward=rising)).severity == "warning"
    low = np.where(np.tile([True, False], 30), 0.0, 0.3)
    assert rules_gradient.zero_gradient(log(**some, reward=low)).severity == "problem"


@pytest.mark.parametrize(
    ("ratios", "facts", "cause"),
    [
        ({"ratio_max": 1.0, "ratio_mean": 0.6}, {}, "truncated-sampling"),
        ({"ratio_max": 2.5, "ratio_mean": 0.9}, {}, "constant"),
        ({"ratio_max": 2.5, "ratio_mean": 0.9}, GPT2, "positions"),
        ({}, {}, "constant"),
    ],
)
def test_a_mismatch_is_told_by_its_cause(ratios, facts, cause):
    found = rules_sampler.mismatch(log(logp_difference=0.3, **ratios, completions=UNEQUAL, facts=facts))
    assert (found.verdict, found.cause) == ("found", cause)


def test_top_p_shows_below_what_a_dtype_explains_and_rounding_is_not_taken_for_it():
    small = {"logp_difference": 0.02}
    found = rules_sampler.mismatch(log(**small, ratio_max=1.0, ratio_mean=0.9))
    assert (found.verdict, found.cause, found.severity) == ("found", "truncated-sampling", "warning")
    assert rules_sampler.mismatch(log(**small, ratio_max=1.05, ratio_mean=1.0)).verdict == "not found"
    assert rules_sampler.mismatch(log(logp_difference=1e-7, ratio_max=1.0, ratio_mean=1.0)).verdict == "not found"


def test_a_sampler_that_is_left_behind_at_once_is_stale_too():
    soon = np.minimum(np.arange(60) * 0.1, 0.5) + 1e-7
    assert rules_sampler.stale_sampler(log(logp_difference=soon)).verdict == "found"
    small = 1e-7 + np.linspace(0, 2e-3, 60)  # grown twenty thousand times
    assert rules_sampler.stale_sampler(log(logp_difference=small)).verdict == "found"


def test_prompts_are_counted_in_tokens_where_the_tokenizer_is_there(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 0, "longer": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    facts = GPT2 | {"tokenizer_file": str(tmp_path / "tokenizer.json")}

    def verdict(second, facts):
        prompts = rows(prompt=lambda s, g, r: second if g else "a a")
        return rules_sampler.padding_positions(log(completions=prompts, facts=facts)).verdict

    assert [verdict("a longer", facts), verdict("a a a", facts)] == ["not found", "found"]
    assert [verdict("a aa", GPT2), verdict("a a a a a", GPT2)] == ["cannot tell", "found"]


def test_an_entropy_that_explodes_while_the_reward_is_lost_is_a_collapse_and_explains_the_dead_steps():
    lost = {"reward": np.r_[0.2, np.zeros(59)], "reward_std": np.r_[0.4, np.zeros(59)]}
    dead = {"grad_norm": np.r_[0.4, np.zeros(59)], "zero_std_share": np.r_[0.2, np.ones(59)]}
    found = {f.rule: f for f in check(log(**lost, **dead, entropy=np.r_[0.4, np.full(59, 4.0)]))}
    assert (found["collapse"].verdict, found["collapse"].cause) == ("found", "diverged")
    assert found["zero-gradient"].follows_from == "collapse"
    explores = log(reward=0.5, reward_std=0.3, entropy=np.linspace(0.4, 4.0, 60))
    assert rules_learning.collapse(explores).verdict == "not found"


def test_an_entropy_alone_is_no_collapse():
    assert rules_learning.collapse(log(entropy=np.exp(-9 * np.linspace(0, 1, 60)))).verdict == "cannot tell"


def test_rewards_that_are_compared_within_their_batch_are_not_called_constant():
    assert rules_learning.no_learning(log(reward=0.5, reward_std=0.3)).verdict == "cannot tell"
    assert rules_learning.no_learning(log(reward=0.5, reward_std=0.0)).cause == "constant"


def test_what_grows_after_a_task_is_solved_is_no_problem():
    top = {"reward": 1.0, "facts": {"reward_highest": 1.0} | LIMIT}
    assert rules_learning.length_runaway(log(mean_length=lambda x: 10 + 50 * x, **top)).severity == "warning"
    assert rules_ends.true_clipping(log(**CUT, **top)).severity == "warning"


def test_a_limit_below_the_longest_completion_is_another_run_s():
    cut = {"clipped_ratio": 0.5, "mean_length": 20.0, "max_length": np.tile([30.0, 32.0], 30)}
    assert (
        rules_clipping.false_clipping(log(**cut, facts={"max_completion_length": 32})).verdict == "found"
    )  # 30 is no limit
    assert rules_clipping.false_clipping(log(**cut, facts={"max_completion_length": 8})).verdict == "cannot tell"


def test_a_difference_of_probabilities_is_no_difference_of_log_probs():
    assert rules_sampler.mismatch(log(probability_difference=0.01)).verdict == "cannot tell"
    assert rules_sampler.mismatch(log(probability_difference=0.2)).verdict == "found"
    assert rules_sampler.stale_sampler(log(probability_difference=lambda x: 0.2 * x)).verdict == "found"


def test_steps_without_a_token_to_compare_are_no_agreement_of_sampler_and_scorer():
    none_yet = np.r_[0.0, np.full(59, 0.03)]  # TRL logs 0 where every row of the step was masked
    assert rules_sampler.stale_sampler(log(logp_difference=none_yet)).verdict != "found"
    assert rules_sampler.stale_sampler(log(logp_difference=0.0)).verdict == "cannot tell"


def test_ratios_of_long_completions_are_small_with_any_mismatch_and_only_smaller_ones_are_top_p():
    long = {"logp_difference": 0.09, "mean_length": 2000, "ratio_max": 1e-3, "ratio_mean": 1e-4}
    assert rules_sampler.mismatch(log(**long)).cause == "constant"
    assert rules_sampler.mismatch(log(**long, ratio_min=1e-9)).cause == "constant"  # an engine in a coarser dtype
    assert rules_sampler.mismatch(log(**(long | {"logp_difference": 0.02}), ratio_min=1e-20)).cause == (
        "truncated-sampling"
    )


def test_recorded_ends_are_believed_before_lengths():
    ends = rows(finish_reason=lambda s, g, r: "length" if r < 2 else "stop")  # of a context shorter than the limit
    cut = {"clipped_ratio": 0.5, "mean_length": 20.0, "max_length": 60.0, "completions": ends}
    assert rules_clipping.false_clipping(log(**cut, facts=LIMIT)).verdict == "not found"
    later = pd.DataFrame(ends).assign(step=lambda table: table["step"] + 100)  # after the last logged step
    assert rules_clipping.cut_rows(log(**(cut | {"completions": later}))) is None
    unknown = pd.DataFrame(ends).assign(finish_reason=None)
    assert rules_clipping.cut_rows(log(**(cut | {"completions": unknown}))) is None


def test_a_line_break_as_a_stop_string_is_not_at_the_end_of_every_text():
    cut = {"clipped_ratio": 0.5, "mean_length": 40.0, "max_length": 64.0}
    facts = {"stop_strings": ["\n"]}
    assert rules_clipping.false_clipping(log(**cut, completions=rows(), facts=facts)).verdict != "found"
    lines = rows(text=lambda s, g, r: f"{s} {g} {r}\n")
    assert rules_clipping.false_clipping(log(**cut, completions=lines, facts=facts)).verdict == "found"


def test_an_entropy_that_vanishes_once_the_reward_is_at_its_highest_is_no_collapse():
    solved = log(reward=np.r_[np.linspace(0.7, 1, 5), np.ones(55)], entropy=np.exp(-np.linspace(0, 8, 60)))
    assert rules_learning.collapse(solved).verdict == "not found"
    assert rules_learning.collapse(log(reward=0.0, entropy=solved.metric("entropy"))).cause == "entropy"


def test_a_reward_above_1_has_a_weight_and_its_highest_is_not_known():
    halves = rows(reward=lambda s, g, r: float(r % 2))
    assert rules_learning.solved(log(reward=np.r_[0.5, np.ones(59)], completions=halves)).verdict == "found"
    weighted = np.tile([0.9, 1.1], 30)  # a weight of 2, half of the rows right
    assert rules_learning.solved(log(reward=weighted, completions=halves)).verdict == "cannot tell"


def test_a_dip_at_the_top_is_no_collapse():
    dips = np.r_[np.ones(50), np.tile([1.0, 0.97], 5)]
    assert rules_learning.collapse(log(reward=dips)).verdict == "found"  # 1 may be anything here
    assert rules_learning.collapse(log(reward=dips, facts={"reward_highest": 1.0})).verdict == "not found"


def test_completions_of_other_steps_tell_nothing_of_the_logged_ones():
    other = pd.DataFrame(rows(reward=lambda s, g, r: 1.0)).assign(step=lambda table: table["step"] + 100)
    assert rules_gradient.zero_gradient(log(completions=other, facts=SIZE)).verdict == "cannot tell"
    lost = log(reward=np.where(np.arange(60) % 4, 0.5, np.nan), mean_length=5.0, completions=other)
    assert rules_data.missing_rewards(lost).says == "25.0% of the steps have no reward."


def test_an_evaluation_with_one_completion_a_prompt_mixes_no_groups():
    signs = (2.0, -1.0, 0.5, -1.5)
    evaluated = {
        "prompt": lambda s, g, r: f"{g} {r}" if s % 10 == 0 else f"{s} {g}",
        "advantage": lambda s, g, r: 0.0 if s % 10 == 0 else signs[r],
    }
    assert rules_data.mixed_groups(log(completions=rows(**evaluated))).verdict == "not found"
    mixed = rows(**(evaluated | {"advantage": lambda s, g, r: signs[r]}))
    assert rules_data.mixed_groups(log(completions=mixed)).verdict == "found"


def test_a_loss_that_is_logged_less_often_than_the_reward_is_not_lost():
    tenth = np.where(np.arange(60) % 10 == 9, 0.1, np.nan)
    assert rules_data.log_damage(log(reward=flat, loss=tenth)).verdict == "not found"
    at_once = np.where(np.arange(60) == 0, 0.1, np.nan)
    assert rules_data.log_damage(log(reward=flat, loss=at_once)).cause == "not-finite"


# --- together ---------------------------------------------------------------------------------------------------------


def test_no_rule_uses_a_metric_that_another_has_shown_to_be_false():
    found = {f.rule: f for f in check(log(**STOPPED, reward=rising, grad_norm=0.4, zero_std_share=0.1))}
    assert found["false-clipping"].contradicts == ("clipped_ratio", "mean_terminated_length")
    assert found["true-clipping"].verdict == "cannot tell"
    assert found["never-stops"].verdict == "cannot tell"


@pytest.mark.parametrize(
    "healthy",
    [
        log(reward=rising, grad_norm=0.5, zero_std_share=0.3, entropy=0.4, clipped_ratio=0.0, mean_length=20),
        log(reward=lambda x: np.minimum(0.3 + 2 * x, 1), grad_norm=0.5, facts={"reward_highest": 1.0}),
        log(**STOPPED, reward=rising, grad_norm=0.4, zero_std_share=0.2),
        log(**CUT, facts=LIMIT, reward=rising, grad_norm=0.4),
        log(reward=lambda x: 10 * np.sin(999 * x) + 5 * x, grad_norm=0.5),
    ],
    ids=["plain", "solved early", "stop strings without a mask", "true clipping that learns", "noisy"],
)
def test_a_healthy_run_has_no_problem(healthy):
    assert [f.rule for f in check(healthy) if f.is_problem] == []


def test_problems_come_first_and_those_that_follow_from_others_after_them():
    copied = log(completions=rows(text=lambda s, g, r: f"{s} {g}"), facts=SIZE, entropy=0.4, **EQUAL, reward=0.5)
    first, second, *_ = check(copied)
    assert (first.rule, first.follows_from) == ("copies", None)
    assert (second.rule, second.cause, second.follows_from) == ("zero-gradient", "copies", "copies")


def test_five_thousand_steps_are_answered():
    many = log(steps=5000, reward=rising, mean_length=rising, entropy=rising, clipped_ratio=0.1)
    assert len(check(many)) == len(RULES)


def test_without_lengths_a_step_that_reuses_completions_is_not_told_from_one_without_a_reward():
    reward = np.where(np.arange(60) % 2 == 0, 0.5, np.nan)
    assert rules_data.missing_rewards(log(reward=reward)).verdict == "cannot tell"
    assert rules_data.missing_rewards(log(reward=reward, mean_length=7.0)).verdict == "found"
    again = np.where(np.isnan(reward), np.nan, 7.0)
    assert rules_data.missing_rewards(log(reward=reward, mean_length=again)).verdict != "found"


def test_a_fall_that_is_less_than_what_a_step_scatters_is_a_warning():
    noise = np.random.default_rng(0).normal(0, 0.05, 4000)
    slight = rules_learning.collapse(log(4000, reward=1.97 - 8e-6 * np.arange(4000) + noise))
    assert (slight.verdict, slight.severity, slight.cause) == ("found", "warning", "reward")
    assert rules_learning.collapse(log(4000, reward=1.97 - 8e-5 * np.arange(4000) + noise)).severity == "problem"


def test_cut_rows_that_count_as_no_token_make_no_clipping_false():
    """TRL 0.17 with mask_truncated_completions: it masks the rows before it takes their lengths."""
    share, terminated = np.tile([0.25, 0.5, 0.75], 20), np.tile([80.0, 120.0, 100.0], 20)
    lengths = {"mean_length": (1 - share) * terminated, "max_length": 200.0, "mean_terminated_length": terminated}
    assert rules_clipping.false_clipping(log(clipped_ratio=share, **lengths, facts=LIMIT)).verdict != "found"


def test_a_reward_stuck_at_0_is_no_documented_run_though_some_of_those_are_stuck_there_too():
    assert rules_data.documented_run(log(49, reward=np.zeros(49))).verdict == "not found"
