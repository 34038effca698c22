"""The same GRPO task scored with and without position ids, side by side (article A2)."""

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import torch

from ..consistency.padding import pad_batch
from ..consistency.positions import position_ids
from ..runs.files import read_json
from ..runs.run import Run
from ..training.grpo import train_grpo
from ..training.recipes import Recipe
from ..training.recording import last_checkpoint
from ..training.vllm_sync import sharing_engines

IMPLICIT, EXPLICIT = "stock: no position ids", "workbench: position ids"


def train_positions(
    recipe: Recipe, *, reward_funcs, out_dir: Path, seeds: Iterable[int], monitor_every: int = 10
) -> dict[str, list[Run]]:
    """Train GRPO without and with position ids, each seed, padding consistency measured on the way.

    Dropout is off: where TRL's default leaves it on, sampler and scorer differ by it too. A training that is complete on
    disk is not repeated.

    Args:
        recipe: what to train.
        reward_funcs: as for `train_grpo`.
        out_dir: holds a folder per variant and seed.
        seeds: one training of each variant per seed.
        monitor_every: steps between measurements.

    Returns:
        Variant -> its runs, in the order of the seeds.
    """
    variants: dict[str, list[Run]] = {IMPLICIT: [], EXPLICIT: []}
    told = {"reward_funcs": reward_funcs, "monitor_every": monitor_every, "disable_dropout": True}
    with sharing_engines() if recipe.backend == "vllm" else contextlib.nullcontext():
        for seed in seeds:
            seeded = dataclasses.replace(recipe, seed=seed, save_steps=recipe.max_steps)
            for name, runs in variants.items():
                folder = Path(out_dir) / name.partition(":")[0] / f"seed-{seed}"
                if not _is_complete(folder, seeded):
                    print(f"{name}, seed {seed}", flush=True)
                    train_grpo(seeded, out_dir=folder, explicit_positions=name == EXPLICIT, **told)
                runs.append(Run(folder))
    return variants


def _is_complete(folder: Path, recipe: Recipe) -> bool:
    checkpoint = last_checkpoint(folder / "checkpoints")
    same = {k: v for k, v in read_json(folder / "recipe.json", {}).items() if k != "overrides"}
    return (
        same == dataclasses.asdict(recipe)
        and checkpoint is not None
        and checkpoint.name == f"checkpoint-{recipe.max_steps}"
    )


def convergence_table(variants: dict[str, list[Run]], tail: int = 10) -> pd.DataFrame:
    """A row per variant and seed: mean reward of all steps, of the last `tail`, and what the monitor measured at most."""
    rows = []
    for name, runs in variants.items():
        for n, run in enumerate(runs):
            metrics = run.metrics
            rows.append(
                {
                    "variant": name,
                    "run": n,
                    "reward, all steps": metrics["reward"].mean(),
                    f"reward, last {tail} steps": metrics["reward"].tail(tail).mean(),
                    "spread of the reward, last half": metrics["reward"].tail(len(metrics) // 2).std(),
                    "padding, max difference": metrics["padding/max_difference"].max(),
                }
            )
    return pd.DataFrame(rows)


def paired_gain(variants: dict[str, list[Run]], tail: int = 10) -> list[float]:
    """Per seed, the mean reward of the last `tail` steps with position ids less that without."""
    ends = {name: [run.metrics["reward"].tail(tail).mean() for run in runs] for name, runs in variants.items()}
    return [float(b - a) for a, b in zip(ends[IMPLICIT], ends[EXPLICIT], strict=True)]


@torch.no_grad()
def value_table(path: str, sequences: Sequence, pads: Sequence[int] = (0, 4, 16)) -> pd.DataFrame:
    """What a value head makes of one text behind more or fewer left pads (claim A2.4), its weights random, seeded.

    Args:
        path: of the model under the head.
        sequences: token ids of the texts.
        pads: left pads beyond the longest text.

    Returns:
        A row per number of pads: largest |difference| of the last token's value from the unpadded text's, in units of the
        values' spread over texts, without and with position ids.
    """
    from transformers import AutoModelForSequenceClassification

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1).eval()
    body = getattr(model, model.base_model_prefix)

    def values(batch: dict, explicit: bool) -> torch.Tensor:
        told = {"position_ids": position_ids(batch["attention_mask"])} if explicit else {}
        return model.score(body(**batch, **told).last_hidden_state[:, -1])[:, 0]

    alone = torch.cat([values(pad_batch([sequence], 0), False) for sequence in sequences])
    width, rows = max(map(len, sequences)), []
    for extra in pads:
        batch = pad_batch(sequences, 0, "left", width + extra)
        moved = [((values(batch, explicit) - alone).abs().max() / alone.std()).item() for explicit in (False, True)]
        rows.append({"extra pads": extra, "without position ids": moved[0], "with them": moved[1]})
    return pd.DataFrame(rows)
