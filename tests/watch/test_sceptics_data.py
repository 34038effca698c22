"""What a sceptic put past the data, rewards and later updates of a step, and healthy settings that were named."""

import random

import numpy as np
import pytest
import torch
import trl
from configuration_models import TOPICS, TWO_TURNS, Library, in_library
from configuration_runs import build
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from step_cases import PROMPTS, length, make, with_stops
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.utils import RepeatSampler

from workbench import check_step
from workbench.experiments.recipes import resolve_model
from workbench.watch.attach import StepCheck
from workbench.watch.finite_difference import pad_places_of

pytestmark = pytest.mark.slow


def near(completions, tolerance, **_):
    return [
        len(text) / 10 + (0.0 if limit != limit else limit) for text, limit in zip(completions, tolerance, strict=True)
    ]


def test_a_column_of_nan_is_no_other_task(tmp_path):
    trainer = make(tmp_path, funcs=[near])
    trainer.train_dataset = Dataset.from_dict(
        {"prompt": PROMPTS, "tolerance": [float("nan"), 0.1] * (len(PROMPTS) // 2)}
    )
    rewards = check_step(trainer)["rewards"]
    assert rewards.verdict == "same", rewards


def test_a_reward_of_nan_is_asked_about(tmp_path):
    def mean_of_numbers(completions, **_):
        return [1.0 if row % 4 else float(np.float32("nan")) for row in range(len(completions))]

    def none(completions, **_):
        return [1.0 if row % 4 else None for row in range(len(completions))]

    rewards = check_step(make(tmp_path, funcs=[length, mean_of_numbers]))["rewards"]
    assert rewards.verdict == "cannot tell" and "mean_of_numbers returns NaN for 2 of 8 rows" in rewards.cause, rewards
    assert check_step(make(tmp_path, funcs=[length, none]))["rewards"].verdict == "same"


class Curriculum(trl.GRPOTrainer):
    """A sampler of the data in their order, which forgets that each batch of prompts is taken several times."""

    def _get_train_sampler(self, dataset=None):
        size = self.args.generation_batch_size // self.num_generations
        return RepeatSampler(self.train_dataset, self.num_generations, size, repeat_count=1, shuffle=False)


@pytest.mark.parametrize("cls, verdict", [(Curriculum, "different"), (trl.GRPOTrainer, "same")])
def test_prompts_that_nobody_samples_are_named(cls, verdict, tmp_path):
    trainer = make(tmp_path, cls, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    trainer.train_dataset = Dataset.from_dict({"prompt": [f"{prompt} {n}" for n in range(4) for prompt in PROMPTS]})
    batches = check_step(trainer)["batches"]
    assert batches.verdict == verdict and ("nothing is sampled from" in batches.cause) is (verdict == "different"), (
        batches
    )


class SamplesElsewhere(trl.GRPOTrainer):
    """Sampling with a copy of the policy that nobody keeps up to date."""

    def _generate_single_turn(self, *args, **kwargs):
        own, self.model_wrapped = self.model_wrapped, AutoModelForCausalLM.from_pretrained(resolve_model("starter"))
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            self.model_wrapped = own


def test_a_sampler_that_is_not_the_policy_is_asked_about(tmp_path):
    sampling = check_step(make(tmp_path, SamplesElsewhere))["sampling"]
    assert sampling.verdict == "cannot tell" and "the policy's own generate is not called" in sampling.cause, sampling


class OfItsOwn(Library):
    def reset(self, **_):
        self.topic, self.asked = random.choice(TOPICS), []
        return f"What is {self.topic}?"


def test_an_environment_that_mixes_tasks_in_a_group_is_named():
    random.seed(1)
    rewards = check_step(build("stock", "GRPO", TWO_TURNS, **in_library(factory=OfItsOwn)))["rewards"]
    assert rewards.verdict == "different" and "reset() gives the rows of a group different tasks" in rewards.cause, (
        rewards
    )


def test_one_environment_for_all_rows_is_asked_about():
    one = Library()
    rewards = check_step(build("stock", "GRPO", TWO_TURNS, **in_library(factory=lambda: one)))["rewards"]
    assert rewards.verdict == "cannot tell" and "rows share one environment object" in rewards.cause, rewards


def test_lora_on_an_embedding_with_a_pad_that_is_eos(tmp_path):
    path = resolve_model("starter")
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path, padding_side="left"),
    )
    tokenizer.pad_token = tokenizer.eos_token
    model.get_input_embeddings().padding_idx = tokenizer.eos_token_id  # as of a config whose pad_token_id is EOS
    lora = LoraConfig(r=4, target_modules=["embed_tokens", "q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = make(tmp_path, model=model, learning_rate=1e-3, more={"peft_config": lora, "processing_class": tokenizer})
    trainer.train_dataset = Dataset.from_dict({"prompt": [f"Hello{tokenizer.eos_token}{prompt}" for prompt in PROMPTS]})
    gradient = check_step(trainer)["gradient"]
    assert gradient.verdict == "same", gradient


@pytest.mark.parametrize(
    "fields, table",
    [
        ({"target_modules": ["embed_tokens"], "init_lora_weights": False}, "lora_embedding_A"),
        ({"target_modules": ["q_proj"], "trainable_token_indices": [5, 1]}, "trainable_tokens_delta"),
    ],
)
def test_a_pad_gets_no_gradient_where_it_is_said(fields, table):
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), tie_word_embeddings=False)
    model.get_input_embeddings().padding_idx = 1
    policy = get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", **fields))
    ids = torch.tensor([[5, 1, 7, 1, 9]])
    policy(input_ids=ids, labels=ids).loss.backward()
    found = {name: (p, places) for name, p in policy.named_parameters() if (places := pad_places_of(policy, p))}
    ((parameter, places),) = [each for name, each in found.items() if table in name]
    (place,) = places
    assert not parameter.grad[place].any() and parameter.grad.any()


class DropsEqual(trl.GRPOTrainer):
    """Rows without an advantage leave the loss, and with them their KL and their tokens."""

    def _compute_loss(self, model, inputs):
        kept = (inputs["advantages"] != 0)[:, None].expand_as(inputs["completion_mask"])
        return super()._compute_loss(model, inputs | {"tool_mask": kept.int()})


@pytest.mark.parametrize("cls, verdict", [(DropsEqual, "different"), (trl.GRPOTrainer, "same")])
def test_a_loss_without_the_rows_of_equal_rewards_is_named(cls, verdict, tmp_path):
    loss = check_step(make(tmp_path, cls, beta=0.1, loss_type="grpo"))["loss"]
    assert loss.verdict == verdict, loss


class DividesByNothing(trl.GRPOTrainer):
    """The loss of `grpo`, whose mean of a row without a token is not a number."""

    def _compute_loss(self, model, inputs):
        empty = inputs["completion_mask"].sum(1) == 0
        return super()._compute_loss(model, inputs) + (float("nan") if empty.any() else 0.0)


@pytest.mark.parametrize("cls, verdict", [(DividesByNothing, "different"), (trl.GRPOTrainer, "same")])
def test_a_loss_that_fails_on_a_masked_row_is_named(cls, verdict, tmp_path):
    fields = {"mask_truncated_completions": True, "loss_type": "grpo", "max_completion_length": 64}
    trainer = make(tmp_path, cls, model=with_stops(), **fields)  # whose completions all stop
    loss = check_step(trainer)["loss"]
    assert loss.verdict == verdict, loss


class LeavesGradients(TrainerCallback):
    """A gradient of its own at the end of a step, which the next update takes too."""

    def __init__(self, clears: bool):
        self.clears = clears

    def on_step_end(self, args, state, control, model=None, **_):
        ids = torch.arange(5, 12)[None]
        model(input_ids=ids, labels=ids).loss.backward()
        if self.clears:
            model.zero_grad()


@pytest.mark.parametrize("clears", [False, True])
def test_gradients_that_a_callback_leaves_are_named(clears, tmp_path):
    told = []
    trainer = make(tmp_path, max_steps=2, more={"callbacks": [LeavesGradients(clears)]})
    check = StepCheck(trainer, 1, tell=told.append)
    trainer.train()
    assert [check.reports[step]["gradient"].verdict for step in (1, 2)] == ["same", "same" if clears else "different"]
    assert ["step 2: step-check: gradient is different: gradients are there before" in line for line in told] == [
        True
    ] * (not clears)


class HoldsBack(TrainerCallback):
    """Puts a function around the optimizer's own step, as a tool that counts steps does, which may leave the step out."""

    def __init__(self, holds: bool):
        self.holds = holds

    def on_train_begin(self, args, state, control, optimizer=None, **_):
        step = optimizer.step
        optimizer.step = lambda *args: None if self.holds else step(*args)


@pytest.mark.parametrize("holds", [False, True])
def test_an_optimizer_whose_own_step_is_left_out_is_named(holds, tmp_path):
    lines = []
    trainer = make(tmp_path, max_steps=2, more={"callbacks": [HoldsBack(holds)]})
    check = StepCheck(trainer, 1, tell=lines.append)
    trainer.train()
    updates = [check.reports[step]["update"] for step in (1, 2)]
    assert [update.verdict for update in updates] == ["different" if holds else "same"] * 2, updates
    assert ["update is different: the training's own step moves no weight" in line for line in lines] == [True] * holds


class LogsMore(trl.GRPOTrainer):
    """Adds the best reward so far to TRL's own numbers, which is all right, or changes these, which is not."""

    replaces = False

    def log(self, logs, *args, **kwargs):
        rewards = self._metrics["train"]["reward"]
        if rewards and self.replaces:
            rewards[:] = [value + 1 for value in rewards]
        super().log(logs | {"reward/best": max(rewards, default=0.0)}, *args, **kwargs)


class LogsOther(LogsMore):
    replaces = True


class LogsRounded(trl.GRPOTrainer):
    def log(self, logs, *args, **kwargs):
        for values in self._metrics["train"].values():
            values[:] = [round(value, 4) for value in values]
        super().log(logs, *args, **kwargs)


@pytest.mark.parametrize("cls", [LogsMore, LogsOther, LogsRounded])
def test_a_log_with_other_numbers_than_steps_have_is_named(cls, tmp_path):
    trainer = make(tmp_path, cls, max_steps=4, logging_steps=2)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    metrics = [check.reports[step]["metrics"] for step in range(1, 5)]
    other = cls is LogsOther
    assert [stage.verdict for stage in metrics] == (["same", "different"] * 2 if other else ["same"] * 4), metrics
    assert metrics[1].cause.startswith("the trainer's log() writes reward=") is other


class AnnealsTheSampler(TrainerCallback):
    """Another temperature for the samples from the first update on, and none for the log-probs."""

    trainer: trl.GRPOTrainer

    def on_step_end(self, args, state, control, **_):
        self.trainer.generation_config.temperature = 0.6


def test_a_temperature_of_the_sampler_alone_is_of_sampling(tmp_path):
    anneals = AnnealsTheSampler()
    trainer = anneals.trainer = make(tmp_path, max_steps=2, more={"callbacks": [anneals]})
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    second = check.reports[2]
    assert (second["log-probs"].verdict, second["gradient"].verdict) == ("same", "same"), second
    assert (
        second["sampling"].verdict != "same"
        and "args.temperature is 1.0, the trainer has 0.6" in second["sampling"].cause
    )


@pytest.mark.parametrize("epsilon_high, said", [(None, True), (5.0, False)])
def test_a_limit_of_cispo_below_every_ratio_is_said(epsilon_high, said, tmp_path):
    loss = check_step(make(tmp_path, loss_type="cispo", epsilon_high=epsilon_high))["loss"]
    assert loss.verdict == "same" and ("limits every ratio to epsilon_high=0.2" in loss.cause) is said, loss


class CutTexts(trl.GRPOTrainer):
    """Gives the rewards each text up to its first vowel, and leaves the tokens."""

    def _generate(self, prompts, *args):
        output = super()._generate(prompts, *args)
        texts = next(n for n, part in enumerate(output) if isinstance(part, list) and part and isinstance(part[0], str))
        return tuple([self.cut(text) for text in part] if n == texts else part for n, part in enumerate(output))

    def cut(self, text):
        return text[: next((n for n, letter in enumerate(text) if letter in "aeiou"), len(text))]


class NoTexts(CutTexts):
    def cut(self, text):
        return ""


@pytest.mark.parametrize(
    "cls, said", [(CutTexts, "judged by a part of their text"), (NoTexts, " by none"), (trl.GRPOTrainer, "")]
)
def test_rewards_of_a_part_of_a_text_are_asked_about(cls, said, tmp_path):
    rewards = check_step(make(tmp_path, cls))["rewards"]
    assert (rewards.verdict, said in rewards.cause) == ("cannot tell" if said else "same", True), rewards


class ColderLater(TrainerCallback):
    """Samples more sharply than the loss scores, from the second update on."""

    def __init__(self, trainer):
        self.trainer = trainer

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step >= 1:
            self.trainer.generation_config.temperature = 0.3


def test_the_generation_of_a_checked_second_pass_is_judged(tmp_path):
    trainer = make(tmp_path, num_iterations=2, max_steps=6, max_completion_length=32, disable_tqdm=True)
    check = StepCheck(trainer, 4, tell=lambda line: None)
    trainer.add_callback(ColderLater(trainer))
    trainer.train()
    assert [*check.reports] == [1, 3, 4]
    assert all(
        stage.verdict != "cannot tell" or "was not checked" not in stage.cause for stage in check.reports[4].stages
    )
    assert check.reports[3].first.name == "sampling", check.reports[3]
