import dataclasses

from workbench import length_reward
from workbench.curves.documented import load_baseline
from workbench.recipes.recipes import DOCS, STARTER
from workbench.studies.docs_example import OTHER_REWARD, docs_example_arms
from workbench.training.rewards import describe_reward


def test_the_arms_differ_from_the_tuned_one_in_what_their_name_says_and_share_model_data_and_length():
    right, wrong = length_reward(20), length_reward(20, sign=1)
    arms = docs_example_arms(STARTER, DOCS, reward=right, wrong_reward=wrong)
    tuned = arms["tuned"]
    assert (tuned.recipe, tuned.reward_funcs, tuned.seeds) == (STARTER, right, None)
    rate = dataclasses.replace(STARTER, learning_rate=DOCS.learning_rate)
    assert arms["documented rate"] == dataclasses.replace(tuned, recipe=rate, seeds=2)
    assert arms["sign of TRL 0.14"] == dataclasses.replace(tuned, reward_funcs=wrong, seeds=1)
    vllm = dataclasses.replace(STARTER, backend="vllm")
    assert arms["tuned, vLLM"] == dataclasses.replace(tuned, recipe=vllm, seeds=1)
    settings = arms["documented settings"].recipe
    same = ("model", "dataset", "backend", "max_steps", "max_completion_length")
    assert all(getattr(settings, name) == getattr(STARTER, name) for name in same)
    assert (settings.temperature, settings.beta, settings.learning_rate) == (0.9, 0.04, 1e-6)


def test_the_arm_with_target_200_has_the_steps_and_the_unit_of_the_documented_curve():
    arms = docs_example_arms(STARTER, DOCS, reward=length_reward(20), wrong_reward=length_reward(20, sign=1))
    arm, documented = arms["target 200"], load_baseline("w3ng-qwen2.5-1.5b-tldr-grpo").curve()
    assert arm.recipe.max_steps == documented.x[-1]
    assert describe_reward(arm.reward_funcs)["unit"] == documented.unit
    assert arm.recipe.per_device_train_batch_size % arm.recipe.num_generations == 0
    assert (arm.seeds, arm.recipe.max_completion_length) == (2, 96)
    assert set(OTHER_REWARD) < arms.keys()
