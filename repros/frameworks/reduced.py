"""Formulas of frameworks that conform has no name for, in at most ten lines each: they give the numbers stored as wrong.

`FORMULAS` has them by framework, definition and case; a test asks them the stored cases. What is `no guard` comes from four
operations that keep or make a NaN:

    >>> nan = float("nan")
    >>> logps, mask = torch.tensor([-1.0, -1.0], requires_grad=True), torch.tensor([1.0, 0.0])
    >>> (torch.tensor([1.0, nan]) * mask).sum().item()  # the loss times the mask
    nan
    >>> torch.where(mask > 0, torch.exp(logps - torch.tensor([-1.0, nan])), 0.0).sum().backward()  # `where` after `exp`
    >>> logps.grad
    tensor([1., nan])
    >>> (torch.zeros(2) * mask * 0).sum().div((mask * 0).sum()).item()  # over 0 tokens
    nan
    >>> (torch.tensor([1.0, nan]) - torch.tensor([1.0, nan]).mean()).tolist()  # the mean of a group with a NaN
    [nan, nan]

Two faults divide wrongly. A step of two micro-batches has one token of loss 1 and three of loss 0, so its mean is 0.25:

    >>> first, second = torch.tensor([1.0]), torch.zeros(3)
    >>> ((first.mean() + second.mean()) / 2).item()  # AsyncGRPO, AsyncDistillation: the mean of the micro-batches' means
    0.5
    >>> ((first.sum() + second.sum()) / 4 / 2).item()  # ms-swift 4.5.3: once more by the number of micro-batches
    0.125
"""

import torch

from workbench.conform import Case, with_torch


def filled(case: Case, *names: str) -> list[torch.Tensor]:
    """Tables with 0 where the mask leaves out."""
    return [getattr(case, name).masked_fill(case.mask == 0, 0.0) for name in names]


def row_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (values * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def clipped(log_ratio: torch.Tensor, case: Case) -> torch.Tensor:
    ratio, a, low = log_ratio.exp(), case.advantages[:, None], case.settings["epsilon"]
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + low) * a)


def ratio_of(case: Case) -> torch.Tensor:
    """The log-ratio of each token, or GSPO's of each row."""
    new, old = filled(case, "logps", "old_logps")
    of_rows = case.settings["importance_sampling_level"] == "sequence"
    return row_mean(new - old, case.mask).expand_as(new) if of_rows else new - old


def sampler_weight(case: Case) -> torch.Tensor:
    old, sampled = filled(case, "old_logps", "sampled_logps")
    weight, s = (old - sampled).exp(), case.settings
    low, high = s["importance_sampling_clip_min"] or 0.0, s["importance_sampling_clip_max"]
    if s["importance_sampling_mode"] is None:
        return torch.ones_like(weight)
    if s["importance_sampling_mode"] == "token_truncate":
        return weight.clamp(max=high)
    return weight * (weight >= low) * (weight <= high)


def kl(case: Case) -> torch.Tensor:
    new, ref = filled(case, "logps", "ref_logps")
    gap = new - ref
    return {"k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() + gap - 1}[case.settings["kl_estimator"]]


def mean_of_rows(values: torch.Tensor, case: Case) -> torch.Tensor:
    return row_mean(values, case.mask).mean() / case.micro_batches


def mean_of_tokens(values: torch.Tensor, case: Case) -> torch.Tensor:
    return (values * case.mask).sum() / max(case.total_tokens, 1) * case.processes


def term(case: Case) -> torch.Tensor:
    """(R, T), what the loss averages: CISPO's and SAPO's, or the clipped one."""
    a, s, ratio = case.advantages[:, None], case.settings, ratio_of(case).exp()
    if s["loss_type"] == "cispo":
        return -ratio.clamp(max=s["epsilon_high"]).detach() * a * filled(case, "logps")[0]
    if s["loss_type"] == "sapo":
        heat = torch.where(a > 0, s["sapo_temperature_pos"], s["sapo_temperature_neg"])
        return -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * a
    return clipped(ratio_of(case), case)


def mean_by_type(values: torch.Tensor, case: Case) -> torch.Tensor:
    """The mean of the `loss_type`."""
    total = (values * case.mask).sum()
    if case.settings["loss_type"] in ("grpo", "sapo"):
        return mean_of_rows(values, case)
    if case.settings["loss_type"] == "bnpo":
        return total / case.mask.sum() / case.micro_batches
    if case.settings["loss_type"] == "dr_grpo":
        return total / len(values) / case.settings["max_completion_length"] / case.micro_batches
    return mean_of_tokens(values, case)


def gspo_token(case: Case) -> torch.Tensor:
    """The row's ratio with the gradient of each token, so that a token's weight acts on that token's gradient."""
    (new,) = filled(case, "logps")
    log_ratio = ratio_of(case).detach() + new - new.detach()
    loss = clipped(log_ratio, case) * sampler_weight(case)
    return mean_of_rows(loss + case.settings["beta"] * kl(case), case)


def verl_dppo(case: Case) -> torch.Tensor:
    """The log-prob, weighted with the ratio of 3 at most, which has no gradient."""
    new, old = filled(case, "logps", "sampled_logps")
    a, limit = case.advantages[:, None], case.settings["epsilon"]
    moved = new.exp() - old.exp()
    near = torch.where(a > 0, moved <= limit, moved >= -limit)
    return mean_of_tokens(-a * (new - old).exp().clamp(max=3.0).detach() * new * near.detach(), case)


def kl_over_tokens(case: Case) -> torch.Tensor:
    """The loss is a mean of the rows that have tokens, its KL term one of tokens."""
    return rows_with_tokens(case) + case.settings["beta"] * mean_of_tokens(kl(case), case)


def kl_over_rows(case: Case) -> torch.Tensor:
    """The loss is DAPO's, Dr. GRPO's or CISPO's, its KL term a mean of rows."""
    return mean_by_type(term(case) * sampler_weight(case), case) + case.settings["beta"] * mean_of_rows(kl(case), case)


def weighted_kl(case: Case) -> torch.Tensor:
    """The sampler's weight multiplies the KL term too."""
    return mean_by_type(sampler_weight(case) * (term(case) + case.settings["beta"] * kl(case)), case)


def rows_with_tokens(case: Case) -> torch.Tensor:
    """A mean over the rows of the step that have tokens."""
    rows = (case.step_mask.sum(1) > 0).sum()
    return row_mean(clipped(ratio_of(case), case) * sampler_weight(case), case.mask).sum() / rows


def gspo_to_the_sampler(case: Case) -> torch.Tensor:
    """GSPO's ratio is to the sampler, and there is no weight; the KL term is a mean of tokens."""
    new, sampled = filled(case, "logps", "sampled_logps")
    loss = clipped(row_mean(new - sampled, case.mask).expand_as(new), case)
    return mean_of_rows(loss, case) + case.settings["beta"] * mean_of_tokens(kl(case), case)


def left_out_of_the_ratio(case: Case) -> torch.Tensor:
    """A token whose weight is masked has no part in the row's ratio either; the divisor is the tokens of the step."""
    new, old = filled(case, "logps", "old_logps")
    weight = sampler_weight(case)
    ratio = row_mean(new - old, case.mask * (weight > 0)).expand_as(new)
    return mean_of_tokens(clipped(ratio, case) * weight, case)


def sapo_over_tokens(case: Case) -> torch.Tensor:
    """SAPO's gate, as a mean over the tokens of the step."""
    return mean_of_tokens(term(case), case)


def off_policy_rows_leave_the_divisor(case: Case) -> torch.Tensor:
    """BNPO, where rows off policy are no part of the mean."""
    new, old = filled(case, "logps", "sampled_logps")
    drift = row_mean(old - new, case.mask).detach()
    stays = (case.advantages[:, None] >= 0) | (drift <= case.settings["off_policy_mask_threshold"])
    mask = case.mask * stays
    return (clipped(ratio_of(case), case) * mask).sum() / mask.sum() / case.micro_batches


def gdpo(case: Case, of_group: float, of_batch: float) -> torch.Tensor:
    """GDPO with other numbers added to the deviations."""
    groups = case.rewards.reshape(-1, case.num_generations, case.rewards.shape[1])
    normalized = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + of_group)
    weights = torch.tensor(case.settings["reward_weights"] or [1.0] * groups.shape[2]).double()
    total = (normalized * weights).sum(-1).flatten()
    return (total - total.mean()) / (total.std() + of_batch)


def deviation_around_groups(case: Case) -> torch.Tensor:
    """The deviation of the batch is that around the mean of each group."""
    groups = case.rewards.reshape(-1, case.num_generations)
    centred = (groups - groups.mean(1, keepdim=True)).flatten()
    return centred / (((centred**2).sum() / (len(centred) - 1)).sqrt() + 1e-5)


# (framework, patterns of definitions, of cases) -> its formula.
FORMULAS = {
    ("verl", "gspo", "*weights *"): gspo_token,
    ("skyrl", "gspo", "*weights *"): gspo_token,
    ("verl", "dppo", "*"): verl_dppo,
    ("verl", "gdpo_advantages", "gdpo: *"): lambda case: gdpo(case, 1e-6, 1e-8),
    ("openrlhf", "gspo", "*weights *"): gspo_to_the_sampler,
    ("openrlhf", "g*", "kl*"): kl_over_tokens,
    ("openrlhf", "g*", "*a *"): rows_with_tokens,
    ("skyrl", "*", "kl*"): kl_over_rows,
    ("areal", "gspo", "weights *"): left_out_of_the_ratio,
    ("areal", "grpo_advantages", "*: scale batch"): deviation_around_groups,
    ("areal", "sapo", "*"): sapo_over_tokens,
    ("ms_swift", "*", "kl next *"): weighted_kl,
    ("ms_swift", "bnpo", "rows off policy"): off_policy_rows_leave_the_divisor,
    ("ms_swift", "gdpo_advantages", "gdpo: *"): lambda case: gdpo(case, 1e-8, 1e-8),
}
ASKED = {place: with_torch(function) for place, function in FORMULAS.items()}
