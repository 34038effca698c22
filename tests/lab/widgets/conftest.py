"""What the tests of the views share: a small model that searches, with its prompt."""

import pytest


@pytest.fixture(scope="session")
def sampler():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.experiments.recipes import resolve_model
    from workbench.experiments.sampling import TransformersSampler

    path = resolve_model("search")
    return TransformersSampler(AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path))


@pytest.fixture(scope="session")
def prompt():
    from workbench.experiments.recipes import load_prompts

    return load_prompts("search")[0]["prompt"]
