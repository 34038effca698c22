"""PPO that learns, under several ways to stop: reward over seconds, and what text after EOS does (notebook 01, claim A0.2)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..curves.curve import Curve, peak, reached_at, steps_to_threshold
from ..curves.measured import run_curve
from ..curves.stats import Interval, one_seed, seed_interval
from ..generation.stops import StopRule, StopSpec
from ..recipes.ppo import PPOTrainer
from ..recipes.recipes import Recipe
from ..runs.run import Run
from ..toys.preferences import loaded, preference_model, scores
from ..toys.starter import toy_hash
from ..training.rewards import RewardFn, describe_reward, described
from .arms import Arm

WHOLE, UP_TO_EOS, AT_EOS = "no stop, whole text scored", "no stop, text up to EOS scored", "stop at EOS"
WINDOW = 3  # updates whose mean has to reach a reward


def preference_reward() -> RewardFn:
    """The score of the starter's preference model, which prefers one whole sentence; see `toys.preferences`."""

    @described(unit="score of the preference model", weights_sha256=toy_hash("preferences/model.safetensors"))
    def reward_preference(prompts, completions, **_):
        return scores(*loaded(preference_model()), prompts, completions)

    return reward_preference


def up_to_eos(reward: RewardFn, rule: StopRule) -> RewardFn:
    """The same reward of each completion cut at its first EOS, whatever stops it was sampled with.

    Args:
        reward: described, in TRL's convention.
        rule: that ends at EOS.
    """
    about = describe_reward(reward)

    @described(unit=about["unit"], lowest=about["lowest"], highest=about["highest"], **about["arguments"])
    def cut(completions, completion_ids, **columns):
        rows = [list(ids) for ids in completion_ids]
        texts = [rule.text(ids, rule.find_end(ids)) for ids in rows]
        return reward(completions=texts, completion_ids=rows, **columns)

    cut.__name__ = f"{about['name']}_up_to_eos"
    return cut


def learning_arms(
    recipe: Recipe, reward: RewardFn, rule: StopRule, stop: str, *, weight: float, **options
) -> dict[str, Arm]:
    """Legacy mode with the whole text scored, and with the text up to EOS; stopping at EOS; stopping at a custom stop.

    Each arm records both rewards of every response, and learns from one of them.

    Args:
        recipe: what to train.
        reward: described, in TRL's convention.
        rule: that ends at EOS.
        stop: the custom stop string.
        weight: of the reward; PPO's value model starts at 0, so rewards of tens want 0.1 or less.
        **options: fields of TRL's `PPOConfig`.
    """
    named: dict[str, tuple[StopSpec, list[float]]] = {
        WHOLE: (StopSpec.never(), [weight, 0.0]),
        UP_TO_EOS: (StopSpec.never(), [0.0, weight]),
        AT_EOS: (StopSpec(), [weight, 0.0]),
        f"stop at {stop!r}": (StopSpec(stop=(stop,)), [weight, 0.0]),
    }
    both = [reward, up_to_eos(reward, rule)]
    return {
        name: Arm(recipe, both, PPOTrainer, stops, options | {"reward_weights": weights})
        for name, (stops, weights) in named.items()
    }


def learned_curves(runs: Mapping[str, Sequence[Run]], name: str, axis: str = "step") -> dict[str, list[Curve]]:
    """Per arm, the reward that it learned from, without its weight; one curve a seed.

    Args:
        runs: of `learning_arms`.
        name: of the reward function.
        axis: step or elapsed_s.
    """
    own = {arm: f"{name}_up_to_eos" if arm == UP_TO_EOS else name for arm in runs}
    return {
        arm: [run_curve(run, f"rewards/{own[arm]}/mean", axis=axis) for run in members] for arm, members in runs.items()
    }


def curves_up_to_eos(runs: Mapping[str, Sequence[Run]], name: str, axis: str = "step") -> dict[str, list[Curve]]:
    """As `learned_curves`, of the text up to EOS in every arm: what a user gets, whatever was scored."""
    metric = f"rewards/{name}_up_to_eos/mean"
    return {arm: [run_curve(run, metric, axis=axis) for run in members] for arm, members in runs.items()}


def reached_by_all(curves: Mapping[str, Sequence[Curve]]) -> float:
    """The highest reward that every curve reaches as the mean of `WINDOW` updates in a row.

    Example:
        >>> low, high = (Curve(name, [1, 2, 3, 4], y, "points") for name, y in (("a", [0, 2, 4, 3]), ("b", [5, 6, 7, 9])))
        >>> reached_by_all({"arm": [low], "other": [high]})
        3.0
    """
    return min(peak(curve, WINDOW)[1] for members in curves.values() for curve in members)


def learning_table(runs: Mapping[str, Sequence[Run]], name: str, goal: float, rng: np.random.Generator) -> pd.DataFrame:
    """Per arm over its seeds: the reward it learned from, what an update costs, and when its text up to EOS is worth `goal`.

    `seconds to it` is the IQM over seeds, `low` and `high` its 95% interval; NaN for one seed.
    """
    own, by_time = learned_curves(runs, name), curves_up_to_eos(runs, name, "elapsed_s")
    rows = {}
    for arm, members in runs.items():
        metrics = [run.metrics for run in members]
        seconds = steps_to_threshold(by_time[arm], goal, rng, window=WINDOW)
        rows[arm] = {
            "seeds": len(members),
            "learned from, first 3": np.mean([c.y[:3].mean() for c in own[arm]]),
            "learned from, last 5": np.mean([c.y[-5:].mean() for c in own[arm]]),
            "up to EOS, last 5": np.mean([c.y[-5:].mean() for c in by_time[arm]]),
            "forward passes per update": np.mean([m["generation/forwards"].mean() for m in metrics]),
            "seconds per update": np.median(np.concatenate([m["elapsed_s"].diff().dropna() for m in metrics])),
            "value loss": np.mean([m["loss/value_avg"].mean() for m in metrics]),
            "seconds to it": seconds.estimate,
            "low": seconds.low,
            "high": seconds.high,
        }
    return pd.DataFrame(rows).T


def time_ratio(
    runs: Mapping[str, Sequence[Run]], name: str, goal: float, rng: np.random.Generator, *, arm: str = WHOLE
) -> Interval:
    """Seconds until the text up to EOS is worth `goal`, in an arm of legacy mode over those with EOS as the stop."""
    curves = curves_up_to_eos(runs, name, "elapsed_s")
    times = [[reached_at(curve, goal, window=WINDOW) for curve in curves[one]] for one in (arm, AT_EOS)]
    return ratio_of(*times, rng)


def value_loss_ratio(runs: Mapping[str, Sequence[Run]], rng: np.random.Generator) -> Interval:
    """Mean value loss of legacy mode with the whole text scored, over that with EOS as the stop."""
    return ratio_of(*([run.metrics["loss/value_avg"].mean() for run in runs[arm]] for arm in (WHOLE, AT_EOS)), rng)


def ratio_of(first: Sequence[float], second: Sequence[float], rng: np.random.Generator) -> Interval:
    """The ratio of two positive numbers of each seed: its geometric mean over seeds, and the interval of that.

    Example:
        >>> found = ratio_of([4.0, 6.0, 5.0], [2.0, 2.0, 2.0], np.random.default_rng(0))
        >>> round(found.estimate, 2), found.low > 1, found.name
        (2.47, True, '95% t interval')
    """
    logs = np.log(np.asarray(first, float) / np.asarray(second, float))
    if len(logs) == 1:
        return one_seed(float(np.exp(logs[0])))
    found = seed_interval(logs, rng, statistic=np.mean)
    bounds = [float(np.exp(value)) for value in (found.estimate, found.low, found.high)]
    return Interval(*bounds, found.level, found.n, found.method, found.about)


def text_after_eos(runs: Sequence[Run], name: str) -> pd.DataFrame:
    """What text after EOS does to the reward while the policy learns, a row an update, means over the seeds.

    Args:
        runs: of an arm in legacy mode.
        name: of the reward function.

    Returns:
        `share` of responses with text after EOS; `shift`, mean reward of the whole text less that of the text up to EOS;
        `noise`, the standard deviation of that difference over the responses of an update, and `spread`, that of the
        reward up to EOS.
    """
    steps = []
    for run in runs:
        rows = run.completions
        difference, kept = rows[name] - rows[f"{name}_up_to_eos"], rows[f"{name}_up_to_eos"]
        grouped = pd.DataFrame({"step": rows["step"], "difference": difference, "kept": kept}).groupby("step")
        more = (rows["tokens_to_eos"] < rows["completion_tokens"]).groupby(rows["step"]).mean()
        found = {"share": more, "shift": grouped["difference"].mean()}
        steps.append(pd.DataFrame(found | {"noise": grouped["difference"].std(), "spread": grouped["kept"].std()}))
    return pd.concat(steps).groupby(level=0).mean()


def noise_over_spread(runs: Sequence[Run], name: str, rng: np.random.Generator) -> Interval:
    """`noise` over `spread` of `text_after_eos`, the mean over all updates of each seed, with the interval over seeds."""
    tables = [text_after_eos([run], name) for run in runs]
    shares = [float(table["noise"].mean() / table["spread"].mean()) for table in tables]
    return seed_interval(shares, rng, statistic=np.mean) if len(shares) > 1 else one_seed(shares[0])
