"""Reward functions where TRL's PPO takes a reward model."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from ..errors import ParameterError
from .rewards import RewardFn, distinct, is_async, name_of, row_name, validated

_TOKENIZED = ("input_ids", "attention_mask", "token_type_ids")
_NOT_PASSED = ("completion", "completion_ids")  # columns of a data set that TRL's GRPO keeps from reward functions


class RewardFunctions(torch.nn.Module):
    """What TRL's PPO gets as its reward model: no weights, but functions, and the rows of the batch that they score."""

    def __init__(self, reward_funcs: Any, weights: Sequence[float] | None = None):
        super().__init__()
        functions = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        for function in functions or [None]:
            if not callable(function) or isinstance(function, torch.nn.Module):
                raise ParameterError(
                    f"reward_funcs: {type(function).__name__}: expected functions; give a model as reward_model"
                )
            if is_async(function):
                name = name_of(function)
                raise ParameterError(
                    f"reward function {name}: it is asynchronous; PPO calls one after another, so use `def`"
                )
        if weights is not None and len(weights) != len(functions):
            raise ParameterError(
                f"reward_weights={list(weights)}: expected {len(functions)} numbers, one for each function"
            )
        self.functions: list[RewardFn] = functions
        self.weights = [1.0] * len(functions) if weights is None else list(weights)
        self.each: dict[str, list] = {}
        self._columns: dict[str, list] = {}

    def begin(self, columns: dict[str, list]) -> None:
        """Score the rows of another batch from now on; `columns` are the data set's, without the tokens."""
        self._columns, self._row = columns, 0
        self.each = {name: [] for name in distinct([name_of(function) for function in self.functions])}

    def score_next(self, prompts: list[str], completions: list[str], completion_ids: list[list[int]], trainer_state):
        """Score the next B rows of the batch: B sums, and function name -> B values or None."""
        rows = slice(self._row, self._row + len(completions))
        self._row = rows.stop
        columns = {name: values[rows] for name, values in self._columns.items() if name not in _NOT_PASSED}
        columns = {"prompts": columns.pop("prompt", prompts), "completion_ids": completion_ids, **columns}
        sums, each = score(
            self.functions, self.weights, completions=completions, trainer_state=trainer_state, **columns
        )
        for name, values in each.items():
            self.each[name] += values
        return sums, each

    def metrics(self) -> dict[str, float]:
        """Mean and spread of each function over the batch of all processes, under the names that TRL's GRPO logs."""
        found = {}
        for name, values in self.each.items():
            scored = torch.tensor([float(v) for v in gather_object(values) if v is not None], dtype=torch.float64)
            if len(scored):
                found[f"rewards/{name}/mean"] = scored.mean().item()
                found[f"rewards/{name}/std"] = scored.std().item() if len(scored) > 1 else 0.0
        return found


def score(reward_funcs: Sequence[RewardFn], weights: Sequence[float], *, completions: Sequence, **columns):
    """B weighted sums of F reward functions, and function name -> its B values; a function's None adds nothing.

    Example:
        >>> def words(completions, **_):
        ...     return [len(text.split()) for text in completions]
        >>> score([words], [0.5], completions=["two words", "one"])
        ([1.0, 0.5], {'words': [2, 1]})
    """
    names = distinct([name_of(reward) for reward in reward_funcs])
    each = {
        name: validated(f, name)(completions=completions, **columns)
        for name, f in zip(names, reward_funcs, strict=True)
    }
    sums = []
    for row, values in enumerate(zip(*each.values(), strict=True)):
        if all(value is None for value in values):
            raise ParameterError(
                f"{row_name(row, completions)}: every reward function ({', '.join(names)}) returned None; expected a number "
                "from at least one"
            )
        sums.append(sum(w * float(v) for w, v in zip(weights, values, strict=True) if v is not None))
    return sums, each


class SplitColumnsCollator:
    """Collates token columns with TRL's or the user's collator; passes the others through as lists, under `columns`."""

    def __init__(self, collator):
        self._collator = collator

    def __call__(self, rows: list[dict]) -> dict:
        names = [name for name in rows[0] if name not in _TOKENIZED]
        columns = {name: [row[name] for row in rows] for name in names}
        tokens = [{name: value for name, value in row.items() if name in _TOKENIZED} for row in rows]
        return {**self._collator(tokens), "columns": columns}


class NotifyingLoader:
    """A data loader that hands each batch's columns to the reward functions when TRL gets it: TRL loads one ahead."""

    def __init__(self, loader, rewards: RewardFunctions):
        self._loader, self._rewards = loader, rewards

    def __iter__(self) -> Iterator[dict]:
        for batch in self._loader:
            self._rewards.begin(batch.pop("columns"))
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)
