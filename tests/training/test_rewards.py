import linecache
import os
import subprocess
import sys
from functools import partial

import pytest

from workbench.errors import ParameterError
from workbench.training.rewards import describe_reward, exact_match_reward, length_reward

TEXTS = ["", "exactly twenty chars", "x" * 100]
CHAT = [[{"role": "assistant", "content": text}] for text in TEXTS]


def test_exact_match_strips_white_space_and_compares_with_the_column():
    assert exact_match_reward()([" 4\n", "5", "4"], answer=["4", "4", 4]) == [1.0, 0.0, 1.0]


def test_exact_match_without_its_column_names_the_columns_there_are():
    with pytest.raises(ParameterError, match=r"'answer'.*\['prompts', 'solution'\]"):
        exact_match_reward()(["4"], prompts=["2+2"], solution=["4"])


def test_the_length_reward_is_the_documented_one_its_sign_wrong_version_the_opposite_and_a_chat_counts_as_its_text():
    assert length_reward()(TEXTS) == length_reward()(CHAT) == [-20.0, 0.0, -80.0]
    assert length_reward(sign=1)(TEXTS) == [20.0, 0.0, 80.0]


@pytest.mark.parametrize("make, name", [(length_reward, "reward_len"), (exact_match_reward, "reward_exact_match")])
def test_a_reward_takes_trl_s_extra_keywords_and_has_a_name_for_its_metrics(make, name):
    reward = make()
    values = reward(prompts=["p"], completions=["c"], completion_ids=[[1]], trainer_state=None, answer=["c"])
    assert [type(v) for v in values] == [float] and reward.__name__ == name


@pytest.mark.parametrize(
    "make, name", [(lambda: length_reward(-1), "target"), (lambda: length_reward(sign=2), "sign")]
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


SOURCE = """
TARGET = 20
def count(text):
    return len(text)
def reward(completions, **_):
    "Say it."
    return [-abs(TARGET - count(text)) for text in completions]  # length
"""


def code_of(source: str) -> str:
    """The `code` of `reward` in a user's module of this source, whose lines `inspect` finds."""
    name = f"<reward {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    made = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), made)
    return describe_reward(made["reward"])["code"]


def test_a_helper_or_constant_that_a_function_uses_makes_it_another_and_its_comments_do_not():
    assert code_of(SOURCE) == code_of(SOURCE.replace("  # length", "")) == code_of(SOURCE.replace("Say it", "Do it"))
    changes = ("20", "200"), ("len(text)", "len(text.split())"), ("-abs", "abs")
    others = [SOURCE.replace(*change) for change in changes]
    assert len({code_of(SOURCE), *map(code_of, others)}) == 4


def test_what_a_function_is_made_with_makes_it_another():
    def made(words):
        return lambda completions, **_: [float(c in words) for c in completions]

    def base(completions, target=1, **_):
        return [0.0]

    assert describe_reward(made(("a",))) == describe_reward(made(("a",))) != describe_reward(made(("b",)))
    assert describe_reward(made(["a"])) == describe_reward(made(["b"]))  # may be what it counts its calls in
    assert describe_reward(partial(base, target=1)) != describe_reward(partial(base, target=9))


def test_a_function_over_a_name_that_has_no_value_yet_is_described():
    def reward(completions, **_):
        return [later] * len(completions)

    assert describe_reward(reward)["code"]
    later = 1.0
    assert reward(["a"]) == [1.0]
