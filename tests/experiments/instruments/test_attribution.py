"""One cause at a time put into a rollout, all suspects tried: it is found with its size. On vLLM: benchmarks/attribution.py."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from padding_cases import by_hand, some_texts, tiny

from workbench.consistency.logits import cast_copy
from workbench.consistency.mismatch import PARTS, MismatchReport, mismatch_report
from workbench.consistency.ratios import ratio_report
from workbench.errors import ParameterError
from workbench.experiments.instruments import attribution
from workbench.experiments.instruments.attribution import attribute_mismatch

PROMPTS, COMPLETIONS = some_texts(12, 7, 3), some_texts(16, 16, 16)


def moved(model, size: float = 0.01):
    """The model with other weights."""
    other = copy.deepcopy(model)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += size * parameter.std() * torch.randn_like(parameter)
    return other


def scores(model, temperature: float = 1.0, completions=COMPLETIONS) -> list[list[float]]:
    """What a sampler with these weights says of the completions, each text alone."""
    texts = zip(PROMPTS, completions, strict=True)
    return [by_hand(model, prompt + row, temperature)[-len(row) :].tolist() for prompt, row in texts]


def suspects(model) -> dict:
    swapped = [[*ids[:5], ids[6], ids[5], *ids[7:]] for ids in COMPLETIONS]
    return {
        "temperature": {"temperature": 0.8, "scored_temperature": 1.0},
        "dtype": {"sampler_dtype": "bfloat16"},
        "weights": {"sampler_model": moved(model)},
        "tokens": {"sampled_ids": swapped},
    }


@pytest.mark.parametrize("cause", ["temperature", "dtype", "weights", "tokens"])
def test_of_all_suspects_the_planted_one_is_found_with_its_size(cause):
    model = tiny("llama")
    given = suspects(model)
    sampler = {"weights": given["weights"]["sampler_model"], "dtype": cast_copy(model, "bfloat16")}.get(cause, model)
    drawn = given["tokens"]["sampled_ids"] if cause == "tokens" else COMPLETIONS
    sampled = scores(sampler, 0.8 if cause == "temperature" else 1.0, drawn)
    found = attribute_mismatch(model, PROMPTS, COMPLETIONS, sampled, given)
    whole = np.abs(found.report.ratios.tokens).mean()
    assert next(iter(found.causes)) == cause, found.tried
    assert found.causes[cause] == pytest.approx(whole, rel=0.25)
    assert found.rest < 0.35 * whole and (cause == "dtype" or found.rest < 1e-5)
    assert cause in found.verdict and "not attributed" not in found.verdict


def test_two_causes_at_once_are_both_found():
    model = tiny("llama")
    given = suspects(model)
    sampled = scores(given["weights"]["sampler_model"], 0.8)
    found = attribute_mismatch(model, PROMPTS, COMPLETIONS, sampled, given)
    assert set(found.causes) == {"temperature", "weights"} and found.rest < 1e-5


def test_rounding_that_does_not_repeat_is_named_by_its_size():
    model = tiny("llama")
    size = mismatch_report(model, PROMPTS, COMPLETIONS, scores(model), sampler_dtype="bfloat16").parts["dtype"].std()
    noise = np.random.default_rng(0)
    sampled = [[x - abs(noise.normal()) * size for x in row] for row in scores(model)]
    found = attribute_mismatch(model, PROMPTS, COMPLETIONS, sampled, suspects(model))
    assert list(found.causes) == [found.by_size] == ["dtype"] and "though not token by token" in found.verdict
    report = mismatch_report(model, PROMPTS, COMPLETIONS, sampled, sampler_dtype="bfloat16")
    assert report.largest == "sampler" and "as much as the sampler's dtype explains" in report.verdict


def test_causes_stand_by_size_those_that_are_named_for_it_too(monkeypatch):
    def report(*_, sampler_dtype=None):
        parts = {name: np.zeros(10) for name in PARTS}
        parts |= {"padding": parts["padding"] + 0.006, "sampler": parts["sampler"] + 0.01}
        parts["dtype"] = parts["sampler"] * bool(sampler_dtype)
        return MismatchReport(ratio_report([[-1.0] * 10], [[-1.016] * 10]), pd.DataFrame(parts), 0.0, "float32")

    monkeypatch.setattr(attribution, "mismatch_report", report)
    found = attribute_mismatch(None, [], [], [], {"dtype": {"sampler_dtype": "bfloat16"}})
    assert list(found.causes) == ["dtype", "padding"] and found.by_size == "dtype"


def test_padding_needs_no_suspect():
    model = tiny("gpt2")
    found = attribute_mismatch(model, PROMPTS, COMPLETIONS, scores(model), suspects(model))
    assert list(found.causes) == ["padding"] and found.rest < 1e-5 and len(found.tried) == 1


def test_what_no_suspect_explains_is_said_to_be_not_attributed():
    model = tiny("llama")
    sampled = scores(moved(model, 0.3))
    found = attribute_mismatch(model, PROMPTS, COMPLETIONS, sampled, {"dtype": {"sampler_dtype": "bfloat16"}})
    assert "not attributed" in found.verdict and found.rest > 0.01 and found._repr_html_()


def test_a_rollout_without_a_cause_has_none():
    model = tiny("llama")
    found = attribute_mismatch(model, PROMPTS, COMPLETIONS, scores(model), suspects(model))
    assert found.causes == {} and "no cause found" in found.verdict
    with pytest.raises(ParameterError, match="suspects is empty"):
        attribute_mismatch(model, PROMPTS, COMPLETIONS, scores(model), {})
