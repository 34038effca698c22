"""PPO under several ways to stop: what each costs (notebook 01, article A0)."""

from pathlib import Path

import pandas as pd
import torch
from trl.experimental.ppo import ppo_trainer

from ..errors import ParameterError
from ..generation.stops import StopSpec
from ..runs.run import Run
from ..training.ppo import PPOTrainer, train_ppo
from ..training.recipes import Recipe
from .custom_stops import share_cut


def compare_ppo_stops(
    recipe: Recipe, modes: dict[str, StopSpec], *, out_dir: Path, **overrides
) -> tuple[pd.DataFrame, dict[str, PPOTrainer]]:
    """Train PPO once per way of stopping and tell what each costs (claims A0.1 to A0.5).

    Args:
        recipe: what to train.
        modes: name -> stops.
        out_dir: holds a folder per mode.
        **overrides: further `PPOConfig` fields.

    Returns:
        A row per mode (forwards and seconds per update, share of row-steps behind a row's end, share of rows that the
        limit cut, rows that stock's missing-EOS rule would punish, EOS id in the saved policy), and the trainers.
    """
    rows, trainers = {}, {}
    for name, stops in modes.items():
        print(name, flush=True)
        folder = Path(out_dir) / name.replace(" ", "-")
        trainers[name] = trainer = train_ppo(recipe, out_dir=folder, stops=stops, **overrides)
        run = Run(folder)
        table, metrics = run.completions, run.metrics
        batch = len(table) // len(metrics)
        useful = table[["completion_tokens", "tokens_to_eos"]].min(axis=1).sum()
        saved = trainer.policy_model.generation_config.eos_token_id
        rows[name] = {
            "forwards per update": sum(trainer.forwards) / len(trainer.forwards),
            "seconds per update": metrics["elapsed_s"].diff().median(),
            "wasted row-steps": 1 - useful / (batch * sum(trainer.forwards)),
            "cut by the limit": share_cut(table["finish_reason"]),
            "stock would punish": share_cut(table["trl_finish_reason"]),
            "EOS of the saved policy": str(saved),
        }
    return pd.DataFrame(rows).T, trainers


@torch.no_grad()
def score_tails(trainer: PPOTrainer, rows: int = 32, seed: int = 0):
    """What text after EOS does to the reward model: each legacy row scored whole and cut at its EOS (claim A0.2).

    Args:
        trainer: in legacy mode.
        rows: prompts, from the start of the training set.
        seed: of sampling.

    Returns:
        DataFrame `whole, cut, tokens, tokens_to_eos`, one row a response.
    """
    import pandas as pd
    from transformers import GenerationConfig

    if not trainer.stop_rule.spec.legacy:
        raise ParameterError("score_tails: the trainer stops early, so there is no text after EOS; use legacy_mode()")
    tokenizer, pad_id = trainer.processing_class, trainer.processing_class.pad_token_id
    prompts = [{"input_ids": trainer.train_dataset[i]["input_ids"]} for i in range(rows)]
    queries = tokenizer.pad(prompts, return_tensors="pt")["input_ids"].to(trainer.accelerator.device)
    how = {"do_sample": True, "temperature": trainer.args.temperature, "top_k": 0}
    config = GenerationConfig(max_new_tokens=trainer.args.response_length, **how)
    torch.manual_seed(seed)
    whole, _ = trainer._batch_generation(trainer.policy_model, queries, rows, pad_id, config)
    cut, width = whole.clone(), queries.shape[1]
    ends = [trainer._eos_rule.find(row).index for row in whole[:, width:].tolist()]
    for row, end in zip(cut, ends, strict=True):
        row[width + end :] = pad_id
    scores = [ppo_trainer.get_reward(trainer.reward_model, x, pad_id, width)[1].tolist() for x in (whole, cut)]
    tokens = whole.shape[1] - width
    return pd.DataFrame({"whole": scores[0], "cut": scores[1], "tokens": tokens, "tokens_to_eos": ends})
