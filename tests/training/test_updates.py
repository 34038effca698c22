"""What an update is against the rounding of the weights, and the warning before training."""

import warnings

import pytest
import torch
import trl
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward
from workbench.training.updates import _lost_updates, count_moved, movable_share, sample_of
from workbench.watch.attach import attach_watch

LORA = {"peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")}


def test_a_sample_lies_evenly_over_all_parameters_without_a_copy():
    first, second, third = torch.arange(7.0), torch.arange(10.0).reshape(2, 5), torch.zeros(0)
    views = sample_of([first, second, third], most=5)
    assert [view.tolist() for view in views] == [[0, 3, 6], [2, 5, 8], []]
    first[3] = 9.0
    assert views[0][1] == 9.0


def test_elements_without_a_gradient_do_not_count():
    old, new = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.5, 3.0])
    assert count_moved([old], [new], [torch.tensor([0.0, 1.0, 1.0])]).tolist() == [2, 1]


@pytest.mark.parametrize("rate, expected", [(1e-6, 0.0), (2e-5, 0.5), (1e-3, 1.0)])
def test_a_step_moves_what_it_would_in_the_dtype(rate, expected):
    weights = torch.tensor([0.01, 0.012, 0.003, 0.002]).bfloat16()  # half a spacing is 3.1e-5 and 7.6e-6 or below
    stepped = torch.stack([(weights.double() + sign * rate).bfloat16() != weights for sign in (1, -1)])
    assert movable_share([weights], rate) == stepped.double().mean() == expected


def test_each_tensor_is_rounded_in_its_own_dtype():
    coarse, fine = torch.full((4,), 0.5).bfloat16(), torch.full((4,), 0.5)
    assert movable_share([coarse, fine], 1e-5) == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["is_deepspeed_enabled", "is_fsdp_enabled"])
def test_where_weights_are_sharded_nothing_is_told(kind, tmp_path):
    stock = trainer(tmp_path, torch.bfloat16, learning_rate=1e-6)
    setattr(stock, kind, True)  # both train copies in fp32
    assert list(_lost_updates(stock)) == []


@pytest.mark.slow
def test_adapters_of_a_quantised_model_get_other_advice(tmp_path):
    stock = trainer(tmp_path, torch.bfloat16, learning_rate=1e-6)
    assert "Load the model with dtype=torch.float32" in "".join(_lost_updates(stock))
    stock.model.is_loaded_in_4bit = True  # TRL then makes the adapters bfloat16, whatever dtype is asked
    said = "".join(_lost_updates(stock))
    assert "train LoRA on weights that are not quantised" in said and "float32" not in said


def trainer(folder, dtype, cls=trl.GRPOTrainer, more=None, **fields):
    recipe = make_recipe("starter", max_steps=1, per_device_train_batch_size=8, max_completion_length=4)
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=dtype)
    args = grpo_config(recipe, folder, model_init_kwargs=None, save_strategy="no", **fields)
    return cls(model, length_reward(), args, train_dataset=load_prompts("starter").select(range(8)), **(more or {}))


def said_of(caught):
    return [str(one.message) for one in caught if "by rounding" in str(one.message)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, fields, more, told",
    [
        (torch.bfloat16, {"learning_rate": 1e-6}, {}, True),
        (torch.float32, {"learning_rate": 1e-6}, {}, False),
        (torch.bfloat16, {"learning_rate": 1e-2}, {}, False),
        (torch.bfloat16, {"learning_rate": 1e-6}, LORA, False),
        (torch.bfloat16, {"learning_rate": 1e-6, "optim": "sgd"}, {}, False),
    ],
)
def test_an_update_that_bf16_would_lose_is_told_before(dtype, fields, more, told, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = trainer(tmp_path, dtype, GRPOTrainer, more, **fields)
    assert len(said_of(caught)) == told
    assert not told or "bfloat16: at learning_rate=1e-06 a step changes about 0.0" in said_of(caught)[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attach_watch(ours)
    assert not said_of(caught)  # ours has said it


@pytest.mark.slow
def test_of_an_optimizer_of_ones_own_nothing_is_told(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.bfloat16)
    more = {"optimizers": (torch.optim.SGD(model.parameters(), lr=1.0), None)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(tmp_path, torch.bfloat16, GRPOTrainer, more, learning_rate=1e-6)
    assert not said_of(caught)


@pytest.mark.slow
def test_the_watch_of_a_stock_trainer_tells_it_at_its_line(tmp_path):
    stock = trainer(tmp_path, torch.bfloat16, learning_rate=1e-6)
    with pytest.warns(UserWarning, match="by rounding") as caught:
        attach_watch(stock)
    assert [one.filename for one in caught if "by rounding" in str(one.message)] == [__file__]
