"""Configurations that users run, on the real TRL with tiny models, stock beside ours.

What each shows goes to `docs/evidence/what_is_tested.md`, which test_what_is_tested.py writes.
"""

import re

import pytest
import trl
from configuration_runs import (
    BATCH,
    LIMIT,
    STEPS,
    STOP,
    TELL,
    assert_equal_runs,
    assert_stops_hold,
    reward,
    tokenizer,
    watched,
)
from configuration_table import note, shows, shows_each, trl_has_none
from peft import LoraConfig
from ppo_parts import train_ppo
from trainers import OURS
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from workbench.errors import ParameterError
from workbench.experiments.recipes import load_prompts, make_recipe
from workbench.experiments.train import is_finished, train_recipe, training_record
from workbench.generation.stops import StopSpec
from workbench.runs.run import Run

pytestmark = pytest.mark.slow

ALL, POLICY = ("GRPO", "RLOO", "OnlineDPO", "PPO"), ("GRPO", "RLOO")
SETTINGS = {  # configuration -> trainers, fields of their configs, their own arguments
    "LoRA": (ALL, {}, lambda: {"peft_config": LoraConfig(r=4, task_type="CAUSAL_LM")}),
    "checkpointing": (ALL, {"gradient_checkpointing": True}, dict),
    "compile": (ALL, {"torch_compile": True, "torch_compile_backend": "eager"}, dict),
    "accumulation": (ALL, {"gradient_accumulation_steps": 2}, dict),
    "accumulation < generation": (POLICY, {"gradient_accumulation_steps": 1, "steps_per_generation": 2}, dict),
    "accumulation > generation": (POLICY, {"gradient_accumulation_steps": 4, "steps_per_generation": 2}, dict),
    "iterations": (POLICY, {"num_iterations": 2, "mask_truncated_completions": True}, dict),
}
ROWS = {"accumulation": [16, 16], "accumulation < generation": [16], "accumulation > generation": [32, 32]}
ROWS |= {"iterations": [8]}  # recorded in each step that generates; else a batch a step
OF_PPO = {"accumulation": {"total_episodes": STEPS * 4 * BATCH}}  # which counts rows where the others count steps

trl_has_none("accumulation < generation", "steps_per_generation", "OnlineDPO", "PPO")
trl_has_none("accumulation > generation", "steps_per_generation", "OnlineDPO", "PPO")
trl_has_none("iterations", "num_iterations", "OnlineDPO")
trl_has_none("loss types", "loss_type", "RLOO", "PPO")
trl_has_none("eval groups", "num_generations_eval", "OnlineDPO", "PPO")


def setting(configuration: str, kind: str) -> tuple[dict, dict]:
    _, fields, own = SETTINGS[configuration]
    return fields | (OF_PPO.get(configuration, {}) if kind == "PPO" else {}), own()


# --- settings that change nothing about stops ------------------------------------------------------------------------


@shows_each(SETTINGS)
def test_without_custom_stops_it_trains_as_stock_does(configuration, kind):
    fields, own = setting(configuration, kind)
    assert_equal_runs(kind, fields, **own)


@shows_each(SETTINGS)
def test_with_a_custom_stop_rows_end_there_count_as_stopped_and_are_recorded_once(configuration, kind, tmp_path):
    fields, own = setting(configuration, kind)
    assert_stops_hold(kind, tmp_path, fields, **own)
    sizes = Run(tmp_path).completions.groupby("step").size().tolist()
    expected = ROWS.get(configuration, [BATCH] * STEPS)
    assert sizes == ([2 * n for n in expected] if kind == "PPO" else expected)


@shows("LoRA")
def test_only_the_adapters_learn(kind, tmp_path):
    _, own = setting("LoRA", kind)
    got = watched("ours", kind, **own)
    learned = {name for name, value in got.weights().items() if not value.equal(got.before[name])}
    assert any("lora_B" in name for name in learned)
    of_value = ("value_model", "critic_backbone")  # PPO trains it whole
    assert {name for name in learned if "lora_" not in name and not name.startswith(of_value)} == set()


@shows("LoRA")
def test_a_recipe_with_lora_is_one_training_of_its_folder_and_with_another_rank_another(kind, tmp_path):
    sizes = {"num_generations": 2, "per_device_train_batch_size": BATCH, "max_completion_length": LIMIT}
    recipe = make_recipe("search", dataset="search", max_steps=1, **sizes)
    rewards = "random weights" if kind == "PPO" else reward
    name = OURS[kind].__name__
    options = {"peft_config": LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])}
    trained = train_recipe(OURS[kind], recipe, record_dir=tmp_path, reward_funcs=rewards, **options)
    assert any("lora_B" in weight for weight in trained.model.state_dict())
    finished = []
    for rank in (4, 8):
        config = LoraConfig(r=rank, task_type="CAUSAL_LM", target_modules=["v_proj", "q_proj"])
        record = training_record(name, recipe, reward_funcs=rewards, peft_config=config)
        finished.append(is_finished(tmp_path, record))
    assert finished == [True, False]


@pytest.mark.parametrize("who", ["stock", "ours"])
@shows("checkpointing")
def test_layers_are_computed_again_in_the_backward_pass_which_trl_s_ppo_leaves_out(kind, who, monkeypatch):
    calls = []
    forward = Qwen2DecoderLayer.forward
    monkeypatch.setattr(Qwen2DecoderLayer, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    counts = []
    for on in (False, True):
        calls.clear()
        watched(who, kind, {"gradient_checkpointing": on})
        counts.append(len(calls))
    assert (counts[1] > counts[0]) == (kind != "PPO")


@pytest.mark.parametrize("who", ["stock", "ours"])
@shows("compile")
def test_the_trained_model_is_compiled_which_trl_s_ppo_leaves_out(kind, who):
    fields, _ = setting("compile", kind)
    trainer = watched(who, kind, fields | {"torch_compile_backend": "eager"}).trainer
    assert hasattr(trainer.model_wrapped if kind != "PPO" else trainer.model, "_orig_mod") == (kind != "PPO")


note("checkpointing", "TRL's PPO does nothing with it", "PPO")
note("compile", "TRL's PPO does nothing with it", "PPO")

# --- losses ----------------------------------------------------------------------------------------------------------

SUPPORTED = re.search("Supported values are ([^.]*)", trl.GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"])
LOSSES = re.findall(r"'(\w+)'", SUPPORTED.group(1))


@pytest.mark.parametrize("loss", LOSSES)
@shows("loss types", "GRPO")
def test_grpo_trains_with_every_loss_as_stock_does_also_off_policy(kind, loss, tmp_path):
    level = {"importance_sampling_level": "sequence"} if loss == "luspo" else {}
    fields = {"loss_type": loss, "num_iterations": 2, **level}
    assert_equal_runs(kind, fields, placed=False)
    assert_stops_hold(kind, tmp_path, fields)


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
@shows("loss types", "OnlineDPO")
def test_online_dpo_trains_with_both_losses_as_stock_does(kind, loss, tmp_path):
    assert_equal_runs(kind, {"loss_type": loss})
    assert_stops_hold(kind, tmp_path, {"loss_type": loss})


@shows("iterations", "PPO")
def test_ppo_trains_for_several_epochs_as_stock_does(kind, tmp_path):
    assert_equal_runs(kind, {"num_ppo_epochs": 2})
    assert_stops_hold(kind, tmp_path, {"num_ppo_epochs": 2})


# --- evaluation and rewards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_eval", [1, 2])
@shows("eval groups", *POLICY)
def test_an_evaluation_in_groups_of_another_size_logs_what_stock_logs_and_is_not_recorded(kind, of_eval, tmp_path):
    fields = {"num_generations_eval": of_eval, "per_device_eval_batch_size": 8, "eval_strategy": "steps"}
    fields |= {"eval_steps": 1}
    data = load_prompts("search").select(range(0, 120, 30))
    stock, _ = assert_equal_runs(kind, fields, eval_dataset=data)
    assert sum("eval_reward" in line for line in stock.log) == STEPS
    stops = {"stops": StopSpec(stop=(STOP,)), "record_dir": tmp_path}
    got = watched("ours", kind, fields | TELL[kind], eval_dataset=data, **stops)
    rows = Run(tmp_path).completions
    assert rows.groupby("step").size().tolist() == [BATCH] * STEPS
    assert len(got.texts) == STEPS * (BATCH + 4 * of_eval)
    evaluated = [line for line in got.log if "eval_reward" in line]
    judged = (len(got.texts) - STEPS * BATCH) // STEPS
    for step, line in enumerate(evaluated):
        start = step * (BATCH + judged) + BATCH
        ids = got.ids[start : start + judged]
        cut = [not (STOP in tokenizer().decode(row) or row[-1] == tokenizer().eos_token_id) for row in ids]
        assert line["eval_completions/clipped_ratio"] == pytest.approx(sum(cut) / len(cut))


def sometimes(completions, **_):
    return [None if n % 4 in (0, 1) else 1.0 for n in range(len(completions))]


def seldom(completions, **_):
    return [None if n % 4 in (0, 2) else score for n, score in enumerate(reward(completions))]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
@shows("None", *POLICY)
def test_rewards_of_none_count_as_in_stock_and_are_recorded_as_no_number(kind, aggregation, tmp_path):
    fields = {"reward_weights": [0.5, 2.0]}
    if kind == "GRPO":
        fields["multi_objective_aggregation"] = aggregation
    assert_equal_runs(kind, fields, rewards=[seldom, sometimes])
    got = watched("ours", kind, fields, rewards=[seldom, sometimes], record_dir=tmp_path)
    rows = Run(tmp_path).completions
    place = [n % 4 for n in range(len(rows))]
    assert rows["seldom"].isna().tolist() == [at in (0, 2) for at in place]
    assert rows["sometimes"].isna().tolist() == [at in (0, 1) for at in place]
    known = [n for n, at in enumerate(place) if at != 0]
    filled = 0.5 * rows["seldom"].fillna(0.0) + 2.0 * rows["sometimes"].fillna(0.0)
    assert rows["reward"][known].tolist() == pytest.approx(filled[known].tolist())
    assert rows["reward"].isna().tolist() == [at == 0 for at in place]  # nobody could score it
    assert (rows["advantage"][rows["reward"].isna()] == 0).all()
    assert got.log[0]["reward"] == pytest.approx(rows[rows["step"] == 1]["reward"].mean())


@shows("None", "PPO")
def test_ppo_counts_none_as_nothing_and_refuses_a_row_that_no_function_scored(kind, tmp_path):
    def half(completions, **_):
        return [None if n % 2 else 3.0 for n in range(len(completions))]

    recipe = make_recipe("search", dataset="search", max_steps=STEPS, per_device_train_batch_size=BATCH)
    train_ppo(recipe, reward_funcs=[half, reward], reward_weights=[1.0, 0.5], record_dir=tmp_path / "half")
    rows = Run(tmp_path / "half").completions
    assert rows["half"].isna().tolist() == [n % 2 == 1 for n in range(len(rows))]
    expected = rows["half"].fillna(0.0) + 0.5 * rows["reward (function)"]
    assert rows["reward"].tolist() == pytest.approx(expected.tolist())
    with pytest.raises(ParameterError, match="half returned None; at least one reward function has to score it"):
        train_ppo(recipe, reward_funcs=half, record_dir=tmp_path / "nobody")


@shows("None", *POLICY)
def test_a_function_that_is_called_like_the_sum_does_not_take_its_column(kind, tmp_path):
    watched("ours", kind, {"reward_weights": [2.0]}, record_dir=tmp_path)
    rows = Run(tmp_path).completions
    assert rows["reward"].tolist() == pytest.approx((2.0 * rows["reward (function)"]).tolist())


@shows("None", "OnlineDPO")
def test_online_dpo_counts_none_as_nothing_as_stock_does(kind, tmp_path):
    assert_equal_runs(kind, rewards=[seldom, sometimes])
    got = watched("ours", kind, rewards=[seldom, sometimes], record_dir=tmp_path)
    scores = [score or 0.0 for score in got.scores]
    ones = [one or 0.0 for one in sometimes(range(BATCH))] * STEPS
    both = [a + b for a, b in zip(scores, ones, strict=True)]
    assert Run(tmp_path).completions["reward"].tolist() == pytest.approx(both)
