"""TRL: `_compute_loss` of the GRPO and RLOO trainers, on a trainer of attributes alone.

Advantages and the weights of the sampler are lines of `_generate_and_score_completions`, taken from there.
"""

from collections import defaultdict
from types import SimpleNamespace

import torch

from workbench.conform import NotOffered, with_torch

PACKAGE = "trl"
OFFERS = {"epsilon_high", "delta", "beta", "use_bias_correction_kl", "importance_sampling_level", "processes"}
OFFERS |= {"off_policy_mask_threshold", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_k_neg"}
OFFERS |= {"vespo_lambda_pos", "vespo_lambda_neg", "scale_rewards", "reward_weights", "normalize_advantages"}
OFFERS |= {f"importance_sampling_{what}" for what in ("mode", "clip_min", "clip_max")}
SAMPLING = "_generate_and_score_completions"


def functions(wheel):
    utils = vars(wheel.take("trl/trainer/utils.py", "nanmin", "nanmax", "nanstd"))
    grpo_file, rloo_file = "trl/trainer/grpo_trainer.py", "trl/trainer/rloo_trainer.py"
    names = ("_compute_loss", "get_off_policy_mask", "get_gamma_weights")
    grpo = wheel.take(grpo_file, *(f"GRPOTrainer.{name}" for name in names), **utils)
    rloo = wheel.take(rloo_file, "RLOOTrainer._compute_loss", **utils)
    ends = "unscorable_mask = ", "advantages = torch.nan_to_num"
    groups = {"rloo": wheel.lines(rloo_file, f"RLOOTrainer.{SAMPLING}", *ends, **utils)}
    groups["grpo"] = wheel.lines(grpo_file, f"GRPOTrainer.{SAMPLING}", *ends, **utils)
    begin = "if self.use_vllm and self.vllm_importance_sampling_correction:\n    mask = "
    weights = wheel.lines(grpo_file, f"GRPOTrainer.{SAMPLING}", begin, begin)

    def trainer(case):
        s = case.settings
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        self = SimpleNamespace(**s, args=SimpleNamespace(**s, steps_per_generation=case.micro_batches))
        self.epsilon_low, self.epsilon_high = s["epsilon"], high
        self.current_gradient_accumulation_steps, self.top_entropy_quantile = case.micro_batches, 1.0
        for what in ("mode", "clip_min", "clip_max"):
            setattr(self, f"vllm_importance_sampling_{what}", s[f"importance_sampling_{what}"])
        if self.vllm_importance_sampling_clip_max is None:  # truncation wants a limit, a mask does not
            self.vllm_importance_sampling_mode = "token_mask"
        self.use_vllm = self.vllm_importance_sampling_correction = bool(s["importance_sampling_mode"])
        self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self.model, self._metrics = SimpleNamespace(training=True), defaultdict(lambda: defaultdict(list))
        self.accelerator = SimpleNamespace(num_processes=case.processes, gather=lambda x: x)
        self.accelerator.reduce = lambda x, reduction: x
        self.get_off_policy_mask, self.get_gamma_weights = grpo.get_off_policy_mask, grpo.get_gamma_weights
        answer = (case.logps, torch.zeros_like(case.mask), None)
        self._get_per_token_logps_and_entropies = lambda *_, **__: answer
        return self

    def inputs(case):
        ids = torch.zeros_like(case.mask, dtype=torch.long)
        batch = {"prompt_ids": ids[:, :0], "prompt_mask": case.mask[:, :0], "completion_ids": ids}
        batch |= {"completion_mask": case.mask, "advantages": case.advantages, "old_per_token_logps": case.old_logps}
        batch |= {"ref_per_token_logps": case.ref_logps, "sampling_per_token_logps": case.sampled_logps}
        batch["old_logps"] = (case.old_logps * case.mask).sum(1)  # as RLOO computes it while it samples
        if mode := case.settings["importance_sampling_mode"]:
            if mode == "geometric_mask":
                raise NotOffered("no geometric mean")
            tables = {"completion_mask": case.mask, "tool_mask": None, "old_per_token_logps": case.old_logps}
            after = weights(self=trainer(case), **tables, sampling_per_token_logps=case.sampled_logps)
            batch["importance_sampling_ratio"] = after.vllm_importance_sampling_ratio
        return batch | {"num_items_in_batch": torch.tensor(case.total_tokens)}

    def grpo_loss(case):
        return grpo._compute_loss(trainer(case), None, inputs(case))

    def rloo_loss(case):  # the Trainer of transformers divides by the number of micro-batches
        return rloo._compute_loss(trainer(case), None, inputs(case)) / case.micro_batches

    def advantages(case, kind, name="advantages"):
        s, rewards = case.settings, case.rewards if case.rewards.ndim == 2 else case.rewards[:, None]
        self = SimpleNamespace(reward_weights=torch.tensor(s["reward_weights"] or [1.0] * rewards.shape[1]), beta=0.0)
        self.multi_objective_aggregation = "normalize_then_sum" if kind == "gdpo" else "sum_then_normalize"
        self.scale_rewards, self.normalize_advantages = s["scale_rewards"], s["normalize_advantages"]
        self.reward_funcs, self.reward_clip_range = [None] * rewards.shape[1], None
        read = {"num_generations": case.num_generations, "device": "cpu", "rewards_per_func": rewards}
        return getattr(groups["rloo" if kind == "rloo" else "grpo"](self=self, **read), name)

    claims = ("dapo", "grpo", "bnpo", "dr_grpo", "gspo", "luspo", "cispo", "sapo", "vespo", "dual_clip")
    claims += ("icepop", "decoupled_ppo")
    asked = {name: with_torch(grpo_loss) for name in claims} | {"rloo": with_torch(rloo_loss)}
    for kind in ("grpo", "rloo", "gdpo"):
        asked[f"{kind}_advantages"] = with_torch(lambda case, k=kind: advantages(case, k))
    return asked | {"weighted_rewards": with_torch(lambda case: advantages(case, "sum", "rewards"))}
