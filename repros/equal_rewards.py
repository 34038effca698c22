"""Equal rewards train: eight completions of a prompt, each with reward 0.7, get an advantage, and the weights move.

Cause: in fp32 the mean of eight times 0.7 is not 0.7, and the difference is divided by a standard deviation of nearly 0,
plus 1e-4 (trl/trainer/grpo_trainer.py:2765, 2785, 2787 on 1.16.0). So each completion of the group has an advantage of 0.0006,
all with one sign. Of the rewards 0.1, 0.2 to 2.0 it is so for 15 of 20 in groups of eight, which is TRL's default; for no
multiple of a quarter, and in no group of two or four.
Harm: the step makes all of its completions more likely, or all less. Adam divides by the size of past gradients: where these
were as small, at the first steps or once rewards no longer differ, the weights move by the whole learning rate. The log says
frac_reward_zero_std 0, as if rewards differed.
Met by: 8 or more generations, and rewards such as 0.7 or 1.2, which fp32 rounds (GRPO).
Reported: not found for TRL. Pull requests 4597 of verl and 4158 of NeMo-RL are about the same rounding there.
Patch: compute the advantages in fp64, in which the sum of a group's fp32 rewards is exact.
"""

import tempfile

import tiny
import torch
from trl import GRPOConfig, GRPOTrainer

own = tiny.tokenizer()


def seven_tenths(completions, **_):
    return [0.7] * len(completions)


settings = tiny.GRPO | {"num_generations": 8, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
args = GRPOConfig(tempfile.mkdtemp(), **settings)
trainer = GRPOTrainer(tiny.model(own), seven_tenths, args, tiny.prompts(), processing_class=own)
before = [weight.detach().clone() for weight in trainer.model.parameters()]
trainer.train()
log = trainer.state.log_history[0]
steps = torch.cat([(new - old).abs().flatten() for new, old in zip(trainer.model.parameters(), before, strict=True)])
moved, largest = (steps > 0).float().mean(), steps.max() / args.learning_rate
norm, share = log["grad_norm"], log["frac_reward_zero_std"]
happens = (
    f"rewards all 0.7, frac_reward_zero_std {share:g}: grad_norm {norm:.1g}, {moved:.0%} of the weights move, by up to"
)
tiny.verdict(norm > 0, f"{happens} {largest:.2f} learning rates", "a gradient of 0, and no weight moves")
