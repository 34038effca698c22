"""The stage `batches`: the rows that the loss took, against the rows as they were generated and scored.

Between the two lies what no formula describes: the shuffle, the split into micro-batches, a buffer, a method of a subclass.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .report import Stage
from .stages import SAME, places, tolerance_of, without_pads
from .step import MicroRows, Step

_LOGPS = {
    "old_logps": "old log-probs",
    "ref_logps": "reference log-probs",
    "sampled_logps": "the sampler's log-probs",
    "correction": "weights of the correction",
}
_HALVES = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # what rounding a number once to half precision can make of it


@dataclass(frozen=True)
class _Taken:
    """A row that the loss took: row `place` of a micro-batch."""

    number: int  # in the order in which the loss took them
    micro: MicroRows
    place: int

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.micro.prompt_ids[self.place])

    @property
    def ids(self) -> list[int]:
        assert self.micro.completion_ids is not None
        return self.micro.completion_ids[self.place]

    def masks(self) -> tuple[np.ndarray, np.ndarray]:
        """(T,), of its tokens: those that count in the loss, and those of which the arrays of a `LossRow` are."""
        assert self.micro.completion_mask is not None
        there = self.micro.completion_mask[self.place] > 0
        mask = np.zeros(len(there))
        mask[there] = self.micro.rows[self.place].mask
        return mask, there


def check_batches(step: Step) -> Stage:
    """Compare each row of each micro-batch with the generated row of its prompt and tokens.

    Mask, advantage, and old, reference and sampled log-probs are those of the generated row. Each generated row is taken
    once, and none is missing where the step takes the whole generation. Equal completions of one prompt are a multiset.
    """
    micro_batches = step.micro_batches
    if any(m.completion_ids is None or m.completion_mask is None or m.generation is None for m in micro_batches):
        cause = "the file is of an older workbench, which did not keep the rows of the loss whole"
        return Stage("batches", "cannot tell", cause)
    if any(token < 0 for row in step.rows for token in row.prompt_ids + row.ids):
        cause = "the file has no token ids, since a text of the step holds a secret"
        return Stage("batches", "cannot tell", cause)
    if any(m.generation not in range(len(step.advantages)) for m in micro_batches):
        return Stage("batches", "cannot tell", "the completions were generated before anything was taken down")
    comparison = _Comparison(step)
    # TRL goes round a generation in `steps_per_generation` micro-batches, `num_iterations` times.
    window = step.settings.get("steps_per_generation") or step.settings["gradient_accumulation_steps"]
    first = 0
    for number, advantages in enumerate(step.advantages):
        generated = range(first, first + len(advantages))
        first += len(advantages)
        own = [m for m in micro_batches if m.generation == number]
        for start in range(0, len(own), window):
            part = own[start : start + window]
            # Behind the last generation of an update, the next update goes on; before the first, an earlier one may have.
            is_over = number + 1 < len(step.advantages) and (number > 0 or step.reused is False)
            comparison.match(_rows_of(step, part), generated, whole=is_over or len(part) == window)
    return comparison.stage()


def _rows_of(step: Step, part: Sequence[MicroRows]) -> list[_Taken]:
    taken, number = [], 0
    for micro in step.micro_batches:
        if any(micro is each for each in part):
            taken += [_Taken(number + i, micro, i) for i in range(len(micro.rows))]
        number += len(micro.rows)
    return taken


class _Comparison:
    """Differences between the rows of the loss and the generated rows of a step."""

    def __init__(self, step: Step):
        self.step = step
        self.advantages = [np.asarray(row) for table in step.advantages for row in table]
        self.largest = max((float(np.abs(np.nan_to_num(row)).max(initial=0.0)) for row in self.advantages), default=0.0)
        self.keys = [(tuple(row.prompt_ids), without_pads(row.ids, step.pad_token_id)) for row in step.rows]
        self.differences: dict[int, dict[str, str]] = {}  # row of the loss -> part -> what is there instead
        self.missing: list[int] = []  # generated rows that the loss did not take
        self.rows = 0
        self.rounded = False
        self.pairs: list[tuple[float, float]] = []  # advantages that differ: taken and generated

    def match(self, rows: Sequence[_Taken], generated: Sequence[int], whole: bool) -> None:
        """Match rows of the loss with generated rows: first those that agree in all, then by prompt and tokens."""
        self.rows += len(rows)
        free = {i: self.keys[i] for i in generated}
        left = list(rows)
        # Of equal completions with advantages that are near each other each has its own: the nearest are taken first.
        for limit in (0.0, SAME, self._limit()):
            others = []
            for row in left:
                partner = next((i for i in self._same_text(row, free) if not self._differences(row, i, limit)), None)
                if partner is None:
                    others.append(row)
                    continue
                self.rounded |= bool(self._differences(row, partner, SAME))
                del free[partner]
            left = others
        strangers = []
        for row in left:
            partner = next(iter(self._same_text(row, free)), None)
            if partner is None:
                strangers.append(row)
                continue
            self.differences[row.number] = self._differences(row, partner, self._limit())
            if "advantage" in self.differences[row.number]:
                self.pairs += [*zip(*self._both_advantages(row, partner), strict=True)]
            del free[partner]
        everything = {self.keys[i] for i in generated}
        for row in strangers:
            partner, part, said = self._nearest(row, free, everything)
            self.differences[row.number] = {part: said}
            if partner is not None:
                del free[partner]
        if whole:
            self.missing += list(free)

    def _key(self, row: _Taken) -> tuple:
        return row.prompt, without_pads(row.ids, self.step.pad_token_id)

    def _limit(self) -> float:
        """Up to where a number of the loss may be off: the loss takes it as it is, or rounded once to half precision."""
        return _HALVES.get(self.step.dtype, tolerance_of(self.step).value)

    def _same_text(self, row: _Taken, free: dict[int, tuple]) -> list[int]:
        key = self._key(row)
        return [i for i, other in free.items() if other == key]

    def _nearest(self, row: _Taken, free: dict[int, tuple], everything: set) -> tuple[int | None, str, str]:
        """The generated row that a row of the loss may have been, which part of it is another, and this in words."""
        prompt, ids = self._key(row)
        if (prompt, ids) in everything:
            return None, "row", "is there more often than it was generated"
        same_tokens = next((i for i in free if free[i][1] == ids), None)
        if same_tokens is not None:
            other = len(free[same_tokens][0])
            return same_tokens, "prompt", f"({len(prompt)} tokens) is not the one it was sampled with ({other} tokens)"
        common = {i: _common(key[1], ids) for i, key in free.items() if key[0] == prompt}
        partner = max(common, key=common.__getitem__, default=None)
        if partner is None or not common[partner]:
            return None, "row", "was not generated"
        said = (
            f"({len(ids)}) are those of a generated row of {len(free[partner][1])} in the first {common[partner]} alone"
        )
        return partner, "tokens", said

    def _differences(self, row: _Taken, index: int, limit: float) -> dict[str, str]:
        """The parts of a row of the loss that are not those of a generated row: part -> its value in the loss."""
        generated, taken = self.step.rows[index], row.micro.rows[row.place]
        found = {}
        own, scored = self._both_advantages(row, index)
        if not _close(own, scored, limit, self.largest):
            found["advantage"] = f"{_range(own)} instead of {_range(scored)}"
        mask, there = row.masks()
        size = max(len(mask), len(generated.mask))
        own_mask, scored_mask = (np.pad(each, (0, size - len(each))) for each in (mask, generated.mask))
        if (own_mask != scored_mask).any():
            found["mask"] = f"of {own_mask.sum():.0f} tokens instead of {scored_mask.sum():.0f}"
        places_of_both = np.flatnonzero((own_mask > 0) & (scored_mask > 0))
        places_of_both = places_of_both[places_of_both < len(generated.ids)]
        for name, said in _LOGPS.items():
            own, scored = getattr(taken, name), getattr(generated, name)
            if scored is None or not len(places_of_both):
                continue
            if own is None:
                found[said] = "are left out"
                continue
            own = own if len(scored) == 1 else _spread(own, there)[places_of_both]
            scored = scored if len(scored) == 1 else scored[places_of_both]
            if not _close(own, scored, limit):
                found[said] = f"of {_range(own)} instead of {_range(scored)}"
        if taken.old_sum is not None and generated.old_sum is not None:
            own, scored = np.array([taken.old_sum]), np.array([generated.old_sum])
            if not _close(own, scored, limit):
                found["old log-probs"] = f"of {_range(own)} instead of {_range(scored)}"
        return found

    def _both_advantages(self, row: _Taken, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The values of a row of the loss and of a generated row, equally many: one, or one for each token of the loss."""
        taken, scored = np.asarray(row.micro.rows[row.place].advantage), self.advantages[index]
        if not taken.ndim and not scored.ndim:
            return taken[None], scored[None]
        _, there = row.masks()
        tokens = np.flatnonzero(there)
        if scored.ndim:
            tokens = tokens[tokens < len(scored)]
        own = _spread(taken, there)[tokens] if taken.ndim else np.full(len(tokens), float(taken))
        return own, scored[tokens] if scored.ndim else np.full(len(tokens), float(scored))

    def stage(self) -> Stage:
        wrong, missing = sorted(self.differences), self.missing
        if not wrong and not missing:
            said = f"the loss takes {self.rows} rows as they were generated"
            return Stage("batches", "rounding" if self.rounded else "same", said, 0.0)
        parts = []
        if wrong:
            counts = Counter(part for of_row in self.differences.values() for part in of_row)
            listed = ", ".join(f"{part} {count}" for part, count in counts.items())
            parts.append(f"{len(wrong)} of {self.rows} rows of the loss are not as they were generated ({listed})")
            first = [said if part == "row" else f"{part} {said}" for part, said in self.differences[wrong[0]].items()]
            parts.append(f"row {wrong[0]}: {', '.join(first)}")
        times = _factor(self.pairs)
        if times is not None:
            parts.append(f"these advantages are {times:.3g} times those of the generation")
        if missing:
            parts.append(f"{len(missing)} generated rows are in no micro-batch ({places(missing)})")
        return Stage(
            "batches", "different", "; ".join(parts), float(len(wrong) + len(missing)), places(wrong or missing)
        )


def _spread(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    """(T,) from the values of the tokens that are there, NaN for the others."""
    spread = np.full(len(there), np.nan)
    spread[there] = values
    return spread


def _close(a: np.ndarray, b: np.ndarray, limit: float, size: float = 1.0) -> bool:
    """Say whether numbers are equal up to a limit, relative to their own size and to that of numbers of their kind."""
    return bool(np.allclose(a, b, rtol=limit, atol=limit * size, equal_nan=True))


def _range(values: np.ndarray) -> str:
    numbers = values[np.isfinite(values)]
    if not len(numbers):
        return "no number"
    low, high = numbers.min(), numbers.max()
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of equal tokens with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _factor(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The factor that all advantages that differ have in common, None without one."""
    if len(pairs) < 2:
        return None
    taken, scored = np.array(pairs, dtype=float).T
    if not scored.any():
        return None
    factor = float(taken @ scored / (scored @ scored))
    return factor if np.abs(taken - factor * scored).max() <= 1e-3 * np.abs(scored).max() else None
