"""frac_reward_zero_std is 0 though every group has equal rewards, with scale_rewards="batch".

Cause: the metric asks whether the standard deviation that scales the advantages is 0 (trl/trainer/grpo_trainer.py:2788, 2800
on 1.16.0). With scale_rewards="batch", and with multi_objective_aggregation="normalize_then_sum", that is the deviation of
the batch.
Harm: this metric should say that a step has no gradient. It says the opposite, for the recipe of Lite PPO among others. A
user whose reward stays flat looks for the cause everywhere else.
Met by: scale_rewards="batch" or multi_objective_aggregation="normalize_then_sum" (GRPO).
Reported: not found as an issue; huggingface/trl#6365 and #7068, closed, touch it.
Patch: ask for the standard deviation within each group, whatever scales the advantages.
"""

import dataclasses
import tempfile

import tiny
from trl import GRPOConfig, GRPOTrainer

own = tiny.tokenizer()


def of_its_prompt(prompts, **_):
    """Each group has one reward, and the groups differ."""
    return [float(tiny.WORDS.index(prompt)) for prompt in prompts]


def one_group_of_two(prompts, **_):
    """The first group has one reward, the second differs within."""
    return [float(n % 2) if prompt == prompts[-1] else 0.0 for n, prompt in enumerate(prompts)]


def logged(reward, **fields):
    args = GRPOConfig(tempfile.mkdtemp(), **tiny.GRPO | fields)
    trainer = GRPOTrainer(tiny.model(own), reward, args, tiny.prompts(), processing_class=own)
    trainer.train()
    log = trainer.state.log_history[0]
    return log["frac_reward_zero_std"], log["grad_norm"]


share, norm = logged(of_its_prompt, scale_rewards="batch")
says, wrong = f'"batch", all groups equal: {share:g}, grad_norm {norm:g}', share != 1
if "multi_objective_aggregation" in {field.name for field in dataclasses.fields(GRPOConfig)}:
    share, _ = logged(one_group_of_two, multi_objective_aggregation="normalize_then_sum")
    says, wrong = f'{says}; "normalize_then_sum", one of two equal: {share:g}', wrong or share != 0.5
tiny.verdict(wrong, f"frac_reward_zero_std with {says}", "1 where all are equal, 0.5 where one of two is")
