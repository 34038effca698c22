"""What looks like a fault and is none, or like another one: the statement, the rule, the log, and what the rule says of it."""

import numpy as np
import pandas as pd
import pytest
from made_up import CUT, EQUAL, GPT2, LIMIT, LONG, MASKED, SIZE, STOPPED, UNEQUAL, falling, flat, log, rising, rows

from workbench.audit.rules_clipping import false_clipping
from workbench.audit.rules_data import documented_run, duplicate_prompts, log_damage, missing_rewards, mixed_groups
from workbench.audit.rules_ends import masked_stops, never_stops, true_clipping
from workbench.audit.rules_gradient import copies, zero_gradient
from workbench.audit.rules_learning import collapse, kl_runaway, length_runaway, no_learning, solved
from workbench.audit.rules_sampler import mismatch, padding_positions, stale_sampler

FOUND, ABSENT, OPEN = "found", "not found", "cannot tell"
ODD = np.arange(60) % 2
TOP = {"facts": {"reward_highest": 1.0}}
ALIKE = {"clipped_ratio": 1.0, "mean_length": 7.0, "max_length": 7.0}
CALLS = rows(text=lambda s, g, r: f"<search>{s}{g}{r}</search>")
SEARCH = {"stop_strings": ["</search>"]}
ENDINGS = rows(text=lambda s, g, r: "abcdefghijkl"[(s + g + r) % 12])
RAISED = np.repeat([64.0, 256.0], 30)
COPIED = rows(text=lambda s, g, r: f"{s} {g}")
LEARNED = rows(text=lambda s, g, r: f"{s} {g} {r if s < 30 else 0}")
YES = {"completions": rows(text=lambda s, g, r: "yes"), "facts": SIZE, "entropy": 0.1}
GROUPS_OF_8 = rows(advantage=lambda s, g, r: 1.0 if g % 2 else -1.0)  # each with two prompts
PAIRS = rows(advantage=lambda s, g, r: (1.0, -1.0, 1.0, -1.0)[r])
SIGNS = (2.0, -1.0, 0.5, -1.5)
EVALUATED = {
    "prompt": lambda s, g, r: f"{g} {r}" if s % 10 == 0 else f"{s} {g}",
    "advantage": lambda s, g, r: 0.0 if s % 10 == 0 else SIGNS[r],
}
VANISHES = np.exp(-9 * np.linspace(0, 1, 60))
NOISE = np.random.default_rng(0).normal(0, 0.05, 4000)
EVERY_OTHER = np.where(ODD, np.nan, 0.5)  # as with num_iterations=2
OTHER_STEPS = pd.DataFrame(rows(reward=lambda s, g, r: 1.0)).assign(step=lambda table: table["step"] + 100)
OFTEN = np.tile([0.43, 0.45, 0.47], 20)
HALF_RIGHT = rows(reward=lambda s, g, r: float(r % 2))
# The reward rises to 0.55 in 60% of the steps, then nothing moves.
ENDS_EQUAL = np.repeat([0.3, 0.95], [120, 80])
STOPS_EARLY = {
    "reward": np.r_[np.linspace(0.2, 0.56, 120) + 0.8 * NOISE[:120], np.full(80, 0.55) + NOISE[:80] / 25],
    "entropy": np.repeat([0.6, 0.02], [120, 80]),
}
DIPS = np.r_[np.ones(50), np.tile([1.0, 0.97], 5)]
ENDS = rows(finish_reason=lambda s, g, r: "length" if r < 2 else "stop")
PPO = {"eos_tokens": 180, "episodes": 16 * np.arange(1, 61)}
FULL = {"clipped_ratio": 1.0, "mean_length": 256.0, "max_length": 256.0}
SWIFT = {"clipped_ratio": 0.45, "mean_length": 2393.1, "max_length": 7009.0, "reward": flat}
LONG_RATIOS = {"logp_difference": 0.09, "mean_length": 2000, "ratio_max": 1e-3, "ratio_mean": 1e-4}
SHRINKS = {"mean_length": lambda share: 1800 * np.exp(-20 * share) + 2}
ONE_LINE = rows(text=lambda s, g, r: f"{s} {g} {r}\n")
KL = {"grad_norm": 0.001, "kl": 0.03, "reward": 0.0}
SHARE, ENDED = np.tile([0.25, 0.5, 0.75], 20), np.tile([80.0, 120.0, 100.0], 20)
MEANS_OF_5 = {"clipped_ratio": np.where(ODD, 1.0, 0.6), "mean_length": np.where(ODD, 512.0, 424.3),
              "max_length": np.where(ODD, 512.0, 502.4)}  # fmt: skip
BUSY = {"kl": 0.001, "grad_norm": 0.1}
STUCK = np.repeat(
    [-10.0, 0.1, 0.7, -5.0, -0.386, -5.0], [8, 8, 8, 8, 8, 80]
)  # Rithwik-Ravi/OpenEnv-Dynamic-Guardrails 4ac95cc
# One of 256 completions, the longest: T-zy/Search-R1_inforcement 296204a, steps 391 and 392.
LONGEST = {"clipped_ratio": 1 / 256, "mean_length": 131.6, "max_length": np.tile([538.0, 230.0], 30)}


def limit(tokens):
    return {"max_completion_length": tokens}


def several(steps, made):
    """The same log, a line of which is the mean of several steps."""
    made.steps["step"] *= steps
    return made


CASES = {
    # truncated or not
    "the limit was raised in the middle of the run":
        (false_clipping, log(clipped_ratio=0.9, mean_length=0.95 * RAISED, max_length=RAISED), OPEN),
    "means over ten steps, none of which says how long the longest was":
        (false_clipping, log(clipped_ratio=0.1, mean_length=12.0, max_length=40.5, facts=LIMIT), OPEN),
    "the same, by chance a whole number":
        (false_clipping, several(10, log(clipped_ratio=0.1, mean_length=12, max_length=40, facts=LIMIT)), OPEN),
    "lengths were rounded":
        (false_clipping, log(clipped_ratio=1.0, mean_length=63.98, max_length=64.0, facts=LIMIT), ABSENT),
    "with tools, lengths leave out what the tools wrote": (false_clipping, log(**STOPPED, tool_calls=1.0), OPEN),
    "rows of one length below the limit": (false_clipping, log(**ALIKE, facts=LIMIT), FOUND),
    "rows of one length, the limit": (false_clipping, log(**ALIKE, facts=limit(7)), ABSENT),
    "rows that end in the stop string": (false_clipping, log(**ALIKE, completions=CALLS, facts=SEARCH), FOUND),
    "rows that end in none": (false_clipping, log(**ALIKE, completions=rows(), facts=SEARCH), OPEN),
    "stops that only look truncated": (false_clipping, log(**STOPPED), FOUND, "warning"),
    "texts of one step that contradict its ratio":
        (false_clipping, log(clipped_ratio=0.5, completions=CALLS, facts=SEARCH), FOUND),
    "texts of the last of several steps do not contradict the mean of all":
        (false_clipping, several(5, log(clipped_ratio=0.5, completions=CALLS, facts=SEARCH)), OPEN),
    "a limit below the longest completion is another run's":
        (false_clipping, log(clipped_ratio=0.5, mean_length=20, max_length=np.tile([30.0, 32.0], 30), facts=limit(8)), OPEN),
    "steps with truncated rows that did not reach the limit":
        (false_clipping, log(clipped_ratio=0.5, mean_length=20, max_length=np.tile([30.0, 32.0], 30), facts=limit(32)), FOUND),
    "recorded ends are believed before lengths, of a context shorter than the limit":
        (false_clipping, log(**CUT | {"clipped_ratio": 0.5, "mean_length": 20.0}, completions=ENDS, facts=LIMIT), ABSENT),
    "a line break as a stop string is at the end of no text":
        (false_clipping, log(**CUT, completions=rows(), facts={"stop_strings": ["\n"]}), ABSENT),
    "a line break as a stop string is at the end of every text":
        (false_clipping, log(**CUT, completions=ONE_LINE, facts={"stop_strings": ["\n"]}), FOUND),
    "ms-swift counts rows that the engine cut at any length":
        (false_clipping, log(**SWIFT, facts={"trainer": "ms-swift"}), ABSENT),
    "another trainer does not": (false_clipping, log(**SWIFT), FOUND),
    "verl counts the longest of a batch":
        (false_clipping, log(**LONGEST, facts=limit(1024) | {"trainer": "verl"}), FOUND, "note", "longest"),
    "TRL does not": (false_clipping, log(**LONGEST, facts=limit(1024)), FOUND, "warning"),
    "many are truncated, and the reward rises": (true_clipping, log(**CUT, facts=LIMIT, reward=rising), FOUND, "warning"),
    "many are truncated, and it does not": (true_clipping, log(**CUT, facts=LIMIT, reward=flat), FOUND, "problem"),
    "a limit that the engine calls max_tokens":
        (true_clipping, log(completions=rows(finish_reason=lambda s, g, r: "max_tokens" if r < 3 else "stop"), facts=LIMIT,
                            reward=flat), FOUND, "problem"),
    "ends of which no word says whether the limit was met":
        (true_clipping, log(**CUT, completions=rows(finish_reason=lambda s, g, r: "max_turns_reached"), facts=LIMIT,
                            reward=flat), FOUND, "problem"),
    "many are truncated, and the task is solved":
        (true_clipping, log(**CUT, reward=1.0, facts=LIMIT | TOP["facts"]), FOUND, "warning"),
    "three steps of truncated rows are no problem yet":
        (true_clipping, log(3, clipped_ratio=0.5, mean_length=240, max_length=256, reward=0.1, facts=limit(256)),
         FOUND, "warning"),
    "a gradient in steps full of truncated rows":
        (masked_stops, log(**STOPPED, grad_norm=MASKED, zero_std_share=0.1), ABSENT),
    "equal rewards, so that a gradient of 0 is no sign of a mask": (masked_stops, log(**STOPPED, **EQUAL), OPEN),
    "the same with an entropy, so that tokens are in the loss": (masked_stops, log(**STOPPED, **EQUAL, entropy=0.4), ABSENT),
    "the same without any": (masked_stops, log(**STOPPED, **EQUAL, entropy=0.0), FOUND, "problem"),
    "steps whose rewards are equal are no sign of a mask":
        (masked_stops, log(**STOPPED, grad_norm=MASKED, zero_std_share=np.where(MASKED == 0, 1.0, 0.0)), ABSENT),
    "the entropy of completions of one token is a mean over masked rows":
        (masked_stops, log(clipped_ratio=1, mean_length=1, max_length=1, entropy=4.6, grad_norm=0, zero_std_share=0.1,
                           facts=LIMIT | {"mask_truncated_completions": True}), FOUND),
    "every row counts as truncated: whichever it is, it is a fault": (never_stops, log(**FULL), FOUND, "warning", "all-cut"),
    "every row is as long as the limit": (never_stops, log(**FULL, facts=limit(256)), FOUND, "problem"),
    "some count as truncated": (never_stops, log(**FULL | {"clipped_ratio": 0.7}), ABSENT),
    "all texts end in one way": (never_stops, log(**FULL, completions=CALLS), FOUND, "all-cut"),
    "texts end in many ways, as truncated ones do": (never_stops, log(**FULL, completions=ENDINGS), FOUND, "problem"),
    "texts differ much, as truncated ones do": (never_stops, log(**FULL, entropy=0.5), FOUND, "problem"),
    "some rows stop, so the sampler can":
        (never_stops, log(**FULL | {"clipped_ratio": np.where(np.arange(60) == 30, 0.9, 1)}, facts=limit(256)), ABSENT),
    "PPO's EOS tokens may be padding": (never_stops, log(**PPO), OPEN),
    "PPO's EOS tokens are padding": (never_stops, log(**PPO, facts={"pad_token_id": 1, "eos_token_ids": [1]}), OPEN),
    "no EOS in any completion of PPO": (never_stops, log(**PPO | {"eos_tokens": 0}), FOUND, "problem"),
    "an EOS in some completions of PPO": (never_stops, log(**PPO | {"eos_tokens": 4}), ABSENT),
    "TRL 0.17 masked the rows before it took their lengths":
        (false_clipping, log(clipped_ratio=SHARE, mean_length=(1 - SHARE) * ENDED, max_length=200.0,
                             mean_terminated_length=ENDED, facts=LIMIT), ABSENT),
    "means of five steps whose full lines have one length":
        (false_clipping, several(5, log(**MEANS_OF_5, reward=flat)), ABSENT),
    "the same, which is the limit": (true_clipping, several(5, log(**MEANS_OF_5, reward=flat)), FOUND, "problem"),
    # groups
    "a gradient of 0 and every row truncated":
        (zero_gradient, log(grad_norm=0.0, zero_std_share=0.2, clipped_ratio=1.0), FOUND, "masked"),
    "and every group equal": (zero_gradient, log(**EQUAL), FOUND, "equal-rewards"),
    "and every ratio clipped": (zero_gradient, log(grad_norm=0.0, zero_std_share=0.2, clip_region=1.0), FOUND, "clip"),
    "and nothing of these": (zero_gradient, log(grad_norm=0.0, zero_std_share=0.2), FOUND, "unknown"),
    "a rate that six decimals show as 0 in half of the run":
        (zero_gradient, log(grad_norm=0.312345, learning_rate=np.repeat([1e-6, 0.0], 30)), ABSENT),
    "a rate of 0 in half of a run with four digits":
        (zero_gradient, log(grad_norm=0.03123, learning_rate=np.repeat([1e-6, 0.0], 30)), FOUND, "learning-rate"),
    "nearly half of the ratios clipped in each step":
        (zero_gradient, log(grad_norm=0.4, clip_region=OFTEN, reward=flat), FOUND, "warning", "clip"),
    "and no gradient is logged": (zero_gradient, log(clip_region=OFTEN, reward=flat), FOUND, "warning", "clip"),
    "and the reward rises": (zero_gradient, log(grad_norm=0.4, clip_region=OFTEN, reward=rising), FOUND, "note", "clip"),
    "and only at first": (zero_gradient, log(grad_norm=0.4, clip_region=np.repeat([0.45, 0.0], 30), reward=flat), ABSENT),
    "as many as GSPO clips": (zero_gradient, log(grad_norm=0.4, clip_region=OFTEN / 3, reward=flat), ABSENT),
    "a setting that is called clip_ratio": (zero_gradient, log(grad_norm=0.4, clip_region=0.4, reward=flat), ABSENT),
    "gradients that three decimals show as 0": (zero_gradient, log(grad_norm=0.001 * ODD, entropy=0.5), ABSENT),
    "gradients of 0 among large ones": (zero_gradient, log(grad_norm=0.2 * ODD, entropy=0.5), FOUND, "unknown"),
    "a gradient at a learning rate of 0": (zero_gradient, log(grad_norm=0.31234, learning_rate=0.0), FOUND, "learning-rate"),
    "a solved task has no gradient": (zero_gradient, log(**EQUAL, reward=1.0, **TOP), FOUND, "note"),
    "one that is never solved has none": (zero_gradient, log(**EQUAL, reward=0.0, **TOP), FOUND, "problem"),
    "a full step had a gradient": (
        zero_gradient, log(**STOPPED, grad_norm=MASKED, zero_std_share=np.where(MASKED == 0, 1.0, 0.0)), "equal-rewards"),
    "steps without gradient in a run that learns":
        (zero_gradient, log(grad_norm=0.4 * ODD, zero_std_share=1.0 - ODD, reward=rising), FOUND, "warning"),
    "and in one that is worse in them":
        (zero_gradient, log(grad_norm=0.4 * ODD, zero_std_share=1.0 - ODD, reward=0.3 * ODD), FOUND, "problem"),
    "completions of other steps tell nothing of the logged ones":
        (zero_gradient, log(completions=OTHER_STEPS, facts=SIZE), OPEN),
    "a KL term does not hide that all groups are equal":
        (zero_gradient, log(**KL, zero_std_share=1.0), FOUND, "problem", "equal-rewards"),
    "half of the groups equal": (zero_gradient, log(**KL, zero_std_share=0.5), ABSENT),
    "a share of equal groups that gradients refute":
        (zero_gradient, log(grad_norm=0.3, zero_std_share=1.0, reward=rising), ABSENT),
    "half of the steps equal in a short run":
        (zero_gradient, log(20, **BUSY, reward_std=0.2 * ODD[:20], reward=0.125 * ODD[:20]), FOUND, "warning"),
    "and in a long one": (zero_gradient, log(**BUSY, reward_std=0.2 * ODD, reward=0.125 * ODD), FOUND, "problem"),
    "a policy that learned one answer": (copies, log(completions=LEARNED, facts=SIZE, entropy=0.4), ABSENT),
    "a policy that is sure of its answers": (copies, log(completions=COPIED, facts=SIZE, entropy=0.001), OPEN),
    "a policy that is sure of short answers": (copies, log(**YES, mean_length=2.0), OPEN),
    "one that is not, since they are long": (copies, log(**YES, mean_length=50.0), FOUND),
    "PPO compares no groups": (copies, log(**PPO, completions=UNEQUAL, facts=GPT2), ABSENT),
    "groups confirmed by advantages": (mixed_groups, log(completions=PAIRS), ABSENT),
    "groups by their prompts alone": (mixed_groups, log(completions=rows()), OPEN),
    "groups of 8, of which nothing tells": (mixed_groups, log(completions=GROUPS_OF_8), OPEN),
    "groups of 8, as configured": (mixed_groups, log(completions=GROUPS_OF_8, facts={"num_generations": 8}), FOUND),
    "an evaluation with one completion a prompt": (mixed_groups, log(completions=rows(**EVALUATED)), ABSENT),
    "the same with advantages":
        (mixed_groups, log(completions=rows(**EVALUATED | {"advantage": lambda s, g, r: SIGNS[r]})), FOUND),
    "one prompt in all steps": (duplicate_prompts, log(completions=LONG, facts=SIZE), FOUND, "one-prompt", "note"),
    # sampler and scorer
    "a difference that is as large all along": (stale_sampler, log(logp_difference=0.3), OPEN),
    "the same with noise": (stale_sampler, log(logp_difference=lambda x: 0.3 + 0 * x), ABSENT),
    "left behind at once": (stale_sampler, log(logp_difference=np.minimum(np.arange(60) * 0.1, 0.5) + 1e-7), FOUND),
    "grown twenty thousand times": (stale_sampler, log(logp_difference=1e-7 + np.linspace(0, 2e-3, 60)), FOUND),
    "a policy that becomes less sure in bf16": (stale_sampler, log(logp_difference=np.linspace(0.004, 0.03, 60)), "warning"),
    "the same in fp32":
        (stale_sampler, log(logp_difference=np.linspace(0.004, 0.03, 60), facts={"dtype": "float32"}), "problem"),
    "older weights from the second step on": (mismatch, log(logp_difference=np.r_[0.01, np.full(59, 0.08)]), FOUND, "lag"),
    "no token to compare in the first step": (stale_sampler, log(logp_difference=np.r_[0.0, np.full(59, 0.03)]), OPEN),
    "no token to compare in any": (stale_sampler, log(logp_difference=0.0), OPEN),
    "probabilities that part": (stale_sampler, log(probability_difference=lambda x: 0.2 * x), FOUND),
    "bf16 explains it": (mismatch, log(logp_difference=0.03, facts={"dtype": "bfloat16"}), ABSENT),
    "fp32 does not, but the engine may run in bf16": (mismatch, log(logp_difference=0.03, facts={"dtype": "float32"}), OPEN),
    "fp32 explains it": (mismatch, log(logp_difference=0.001, facts={"dtype": "float32"}), ABSENT),
    "top_p shows below what a dtype explains":
        (mismatch, log(logp_difference=0.02, ratio_max=1.0, ratio_mean=0.9), FOUND, "warning", "truncated-sampling"),
    "min_tokens does the same, to stops alone":
        (mismatch, log(logp_difference=0.02, ratio_max=1.0, ratio_mean=0.9, facts={"min_tokens": 8}),
         FOUND, "warning", "min-tokens"),
    "a minimum of 0 does nothing":
        (mismatch, log(logp_difference=0.02, ratio_max=1.0, ratio_mean=0.9, facts={"min_tokens": 0}),
         FOUND, "truncated-sampling"),
    "a minimum makes no token less likely to the sampler":
        (mismatch, log(logp_difference=0.3, ratio_max=2.5, ratio_mean=0.9, facts={"min_tokens": 8}), FOUND, "constant"),
    "a token that is less likely to the sampler": (mismatch, log(logp_difference=0.02, ratio_max=1.05, ratio_mean=1), ABSENT),
    "rounding is not taken for top_p": (mismatch, log(logp_difference=1e-7, ratio_max=1.0, ratio_mean=1.0), ABSENT),
    "a difference of probabilities is none of log-probs": (mismatch, log(probability_difference=0.01), OPEN),
    "one that is as large as no difference of log-probs may be": (mismatch, log(probability_difference=0.2), FOUND),
    "ratios of long completions are small with any mismatch": (mismatch, log(**LONG_RATIOS), FOUND, "constant"),
    "so they are of an engine in a coarser dtype": (mismatch, log(**LONG_RATIOS, ratio_min=1e-9), FOUND, "constant"),
    "smaller ones are top_p's":
        (mismatch, log(**LONG_RATIOS | {"logp_difference": 0.02}, ratio_min=1e-20), FOUND, "truncated-sampling"),
    "a large difference with ratios of at most 1":
        (mismatch, log(logp_difference=0.3, ratio_max=1.0, ratio_mean=0.6, completions=UNEQUAL), FOUND, "truncated-sampling"),
    "with ratios on both sides":
        (mismatch, log(logp_difference=0.3, ratio_max=2.5, ratio_mean=0.9, completions=UNEQUAL), FOUND, "constant"),
    "the same of a model with learned positions":
        (mismatch, log(logp_difference=0.3, ratio_max=2.5, ratio_mean=0.9, completions=UNEQUAL, facts=GPT2),
         FOUND, "positions"),
    "without ratios": (mismatch, log(logp_difference=0.3, completions=UNEQUAL), FOUND, "constant"),
    "prompts of one length are not padded": (padding_positions, log(completions=LONG, facts=GPT2), ABSENT),
    "TRL's PPO passes position ids": (padding_positions, log(**PPO, completions=UNEQUAL, facts=GPT2), ABSENT),
    # the course of a run
    "an entropy that falls while the reward rises": (collapse, log(entropy=lambda x: np.exp(-9 * x), reward=rising), ABSENT),
    "an entropy that falls while it does not": (collapse, log(entropy=VANISHES, reward=flat), FOUND, "entropy"),
    "an entropy alone": (collapse, log(entropy=VANISHES), OPEN),
    "an entropy that vanishes once the reward is at its highest":
        (collapse, log(reward=np.r_[np.linspace(0.7, 1, 5), np.ones(55)], entropy=VANISHES), ABSENT),
    "an entropy that vanishes where it is at its lowest": (collapse, log(reward=0.0, entropy=VANISHES), FOUND, "entropy"),
    "an entropy that grows while rewards scatter more":
        (collapse, log(reward=0.5, reward_std=0.3, entropy=np.linspace(0.4, 4.0, 60)), ABSENT),
    "the same at a reward that stays flat and scatters":
        (collapse, log(reward=flat, entropy=np.linspace(0.4, 4.0, 60)), FOUND, "warning", "diverged"),
    "the same at a reward that rises": (collapse, log(reward=rising, entropy=np.linspace(0.4, 4.0, 60)), ABSENT),
    "the same at a reward near its ceiling":
        (collapse, log(reward=lambda x: 0.95 + 0 * x, entropy=np.linspace(0.4, 4.0, 60)), ABSENT),
    "an entropy that vanished after a rise that is over":
        (collapse, log(200, **STOPS_EARLY, zero_std_share=ENDS_EQUAL), FOUND, "warning", "entropy"),
    "the same while groups still differ": (collapse, log(200, **STOPS_EARLY, zero_std_share=0.4), ABSENT),
    "the same, of a task that is solved": (collapse, log(200, **STOPS_EARLY, zero_std_share=ENDS_EQUAL,
                                                         facts={"reward_highest": 0.56}), ABSENT),
    "a reward that rises and then falls":
        (collapse, log(100, reward=lambda x: np.where(x < 0.5, 0.2 + 1.2 * x, 0.8 - 1.1 * (x - 0.5))), FOUND),
    "a dip where 1 may be anything": (collapse, log(reward=DIPS), FOUND),
    "a dip at the top": (collapse, log(reward=DIPS, **TOP), ABSENT),
    "a fall that is less than what a step scatters":
        (collapse, log(4000, reward=1.97 - 8e-6 * np.arange(4000) + NOISE), FOUND, "warning", "reward"),
    "one that is more": (collapse, log(4000, reward=1.97 - 8e-5 * np.arange(4000) + NOISE), FOUND, "problem", "reward"),
    "completions that shrink to nothing": (collapse, log(**SHRINKS, reward=flat), FOUND, "problem", "length"),
    "completions that shrink while the reward rises": (collapse, log(**SHRINKS, reward=rising), ABSENT),
    "rewards that are compared within their batch": (no_learning, log(reward=0.5, reward_std=0.3), OPEN),
    "rewards that are all equal": (no_learning, log(reward=0.5, reward_std=0.0), FOUND, "constant"),
    "a reward at its highest from the first step on": (no_learning, log(reward=1.0, **TOP), FOUND, "constant"),
    "a fall that is sure at 95% and not at 99%":
        (no_learning, log(reward=0.5 - 0.6 * np.linspace(0, 1, 60) + 0.38 * np.random.default_rng(7).normal(size=60)),
         FOUND, "falls"),
    "one number in the last two thirds of the steps": (no_learning, log(120, reward=STUCK), FOUND, "problem", "constant"),
    "the same, of rewards that differ": (no_learning, log(120, reward=STUCK, reward_std=0.3), OPEN),
    "one number that is the highest": (no_learning, log(120, reward=np.repeat([0.2, 0.7], [40, 80])), ABSENT),
    "a fall, which collapse says": (no_learning, log(reward=falling), ABSENT),
    "a reward that is the highest there is in every step": (solved, log(reward=1.0, **TOP), OPEN),
    "one that gets there": (solved, log(reward=np.minimum(np.linspace(0.2, 1.8, 60), 1.0), **TOP), FOUND),
    "rewards of 0 and 1": (solved, log(reward=np.r_[0.5, np.ones(59)], completions=HALF_RIGHT), FOUND),
    "a reward above 1 has a weight": (solved, log(reward=np.tile([0.9, 1.1], 30), completions=HALF_RIGHT), OPEN),
    "lengths that are the same in all steps": (length_runaway, log(mean_length=256.0, reward=flat), ABSENT),
    "lengths that grow once a task is solved":
        (length_runaway, log(mean_length=lambda x: 10 + 50 * x, reward=1.0, **TOP), FOUND, "warning"),
    # rows and steps
    "steps that use completions once more":
        (missing_rewards, log(reward=EVERY_OTHER, mean_length=7 * EVERY_OTHER), OPEN),  # means hide rows without one
    "steps that do not": (missing_rewards, log(reward=EVERY_OTHER, mean_length=7.0), FOUND),
    "steps of which nothing tells": (missing_rewards, log(reward=EVERY_OTHER), OPEN),
    "steps that begin again": (log_damage, log(order=[*range(1, 30), *range(1, 30)]), FOUND, "two-runs"),
    "a step that is there twice": (log_damage, log(order=[1, 2, 3, 3, 4]), FOUND, "twice"),
    "steps out of order": (log_damage, log(order=[1, 3, 2, 4]), FOUND, "order"),
    "steps that are missing": (log_damage, log(order=[1, 2, 3, 9, 10]), FOUND, "missing"),
    "steps that are logged every tenth": (log_damage, log(order=[1, 10, 20, 30, 40]), ABSENT),
    "a KL below 0 throughout": (kl_runaway, log(kl=lambda x: -2 - 3 * x, reward=rising), FOUND, "warning", "negative"),
    "an estimate of the KL that scatters around 0": (kl_runaway, log(kl=lambda x: 0 * x - 0.01, reward=rising), ABSENT),
    "a loss that is logged less often than the reward":
        (log_damage, log(reward=flat, loss=np.where(np.arange(60) % 10 == 9, 0.1, np.nan)), ABSENT),
    "a loss that is lost after the first step":
        (log_damage, log(reward=flat, loss=np.where(np.arange(60) == 0, 0.1, np.nan)), FOUND, "not-finite"),
    "a loss that is lost once": (log_damage, log(reward=flat, loss=np.where(np.arange(60) == 9, np.nan, 0.1)), ABSENT),
    "a reward stuck at 0, as some documented ones are": (documented_run, log(49, reward=np.zeros(49)), ABSENT),
}  # fmt: skip


@pytest.mark.parametrize("about", CASES)
def test_a_rule_tells_what_looks_alike(about):
    rule, made, *expected = CASES[about]
    found = rule(made)
    assert set(expected) <= {found.verdict, found.severity, found.cause}, found


def test_a_step_at_a_learning_rate_of_0_changes_nothing():
    """A gradient was logged, which was taken for that of other terms."""
    finding = zero_gradient(log(grad_norm=0.31234, learning_rate=0.0))
    assert "of the steps change nothing: the learning rate is 0" in finding.says
