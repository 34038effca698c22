"""Tools, environments, rollout functions and conversations on transformers, stock beside ours."""

import re

import pandas as pd
import pytest
import torch
from configuration_runs import STOP, TELL, assert_equal_runs, assert_stops_hold, tokenizer, watched
from configuration_table import not_tested, shows, trl_has_none
from configuration_turns import TWO_TURNS, Library, answer_to, chat_tokenizer, chats, search, topics
from transformers import AutoTokenizer

from workbench.experiments.recipes import resolve_model
from workbench.experiments.toys.search_task import CLOSE
from workbench.generation.stops import StopSpec
from workbench.runs.run import Run

pytestmark = pytest.mark.slow

for name in ("tools", "tools on vLLM"):
    trl_has_none(name, "tools", "RLOO", "OnlineDPO", "PPO")
trl_has_none("environment", "environment_factory", "RLOO", "OnlineDPO", "PPO")
trl_has_none("rollout", "rollout_func", "RLOO", "OnlineDPO", "PPO")
not_tested("conversations", "TRL's PPO takes token ids, so the template is applied before it", "PPO")

STOPS = StopSpec(stop=(CLOSE,))
CUT = StopSpec(stop=(CLOSE,), include_stop_str_in_output=False)
CALLING = {"data": chats(), "tools": [search]}
MASKED = TWO_TURNS | TELL["GRPO"]


def turns(text: str) -> list[str]:
    """A row's text at its tool's answer, which is not the policy's: what it wrote before and after."""
    for call in ("<search>(.*?)</search>", r"<search>(.*?<\|im_end\|>)"):  # TRL 1.16 answers one that EOS ended too
        if (called := re.search(call, text)) and (answer := f"\n{answer_to(called.group(1).strip())}\n") in text:
            return text.split(answer)
    return [text]


def ended(ids: list[int]) -> bool:
    """Whether a row's last turn ended: in a call or in EOS."""
    text = turns(tokenizer().decode(ids))[-1]
    return CLOSE in text or text.endswith(tokenizer().eos_token)


def assert_two_turns(got, run: Run) -> None:
    assert_two_turns_of(got.ids, got.trained, run.completions, run.metrics)


def assert_two_turns_of(sampled: list, in_loss: list, rows, metrics) -> None:
    """Each row: a call up to the stop, the tool's answer outside the loss, a second turn up to a stop; recorded whole."""
    own, eos = tokenizer(), tokenizer().eos_token_id
    rows, metrics = pd.DataFrame(rows), pd.DataFrame(metrics)
    assert rows["completion"].tolist() == [own.decode(ids, skip_special_tokens=True) for ids in sampled]
    lengths = [sum(len(own.encode(turn)) for turn in turns(own.decode(ids))) for ids in sampled]
    assert rows["completion_tokens"].tolist() == lengths
    stopped = []
    for ids, trained in zip(sampled, in_loss, strict=True):
        written = turns(own.decode(ids))
        assert len(written) == (2 if "Find facts on" in own.decode(ids) else 1)
        # The token that completes the stop may hold more: a turn ends with it.
        assert all(CLOSE not in own.decode(own.encode(turn)[:-1]) for turn in written)
        stopped.append(ids[-1] == eos or CLOSE in written[-1])
        assert own.decode(trained) == ("".join(written) if stopped[-1] else "")
    assert rows["finish_reason"].tolist() == ["stop" if s else "length" for s in stopped]
    assert any(len(turns(own.decode(ids))) == 2 for ids in sampled)
    means = rows.groupby("step")["completion_tokens"].mean().tolist()
    assert metrics["completions/mean_length"].tolist() == pytest.approx(means)
    cut = (rows["finish_reason"] == "length").groupby(rows["step"]).mean().tolist()
    assert metrics["completions/clipped_ratio"].tolist() == pytest.approx(cut)
    distinct = rows.groupby("step")["completion"].agg(lambda texts: texts.nunique() / len(texts)).tolist()
    assert metrics["completions/distinct"].tolist() == pytest.approx(distinct)


# --- tools -----------------------------------------------------------------------------------------------------------


@shows("tools", "GRPO")
def test_with_tools_and_no_custom_stop_it_trains_as_stock_does(kind):
    stock, _ = assert_equal_runs(kind, MASKED, tokenizer=chat_tokenizer(), **CALLING)
    assert stock.log[0]["tools/call_frequency"] > 0 and stock.log[0]["tools/failure_frequency"] == 0


@shows("tools", "GRPO")
def test_both_turns_end_at_the_stop_and_the_answer_between_them_is_not_trained_on(kind, tmp_path):
    own = {"stops": STOPS, "record_dir": tmp_path, "explicit_positions": True}
    got = watched("ours", kind, MASKED, tokenizer=chat_tokenizer(), **CALLING, **own)
    assert_two_turns(got, Run(tmp_path))


@pytest.mark.parametrize("limit, of_turns", [(14, 2), (8, 1)], ids=["second turn cut", "no room for one"])
@shows("tools", "GRPO")
def test_a_second_turn_that_the_limit_cuts_counts_as_cut_and_one_without_room_ends_with_its_call(
    kind, limit, of_turns, tmp_path
):
    """A call has 5 tokens."""
    own = {"stops": STOPS, "record_dir": tmp_path, "tokenizer": chat_tokenizer(), **CALLING}

    def ends(got):
        return [(len(turns(tokenizer().decode(ids))), ended(ids)) for ids in got.ids]

    fields = MASKED | {"max_completion_length": limit}
    got = watched("ours", kind, fields, until=lambda got: (of_turns, of_turns == 1) in ends(got), **own)
    rows = Run(tmp_path).completions
    assert rows["finish_reason"].tolist() == ["stop" if stopped else "length" for _, stopped in ends(got)]
    assert [bool(row) for row in got.trained] == [stopped for _, stopped in ends(got)]
    assert all(number <= of_turns for number, _ in ends(got))


@shows("tools", "GRPO")
def test_a_stop_that_is_not_to_be_seen_stands_in_no_message_of_a_text(kind, tmp_path):
    stops = StopSpec(stop=(CLOSE, "i"), include_stop_str_in_output=False)
    own = {"tokenizer": chat_tokenizer(), **CALLING, "stops": stops, "record_dir": tmp_path}

    def texts(got):
        """Last messages of rows that the letter ended: after a tool's answer, or at once."""
        ended_there = ["i" in turns(tokenizer().decode(ids))[-1] for ids in got.ids]
        return [c[-1] for c, there in zip(got.texts, ended_there, strict=True) if there and "tool_calls" not in c[-1]]

    got = watched("ours", kind, MASKED, until=texts, **own)
    assert [message["content"] for message in texts(got) if "i" in message["content"]] == []
    assert not [text for text in Run(tmp_path).completions["completion"] if text.endswith("i")]


# --- environments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", [Library, {"library": Library}], ids=["one", "by name"])
@shows("environment", "GRPO")
def test_an_environment_that_owns_prompt_tool_and_reward_trains_as_in_stock(kind, factory):
    own = {"data": topics(), "environment_factory": factory, "rewards": None}
    assert_equal_runs(kind, MASKED, tokenizer=chat_tokenizer(), until=lambda got: set(got.scores) == {0.0, 1.0}, **own)


@pytest.mark.parametrize("factory", [Library, {"library": Library}], ids=["one", "by name"])
@shows("environment", "GRPO")
def test_an_environment_s_turns_end_at_the_stop_and_its_rewards_are_recorded_with_their_rows(kind, factory, tmp_path):
    own = {"data": topics(), "environment_factory": factory, "rewards": None, "stops": STOPS, "record_dir": tmp_path}
    got = watched("ours", kind, MASKED, tokenizer=chat_tokenizer(), **own)
    assert_two_turns(got, Run(tmp_path))
    rows = Run(tmp_path).completions
    asked = [re.findall("What is (.*?)[?]", prompt)[-1] for prompt in rows["prompt"]]
    pairs = zip(asked, rows["completion"], strict=True)
    right = [float(f"<search>{topic}{CLOSE}" in turns(text)[0]) for topic, text in pairs]
    assert rows["reward"].tolist() == rows["Library"].tolist() == right


# --- rollout functions -----------------------------------------------------------------------------------------------


def two_turns(prompts, trainer):
    """A rollout function: what the model writes, an answer from outside, and what it writes then; a field for rewards."""
    made = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "env_mask": [], "turns": []}
    for prompt in prompts:
        asked = tokenizer().encode(prompt)
        first = written(trainer, asked)
        answer = tokenizer().encode("Find facts on jade?\n") if CLOSE in tokenizer().decode(first) else []
        second = written(trainer, asked + first + answer) if answer else []
        made["prompt_ids"].append(asked)
        made["completion_ids"].append(first + answer + second)
        made["env_mask"].append([1] * len(first) + [0] * len(answer) + [1] * len(second))
        made["turns"].append(2 if answer else 1)
    return made


def written(trainer, ids):
    model, ends = trainer.accelerator.unwrap_model(trainer.model), {"stop_strings": [CLOSE], "tokenizer": tokenizer()}
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), do_sample=True, max_new_tokens=14, **ends)
    return out[0, len(ids) :].tolist()


def of_turns(completions, turns, **_):
    return [n % 2 + number for n, number in enumerate(turns)]


@shows("rollout", "GRPO")
def test_a_rollout_function_trains_as_in_stock(kind):
    assert_equal_runs(kind, rollout_func=two_turns, rewards=of_turns)


@shows("rollout", "GRPO")
def test_stock_counts_a_rollout_that_ends_in_a_stop_string_as_cut_and_masks_it(kind):
    got = watched("stock", kind, TELL[kind], rollout_func=two_turns, rewards=of_turns)
    assert [not row for row in got.trained] == [ids[-1] != tokenizer().eos_token_id for ids in got.ids]
    assert any(tokenizer().decode(ids).endswith(CLOSE) for ids in got.ids)


@shows("rollout", "GRPO")
def test_ours_counts_it_as_ended_trains_on_its_own_tokens_and_records_it(kind, tmp_path):
    own = {"stops": STOPS, "record_dir": tmp_path, "explicit_positions": True}
    got = watched("ours", kind, TELL[kind], rollout_func=two_turns, rewards=of_turns, **own)
    rows = Run(tmp_path).completions
    assert rows["finish_reason"].tolist() == ["stop" if ended(ids) else "length" for ids in got.ids]
    assert rows["completion"].tolist() == got.texts
    assert rows["reward"].tolist() == got.scores
    for text, ids, trained in zip(got.texts, got.ids, got.trained, strict=True):
        assert text == tokenizer().decode(ids, skip_special_tokens=True)
        own_text = tokenizer().decode(ids).replace("Find facts on jade?\n", "")
        assert tokenizer().decode(trained) == (own_text if ended(ids) else "")


@shows("rollout", "GRPO")
def test_rewards_read_the_text_of_a_rollout_without_the_stop_that_is_not_to_be_seen(kind):
    got = watched("ours", kind, TELL[kind], rollout_func=two_turns, rewards=of_turns, stops=CUT)
    whole = [tokenizer().decode(ids, skip_special_tokens=True) for ids in got.ids]
    assert got.texts == [text.removesuffix(CLOSE) for text in whole] != whole


@pytest.mark.parametrize("kept", [True, False])
@shows("rollout", "GRPO")
def test_rewards_read_the_text_of_a_rollout_with_the_special_token_that_ended_it(kind, kept):
    own = AutoTokenizer.from_pretrained(resolve_model("search"), padding_side="left")
    (end,) = own.encode("?")
    own.add_special_tokens({"additional_special_tokens": ["?"]})

    def asks(prompts, trainer):
        rows = [own.encode("jade") + [end] * (n % 2) for n in range(len(prompts))]
        return {"prompt_ids": [own.encode(p) for p in prompts], "completion_ids": rows, "logprobs": None}

    stops = StopSpec(stop_token_ids=(end,), include_stop_str_in_output=kept)
    got = watched("ours", kind, rollout_func=asks, tokenizer=own, stops=stops)
    assert got.texts == ["jade", "jade?" if kept else "jade"] * (len(got.texts) // 2)


# --- conversations ---------------------------------------------------------------------------------------------------


@shows("conversations", "GRPO", "RLOO", "OnlineDPO")
def test_with_conversations_it_trains_as_stock_does_and_rewards_see_messages(kind, tmp_path):
    own = {"tokenizer": chat_tokenizer(calls=False), "data": chats()}
    assert_equal_runs(kind, **own)
    got = assert_stops_hold(kind, tmp_path, **own)
    assert {tuple(message) for completion in got.texts for message in completion} == {("role", "content")}


@shows("conversations", "GRPO")
def test_a_message_that_is_parsed_stays_so_with_a_custom_stop(kind, tmp_path):
    own = {"tokenizer": chat_tokenizer(), "data": chats(), "stops": StopSpec(stop=(STOP,)), "record_dir": tmp_path}
    got = watched("ours", kind, **own)
    called = [CLOSE in tokenizer().decode(ids) for ids in got.ids]
    assert any(called)
    for (message,), call, ids in zip(got.texts, called, got.ids, strict=True):
        if call or "<search>" not in tokenizer().decode(ids):  # else the limit cut the call
            assert "<search>" not in message["content"]
            assert ("tool_calls" in message) == call
    texts = [tokenizer().decode(ids, skip_special_tokens=True) for ids in got.ids]
    assert Run(tmp_path).completions["completion"].tolist() == texts


@shows("conversations", "GRPO")
def test_a_text_that_was_parsed_out_of_what_the_model_wrote_stays_parsed(kind, tmp_path):
    """As of a model that thinks; any custom stop, a minimum alone too, put the raw text in its place."""
    own = chat_tokenizer(calls=False)
    inside = {"open": "<search>", "close_pattern": CLOSE, "content": "text"}
    own.response_template = {"defaults": {"role": "assistant"}, "start_anchor": "\n", "fields": {"content": inside}}
    got = watched("ours", kind, tokenizer=own, data=chats(), stops=StopSpec(min_tokens=1), record_dir=tmp_path)
    parsed = [own.decode(ids).partition(CLOSE)[0].removeprefix("<search>") for ids in got.ids]
    whole = [CLOSE in own.decode(ids) for ids in got.ids]
    assert any(whole)
    pairs = [(m["content"], text) for (m,), text, one in zip(got.texts, parsed, whole, strict=True) if one]
    assert all(shown == text for shown, text in pairs)
    texts = [own.decode(ids, skip_special_tokens=True) for ids in got.ids]
    assert Run(tmp_path).completions["completion"].tolist() == texts
