"""The cases of the table of options (helpers/configuration_table.py), and what else is promised of an option.

What each shows goes to `docs/evidence/what_is_tested.md`, which test_what_is_tested.py writes.
"""

import re
import shutil

import configuration_models as models
import configuration_runs as runs
import pytest
from configuration_models import calling, ended, tokenizer, turns
from configuration_runs import BATCH, LIMIT, POLICY, STEPS, STOP, TELL, apart, assert_equal, build, reward, watched
from configuration_table import TABLE, shows, shows_cases
from peft import LoraConfig
from samples import until_seen
from trainers import OURS

from workbench.errors import ParameterError
from workbench.experiments.recipes import make_recipe
from workbench.experiments.toys.search_task import CLOSE
from workbench.experiments.toys.starter import EOS
from workbench.experiments.train import is_finished, train, training_record
from workbench.generation.stops import StopSpec
from workbench.runs.run import Run
from workbench.training.rows import tokenizer_of
from workbench.watch.padding_monitor import attach_padding_monitor

pytestmark = pytest.mark.slow

CLOSED = StopSpec(stop=(CLOSE,))


@shows_cases(by="equal")
def test_training_equals_stock_without_custom_stops(case, kind):
    runs.assert_trains_as_stock(case, kind)


@shows_cases(by="stops")
def test_rows_end_at_custom_stops_and_are_recorded(case, kind, tmp_path):
    runs.assert_stops_hold(case, kind, tmp_path)


# --- settings --------------------------------------------------------------------------------------------------------


@shows("LoRA", says="a recipe with LoRA resumes in its folder, and with another rank it is another training")
def test_lora_rank_is_part_of_what_a_folder_holds(kind, tmp_path):
    sizes = {"num_generations": 2, "per_device_train_batch_size": BATCH, "max_completion_length": LIMIT}
    recipe, cls = make_recipe("search", dataset="search", max_steps=1, **sizes), OURS[kind]
    rewards = "random weights" if kind == "PPO" else reward
    options = {"peft_config": LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])}
    trained = train(recipe, trainer=cls, record_dir=tmp_path, reward_funcs=rewards, **options)
    assert any("lora_B" in weight for weight in trained.model.state_dict())
    for rank in (4, 8):
        config = LoraConfig(r=rank, task_type="CAUSAL_LM", target_modules=["v_proj", "q_proj"])
        record = training_record(cls.__name__, recipe, reward_funcs=rewards, peft_config=config)
        assert is_finished(tmp_path, record) == (rank == 4)


# --- evaluation and rewards ------------------------------------------------------------------------------------------


@shows_cases(
    "eval groups", says="an evaluation in groups of another size is not recorded; its metrics count its own rows"
)
def test_an_evaluation_counts_its_own_rows(case, kind, tmp_path):
    fields, own = case.options()
    got = watched("ours", kind, fields | TELL[kind], **own, stops=StopSpec(stop=(STOP,)), record_dir=tmp_path)
    assert got.rows.groupby("step").size().tolist() == [BATCH] * STEPS
    judged = 4 * fields["num_generations_eval"]
    assert len(got.texts) == STEPS * (BATCH + judged)
    evaluated = [line for line in got.log if "eval_reward" in line]
    assert len(evaluated) == STEPS
    for step, line in enumerate(evaluated):
        ids = got.ids[(step + 1) * BATCH + step * judged :][:judged]
        cut = [STOP not in tokenizer().decode(row) and row[-1] != tokenizer().eos_token_id for row in ids]
        assert line["eval_completions/clipped_ratio"] == pytest.approx(sum(cut) / len(cut))


@shows_cases("None", says="rewards of None are recorded as no number")
def test_rewards_of_none_are_recorded_as_no_number(case, kind, tmp_path):
    fields, own = case.options()
    got = watched("ours", kind, fields, **own, record_dir=tmp_path)
    rows = got.rows
    place = [n % 4 for n in range(len(rows))]
    assert rows["seldom"].isna().tolist() == [at in (0, 2) for at in place]
    assert rows["sometimes"].isna().tolist() == [at in (0, 1) for at in place]
    assert rows["reward"].isna().tolist() == [at == 0 for at in place]  # nobody could score it
    filled = 0.5 * rows["seldom"].fillna(0.0) + 2.0 * rows["sometimes"].fillna(0.0)
    scored = rows["reward"].notna()
    assert rows["reward"][scored].tolist() == pytest.approx(filled[scored].tolist())
    assert (rows["advantage"][~scored] == 0).all()
    assert got.log[0]["reward"] == pytest.approx(rows[rows["step"] == 1]["reward"].mean())


@shows("None", "PPO", says="PPO counts None as nothing")
def test_ppo_counts_none_as_nothing(kind, tmp_path):
    def half(completions, **_):
        return [None if n % 2 else 3.0 for n in range(len(completions))]

    options = {"reward_funcs": [half, reward], "reward_weights": [1.0, 0.5], "record_dir": tmp_path}
    train(make_recipe("search", dataset="search", max_steps=STEPS), trainer=OURS[kind], **options)
    rows = Run(tmp_path).completions
    assert rows["half"].isna().tolist() == [n % 2 == 1 for n in range(len(rows))]
    expected = rows["half"].fillna(0.0) + 0.5 * rows["reward (function)"]
    assert rows["reward"].tolist() == pytest.approx(expected.tolist())


@shows("None", *POLICY, says="a reward function with the name of the total does not overwrite its column")
def test_a_function_named_reward_has_a_column_of_its_own(kind, tmp_path):
    rows = watched("ours", kind, {"reward_weights": [2.0]}, record_dir=tmp_path).rows
    assert rows["reward"].tolist() == pytest.approx((2.0 * rows["reward (function)"]).tolist())


# --- tokens ----------------------------------------------------------------------------------------------------------


@shows("pad is EOS", "PPO", says="PPO refuses a pad token that is an EOS")
def test_ppo_refuses_a_pad_that_ends_rows(kind):
    with pytest.raises(ParameterError, match=f"^{re.escape(TABLE['pad is EOS'].refused[kind])}$"):
        build("ours", kind, model=models.saved(models.qwen25_like))


# --- turns -----------------------------------------------------------------------------------------------------------


@shows_cases(
    "tools", "environment", "rollout", says="both turns end at the stop, and the tool's answer is not trained on"
)
def test_both_turns_end_at_the_stop(case, kind, tmp_path):
    fields, own = case.options()
    own |= {"stops": CLOSED, "record_dir": tmp_path, "explicit_positions": True}
    runs.assert_turns(watched("ours", kind, TELL[kind] | fields, **own))


class Contexts:
    """The ids that a trainer samples later turns from, its whole rows, and the tokens of each that the policy wrote."""

    def __init__(self, trainer):
        self.later, self.rows, self.own, self.conversations = [], [], [], []
        self._trainer, self._turn, self._generated = trainer, trainer._generate_single_turn, trainer._generate
        trainer._generate_single_turn, trainer._generate = self._noting_contexts, self._noting_rows

    def _noting_contexts(self, prompt_ids, *args, **kwargs):
        self._contexts.append([tokenizer().decode(ids) for ids in prompt_ids])
        return self._turn(prompt_ids, *args, **kwargs)

    def _noting_rows(self, prompts):
        self._contexts: list[list[str]] = []
        generated = self._generated(prompts)
        self.later += [text for texts in self._contexts[1:] for text in texts]
        _, rows, masks, completions, *_ = generated
        for ids, mask in zip(rows, masks, strict=True):
            self.rows.append(list(ids))
            self.own.append([token for token, own in zip(ids, mask, strict=True) if own])
        self.conversations += [[*prompt, *turns] for prompt, turns in zip(prompts, completions, strict=True)]
        return generated

    def rendered(self) -> list[str]:
        """What the chat template makes of each conversation up to each of its tool's answers."""
        template, texts = tokenizer_of(self._trainer).apply_chat_template, []
        for conversation in self.conversations:
            answers = [n for n, message in enumerate(conversation, 1) if message["role"] == "tool"]
            texts += [template(conversation[:n], tokenize=False) for n in answers]
        return texts


@pytest.mark.parametrize("make", [models.calling, models.in_library])
@pytest.mark.parametrize("turn_end", [EOS, ""], ids=["closed by EOS", "not closed"])
@shows("tools", says="later turns see the conversation as the chat template renders it, where a stop ended a call too")
def test_later_turns_see_the_conversation_as_rendered(kind, turn_end, make, tmp_path):
    fields = models.TWO_TURNS | {"max_completion_length": 60, "max_tool_calling_iterations": 2}

    def train(seed: int):
        shutil.rmtree(tmp_path, ignore_errors=True)
        own = make(turn_end=turn_end) | {"stops": CLOSED, "record_dir": tmp_path}
        trainer = build("ours", "GRPO", fields | {"seed": seed}, **own)
        return Contexts(trainer), runs.Watched(trainer, tmp_path).train()

    contexts, got = until_seen(train, lambda made: any(CLOSE in text for text in made[0].later))
    assert sorted(contexts.later) == sorted(contexts.rendered())
    stopped = [ended(row) for row in contexts.rows]
    assert got.trained == [own if stop else [] for own, stop in zip(contexts.own, stopped, strict=True)]
    assert not any(f"{CLOSE}{EOS}" in tokenizer().decode(own) for own in contexts.own)
    assert got.rows["completion_tokens"].tolist() == [len(own) for own in contexts.own]
    texts = [tokenizer().decode(row, skip_special_tokens=True) for row in contexts.rows]
    assert got.rows["completion"].tolist() == texts
    assert got.rows["finish_reason"].tolist() == ["stop" if stop else "length" for stop in stopped]


@pytest.mark.parametrize("make", [models.calling, models.in_library])
@shows("tools", says="without stops it trains as stock does where the template closes turns with EOS")
def test_turns_that_eos_closes_train_as_in_stock(kind, make):
    own = make(turn_end=EOS)
    stock, ours = (watched(who, kind, models.TWO_TURNS, **own) for who in ("stock", "ours"))
    assert_equal(apart(stock, ours))


@pytest.mark.parametrize("limit, of_turns", [(14, 2), (8, 1)], ids=["second turn cut", "no room for one"])
@shows("tools", says="a second turn at the limit counts as truncated; without room for one, rows end with their call")
def test_the_limit_holds_over_turns(kind, limit, of_turns, tmp_path):
    """A call has 5 tokens."""

    def ends(got):
        return [(len(turns(tokenizer().decode(ids))), ended(ids)) for ids in got.ids]

    fields, own = TABLE["tools"].cases[0].fields | {"max_completion_length": limit}, calling()
    own |= {"stops": CLOSED, "record_dir": tmp_path}
    got = watched("ours", kind, fields, until=lambda got: (of_turns, of_turns == 1) in ends(got), **own)
    assert got.rows["finish_reason"].tolist() == ["stop" if stopped else "length" for _, stopped in ends(got)]
    assert [bool(row) for row in got.trained] == [stopped for _, stopped in ends(got)]
    assert all(number <= of_turns for number, _ in ends(got))


@shows("tools", says="with include_stop_str_in_output=False no message has the stop")
def test_no_message_has_a_hidden_stop(kind, tmp_path):
    def texts(got):
        """Last messages of rows that the letter ended: after a tool's answer, or at once."""
        ended_there = ["i" in turns(tokenizer().decode(ids))[-1] for ids in got.ids]
        return [c[-1] for c, there in zip(got.texts, ended_there, strict=True) if there and "tool_calls" not in c[-1]]

    stops = StopSpec(stop=(CLOSE, "i"), include_stop_str_in_output=False)
    got = watched("ours", kind, models.TWO_TURNS, until=texts, **calling(), stops=stops, record_dir=tmp_path)
    assert [message["content"] for message in texts(got) if "i" in message["content"]] == []
    assert not got.rows["completion"].str.endswith("i").any()


@shows("rollout", says="with include_stop_str_in_output=False reward functions read a rollout without its stop")
def test_rewards_read_a_rollout_without_a_hidden_stop(kind):
    hidden = StopSpec(stop=(CLOSE,), include_stop_str_in_output=False)
    got = watched("ours", kind, TELL[kind], **models.rolling_out(), stops=hidden)
    whole = [tokenizer().decode(ids, skip_special_tokens=True) for ids in got.ids]
    assert got.texts == [text.removesuffix(CLOSE) for text in whole] != whole


@shows("conversations", "GRPO", says="with a custom stop a parsed message stays parsed")
def test_a_message_that_is_parsed_stays_so_with_a_custom_stop(kind, tmp_path):
    own = {"tokenizer": models.chat_tokenizer(), "data": models.chats(), "record_dir": tmp_path}
    got = watched("ours", kind, **own, stops=StopSpec(stop=(STOP,)))
    called = [CLOSE in tokenizer().decode(ids) for ids in got.ids]
    assert any(called)
    for (message,), call, ids in zip(got.texts, called, got.ids, strict=True):
        if call or "<search>" not in tokenizer().decode(ids):  # else the limit cut the call
            assert "<search>" not in message["content"]
            assert ("tool_calls" in message) == call
    assert got.rows["completion"].tolist() == [tokenizer().decode(ids, skip_special_tokens=True) for ids in got.ids]


@shows("conversations", "GRPO", says="a text that was parsed from the completion stays parsed")
def test_a_text_that_was_parsed_stays_parsed(kind, tmp_path):
    """As of a model that thinks; any custom stop, a minimum alone too, put the raw text in its place."""
    own = models.chat_tokenizer(calls=False)
    inside = {"open": "<search>", "close_pattern": CLOSE, "content": "text"}
    own.response_template = {"defaults": {"role": "assistant"}, "start_anchor": "\n", "fields": {"content": inside}}
    got = watched("ours", kind, tokenizer=own, data=models.chats(), stops=StopSpec(min_tokens=1), record_dir=tmp_path)
    whole = [own.decode(ids) for ids in got.ids]
    pairs = [(m["content"], text) for (m,), text in zip(got.texts, whole, strict=True) if CLOSE in text]
    assert pairs and all(shown == text.partition(CLOSE)[0].removeprefix("<search>") for shown, text in pairs)
    assert got.rows["completion"].tolist() == [own.decode(ids, skip_special_tokens=True) for ids in got.ids]


# --- images ----------------------------------------------------------------------------------------------------------


@shows_cases("vision, text", "vision, images", says="its padding is monitored, with conversations")
def test_padding_is_monitored_with_conversations(case, kind):
    _, own = case.options()
    numbers = attach_padding_monitor(build("ours", kind, explicit_positions=True, **own)).measure()
    assert 0 <= numbers["padding/max_difference"] < 1e-4
