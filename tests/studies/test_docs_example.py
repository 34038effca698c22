import dataclasses

from workbench import length_reward
from workbench.studies.docs_example import docs_example_arms
from workbench.training.recipes import DOCS, STARTER


def test_the_arms_differ_from_the_tuned_one_in_what_their_name_says_and_share_model_data_and_length():
    right, wrong = length_reward(20), length_reward(20, sign=1)
    arms = docs_example_arms(STARTER, DOCS, reward=right, wrong_reward=wrong)
    tuned = arms["tuned"]
    assert (tuned.recipe, tuned.reward_funcs, tuned.seeds) == (STARTER, right, None)
    rate = dataclasses.replace(STARTER, learning_rate=DOCS.learning_rate)
    assert arms["documented rate"] == dataclasses.replace(tuned, recipe=rate)
    assert arms["sign of TRL 0.14"] == dataclasses.replace(tuned, reward_funcs=wrong, seeds=1)
    vllm = dataclasses.replace(STARTER, backend="vllm")
    assert arms["tuned, vLLM"] == dataclasses.replace(tuned, recipe=vllm, seeds=1)
    settings = arms["documented settings"].recipe
    same = ("model", "dataset", "backend", "max_steps", "max_completion_length")
    assert all(getattr(settings, name) == getattr(STARTER, name) for name in same)
    assert (settings.temperature, settings.beta, settings.learning_rate) == (0.9, 0.04, 1e-6)
