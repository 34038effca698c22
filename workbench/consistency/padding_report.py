"""How far padding moves a model's log-probs, compared with how far another batch size alone moves them."""

import contextlib
import dataclasses
import html
import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

from ..errors import ParameterError
from .logits import cast_copy, map_logits, without_autocast
from .padding import POSITIONS, SIDES, TOLERANCE, evaluating, pad_batch
from .positions import (
    derives_positions,
    fills_position_ids,
    rope_parameters,
    rope_types,
    takes_position_ids,
    text_config,
    window,
)

CONTROL = "control: copies of itself, no padding"
USED, IGNORED = "uses them", "takes them and ignores them"  # what a model does with position ids
_ROWS = 64  # tokens compared at once where all logits are there

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

    def worst(self, dtype: str = "float32", **where: Any) -> float:
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
        dtypes: `float32`, `bfloat16`, `float16`. Default: all of them, without float16 on a CPU, where it is slow; for a
            model above a billion parameters only its own dtype.
        attentions: attention kernels to try; `notes` names those that the model or the machine lacks.
        extra_pads: pads beyond the longest text. A model whose RoPE depends on the length gets enough to pass its window.

    Raises:
        ParameterError: fewer than two texts, a text of fewer than two tokens or beyond the window, texts that no pad can be
            added to, an unknown dtype.
    """
    sequences = _tokenize(tokenizer, texts)
    own = str(next(model.parameters()).dtype).removeprefix("torch.")
    given = _default_dtypes(model, own) if dtypes is None or not len(dtypes) else dtypes
    dtypes = [str(dtype).removeprefix("torch.") for dtype in ([given] if isinstance(given, str) else given)]
    attentions = [attentions] if isinstance(attentions, str) else attentions
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


def _width(model: Any, sequences: Sequence, extra_pads: int) -> tuple[int, list[str]]:
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


def _worst(rows: pd.DataFrame, **where: Any) -> float:
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


# --- logits of the same texts in every layout that a trainer might use, against each text alone and unpadded ---


def use_of_positions(model: Any, sequence: list[int]) -> str:
    """Return what the model does with position ids."""
    ids = torch.tensor([sequence], device=next(model.parameters()).device)
    right = torch.arange(len(sequence), device=ids.device).unsqueeze(0)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    try:
        with torch.no_grad(), evaluating(model):
            forward, backward = (model(**inputs, position_ids=p).logits for p in (right, right.flip(-1)))
    except TypeError:
        return "refuses them"
    if not torch.equal(forward, backward):
        return USED
    return IGNORED if takes_position_ids(model) else "takes them in **kwargs and drops them"


@contextlib.contextmanager
def attention_kernel(model: Any, name: str):
    """Another attention kernel inside the block; yields why that cannot be, or an empty string."""
    from transformers.utils import is_flash_attn_2_available, logging

    before, verbosity, missing = model.config._attn_implementation, logging.get_verbosity(), ""
    logging.set_verbosity_error()  # the reason is yielded; transformers would print it once for each try
    try:
        if name == "flash_attention_2" and not is_flash_attn_2_available():
            missing = "not installed, or no GPU"
        elif name == "flash_attention_2" and next(model.parameters()).dtype == torch.float32:
            missing = "takes half precision only"
        elif name != before:
            model.set_attn_implementation(name)
            missing = "" if name == model.config._attn_implementation else "the model has one kernel of its own"
    except (ValueError, ImportError) as error:
        missing = str(error).split(". ")[0].splitlines()[0]
    finally:
        logging.set_verbosity(verbosity)
    try:
        yield missing
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)


def compare_layouts(
    model: Any, sequences: list[list[int]], width: int, settings: dict, use: str, first: tuple[str, torch.Tensor] | None
) -> tuple[torch.Tensor, list[dict]]:
    """The reference logits (n, V) of the n tokens of all texts, and a row for each layout; `first` has those of the first."""
    slices: list[torch.Tensor] = []
    _text_logits(model, sequences, lambda at, logits: slices.append(logits))
    reference = torch.cat(slices)
    if reference.isnan().any():
        raise RuntimeError("its logits are NaN for texts alone and unpadded")
    rows = []

    def add(found: Any, layout: str, side: str = "", positions: str = "", batch: int = 1):
        place = {"layout": layout, "side": side, "positions": positions, "batch": batch}
        rows.append(settings | place | found.numbers())

    for copies in (1, 4):
        found = _Differences(sequences, reference)
        _text_logits(model, sequences, found.see, copies=copies)
        add(found, CONTROL, batch=copies)
    if first:
        found = _Differences(sequences, first[1])
        for at in torch.arange(len(reference), device=reference.device).split(_ROWS):
            found.see(at, reference[at])
        add(found, f"unpadded, against {first[0]}")
    sizes = (1, len(sequences)) if first else (1, 2, len(sequences))
    for side in SIDES:
        for positions in ("implicit", "explicit") if use in (USED, IGNORED) else ("implicit",):
            for size in sorted(set(sizes)):
                found = _Differences(sequences, reference)
                _text_logits(model, sequences, found.see, side, positions, batch_size=size, width=width)
                add(found, "padded", side, positions, size)
    return reference, rows


def _text_logits(
    model: Any, sequences, function, side="right", positions="implicit", *, batch_size=1, copies=1, width=None
) -> None:
    """Calls `function(at, logits)` for slices of the texts' own tokens, of several copies in one batch for the last.

    `at` (k,) are places among the tokens of all texts one after another, `logits` (k, V) those of these tokens.
    """
    before = 0
    for start in range(0, len(sequences), batch_size):
        texts = sequences[start : start + batch_size]
        batch = pad_batch(texts * copies, pad_id=0, side=side, width=width)
        batch = {name: value.to(next(model.parameters()).device) for name, value in batch.items()}
        if "dynamic" in rope_types(model):  # it keeps the frequencies of a longer text before; a short one resets them
            one = torch.ones_like(batch["input_ids"][:1, :1])
            map_logits(model, {"input_ids": one, "attention_mask": one}, lambda logits, targets: None)
        chosen = batch["attention_mask"].bool()
        chosen[: -len(texts)] = False
        places = chosen.flatten().cumsum(0).view_as(chosen) - 1 + before
        before += sum(map(len, texts))
        columns = iter(range(chosen.shape[1]))

        def see(logits, targets, chosen=chosen, places=places, columns=columns):
            of_slice = list(itertools.islice(columns, logits.shape[1]))
            keep = chosen[:, of_slice]
            if keep.any():
                function(places[:, of_slice][keep], logits[keep])

        map_logits(model, batch, see, positions=positions)


class _Differences:
    """The numbers of a row, from slices of logits seen one after another; `before` (n, V) are the reference's."""

    def __init__(self, sequences: list, before: torch.Tensor):
        self._before, self._lengths = before, [len(text) for text in sequences]
        self._following = torch.tensor(list(itertools.chain(*sequences)), device=before.device).roll(-1)
        self._moved = torch.zeros(len(before), dtype=torch.double, device=before.device)
        self._flipped, self._kl, self._logit = (torch.zeros_like(self._moved) for _ in range(3))

    def see(self, at: torch.Tensor, after: torch.Tensor) -> None:
        """Logits (k, V) of the tokens at these places (k,)."""
        before = self._before[at]
        before_log = before.log_softmax(-1)
        moved = after.log_softmax(-1) - before_log
        self._moved[at] = moved.gather(-1, self._following[at].unsqueeze(-1)).squeeze(-1).double()
        self._flipped[at] = (after.argmax(-1) != before.argmax(-1)).double()
        self._kl[at] = -(before_log.exp_() * moved).sum(-1).double()
        self._logit[at] = (after - before).abs().amax(-1).double()

    def numbers(self) -> dict[str, Any]:
        deltas = [of_text[:-1] for of_text in self._moved.split(self._lengths)]  # after the last token comes nothing
        every = torch.cat(deltas)
        ratios = every.exp()
        return {
            "max |Δ log-prob|": every.abs().max().item(),
            "median |Δ log-prob|": every.abs().quantile(0.5).item(),
            "99% |Δ log-prob|": every.abs().quantile(0.99).item(),
            "max |Δ logit|": self._logit.max().item(),
            "share of top-1 flips": self._flipped.mean().item(),
            "max KL": self._kl.max().clamp(min=0).item(),
            "share of ratios outside [0.9, 1.1]": ((ratios < 0.9) | (ratios > 1.1)).double().mean().item(),
            "max sequence drift": max(delta.sum().abs().item() for delta in deltas),
        }
