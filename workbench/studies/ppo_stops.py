"""PPO under several ways to stop: what each costs, and what becomes of rows that end early (notebook 01, article A0)."""

import contextlib
import dataclasses
import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pandas as pd
import torch

from ..generation.stops import StopSpec
from ..recipes.ppo import PPOTrainer, ppo_trainer
from ..recipes.recipes import Recipe
from ..recipes.train import train_recipe
from ..runs.files import read_json
from ..runs.run import Run
from ..training.grpo import GRPOTrainer, RLOOTrainer
from ..training.online_dpo import OnlineDPOTrainer
from ..training.recording import attach_recorder
from ..training.rewards import length_reward
from .arms import Arm, share_cut


class ObservedPPOTrainer(ppo_trainer.PPOTrainer):
    """Stock PPO whose log says how many forward passes each update spent on generation. Nothing is mended.

    Args:
        stops: what TRL's own `stop_token` comes to, for the record.
        record_dir: run folder.
        *args, **kwargs: TRL's.
    """

    from_recipe = classmethod(PPOTrainer.from_recipe.__func__)

    def __init__(self, *args, stops: StopSpec, record_dir, **kwargs):
        super().__init__(*args, **kwargs)
        self.forwards: list[int] = []
        self.recorder = attach_recorder(self, record_dir)

    def train(self):
        original = ppo_trainer.batch_generation

        def observed(*args):
            rows, logits = original(*args)
            self.forwards.append(logits.shape[1])
            return rows, logits

        with mock.patch.object(ppo_trainer, "batch_generation", observed):
            super().train()
        self.policy_model.save_pretrained(self.recorder.record_dir / "policy")

    def log(self, logs, *args, **kwargs):
        return super().log(logs | {"generation/forwards": self.forwards[-1]}, *args, **kwargs)


def stock_arms(recipe: Recipe, **options) -> dict[str, Arm]:
    """Stock PPO as it comes, and told to stop at EOS (claims A0.1, A0.6), on a reward model of random weights."""
    named = {"stock": (StopSpec.never(), {}), "stock, stop_token='eos'": (StopSpec(), {"stop_token": "eos"})}
    return {
        name: Arm(recipe, "random weights", ObservedPPOTrainer, stops, options | own)
        for name, (stops, own) in named.items()
    }


def saved_eos(run: Run) -> int | list[int] | None:
    """The EOS in the generation config of the policy that a PPO run saved."""
    return read_json(run.path / "policy" / "generation_config.json", {}).get("eos_token_id")


def several_stops(recipe: Recipe, stops: StopSpec, **options) -> dict[str, Arm]:
    """The workbench's PPO under several stops at once, on a reward model of random weights (claim A0.4)."""
    return {"several stops": Arm(recipe, "random weights", PPOTrainer, stops, options)}


def stop_costs(runs: Mapping[str, Sequence[Run]]) -> pd.DataFrame:
    """What each way of stopping cost, a row each, over its seeds.

    Columns: forward passes and seconds per update, share of row-steps after a row's end, share of rows that the limit cut,
    rows that stock's missing-EOS rule would punish, EOS id in the saved policy.
    """
    rows = {}
    for name, members in runs.items():
        completions = pd.concat([run.completions for run in members])
        metrics = pd.concat([run.metrics for run in members])
        forwards = metrics["generation/forwards"]
        useful = completions[["completion_tokens", "tokens_to_eos"]].min(axis=1).sum()
        rows[name] = {
            "forward passes per update": forwards.mean(),
            "seconds per update": pd.concat([run.metrics["elapsed_s"].diff() for run in members]).median(),
            "wasted row-steps": 1 - useful / (len(completions) / len(metrics) * forwards.sum()),
            "cut by the limit": share_cut(completions["finish_reason"]),
            "stock would punish": share_cut(completions["trl_finish_reason"]),
            "EOS of the saved policy": str(saved_eos(members[0])),
        }
    return pd.DataFrame(rows).T


class _WatchedPPOTrainer(PPOTrainer):
    """Scores every response a second time, alone and without pads."""

    def _get_reward(self, model, query_responses, pad_token_id, context_length):
        scored = super()._get_reward(model, query_responses, pad_token_id, context_length)
        if model is self.reward_model:
            split = [(row[:context_length], row[context_length:]) for row in query_responses]
            rows = [[part[part != pad_token_id] for part in parts] for parts in split]
            self.alone = [
                self._original_get_reward(model, torch.cat(row)[None], pad_token_id, len(row[0]))[1].item()
                for row in rows
            ]
        return scored


def early_ends(recipe: Recipe) -> pd.DataFrame:
    """One PPO update of the workbench's trainer, watched from inside: what became of rows that end early (A0.3, A0.6).

    Args:
        recipe: what to train; one update of it.

    Returns:
        A row a response: `tokens` up to its end, `in the loss` of the policy, its score `in the batch` and `alone`.
    """
    masks, original = [], ppo_trainer.masked_whiten

    def observed(values, mask, **kwargs):
        masks.append(mask)
        return original(values, mask, **kwargs)

    recipe = dataclasses.replace(recipe, max_steps=1)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(ppo_trainer, "masked_whiten", observed):
        with contextlib.redirect_stdout(io.StringIO()):  # TRL's own lines
            trainer = train_recipe(_WatchedPPOTrainer, recipe, reward_funcs="random weights", record_dir=folder)
        rows = Run(Path(folder)).completions
    columns = {"tokens": rows["completion_tokens"], "in the loss": masks[-1].sum(1).tolist()}
    return pd.DataFrame(columns | {"in the batch": rows["reward"], "alone": trainer.alone})


def one_spec_arms(recipe: Recipe, stops: StopSpec) -> dict[str, Arm]:
    """One step of each trainer under one description of stops (claim A0.7)."""
    pairs = dataclasses.replace(recipe, max_steps=1, num_generations=2)
    arms = {cls.__name__: Arm(pairs, length_reward(), cls, stops) for cls in (GRPOTrainer, RLOOTrainer)}
    arms["OnlineDPOTrainer"] = Arm(pairs, length_reward(), OnlineDPOTrainer, stops)
    return arms | {"PPOTrainer": Arm(pairs, "random weights", PPOTrainer, stops)}


def past_the_stop(runs: Mapping[str, Sequence[Run]], stop: str) -> pd.DataFrame:
    """Per arm: its rows, how many hold the stop string, and the most characters that follow it in any of them."""
    rows = {}
    for name, members in runs.items():
        texts = pd.concat([run.completions for run in members])["completion"]
        after = [len(text.partition(stop)[2]) for text in texts if stop in text]
        rows[name] = {"rows": len(texts), "with the stop": len(after), "characters after it": max(after, default=0)}
    return pd.DataFrame(rows).T
