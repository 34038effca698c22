"""OpenRLHF: `PolicyLoss`, the KL term as `training_step` of the actor adds it, and the advantages of its experience maker."""

import inspect
import itertools
from types import SimpleNamespace

import torch

from workbench.conform import NotOffered, with_torch

PACKAGE = "openrlhf"
OFFERS = {"epsilon_high", "delta", "beta", "kl_estimator", "processes", "scale_rewards"}
OFFERS |= {f"importance_sampling_{what}" for what in ("level", "mode", "clip_min", "clip_max")}
ESTIMATORS = {"grpo": {"group": "group_norm", "none": "dr_grpo"}, "rloo": {"group": "rloo"}}


def functions(wheel):
    utils = wheel.take(
        "openrlhf/models/utils.py", "masked_mean", "KL_IS_WEIGHT_CLIP", "compute_approx_kl", "compute_reward"
    )
    losses = wheel.take("openrlhf/models/loss.py", "aggregate_loss", "PolicyLoss", masked_mean=utils.masked_mean)
    # The divisors of an optimizer step: `dist` is asked only whether there is a process group.
    step = wheel.take("openrlhf/utils/loss_utils.py", "_optimizer_step_loss_norm", dist=torch.distributed)
    methods = [f"RemoteExperienceMaker.{name}" for name in ("compute_advantages_and_returns", "get_cumulative_returns")]
    given = {"itertools": itertools, "apply_length_penalties": lambda *_: None}
    file = "openrlhf/trainer/ppo_utils/experience_maker.py"
    maker = wheel.take(file, *methods, compute_reward=utils.compute_reward, **given)

    def loss(case, claim):
        s = case.settings
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        kind = "gspo" if s["importance_sampling_level"] == "sequence" else "ppo"
        options = {"dual_clip": s["delta"], "token_level_loss": claim != "grpo", "policy_loss_type": kind}
        if mode := s["importance_sampling_mode"]:
            if "is_correction_level" not in inspect.signature(losses.PolicyLoss).parameters:
                raise NotOffered("the correction has other options before 0.11.2")
            level, _, action = mode.partition("_")
            if level != "token":
                raise NotOffered("a row's weight: it leaves rows out, and weighs the others token by token")
            low, limit = s["importance_sampling_clip_min"], s["importance_sampling_clip_max"]
            threshold = (low or 0.0, float("inf") if limit is None else limit)
            options |= {"is_correction_level": "token", "is_correction_threshold": threshold}
            options["is_correction_mode"] = "mask" if action == "mask" else "clip"
        info = step._optimizer_step_loss_norm([case.step_mask], None, case.processes, 1)
        advantages = case.advantages[:, None].expand_as(case.logps)
        tables = (case.logps, case.old_logps, advantages, case.mask, case.sampled_logps)
        value = losses.PolicyLoss(s["epsilon"], high, **options)(*tables, **info)[0]
        if s["beta"]:
            if s["kl_estimator"].endswith("+"):
                raise NotOffered("its unbiased gradient is weighted with the ratio")
            kl = utils.compute_approx_kl(case.logps, case.ref_logps, case.old_logps, s["kl_estimator"])
            value = value + s["beta"] * losses.aggregate_loss(kl, case.mask, **info)
        return value

    def advantages(case, kind):
        estimator = ESTIMATORS[kind].get(case.settings["scale_rewards"])
        if estimator is None:
            raise NotOffered("no deviation of the batch")
        if case.num_generations == 1:
            raise NotOffered("its command line refuses groups of one")
        n, ones = len(case.rewards), torch.ones(len(case.rewards), 1)
        rows = SimpleNamespace(rewards=case.rewards, index=list(range(n)), kl=ones * 0.0, action_mask=ones, info={})
        options = SimpleNamespace(estimator=estimator, gamma=1.0, no_std_norm=False)
        args = SimpleNamespace(algo=SimpleNamespace(advantage=options), reward=SimpleNamespace(clip_range=None))
        args.rollout = SimpleNamespace(n_samples_per_prompt=case.num_generations)
        self = SimpleNamespace(strategy=SimpleNamespace(args=args), kl_ctl=SimpleNamespace(value=0.0))
        self.advantage_estimator = estimator
        self.get_cumulative_returns = lambda *of_row: maker.get_cumulative_returns(self, *of_row)
        return maker.compute_advantages_and_returns(self, [rows])[0].advantages[:, 0].double()

    claims = ("dapo", "grpo", "gspo", "dual_clip", "decoupled_ppo", "icepop")
    asked = {name: with_torch(lambda case, n=name: loss(case, n)) for name in claims}
    for kind in ("grpo", "rloo"):
        asked[f"{kind}_advantages"] = with_torch(lambda case, k=kind: advantages(case, k))
    return asked
