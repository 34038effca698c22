"""Reward functions in TRL's calling convention: `reward(completions, **columns) -> list[float]`.

A completion is a string, or a list of chat messages whose last `content` counts. Each factory returns a plain function
whose name TRL puts into its metrics (`rewards/<name>/mean`).
"""

from collections.abc import Callable, Sequence

from ..errors import ParameterError

RewardFn = Callable[..., list[float]]


def completion_text(completion: str | Sequence[dict]) -> str:
    """The text of one completion, plain or conversational."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def length_reward(target: int = 20, sign: int = -1) -> RewardFn:
    """The documented example's reward: `-abs(target - len(completion))`, in characters.

    Its range is `(-inf, 0]`: a curve inside 0..1 cannot come from it (claim A4.3).

    Args:
        target: wanted length in characters, at least 0.
        sign: -1, or +1 for the sign-wrong version printed in TRL v0.14's docs (trl #2714), which rewards long text.
    """
    if target < 0:
        raise ParameterError(f"target={target}: expected a length of at least 0 characters")
    if sign not in (-1, 1):
        raise ParameterError(f"sign={sign}: expected -1 (as documented since v0.15) or 1 (as printed in v0.14)")

    def reward_len(completions, **_):
        return [float(sign * abs(target - len(completion_text(c)))) for c in completions]

    return reward_len


def scaled_length_reward(target: int = 20, worst: float = -80.0) -> RewardFn:
    """The length reward mapped onto 0..1 (`worst` and below -> 0, exact length -> 1), comparable with a 0..1 axis."""
    if worst >= 0:
        raise ParameterError(f"worst={worst}: expected a negative reward, the one that maps to 0")
    raw = length_reward(target)

    def reward_len_scaled(completions, **_):
        return [max(0.0, 1.0 - r / worst) for r in raw(completions)]

    return reward_len_scaled


def exact_match_reward(column: str = "answer") -> RewardFn:
    """1.0 where the completion equals the data set's `column` after stripping white space, else 0.0."""

    def reward_exact_match(completions, **columns):
        if column not in columns:
            raise ParameterError(f"column={column!r}: the data set has {sorted(columns)}; name one of its columns")
        pairs = zip(completions, columns[column], strict=True)
        return [float(completion_text(c).strip() == str(want).strip()) for c, want in pairs]

    return reward_exact_match
