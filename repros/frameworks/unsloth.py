"""Unsloth: `grpo_compute_loss` of unsloth_zoo, with which it replaces the loss of TRL's trainer."""

import torch

from workbench.conform import NotOffered, with_torch

PACKAGE = "unsloth_zoo"
OFFERS = {"epsilon_high", "delta", "beta", "use_bias_correction_kl", "processes"}
OFFERS |= {f"importance_sampling_{what}" for what in ("level", "mode", "clip_min", "clip_max")}
OFFERS |= {"sapo_temperature_pos", "sapo_temperature_neg"}


def functions(wheel):
    zoo = wheel.take("unsloth_zoo/rl_replacements.py", "grpo_compute_loss")

    def loss(case):
        s = dict(case.settings)
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        options = s | {"epsilon_low": s["epsilon"], "epsilon_high": high, "num_processes": case.processes}
        options |= {"num_items_in_batch": torch.tensor(case.total_tokens), "steps_per_generation": case.micro_batches}
        options["current_gradient_accumulation_steps"] = case.micro_batches
        options["use_vllm"] = options["vllm_importance_sampling_correction"] = bool(s["importance_sampling_mode"])
        options |= {f"vllm_{name}": value for name, value in s.items() if name.startswith("importance_sampling_")}
        if s["importance_sampling_clip_max"] is None:
            options["vllm_importance_sampling_clip_max"] = float("inf")
        ids, beta = torch.zeros_like(case.mask, dtype=torch.long), options.pop("beta")
        tables = (case.ref_logps, case.logps, case.old_logps, case.sampled_logps, ids, case.mask, beta)
        try:
            return zoo.grpo_compute_loss(*tables, case.advantages, **options)[0]
        except ValueError as error:  # a mode that this release does not have yet
            raise NotOffered(str(error)) from error

    claims = ("dapo", "grpo", "bnpo", "dr_grpo", "gspo", "luspo", "cispo", "sapo", "dual_clip")
    claims += ("decoupled_ppo", "icepop")
    return {name: with_torch(loss) for name in claims}
