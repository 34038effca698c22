"""The stored answers: what the command makes, and slopes that finite differences of the values give."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tools.conform_cases import build
from workbench.conform.definitions import DEFINITIONS, Question, answer_of
from workbench.conform.names import NAMES
from workbench.conform.questions import FILE, load_questions

LOSSES = [name for name, definition in DEFINITIONS.items() if not definition.of_rewards]
WEIGHTED = ("cispo", "vespo")  # the ratio is a weight, through which no gradient flows
STEP = 1e-6


def flat(value) -> list:
    """The numbers of nested lists and dicts, with the places where they stand."""
    if isinstance(value, dict):
        return [(name, *rest) for name, inner in value.items() for rest in flat(inner)]
    if isinstance(value, list):
        return [(place, *rest) for place, inner in enumerate(value) for rest in flat(inner)]
    return [(value,)]


def test_the_file_is_what_the_command_makes():
    stored, made = flat(json.loads(FILE.read_text(encoding="utf-8"))), flat(json.loads(json.dumps(build())))
    assert [place for *place, _ in stored] == [place for *place, _ in made]
    numbers = [(one[-1], other[-1]) for one, other in zip(stored, made, strict=True)]
    assert all(one == (pytest.approx(other, abs=1e-9) if isinstance(other, float) else other) for one, other in numbers)


def test_a_name_has_a_definition_and_a_sentence():
    assert list(NAMES) == list(DEFINITIONS)
    assert all(sum(name in question.expected for question in load_questions()) >= 3 for name in NAMES)


def moved(question: Question, by: np.ndarray, tables: tuple[str, ...]) -> Question:
    """The question with its log-probs moved, (R, T)."""
    return replace(question, arrays=question.arrays | {table: question.arrays[table] + by for table in tables})


@pytest.mark.parametrize("name", LOSSES)
def test_finite_differences_of_the_value_give_the_slopes(name):
    tables = ("logps", "old_logps", "sampled_logps") if name in WEIGHTED else ("logps",)
    random = np.random.default_rng(0)
    questions = [question for question in load_questions() if name in question.expected]
    for question in questions:
        expected, mask = question.expected[name], question.arrays["mask"]
        if question.settings.get("kl_estimator", "").endswith("+"):
            continue  # its slope is not that of its value
        for _ in range(3):
            direction = random.normal(size=mask.shape)
            up, down = (answer_of(name, moved(question, by * direction, tables)).value for by in (STEP, -STEP))
            slope = float((expected.numbers * direction).sum())
            assert (up - down) / (2 * STEP) == pytest.approx(slope, abs=1e-6 * expected.size + 1e-12), question.name
        assert not expected.numbers[mask == 0].any()
    assert len(questions) >= 15


@pytest.mark.parametrize("name", ["grpo_advantages", "rloo_advantages"])
def test_advantages_varied_by_nothing_are_the_references(name):
    for question in load_questions():
        if name in question.expected:
            varied = answer_of(name, question, {"ddof": 1}).numbers
            np.testing.assert_allclose(varied, question.expected[name].numbers, atol=1e-9)
