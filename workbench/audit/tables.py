"""From the rows of a log, whoever wrote them, to the table of steps that rules ask."""

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..errors import RunError
from .names import NAMES, canonical

_FINITE = ("loss", "grad_norm", "reward")  # a run whose numbers these are not is damaged
_RL = {"reward", "mean_length", "clipped_ratio", "zero_std_share", "reward_std", "eos_tokens"}


def steps_table(raw: pd.DataFrame, source: str) -> tuple[pd.DataFrame, tuple[float, ...], list[str]]:
    """The steps of a log under canonical names, in order and each once.

    Args:
        raw: a row a line of the log, with the names and values that it has.
        source: the file, for errors.

    Returns:
        The table; the step numbers as they stood; a sentence for each thing that is wrong with the values.

    Raises:
        RunError: no known metric of a reinforcement learning run.

    Example:
        >>> table, order, damage = steps_table(pd.DataFrame({"global_step": [2, 1], "train/reward": ["0.5", 1]}), "a.csv")
        >>> table.to_dict("list"), order, damage
        ({'step': [1.0, 2.0], 'reward': [1.0, 0.5]}, (2.0, 1.0), [])
    """
    known = canonical(map(str, raw.columns))
    if not _RL & set(known.values()):
        has = ", ".join(str(c) for c in list(raw.columns)[:12]) or "no column"
        raise RunError(f"{source}: no reward, completion length or group metric in it, it has {has}; expected the log of "
                       "a GRPO, RLOO, PPO or OnlineDPO training")  # fmt: skip
    table = raw[list(known)].rename(columns=known)
    table = table.apply(pd.to_numeric, errors="coerce").astype(float)
    damage, counted = [], False
    if "step" not in table:
        table.insert(0, "step", np.arange(1, len(table) + 1, dtype=float))
        damage.append("the log has no step numbers: its lines are counted")
        counted = True
    logged = table[[c for c in table if c not in ("step", "epoch")]].notna().any(axis=1)
    table = table[logged & table["step"].notna() & np.isfinite(table["step"])]
    if not len(table):
        raise RunError(f"{source}: no step with a number in it; expected at least one logged step")
    for name in set(_FINITE) & set(table):
        begun = table[name].loc[table[name].first_valid_index() :]  # verl may train the critic alone at first
        if bad := int(np.isinf(table[name]).sum()):
            damage.append(f"{name} is infinite in {bad} of {len(table)} steps")
        elif name != "reward" and 0 < (bad := int(begun.isna().sum())) < 0.2 * len(table):
            damage.append(f"{name} is no number in {bad} of {len(table)} steps")
    table = table.replace([np.inf, -np.inf], np.nan)
    if counted and "epoch" in table:
        table["step"] = _counted(table["epoch"].ffill())
    order = tuple(table["step"])
    table = table.groupby("step", as_index=False).last()  # of a step that is there twice the last value of each metric
    return table[[name for name in NAMES if name in table]], order, sorted(damage)


def _counted(epochs: Iterable[float]) -> list[float]:
    """Step numbers by epochs: where these go back, it is to the step after the last one with an earlier epoch.

    Example: resumed after the second of three steps; and a second run.
        >>> _counted([0.1, 0.2, 0.3, 0.25, 0.4]), _counted([0.1, 0.2, 0.1, 0.2])
        ([1.0, 2.0, 3.0, 3.0, 4.0], [1.0, 2.0, 1.0, 2.0])
    """
    order: list[float] = []
    path: list[float] = []  # epochs of the steps up to here
    for epoch in epochs:
        if path and epoch < path[-1]:
            del path[bisect_left(path, epoch) :]
        path.append(epoch)
        order.append(float(len(path)))
    return order
