"""Tokenizers and EOS ids as Llama-3, Qwen2.5 and Llama-2 have them, with each trainer, stock beside ours."""

import re

import pytest
from configuration_models import CONTROL, TURN_END, control_like, llama2_like, llama3_like, qwen25_like
from configuration_runs import LIMIT, STOP, TELL, assert_equal_runs, assert_stops_hold, build, watched
from configuration_table import shows, shows_refusal
from ppo_parts import ppo_trainer
from transformers import AutoTokenizer
from trl_version import TRL

from workbench.errors import ParameterError
from workbench.generation.stops import StopSpec
from workbench.runs.run import Run

pytestmark = pytest.mark.slow

FIXED = TRL >= (1, 14, 2)  # sampling stops at every EOS id, see docs/evidence/defects.md
SAMPLED = ("GRPO", "RLOO", "OnlineDPO")  # whose reward functions are given the ids


def model_of(make):
    """A fixture: the folder of a model, made once."""
    return pytest.fixture(scope="module")(lambda tmp_path_factory: str(make(tmp_path_factory.mktemp("model"))))


llama3, control, qwen25, llama2 = map(model_of, (llama3_like, control_like, qwen25_like, llama2_like))


def responses(monkeypatch) -> list[list[int]]:
    """What PPO sampled, as it comes: rows of ids, pads behind their ends."""
    rows, original = [], ppo_trainer.get_reward

    def get_reward(model, query_responses, pad_id, context_length):
        rows.extend(query_responses[:, context_length:].tolist())
        return original(model, query_responses, pad_id, context_length)

    monkeypatch.setattr(ppo_trainer, "get_reward", get_reward)
    return rows


def met(token: int, rows: list[list[int]], *, behind: bool) -> bool:
    """Whether a row has the token; with `behind` before its last one, so that what is sampled behind it shows."""
    return any(token in (ids[:-1] if behind else ids) for ids in rows)


# --- several EOS ids -------------------------------------------------------------------------------------------------


@shows("several EOS", *SAMPLED)
def test_stock_samples_on_behind_the_eos_that_its_tokenizer_does_not_name(kind, llama3):
    turn_end = AutoTokenizer.from_pretrained(llama3).convert_tokens_to_ids(TURN_END)
    fixed = FIXED and kind != "OnlineDPO"
    rows = watched("stock", kind, model=llama3, until=lambda got: met(turn_end, got.ids, behind=not fixed)).ids
    assert any(turn_end in ids[:-1] for ids in rows) != fixed


@shows("several EOS", "PPO")
def test_so_does_stock_ppo(kind, llama3, monkeypatch):
    turn_end = AutoTokenizer.from_pretrained(llama3).convert_tokens_to_ids(TURN_END)
    rows = responses(monkeypatch)
    watched("stock", kind, model=llama3, until=lambda got: met(turn_end, rows, behind=True))
    assert any(turn_end in ids and any(ids[ids.index(turn_end) + 1 :]) for ids in rows)


@pytest.mark.parametrize("strings", [(), (STOP,)])
@shows("several EOS")
def test_the_workbench_ends_at_every_eos_and_shows_none_to_rewards(kind, strings, llama3, tmp_path):
    own = AutoTokenizer.from_pretrained(llama3)
    eos = [own.eos_token_id, own.convert_tokens_to_ids(TURN_END)]

    def at_each(got):
        return kind == "PPO" or {ids[-1] for ids in got.ids} >= set(eos)

    assert_stops_hold(kind, tmp_path, model=llama3, stops=StopSpec(stop=strings), eos=eos, seen=at_each)


# --- the pad token is an EOS -----------------------------------------------------------------------------------------


@shows("pad is EOS", *SAMPLED)
def test_stock_samples_on_behind_a_pad_that_ends_rows(kind, qwen25):
    pad = AutoTokenizer.from_pretrained(qwen25).pad_token_id
    rows = watched("stock", kind, model=qwen25, until=lambda got: met(pad, got.ids, behind=not FIXED)).ids
    assert any(any(i != pad for i in ids[ids.index(pad) :]) for ids in rows if pad in ids) != FIXED


@pytest.mark.parametrize("strings", [(), (STOP,)])
@shows("pad is EOS", *SAMPLED)
def test_the_workbench_ends_at_the_pad_and_trains_on_it_as_on_any_eos(kind, strings, qwen25, tmp_path):
    own = AutoTokenizer.from_pretrained(qwen25)
    eos = [own.eos_token_id, own.pad_token_id]

    def at_pad(got):
        return any(ids[-1] == own.pad_token_id for ids in got.ids)

    assert_stops_hold(kind, tmp_path, model=qwen25, stops=StopSpec(stop=strings), eos=eos, seen=at_pad)


@shows_refusal(
    "pad is EOS",
    "pad token id 0: PPO masks by it, so it must be set and be none of the EOS ids [1, 0], of tokenizer and generation "
    "config; else the EOS token falls out of the loss. Add a pad token of its own",
    "PPO",
)
def test_ppo_refuses_a_pad_that_ends_rows(kind, message, qwen25):
    with pytest.raises(ParameterError, match=f"^{re.escape(message)}$"):
        build("ours", kind, model=qwen25)


# --- control tokens --------------------------------------------------------------------------------------------------


@shows("control tokens")
def test_with_control_tokens_it_trains_as_stock_does_and_rewards_do_not_see_them(kind, control, tmp_path):
    own = AutoTokenizer.from_pretrained(control)
    token = own.convert_tokens_to_ids(CONTROL)
    assert token not in own.all_special_ids
    assert_equal_runs(kind, model=control)
    shown = lambda got: kind == "PPO" or met(token, got.ids, behind=False)  # noqa: E731
    assert_stops_hold(kind, tmp_path, model=control, seen=shown)
    assert not Run(tmp_path).completions["completion"].str.contains(CONTROL, regex=False).any()


@shows("control tokens")
def test_a_control_token_that_is_a_stop_ends_rows_and_is_shown(kind, control, tmp_path):
    stops = StopSpec(stop_token_ids=(AutoTokenizer.from_pretrained(control).convert_tokens_to_ids(CONTROL),))

    def some(got):
        return Run(tmp_path).completions["completion"].str.endswith(CONTROL).nunique() == 2

    watched("ours", kind, TELL[kind], until=some, model=control, stops=stops, record_dir=tmp_path)
    rows = Run(tmp_path).completions
    ended = rows["completion"].str.endswith(CONTROL)
    assert (ended == rows["completion"].str.contains(CONTROL, regex=False)).all()
    assert (rows["finish_reason"][ended] == "stop").all()


# --- SentencePiece with byte fallback --------------------------------------------------------------------------------


@shows("SentencePiece")
def test_with_byte_fallback_it_trains_as_stock_does_and_ends_at_stop_strings(kind, llama2, tmp_path):
    assert_equal_runs(kind, model=llama2)
    stops = StopSpec(stop=("e", " s"))

    def bytes_that_make_no_character_and_no_pads(got):
        rows = Run(tmp_path).completions
        cut = rows["finish_reason"] == "length"  # shorter where the random policy sampled a pad, by which PPO masks
        return rows["completion"].str.contains("\ufffd").any() and (rows["completion_tokens"][cut] == LIMIT).all()

    assert_stops_hold(kind, tmp_path, model=llama2, stops=stops, seen=bytes_that_make_no_character_and_no_pads)
