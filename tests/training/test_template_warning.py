"""The warning of a chat template that rewrites earlier turns, or whose turns a stop leaves open, on TRL's own tools."""

import warnings

import pytest
from configuration_models import CLOSE, EOS, TWO_TURNS, calling, chat_tokenizer, rolling_out, tokenizer
from configuration_runs import build

from workbench.watch.attach import attach_watch

pytestmark = pytest.mark.slow

SAYS = "the chat template changes a conversation"


def forgetful(turn_end=EOS):
    """A tokenizer whose chat template drops the thoughts of earlier turns."""
    own = chat_tokenizer(turn_end=turn_end)
    shown = "{{ m['content'] if loop.last else m['content'].split('</think>')[-1] }}"
    own.chat_template = own.chat_template.replace("{{ m['content'] }}", shown)
    return own


def said(who, tmp_path, fields=None, **about):
    """The warnings of the template, of our trainer or of the watch on TRL's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = build(who, "GRPO", TWO_TURNS | (fields or {}), **about)
        watch = attach_watch(trainer, tmp_path)
    watch.detach()
    return [str(one.message) for one in caught if SAYS in str(one.message)]


@pytest.mark.parametrize("who", ["stock", "ours"])
def test_tools_with_a_template_that_drops_thoughts_warn_once(who, tmp_path):
    (text,) = said(who, tmp_path, **calling() | {"tokenizer": forgetful()})
    assert "rewrites a thinking turn when a tool answers" in text and "never renders" in text
    assert "user turn" not in text and "open" not in text


@pytest.mark.parametrize("who", ["stock", "ours"])
def test_a_template_that_keeps_turns_warns_of_nothing(who, tmp_path):
    assert said(who, tmp_path, **calling(turn_end=EOS)) == []


@pytest.mark.parametrize("who", ["stock", "ours"])
def test_a_single_turn_warns_of_nothing(who, tmp_path):
    about = calling() | {"tokenizer": forgetful()}
    assert said(who, tmp_path, **about | {"tools": None}) == []


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_a_rollout_function_hears_of_user_turns_too(tmp_path):
    (text,) = said("stock", tmp_path, **rolling_out(), tokenizer=forgetful())
    assert "when a user turn follows" in text
    assert "the context in which turn 2 is sampled is not the context that the loss scores" in text


def test_a_stop_that_leaves_calls_open_is_said_of_stock_alone(tmp_path):
    last = tokenizer().encode(CLOSE)[-1]
    stops = {"generation_kwargs": {"eos_token_id": [tokenizer().eos_token_id, last]}}
    (text,) = said("stock", tmp_path / "stock", stops, **calling(turn_end=EOS))
    assert f"leaves a turn open that ends at {last}" in text and EOS in text
    assert said("ours", tmp_path / "ours", **calling(turn_end=EOS), stops=[CLOSE]) == []
    (text,) = said("ours", tmp_path / "other", **calling(turn_end="<|turn|>"), stops=[CLOSE])
    assert "'<|turn|>'" in text
