"""Importance ratios of a rollout: sampled and scored log-probs, how far apart, and what TRL would clip. Needs no model."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..errors import ParameterError

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")  # TRL's vllm_importance_sampling_mode
CLIP_MIN, CLIP_MAX = None, 3.0  # TRL's defaults of vllm_importance_sampling_clip_min and _max
QUANTILES = (0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1)


@dataclasses.dataclass(frozen=True, eq=False)
class RatioReport:
    """Importance ratios p_scored / p_sampled before any clipping, and what TRL's modes would make of them.

    Attributes:
        tokens: log-ratio of every token, scored - sampled log-prob; 0 where the sampler gave none, as in TRL.
        lengths: tokens of each sequence.
        missing: tokens without a sampled log-prob.
        clip_min, clip_max: the bounds of `modes`.

    Example: two sequences; only the first token of the first one differs, by a ratio of 2.
        >>> report = ratio_report([[-1.0, -2.0], [-1.0]], [[-1.0 - np.log(2), -2.0], [-1.0]], clip_max=1.5)
        >>> np.exp(report.tokens).round(3).tolist(), np.exp(report.sequences).round(3).tolist()
        ([2.0, 1.0, 1.0], [2.0, 1.0])
        >>> round(report.outside, 3), round(report.effective_sample_size(), 3), round(report.kl(), 3)
        (0.333, 0.9, 0.102)
        >>> report.modes().round(3)[["mode", "tokens", "sequences", "mean ratio left"]]
                        mode  tokens  sequences  mean ratio left
        0     token_truncate   0.333        0.5            1.167
        1         token_mask   0.333        0.5            0.667
        2  sequence_truncate   0.667        0.5            1.333
        3      sequence_mask   0.667        0.5            0.333
    """

    tokens: np.ndarray
    lengths: tuple[int, ...]
    missing: int
    clip_min: float | None = CLIP_MIN
    clip_max: float | None = CLIP_MAX

    @property
    def sequences(self) -> np.ndarray:
        """Log-ratio of every sequence: the sum over its tokens."""
        return np.array([part.sum() for part in np.split(self.tokens, np.cumsum(self.lengths)[:-1])])

    @property
    def outside(self) -> float:
        """Share of token ratios outside [0.9, 1.1]."""
        return float(((self.tokens < np.log(0.9)) | (self.tokens > np.log(1.1))).mean())

    def effective_sample_size(self, level: str = "sequence") -> float:
        """(sum w)^2 / (n sum w^2) of the ratios w, between 1/n and 1; `level` is `token` or `sequence`."""
        if level not in ("token", "sequence"):
            raise ParameterError(f"level={level!r}: expected token or sequence")
        logs = self.tokens if level == "token" else self.sequences
        weights = np.exp(logs - logs.max())
        return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))

    def kl(self) -> float:
        """KL(sampler || scorer) per token, nats: the mean of r - 1 - log r, which is never negative."""
        return float(np.mean(np.expm1(self.tokens) - self.tokens))

    def quantiles(self) -> pd.DataFrame:
        """Quantiles of the raw ratios, a row for tokens and one for sequences; 0 and 1 are the extremes."""
        rows = {"token": self.tokens, "sequence": self.sequences}
        return pd.DataFrame({name: np.exp(np.quantile(logs, QUANTILES)) for name, logs in rows.items()}, QUANTILES).T

    def modes(self) -> pd.DataFrame:
        """Share of tokens and sequences whose ratio each importance-sampling mode of TRL would clip or mask.

        A sequence counts in a token mode when any of its tokens does, a token in a sequence mode when its sequence does.
        """
        of_token = np.repeat(np.arange(len(self.lengths)), self.lengths)
        rows = []
        for mode in MODES:
            level, action = mode.split("_")
            ratios = np.exp(self.tokens if level == "token" else self.sequences[of_token])
            clipped = pd.Series(ratios).clip(self.clip_min, self.clip_max).to_numpy()
            changed = clipped != ratios
            left = clipped if action == "truncate" else np.where(changed, 0, ratios)
            of_sequences = len(np.unique(of_token[changed])) / len(self.lengths)
            does = "clips" if action == "truncate" else "masks"
            rows.append((mode, does, changed.mean(), of_sequences, left.mean()))
        return pd.DataFrame(rows, columns=["mode", "does", "tokens", "sequences", "mean ratio left"])

    def table(self) -> pd.DataFrame:
        """One row per number: size, differences, effective sample sizes."""
        tokens, sequences = self.tokens, self.sequences
        numbers = {
            "tokens": len(tokens),
            "sequences": len(sequences),
            "tokens without sampled log-prob": self.missing,
            "mean difference per token [nats]": tokens.mean(),
            "mean |difference| per token [nats]": np.abs(tokens).mean(),
            "max |difference| per token [nats]": np.abs(tokens).max(),
            "max |difference| per sequence [nats]": np.abs(sequences).max(),
            "share of token ratios outside [0.9, 1.1]": self.outside,
            "KL(sampler || scorer) per token [nats]": self.kl(),
            "effective sample size, tokens": self.effective_sample_size("token"),
            "effective sample size, sequences": self.effective_sample_size("sequence"),
        }
        return pd.DataFrame({"quantity": list(numbers), "value": list(numbers.values())})

    def _repr_html_(self) -> str:
        bounds = f"TRL's modes at clip_min={self.clip_min}, clip_max={self.clip_max}"
        return (
            self.table().to_html(index=False, float_format="%.3g")
            + f"<p>Quantiles of the ratio</p>{self.quantiles().to_html(float_format='%.3g')}"
            + f"<p>{bounds}: share that each changes</p>{self.modes().to_html(index=False, float_format='%.3g')}"
        )


def ratio_report(
    scored_logprobs: Sequence,
    sampled_logprobs: Sequence,
    *,
    clip_min: float | None = CLIP_MIN,
    clip_max: float | None = CLIP_MAX,
) -> RatioReport:
    """Compare the trainer's and the sampler's log-prob of each sampled token, in saved rollouts or a running trainer.

    Args:
        scored_logprobs: per sequence the trainer's log-prob of each completion token.
        sampled_logprobs: the sampler's; None or NaN where it gave none.
        clip_min, clip_max: TRL's `vllm_importance_sampling_clip_min` and `_max`; None for no bound.

    Raises:
        ParameterError: no sequences, unequal lengths, numbers that are no log-probs, a missing scored one, wrong bounds.

    Example: the sampler gave no log-prob for the last token.
        >>> report = ratio_report([[-1.0, -2.0, -0.5]], [[-1.5, -2.0, None]])
        >>> report.tokens.tolist(), report.sequences.tolist(), report.missing
        ([0.5, 0.0, 0.0], [0.5], 1)
    """
    for name, bound in (("clip_min", clip_min), ("clip_max", clip_max)):
        if bound is not None and not bound >= 0:
            raise ParameterError(f"{name}={bound}: expected a number of at least 0, or None for no bound")
    if clip_min is not None and clip_max is not None and clip_min >= clip_max:
        raise ParameterError(f"clip_min={clip_min}: expected less than clip_max={clip_max}")
    lengths = check_columns(scored_logprobs=scored_logprobs, sampled_logprobs=sampled_logprobs)
    scored = flat_logprobs("scored_logprobs", scored_logprobs)
    sampled = flat_logprobs("sampled_logprobs", sampled_logprobs)
    missing = np.isnan(sampled)
    if np.isnan(scored).any():
        raise ParameterError("scored_logprobs holds nan or None: expected a number for each token")
    return RatioReport(np.where(missing, 0, scored - sampled), lengths, int(missing.sum()), clip_min, clip_max)


def check_columns(**columns: Sequence) -> tuple[int, ...]:
    """Tokens of each completion; a column has a row for each completion, the last two a value for each token."""
    *_, (a, first), (b, second) = columns.items()
    for name, rows in columns.items():
        if len(rows) != len(second):
            raise ParameterError(f"{name} has {len(rows)} sequences and {b} has {len(second)}: expected equally many")
        empty = [n for n, row in enumerate(rows) if not len(row)]
        if empty or not len(rows):
            raise ParameterError(f"{name}: {len(rows)} sequences, empty: {empty}; leave these out, expected at least 1")
    for n, (x, y) in enumerate(zip(first, second, strict=True)):
        if len(x) != len(y):
            raise ParameterError(f"sequence {n}: {len(x)} {a}, {len(y)} {b}; expected one of each for every token")
    return tuple(map(len, first))


def flat_logprobs(name: str, logprobs: Sequence) -> np.ndarray:
    """The log-probs of all sequences one after another, NaN for None."""
    try:
        flat = np.array([np.nan if value is None else float(value) for row in logprobs for value in row])
    except TypeError as error:
        raise ParameterError(f"{name}: {error}; expected a list of each sequence with one number a token") from error
    if (flat > 1e-3).any() or np.isinf(flat).any():
        raise ParameterError(f"{name} holds positive or infinite numbers: expected log-probs (nats), not probabilities")
    return flat
