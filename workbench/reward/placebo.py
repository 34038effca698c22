"""Placebos of a reward: as random, as shuffled, or paid for one feature alone; and what a reward does beyond its placebo.

A training with a placebo shows how much of a gain comes without what the reward is meant to measure.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..curves.stats import Interval, crossed_interval, one_seed, seed_interval, seeds_needed
from ..errors import ParameterError
from ..logs.rollouts import COLUMNS, message_text
from .call import is_async, name_of, number, text_of
from .explain import numbered
from .features import FEATURES, Feature, answer_box, closed_tags, code_fences, feature, named

RANDOM, SHUFFLED = "random", "shuffled"
_ROUNDING = 1e-9  # share of a score


@feature
def format(completion: str, **row: Any) -> float:
    """Closed tags, a marked answer, a closed code fence: a point each."""
    return min(1, closed_tags(completion)) + answer_box(completion) + min(1, code_fences(completion))


@dataclasses.dataclass(eq=False)
class Placebo:
    """A reward function in TRL's convention that asks another one, and pays something else at the same mean and spread.

    Attributes:
        reward: the function that it stands for.
        kind: `random`, `shuffled` or the name of a feature.
        pays: the feature; None for `random` and `shuffled`.
        sign: -1 pays for less of the feature.
        seed: of what is drawn.
    """

    reward: Any
    kind: str
    pays: Feature | None
    sign: int
    seed: int

    def __post_init__(self) -> None:
        self.__name__ = f"placebo_{self.kind.replace(' ', '_')}_{name_of(self.reward)}"
        self.__wrapped__ = self.reward  # so that what a run records of its reward covers this function's code
        real = getattr(self.reward, "about", {})
        self.about = {"unit": real.get("unit"), "lowest": None, "highest": None, "arguments": self._arguments(real)}
        if self.pays is None:
            self.about |= {name: real.get(name) for name in ("lowest", "highest")}

    def _arguments(self, real: Mapping[str, Any]) -> dict[str, Any]:
        """Return what distinguishes it from other placebos of a function with this name."""
        arguments = {"placebo": self.kind, "sign": self.sign, "seed": self.seed, "of": real.get("arguments", {})}
        if self.pays is not None and self.pays not in (*FEATURES, format):
            code = self.pays.function.__code__
            arguments["feature"] = f"{zlib.crc32(code.co_code + repr(code.co_consts).encode()):08x}"
        return arguments

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Give a reward for each completion, None where the real one gives None."""
        return self.in_place_of(self.reward(completions=completions, **columns), completions, columns)

    def in_place_of(self, rewards: Any, completions: Sequence[Any], columns: Mapping[str, Any]) -> list[float | None]:
        """Replace the rewards of a batch, one for each completion."""
        real = np.array([number(value) for value in rewards], float)
        if len(real) != len(completions):
            raise ParameterError(f"{self.__name__}: {len(real)} rewards for {len(completions)} completions")
        known = ~np.isnan(real)
        # From the batch and not from a counter: a training that is resumed draws what the other would have drawn.
        texts = [text_of(completion) for completion in completions]
        rng = np.random.default_rng([self.seed, zlib.crc32("\0".join(texts).encode("utf-8", "replace"))])
        paid = np.full(len(real), np.nan)
        if known.any() and self.kind == RANDOM:
            paid[known] = rng.choice(real[known], known.sum())
        elif known.any() and self.kind == SHUFFLED:
            paid[known] = _shuffled(real[known], _groups(columns, known, self.__name__), rng)
        elif known.any():
            paid[known] = self._for_the_feature(real[known], known, completions, columns)
        return [None if np.isnan(value) else float(value) for value in paid]

    def _for_the_feature(
        self, real: np.ndarray, known: np.ndarray, completions: Sequence[Any], columns: Mapping
    ) -> np.ndarray:
        """Return what the feature earns at the mean and the spread of the real rewards; the mean where all have it alike."""
        assert self.pays is not None
        rows = [_row(columns, place, len(completions)) for place in range(len(completions))]
        values = [self.pays(message_text(each), **row) for each, row in zip(completions, rows, strict=True)]
        chosen = np.array(values, float)[known]
        there = ~np.isnan(chosen)
        if not there.any() and (missing := [name for name in self.pays.asks_for if name not in rows[0]]):
            raise ParameterError(
                f"placebo of {self.pays.name}: known of no completion, because the trainer passes no column "
                f"{', '.join(missing)}, only {', '.join(rows[0])}; pass it, or take another feature"
            )
        chosen = np.where(there, chosen, chosen[there].mean() if there.any() else 0.0)  # as `explain` takes it
        spread = chosen.std()
        scores = (chosen - chosen.mean()) / spread if spread > 0 else np.zeros(len(chosen))
        return real.mean() + self.sign * real.std() * scores


class AsyncPlacebo(Placebo):
    """A placebo of an asynchronous reward function."""

    async def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:  # type: ignore[override]
        """Give a reward for each completion, as `Placebo` does."""
        return self.in_place_of(await self.reward(completions=completions, **columns), completions, columns)


def placebo(kind: str | Feature, *, sign: int = 1, seed: int = 0) -> Callable[[Any], Placebo]:
    """Make a wrapper that gives a placebo of a reward function, for a TRL trainer or an `Arm`.

    `random` draws from the rewards of the batch, whatever the completion is. `shuffled` deals the rewards of each prompt to its
    completions again, so that prompts keep their rewards. A feature, by name or your own, pays for that feature alone, at the
    mean and spread of the real rewards of the batch; `format` pays for closed tags, marked answers and code fences. The real
    reward function is still asked, since the placebo takes its values from it.

    Args:
        kind: `random`, `shuffled`, `format`, the name of a built-in feature, or a function under `@feature`.
        sign: -1 pays for less of a feature.
        seed: of what is drawn. The same batch gets the same rewards.

    Raises:
        ParameterError: no such feature, another sign; when it wraps, a reward model instead of a function.

    Example:
        >>> def length_in_words(completions, **columns):
        ...     return [len(text.split()) for text in completions]
        >>> control = placebo("shuffled")(length_in_words)
        >>> sorted(control(prompts=["p"] * 3, completions=["a", "a b", "a b c"])), control.__name__
        ([1.0, 2.0, 3.0], 'placebo_shuffled_length_in_words')
    """
    if sign not in (-1, 1):
        raise ParameterError(f"sign={sign}: expected 1, which pays for more of the feature, or -1 for less")
    pays: Feature | None = None
    if isinstance(kind, Feature):
        pays = kind
    elif not isinstance(kind, str):
        raise ParameterError(
            f"placebo of kind {kind!r}: expected random, shuffled, a feature's name, or a function under `@feature`"
        )
    elif kind not in (RANDOM, SHUFFLED):
        pays = named(kind, [format])
    word = pays.name if pays is not None else str(kind)

    def wrap(reward: Any) -> Placebo:
        if isinstance(reward, str) or not callable(reward) or hasattr(reward, "forward"):
            raise ParameterError(f"placebo of {reward!r}: expected a reward function, not a model or its name")
        made = AsyncPlacebo if is_async(reward) else Placebo
        return made(reward, word, pays, sign, seed)

    return wrap


def _row(columns: Mapping[str, Any], place: int, rows: int) -> dict[str, Any]:
    """The columns of one completion under the names that `reward_report` gives them."""
    own = {}
    for name, values in columns.items():
        if isinstance(values, list | tuple) and len(values) == rows:
            own["prompt" if name == "prompts" else name] = values[place]
    own["prompt"] = message_text(own.get("prompt", ""))
    if "answer" not in own and (answer := next((name for name in COLUMNS["answer"] if name in own), None)):
        own["answer"] = own[answer]
    if (ids := own.pop("completion_ids", None)) is not None:
        own.setdefault("tokens", len(ids))
    return own


def _groups(columns: Mapping[str, Any], known: np.ndarray, name: str) -> np.ndarray:
    """The group of each known reward: completions of one prompt."""
    if columns.get("prompts") is None:
        raise ParameterError(f"{name}: called without `prompts`, which say what the groups are; TRL passes them")
    prompts = np.array([message_text(prompt) for prompt in columns["prompts"]])
    return numbered(prompts[known])


def _shuffled(values: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Deal the values of each group again."""
    dealt = values.copy()
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        dealt[rows] = rng.permutation(values[rows])
    return dealt


# --- the verdict ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PlaceboReport:
    """What a reward does beyond its placebo, over seeds.

    Attributes:
        beyond: score with the reward less score with the placebo at the same seed, with its interval.
        placebo: score with the placebo less that of the untrained model; None where that is not known.
        seeds: that would show a difference as large as this one in 80% of experiments; None where there is no interval, or the
            difference is below a tenth of the spread.
    """

    beyond: Interval
    placebo: Interval | None = None
    seeds: int | None = None

    @property
    def verdict(self) -> str:
        """`beyond its placebo`, `below its placebo` or `inconclusive`."""
        above, _ = self.beyond.above(0.0)  # scores that are equal may differ by rounding
        return "inconclusive" if above is None else "beyond its placebo" if above else "below its placebo"

    def __str__(self) -> str:
        if not self.beyond.method:
            return f"inconclusive: {self.beyond.estimate:+.3g} beyond its placebo with {self.beyond.about}"
        over = self.beyond.about.partition(", ")[2]
        says = f"The reward's effect beyond its placebo: {_signed(self.beyond)}, {self.beyond.name} over {over}"
        says += f"; a difference of {self.beyond.detectable:.2g} would show in 80% of such experiments."
        if self.verdict == "inconclusive":
            of_these = " on these questions" if "questions" in over else ""
            needed = f"; {self.seeds} seeds would show one as large as this{of_these}" if self.seeds else ""
            says = f"Inconclusive{needed}. {says}"
        if self.placebo is not None:
            says += f" The placebo's own gain: {_signed(self.placebo)}."
        return says

    __repr__ = __str__


def placebo_report(
    reward: ArrayLike, placebo: ArrayLike, *, untrained: float | None = None, seed: int = 0
) -> PlaceboReport:
    """Compare trainings with a reward with trainings with its placebo, seed by seed.

    Args:
        reward: a score of each training, such as the share of held-out answers that are right, (seeds,), 2 or more for an
            interval; or the score of each answer, (seeds, questions), and the interval is over both.
        placebo: the same of the trainings with the placebo, in the same order of seeds and questions.
        untrained: the score before training; the report then also has the placebo's own gain.
        seed: of the bootstrap, from 5 seeds on.

    Raises:
        ParameterError: not the same number of scores, or one that is not finite.

    Example:
        >>> print(placebo_report([0.52, 0.48, 0.55, 0.50], [0.28, 0.31, 0.30, 0.26]).verdict)
        beyond its placebo
    """
    real, control = np.asarray(reward, float), np.asarray(placebo, float)
    if real.shape != control.shape or real.ndim not in (1, 2) or not len(real):
        shapes = f"scores of shape {real.shape} with the reward and {control.shape} with the placebo"
        raise ParameterError(f"{shapes}: expected one of each for every seed, or a row of answers for every seed")
    beyond = _interval(real - control, seed)
    own = None if untrained is None else _interval(control - untrained, seed)
    seeds = None
    differences = (real - control).reshape(len(real), -1).mean(1)
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    size = abs(float(beyond.estimate))
    if spread > 0 and size >= 0.1 * spread:  # a smaller one takes 800 seeds or more
        seeds = seeds_needed(spread, size, paired=True)
    return PlaceboReport(beyond, own, seeds)


def _interval(values: np.ndarray, seed: int) -> Interval:
    if not np.isfinite(values).all():
        raise ParameterError("scores: expected a finite number for each seed; leave out or repeat a seed without one")
    if values.ndim == 2:
        return crossed_interval(values)
    if len(values) == 1:
        return one_seed(float(values[0]))
    # Coarse scores of few seeds may agree by chance: no spread is no certainty. Six on one side are rare (3%) without a cause.
    if len(values) < 6 and np.ptp(values) <= _ROUNDING * np.abs(values).max():
        about = f"{len(values)} seeds, all of them equal; how far another seed would be from them is unknown"
        return Interval(float(values.mean()), np.nan, np.nan, 0.95, len(values), "", about)
    return seed_interval(values, np.random.default_rng(seed), statistic=np.mean)


def _signed(interval: Interval) -> str:
    if not interval.method:
        return f"{interval.estimate:+.2f}"
    return f"{interval.estimate:+.2f} ({interval.low:+.2f} to {interval.high:+.2f})"
