"""The same GRPO task scored with and without position ids, side by side (notebook 03, article A2)."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch

from ..consistency.padding import POSITIONS, pad_batch
from ..consistency.positions import position_ids
from ..diagnostics.padding_report import padding_report
from ..recipes.recipes import Recipe
from ..runs.run import Run
from ..toys.families import FAMILIES, family_model, random_texts
from .arms import Arm, column_means

IMPLICIT, EXPLICIT = "stock: no position ids", "workbench: position ids"


def position_arms(recipe: Recipe, *, reward_funcs, monitor_every: int = 5) -> dict[str, Arm]:
    """GRPO scored without and with position ids, padding consistency measured on the way.

    Dropout is off: where TRL's default leaves it on, sampler and scorer differ by it too.

    Args:
        recipe: what to train.
        reward_funcs: as for `train_grpo`.
        monitor_every: steps between measurements.
    """
    options = {"monitor_every": monitor_every, "disable_dropout": True}
    return {
        IMPLICIT: Arm(recipe, reward_funcs, options=options | {"explicit_positions": False}),
        EXPLICIT: Arm(recipe, reward_funcs, options=options),
    }


def convergence_table(runs: Mapping[str, Sequence[Run]], tail: int = 10) -> pd.DataFrame:
    """A row per arm and seed: mean reward of all steps, of the last `tail`, and what the monitor measured at most."""
    return pd.DataFrame(
        {
            "variant": name,
            "run": n,
            "reward, all steps": metrics["reward"].mean(),
            f"reward, last {tail} steps": metrics["reward"].tail(tail).mean(),
            "spread of the reward, last half": metrics["reward"].tail(len(metrics) // 2).std(),
            "padding, max difference": metrics["padding/max_difference"].max(),
        }
        for name, members in runs.items()
        for n, metrics in enumerate(run.metrics for run in members)
    )


def paired_gain(runs: Mapping[str, Sequence[Run]], tail: int = 10) -> list[float]:
    """Per seed, the mean reward of the last `tail` steps with position ids less that without."""
    pairs = zip(runs[IMPLICIT], runs[EXPLICIT], strict=True)
    return [column_means([b], "reward", last=tail) - column_means([a], "reward", last=tail) for a, b in pairs]


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
        positions = {"position_ids": position_ids(batch["attention_mask"])} if explicit else {}
        return model.score(body(**batch, **positions).last_hidden_state[:, -1])[:, 0]

    alone = torch.cat([values(pad_batch([sequence], 0), False) for sequence in sequences])
    width, rows = max(map(len, sequences)), []
    for extra in pads:
        batch = pad_batch(sequences, 0, "left", width + extra)
        moved = [((values(batch, explicit) - alone).abs().max() / alone.std()).item() for explicit in (False, True)]
        rows.append({"extra pads": extra, "without position ids": moved[0], "with them": moved[1]})
    return pd.DataFrame(rows)


def family_table(names=tuple(FAMILIES), lengths=(24, 17, 9)) -> pd.DataFrame:
    """Padding reports of families: name, verdict, largest |difference of a log-prob| without and with position ids, in nats.

    Args:
        names: of `FAMILIES`.
        lengths: tokens of the texts.

    Returns:
        DataFrame, a row a family, columns for fp32 and for bf16; NaN where a model takes no position ids.
    """
    rows = []
    for name in names:
        report = padding_report(family_model(name), None, random_texts(*lengths), dtypes=["float32", "bfloat16"])
        row = {"family": name, "verdict": report.kind}
        for short, dtype in {"fp32": "float32", "bf16": "bfloat16"}.items():
            given, without = (report.worst(dtype, positions=positions) for positions in POSITIONS)
            row |= {f"{short}, without position ids": without, f"{short}, with them": given}
        rows.append(row)
    return pd.DataFrame(rows)
