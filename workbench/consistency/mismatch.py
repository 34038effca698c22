"""Sampled against scored log-probs of a rollout: how far apart, how much each cause adds, and what TRL would clip."""

import dataclasses
import html
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import torch

from ..errors import ParameterError
from .padding import TOLERANCE, cast_copy, map_logits, pad_batch

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")  # TRL's vllm_importance_sampling_mode
CLIP_MIN, CLIP_MAX = None, 3.0  # TRL's defaults of vllm_importance_sampling_clip_min and _max
QUANTILES = (0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1)
PARTS = ("batch shape", "padding", "dtype", "temperature", "top-k", "top-p", "sampler")
_ADVICE = {
    "batch shape": "The trainer differs from itself in another batch: no setting of the sampler can remove that.",
    "padding": "Score with position ids: with_position_ids(model).",
    "dtype": "Sample and score in one dtype.",
    "temperature": "Divide the scored logits by the temperature of sampling (TRL: `temperature`).",
    "top-k": "Sample with top_k=0, or score within the same support: the trainer spreads mass over tokens never sampled.",
    "top-p": "Sample with top_p=1, or score within the same support: the trainer spreads mass over tokens never sampled.",
    "sampler": "This is what is left: its kernels and cache, settings that were not given here, or weights that changed since.",
}

# --- ratios --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RatioReport:
    """Importance ratios p_scored / p_sampled before any clipping, and what TRL's modes would make of them.

    Attributes:
        differences: per sequence, scored - sampled log-prob of each token; 0 where the sampler gave none, as in TRL.
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

    differences: tuple[np.ndarray, ...]
    missing: int
    clip_min: float | None = CLIP_MIN
    clip_max: float | None = CLIP_MAX

    @property
    def tokens(self) -> np.ndarray:
        """Log-ratio of every token."""
        return np.concatenate(self.differences)

    @property
    def sequences(self) -> np.ndarray:
        """Log-ratio of every sequence: the sum over its tokens."""
        return np.array([d.sum() for d in self.differences])

    @property
    def outside(self) -> float:
        """Share of token ratios outside [0.9, 1.1]."""
        return _outside(self.tokens)

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
        low = -np.inf if self.clip_min is None else self.clip_min
        high = np.inf if self.clip_max is None else self.clip_max
        of_token = np.repeat(np.arange(len(self.differences)), [len(d) for d in self.differences])
        rows = []
        for mode in MODES:
            level, action = mode.split("_")
            ratios = np.exp(self.tokens if level == "token" else self.sequences[of_token])
            changed = (ratios < low) | (ratios > high)
            left = np.clip(ratios, low, high) if action == "truncate" else np.where(changed, 0, ratios)
            rows.append(
                {
                    "mode": mode,
                    "does": "clips" if action == "truncate" else "masks",
                    "tokens": changed.mean(),
                    "sequences": len(np.unique(of_token[changed])) / len(self.differences),
                    "mean ratio left": left.mean(),
                }
            )
        return pd.DataFrame(rows)

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


def _outside(log_ratios: np.ndarray) -> float:
    return float(((log_ratios < np.log(0.9)) | (log_ratios > np.log(1.1))).mean())


def ratio_report(
    scored_logprobs: Sequence,
    sampled_logprobs: Sequence,
    *,
    clip_min: float | None = CLIP_MIN,
    clip_max: float | None = CLIP_MAX,
) -> RatioReport:
    """Compare two log-probs of each sampled token; needs no model, so it fits saved rollouts and a running trainer.

    Args:
        scored_logprobs: per sequence the trainer's log-prob of each completion token.
        sampled_logprobs: the sampler's; None or NaN where it gave none.
        clip_min, clip_max: TRL's `vllm_importance_sampling_clip_min` and `_max`; None for no bound.

    Raises:
        ParameterError: no sequences, unequal lengths, positive log-probs, or bounds out of order.

    Example: the sampler gave no log-prob for the last token.
        >>> report = ratio_report([[-1.0, -2.0, -0.5]], [[-1.5, -2.0, None]])
        >>> report.tokens.tolist(), report.sequences.tolist(), report.missing
        ([0.5, 0.0, 0.0], [0.5], 1)
    """
    if clip_min is not None and clip_max is not None and clip_min >= clip_max:
        raise ParameterError(f"clip_min={clip_min}: expected less than clip_max={clip_max}")
    scored, sampled = _rows("scored_logprobs", scored_logprobs), _rows("sampled_logprobs", sampled_logprobs)
    _check_lengths("scored_logprobs", scored, "sampled_logprobs", sampled)
    known = [~np.isnan(row) for row in sampled]
    differences = tuple(np.where(k, a - np.where(k, b, 0), 0) for a, b, k in zip(scored, sampled, known, strict=True))
    return RatioReport(differences, sum(int((~k).sum()) for k in known), clip_min, clip_max)


def _rows(name: str, values: Sequence) -> list[np.ndarray]:
    rows = [np.asarray([np.nan if v is None else float(v) for v in row], dtype=np.float64) for row in values]
    if not rows or any(not len(row) for row in rows):
        raise ParameterError(f"{name}: expected at least one sequence, none of them empty; leave empty completions out")
    if any((row > 1e-3).any() for row in rows):
        raise ParameterError(f"{name} holds positive numbers: expected log-probs (nats, at most 0), not probabilities")
    return rows


def _check_lengths(a: str, first: Sequence, b: str, second: Sequence) -> None:
    if len(first) != len(second):
        raise ParameterError(f"{a} has {len(first)} sequences, {b} {len(second)}: expected one each per completion")
    for n, (x, y) in enumerate(zip(first, second, strict=True)):
        if len(x) != len(y):
            raise ParameterError(f"sequence {n}: {len(x)} {a}, {len(y)} {b}; expected one each per completion token")


# --- causes --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MismatchReport:
    """Scored - sampled log-probs of a rollout, as a sum of parts.

    Attributes:
        ratios: the whole difference, as ratios.
        parts: cause -> per sequence its share of each token's difference; the parts add up to the whole.
        outside_support: share of tokens that top-k and top-p would not have let through, by the scorer's own numbers.
        dtype: the scorer's.
    """

    ratios: RatioReport
    parts: dict[str, tuple[np.ndarray, ...]]
    outside_support: float
    dtype: str

    def table(self) -> pd.DataFrame:
        """A row per cause and one for the whole, nats."""
        return pd.DataFrame(
            [_size(name, rows) for name, rows in (*self.parts.items(), ("all", self.ratios.differences))]
        )

    @property
    def largest(self) -> str:
        """The cause with the largest mean |difference| per token."""
        return max(self.parts, key=lambda name: np.abs(np.concatenate(self.parts[name])).mean())

    @property
    def verdict(self) -> str:
        whole = np.abs(self.ratios.tokens)
        size = f"{whole.mean():.1e} nats per token on average, {whole.max():.1e} at most ({self.dtype})"
        if whole.max() <= TOLERANCE[self.dtype]:
            return f"sampler and scorer agree: {size}."
        part = np.abs(np.concatenate(self.parts[self.largest]))
        return (
            f"sampler and scorer differ, most by {self.largest}: {size}, {self.ratios.outside:.1%} of token ratios outside "
            f"[0.9, 1.1]; {self.largest} alone {part.mean():.1e} on average. {_ADVICE[self.largest]}"
        )

    def _repr_html_(self) -> str:
        table = self.table().to_html(index=False, float_format="%.2g")
        return f"<p>{html.escape(self.verdict)}</p>{table}{self.ratios._repr_html_()}"


def _size(name: str, rows: Sequence[np.ndarray]) -> dict:
    tokens = np.concatenate(rows)
    return {
        "cause": name,
        "mean": tokens.mean(),
        "mean |Δ|": np.abs(tokens).mean(),
        "99% |Δ|": np.quantile(np.abs(tokens), 0.99),
        "max |Δ|": np.abs(tokens).max(),
        "share of ratios outside [0.9, 1.1]": _outside(tokens),
        "max |sum over a sequence|": max(abs(row.sum()) for row in rows),
    }


def mismatch_report(
    model,
    prompt_ids: Sequence,
    completion_ids: Sequence,
    sampled_logprobs: Sequence,
    *,
    positions: str = "implicit",
    batch_size: int | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    scored_temperature: float | None = None,
    sampler_dtype: str | None = None,
    clip_min: float | None = CLIP_MIN,
    clip_max: float | None = CLIP_MAX,
) -> MismatchReport:
    """Score a rollout as TRL does, then undo one cause of difference after another until the sampler's numbers are left.

    In turn: batch size, padding and positions, dtype, temperature, top-k, top-p; what remains is the sampler's.

    Args:
        model: with the weights that sampled; scored as it is, in evaluation mode.
        prompt_ids, completion_ids: N lists of token ids, without padding.
        sampled_logprobs: N lists, the sampler's log-prob of each completion token; None or NaN where it gave none.
        positions: `implicit` as in TRL's GRPO and RLOO, `explicit` for a trainer that passes position ids.
        batch_size: rows the trainer scores at once; default all.
        temperature, top_k, top_p: that the sampled log-probs contain; top_k=0 and top_p=1 for none. vLLM's
            `raw_logprobs` contain nothing: pass temperature=1.
        scored_temperature: the trainer's; default the sampler's, as in TRL.
        sampler_dtype: the sampler's, where it is not the model's.
        clip_min, clip_max: for TRL's importance-sampling modes.

    Raises:
        ParameterError: lengths that do not match, an empty prompt or completion, settings out of range.
    """
    sampled = _rows("sampled_logprobs", sampled_logprobs)
    _check_lengths("completion_ids", completion_ids, "sampled_logprobs", sampled)
    _check_settings(prompt_ids, completion_ids, temperature, top_p, sampler_dtype, batch_size)
    rollout = (prompt_ids, completion_ids)
    trained_at = scored_temperature or temperature
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    sampler = model if sampler_dtype in (None, dtype) else cast_copy(model, sampler_dtype)
    settings = {"temperatures": (trained_at, temperature), "top_k": max(top_k, 0), "top_p": top_p}

    width = max(map(len, prompt_ids)), max(map(len, completion_ids))
    as_trained = _score(model, rollout, batch_size or len(sampled), positions, width, **settings)
    one_row = _score(model, rollout, 1, positions, width, **settings)
    alone = _score(model, rollout, 1, "explicit", None, **settings)
    as_sampled = alone if sampler is model else _score(sampler, rollout, 1, "explicit", None, **settings)
    steps = [[row[0] for row in rows] for rows in (as_trained, one_row, alone, as_sampled)]
    steps += [[row[n] for row in as_sampled] for n in (1, 2, 3)] + [sampled]
    parts = {  # a token that the sampler gave no log-prob counts as no difference, here as in TRL
        name: tuple(np.where(np.isnan(s), 0, a - b) for a, b, s in zip(before, after, sampled, strict=True))
        for name, (before, after) in zip(PARTS, pairwise(steps), strict=True)
    }
    inside = np.concatenate([row[4] for row in as_sampled])
    report = ratio_report(steps[0], sampled, clip_min=clip_min, clip_max=clip_max)
    return MismatchReport(report, parts, float(1 - inside.mean()), dtype)


def mismatch_report_of(model, rollouts: Sequence, **options) -> MismatchReport:
    """`mismatch_report` of rollouts as `rollouts.generate` gives them, whichever back end sampled.

    Args:
        model: with the weights that sampled.
        rollouts: rows with `prompt_ids`, `completion_ids` and `logprobs`.
        **options: of `mismatch_report`. `temperature`, `top_k` and `top_p` are those that the log-probs contain: from
            `TransformersSampler` the temperature alone; from vLLM nothing, unless it was started with
            `logprobs_mode="processed_logprobs"`, as TRL does, which gives all three.

    Raises:
        ParameterError: rollouts without log-probs or of no tokens; see `mismatch_report`.
    """
    if not rollouts:
        raise ParameterError("rollouts is empty: expected at least one")
    if silent := [n for n, rollout in enumerate(rollouts) if rollout.logprobs is None]:
        raise ParameterError(f"rollouts {silent[:5]} have no logprobs; sample them with rollouts.generate")
    columns = ([list(getattr(r, name)) for r in rollouts] for name in ("prompt_ids", "completion_ids", "logprobs"))
    return mismatch_report(model, *columns, **options)


def _check_settings(prompt_ids, completion_ids, temperature, top_p, sampler_dtype, batch_size) -> None:
    if len(prompt_ids) != len(completion_ids):
        raise ParameterError(
            f"{len(prompt_ids)} prompt_ids, {len(completion_ids)} completion_ids: expected one prompt each"
        )
    if empty := [n for n, row in enumerate(prompt_ids) if not len(row)]:
        raise ParameterError(f"prompt_ids: rows {empty} are empty; leave them out")
    if not temperature > 0:
        raise ParameterError(f"temperature={temperature}: expected a positive number")
    if not 0 < top_p <= 1:
        raise ParameterError(f"top_p={top_p}: expected a number above 0, at most 1 (1 = off)")
    if batch_size is not None and batch_size < 1:
        raise ParameterError(f"batch_size={batch_size}: expected at least 1")
    if sampler_dtype is not None and sampler_dtype not in TOLERANCE:
        raise ParameterError(f"sampler_dtype={sampler_dtype!r}: expected one of {', '.join(TOLERANCE)}")


def _score(model, rollout, batch_size, positions, width, *, temperatures, top_k, top_p) -> list[np.ndarray]:
    """The numbers of `_supports`, (5, t) for each completion of t tokens.

    With a `width` (prompt, completion) prompts are padded on the left and completions on the right, as TRL does.
    """
    device, found = next(model.parameters()).device, []
    for start in range(0, len(rollout[0]), batch_size):
        prompts, completions = (rows[start : start + batch_size] for rows in rollout)
        left, right = width or (None, None)
        parts = pad_batch(prompts, 0, "left", left), pad_batch(completions, 0, "right", right)
        batch = {name: torch.cat([part[name] for part in parts], dim=1).to(device) for name in parts[0]}
        first = parts[0]["input_ids"].shape[1]

        def numbers(start: int, logits: torch.Tensor, ids=batch["input_ids"]):
            targets = ids[:, start + 1 : start + 1 + logits.shape[1]]
            return _supports(logits[:, : targets.shape[1]], targets, temperatures, top_k, top_p)

        slices = map_logits(model, batch, numbers, positions=positions)
        joined = torch.cat(slices, dim=-1)[..., first - 1 :].double().cpu().numpy()
        found += [joined[:, row, : len(completion)] for row, completion in enumerate(completions)]
    return found


def _supports(logits, targets, temperatures, top_k: int, top_p: float) -> torch.Tensor:
    """Of `targets` (B, t) from logits (B, t, V) five numbers each, (5, B, t).

    Log-probs at both temperatures, within the top k, and within the nucleus of these; then 1 for a token in that nucleus,
    0 for one outside. A token outside keeps its log-prob less the log of the mass inside, so that rounding at the edge
    gives no infinity.
    """
    index = targets.unsqueeze(-1)
    scored = (logits / temperatures[0]).log_softmax(-1).gather(-1, index).squeeze(-1)
    logprobs = (logits / temperatures[1]).log_softmax(-1)
    own = logprobs.gather(-1, index)
    plain = own.squeeze(-1)
    if not top_k and top_p == 1:
        return torch.stack([scored, plain, plain, plain, torch.ones_like(plain)])
    ranked = logprobs.sort(-1, descending=True).values.exp()
    if top_k:
        ranked = ranked[..., :top_k]
    mass = ranked.sum(-1)
    kept = ranked.cumsum(-1) - ranked < top_p * mass.unsqueeze(-1)  # the mass before a token decides, as in samplers
    nucleus = (ranked * kept).sum(-1)
    inside = (logprobs > own).sum(-1) < kept.sum(-1)
    in_top_k = plain - mass.log() if top_k else plain
    return torch.stack([scored, plain, in_top_k, plain - nucleus.log(), inside.to(plain)])
