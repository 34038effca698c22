"""AReaL: `ppo_actor_loss_fn` and `sapo_loss_fn`, weighted with the tokens of a micro-batch as its engines do; `Normalization`.

A mean over all tokens of a step is its only mean: GSPO and SAPO are asked as their definitions, which average rows.
"""

from types import SimpleNamespace

from workbench.conform import NotOffered, with_torch

PACKAGE = "areal"
OFFERS = {"epsilon_high", "delta", "processes", "scale_rewards", "sapo_temperature_pos", "sapo_temperature_neg"}
OFFERS |= {f"importance_sampling_{what}" for what in ("level", "mode", "clip_min", "clip_max")}


def functions(wheel):
    names = ["_compute_sequence_level_ratio_and_advantages", "RejectionSamplingResult", "_check_bounds"]
    names += ["apply_rejection_sampling", "ppo_actor_loss_fn", "sapo_loss_fn"]
    f = wheel.take("areal/utils/functional/functional.py", *names)
    one_process = SimpleNamespace(is_initialized=lambda: False)
    data = wheel.take("areal/utils/data.py", "Normalization", dist=one_process)

    def loss(case, claim):
        s, mask = case.settings, case.mask.bool()
        if not case.total_tokens:
            raise NotOffered("its engine stops at a step without tokens")
        advantages = case.advantages[:, None].expand_as(case.logps)
        level, filtering = s["importance_sampling_level"], None
        if mode := s["importance_sampling_mode"]:
            by, _, action = mode.partition("_")
            if by == "sequence":
                raise NotOffered("the product of a row's ratios: its weight is the geometric mean")
            limit, low = s["importance_sampling_clip_max"], s["importance_sampling_clip_min"]
            filtering = SimpleNamespace(level="token" if by == "token" else "sequence", metric="ratio", agg="mean")
            filtering.upper, filtering.lower = float("inf") if limit is None else limit, low
            filtering.action = "mask" if action == "mask" else "clamp"
        if claim == "sapo":
            if filtering is not None:
                raise NotOffered("SAPO takes no weight of the sampler")
            taus = s["sapo_temperature_pos"], s["sapo_temperature_neg"]
            value = f.sapo_loss_fn(case.logps, case.old_logps, advantages, *taus, mask, level)[0]
        else:
            behaviour = case.old_logps if filtering is None else case.sampled_logps
            tables = (case.logps, case.old_logps, behaviour, advantages, s["epsilon"], mask)
            value = f.ppo_actor_loss_fn(*tables, s["epsilon_high"], s["delta"], filtering, level)[0]
        return value * mask.count_nonzero() / case.total_tokens * case.processes

    def advantages(case, kind):
        scale = {"group": "group", "batch": "batch", "none": None}[case.settings["scale_rewards"]]
        config = SimpleNamespace(mean_level="group", mean_leave1out=kind == "rloo", std_unbiased=True, eps=1e-5)
        config.std_level, config.group_size = None if kind == "rloo" else scale, case.num_generations
        return data.Normalization(config)(case.rewards).double()

    claims = ("dapo", "gspo", "sapo", "dual_clip", "decoupled_ppo", "icepop")
    asked = {name: with_torch(lambda case, n=name: loss(case, n)) for name in claims}
    for kind in ("grpo", "rloo"):
        asked[f"{kind}_advantages"] = with_torch(lambda case, k=kind: advantages(case, k))
    return asked
