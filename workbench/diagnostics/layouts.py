"""Logits of the same texts in every layout that a trainer might use, against each text alone and unpadded."""

import contextlib
import itertools
from typing import Any

import torch

from ..consistency.padding import SIDES, evaluating, pad_batch
from ..consistency.positions import rope_types, takes_position_ids
from .logits import map_logits

CONTROL = "control: copies of itself, no padding"
USED, IGNORED = "uses them", "takes them and ignores them"  # what a model does with position ids
_ROWS = 64  # tokens compared at once where all logits are there


def use_of_positions(model: Any, sequence: list[int]) -> str:
    """What the model does with position ids."""
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

    def add(found, layout, side="", positions="", batch=1):
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
