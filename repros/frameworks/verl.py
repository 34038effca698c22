"""verl: `verl/trainer/ppo/core_algos.py`, with the weights of `rollout_corr_helper.py`, put together as `ppo_loss` does."""

from types import SimpleNamespace

import numpy as np
import torch

from workbench.conform import NotOffered, with_torch

PACKAGE = "verl"
OFFERS = {"epsilon_high", "beta", "kl_estimator", "processes", "scale_rewards", "reward_weights"}
OFFERS |= {f"importance_sampling_{what}" for what in ("level", "mode", "clip_min", "clip_max")}
OFFERS |= {"sapo_temperature_pos", "sapo_temperature_neg"}
MEANS = {"grpo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean", "gspo": "seq-mean-token-mean"}
MEANS |= {"dr_grpo": "seq-mean-token-sum-norm", "reinforce": "seq-mean-token-sum"}


class ActorConfig(SimpleNamespace):
    def get(self, name, default=None):
        return getattr(self, name, default)


def functions(wheel):
    masked = wheel.take("verl/utils/torch_functional.py", "masked_sum", "masked_mean", "masked_var", "masked_whiten")
    losses = [f"compute_policy_loss_{kind}" for kind in ("vanilla", "gspo", "cispo", "sapo", "dppo_tv", "gpg")]
    groups = [f"compute_{kind}_outcome_advantage" for kind in ("grpo", "rloo", "gdpo")]
    file, given = "verl/trainer/ppo/core_algos.py", {"verl_F": masked, "ActorConfig": ActorConfig, "AlgoConfig": dict}
    core = wheel.take(file, "agg_loss", "kl_penalty", "kl_penalty_forward", *losses, *groups, **given)
    parts = ("SAFETY_BOUND", "_parse_rollout_is_threshold", "compute_rollout_correction_weights")
    given = {"verl_F": masked, "compute_is_metrics": lambda **_: {}}
    rollout = wheel.take("verl/trainer/ppo/rollout_corr_helper.py", *parts, **given)

    def loss(case, kind, claim):
        s, mask = case.settings, case.mask.bool()
        info = {"dp_size": case.processes, "batch_num_tokens": case.total_tokens}
        info |= {"global_batch_size": case.total_rows, "loss_scale_factor": s["max_completion_length"]}
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        config = ActorConfig(clip_ratio=s["epsilon"], clip_ratio_low=s["epsilon"], clip_ratio_high=high)
        config.clip_ratio_c, config.global_batch_info = 3.0, info  # the default; it has no "off"
        config.tau_pos, config.tau_neg = s["sapo_temperature_pos"], s["sapo_temperature_neg"]
        if claim == "cispo":
            config.clip_ratio_low, config.clip_ratio_high = 1.0, high - 1
        old = case.sampled_logps if claim == "dppo" else case.old_logps  # bypass mode
        weights = None
        if mode := s["importance_sampling_mode"]:
            level, _, action = mode.partition("_")
            if level == "geometric":
                raise NotOffered("its geometric mask weighs rows with 1")
            low, limit = s["importance_sampling_clip_min"], s["importance_sampling_clip_max"]
            limit = 1e9 if limit is None else limit
            limits = f"{low or 1e-9}_{limit}" if action == "mask" else limit
            ratio = case.old_logps - case.sampled_logps
            weights = rollout.compute_rollout_correction_weights(ratio, mask, level, limits)[0]
        if s["importance_sampling_level"] == "sequence":
            kind = "gspo"
        function, mean = getattr(core, f"compute_policy_loss_{kind}"), MEANS.get(claim, "token-mean")
        advantages = case.advantages[:, None].expand_as(case.logps)
        value = function(old, case.logps, advantages, mask, mean, config, weights)[0]
        if s["beta"]:
            kl = core.kl_penalty(case.logps, case.ref_logps, s["kl_estimator"])
            value = value + s["beta"] * core.agg_loss(kl, mask, mean, **info)
        return value

    def advantages(case, kind):
        rewards, groups = case.rewards.clone(), case.groups.numpy()
        ones, settings = torch.ones(len(rewards), 1), {}
        if kind == "gdpo":
            keys = [str(number) for number in range(rewards.shape[1])]
            config = {"gdpo_reward_keys": keys, "gdpo_reward_weights": case.settings["reward_weights"]}
            batch = {"prompts": ones, "attention_mask": torch.ones(len(rewards), 2, dtype=torch.long)}
            parts = {key: np.array(rewards[:, int(key)]) for key in keys}
            settings, rewards = {"config": config, "non_tensor_batch": parts, "batch": batch}, rewards[:, 0]
        elif case.settings["scale_rewards"] == "batch":
            raise NotOffered("no deviation of the batch")
        elif kind == "grpo":
            settings = {"norm_adv_by_std_in_grpo": case.settings["scale_rewards"] == "group"}
        function = getattr(core, f"compute_{kind}_outcome_advantage")
        return function(rewards[:, None], ones, groups, **settings)[0][:, 0]

    kinds = dict.fromkeys(("dapo", "grpo", "dr_grpo", "dual_clip", "decoupled_ppo", "icepop"), "vanilla")
    kinds |= {"gspo": "gspo", "cispo": "cispo", "sapo": "sapo", "dppo": "dppo_tv", "reinforce": "gpg"}
    asked = {name: with_torch(lambda case, k=kind, n=name: loss(case, k, n)) for name, kind in kinds.items()}
    for kind in ("grpo", "rloo", "gdpo"):
        asked[f"{kind}_advantages"] = with_torch(lambda case, k=kind: advantages(case, k))
    return asked
