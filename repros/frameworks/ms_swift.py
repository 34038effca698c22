"""ms-swift: `_compute_loss_and_metrics` of its GRPO trainer, on a trainer of attributes alone, and `compute_advantages`.

Its two faults in a few lines. A completion that no reward function scored has a reward of 0 (swift/rl_core/advantage.py:58):

    >>> rewards = torch.tensor([[1.0], [torch.nan], [0.5], [0.5]]).nansum(dim=1)
    >>> rewards - rewards.view(-1, 4).mean(dim=1).repeat_interleave(4)  # the second has no reward, and is made less likely
    tensor([ 0.5000, -0.5000,  0.0000,  0.0000])

Before 4.6.0 DAPO's loss of two equal micro-batches is half of what it should be (swift/rlhf_trainers/grpo_trainer.py:1142):

    >>> tokens, micro_batches = torch.ones(2, 4), 2
    >>> losses = [row.sum() / tokens.numel() for row in tokens]  # by the tokens of the step
    >>> sum(loss / micro_batches for loss in losses)  # by `Trainer.training_step` of transformers; the mean is 1
    tensor(0.5000)
"""

import functools
from types import SimpleNamespace

import torch

from workbench.conform import NotOffered, with_torch

PACKAGE = "ms-swift"
OFFERS = {"epsilon_high", "delta", "beta", "processes", "scale_rewards", "reward_weights", "normalize_advantages"}
OFFERS |= {f"importance_sampling_{what}" for what in ("level", "mode", "clip_max")}
OFFERS |= {"off_policy_mask_threshold", "sapo_temperature_pos", "sapo_temperature_neg"}


def functions(wheel):
    nanstd = wheel.take("swift/utils/torch_utils.py", "nanstd").nanstd
    names = ("_compute_loss_and_metrics", "_undo_gradient_accumulation_scaling", "_compute_sequence_level_ratios")
    names += ("_get_rollout_is_correction", "_apply_rollout_importance_sampling", "_compute_off_policy_sequence_mask")
    given = {"gather_object": lambda x: x, "nanmin": torch.min, "nanmax": torch.max}  # of metrics
    file = "swift/rlhf_trainers/grpo_trainer.py"
    names = [name for name in names if wheel.has(file, f"GRPOTrainer.{name}")]  # the second is new in 4.6.0
    constants = [name for name in ("WINDOW_NORMALIZED_LOSS_TYPES",) if wheel.has(file, name)]
    swift = wheel.take(file, *constants, *(f"GRPOTrainer.{name}" for name in names), **given)
    rewards_of = wheel.take("swift/rl_core/advantage.py", "compute_advantages", nanstd=nanstd)

    def trainer(case):
        s = case.settings
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        self = SimpleNamespace(**s, args=SimpleNamespace(**s, gradient_accumulation_steps=case.micro_batches))
        self.epsilon_low, self.epsilon_high = s["epsilon"], high
        self.tau_pos, self.tau_neg = s["sapo_temperature_pos"], s["sapo_temperature_neg"]
        self.rollout_importance_sampling_mode = s["importance_sampling_mode"]
        self.rollout_importance_sampling_threshold = s["importance_sampling_clip_max"]
        self.off_policy_sequence_mask_delta = s["off_policy_mask_threshold"]
        self.current_gradient_accumulation_steps = case.micro_batches
        self.overlong_filter = self.kl_in_reward = self.compute_entropy = self.log_rollout_offpolicy_metrics = False
        self.disable_rollout_importance_sampling = self._has_teacher = self.model_accepts_loss_kwargs = False
        self.sdar_loss_coef, self.compute_loss_func, self.chord_sft_iterator = 0.0, None, None
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(num_processes=case.processes, gather_for_metrics=lambda x: x)
        self._get_per_token_logps_and_entropies = lambda *_, **__: (case.logps, None)
        self._compute_rollout_offpolicy_metrics = self._compute_is_correction_metrics = lambda *_: {}
        for name in names:
            setattr(self, name, functools.partial(getattr(swift, name), self))
        return self

    def loss(case):
        if (case.settings["importance_sampling_mode"] or "").startswith(("sequence", "geometric")):
            raise NotOffered("a row's weight: it is the geometric mean, and a mask weighs the others token by token")
        batch = SimpleNamespace(completion_mask=case.mask.bool(), truncated_mask=torch.zeros(len(case.mask)).bool())
        batch.advantages = case.advantages[:, None].expand_as(case.logps)
        batch.old_per_token_logps, batch.ref_per_token_logps = case.old_logps, case.ref_logps
        batch.rollout_per_token_logps = case.sampled_logps
        batch.num_items_in_batch = torch.tensor(case.total_tokens)
        value = trainer(case)._compute_loss_and_metrics(None, {}, batch)[0]
        return value / case.micro_batches  # the Trainer of transformers

    def advantages(case, kind):
        rewards, s = case.rewards, case.settings
        if s["normalize_advantages"]:
            raise NotOffered("no normalization over the batch")
        rewards = rewards if rewards.ndim == 2 else rewards[:, None]
        weights = torch.ones(rewards.shape[1]) if s["reward_weights"] is None else torch.tensor(s["reward_weights"])
        scale = {"gdpo": "gdpo", "rloo": "none"}.get(kind, s["scale_rewards"])
        estimator = "rloo" if kind == "rloo" else "grpo"
        options = (rewards, weights, case.num_generations, estimator, scale if kind != "sum" else "none")
        return rewards_of.compute_advantages(*options)[1 if kind == "sum" else 0]

    claims = ("dapo", "grpo", "bnpo", "dr_grpo", "gspo", "cispo", "sapo", "dual_clip")
    asked = {name: with_torch(loss) for name in claims}
    for kind in ("grpo", "rloo", "gdpo"):
        asked[f"{kind}_advantages"] = with_torch(lambda case, k=kind: advantages(case, k))
    return asked | {"weighted_rewards": with_torch(lambda case: advantages(case, "sum"))}
