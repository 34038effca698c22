"""What polgrad gives for a worked case, as the data of a test: its losses with their gradients, and its advantages.

polgrad (Apache-2.0, https://github.com/SaifPunjwani/polgrad) is another reference of these losses, on torch. The workbench does
not depend on it:

    pip install --no-deps --target FOLDER polgrad==0.2.1
    PYTHONPATH=FOLDER python -m tools.polgrad_numbers > tests/data/polgrad.json
"""

import importlib
import json
from importlib.metadata import version

# Rows of 2 and 4 tokens; ratios of 2 and 0.5, and of 8, 1.2, 0.5 and 1. The sampler is another policy than the old one.
PROBABILITIES = {
    "policy": [[0.4, 0.05], [0.8, 0.3, 0.2, 0.5]],
    "old": [[0.2, 0.1], [0.1, 0.25, 0.4, 0.5]],
    "sampled": [[0.08, 0.1], [0.08, 0.4, 0.05, 0.4]],
    "reference": [[0.3, 0.1], [0.4, 0.3, 0.5, 0.25]],
}
ADVANTAGES = [1.0, -0.5]
REWARDS = [1.0, 0.0, 0.0, 3.0, 2.0, 2.0]


def main() -> None:
    import torch

    polgrad = importlib.import_module("polgrad")
    kl = importlib.import_module("polgrad.kl")
    clip, mean = polgrad.ClipConfig, polgrad.Aggregation

    def padded(rows: list[list[float]]) -> torch.Tensor:
        tensors = [torch.tensor(row, dtype=torch.float64).log() for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

    policy, old, sampled, reference = (padded(PROBABILITIES[name]) for name in PROBABILITIES)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(2), torch.ones(4)], batch_first=True).bool()

    def gradient(loss_of) -> dict:
        logps = policy.clone().requires_grad_()
        loss = loss_of(logps)
        loss.backward()
        slopes = [row[kept].tolist() for row, kept in zip(logps.grad, mask, strict=True)]
        return {"value": loss.item(), "slopes": slopes}

    def policy_loss(ratio: str, surrogate: str, clips, average, **corrected) -> dict:
        config = polgrad.PolicyLossConfig(
            ratio=polgrad.RatioKind[ratio],
            surrogate=polgrad.SurrogateKind[surrogate],
            clip=clips,
            aggregation=average,
            norm_len=10 if average is mean.TOKEN_SUM_NORM else None,
            **corrected,
        )
        return gradient(
            lambda logps: (
                polgrad.policy_loss(
                    config,
                    logprobs=logps,
                    old_logprobs=old,
                    advantages=torch.tensor(ADVANTAGES, dtype=torch.float64),
                    response_mask=mask,
                    rollout_logprobs=sampled,
                ).loss
            )
        )

    def corrected(level: str) -> dict:
        return {"is_correction": polgrad.ISCorrectionConfig(cap=2.0, level=level)}

    narrow, tokens = clip(eps_low=0.2, eps_high=0.2), mean.TOKEN_MEAN
    losses = {
        "ppo, rows": policy_loss("TOKEN", "PG_CLIP", narrow, mean.SEQ_MEAN_TOKEN_MEAN),
        "ppo, sums": policy_loss("TOKEN", "PG_CLIP", narrow, mean.SEQ_MEAN_TOKEN_SUM),
        "ppo, tokens": policy_loss("TOKEN", "PG_CLIP", narrow, tokens),
        "ppo, 10": policy_loss("TOKEN", "PG_CLIP", narrow, mean.TOKEN_SUM_NORM),
        "dual clip": policy_loss("TOKEN", "PG_CLIP", clip(eps_low=0.2, eps_high=0.2, ratio_cap=3.0), tokens),
        "gspo": policy_loss("SEQUENCE", "PG_CLIP", narrow, mean.SEQ_MEAN_TOKEN_MEAN),
        "gspo token": policy_loss("SEQUENCE_TOKEN", "PG_CLIP", narrow, mean.SEQ_MEAN_TOKEN_MEAN),
        "cispo": policy_loss("TOKEN", "CISPO", clip(eps_low=None, eps_high=0.2), tokens),
        "cispo, two limits": policy_loss("TOKEN", "CISPO", narrow, tokens),
        "reinforce": policy_loss("TOKEN", "REINFORCE", None, mean.SEQ_MEAN_TOKEN_SUM),
        "truncated by token": policy_loss("TOKEN", "PG_CLIP", narrow, tokens, **corrected("token")),
        "truncated by row": policy_loss("TOKEN", "PG_CLIP", narrow, tokens, **corrected("sequence")),
    }
    for name in ("k1", "k2", "k3"):
        kind = kl.KLEstimator[name.upper()]
        losses[name] = gradient(lambda logps, kind=kind: kl.kl_loss(logps, reference, kind, tokens, response_mask=mask))

    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    plain, scaled = (polgrad.ReinforcePPConfig(batch_norm=scale, eps=0.0) for scale in (False, True))
    advantages = {
        "dr. grpo": polgrad.grpo_advantages(rewards, groups, polgrad.GroupNormConfig(scale="none")),
        "rloo": polgrad.rloo_advantages(rewards, groups),
        "reinforce++": polgrad.reinforce_pp_advantages(rewards, config=scaled),
        "reinforce++, no scale": polgrad.reinforce_pp_advantages(rewards, config=plain),
        "reinforce++ with a baseline": polgrad.reinforce_pp_advantages(rewards, groups, config=scaled),
    }
    result = {
        "made_by": "python -m tools.polgrad_numbers",
        "versions": {"polgrad": version("polgrad"), "torch": torch.__version__},
        "probabilities": PROBABILITIES,
        "row_advantages": ADVANTAGES,
        "rewards": REWARDS,
        "losses": losses,
        "advantages": {name: values.tolist() for name, values in advantages.items()},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
