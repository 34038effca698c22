"""The documented GRPO example under several settings (notebook 05, article A4)."""

import dataclasses
from collections.abc import Callable

from ..curves.documented import load_baseline
from ..curves.figures import DescribedFigure, show_curves
from ..errors import ParameterError
from ..recipes.recipes import Recipe
from ..training.rewards import RewardFn, described, length_reward
from .arms import Arm

OTHER_REWARD = ("sign of TRL 0.14", "target 200")  # arms whose curves do not belong on the others' axis


def docs_example_arms(
    recipe: Recipe, documented: Recipe, *, reward: Callable, wrong_reward: Callable
) -> dict[str, Arm]:
    """The arms of claims A4.2, A4.3 and A4.5 to A4.7, all on the recipe's model and data.

    Args:
        recipe: tuned, one that learns.
        documented: of TRL's docs; its settings are used, not its model, data or length.
        reward: the documented one.
        wrong_reward: with the sign as printed in TRL v0.14.

    Returns:
        Name -> arm; the tuned one takes all seeds of the study. Two tell the documented rate, and what target 200 is beside
        its documented curve; the others take one.
    """
    same = {"model": recipe.model, "dataset": recipe.dataset, "backend": recipe.backend}
    same |= {"max_steps": recipe.max_steps, "max_completion_length": recipe.max_completion_length}
    return {
        "tuned": Arm(recipe, reward),
        "documented rate": Arm(dataclasses.replace(recipe, learning_rate=documented.learning_rate), reward, seeds=2),
        "documented settings": Arm(dataclasses.replace(documented, **same), reward, seeds=1),
        "sign of TRL 0.14": Arm(recipe, wrong_reward, seeds=1),
        "tuned, vLLM": Arm(dataclasses.replace(recipe, backend="vllm"), reward, seeds=1),
        "target 200": Arm(_target_200(recipe), length_reward(200), seeds=2),
    }


def _target_200(recipe: Recipe) -> Recipe:
    """The recipe for the one documented curve in characters: 110 steps where the recipe has 80, and room for 200.

    Text of 200 characters takes six times as long as one of 20; half the batch makes the arm as cheap as the others.
    """
    batch = recipe.per_device_train_batch_size
    return dataclasses.replace(
        recipe,
        max_steps=recipe.max_steps * 11 // 8,
        max_completion_length=max(96, recipe.max_completion_length),
        per_device_train_batch_size=batch if batch % (2 * recipe.num_generations) else batch // 2,
    )


def show_against_figure() -> DescribedFigure:
    """The recorded control of the example's reward, and the range of the figure in TRL's docs, which it never enters.

    Example:
        >>> show_against_figure().alt[-69:]
        "Grey: 0 to 1, the range of the figure in TRL's docs, without numbers."
    """
    control, docs = load_baseline("workbench-starter-docs-example"), load_baseline("trl-docs-qwen2-0.5b-tldr-grpo")
    low, high = docs.reward["low"], docs.reward["high"]
    shown = show_curves({}, [control], title="The example's reward on a toy model, and the range of the docs' figure")
    ax, words = (
        shown.figure.axes[0],
        f"Grey: {low:g} to {high:g}, the range of the figure in TRL's docs, without numbers.",
    )
    ax.axhspan(low, high, color="#888", alpha=0.6)
    ax.set_ylim(top=high + 1)
    shown.alt, shown.caption = f"{shown.alt} {words}", f"{shown.caption} {words}"
    return shown


def scaled_length_reward(target: int = 20, worst: float = -80.0) -> RewardFn:
    """The length reward mapped onto 0..1 (`worst` and below -> 0, exact length -> 1), comparable with a 0..1 axis.

    Raises:
        ParameterError: `worst` is not negative.

    Example:
        >>> scaled_length_reward(20)(["exactly twenty chars", "", "x" * 200])
        [1.0, 0.75, 0.0]
    """
    if worst >= 0:
        raise ParameterError(f"worst={worst}: expected a negative reward, the one that maps to 0")
    raw = length_reward(target)

    @described(unit="share of the way to the target length", lowest=0.0, highest=1.0, target=target, worst=worst)
    def reward_len_scaled(completions, **_):
        return [max(0.0, 1.0 - r / worst) for r in raw(completions)]

    return reward_len_scaled
