"""What a function can claim to be, one sentence each. It loads nothing, so that the command line can list it."""

NAMES = {
    "dapo": "clipped, the mean over all tokens of the step",
    "grpo": "clipped, the mean over rows of the mean over their tokens",
    "bnpo": "clipped, the mean over the tokens of each micro-batch",
    "dr_grpo": "clipped, the sum over tokens, divided by rows * max_completion_length",
    "gspo": "as grpo, with one ratio a row: the mean of its tokens' log-ratios",
    "luspo": "as gspo, where each row counts as often as it has tokens",
    "cispo": "the log-prob, weighted with the limited ratio, through which no gradient flows",
    "sapo": "as grpo, with a sigmoid of the ratio in place of the clip",
    "vespo": "the log-prob, weighted with a gamma weight of the row's ratio",
    "reinforce": "the log-prob, weighted with the advantage; the mean over rows of the sum over their tokens",
    "dual_clip": "as dapo, where a ratio counts 3 at most if the advantage is negative",
    "decoupled_ppo": "as dapo, weighted with the ratio of the trainer's old policy to the sampler's",
    "icepop": "as decoupled_ppo, without the tokens whose weight is not in 0.5 to 5",
    "dppo": "the ratio to the sampler, without tokens whose probability moved more than epsilon",
    "rloo": "clipped, one ratio a row: the product of its tokens' ratios",
    "distillation": "KL(policy || teacher) of a sampled token against all others, the mean over all tokens of the step",
    "grpo_advantages": "reward - mean of the group, divided by the group's standard deviation + 1e-4",
    "rloo_advantages": "reward - mean of the others of the group",
    "gdpo_advantages": "the rewards of each function normalized in the group, summed, normalized over the batch",
    "weighted_rewards": "the weighted sum of the rewards of each row",
}
