"""`check_step` on healthy trainers that a simple reference does not know, and on subclasses that mean to differ."""

import functools

import pytest
import torch
import trl
from conftest import daily
from peft import HRAConfig, LoraConfig, VeraConfig
from step_cases import ShiftedRewards, TwiceTheLoss, length, make, vowels
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    TrainerCallback,
)

from workbench import attach_watch
from workbench.errors import ParameterError
from workbench.experiments.recipes import resolve_model
from workbench.replay.file import load_step, replay
from workbench.replay.report import STAGES
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow


def names_of(report, *verdicts):
    return [stage.name for stage in report.stages if stage.verdict in verdicts]


def mixture(folder, cls=trl.GRPOTrainer, **fields):
    """A trainer of a tiny mixture of experts, whose router has an auxiliary loss."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter"))
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.5,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    path = folder / "model"
    Qwen3MoeForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return make(folder, cls, AutoModelForCausalLM.from_pretrained(path), **fields)


ROUTED = [{}, {"gradient_accumulation_steps": 2}, {"cls": trl.RLOOTrainer, "gradient_accumulation_steps": 2}]


@pytest.mark.parametrize(
    "options", daily(ROUTED, ROUTED[1]), ids=["GRPO", "GRPO, 2 micro-batches", "RLOO, 2 micro-batches"]
)
def test_the_loss_of_a_router_is_no_difference(options, tmp_path):
    report = check_step(mixture(tmp_path, **options))
    assert names_of(report, "different", "cannot tell") == [], report
    assert "auxiliary loss of the router" in report["loss"].cause
    assert report["gradient"].verdict == "same"


class TwiceTheRouter(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        self.router_aux_loss_coef = 1.0
        return super()._compute_loss(model, inputs)


@pytest.mark.parametrize("cls", daily([TwiceTheLoss, TwiceTheRouter], TwiceTheRouter))
def test_a_wrong_loss_next_to_a_router_is_found(cls, tmp_path):
    report = check_step(mixture(tmp_path, cls))
    assert names_of(report, "different") == ["loss", "gradient"], report
    assert "times as much" not in report["loss"].cause


class HalvedAdvantage(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs | {"advantages": inputs["advantages"] / 2})


def test_a_slope_next_to_a_router_is_compared(tmp_path):
    assert check_step(mixture(tmp_path, HalvedAdvantage)).first.name == "loss"


def test_a_recorded_step_keeps_the_loss_of_a_router(tmp_path):
    trainer = mixture(tmp_path / "out", max_steps=1)
    attach_watch(trainer, tmp_path / "record", record_steps=[1])
    trainer.train()
    step = load_step(next((tmp_path / "record" / "steps").iterdir()))
    assert replay(step).first is None and step.step.router_losses[0] > 0


def with_lora_dropout(folder, cls=trl.GRPOTrainer):
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.3)
    return make(folder, cls, learning_rate=1e-3, more={"peft_config": lora})


def test_the_dropout_of_an_adapter_is_no_difference(tmp_path):
    trainer = with_lora_dropout(tmp_path)
    state, modes = torch.random.get_rng_state(), [module.training for module in trainer.model.modules()]
    report = check_step(trainer)
    assert names_of(report, "different", "cannot tell") == [], report
    assert report["gradient"].cause.startswith("compared without dropout (lora_dropout=0.3): cosine 1.0")
    assert torch.equal(state, torch.random.get_rng_state())
    assert modes == [module.training for module in trainer.model.modules()]


@pytest.mark.parametrize("cls", daily([trl.GRPOTrainer, trl.RLOOTrainer], trl.RLOOTrainer))
def test_once_an_adapter_moves_its_dropout_is_named(tmp_path, cls):
    trainer = with_lora_dropout(tmp_path / "out", cls)
    watch = attach_watch(trainer, tmp_path / "record", check_every=1)
    trainer.args.max_steps = 2
    trainer.train()
    report = watch.reports[2]
    found = {"log-probs", "ratios"} if cls is trl.RLOOTrainer else {"log-probs"}
    assert found <= {*names_of(report, "different")}, report
    assert all("the model has dropout" in report[name].cause for name in found)


class TurnsGradients(TrainerCallback):
    """Turns each gradient round from the third update on."""

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        for parameter in model.parameters() if state.global_step >= 2 else ():
            if parameter.grad is not None:
                parameter.grad.neg_()


def test_a_healthy_difference_hides_no_later_one(tmp_path, capsys):
    trainer = with_lora_dropout(tmp_path / "out")
    trainer.add_callback(TurnsGradients())
    watch = attach_watch(trainer, tmp_path / "record", check_every=1)
    trainer.args.max_steps = 3
    trainer.train()
    lines = [line for line in capsys.readouterr().err.splitlines() if "step-check: " in line]
    said = [line.partition("step-check: ")[2].partition(" is ")[0] for line in lines]
    assert said == ["log-probs", "update"], lines
    assert "step 3" in lines[1] and watch.reports[3].first.name == "log-probs"


def tiny_qwen():
    """One layer of random weights, next to which gradients are small."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter"), padding_side="left")
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(**ids, **sizes, num_key_value_heads=1, tie_word_embeddings=True))
    return model, tokenizer


ADAPTERS = {"VeRA": VeraConfig, "HRA": HRAConfig}


@pytest.mark.parametrize("name", daily(ADAPTERS, "VeRA", "HRA"))
def test_a_small_gradient_moves_no_weight_far(tmp_path, name):
    model, tokenizer = tiny_qwen()
    adapter = ADAPTERS[name](task_type="CAUSAL_LM", r=4, target_modules=["q_proj"])
    more = {"peft_config": adapter, "processing_class": tokenizer}
    trainer = make(tmp_path / "out", model=model, learning_rate=1e-3, max_steps=3, more=more)
    watch = attach_watch(trainer, tmp_path / "record", check_every=1)
    trainer.train()
    assert [watch.reports[n]["gradient"].verdict != "different" for n in (1, 2, 3)] == [True] * 3, watch.reports


def test_an_autocast_of_the_user_bends_no_slope(tmp_path):
    model, tokenizer = tiny_qwen()
    with torch.autocast("cpu", torch.bfloat16):
        report = check_step(make(tmp_path, model=model, more={"processing_class": tokenizer}))
    assert "other than its gradient says" not in report["gradient"].cause, report


class HalvedGradient(trl.GRPOTrainer):
    def training_step(self, model, *args):
        loss = super().training_step(model, *args)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= 2
        return loss


def test_a_wrong_gradient_under_dropout_is_found(tmp_path):
    first = check_step(with_lora_dropout(tmp_path, HalvedGradient)).first
    assert first.name == "gradient" and "norm 0.5 times" in first.cause, first


def test_a_head_in_fp32_on_a_bf16_model_is_no_difference(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.bfloat16)
    assert model.config.tie_word_embeddings
    report = check_step(make(tmp_path, model=model, cast_lm_head_to_fp32=True, learning_rate=1e-3))
    assert names_of(report, "different", "cannot tell") == [], report
    assert report["log-probs"].cause.endswith("bfloat16")


class ShorterIsBetter(trl.GRPOTrainer):
    """A subclass that takes a penalty for length off all rewards, as a user may mean it."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        penalties = [0.1 * len(text) ** 0.5 for text in completions]
        return rewards - torch.tensor(penalties, device=rewards.device)[:, None]


def test_a_stage_that_is_meant_to_differ_is_not_the_first(tmp_path):
    trainer = make(tmp_path, ShorterIsBetter)
    assert check_step(trainer).first.name == "rewards"
    report = check_step(trainer, meant=("rewards",))
    assert report.first is None and report["rewards"].verdict == "meant", report
    assert names_of(report, "different", "cannot tell") == [] and "another reward" in report["rewards"].cause
    assert "#0550ae" in report._repr_html_()
    assert {stage.name for stage in report.stages} <= {*STAGES}


def test_what_is_meant_hides_no_other_difference(tmp_path):
    class Both(ShorterIsBetter, TwiceTheLoss):
        pass

    report = check_step(make(tmp_path, Both), meant=["rewards", "advantages"])
    assert report.first.name == "loss" and report["advantages"].verdict == "same"


def test_a_name_that_is_no_stage_is_refused(tmp_path):
    trainer = make(tmp_path)
    listed = r"'reward' is no stage; did you mean 'rewards'.*the stages are sampling, ends"
    with pytest.raises(ParameterError, match=listed):
        check_step(trainer, meant=("reward",))
    with pytest.raises(ParameterError, match="'gradients' is no stage"):
        attach_watch(trainer, tmp_path / "record", check_every=1, meant=("gradients",))


def test_a_watch_says_nothing_of_what_is_meant(tmp_path, capsys):
    for meant in ((), ("rewards",)):
        trainer = make(tmp_path / "out", ShorterIsBetter, funcs=[length, vowels], max_steps=1)
        attach_watch(trainer, tmp_path / "_".join(["record", *meant]), check_every=1, meant=meant)
        trainer.train()
        assert ("step-check: rewards is different" in capsys.readouterr().err) == (not meant)


def test_shifted_rewards_are_still_found_where_others_are_meant(tmp_path):
    report = check_step(make(tmp_path, ShiftedRewards), meant=("loss",))
    assert report.first.name == "rewards"


class PadsInside(trl.GRPOTrainer):
    """Half of the rows begin with six pads, as a model samples them whose pad is a common token."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        pads = [self.processing_class.pad_token_id] * 6
        return [pads + row[6:] if n % 4 < 2 else row for n, row in enumerate(ids)], *rest


@pytest.mark.parametrize("seed", daily([0, 1], 0))
def test_a_pad_inside_completions_has_a_right_gradient(seed, tmp_path):
    report = check_step(make(tmp_path, PadsInside, seed=seed))
    assert report["gradient"].verdict == "same" and "the loss moves as it says" in report["gradient"].cause, report


def seven_tenths(completions, **_):
    return [0.7] * len(completions)


class Scorer:
    __name__ = "scorer"

    async def __call__(self, completions, scale=1.0, **_):
        return [scale * len(text) for text in completions]


IN_HALVES = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "per_device_train_batch_size": 4}
DORA = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", use_dora=True, lora_dropout=0.1)
# Settings that once were called different, or ended with an error.
ONCE_WRONG = {
    "equal rewards in groups of eight": {"funcs": [seven_tenths], "num_generations": 8},
    "an asynchronous object in a partial": {"funcs": [functools.partial(Scorer(), scale=0.1), length]},
    "RLOO, two generations an update": {"cls": trl.RLOOTrainer, "beta": 0.1} | IN_HALVES,
    "DoRA": {
        "learning_rate": 1e-3,
        "gradient_accumulation_steps": 3,
        "per_device_train_batch_size": 4,
        "more": {"peft_config": DORA},
    },
}


@pytest.mark.parametrize("name", daily(ONCE_WRONG, *ONCE_WRONG))
def test_what_once_was_wrong_is_healthy(name, tmp_path):
    report = check_step(make(tmp_path, **ONCE_WRONG[name]))
    assert names_of(report, "different") == [], report
    if name == "equal rewards in groups of eight":
        assert (
            report["advantages"].verdict == "rounding" and "8 rows that should have none" in report["advantages"].cause
        )
    if name == "DoRA":
        assert "the loss moves as it says" in report["gradient"].cause, report
