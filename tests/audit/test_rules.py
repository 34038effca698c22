import numpy as np
import pandas as pd
import pytest
from made_up import CUT, EQUAL, GPT2, LIMIT, LONG, MASKED, SIZE, STOPPED, UNEQUAL, falling, flat, log, rising, rows

from workbench.audit.check import RULES, check
from workbench.audit.rules_clipping import cut_rows, false_clipping
from workbench.audit.rules_data import (
    documented_run,
    duplicate_prompts,
    log_damage,
    missing_rewards,
    mixed_groups,
    reward_scale,
)
from workbench.audit.rules_ends import added_token, masked_stops, never_stops, reward_is_ending, true_clipping
from workbench.audit.rules_gradient import copies, false_zero_std, lost_updates, wasted_groups, zero_gradient
from workbench.audit.rules_learning import collapse, kl_runaway, length_runaway, no_learning, solved, spikes
from workbench.audit.rules_reward import dead_rewards, reward_parts, tool_failures
from workbench.audit.rules_sampler import lost_to_correction, mismatch, padding_positions, stale_sampler
from workbench.curves.documented import load_baseline

PUBLISHED = np.repeat(load_baseline("unsloth-llama3.1-8b-gsm8k-grpo").curve().y, 5)  # a point is the mean of five steps

MASKS = STOPPED | {"clipped_ratio": np.where(MASKED == 0, 1.0, 0.9), "grad_norm": MASKED, "zero_std_share": 0.1}
UNIT = {"name": "a documented run", "low": 0.0, "high": 1.0, "unit": "share"}

# rule, a log that shows it, a log that does not, a log that cannot tell
CASES = [
    (false_clipping, log(**STOPPED), log(**CUT, facts=LIMIT), log(clipped_ratio=1.0, mean_length=7, max_length=7)),
    (masked_stops, log(**MASKS), log(**STOPPED, grad_norm=0.4, zero_std_share=0.1), log(**STOPPED)),
    (true_clipping, log(**CUT, facts=LIMIT, reward=flat),
     log(**(CUT | {"clipped_ratio": 0.05}), facts=LIMIT, reward=flat),
     log(clipped_ratio=1.0, mean_length=7, max_length=7, reward=flat)),
    (never_stops,
     log(eos_tokens=180, episodes=16 * np.arange(1, 61), facts={"pad_token_id": 0, "eos_token_ids": [1]}),
     log(eos_tokens=15, episodes=16 * np.arange(1, 61)), log(reward=flat)),
    (added_token, log(facts={"eos_token_ids": [1, 500], "tokenizer_ids": frozenset(range(400))}),
     log(facts={"eos_token_ids": [1], "tokenizer_ids": frozenset(range(400))}), log(facts={"eos_token_ids": [1]})),
    (copies, log(completions=rows(text=lambda s, g, r: f"{s} {g}"), facts=SIZE, entropy=0.4),
     log(completions=rows(), facts=SIZE, entropy=0.4), log(zero_std_share=1.0)),
    (zero_gradient, log(**EQUAL), log(grad_norm=0.4, zero_std_share=0.3), log(reward=flat)),
    (lost_updates, log(moved=0.006, learning_rate=1e-6), log(moved=0.998, learning_rate=1e-6), log(learning_rate=1e-6)),
    (stale_sampler, log(logp_difference=lambda x: 0.2 * x), log(logp_difference=0.01), log(reward=flat)),
    (mismatch, log(logp_difference=0.3), log(logp_difference=0.01), log(reward=flat)),
    (padding_positions, log(completions=UNEQUAL, facts=GPT2),
     log(completions=UNEQUAL, facts={"model_type": "qwen2", "rotary": True}), log(facts=GPT2)),
    (no_learning, log(reward=flat), log(reward=rising), log(steps=5, reward=flat)),
    (collapse, log(reward=falling), log(reward=rising), log(mean_length=3.0)),
    (length_runaway, log(mean_length=lambda x: 10 + 90 * x, reward=flat),
     log(mean_length=lambda x: 10 + 90 * x, reward=rising), log(mean_length=lambda x: 10 + 90 * x)),
    (solved, log(reward=np.r_[0.5, np.full(59, 0.99)], facts={"reward_highest": 1.0}),
     log(reward=rising, facts={"reward_highest": 1.0}), log(reward=0.99)),
    (kl_runaway, log(kl=lambda share: 0.01 + 3 * share**2, reward=flat),
     log(kl=lambda share: 0.01 + 3 * share**2, reward=rising), log(reward=flat)),
    (spikes, log(grad_norm=[0.5] * 30 + [900.0] + [0.4] * 29), log(grad_norm=[0.5] * 30 + [9.0] + [0.4] * 29),
     log(reward=flat)),
    (documented_run, log(250, reward=PUBLISHED), log(250, reward=PUBLISHED + 0.01), None),
    (false_zero_std, log(zero_std_share=0.0, grad_norm=np.arange(60) % 2, learning_rate=1e-5, clipped_ratio=0.1),
     log(zero_std_share=np.arange(60) % 2, grad_norm=0.3, learning_rate=1e-5, clipped_ratio=0.1),
     log(zero_std_share=0.0, grad_norm=0.0, learning_rate=1e-5, clipped_ratio=0.1)),
    (lost_to_correction, log(ratio_mean=0.1, logp_difference=0.01), log(ratio_mean=0.98, logp_difference=0.01),
     log(reward=flat)),
    (tool_failures, log(tool_failures=0.4, tool_calls=2.0, reward=flat),
     log(tool_failures=0.01, tool_calls=2.0, reward=flat), log(reward=flat)),
    (dead_rewards, log(**{"rewards/match": 0.0, "rewards/format": rising}),
     log(**{"rewards/match": flat, "rewards/format": rising}), log(**{"rewards/match": 0.0})),
    (wasted_groups, log(zero_std_share=0.6), log(zero_std_share=0.1), log(reward=flat)),
    (reward_is_ending, log(clipped_ratio=0.3 + 0.2 * np.tile([0, 1], 30), reward=0.7 - 0.2 * np.tile([0, 1], 30)),
     log(clipped_ratio=0.02, reward=flat), log(reward=flat)),
    (reward_parts, log(**{"rewards/match": falling, "rewards/format": rising}, reward=flat),
     log(**{"rewards/match": rising, "rewards/format": rising}, reward=rising), log(**{"rewards/match": rising})),
    (log_damage, log(order=[1, 2, 3, 4, 2, 3, 4, 5, 9]), log(), None),
    (mixed_groups, log(completions=rows(prompt=lambda s, g, r: f"prompt {r}"), facts=SIZE),
     log(completions=rows(), facts=SIZE), log(completions=rows(prompt=lambda s, g, r: f"prompt {r}"))),
    (reward_scale, log(reward=-30.0, facts={"documented": UNIT}), log(reward=rising, facts={"documented": UNIT}),
     log(reward=rising)),
    (duplicate_prompts, log(completions=rows(prompt=lambda s, g, r: f"prompt {g % 2}"), facts=SIZE),
     log(completions=rows(), facts=SIZE), log()),
    (missing_rewards, log(completions=rows(reward=lambda s, g, r: None if r == 2 else 1.0)), log(completions=LONG),
     log(mean_length=3.0)),
]  # fmt: skip


def test_a_reward_of_another_unit_is_not_called_alike():
    facts = {"documented": UNIT, "reward_unit": "characters"}
    finding = reward_scale(log(reward=rising, facts=facts))
    assert finding.verdict == "found" and "'characters'" in finding.says and "'share'" in finding.says
    assert reward_scale(log(reward=rising, facts=facts | {"reward_unit": "share"})).verdict == "not found"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].name)
def test_rule_tells_fault_healthy_log_and_open_question(case):
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
    assert sorted(case[0].name for case in CASES) == sorted(rule.name for rule in RULES)


# --- counter-examples: what looks like the fault and is none ---------------------------------------------------------


def test_a_zero_gradient_of_a_maybe_solved_task_is_no_problem():
    late = {"grad_norm": np.repeat([0.3, 0.0], 30), "zero_std_share": np.repeat([0.2, 1.0], 30)}
    climbs = np.minimum(np.linspace(0.2, 1.8, 60), 1.0)  # what the reward can reach is not known here
    assert [f.rule for f in check(log(**late, reward=climbs)) if f.is_problem] == []
    drops = log(**late, reward=np.repeat([0.3, 0.0], 30))
    assert "zero-gradient" in [f.rule for f in check(drops) if f.is_problem]


def test_entropy_of_steps_with_all_tokens_masked_is_no_collapse():
    masked = log(**MASKS, entropy=np.where(MASKED == 0, 0.0, 0.4), reward=flat)
    found = {f.rule: f for f in check(masked) if f.verdict == "found"}
    assert "masked-stops" in found and "collapse" not in found
    assert found["zero-gradient"].follows_from == "masked-stops"


def test_a_growing_difference_is_named_by_the_stale_sampler():
    growing = {f.rule: f for f in check(log(logp_difference=lambda x: 0.5 * x))}
    assert growing["mismatch"].follows_from == "stale-sampler"


# --- counter-examples that real runs gave -----------------------------------------------------------------------------


def test_steps_that_reuse_completions_have_the_first_uses_cause():
    twice = np.where(np.arange(60) % 2, np.nan, 0.5)  # num_iterations=2
    dead = log(reward=twice, mean_length=twice, grad_norm=0.0, zero_std_share=np.where(np.arange(60) % 2, np.nan, 1.0))
    assert zero_gradient(dead).evidence["steps by cause"] == {"equal-rewards": 60}


def test_numbers_that_are_no_numbers_are_named_with_their_steps():
    lost = log(reward=flat, loss=np.where(np.arange(60) < 40, 0.1, np.nan))
    assert (log_damage(lost).cause, log_damage(lost).severity) == ("not-finite", "problem")
    assert log_damage(lost).steps == tuple(range(41, 61))
    infinite = log(reward=np.where(np.arange(60) % 5, 0.5, np.nan), damage=["reward is infinite in 12 of 60 steps"])
    assert log_damage(infinite).cause == "not-finite"
    assert missing_rewards(infinite).verdict == "cannot tell"


def test_advantages_show_groups_where_no_prompt_stands_twice():
    shuffled = rows(prompt=lambda s, g, r: f"{s} {g} {r}", advantage=lambda s, g, r: (1.5, -0.5, -0.5, -0.5)[r])
    found = mixed_groups(log(completions=shuffled))
    assert (found.verdict, found.evidence["num_generations"]) == ("found", 4)


def test_prompts_are_counted_in_tokens_if_a_tokenizer_is_there(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 0, "longer": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    facts = GPT2 | {"tokenizer_file": str(tmp_path / "tokenizer.json")}

    def verdict(second, facts):
        prompts = rows(prompt=lambda s, g, r: second if g else "a a")
        return padding_positions(log(completions=prompts, facts=facts)).verdict

    assert [verdict("a longer", facts), verdict("a a a", facts)] == ["not found", "found"]
    assert [verdict("a aa", GPT2), verdict("a a a a a", GPT2)] == ["cannot tell", "found"]


def test_a_collapse_by_exploding_entropy_explains_dead_steps():
    lost = {"reward": np.r_[0.2, np.zeros(59)], "reward_std": np.r_[0.4, np.zeros(59)]}
    dead = {"grad_norm": np.r_[0.4, np.zeros(59)], "zero_std_share": np.r_[0.2, np.ones(59)]}
    found = {f.rule: f for f in check(log(**lost, **dead, entropy=np.r_[0.4, np.full(59, 4.0)]))}
    assert (found["collapse"].verdict, found["collapse"].cause) == ("found", "diverged")
    assert found["zero-gradient"].follows_from == "collapse"


def test_one_text_that_comes_to_answer_all_prompts_is_named():
    fewer = rows(text=lambda s, g, r: "Emily" if s > 40 and r else f"text {s} {g} {r}")  # three of four rows
    assert collapse(log(reward=rising, completions=fewer, facts=SIZE)).verdict == "not found"
    texts = rows(text=lambda s, g, r: "Emily" if s > 40 and (g or r) else f"text {s} {g} {r}")
    found = collapse(log(reward=rising, completions=texts, facts=SIZE))
    assert (found.severity, found.cause) == ("warning", "one-text")
    assert "One text is 94% of the completions" in found.says and "whatever of 24 prompts: 'Emily'" in found.says
    always = rows(text=lambda s, g, r: "yes" if g or r else "no")
    assert collapse(log(reward=rising, completions=always, facts=SIZE)).verdict == "not found"
    one_prompt = pd.DataFrame(texts).assign(prompt="the only one")
    assert collapse(log(reward=rising, completions=one_prompt, facts=SIZE)).verdict == "not found"


def test_ends_of_other_steps_or_without_a_reason_prove_nothing():
    ends = rows(finish_reason=lambda s, g, r: "length" if r < 2 else "stop")  # of a context shorter than the limit
    cut = {"clipped_ratio": 0.5, "mean_length": 20.0, "max_length": 60.0, "completions": ends}
    later = pd.DataFrame(ends).assign(step=lambda table: table["step"] + 100)  # after the last logged step
    assert cut_rows(log(**(cut | {"completions": later}))) is None
    unknown = pd.DataFrame(ends).assign(finish_reason=None)
    assert cut_rows(log(**(cut | {"completions": unknown}))) is None


def test_completions_of_other_steps_prove_nothing_of_logged_ones():
    other = pd.DataFrame(rows(reward=lambda s, g, r: 1.0)).assign(step=lambda table: table["step"] + 100)
    lost = log(reward=np.where(np.arange(60) % 4, 0.5, np.nan), mean_length=5.0, completions=other)
    assert missing_rewards(lost).says == "25.0% of the steps have no reward."


# --- together ---------------------------------------------------------------------------------------------------------


def test_no_rule_uses_a_metric_that_another_has_shown_false():
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


def test_problems_come_first_and_what_follows_from_them_after():
    copied = log(completions=rows(text=lambda s, g, r: f"{s} {g}"), facts=SIZE, entropy=0.4, **EQUAL, reward=0.5)
    first, second, *_ = check(copied)
    assert (first.rule, first.follows_from) == ("copies", None)
    assert (second.rule, second.cause, second.follows_from) == ("zero-gradient", "copies", "copies")


def test_five_thousand_steps_are_answered():
    many = log(steps=5000, reward=rising, mean_length=rising, entropy=rising, clipped_ratio=0.1)
    assert len(check(many)) == len(RULES)


def test_spikes_asks_for_no_metric_that_is_logged():
    for kl in (0.0, 0.1):
        unsure = spikes(log(grad_norm=0.0) if not kl else log(5, kl=kl))
        assert unsure.verdict == "cannot tell" and "Log grad_norm" not in str(unsure)
    assert "Log grad_norm or kl" in str(spikes(log()))


WARM_UP = np.r_[np.linspace(1e-7, 1e-6, 10), np.full(50, 1e-6)]


def test_lost_updates_are_a_note_where_the_reward_rises():
    found = lost_updates(log(moved=0.06, learning_rate=1e-5, reward=rising))
    assert (found.severity, "rises all the same" in found.says) == ("note", True)
    assert lost_updates(log(moved=0.06, learning_rate=1e-5, reward=flat)).severity == "warning"


def test_updates_of_a_warm_up_are_not_judged():
    low_at_first = np.where(WARM_UP < 5e-7, 0.01, 0.9)
    assert lost_updates(log(moved=low_at_first, learning_rate=WARM_UP)).verdict == "not found"
    begun = lost_updates(log(8, moved=0.01, learning_rate=WARM_UP[:8]))
    assert begun.verdict == "cannot tell" and "no longer rises" in begun.advice
    assert lost_updates(log(moved=np.where(WARM_UP < 5e-7, 0.9, 0.01), learning_rate=WARM_UP)).verdict == "found"


def test_fp32_weights_that_stay_are_not_told_to_be_fp32():
    still = log(moved=0.01, learning_rate=1e-12, facts={"dtype": "float32"})
    assert "max_grad_norm" in lost_updates(still).advice and "torch.float32" not in lost_updates(still).advice
