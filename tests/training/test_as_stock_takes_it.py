"""What stock TRL trains and ours once stopped at or computed wrong: odd rewards, rollouts and adapters."""

from functools import partial

import numpy as np
import pytest
import torch
from configuration_runs import build
from peft import LoraConfig, PromptTuningConfig
from ppo_parts import needs_ppo
from trainers import STOCK
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from workbench.consistency.logits import cast_copy
from workbench.consistency.positions import fills_position_ids
from workbench.experiments.recipes import resolve_model
from workbench.runs.run import Run
from workbench.training.rows import is_of_a_step, positions_filled
from workbench.watch.attach import attach_watch
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow

BOTH = pytest.mark.parametrize("kind", ["GRPO", "RLOO"])


def lengths(completions, **_):
    return [float(len(text)) for text in completions]


def trained(kind="GRPO", **options):
    trainer = build("ours", kind, **options)
    trainer.train()
    return trainer


@BOTH
def test_reward_columns_replace_none_and_odd_ones_are_left_out(kind, tmp_path):
    def logs(completions, log_extra=None, **_):
        log_extra("finish_reason", ["mine"] * len(completions))
        log_extra("step", [7] * len(completions))
        log_extra("words", (len(text.split()) for text in completions))  # an iterator, as TRL takes it
        log_extra("few", [1])
        return lengths(completions)

    with pytest.warns(
        UserWarning, match=r"log_extra\('few'\): 1 values for 8 completions, so none is recorded"
    ) as caught:
        trained(kind, rewards=logs, record_dir=tmp_path)
    assert {one.filename for one in caught if "log_extra" in str(one.message)} == {__file__}  # at `train`
    table = Run(tmp_path).completions
    assert set(table["finish_reason"]) <= {"stop", "length"} and set(table["step"]) == {1, 2}
    assert set(table["finish_reason (function)"]) == {"mine"} and set(table["step (function)"]) == {7}
    assert "few" not in table and table["words"].tolist() == [len(text.split()) for text in table["completion"]]


def test_a_column_logged_at_every_other_step_stands_at_no_other(tmp_path):
    calls = []

    def logs(completions, log_extra=None, **_):
        calls.append(1)
        if len(calls) % 2:
            log_extra("call", [len(calls)] * len(completions))
        return lengths(completions)

    trained(rewards=logs, record_dir=tmp_path)
    table = Run(tmp_path).completions
    assert table.groupby("step")["call"].apply(lambda values: set(values.dropna())).tolist() == [{1}, set()]


def test_a_metric_named_like_an_evaluation_ends_no_record(tmp_path):
    def logs(completions, log_metric=None, **_):
        log_metric("eval_accuracy", 0.5)
        return lengths(completions)

    trained(rewards=logs, record_dir=tmp_path)
    assert Run(tmp_path).metrics["eval_accuracy"].tolist() == [0.5, 0.5]
    assert is_of_a_step({"eval_accuracy": 0.5}) and not is_of_a_step({"eval_loss": 1, "eval_held_out_runtime": 1})


def test_partials_that_have_names_are_two_rewards():
    def times(completions, factor=1, **_):
        return [factor * value for value in lengths(completions)]

    rewards = [partial(times, factor=factor) for factor in (1, 2)]
    for n, each in enumerate(rewards, 1):
        each.__name__ = f"times_{n}"
    log = trained(rewards=rewards).state.log_history[0]
    assert log["rewards/times_2/mean"] == pytest.approx(2 * log["rewards/times_1/mean"])


class Weighted:
    """A reward whose user changes it while the training runs."""

    weight = 1.0

    def __call__(self, completions, **_):
        return [self.weight * value for value in lengths(completions)]

    def harder(self):
        self.weight = 100.0


class Curriculum(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        self.trainer.reward_funcs[0].harder()


@BOTH
def test_trainers_keep_reward_objects_that_a_callback_changes(kind):
    reward, curriculum = Weighted(), Curriculum()
    trainer = curriculum.trainer = build("ours", kind, rewards=[reward], callbacks=[curriculum])
    assert trainer.reward_funcs[0] is reward
    trainer.train()
    assert trainer.reward_funcs[0] is reward
    first, second = (line["rewards/Weighted/mean"] for line in trainer.state.log_history[:2])
    assert second > 20 * first > 0


@BOTH
def test_rewards_of_one_name_have_numbered_columns(kind, tmp_path):
    one, other = Weighted(), Weighted()
    other.harder()
    log = trained(kind, rewards=[one, other, lambda completions, **_: lengths(completions)], record_dir=tmp_path)
    line, rows = log.state.log_history[0], Run(tmp_path).completions
    assert line["rewards/Weighted_2/mean"] == pytest.approx(100 * line["rewards/Weighted/mean"])
    assert rows["Weighted_2"].tolist() == pytest.approx((100 * rows["Weighted"]).tolist())
    assert rows["<lambda>"].tolist() == rows["Weighted"].tolist()


class OwnError(Exception):
    pass


@BOTH
def test_an_error_of_a_reward_reaches_the_user_as_it_was_raised(kind):
    def breaks(completions, **_):
        raise OwnError("no server")

    with pytest.raises(OwnError) as caught:
        trained(kind, rewards=breaks)
    assert caught.value.__notes__ == ["raised by the reward function breaks"]


@BOTH
def test_a_stop_id_that_is_an_eos_already_is_ignored(kind):
    eos = AutoTokenizer.from_pretrained(resolve_model("search")).eos_token_id
    trainer = trained(kind, stops=["</search>", eos])
    assert trainer.stop_rule.stop_ids == (eos,) and trainer.state.global_step == 2


@BOTH
def test_stops_given_as_generation_kwargs_end_rows(kind, tmp_path):
    trained(kind, stops={"stop": ["</search>"], "include_stop_str_in_output": False}, record_dir=tmp_path)
    rows = Run(tmp_path).completions
    assert set(rows["finish_reason"]) <= {"stop", "length"} and not rows["completion"].str.contains("</search>").any()


def test_a_sampling_temperature_of_its_own_is_named():
    with pytest.warns(UserWarning, match=r"sampled at 0\.3 and scored at temperature=1\.0"):
        build("ours", "GRPO", {"generation_kwargs": {"temperature": 0.3}})


@BOTH
def test_training_without_a_length_limit_is_recorded(kind, tmp_path):
    trainer = trained(kind, fields={"max_completion_length": None, "max_steps": 1}, record_dir=tmp_path)
    rows = Run(tmp_path).completions
    assert trainer.state.global_step == 1 and len(rows) == 8
    assert set(rows["finish_reason"]) <= {"stop", "length"}


@BOTH
def test_watch_stays_on_without_a_length_limit(kind):
    trainer = build("stock", kind, {"max_completion_length": None, "max_steps": 1})
    watch = attach_watch(trainer, every=1)
    trainer.train()
    rows = Run(watch.recorder.record_dir).completions
    assert watch.on and (rows["finish_reason"] == rows["trl_finish_reason"]).all()


@BOTH
@pytest.mark.parametrize("empty", [0, 3])
def test_an_engine_may_return_a_row_without_tokens(kind, empty, monkeypatch):
    def generate(trainer, prompt_ids, *_):
        rows = [[5, 6, trainer._tokenizer.eos_token_id] for _ in prompt_ids]
        rows[empty] = []
        return rows if kind == "RLOO" else (rows, None)

    monkeypatch.setattr(STOCK[kind], "_generate_single_turn", generate)
    trainer = trained(kind, rewards=[lengths])
    assert trainer.state.global_step == 2
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == pytest.approx(1 / 8)


@pytest.mark.parametrize("empty", [None, 0])
def test_a_rollout_function_may_return_tensors_or_an_empty_row(empty):
    def rollout(prompts, trainer):
        own = trainer.processing_class
        rows = [torch.tensor([5, 6, own.eos_token_id]) for _ in prompts]
        logprobs = [torch.full((3,), -1.0) for _ in prompts]
        if empty is not None:
            rows[empty], logprobs[empty] = rows[empty][:0], logprobs[empty][:0]
        return {"prompt_ids": [own.encode(p) for p in prompts], "completion_ids": rows, "logprobs": logprobs}

    assert trained(rollout_func=rollout).state.global_step == 2


def test_rollout_rows_with_the_pads_of_generate_have_stopped():
    """Half of the rows were left out of the loss, in which stock TRL has them."""

    def rollout(prompts, trainer):
        own = trainer.processing_class
        rows = [[5, 6, own.eos_token_id, *[own.pad_token_id] * (n % 2)] for n in range(len(prompts))]
        return {"prompt_ids": [own.encode(p) for p in prompts], "completion_ids": rows, "logprobs": None}

    trainer = trained(rollout_func=rollout, fields={"mask_truncated_completions": True}, subclass=scored_tokens)
    assert trainer.scored == [3, 4] * 4
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 0


AS_ROWS = pytest.mark.parametrize("as_row", [torch.tensor, np.array], ids=["tensors", "arrays"])


def half_ended(trainer, count, as_row):
    """Rows of three tokens, of which every other one ends with EOS."""
    eos = trainer._tokenizer.eos_token_id
    return [as_row([5, 6, eos if n % 2 else 7]) for n in range(count)]


def scored_tokens(cls):
    """A class that notes how many tokens of each row the loss takes."""

    class Noting(cls):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            self.scored = (output["completion_mask"] * output.get("tool_mask", 1)).sum(1).tolist()
            return output

    return Noting


@BOTH
@AS_ROWS
def test_a_subclass_may_sample_tensors_or_arrays(kind, as_row):
    def subclass(cls):
        class Sampler(scored_tokens(cls)):
            def _generate_single_turn(self, prompt_ids, *_, **__):
                rows = half_ended(self, len(prompt_ids), as_row)
                return rows if kind == "RLOO" else (rows, None)

        return Sampler

    trainer = trained(kind, subclass=subclass, fields={"mask_truncated_completions": True})
    assert trainer.scored == [0, 3] * 4
    assert trainer.state.log_history[0]["stops/clipped_ratio"] == 0.5


@BOTH
@AS_ROWS
def test_a_subclass_may_cut_rows_to_tensors_or_arrays(kind, as_row, tmp_path):
    def subclass(cls):
        class Cutter(cls):
            def _generate(self, prompts):
                generated = list(super()._generate(prompts))
                generated[1] = [as_row([int(token) for token in ids][:2]) for ids in generated[1]]
                return tuple(generated)

        return Cutter

    trained(kind, subclass=subclass, record_dir=tmp_path)
    assert set(Run(tmp_path).completions["completion_tokens"]) <= {1, 2}


@AS_ROWS
def test_a_rollout_that_is_set_later_may_give_tensors_or_arrays(as_row, tmp_path):
    def rollout(prompts, trainer):
        ids, count = [as_row(trainer._tokenizer.encode(prompt)) for prompt in prompts], len(prompts)
        given = {"logprobs": [as_row([-1.0] * 3)] * count, "env_mask": [as_row([1, 0, 1])] * count}
        return {"prompt_ids": ids, "completion_ids": half_ended(trainer, count, as_row), **given}

    fields = {"mask_truncated_completions": True}
    trainer = build("ours", "GRPO", fields, subclass=scored_tokens, record_dir=tmp_path, record_steps=1)
    trainer.rollout_func = rollout
    trainer.train()
    assert trainer.scored == [0, 2] * 4
    rows = Run(tmp_path).completions
    assert rows["finish_reason"].tolist() == rows["trl_finish_reason"].tolist() == ["length", "stop"] * 8
    assert set(rows["completion_tokens"]) == {2} and len(list(tmp_path.rglob("step-*.gz"))) == 2
    stock = build("stock", "GRPO", fields, rollout_func=rollout)
    assert check_step(stock)["mask"].verdict == "same"
    watch = attach_watch(stock, every=1)
    stock.train()
    rows = Run(watch.recorder.record_dir).completions
    assert watch.on and rows["trl_finish_reason"].tolist() == ["length", "stop"] * 8


def test_a_copy_in_another_dtype_computes_with_its_own_weights():
    """TRL 1.15 and later put a fused head in the place of `forward`, which a plain copy would go on calling."""
    model = build("ours", "GRPO").model.eval()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    rounded = cast_copy(model, "bfloat16")
    with torch.no_grad():
        apart = (model(input_ids=ids).logits - rounded(input_ids=ids).logits.float()).abs().max()
        assert apart > 1e-4
        for parameter in model.parameters():
            parameter.zero_()
        assert rounded(input_ids=ids).logits.float().abs().max() > 0.1


def test_a_model_with_virtual_tokens_is_scored_as_it_sampled():
    """`generate` counts pads behind virtual tokens; so does stock scoring, and ids from the mask would not."""
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    trainer = build("ours", "GRPO", peft_config=config, explicit_positions=True)
    with positions_filled(trainer):
        assert not fills_position_ids(trainer.model)


@BOTH
def test_one_seed_gives_one_adapter(kind):
    """TRL before 1.15 makes it before it seeds."""
    path, made = resolve_model("search"), []
    for state in (1, 2):

        def policy(state=state):
            loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
            torch.manual_seed(state)  # what was drawn before the trainer is made
            return loaded

        lora = LoraConfig(r=2, task_type="CAUSAL_LM")
        tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        trainer = build("ours", kind, model=policy, tokenizer=tokenizer, peft_config=lora)
        made.append([p.detach().clone() for name, p in trainer.model.named_parameters() if "lora_A" in name])
    assert made[0] and all(torch.equal(one, other) for one, other in zip(*made, strict=True))


@pytest.mark.parametrize("kind", [pytest.param("PPO", marks=needs_ppo)])
def test_a_pad_token_outside_the_table_is_given_to_no_model(kind, tmp_path):
    """As TRL's own example of PPO adds it; TRL masks it before each forward pass."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("search"), padding_side="left")
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})

    model = AutoModelForCausalLM.from_pretrained(resolve_model("search"), dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer) - 1)
    model.save_pretrained(tmp_path)
    trainer = build("ours", kind, model=str(tmp_path), tokenizer=tokenizer)
    assert trainer.policy_model.get_input_embeddings().num_embeddings == tokenizer.pad_token_id
    trainer.train()


@pytest.mark.parametrize("kind", [pytest.param("PPO", marks=needs_ppo)])
def test_one_seed_gives_one_ppo_training(kind):
    weights = []
    for state in (1, 2):
        trainer = build("ours", kind, {"num_mini_batches": 2})
        np.random.seed(state)  # what TRL permutes with
        trainer.train()
        weights.append([p.detach().clone() for p in trainer.policy_model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
