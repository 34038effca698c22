"""How far padding moves a model's log-probs, compared with how far another batch size alone moves them."""

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..consistency.padding import POSITIONS, TOLERANCE
from ..consistency.positions import (
    derives_positions,
    fills_position_ids,
    rope_parameters,
    rope_types,
    text_config,
    window,
)
from ..errors import ParameterError
from .layouts import CONTROL, IGNORED, USED, attention_kernel, compare_layouts, use_of_positions
from .logits import cast_copy, without_autocast

EXACT = "exact"
ROUNDING = "rounding only"
NEEDS_POSITIONS = "wrong without position ids"
NEAR_WINDOW = "wrong near the window"
UNUSED = "position ids not used"
BROKEN = "wrong even with position ids"
_LENGTH_DEPENDENT = ("dynamic", "longrope")  # transformers recomputes these from the largest position in the batch
_WIDEST = 8192
_CASTABLE = 2**30  # parameters up to which a copy in another dtype is made by default


@dataclasses.dataclass(frozen=True)
class PaddingReport:
    """What padding does to one model.

    Attributes:
        kind: `exact`, `rounding only`, `wrong without position ids`, `wrong near the window`, `position ids not used` or
            `wrong even with position ids`.
        reason: the numbers and the parts of the config that decided it, and what to do.
        rows: one per dtype, attention kernel and layout of the texts: how far it is from each text alone and unpadded,
            over all tokens, the drift over each text. `control` rows hold no padding. Shares are between 0 and 1,
            log-probs, KL and drift in nats.
        notes: what was not run and why, and what else the numbers depend on.
    """

    kind: str
    reason: str
    rows: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        return f"{self.kind}: {self.reason}"

    def worst(self, dtype: str = "float32", **where) -> float:
        """Largest |difference of a log-prob| in nats over the rows whose fields equal `where`; NaN without such rows, infinite
        where a log-prob is no number."""
        return _worst(self.rows, dtype=dtype, **where)

    def table(self) -> pd.DataFrame:
        return self.rows

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        table = self.table().to_html(index=False, float_format="%.2g")
        return f"<p><b>{html.escape(self.kind)}</b>: {html.escape(self.reason)}</p>{table}<ul>{notes}</ul>"

    def __str__(self) -> str:
        table = self.table().to_string(index=False, float_format="%.2g")
        return "\n".join([self.verdict, "", table, "", *self.notes])


def padding_report(
    model: Any,
    tokenizer: Any,
    texts: Sequence,
    *,
    dtypes: Sequence[str] | None = None,
    attentions: Sequence[str] = ("eager", "sdpa", "flash_attention_2"),
    extra_pads: int = 6,
) -> PaddingReport:
    """Score texts alone and unpadded, then in every layout a trainer might use, and say what differs and why.

    The fp32 logits of all texts without padding are held, twice where several dtypes or kernels are run (tokens x vocabulary):
    give a handful of texts of some dozen tokens. The model is left as it was.

    Args:
        model: causal language model.
        tokenizer: of the model; None where `texts` are token ids.
        texts: strings or lists of token ids, at least two of at least two tokens; unequal lengths show most.
        dtypes: `float32`, `bfloat16`, `float16`. Default: the model's own for one above a billion parameters, else all, on
            a CPU without float16, which is slow there.
        attentions: kernels to try; what the model or the machine lacks is noted as not run.
        extra_pads: pads beyond the longest text. A model whose RoPE depends on the length gets enough to pass its window.

    Raises:
        ParameterError: fewer than two texts, a text of fewer than two tokens or beyond the window, texts that no pad can be
            added to, an unknown dtype.
    """
    sequences = _tokenize(tokenizer, texts)
    own = str(next(model.parameters()).dtype).removeprefix("torch.")
    dtypes = dtypes or _default_dtypes(model, own)
    if unknown := set(dtypes) - TOLERANCE.keys():
        raise ParameterError(f"dtypes={list(dtypes)}: {', '.join(unknown)} is none of {', '.join(TOLERANCE)}")
    dtypes = sorted(dtypes, key=list(TOLERANCE).index)
    width, notes = _width(model, sequences, extra_pads)
    rows: list[dict] = []
    first = None
    with without_autocast(model):
        use = use_of_positions(model, sequences[0])
    for dtype in dtypes:
        cast = model if dtype == own else cast_copy(model, dtype)
        for attention in attentions:
            with without_autocast(cast), attention_kernel(cast, attention) as missing:
                if missing:
                    notes.append(f"not run: {attention} ({missing})")
                    continue
                settings = {"dtype": dtype, "attention": attention}
                try:
                    reference, found = compare_layouts(cast, sequences, width, settings, use, first)
                except RuntimeError as error:  # a kernel that lacks this dtype, no memory, NaN
                    notes.append(f"not run: {attention} in {dtype} ({str(error).splitlines()[0]})")
                    continue
                rows += found
                first = first or (f"{dtype} {attention}", reference)
    notes = list(dict.fromkeys(notes))
    if not rows:
        raise ParameterError(f"attentions={list(attentions)}, dtypes={dtypes}: none could be run; {'; '.join(notes)}")
    table = pd.DataFrame(rows)
    return PaddingReport(*_decide(model, table, use), table, tuple(notes))


def _default_dtypes(model: Any, own: str) -> list[str]:
    if sum(p.numel() for p in model.parameters()) >= _CASTABLE:
        return [own]
    on_cpu = next(model.parameters()).device.type == "cpu"
    return [dtype for dtype in TOLERANCE if dtype in (own, "float32", "bfloat16") or not on_cpu]


def _tokenize(tokenizer: Any, texts: Sequence) -> list[list[int]]:
    sequences = [tokenizer(text)["input_ids"] if isinstance(text, str) else list(text) for text in texts]
    if len(sequences) < 2:
        raise ParameterError(f"texts: {len(sequences)} given; expected at least two, of unequal length")
    if short := [n for n, sequence in enumerate(sequences) if len(sequence) < 2]:
        raise ParameterError(f"texts: {short} have fewer than two tokens, so no log-prob; leave them out")
    return sequences


def _width(model: Any, sequences, extra_pads: int) -> tuple[int, list[str]]:
    """Tokens per row with padding, and what to note about it."""
    longest, limit, notes = max(map(len, sequences)), window(model), []
    if limit and longest > limit:
        raise ParameterError(f"texts: the longest has {longest} tokens, the model's window {limit}; shorten it")
    width = longest + extra_pads
    if dependent := rope_types(model) & set(_LENGTH_DEPENDENT):
        crossed = length_threshold(model) + extra_pads
        if crossed <= _WIDEST:
            width = max(width, crossed)
        else:
            notes.append(f"not run: padding past the {', '.join(dependent)} window ({crossed} tokens, too many here)")
    if limit and width > limit:
        notes.append(f"padded to {limit} tokens only: the model's window")
        width = limit
    if width == min(map(len, sequences)):
        raise ParameterError(
            f"texts: all have {width} tokens and none gets a pad (window {limit or 'unlimited'}, extra_pads={extra_pads}), so "
            "nothing can be seen: give texts of unequal length, one of them shorter than the window"
        )
    if fills_position_ids(model):
        notes.append("this model has a hook of with_position_ids, which fills its 'implicit' rows")
    if derives_positions(model):
        notes.append("the model counts positions itself where none are given")
    return width, notes


def _worst(rows: pd.DataFrame, **where) -> float:
    chosen = (rows[list(where)] == pd.Series(where)).all(axis=1)
    return float(rows.loc[chosen, "max |Δ log-prob|"].fillna(float("inf")).max())


def _decide(model: Any, rows: pd.DataFrame, use: str) -> tuple[str, str]:
    """Kind and reason, from the most precise dtype that was run."""
    dtype = rows.loc[0, "dtype"]
    control = _worst(rows, dtype=dtype, layout=CONTROL)
    explicit, implicit = (_worst(rows, dtype=dtype, positions=p) for p in POSITIONS)
    tolerance = max(TOLERANCE[dtype], 4 * control)  # another batch size may move numbers more than rounding explains
    numbers = (
        f"padding moves log-probs by up to {_nats(implicit)} nats without position ids"
        + (f", {_nats(explicit)} with them" if use in (USED, IGNORED) else "")
        + f" ({dtype}); other batch sizes alone by {_nats(control)}. "
    )
    length_dependent = rope_types(model) & set(_LENGTH_DEPENDENT)
    if use != USED and implicit <= tolerance:
        return UNUSED, numbers + f"The model {use}; the mask alone shows what is padding, and that is enough."
    if length_dependent and max(implicit, explicit if use == USED else 0) > tolerance:
        return NEAR_WINDOW, numbers + _window_advice(model, length_dependent, explicit > tolerance)
    if use != USED or explicit > tolerance:
        return BROKEN, numbers + "Score such texts without padding, one length per batch."
    if implicit > tolerance:
        return NEEDS_POSITIONS, numbers + "Pass position ids, or train inside with_position_ids(model)."
    if _worst(rows, layout="padded") == 0:
        return EXACT, numbers + "No layout moves any number."
    reason = numbers + _rounding(rows, dtype)
    if length_dependent:
        kinds, threshold = ", ".join(length_dependent), length_threshold(model)
        reason += f"Its RoPE ({kinds}) depends on the length beyond {threshold} tokens, not reached here."
    return ROUNDING, reason


def _window_advice(model: Any, kinds: set[str], explicit_too: bool) -> str:
    text = (
        f"Its RoPE ({', '.join(kinds)}) changes once any position in the batch passes {length_threshold(model)}, and pads "
        "count as positions, on the right too, unless position ids are given. "
    )
    if explicit_too:
        return text + "Here a text itself passes it and changes its neighbours: batch texts by length."
    return text + "Pass position ids, and keep texts on both sides of that length in separate batches."


def _rounding(rows: pd.DataFrame, dtype: str) -> str:
    parts = []
    for other in rows.loc[rows["dtype"] != dtype, "dtype"].unique():
        explicit, implicit = (_nats(_worst(rows, dtype=other, positions=p)) for p in POSITIONS)
        parts.append(f"{implicit} without and {explicit} with them in {other}")
    return f"Lower precision rounds more: {', '.join(parts)}. " if parts else ""


def _nats(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def length_threshold(model: Any) -> int:
    """Tokens beyond which RoPE of a kind that depends on the length (`dynamic`, `longrope`) changes.

    `dynamic` changes beyond the config's `max_position_embeddings`, `longrope` beyond the original ones.
    """
    name = "original_max_position_embeddings"
    config = text_config(model)
    if "longrope" not in rope_types(model):
        return config.max_position_embeddings
    known = [parameters[name] for parameters in rope_parameters(model) if name in parameters]
    return min(known, default=getattr(config, name, None) or config.max_position_embeddings)
