"""What PPO that learns is measured with: rewards of a text up to EOS, and ratios of two ways to train."""

from collections.abc import Sequence

import numpy as np

from ...curves.stats import POWER, Interval, one_seed, seed_interval
from ...errors import ParameterError
from ...generation.stops import StopRule
from ...training.rewards import RewardFn, describe_reward, described
from ..toys.preferences import loaded, preference_model, scores
from ..toys.starter import toy_hash

__all__ = ["preference_model", "preference_reward", "ratio_of", "up_to_eos"]


def preference_reward() -> RewardFn:
    """The score of the starter's preference model, which prefers one whole sentence; see `toys.preferences`."""

    @described(unit="score of the preference model", weights_sha256=toy_hash("preferences/model.safetensors"))
    def reward_preference(prompts, completions, **_):
        return scores(*loaded(preference_model()), prompts, completions)

    return reward_preference


def up_to_eos(reward: RewardFn, rule: StopRule) -> RewardFn:
    """The same reward of each completion cut at its first EOS, where `rule` ends, whatever stops it was sampled with."""
    about = describe_reward(reward)

    @described(unit=about["unit"], lowest=about["lowest"], highest=about["highest"], **about["arguments"])
    def cut(completions, completion_ids, **columns):
        rows = [list(ids) for ids in completion_ids]
        texts = [rule.text(ids, rule.find_end(ids)) for ids in rows]
        return reward(completions=texts, completion_ids=rows, **columns)

    cut.__name__ = f"{about['name']}_up_to_eos"
    return cut


class _Ratio(Interval):
    """An interval that was computed on logarithms: what it could show is a factor of the bound and no distance from it."""

    @property
    def detectable(self) -> float:
        logs = (float(np.log(value)) for value in (self.estimate, self.low, self.high))
        return float(np.exp(Interval(*logs, self.level, self.n, self.method, self.about).detectable))

    @property
    def _could_show(self) -> str:
        return f"; {self.detectable:.2g} times that would show in {POWER:.0%} of such experiments"


def ratio_of(first: Sequence[float], second: Sequence[float], rng: np.random.Generator) -> Interval:
    """The ratio of two positive numbers of each seed: its geometric mean over seeds, and the interval of that.

    Raises:
        ParameterError: a number that is not positive and finite, or not as many of both.

    Example:
        >>> found = ratio_of([4.0, 6.0, 5.0], [2.0, 2.0, 2.0], np.random.default_rng(0))
        >>> round(found.estimate, 2), found.low > 1, found.name
        (2.47, True, '95% t interval')
    """
    above, below = np.asarray(first, float), np.asarray(second, float)
    positive = (above > 0) & (below > 0) & np.isfinite(above) & np.isfinite(below) if above.shape == below.shape else 0
    if not np.all(positive):
        raise ParameterError(
            f"ratio_of({above.tolist()}, {below.tolist()}): expected a pair of positive numbers a seed"
        )
    logs = np.log(above / below)
    if len(logs) == 1:
        return one_seed(float(np.exp(logs[0])))
    found = seed_interval(logs, rng, statistic=np.mean)
    bounds = [float(np.exp(value)) for value in (found.estimate, found.low, found.high)]
    return _Ratio(*bounds, found.level, found.n, found.method, found.about)
