"""Sampled and scored log-probs through each trainer's own scoring path, stock and the workbench's (article A2).

On the learned-position starter model, whose left-padded rows are wrong without position ids. TRL's PPO passes them itself.
"""

import contextlib
import functools

import pytest
import torch
from ppo_parts import StockPPO, needs_ppo
from trainers import EXACT, OURS, RECIPE, STOCK, WRONG, load, make, prompts
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench.consistency.positions import backbone, fills_position_ids, position_ids, with_position_ids
from workbench.errors import ParameterError
from workbench.experiments.recipes import grpo_config, resolve_model
from workbench.experiments.sampling import Sampling, TransformersSampler, generate
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward
from workbench.training.rows import positions_filled
from workbench.watch.padding_monitor import attach_padding_monitor, trainer_logprobs

pytestmark = pytest.mark.slow

EACH = pytest.mark.parametrize("kind", STOCK)
OF_POLICY = pytest.mark.parametrize("kind", ["GRPO", "RLOO"])


@pytest.fixture(scope="module")
def sampled():
    """`(prompt ids, completion ids, log-probs as sampled)` of eight left-padded rows."""
    engine = TransformersSampler(load().eval(), AutoTokenizer.from_pretrained(resolve_model("starter-gpt2")))
    rows = generate(engine, prompts()["prompt"][:8], sampling=Sampling(16, seed=0))
    assert len({len(row.prompt_ids) for row in rows}) > 4
    return tuple([list(getattr(r, name)) for r in rows] for name in ("prompt_ids", "completion_ids", "logprobs"))


def furthest(trainer, sampled) -> float:
    """Largest |scored - sampled| of a token, nats."""
    scored = torch.cat(trainer_logprobs(trainer, *sampled[:2]))
    return (scored - torch.tensor([x for row in sampled[2] for x in row])).abs().max().item()


# --- scoring -------------------------------------------------------------------------------------------------------


@OF_POLICY
def test_the_stock_trainer_scores_left_padded_rows_wrong(kind, sampled, record_property):
    difference = furthest(make(STOCK[kind]), sampled)
    record_property("largest difference, nats", difference)
    assert difference > WRONG


@EACH
def test_the_workbench_scores_left_padded_rows_as_sampled(kind, sampled, record_property):
    difference = furthest(make(OURS[kind]), sampled)
    record_property("largest difference, nats", difference)
    assert difference < EXACT


@needs_ppo
def test_stock_ppo_passes_position_ids_itself_and_is_right(sampled):
    assert furthest(make(StockPPO), sampled) < EXACT


@OF_POLICY
def test_the_option_restores_the_original_numbers(kind, sampled):
    stock, ours = (
        trainer_logprobs(make(cls[kind], **options), *sampled[:2])
        for cls, options in ((STOCK, {}), (OURS, {"explicit_positions": False}))
    )
    assert all(torch.equal(a, b) for a, b in zip(stock, ours, strict=True))


def test_a_peft_policy_is_scored_as_it_was_sampled(sampled):
    from peft import LoraConfig

    lora = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
    trainer = make(GRPOTrainer, peft_config=lora)
    assert trainer.ref_model is None  # the reference is the policy without adapters
    assert furthest(trainer, sampled) < EXACT  # adapters start at zero


# --- training ------------------------------------------------------------------------------------------------------


def trained_positions(trainer) -> list[tuple]:
    """Train; `(part, position ids, mask)` of each forward pass over whole texts, as the models' own backbones got them."""
    calls = []

    def watch(part, module, args, kwargs, output):
        mask, past = kwargs.get("attention_mask"), kwargs.get("past_key_values", kwargs.get("cache"))
        if past is None and isinstance(mask, torch.Tensor) and mask.dim() == 2:  # generation keeps a cache
            calls.append((part, kwargs.get("position_ids"), mask.clone()))

    parts = {"policy": getattr(trainer, "policy_model", trainer.model), "reference": trainer.ref_model}
    parts["value"] = getattr(trainer, "value_model", None)
    for part, model in parts.items():
        if model is not None:
            hook = functools.partial(watch, part)
            backbone(model).register_forward_hook(hook, with_kwargs=True)  # after every hook that gives it something
    trainer.train()
    return calls


def right(ids, mask) -> bool:
    return ids is not None and torch.equal(ids[mask.bool()], position_ids(mask)[mask.bool()])


@EACH
def test_every_forward_pass_of_a_step_gets_each_texts_positions(kind):
    calls = trained_positions(make(OURS[kind]))
    expected = {"policy", "reference"} | ({"value"} if kind == "PPO" else set())
    assert {part for part, _, _ in calls} == expected
    assert any((mask[:, 0] == 0).any() for _, _, mask in calls)  # some rows were left-padded
    assert all(right(ids, mask) for _, ids, mask in calls)


@OF_POLICY
def test_the_stock_trainers_passes_get_none(kind):
    calls = trained_positions(make(STOCK[kind]))
    assert {part for part, _, _ in calls} == {"policy", "reference"}
    assert all(ids is None for _, ids, _ in calls)


def test_a_resumed_run_with_position_ids_repeats_the_whole_one(tmp_path):
    fields = {"disable_dropout": True, "save_steps": 2, "max_steps": 4}
    logs = {}
    for name, checkpoint in (("whole", None), ("resumed", tmp_path / "whole" / "checkpoint-2")):
        args = grpo_config(RECIPE, tmp_path / name, **fields)
        trainer = GRPOTrainer(resolve_model("starter-gpt2"), length_reward(), args, train_dataset=prompts())
        attach_padding_monitor(trainer, every=1)
        trainer.train(resume_from_checkpoint=checkpoint)
        logs[name] = [{k: v for k, v in line.items() if k != "step_time"} for line in trainer.state.log_history[:-1]]
    assert [line["step"] for line in logs["resumed"]] == [1, 2, 3, 4]
    assert logs["resumed"] == logs["whole"]
    assert all(line["padding/max_difference"] < EXACT for line in logs["whole"])
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "checkpoint-4")
    assert not fills_position_ids(saved)  # part of the trainer, not of what is saved


def test_a_hooked_model_is_refused_where_the_original_is_asked():
    model = load()
    with_position_ids(model)
    with pytest.raises(ParameterError, match="explicit_positions=False: the model has a hook of with_position_ids"):
        make(GRPOTrainer, model=model, explicit_positions=False)
    trainer = make(GRPOTrainer, model=model)
    with positions_filled(trainer):
        assert len(backbone(model)._forward_pre_hooks) == 1  # not installed twice
    assert fills_position_ids(model)  # the user's own stays


@OF_POLICY
@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_the_users_model_has_a_hook_only_while_the_trainer_works(kind, fails):
    model, seen = load(), []

    def reward(completions, **_):
        seen.append(fills_position_ids(model))
        if fails:
            raise RuntimeError("the user's")
        return [float(n) for n in range(len(completions))]

    trainer = make(OURS[kind], model=model, reward=reward)
    assert not fills_position_ids(model)
    with pytest.raises(RuntimeError, match="the user's") if fails else contextlib.nullcontext():
        trainer.train()
    assert set(seen) == {True}
    assert not fills_position_ids(model) and not fills_position_ids(trainer.ref_model)


@OF_POLICY
def test_a_stock_trainer_of_the_same_model_scores_as_stock(kind, sampled):
    model = load()
    fresh = trainer_logprobs(make(STOCK[kind], model=model), *sampled[:2])
    ours = trainer_logprobs(make(OURS[kind], model=model), *sampled[:2])
    after = trainer_logprobs(make(STOCK[kind], model=model), *sampled[:2])
    assert all(torch.equal(a, b) for a, b in zip(fresh, after, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(fresh, ours, strict=True))


def test_another_trainer_is_refused_by_name():
    class Other:
        processing_class = AutoTokenizer.from_pretrained(resolve_model("starter"))
        model = torch.nn.Linear(1, 1)
        accelerator = type("", (), {"device": "cpu"})

    with pytest.raises(ParameterError, match="Other: expected TRL's GRPO"):
        trainer_logprobs(Other(), [[5]], [[6]])
