"""Sampled and scored log-probs through each trainer's own scoring path, stock and the workbench's (article A2).

On the learned-position starter model, whose left-padded rows are wrong without position ids. TRL's PPO passes them itself.
"""

import copy
import functools
import tempfile
from pathlib import Path

import pytest
import torch
import trl
from conftest import result_of
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.online_dpo import OnlineDPOConfig
from trl.experimental.online_dpo import OnlineDPOTrainer as StockOnlineDPO
from trl.experimental.ppo import PPOTrainer as StockPPO

from workbench.consistency.positions import backbone, fills_position_ids, position_ids, with_position_ids
from workbench.errors import ParameterError
from workbench.generation.rollouts import Sampling, TransformersSampler, generate
from workbench.runs.run import Run
from workbench.training.grpo import GRPOTrainer, RLOOTrainer, train_grpo
from workbench.training.monitoring import PaddingMonitor, monitor_padding
from workbench.training.online_dpo import OnlineDPOTrainer
from workbench.training.positions import trainer_logprobs
from workbench.training.ppo import PPOTrainer, ppo_config, train_ppo
from workbench.training.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.training.rewards import length_reward

pytestmark = pytest.mark.slow

STOCK = {"GRPO": trl.GRPOTrainer, "RLOO": trl.RLOOTrainer, "OnlineDPO": StockOnlineDPO, "PPO": StockPPO}
OURS = {"GRPO": GRPOTrainer, "RLOO": RLOOTrainer, "OnlineDPO": OnlineDPOTrainer, "PPO": PPOTrainer}
EACH = pytest.mark.parametrize("kind", STOCK)
RECIPE = make_recipe(
    "starter-gpt2",
    max_steps=1,
    num_generations=2,
    per_device_train_batch_size=8,
    max_completion_length=12,
    beta=0.05,
)
PLAIN = {"disable_dropout": True, "save_strategy": "no"}
EXACT, WRONG = 1e-5, 0.1  # nats


@functools.cache
def prompts():
    return load_prompts("starter").select(range(0, 5600, 350))


def load(auto=AutoModelForCausalLM, **kwargs):
    return auto.from_pretrained(resolve_model("starter-gpt2"), **kwargs)


def make(cls, **kwargs):
    """A trainer of any kind for one small step on the learned-position starter model, with a reference policy."""
    folder, path = tempfile.mkdtemp(), resolve_model("starter-gpt2")
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    if issubclass(cls, StockPPO):
        data = prompts().map(lambda row: tokenizer(row["prompt"]), remove_columns=prompts().column_names)
        policy, torch_state = load(), torch.get_rng_state()
        torch.manual_seed(0)
        heads = [load(AutoModelForSequenceClassification, num_labels=1) for _ in range(2)]
        torch.set_rng_state(torch_state)
        args = ppo_config(RECIPE, Path(folder))
        return cls(args, tokenizer, policy, copy.deepcopy(policy), heads[0], data, heads[1], **kwargs)
    if issubclass(cls, StockOnlineDPO):
        fields = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "max_steps": 1}
        fields |= {"disable_tqdm": True, "logging_steps": 1, "max_new_tokens": 12, "per_device_train_batch_size": 4}
        args = OnlineDPOConfig(folder, **PLAIN | fields)
        options = {"reward_funcs": length_reward(), "args": args, "processing_class": tokenizer}
        return cls(kwargs.pop("model", None) or load(), train_dataset=prompts(), **options, **kwargs)
    fields = vars(grpo_config(RECIPE, folder, **PLAIN))
    if issubclass(cls, trl.RLOOTrainer):
        known = trl.RLOOConfig.__dataclass_fields__
        fields = {k: v for k, v in fields.items() if k in known and known[k].init}
        args = trl.RLOOConfig(**fields | {"generation_batch_size": None})
    else:
        args = grpo_config(RECIPE, folder, **PLAIN)
    return cls(kwargs.pop("model", None) or path, length_reward(), args, train_dataset=prompts(), **kwargs)


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


@pytest.mark.parametrize("kind", ["GRPO", "RLOO", "OnlineDPO"])
def test_the_stock_trainer_scores_left_padded_rows_wrong(kind, sampled, record_property):
    difference = furthest(make(STOCK[kind]), sampled)
    record_property("largest difference, nats", difference)
    assert difference > WRONG


@EACH
def test_the_workbench_scores_left_padded_rows_as_they_were_sampled(kind, sampled, record_property):
    difference = furthest(make(OURS[kind]), sampled)
    record_property("largest difference, nats", difference)
    assert difference < EXACT


def test_stock_ppo_passes_position_ids_itself_and_is_right(sampled):
    assert furthest(make(StockPPO), sampled) < EXACT


@EACH
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

    def watch(part, module, args, kwargs):
        mask, past = kwargs.get("attention_mask"), kwargs.get("past_key_values")
        if past is None and isinstance(mask, torch.Tensor) and mask.dim() == 2:  # generation keeps a cache
            calls.append((part, kwargs.get("position_ids"), mask.clone()))

    parts = {"policy": getattr(trainer, "policy_model", trainer.model), "reference": trainer.ref_model}
    parts["value"] = getattr(trainer, "value_model", None)
    for part, model in parts.items():
        if model is not None:
            hook = functools.partial(watch, part)
            backbone(model).register_forward_pre_hook(hook, with_kwargs=True)  # behind the trainer's own hook
    trainer.train()
    return calls


def right(ids, mask) -> bool:
    return ids is not None and torch.equal(ids[mask.bool()], position_ids(mask)[mask.bool()])


@EACH
def test_every_forward_pass_of_a_training_step_gets_each_texts_own_positions(kind):
    calls = trained_positions(make(OURS[kind]))
    expected = {"policy", "reference"} | ({"value"} if kind == "PPO" else set())
    assert {part for part, _, _ in calls} == expected
    assert any((mask[:, 0] == 0).any() for _, _, mask in calls)  # some rows were left-padded
    assert all(right(ids, mask) for _, ids, mask in calls)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO", "OnlineDPO"])
def test_the_stock_trainers_passes_get_none(kind):
    calls = trained_positions(make(STOCK[kind]))
    assert {part for part, _, _ in calls} == {"policy", "reference"}
    assert all(ids is None for _, ids, _ in calls)


def test_a_resumed_run_scores_with_position_ids_and_repeats_the_whole_one(tmp_path):
    fields = {"disable_dropout": True, "save_steps": 2, "max_steps": 4}
    logs = {}
    for name, checkpoint in (("whole", None), ("resumed", tmp_path / "whole" / "checkpoint-2")):
        args = grpo_config(RECIPE, tmp_path / name, **fields)
        trainer = GRPOTrainer(resolve_model("starter-gpt2"), length_reward(), args, train_dataset=prompts())
        monitor_padding(trainer, every=1)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert fills_position_ids(trainer.model) and fills_position_ids(trainer.ref_model)
        logs[name] = [{k: v for k, v in line.items() if k != "step_time"} for line in trainer.state.log_history[:-1]]
    assert [line["step"] for line in logs["resumed"]] == [1, 2, 3, 4]
    assert logs["resumed"] == logs["whole"]
    assert all(line["padding/max_difference"] < EXACT for line in logs["whole"])
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "whole" / "checkpoint-4")
    assert not fills_position_ids(saved)  # part of the trainer, not of what is saved


def test_with_rotary_positions_a_run_equals_the_stock_trainers_to_rounding():
    logs = []
    for cls in (trl.GRPOTrainer, GRPOTrainer):
        recipe = make_recipe("starter", max_steps=4, per_device_train_batch_size=16, max_completion_length=16, seed=3)
        args = grpo_config(recipe, tempfile.mkdtemp(), save_strategy="no")
        trainer = cls(resolve_model("starter"), length_reward(), args, train_dataset=load_prompts("starter"))
        trainer.train()
        logs.append(trainer.state.log_history[:-1])
    for stock, ours in zip(*logs, strict=True):
        stock.pop("step_time")
        assert {name: ours[name] for name in stock} == pytest.approx(stock, rel=EXACT, abs=1e-7)
        assert stock["grad_norm"] > 0


def test_a_model_that_is_hooked_already_is_refused_where_the_original_is_asked_for():
    model = load()
    with_position_ids(model)
    with pytest.raises(ParameterError, match="explicit_positions=False: with_position_ids is at work"):
        make(GRPOTrainer, model=model, explicit_positions=False)
    make(GRPOTrainer, model=model)
    assert len(backbone(model)._forward_pre_hooks) == 1  # not installed twice


# --- monitoring ----------------------------------------------------------------------------------------------------

PADDING = ["padding/max_difference", "padding/mean_difference"]


@pytest.mark.parametrize("explicit", [True, False])
def test_padding_consistency_lands_in_the_runs_metrics_every_n_steps(explicit, tmp_path):
    recipe = make_recipe(**RECIPE.__dict__ | {"max_steps": 5})
    options = {"explicit_positions": explicit, "monitor_every": 2, "disable_dropout": True}
    train_grpo(recipe, reward_funcs=length_reward(), out_dir=tmp_path, **options)
    metrics = Run(tmp_path).metrics
    measured = metrics.dropna(subset=PADDING)
    assert measured["step"].tolist() == [1, 2, 4]
    largest = measured["padding/max_difference"]
    assert (largest < EXACT).all() if explicit else (largest > WRONG).all()
    assert (measured["padding/mean_difference"] <= largest).all()
    assert metrics["reward"].notna().all()


def test_ppo_is_monitored_too(tmp_path):
    recipe = make_recipe(**RECIPE.__dict__ | {"max_steps": 2})
    train_ppo(recipe, out_dir=tmp_path, monitor_every=1)
    assert (Run(tmp_path).metrics["padding/max_difference"] < EXACT).all()


def test_the_monitor_moves_no_random_number_and_no_dropout():
    trainer = make(GRPOTrainer)
    monitor = monitor_padding(trainer)
    trainer.model.train()
    state = torch.get_rng_state()
    assert monitor.measure() == monitor.measure()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in trainer.model.modules())
    assert trainer.callback_handler.callbacks[0] is monitor  # whatever writes logs stands behind it


@pytest.mark.parametrize(
    "probe, every, message",
    [
        (([[5, 6], [5, 6, 7]], [[8], [9]]), 0, "every=0"),
        (([[5, 6], [5, 6]], [[8], [9]]), 10, r"prompts with \[2, 2\] tokens.*unequal length"),
        (([[5, 6], [5]], [[8]]), 10, "a completion for each prompt"),
    ],
)
def test_a_probe_that_cannot_show_padding_is_refused(probe, every, message):
    with pytest.raises(ParameterError, match=message):
        PaddingMonitor(None, *probe, every=every)


def test_another_trainer_is_refused_by_name():
    class Other:
        processing_class = AutoTokenizer.from_pretrained(resolve_model("starter"))
        model = torch.nn.Linear(1, 1)
        accelerator = type("", (), {"device": "cpu"})

    with pytest.raises(ParameterError, match="Other: expected TRL's GRPO"):
        trainer_logprobs(Other(), [[5]], [[6]])


# --- on a real vLLM engine -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_vllm():
    """What `mismatch_engine.py` measured in a process of its own."""
    return result_of("mismatch_engine.py")


def test_of_a_vllm_rollout_the_padding_part_is_large_and_the_engines_is_rounding(on_vllm, record_property):
    parts = on_vllm["rollout"]
    for name, value in parts.items():
        record_property(name, value)
    assert parts["padding"] > WRONG
    assert parts["sampler"] < 1e-4
    assert max(parts[name] for name in ("batch shape", "dtype", "temperature", "top-k", "top-p")) < EXACT
    assert on_vllm["largest"] == "padding" and "Score with position ids" in on_vllm["verdict"]


def test_with_position_ids_only_rounding_is_left_of_it(on_vllm):
    assert on_vllm["explicit"] < 1e-4


def test_ratios_of_grpo_on_vllm_are_logged_raw_and_are_one_with_position_ids_only(on_vllm):
    implicit, explicit = on_vllm["live, implicit"], on_vllm["live, explicit"]
    assert len(implicit) == len(explicit) == 2  # steps
    for line in explicit:
        assert line["mismatch/ratio_1%"] == pytest.approx(1, abs=1e-4)
        assert line["mismatch/ratio_99%"] == pytest.approx(1, abs=1e-4)
        assert line["mismatch/ratios_outside"] == 0 and line["mismatch/ess_sequences"] > 0.999
        assert line["sampling/sampling_logp_difference/max"] < 1e-4  # in the second step of moved weights
    for line in implicit:
        assert line["mismatch/ratio_1%"] < 0.8 and line["mismatch/ratio_99%"] > 1.2
        assert line["mismatch/ratios_outside"] > 0.1 and line["mismatch/ess_sequences"] < 0.95
        assert line["sampling/sampling_logp_difference/max"] > WRONG
