"""What stock TRL trains and ours once stopped at or computed wrong: odd rewards, rollouts and adapters."""

from functools import partial

import numpy as np
import pytest
import torch
from configuration_runs import build
from peft import LoraConfig, PromptTuningConfig
from ppo_parts import needs_ppo
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench.consistency.positions import fills_position_ids
from workbench.diagnostics.logits import cast_copy
from workbench.experiments.recipes import resolve_model
from workbench.runs.run import Run
from workbench.training.rows import is_of_a_step

pytestmark = pytest.mark.slow


def lengths(completions, **_):
    return [float(len(text)) for text in completions]


def trained(kind="GRPO", **options):
    trainer = build("ours", kind, **options)
    trainer.train()
    return trainer


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_a_reward_s_own_columns_replace_none_of_the_record_and_an_odd_one_is_left_out(kind, tmp_path):
    def logs(completions, log_extra=None, **_):
        log_extra("finish_reason", ["mine"] * len(completions))
        log_extra("step", [7] * len(completions))
        log_extra("words", [len(text.split()) for text in completions])
        log_extra("few", [1])
        return lengths(completions)

    with pytest.warns(UserWarning, match=r"log_extra\('few'\): 1 values for 8 completions; not recorded"):
        trained(kind, rewards=logs, record_dir=tmp_path)
    table = Run(tmp_path).completions
    assert set(table["finish_reason"]) <= {"stop", "length"} and set(table["step"]) == {1, 2}
    assert set(table["finish_reason (function)"]) == {"mine"} and set(table["step (function)"]) == {7}
    assert "few" not in table and table["words"].tolist() == [len(text.split()) for text in table["completion"]]


def test_a_column_that_is_logged_every_other_time_stands_at_no_other_step(tmp_path):
    calls = []

    def logs(completions, log_extra=None, **_):
        calls.append(1)
        if len(calls) % 2:
            log_extra("call", [len(calls)] * len(completions))
        return lengths(completions)

    trained(rewards=logs, record_dir=tmp_path)
    table = Run(tmp_path).completions
    assert table.groupby("step")["call"].apply(lambda values: set(values.dropna())).tolist() == [{1}, set()]


def test_a_metric_whose_name_begins_like_an_evaluation_s_ends_no_record(tmp_path):
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


@pytest.mark.parametrize("empty", [None, 0])
def test_a_rollout_function_may_return_tensors_and_an_empty_first_row(empty):
    def rollout(prompts, trainer):
        own = trainer.processing_class
        rows = [torch.tensor([5, 6, own.eos_token_id]) for _ in prompts]
        logprobs = [torch.full((3,), -1.0) for _ in prompts]
        if empty is not None:
            rows[empty], logprobs[empty] = rows[empty][:0], logprobs[empty][:0]
        return {"prompt_ids": [own.encode(p) for p in prompts], "completion_ids": rows, "logprobs": logprobs}

    assert trained(rollout_func=rollout).state.global_step == 2


def test_a_copy_in_another_dtype_of_a_trainer_s_model_computes_with_its_own_weights():
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


def test_a_model_with_virtual_tokens_is_scored_at_the_positions_at_which_it_sampled():
    """`generate` counts pads behind virtual tokens; so does stock scoring, and ids from the mask would not."""
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    trainer = build("ours", "GRPO", peft_config=config, explicit_positions=True)
    assert not fills_position_ids(trainer.model)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
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
