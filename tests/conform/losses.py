"""Each loss written again in torch, as a trainer would have it, and faults to put into it."""

import torch

from workbench.conform import Case, with_torch

LOSS_FAULTS = ("divisor", "sign", "clip", "mask", "kl")
FAULTS = (*LOSS_FAULTS, "group size")


def torch_loss(fault: str = ""):
    """A function of a case for all losses, healthy or with one of `LOSS_FAULTS`."""
    return with_torch(lambda case: _loss(case, fault))


def torch_advantages(fault: str = ""):
    """A function of a case for GRPO's and RLOO's advantages, healthy or with groups of another size."""
    return with_torch(lambda case: _advantages(case, fault))


def _loss(case: Case, fault: str) -> torch.Tensor:
    s, a = case.settings, case.advantages[:, None]
    mask = torch.ones_like(case.mask) if fault == "mask" else case.mask
    tables = case.logps, case.old_logps, case.ref_logps, case.sampled_logps
    new, old, ref, sampled = (table.masked_fill(mask == 0, 0.0) for table in tables)
    count = mask.sum(1, keepdim=True)
    log_ratio, kind = new - old, s["loss_type"]
    if kind == "rloo":
        log_ratio = (log_ratio * mask).sum(1, keepdim=True)
    elif s["importance_sampling_level"] == "sequence":
        log_ratio = (log_ratio * mask).sum(1, keepdim=True) / count.clamp(min=1)
    ratio = log_ratio.exp()
    low, high = s["epsilon"], s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
    if fault == "clip":
        low, high = (low, 1.1) if kind == "cispo" else (0.1, 0.3)
    weight = _correction(case, old, sampled, mask)
    if s["divergence_beta"] is not None:
        policy, teacher = (torch.stack([x, torch.log(-torch.expm1(x))], -1) for x in (case.logps, case.ref_logps))
        loss = _divergence(policy[mask > 0], teacher.nan_to_num()[mask > 0], s["divergence_beta"])
        loss = torch.zeros_like(mask).masked_scatter(mask > 0, loss)
    elif kind == "reinforce":
        loss = -a * new
    elif kind == "dppo":
        log_ratio = new - sampled
        far = (new.exp() - sampled.exp()).abs() > (0.3 if fault == "clip" else low)
        loss = -(log_ratio.exp() * a).masked_fill(far & (log_ratio * a > 0), 0.0)
    elif kind == "cispo":
        loss = -ratio.clamp(max=high).detach() * a * new
    elif kind == "vespo":
        loss = -_gamma(log_ratio, mask, weight, a, s, fault) * a * new
    elif kind == "sapo":
        negative = s["sapo_temperature_pos" if fault == "clip" else "sapo_temperature_neg"]
        temperature = torch.where(a > 0, s["sapo_temperature_pos"], negative)
        loss = -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * a
    else:
        limited = ratio if s["delta"] is None else ratio.clamp(max=s["delta"])
        loss = -torch.minimum(limited * a, ratio.clamp(1 - low, 1 + high) * a)
    if s["off_policy_mask_threshold"] is not None:
        drift = ((sampled - new).detach() * mask).sum(1, keepdim=True) / count.clamp(min=1)
        loss = loss * ((a >= 0) | (drift <= s["off_policy_mask_threshold"]))
    if kind != "vespo":
        loss = loss * weight
    if s["beta"]:
        kl = _kl(ref - new if fault == "kl" else new - ref, s["kl_estimator"])
        loss = loss + s["beta"] * (kl * ratio if s["use_bias_correction_kl"] else kl)
    loss = -loss if fault == "sign" else loss
    return _mean(case, loss, mask, kind) / (len(mask) + 1 if fault == "divisor" else 1)


def _mean(case: Case, loss: torch.Tensor, mask: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "rloo":
        return loss.mean() / case.micro_batches
    if kind in ("dapo", "cispo", "vespo", "dppo"):
        return (loss * mask).sum() / max(case.total_tokens, 1) * case.processes
    rows = (loss * mask).sum(1)
    if kind == "bnpo":
        mean = rows.sum() / mask.sum().clamp(min=1)
    elif kind == "dr_grpo":
        mean = rows.mean() / case.settings["max_completion_length"]
    elif kind in ("luspo", "reinforce"):
        mean = rows.mean()
    else:
        mean = (rows / mask.sum(1).clamp(min=1)).mean()
    return mean / case.micro_batches


def _kl(d: torch.Tensor, estimator: str) -> torch.Tensor:
    if estimator.endswith("+"):  # the value of one with the gradient of k2
        square = _kl(d, "k2")
        return _kl(d, estimator[:2]).detach() + square - square.detach()
    return {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() + d - 1}[estimator]


def _divergence(policy: torch.Tensor, teacher: torch.Tensor, beta: float) -> torch.Tensor:
    """As `DistillationConfig.beta` defines it, by the probabilities."""
    p, q = policy.exp(), teacher.exp()
    if beta in (0, 1):
        return (p * (policy - teacher) if beta else q * (teacher - policy)).sum(-1)
    middle = torch.log((1 - beta) * p + beta * q)
    return (beta * q * (teacher - middle) + (1 - beta) * p * (policy - middle)).sum(-1)


def _correction(case: Case, old: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mode = case.settings["importance_sampling_mode"]
    if mode is None:
        return torch.ones_like(mask)
    difference = ((old - sampled) * mask).nan_to_num()
    weight = (difference.sum(1, keepdim=True) if mode.startswith("sequence") else difference).exp()
    if mode == "geometric_mask":
        weight = (difference.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).exp()
    low, high = case.settings["importance_sampling_clip_min"], case.settings["importance_sampling_clip_max"]
    if low is None and high is None:
        return weight
    if mode.endswith("truncate"):
        return weight.clamp(min=low, max=high)
    return weight * (weight <= high) * (weight >= (low or 0.0))


def _gamma(
    log_ratio: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor, a: torch.Tensor, s, fault: str
) -> torch.Tensor:
    log_w = (log_ratio.detach().clamp(-20, 20) * mask).sum(1, keepdim=True)
    log_w = log_w + weight.log().clamp(-18.420680743952367, 20).sum(1, keepdim=True)
    log_w = log_w.clamp(-18.420680743952367, 20)
    k = torch.where(a >= 0, s["vespo_k_pos"], s["vespo_k_neg"])
    scale = torch.where(a >= 0, s["vespo_lambda_pos"], s["vespo_lambda_neg"])
    return (scale + k * log_w - (0 if fault == "clip" else scale * log_w.exp())).exp()


def _advantages(case: Case, fault: str) -> torch.Tensor:
    size = 1 if fault == "group size" and case.num_generations > 1 else case.num_generations
    size = 2 * size if fault == "group size" and size == 1 and len(case.rewards) % 2 == 0 else size
    groups = case.rewards.reshape(-1, size)
    judged = ~groups.isnan()
    count, mean = judged.sum(1, keepdim=True), groups.nanmean(1, keepdim=True)
    centred = groups - mean
    if case.settings["advantages"] == "rloo":
        advantages = centred * count / (count - 1)
        judged = judged & (count > 1)
    elif case.settings["scale_rewards"] == "none":
        advantages = centred
    else:
        every = case.rewards[~case.rewards.isnan()]
        deviation = (centred**2).nansum(1, keepdim=True).div(count - 1).sqrt()
        scale = every.std() if case.settings["scale_rewards"] == "batch" else deviation
        advantages = centred / (scale + 1e-4)
        judged = judged & (count > 1)
    advantages = torch.where(judged, advantages, 0.0).flatten()
    if not case.settings.get("normalize_advantages"):
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + 1e-4)
