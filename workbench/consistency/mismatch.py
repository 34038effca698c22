"""Sampled against scored log-probs of a rollout: how much of the difference each cause adds."""

import dataclasses
import functools
import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..errors import ParameterError
from .logits import cast_copy, computed_dtype, map_logits
from .padding import TOLERANCE, pad_batch
from .ratios import RatioReport, check_columns, flat_logprobs, ratio_report

_ADVICE = {
    "batch shape": "The trainer gives other numbers in another batch: no setting of the sampler can remove that.",
    "padding": "Score with position ids: with_position_ids(model).",
    "tokens": "Train the ids that were sampled: text that is decoded and encoded again has others.",
    "dtype": "Sample and score in one dtype.",
    "weights": "Sync the engine before it samples: attach_sampler_probe(trainer) proves it.",
    "temperature": "Divide the scored logits by the temperature of sampling (TRL: `temperature`).",
    "top-k": "Sample with top_k=0, or score within the same support: the trainer spreads mass over tokens never sampled.",
    "top-p": "Sample with top_p=1, or score within the same support: the trainer spreads mass over tokens never sampled.",
    "sampler": "No setting given here explains this rest: look at the kernels, the cache, other settings, changed weights.",
}
PARTS = tuple(_ADVICE)


@dataclasses.dataclass(frozen=True)
class MismatchReport:
    """Scored - sampled log-probs of a rollout, as a sum of parts.

    Attributes:
        ratios: the whole difference, as ratios.
        parts: a row per token, a column per cause: its share of the difference; the parts add up to the whole.
        outside_support: share of tokens that top-k and top-p would not have let through, by the scorer's own numbers.
        dtype: the scorer's.
    """

    ratios: RatioReport
    parts: pd.DataFrame
    outside_support: float
    dtype: str

    def table(self) -> pd.DataFrame:
        """A row per cause and one for the whole, nats."""
        tokens = self.parts.assign(all=self.ratios.tokens)
        size = tokens.abs()
        each = [dataclasses.replace(self.ratios, tokens=column.to_numpy()) for _, column in tokens.items()]
        columns = {
            "mean": tokens.mean(),
            "mean |Δ|": size.mean(),
            "99% |Δ|": size.quantile(0.99),
            "max |Δ|": size.max(),
            "share of ratios outside [0.9, 1.1]": [ratios.outside for ratios in each],
            "max |sum over a sequence|": [np.abs(ratios.sequences).max() for ratios in each],
        }
        return pd.DataFrame(columns).rename_axis("cause").reset_index()

    @property
    def largest(self) -> str:
        """The cause with the largest mean |difference| per token."""
        return str(self.parts.abs().mean().idxmax())

    @property
    def verdict(self) -> str:
        whole = np.abs(self.ratios.tokens)
        size = f"{whole.mean():.1e} nats per token on average, {whole.max():.1e} at most ({self.dtype})"
        if self.ratios.missing:
            size += f", where {self.ratios.missing} of {len(whole)} tokens have no sampled log-prob and count as 0"
        if whole.max() <= TOLERANCE.get(self.dtype, TOLERANCE["float32"]):  # float64 rounds less
            return f"sampler and scorer agree: {size}."
        part, rounding = self.parts[self.largest].abs(), self.parts["dtype"].abs().mean()
        if self.largest == "sampler" and part.mean() <= 2 * rounding:
            return (
                f"sampler and scorer differ by as much as the sampler's dtype explains: {size}, its rounding {rounding:.1e}. "
                f"No second pass repeats it token by token. {_ADVICE['dtype']}"
            )
        return (
            f"sampler and scorer differ, most by {self.largest}: {size}, {self.ratios.outside:.1%} of token ratios outside "
            f"[0.9, 1.1]; {self.largest} alone {part.mean():.1e} on average. {_ADVICE[self.largest]}"
        )

    def _repr_html_(self) -> str:
        table = self.table().to_html(index=False, float_format="%.2g")
        return f"<p>{html.escape(self.verdict)}</p>{table}{self.ratios._repr_html_()}"


def mismatch_report(
    model: Any,
    prompt_ids: Sequence,
    completion_ids: Sequence,
    sampled_logprobs: Sequence,
    *,
    positions: str = "implicit",
    batch_size: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = 0,
    top_p: float | None = 1.0,
    scored_temperature: float | None = None,
    sampler_dtype: str | None = None,
    sampler_model: Any = None,
    sampled_ids: Sequence | None = None,
) -> MismatchReport:
    """Score a rollout as TRL does, then undo the causes of difference one by one until the sampler's numbers are left.

    The order is: batch size, padding and positions, token ids, dtype, weights, temperature, top-k, top-p. What remains is the
    sampler's own. To find which of several suspected settings explain a rollout, use `attribute_mismatch`.

    Args:
        model: the model with the weights of the sampling policy; it scores as it is, in evaluation mode.
        prompt_ids, completion_ids: N lists of token ids, without padding.
        sampled_logprobs: N lists, the sampler's log-prob of each completion token; None or NaN where it gave none.
        positions: `implicit` as in TRL's GRPO and RLOO, `explicit` for a trainer that passes position ids.
        batch_size: rows the trainer scores at once; default all.
        temperature, top_k, top_p: settings that the sampled log-probs include; top_k=0, top_p=1 and None mean none. vLLM's
            `raw_logprobs` include nothing: pass temperature=1.
        scored_temperature: temperature of the trainer; default that of the sampler, as in TRL.
        sampler_dtype: dtype of the sampler, if it is not the model's, nor that of `sampler_model`.
        sampler_model: model with the weights of the sampler, if they differ: an earlier checkpoint. It is compared in the
            sampler's dtype, and the model too, so that a checkpoint that was loaded in another one has no other weights.
        sampled_ids: N lists of the ids that the sampler drew, if the trainer trains other ids; equally many.

    Raises:
        ParameterError: lengths that do not match, an empty prompt or completion, no sampled log-prob at all, settings out of
            range, a model whose log-probs are NaN.
    """
    lengths = check_columns(prompt_ids=prompt_ids, completion_ids=completion_ids, sampled_logprobs=sampled_logprobs)
    sampled = flat_logprobs("sampled_logprobs", sampled_logprobs)
    if np.isnan(sampled).all():
        raise ParameterError("sampled_logprobs: none of them is a number, so there is nothing to compare")
    for name, given in (("temperature", temperature), ("scored_temperature", scored_temperature)):
        if given is not None and not 0 < given < float("inf"):
            raise ParameterError(f"{name}={given}: expected a positive number")
    top_k, top_p = (
        0 if top_k is None else top_k,
        1.0 if top_p is None else top_p,
    )  # transformers' and vLLM's words for none
    if not 0 < top_p <= 1:
        raise ParameterError(f"top_p={top_p}: expected a number above 0, at most 1 (1 = off)")
    if batch_size is not None and batch_size < 1:
        raise ParameterError(f"batch_size={batch_size}: expected at least 1")
    if sampled_ids is not None:
        check_columns(prompt_ids=prompt_ids, sampled_ids=sampled_ids, sampled_logprobs=sampled_logprobs)
    if sampler_dtype is not None and sampler_dtype not in TOLERANCE:
        raise ParameterError(f"sampler_dtype={sampler_dtype!r}: expected one of {', '.join(TOLERANCE)}")
    dtype = computed_dtype(model)
    older = model if sampler_model is None else sampler_model
    as_loaded = sampler_dtype is None or (sampler_model is not None and sampler_dtype == computed_dtype(older))
    precision = _precision(older) if as_loaded else (str(sampler_dtype), str(sampler_dtype))
    in_its_dtype = _of_precision(model, precision)
    sampler = in_its_dtype if older is model else _of_precision(older, precision)
    temperatures = scored_temperature or temperature, temperature
    supports = functools.partial(_supports, temperatures=temperatures, top_k=max(top_k, 0), top_p=top_p)
    rollout, width = (prompt_ids, completion_ids), (max(map(len, prompt_ids)), max(lengths))
    drawn = rollout if sampled_ids is None else (prompt_ids, sampled_ids)
    as_trained = _score(model, rollout, supports, batch_size or len(lengths), positions, width)
    one_row = _score(model, rollout, supports, 1, positions, width)
    alone = _score(model, rollout, supports)
    of_drawn = alone if sampled_ids is None else _score(model, drawn, supports)
    of_dtype = of_drawn if in_its_dtype is model else _score(in_its_dtype, drawn, supports)
    as_sampled = of_dtype if sampler is in_its_dtype else _score(sampler, drawn, supports)
    scores = [score[0] for score in (as_trained, one_row, alone, of_drawn, of_dtype)]
    steps = np.stack([*scores, *as_sampled[:4], sampled])
    if (broken := np.isnan(steps[:-1])).any():
        at = int(broken.any(axis=1).argmax())
        under = f"once {PARTS[at - 1]} is as in the sampler" if at else "as the trainer scores"
        raise ParameterError(
            f"the model gives NaN for {broken[at].sum()} of {len(sampled)} tokens {under}: nothing to compare"
        )
    # A token that the sampler gave no log-prob counts as no difference, here as in TRL.
    parts = np.where(np.isnan(sampled), 0, steps[:-1] - steps[1:])
    scored = np.split(as_trained[0], np.cumsum(lengths)[:-1])
    ratios, outside_support = ratio_report(scored, sampled_logprobs), float(1 - as_sampled[4].mean())
    return MismatchReport(ratios, pd.DataFrame(parts.T, columns=PARTS), outside_support, dtype)


def _precision(model: Any) -> tuple[str, str]:
    """The dtype of a model's weights, and the one that it computes in."""
    return str(next(model.parameters()).dtype).removeprefix("torch."), computed_dtype(model)


def _of_precision(model: Any, precision: tuple[str, str]) -> Any:
    """The model, or a copy of it in the dtype that is computed in; quantised weights stay what they are."""
    own = _precision(model)
    quantised = not {*own, *precision} <= {*TOLERANCE, "float64"}
    return model if own == precision or quantised else cast_copy(model, precision[1])


def _score(
    model: Any,
    rollout: Any,
    supports: Any,
    batch_size: int = 1,
    positions: str = "explicit",
    width: tuple[int | None, int | None] = (None, None),
) -> np.ndarray:
    """The numbers of `_supports`, (5, t) for the t tokens of all completions, padded as TRL does to the two of `width`."""
    device, found = next(model.parameters()).device, []
    for start in range(0, len(rollout[0]), batch_size):
        prompts, completions = (rows[start : start + batch_size] for rows in rollout)
        prompt, completion = pad_batch(prompts, 0, "left", width[0]), pad_batch(completions, 0, "right", width[1])
        batch = {name: torch.cat([prompt[name], completion[name]], dim=1).to(device) for name in prompt}
        scored = torch.cat(map_logits(model, batch, supports, positions=positions), dim=-1)
        of_completion = scored[..., prompt["input_ids"].shape[1] - 1 : -1].cpu()
        found.append(of_completion[:, completion["attention_mask"].bool().cpu()].double().numpy())
    return np.concatenate(found, axis=-1)


def _supports(logits: torch.Tensor, targets: torch.Tensor, temperatures: Any, top_k: int, top_p: float) -> torch.Tensor:
    """Of `targets` (B, t) from logits (B, t, V): log-probs at both temperatures, within the top k, within the nucleus of
    these, and whether the token is in that nucleus (1 or 0); (5, B, t).

    A token outside keeps its log-prob less the log of the mass inside: rounding at the edge gives no infinity.
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
