"""Position ids in a trainer's own forward passes (article A2), and its own way of scoring, for tests and monitors.

TRL samples with `generate`, which counts positions from the mask, and in GRPO, RLOO and OnlineDPO scores with a plain
forward pass on left-padded prompts, which does not. Its PPO passes position ids in both.
"""

from collections.abc import Sequence

import torch
import trl

from ..consistency.padding import evaluating, pad_batch
from ..consistency.positions import fills_position_ids, with_position_ids
from ..errors import ParameterError
from .versions import beside_vllm

with beside_vllm():  # every trainer of this folder passes here first
    from trl.experimental.online_dpo import OnlineDPOTrainer as StockOnlineDPO

try:
    from trl.experimental.ppo import PPOTrainer as StockPPO
    from trl.experimental.ppo import ppo_trainer
except ImportError:  # since TRL 1.13 there is none, and no trainer is one
    StockPPO = ()


class PositionsMixin:
    """Fills in position ids wherever the trainer's forward passes give none; goes first in the bases.

    Args:
        explicit_positions: False scores as TRL does, with pads counted as text.
        *args, **kwargs: the trainer's.
    """

    def __init__(self, *args, explicit_positions: bool = True, **kwargs):
        models = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.nn.Module)]
        if not explicit_positions and any(map(fills_position_ids, models)):
            raise ParameterError(
                "explicit_positions=False: with_position_ids is at work on a given model, from an earlier trainer or by "
                "your own call; load the model anew, or remove the hook"
            )
        super().__init__(*args, **kwargs)
        if explicit_positions:
            for model in _models(self):
                if not fills_position_ids(model):
                    with_position_ids(model)


def _models(trainer) -> list:
    """The policy, the reference, in PPO also value and reward model; PPO's wrapper of two models is left out."""
    names = ("model", "ref_model", "policy_model", "value_model", "reward_model")
    found = (getattr(trainer, name, None) for name in names)
    return [model for model in found if isinstance(model, torch.nn.Module) and not hasattr(model, "critic_backbone")]


@torch.no_grad()
def trainer_logprobs(trainer, prompt_ids: Sequence, completion_ids: Sequence) -> list[torch.Tensor]:
    """Log-probs of completions by the trainer's own scoring path, stock or the workbench's, without dropout.

    Args:
        trainer: GRPO, RLOO, OnlineDPO or PPO.
        prompt_ids, completion_ids: B lists of token ids each, without padding; padded here as trainers do, prompts on the
            left and completions on the right.

    Returns:
        B tensors, one number a completion token, at the trainer's temperature (OnlineDPO: at 1, as it trains).
    """
    pad_id = getattr(trainer.processing_class, "tokenizer", trainer.processing_class).pad_token_id
    device = trainer.accelerator.device
    prompt, completion = pad_batch(prompt_ids, pad_id, "left"), pad_batch(completion_ids, pad_id, "right")
    prompt, completion = ({name: x.to(device) for name, x in part.items()} for part in (prompt, completion))
    model = getattr(trainer, "policy_model", trainer.model)
    with evaluating(model):
        scored = _score(trainer, model, prompt, completion, pad_id)
    return [row[: len(ids)].float() for row, ids in zip(scored, completion_ids, strict=True)]


def _score(trainer, model, prompt: dict, completion: dict, pad_id: int) -> torch.Tensor:
    ids, mask = (torch.cat([prompt[name], completion[name]], dim=1) for name in ("input_ids", "attention_mask"))
    width = completion["input_ids"].shape[1]
    if isinstance(trainer, trl.GRPOTrainer | trl.RLOOTrainer):
        return trainer._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
    if isinstance(trainer, StockOnlineDPO):
        return trainer._forward(model, *prompt.values(), *completion.values())
    if isinstance(trainer, StockPPO):
        logits = ppo_trainer.forward(model, ids, pad_id).logits[:, -width - 1 : -1] / (trainer.args.temperature + 1e-7)
        return ppo_trainer.selective_log_softmax(logits, completion["input_ids"])
    raise ParameterError(f"{type(trainer).__name__}: expected TRL's GRPO, RLOO, OnlineDPO or PPO trainer, or a child")
