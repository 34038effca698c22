import importlib
import logging
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from filelock import FileLock as Lock

from workbench.errors import ParameterError
from workbench.training.rewards import describe_reward, exact_match_reward, length_reward, unseen_values

TEXTS = ["", "exactly twenty chars", "x" * 100]
CHAT = [[{"role": "assistant", "content": text}] for text in TEXTS]


def test_exact_match_compares_stripped_text_with_the_column():
    assert exact_match_reward()([" 4\n", "5", "4"], answer=["4", "4", 4]) == [1.0, 0.0, 1.0]


def test_a_tools_answer_is_not_the_policys():
    talk = [{"role": "assistant", "content": "", "tool_calls": []}, {"role": "tool", "content": "4"}]
    assert exact_match_reward()([talk], answer=["4"]) == [0.0]
    assert exact_match_reward()([[*talk, {"role": "assistant", "content": "4"}]], answer=["4"]) == [1.0]


def test_exact_match_gives_none_where_no_answer_is_known():
    texts, answers = ["None", "nan", "", "42", "42.5", "inf"], [None, float("nan"), " ", 42.0, 42.5, float("inf")]
    assert exact_match_reward()(texts, answer=answers) == [None, None, None, 1.0, 1.0, 1.0]


def test_exact_match_without_its_column_names_those_there_are():
    with pytest.raises(ParameterError, match=r"'answer'.*\['prompts', 'solution'\]"):
        exact_match_reward()(["4"], prompts=["2+2"], solution=["4"])


def test_the_length_reward_is_the_documented_one_also_for_a_chat():
    assert length_reward()(TEXTS) == length_reward()(CHAT) == [-20.0, 0.0, -80.0]
    assert length_reward(sign=1)(TEXTS) == [20.0, 0.0, 80.0]


@pytest.mark.parametrize("make, name", [(length_reward, "reward_len"), (exact_match_reward, "reward_exact_match")])
def test_a_reward_takes_trls_extra_keywords_and_names_its_metric(make, name):
    reward = make()
    values = reward(prompts=["p"], completions=["c"], completion_ids=[[1]], trainer_state=None, answer=["c"])
    assert [type(v) for v in values] == [float] and reward.__name__ == name


@pytest.mark.parametrize(
    "make, name", [(lambda: length_reward(-1), "target"), (lambda: length_reward("20"), "target"),
                   (lambda: length_reward(float("nan")), "target"), (lambda: length_reward(sign=2), "sign")]
)  # fmt: skip
def test_a_wrong_argument_is_named(make, name):
    with pytest.raises(ParameterError, match=f"^{name}="):
        make()


def test_a_function_is_told_from_another_in_every_process_alike(capsys):
    code = (
        "from functools import partial\n"
        "from workbench.training.rewards import describe_reward\n"
        "def fits(completions, words=frozenset(['a', 'b', 'c']), at=object(), **_):\n"
        "    return [float(c in {'yes', 'no', 'maybe'} and c in words) for c in completions]\n"
        "print(describe_reward(fits)['code'], describe_reward(partial(fits, words=('a',)))['code'])"
    )
    env = os.environ | {"PYTHONHASHSEED": "1"}  # sets are in another order there
    there = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    exec(code, {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert there == said and len(set(said.split())) == 2


class Says:
    def __init__(self, word):
        self.word = word

    def __call__(self, text):
        return self.word in text

    def __hash__(self):
        return 0  # so that a set of two has them in the order in which they came


def test_the_order_of_a_set_of_objects_makes_no_other_reward():
    """It is that of their addresses; the first one of a class was written with it."""

    def said_by(checks):
        return describe_reward(lambda completions, **_: [float(sum(c(t) for c in checks)) for t in completions])

    yes, no = Says("yes"), Says("no")
    assert list({yes, no}) != list({no, yes})
    assert said_by({yes, no})["code"] == said_by({no, yes})["code"] != said_by({yes, Says("maybe")})["code"]


SCORING = """
TARGET = 20
def score(text):
    return -abs(TARGET - len(text))
"""
MINE = """
import functools
import re
import scoring
from workbench.training.rewards import described

WEIGHTS = {"length": 1.0}
WORDS = ["yes", "no"]
CAPITALS = re.compile("[A-Z]")

def helper(text):
    return len(text)

def by_module(completions, **_):
    "Say it."
    return [scoring.score(text) for text in completions]  # a comment

def by_constant(completions, **_):
    return [scoring.TARGET for text in completions]

def importing(completions, **_):
    import scoring
    return [scoring.score(text) for text in completions]

class Judge:
    def __init__(self, target):
        self.target = target
    def __call__(self, completions, **_):
        return [self.target - len(text) for text in completions]

instance = Judge(20)

class Methods:
    def score(self, completions, **_):
        return [self.one(text) * self.factor() for text in completions]
    def one(self, text):
        return len(text)
    @staticmethod
    def factor():
        return 3

bound = Methods().score

@described(unit="points")
def below_described(completions, **_):
    return [len(text) / 9 for text in completions]

def reads(completions, **_):
    return [WEIGHTS["length"] * (text in WORDS) + len(CAPITALS.findall(text)) for text in completions]

@functools.lru_cache
def cached(text):
    return helper(text) + 7

def by_cache(completions, **_):
    return [cached(text) for text in completions]

def twice(function):
    @functools.wraps(function)
    def wrapper(completions, **columns):
        return [2 * value for value in function(completions, **columns)]
    return wrapper

@twice
def wrapped(completions, **_):
    return [len(text) + 11 for text in completions]
"""
EDITS = {  # what is edited -> reward, file, from, to
    "helper through its module": ("by_module", "scoring", "-abs(", "abs("),
    "constant through its module": ("by_constant", "scoring", "= 20", "= 500"),
    "constant below a helper of a module": ("by_module", "scoring", "= 20", "= 500"),
    "module imported inside": ("importing", "scoring", "= 20", "= 500"),
    "an object's __call__": ("instance", "mine", "self.target - len", "self.target + len"),
    "an object's attribute": ("instance", "mine", "Judge(20)", "Judge(21)"),
    "method that a bound method calls": ("bound", "mine", "return len(text)\n    @static", "return 2\n    @static"),
    "static method": ("bound", "mine", "return 3", "return 4"),
    "bound method": ("bound", "mine", "* self.factor()", "+ self.factor()"),
    "body below described": ("below_described", "mine", "/ 9", "/ 8"),
    "dict": ("reads", "mine", '"length": 1.0', '"length": 2.0'),
    "list": ("reads", "mine", '"yes", "no"', '"yes"'),
    "pattern": ("reads", "mine", '"[A-Z]"', '"[A-Z]+"'),
    "helper below lru_cache": (
        "by_cache",
        "mine",
        "def helper(text):\n    return len",
        "def helper(text):\n    return hash",
    ),
    "function below wraps": ("wrapped", "mine", "+ 11", "+ 12"),
    "its own body": ("by_constant", "mine", "scoring.TARGET for", "2 * scoring.TARGET for"),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes the user's two modules, changed, and loads them as a new process would; returns the second."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(**changed):
        for name, source in (("scoring", SCORING), ("mine", MINE)):
            (tmp_path / f"{name}.py").write_text(changed.get(name, source))
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("mine")

    yield load
    for name in ("scoring", "mine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("edited", EDITS)
def test_an_edit_of_what_a_reward_does_is_seen(edited, module):
    reward, file, old, new = EDITS[edited]
    source = {"scoring": SCORING, "mine": MINE}[file]
    assert source.count(old) == 1
    before, again = (describe_reward(getattr(module(), reward)) for _ in range(2))
    assert before == again and "unseen" not in before
    other = describe_reward(getattr(module(**{file: source.replace(old, new)}), reward))
    assert other["code"] != before["code"] and "unseen" not in other


def test_comments_and_docstrings_make_no_other_reward(module):
    before = describe_reward(module().by_module)
    for old, new in (("  # a comment", ""), ("Say it.", "Do it."), ("def helper", "\n\ndef helper")):
        assert describe_reward(module(mine=MINE.replace(old, new)).by_module) == before


def test_calls_change_no_description(module):
    mine = module()
    names = [reward for reward, *_ in EDITS.values()]
    before = [describe_reward(getattr(mine, name)) for name in names]
    for name in names:
        for _ in range(200):  # Python specializes bytecode that is run often
            getattr(mine, name)(completions=["yes", "A"])
    assert [describe_reward(getattr(mine, name)) for name in names] == before


def test_values_of_libraries_are_named_as_unseen():
    model, log = torch.nn.Linear(1, 1), logging.getLogger("mine")

    class Judge:
        def __init__(self):
            self.client = Lock("x")

        def __call__(self, completions, **_):
            log.info("scored")
            return [model(text) for text in completions]

    described = describe_reward(Judge())
    assert described["unseen"] == ["Judge.client (UnixFileLock)", "model (Linear)"]
    assert unseen_values([described, describe_reward(length_reward())]) == ", ".join(described["unseen"])


CLASSES = """
import abc, dataclasses, enum, functools, typing
@dataclasses.dataclass(slots=True)
class Slots:
    target: int = 3
@dataclasses.dataclass(frozen=True)
class Settings:
    target: int = 1
    words: list = dataclasses.field(default_factory=list)
class Kind(enum.Enum):
    LONG = "long"
class Score(typing.NamedTuple):
    value: float = 2.0
class Base(abc.ABC):
    @abc.abstractmethod
    def score(self): ...
class Judge(Base):
    def __init__(self):
        self.settings, self.kind, self.slots, self.by_kind = Settings(), Kind.LONG, Slots(), {Kind.LONG: 1, len: 2}
    @functools.cached_property
    def one(self):
        return Score(1.0)
    @classmethod
    def two(cls):
        return 4
    @property
    def three(self):
        return 5
    def score(self):
        return self.one.value + self.two() + self.three
    def __call__(self, completions, **_):
        return [self.score() for _ in completions]
instance = Judge()
"""


@pytest.mark.parametrize(
    "old, new",
    [
        ("target: int = 1", "target: int = 2"),
        ("target: int = 3", "target: int = 4"),
        ("Score(1.0)", "Score(3.0)"),
        ("return 4", "return 6"),
        ("return 5", "return 6"),
        ("value: float = 2.0", "value: float = 3.0"),
        ('LONG = "long"', 'LONG = "longer"'),
    ],
)
def test_classes_of_every_usual_kind_are_seen_whole(old, new, module):
    before, again = (describe_reward(module(mine=CLASSES).instance) for _ in range(2))
    assert before == again and "unseen" not in before
    assert describe_reward(module(mine=CLASSES.replace(old, new)).instance)["code"] != before["code"]


def test_what_a_function_is_made_with_makes_it_another():
    def made(words):
        return lambda completions, **_: [float(c in words) for c in completions]

    def base(completions, target=1, **_):
        return [0.0]

    assert describe_reward(made(("a",))) == describe_reward(made(("a",))) != describe_reward(made(("b",)))
    assert describe_reward(made(["a"])) != describe_reward(made(["b"]))
    assert describe_reward(partial(base, target=1)) != describe_reward(partial(base, target=9))


def test_a_function_over_a_name_without_a_value_is_described():
    def reward(completions, **_):
        return [later] * len(completions)

    assert describe_reward(reward)["code"]
    later = 1.0
    assert reward(["a"]) == [1.0]


def test_objects_that_hold_each_other_are_described():
    class Node:
        def __call__(self, completions, **_):
            return [0.0]

    one, two = Node(), Node()
    one.other, two.other = two, one
    assert describe_reward(one)["code"]


@pytest.mark.parametrize(
    "message, text",
    [
        ({"content": [{"type": "text", "text": "exactly twenty chars"}]}, "exactly twenty chars"),
        ({"content": None, "tool_calls": []}, ""),
        ({"role": "assistant"}, ""),
    ],
)
def test_messages_of_every_form_count_as_their_text(message, text):
    assert length_reward(20)([[message]]) == [-abs(20.0 - len(text))]
    assert exact_match_reward()([[message]], answer=[text or "other"]) == [float(text != "")]
