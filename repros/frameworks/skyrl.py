"""SkyRL: losses of `ppo_utils.py` on advantages that carry the mean's divisor; KL as `worker.py` adds it, a mean of rows."""

import sys
from types import SimpleNamespace

import torch

from workbench.conform import NotOffered, with_torch

PACKAGE = "skyrl"
OFFERS = {"epsilon_high", "beta", "kl_estimator", "processes", "scale_rewards"}
OFFERS |= {f"importance_sampling_{what}" for what in ("level", "mode", "clip_min", "clip_max")}
OFFERS |= {"sapo_temperature_pos", "sapo_temperature_neg"}
FOLDER = "skyrl/backends/skyrl_train/utils/"
MEANS = {
    "grpo": "sequence_mean",
    "sapo": "sequence_mean",
    "gspo": "sequence_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
}


def functions(wheel):
    silent = SimpleNamespace(warning=lambda *_: None)
    sys.modules.setdefault("loguru", SimpleNamespace(logger=silent))  # imported inside of functions
    torch_utils = vars(wheel.take(FOLDER + "torch_utils.py", "masked_mean", "safe_exp_delta"))
    parts = ["off_policy_correction_enabled", "compute_tis_ratio", "compute_outlier_token_mask", "compute_token_mask"]
    parts += ["compute_sequence_mask", "compute_off_policy_correction", "apply_off_policy_correction"]
    file = FOLDER + "off_policy_correction_utils.py"
    parts = [name for name in parts if wheel.has(file, name)]  # the first is new in 0.3.0
    correction = wheel.take(file, *parts, **torch_utils)
    names = ["ppo_policy_loss", "gspo_policy_loss", "sapo_policy_loss", "compute_policy_loss_cispo", "dppo_policy_loss"]
    names += ["reduce_loss", "apply_loss_reduction_to_advantages_minibatch", "compute_approx_kl"]
    names += ["compute_grpo_outcome_advantage", "compute_rloo_outcome_advantage"]
    names = [name for name in names if wheel.has(FOLDER + "ppo_utils.py", name)]  # DPPO too
    given = torch_utils | {"apply_off_policy_correction": correction.apply_off_policy_correction}
    utils = wheel.take(FOLDER + "ppo_utils.py", *names, **given)

    def loss(case, kind, claim):
        s, mask = case.settings, case.mask
        reduction = MEANS.get(claim, "token_mean")
        size = (case.step_mask, reduction, len(mask), s["max_completion_length"])
        shares = utils.apply_loss_reduction_to_advantages_minibatch(torch.ones_like(case.step_mask), *size)
        advantages = case.advantages[:, None] * shares[case.step_rows]
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        config = SimpleNamespace(eps_clip_low=s["epsilon"], eps_clip_high=high, loss_reduction=reduction)
        config.policy_loss_type, config.clip_ratio_c = "dual_clip" if s["delta"] else "regular", s["delta"]
        config.sapo = SimpleNamespace(tau_pos=s["sapo_temperature_pos"], tau_neg=s["sapo_temperature_neg"])
        config.cispo = SimpleNamespace(cispo_eps_clip_low=1.0, cispo_eps_clip_high=high - 1)
        config.dppo = SimpleNamespace(dppo_type="binary_tv", delta_low=s["epsilon"], delta_high=s["epsilon"])
        config.off_policy_correction = corrected(s)
        if s["importance_sampling_level"] == "sequence":
            kind = "gspo_policy_loss"
        tables = (case.logps, case.old_logps, advantages, config, mask, case.sampled_logps)
        value = getattr(utils, kind)(*tables)[0] * case.processes
        if s["beta"]:
            if s["kl_estimator"].endswith("+"):
                raise NotOffered("no estimate with the gradient of k2")
            kl = utils.compute_approx_kl(case.logps, case.ref_logps, mask, s["kl_estimator"])
            kl = torch_utils["masked_mean"](kl, mask, dim=-1).mean()
            value = value + s["beta"] * kl / case.micro_batches
        return value

    def advantages(case, kind):
        if case.settings["scale_rewards"] == "batch":
            raise NotOffered("no deviation of the batch")
        options = {"grpo_norm_by_std": case.settings["scale_rewards"] == "group"} if kind == "grpo" else {}
        function = getattr(utils, f"compute_{kind}_outcome_advantage")
        ones = torch.ones(len(case.rewards), 1)
        return function(case.rewards.clone()[:, None], ones, case.groups.numpy(), **options)[0][:, 0]

    kinds = dict.fromkeys(("dapo", "grpo", "dr_grpo", "dual_clip", "decoupled_ppo", "icepop"), "ppo_policy_loss")
    kinds |= {"gspo": "gspo_policy_loss", "cispo": "compute_policy_loss_cispo", "sapo": "sapo_policy_loss"}
    kinds |= {"dppo": "dppo_policy_loss"} if "dppo_policy_loss" in names else {}
    asked = {name: with_torch(lambda case, k=kind, n=name: loss(case, k, n)) for name, kind in kinds.items()}
    for kind in ("grpo", "rloo"):
        asked[f"{kind}_advantages"] = with_torch(lambda case, k=kind: advantages(case, k))
    return asked


def corrected(settings):
    """The correction of the sampler with which a weight is what a mode of TRL says: the ratio, and a mask next to it."""
    names = ("tis_ratio_type", "sequence_mask_metric", "token_mask_is_threshold_low", "token_mask_is_threshold_high")
    names += ("outlier_token_is_threshold_low", "outlier_token_is_threshold_high")
    config = SimpleNamespace(**dict.fromkeys(names))
    level, _, action = (settings["importance_sampling_mode"] or "").partition("_")
    if not level:
        return config
    if level == "geometric":
        raise NotOffered("its geometric mask weighs rows with 1")
    limit = settings["importance_sampling_clip_max"]
    limit, low = float("inf") if limit is None else limit, settings["importance_sampling_clip_min"] or 0.0
    config.tis_ratio_type = level
    config.token_tis_ratio_clip_high = config.sequence_tis_ratio_clip_high = float("inf") if action == "mask" else limit
    if action == "mask" and level == "token":
        config.token_mask_is_threshold_low, config.token_mask_is_threshold_high = low, limit
    elif action == "mask":
        config.sequence_mask_metric, config.product_mask_low, config.product_mask_high = "product", low, limit
    return config
