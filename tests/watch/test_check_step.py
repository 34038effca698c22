"""`check_step` on real trainers: nothing is said of healthy ones, and each fault is found at its stage."""

import asyncio
import dataclasses
import functools
import itertools
import json
import sys
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
import trl
from configuration_models import not_images, pictures, seeing
from conftest import daily, in_two_processes
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from step_cases import (
    BASE,
    FAULTS,
    HEALTHY,
    LORA,
    PROMPTS,
    SMALL,
    NegatedAdvantages,
    OnePromptEach,
    ShiftedRewards,
    length,
    losing_a_gradient,
    make,
    of_prompt,
    vowels,
)
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from workbench import attach_watch
from workbench.errors import ParameterError, RunError
from workbench.experiments.recipes import resolve_model
from workbench.lab.reports.clean import clean_html
from workbench.replay.grpo_math import Loss, LossRow
from workbench.replay.report import Stage
from workbench.watch.attach import StepCheck
from workbench.watch.causes import cause_of_sampled_logps
from workbench.watch.check_step import check_step
from workbench.watch.judge import Judge

pytestmark = pytest.mark.slow


LOSING = losing_a_gradient(trl.GRPOTrainer)


def text_length(completions, **_):
    return [float(len(str(completion)) % 3) for completion in completions]


@pytest.mark.parametrize("name", daily(HEALTHY, "plain", "bf16, LoRA", "masked", "RLOO", "ours"))
def test_a_healthy_step_has_no_difference(name, tmp_path):
    report = check_step(make(tmp_path, **HEALTHY[name]))
    assert [stage.name for stage in report.stages if stage.verdict in ("different", "cannot tell")] == [], report


# Of each stage one fault: which others there are is asked in the tests of causes, batches, updates and off-policy losses.
OF_EACH_STAGE = [
    "sampled colder, said",
    "pads behind a stop",
    "mask",
    "rewards shifted",
    "advantages",
    "positions",
    "reference",
]
OF_EACH_STAGE += ["prompts sorted", "texts rolled", "small advantages", "gradient, bf16"]
OF_EACH_STAGE += ["old log-probs", "metric", "loss", "gradient", "clipped away"]


@pytest.mark.parametrize("name", daily(FAULTS, *OF_EACH_STAGE))
def test_a_fault_is_found_at_its_stage(name, tmp_path):
    options, stage, cause = FAULTS[name]
    if callable(options.get("model")):
        options = options | {"model": options["model"]()}
    first = check_step(make(tmp_path, **options)).first
    assert first is not None and first.name == stage and cause in first.cause, first


class ScoresOnceMore(NegatedAdvantages):
    """Scores its samples a third time, so that nobody can say which two scorings are of its KL."""

    def _generate_and_score_completions(self, inputs):
        result = super()._generate_and_score_completions(inputs)
        whole = [
            torch.cat([result[f"{part}_{what}"] for part in ("prompt", "completion")], 1) for what in ("ids", "mask")
        ]
        self._get_per_token_logps_and_entropies(self.model, *whole, result["completion_ids"].shape[1])
        return result


def test_advantages_below_the_rounding_of_a_kl_need_its_own(tmp_path):
    assert check_step(make(tmp_path, cls=NegatedAdvantages, beta=0.05, **SMALL)).first.name == "advantages"
    stage = check_step(make(tmp_path, cls=ScoresOnceMore, beta=0.05, **SMALL))["advantages"]
    assert stage.verdict == "cannot tell" and "as small as what bfloat16 can make of the KL" in stage.cause, stage


def test_a_gradient_that_is_off_names_the_tensor_that_is(tmp_path):
    gradient = check_step(make(tmp_path, cls=losing_a_gradient(trl.GRPOTrainer, "embed_tokens", 2.0)))["gradient"]
    assert gradient.verdict == "different" and "worst in model.embed_tokens.weight" in gradient.cause, gradient


def test_a_reward_of_the_prompt_alone_gives_no_gradient(tmp_path):
    report = check_step(make(tmp_path, funcs=[of_prompt]))
    assert report.first is None
    assert (report["gradient"].verdict, report["gradient"].cause) == (
        "cannot tell",
        "no row of this batch has an advantage",
    )


@pytest.mark.parametrize(
    "advantage, mask, slope, cause",
    [
        (0.0, 1.0, 0.0, "no row of this batch has an"),
        (1.0, 1.0, 1.0, "none of the 2 tensors that train gets a gradient"),
        (1.0, 0.0, 0.0, "no token is in the loss"),
        (1.0, 1.0, 0.0, "is beyond the clip"),
    ],
)
def test_a_loss_without_a_gradient_says_what_is_known(advantage, mask, slope, cause):
    rows = [LossRow(np.zeros(1), advantage, np.full(1, mask))]
    step = SimpleNamespace(kind="GRPO", micro_batches=[SimpleNamespace(rows=rows)])
    losses = [Loss(0.0, [np.full(1, slope)], [np.ones(1)])]
    record, policy = SimpleNamespace(gradients={}, problem=""), torch.nn.Linear(1, 1)
    judge = SimpleNamespace(step=step, losses=losses, gradients={}, record=record, policy=policy)
    assert cause in Judge._compared_gradient(judge, Stage("loss", "same")).cause


ONE_TURN, TWO_TURNS = [1] * 40, [1] * 15 + [0] * 10 + [1] * 15
OF_SAMPLERS = ["before it", "after it", "of temperature 1", "cause not found"]
OF_SAMPLERS = [*itertools.product(OF_SAMPLERS, [ONE_TURN, TWO_TURNS]), ("one behind another", TWO_TURNS)]


@pytest.mark.parametrize("kind, own", OF_SAMPLERS)
def test_log_probs_of_a_sampler_are_recognized(kind, own):
    rng, own = np.random.default_rng(0), np.array(own, bool)
    alone, plain, other = (np.log(rng.uniform(0.01, 1, 40)) for _ in range(3))
    packed = np.append(alone[own], np.zeros((~own).sum()))
    sampled = {"before it": np.roll(alone, 1), "after it": np.roll(alone, -1), "of temperature 1": plain}
    sampled = sampled.get(kind, packed if kind == "one behind another" else other)
    sampled = np.where(own, sampled + rng.normal(0, 0.01, 40), 0.0) if kind != "one behind another" else sampled
    why = cause_of_sampled_logps([(own, sampled, alone)], [plain], 0.05)
    assert kind in why, why


@pytest.mark.parametrize(
    "beta, dropout, verdict", [(0.1, 0.1, "cannot tell"), (0.0, 0.1, "different"), (0.1, 0.0, "different")]
)
def test_dropout_may_move_the_kl_in_the_advantages_of_rloo(beta, dropout, verdict):
    step = SimpleNamespace(kind="RLOO", settings={"beta": beta}, kl=None)
    judge = SimpleNamespace(step=step, policy=torch.nn.Dropout(dropout))
    stage = Judge._with_dropout_in_kl(judge, Stage("advantages", "different", "the definition gives others"))
    assert stage.verdict == verdict and ("moves the KL" in stage.cause) == (verdict == "cannot tell"), stage


@pytest.mark.parametrize("scale", [2.0**16, 2.0**127])
def test_gradients_of_a_scaled_loss_are_unscaled(scale, tmp_path):
    trainer = make(tmp_path)  # fp16 itself needs a GPU; the scaler, which is what multiplies the loss, does not
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    report = check_step(trainer)
    assert report.first is None and trainer.accelerator.scaler.get_scale() == scale
    if scale < 1e6:
        assert report["gradient"].verdict == report["update"].verdict == "same", report
    else:
        for name in ("gradient", "update"):
            assert report[name].verdict == "cannot tell" and "overflow" in report[name].cause


class InfiniteGradient(trl.GRPOTrainer):
    def training_step(self, model, *args):
        loss = super().training_step(model, *args)
        next(model.parameters()).grad[0, 0] = torch.inf
        return loss


def test_a_gradient_that_is_not_finite_is_different(tmp_path):
    first = check_step(make(tmp_path, cls=InfiniteGradient)).first
    assert (first.name, first.cause) == ("gradient", "a gradient is not finite")


def test_few_trained_parameters_are_counted(tmp_path):
    trainer = make(tmp_path)
    for name, parameter in trainer.model.named_parameters():
        parameter.requires_grad_(name.endswith("k_proj.bias"))
    assert "only 128 of 656,512 parameters train" in check_step(trainer)["gradient"].cause


def state_of(trainer) -> list:
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    return [*weights, torch.random.get_rng_state(), torch.tensor(np.random.get_state()[1].astype(int))]


def test_a_check_leaves_the_trainer_as_it_was(tmp_path):
    trainer, other = make(tmp_path / "a"), make(tmp_path / "b")
    before, attributes = state_of(trainer), dict(vars(trainer))
    check_step(trainer)
    assert all(map(torch.equal, before, state_of(trainer)))
    assert vars(trainer) == attributes and all(p.grad is None for p in trainer.model.parameters())
    for each in (trainer, other):
        torch.manual_seed(0)
        each.args.max_steps = 2
        each.train()
    assert all(map(torch.equal, trainer.model.parameters(), other.model.parameters()))


def broken_reward(completions, log_extra, log_metric, **_):
    log_extra("seen", [1] * len(completions))
    log_metric("seen", 1.0)
    raise ZeroDivisionError("in the reward")


class BrokenSampler(trl.GRPOTrainer):
    def _generate_single_turn(self, *_, **__):
        raise RuntimeError("in the sampler")


class BrokenLoss(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        super()._compute_loss(model, inputs).backward()
        raise RuntimeError("in the loss")


@pytest.mark.parametrize(
    "options, said",
    [
        ({"funcs": [broken_reward]}, "in the reward"),
        ({"cls": BrokenSampler}, "in the sampler"),
        ({"cls": BrokenLoss}, "in the loss"),
    ],
)
def test_a_check_changes_nothing_when_the_step_raises(options, said, tmp_path):
    trainer = make(tmp_path, **options)
    before, attributes = state_of(trainer), dict(vars(trainer))
    with pytest.raises((ZeroDivisionError, RuntimeError), match=said):
        check_step(trainer)
    assert all(p.grad is None for p in trainer.model.parameters())
    assert all(map(torch.equal, before, state_of(trainer))) and vars(trainer) == attributes
    assert not trainer._pending_extra_logs and not trainer._pending_metrics


def test_what_cannot_be_checked_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="trainer=str: expected TRL's GRPOTrainer, RLOOTrainer"):
        check_step("trainer")
    with pytest.raises(ParameterError, match="trainer=SFTTrainer: expected TRL's GRPOTrainer"):
        check_step(trl.SFTTrainer.__new__(trl.SFTTrainer))
    trainer = make(tmp_path)
    trainer.train_dataset = None
    with pytest.raises(ParameterError, match="the trainer has no train_dataset"):
        check_step(trainer)
    rows = [{"prompt": prompt} for prompt in PROMPTS[:2] for _ in range(4)]
    for batch in ([], rows[:7]):
        with pytest.raises(
            ParameterError, match=rf"batch has {len(batch)} rows, expected 4 \(num_generations\) for each"
        ):
            check_step(trainer, batch=batch)
    with pytest.raises(ParameterError, match="another prompt within a group; give each row 4 times in a row"):
        check_step(trainer, batch=[{"prompt": prompt} for prompt in PROMPTS])
    with pytest.raises(ParameterError, match="another answer within a group"):
        check_step(trainer, batch=[{"prompt": PROMPTS[0], "answer": number} for number in range(8)])
    assert check_step(trainer, batch=rows).first is None


@pytest.mark.parametrize("steps, expected", [(3, 12), (8, 8)])
def test_a_batch_that_cannot_be_split_is_refused(steps, expected, tmp_path):
    trainer = make(tmp_path, gradient_accumulation_steps=steps, per_device_train_batch_size=4)
    with pytest.raises(ParameterError, match=f"batch has 4 rows, expected {expected} or a multiple"):
        check_step(trainer, batch=[{"prompt": PROMPTS[0]}] * 4)
    assert check_step(trainer, batch=[{"prompt": PROMPTS[0]}] * expected).first is None


def test_a_batch_smaller_than_that_of_the_config_will_do(tmp_path):
    trainer = make(tmp_path, per_device_train_batch_size=8)
    assert check_step(trainer, batch=[{"prompt": PROMPTS[0]}] * 4).first is None


class DetachedEntropies(trl.GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, entropies, *others = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return logps, None if entropies is None else entropies.detach(), *others


def test_entropies_without_their_gradient_show_in_bf16(tmp_path):
    report = check_step(make(tmp_path, cls=DetachedEntropies, entropy_coef=0.05, bf16=True))
    assert report.first.name == "gradient" and "entropies without their gradient" in report.first.cause


def by_torch(completions, **_):
    """Rewards that torch computes, read as numpy's, which has no bfloat16."""
    lengths = torch.tensor([[float(len(text))] for text in completions])
    return (lengths @ torch.ones(1, 1))[:, 0].numpy()


def test_reward_functions_are_called_without_autocast(tmp_path):
    assert check_step(make(tmp_path, funcs=[by_torch], bf16=True))["rewards"].verdict == "same"


def test_rollouts_are_made_without_autocast(tmp_path):
    def rollout(prompts, trainer):
        ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
        scores = by_torch(prompts)  # fails under autocast
        return {"prompt_ids": ids, "completion_ids": [[70, 71]] * len(ids), "logprobs": [[-1.0] * 2] * len(ids)} | {
            "score": scores.tolist()
        }

    trainer = make(tmp_path, bf16=True, more={"rollout_func": rollout})
    assert check_step(trainer)["rewards"].verdict == "same"


async def asked(completions, **_):
    await asyncio.sleep(0.01)
    return [float(len(text)) for text in completions]


class Asked:
    async def __call__(self, completions, scale=1.0, **_):
        return [scale * len(text) for text in completions]


def judging():
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_pretrained(resolve_model("starter"), num_labels=1)


class InHalves(trl.GRPOTrainer):
    def _calculate_rewards(self, inputs, prompts, completions, ids):
        halves = [slice(0, 4), slice(4, 8)]
        return torch.cat(
            [
                super(InHalves, self)._calculate_rewards(*(x[h] for x in (inputs, prompts, completions, ids)))
                for h in halves
            ]
        )


SCORERS = {
    "asynchronous": lambda: [asked, length],
    "an object in a partial": lambda: [length, functools.partial(Asked(), scale=0.5), asked],
    "a reward model": lambda: [length, judging(), vowels],
}
if not hasattr(trl.trainer.utils, "is_async_callable"):  # an older TRL awaits no object: its training fails
    del SCORERS["an object in a partial"]


@pytest.mark.parametrize("judges", daily(SCORERS, "asynchronous", "a reward model"))
def test_rewards_of_judges_are_compared(judges, tmp_path):
    report = check_step(make(tmp_path, funcs=SCORERS[judges]()))
    assert report.first is None and report["rewards"].verdict == "same", report
    rewards = check_step(make(tmp_path, cls=ShiftedRewards, funcs=SCORERS[judges]()))["rewards"]
    assert rewards.verdict == "different" and "each has that of the row before it" in rewards.cause


class TwiceTheItemsLater(trl.GRPOTrainer):
    """Divides by twice as many tokens when it trains completions a second time."""

    def _prepare_inputs(self, inputs):
        batch = dict(super()._prepare_inputs(inputs))
        factor = 2 if self._step % 2 else 1
        return batch | {"num_items_in_batch": factor * batch["num_items_in_batch"]}


@pytest.mark.parametrize("cls, found", [(trl.GRPOTrainer, []), (TwiceTheItemsLater, [2])])
def test_the_divisor_of_a_reused_update_is_counted(cls, found, tmp_path):
    trainer = make(tmp_path, cls=cls, num_iterations=2, max_steps=3)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    different = {step: report["loss"].cause for step, report in check.reports.items() if report.first is not None}
    assert [*different] == found and all("0.5 times as much" in cause for cause in different.values()), different


class WritesOn(trl.GRPOTrainer):
    """Its model ends a turn after two tokens and writes on."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        return [[20, 21, 1, *row] for row in ids], *rest


@pytest.mark.parametrize("eos, verdict", [("<|endoftext|>", "cannot tell"), ("<|im_end|>", "different")])
def test_rows_that_go_on_behind_the_end_of_a_turn_are_seen(eos, verdict, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter"))
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\\n{% endfor %}"
    )
    tokenizer.eos_token = eos  # of a base model, whose template has another
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": prompt}] for prompt in PROMPTS]})
    args = trl.GRPOConfig(str(tmp_path), **BASE)
    trainer = WritesOn(model, [text_length], args, train_dataset=data, processing_class=tokenizer)
    ends = check_step(trainer)["ends"]
    assert ends.verdict == verdict, ends
    assert ("8 of 8 rows go on behind '<|im_end|>'" in ends.cause) == (verdict == "cannot tell"), ends


class OneOfTwoProcesses(trl.GRPOTrainer):
    """Takes the quantile of entropies over those of another process too, as TRL does in several."""

    def get_high_entropy_mask(self, *args):
        def of_both(entropies):
            return torch.cat([entropies, 0.8 * entropies])

        with mock.patch.object(self.accelerator, "gather", of_both):
            return super().get_high_entropy_mask(*args)


def test_a_quantile_over_several_processes_is_not_known(tmp_path, monkeypatch):
    module = sys.modules[check_step.__module__]
    of_one = module.step_of
    monkeypatch.setattr(module, "step_of", lambda *args: dataclasses.replace(of_one(*args), processes=2))
    report = check_step(make(tmp_path, cls=OneOfTwoProcesses, top_entropy_quantile=0.3, loss_type="grpo"))
    assert report.first is None and "those of the others are not known here" in report["loss"].cause, report
    assert report["gradient"].verdict == "cannot tell"


def far_from_zero():
    """The starter with logits of about -100, as some models have them: bf16 rounds these by up to 0.25."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"))
    with torch.no_grad():
        hidden = model.model(torch.arange(20, 40)[None]).last_hidden_state[0].mean(0)
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight - 100 * hidden / hidden.square().sum())
    return model


def attending_sharply():
    """The starter with sharp attention, of which bf16 makes another gradient with some completions."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(3)
    return model


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("model", [far_from_zero, attending_sharply])
def test_what_bf16_makes_of_rows_alone_is_no_difference(model, seed, tmp_path):
    report = check_step(make(tmp_path, model=model(), bf16=True, seed=seed))
    assert report.first is None, report


@pytest.mark.parametrize("model, stage", [(far_from_zero, "log-probs"), (attending_sharply, "gradient")])
def test_a_check_without_memory_for_fp32_ends_all_the_same(model, stage, tmp_path, monkeypatch):
    def full(model):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(sys.modules[Judge.__module__], "in_float32", full)
    report = check_step(make(tmp_path, model=model(), bf16=True))
    assert {one.name for one in report.stages if one.verdict == "different"} <= {stage}, report


@pytest.mark.parametrize("precision, dtype", [("medium", "bfloat16"), ("high", "tf32"), ("highest", "float32")])
def test_products_in_less_than_float32_are_rounding(precision, dtype, tmp_path):
    try:
        torch.set_float32_matmul_precision(precision)
        report = check_step(make(tmp_path, beta=0.1))  # rounds where the processor can
    finally:
        torch.set_float32_matmul_precision("highest")
    assert report.first is None and dtype in report["log-probs"].cause, report
    assert ("multiplies float32 in" in report["gradient"].cause) == (dtype != "float32"), report["gradient"]


def test_a_reward_model_that_still_trains_is_named(tmp_path):
    path = resolve_model("starter-gpt2")
    judge = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1).train()
    rewards = check_step(make(tmp_path, funcs=[length, judge]))["rewards"]
    assert rewards.verdict == "different" and "it is in training, with dropout" in rewards.cause, rewards
    assert judge.training and check_step(make(tmp_path, funcs=[length, judge.eval()]))["rewards"].verdict == "same"


def test_a_reward_model_that_judges_pads_is_named(tmp_path):
    trainer = make(tmp_path, funcs=[judging()])
    trainer.reward_funcs[0].config.pad_token_id = 5  # not the tokenizer's: it takes a pad for the last token
    rewards = check_step(trainer)["rewards"]
    assert rewards.verdict == "different" and "other rewards alone, without padding" in rewards.cause, rewards


def test_rewards_that_are_asked_in_parts_are_not_known(tmp_path):
    rewards = check_step(make(tmp_path, cls=InHalves, funcs=[length, vowels]))["rewards"]
    assert rewards.verdict == "cannot tell" and "does not call each function once" in rewards.cause


def test_a_watched_trainer_records_nothing_of_a_check(tmp_path):
    trainer = make(tmp_path / "out", max_steps=1)
    watch = attach_watch(trainer, tmp_path / "record")
    assert check_step(trainer).first is None
    trainer.train()
    assert watch.on and len((tmp_path / "record/completions.jsonl").read_text().splitlines()) == 8


class OtherImages(trl.GRPOTrainer):
    def _prepare_inputs(self, inputs):
        batch = super()._prepare_inputs(inputs)
        return batch | {"pixel_values": batch["pixel_values"].flip(0)}


@pytest.mark.parametrize("family", daily(["LLaVA", "Qwen2-VL"], "LLaVA"))
@pytest.mark.parametrize("cls, verdict", [(trl.GRPOTrainer, "same"), (OtherImages, "different")])
def test_rows_keep_the_images_they_were_generated_with(family, cls, verdict, tmp_path):
    parts = seeing(family)
    fields = BASE | not_images(family) | {"per_device_train_batch_size": 4, "num_generations": 2}
    args = trl.GRPOConfig(str(tmp_path), **fields)
    model, processor = parts["model"](), parts["tokenizer"]
    report = check_step(cls(model, text_length, args, train_dataset=pictures(), processing_class=processor))
    assert report["images"].verdict == verdict, report
    assert {s.name for s in report.stages if s.verdict == "different"} == (
        {"images"} if verdict == "different" else set()
    )
    assert "a row alone without them" in report["log-probs"].cause


class NotesItsRows(trl.GRPOTrainer):
    generated: ClassVar[list] = []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True):
            self.generated.append(ids[mask > 0].tolist())
        return output


def test_rows_of_the_page_have_the_numbers_of_the_stages(tmp_path):
    """TRL shuffles the rows of a generation before the loss takes them."""
    NotesItsRows.generated.clear()
    report = check_step(make(tmp_path, cls=NotesItsRows))
    assert [row.number for row in report.rows] == list(range(len(report.rows)))
    assert [row.completion_ids for row in report.rows] == NotesItsRows.generated


def test_tokens_and_page_show_each_token(tmp_path):
    report = check_step(make(tmp_path, funcs=[length]))
    tables = [report.tokens(row) for row in range(len(report.rows))]
    assert sum(table["gradient"].abs().sum() for table in tables) == pytest.approx(1)
    assert (tables[0]["logp"] - tables[0]["logp_alone"]).abs().max() < 1e-4
    page = report._repr_html_()
    assert page.count("<span") == sum(map(len, tables)) and "log-probs" in page
    assert list(report.table().columns) == ["stage", "verdict", "cause", "largest", "where"]


def test_a_truncated_completion_is_shown_struck_out(tmp_path):
    report = check_step(make(tmp_path, mask_truncated_completions=True))
    left_out = [n for n, row in enumerate(report.rows) if not row.mask.any()]
    assert left_out and all(len(report.tokens(n)) for n in left_out)
    tokens = sum(len(report.tokens(n)) for n in left_out)
    page = clean_html(report._repr_html_())
    assert page.count("text-decoration:line-through") == tokens
    assert page.count('<span style="background-color:rgba(') == sum(
        len(report.tokens(n)) for n in range(len(report.rows))
    )


# --- gradients that reference and trainer have wrong alike ----------------------------------------------------------


class HalfBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def detached_layer(model):
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output.detach())


def half_backward(model):
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: HalfBackward.apply(output))


def zeroed(name, rows=slice(None)):
    def hook(model):
        def without(gradient):
            gradient = gradient.clone()
            gradient[rows] = 0
            return gradient

        model.get_parameter(name).register_hook(without)

    return hook


QUERY, UP = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"


NORM = "model.layers.1.input_layernorm.weight"


BACKWARD = [
    (detached_layer, "model.", False), (half_backward, "model.", False), (zeroed(QUERY), QUERY, False),
    (zeroed(NORM), NORM, False), (zeroed(NORM), NORM, True),
]  # fmt: skip


@pytest.mark.parametrize("fault, named, bf16", daily(BACKWARD, detached_layer, BACKWARD[2][0]))
def test_a_backward_pass_that_is_wrong_for_both_is_found(fault, named, bf16, tmp_path):
    trainer = make(tmp_path, bf16=bf16)
    fault(trainer.model)
    first = check_step(trainer).first
    assert first is not None and first.name == "gradient", first
    assert "the loss moves by other than its gradient says" in first.cause and f"most in {named}" in first.cause, first


def test_rows_without_gradient_are_found(tmp_path):
    trainer = make(tmp_path)
    zeroed(UP, slice(0, 32))(trainer.model)
    assert f"most in {UP}" in check_step(trainer).first.cause


MOVED = [
    {}, {"bf16": True}, {"more": LORA}, {"loss_type": "cispo", "beta": 0.1, "entropy_coef": 0.1},
    {"cls": trl.RLOOTrainer, "gradient_accumulation_steps": 2}, {"gradient_checkpointing": True, "loss_type": "vespo"},
]  # fmt: skip


@pytest.mark.parametrize("options", daily(MOVED, {}, {"more": LORA}))
def test_the_loss_of_a_healthy_step_moves_as_it_says(options, tmp_path):
    gradient = check_step(make(tmp_path, **options))["gradient"]
    assert gradient.verdict in ("same", "rounding") and "the loss moves as it says" in gradient.cause, gradient


def test_weights_in_bf16_are_not_moved(tmp_path):
    gradient = check_step(make(tmp_path, model=FAULTS["lost to bf16"][0]["model"](), learning_rate=1e-2))["gradient"]
    assert gradient.verdict == "rounding", gradient
    assert "the loss moves is not known: bfloat16 weights round away" in gradient.cause


def test_a_penalty_in_the_samplers_config_alone_is_named(tmp_path):
    trainer = make(tmp_path)
    trainer.generation_config.repetition_penalty = 1.3
    first = check_step(trainer).first
    assert first is not None and first.name == "sampling", first
    assert "args.repetition_penalty is 1.0, the trainer has 1.3" in first.cause, first


class Followed(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        self.ref_model.load_state_dict(self.model.state_dict())
        return super()._generate_and_score_completions(inputs)


class FollowedHalf(trl.GRPOTrainer):
    def training_step(self, *args):
        with torch.no_grad():
            for old, new in zip(self.ref_model.parameters(), self.model.parameters(), strict=True):
                old.lerp_(new, 0.5)
        return super().training_step(*args)


MOVING = [
    (Followed, "cannot tell", "the reference still is the policy"),
    (FollowedHalf, "cannot tell", "the reference has other weights than before step 1"),
    (trl.GRPOTrainer, "same", "mean"),
]


@pytest.mark.parametrize("cls, verdict, said", MOVING)
def test_a_reference_that_follows_the_policy_is_told(cls, verdict, said, tmp_path):
    trainer = make(tmp_path, cls=cls, beta=0.1, max_steps=2, learning_rate=1e-3)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    references = [check.reports[step]["reference"] for step in (1, 2)]
    assert [stage.verdict for stage in references] == ["same", verdict], references
    assert said in references[1].cause, references


class Reseeded(trl.GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        torch.manual_seed(7)
        return super()._generate_single_turn(*args, **kwargs)


@pytest.mark.parametrize("cls", [Reseeded, trl.GRPOTrainer])
def test_a_seed_before_each_generation_is_named(cls, tmp_path):
    trainer = make(tmp_path, cls=cls, max_steps=2, disable_tqdm=True)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    verdicts = [check.reports[step]["sampling"].verdict for step in (1, 2)]
    assert verdicts == ["same", "different" if cls is Reseeded else "same"], check.reports[2]
    assert ("step 1 drew its tokens from the same random numbers" in check.reports[2]["sampling"].cause) == (
        cls is Reseeded
    )


def test_a_check_runs_no_pass_beyond_those_it_is_said_to(tmp_path):
    trainer = make(tmp_path, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    texts: list[int] = []

    def note(module, args, kwargs):
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids.shape[1] > 1:  # generation passes the prompts first, then one token at a time
            texts.append(len(ids))

    trainer.model.model.register_forward_pre_hook(note, with_kwargs=True)
    assert check_step(trainer).first is None
    generation, loss, alone, moved = [8], [4] * 2, [1] * 8, [4] * 2 * 2
    assert sorted(texts) == sorted(generation + loss + alone + moved), texts


OPTIONS = {"min_new_tokens": 8, "no_repeat_ngram_size": 2, "suppress_tokens": [70], "do_sample": False}


@pytest.mark.parametrize("name", daily(OPTIONS, "min_new_tokens", "do_sample"))
def test_an_option_that_only_the_sampler_has_is_named(name, tmp_path):
    trainer = make(tmp_path)
    setattr(trainer.generation_config, name, OPTIONS[name])
    sampling = check_step(trainer)["sampling"]
    assert sampling.verdict == "different", sampling
    assert f"generation_kwargs has no {name}, the sampler has {OPTIONS[name]}" in sampling.cause, sampling


@pytest.mark.parametrize("name, value", [("min_new_tokens", 8), ("suppress_tokens", [70]), ("min_p", 0.0)])
def test_an_option_of_the_models_own_config_is_named(name, value, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.float32)
    setattr(model.generation_config, name, value)
    sampling = check_step(make(tmp_path, model=model))["sampling"]
    named = bool(value)  # a hub's model may name what changes nothing
    assert (sampling.verdict == "different") == named, sampling
    assert (f"generation_kwargs has no {name}, the sampler has {value}" in sampling.cause) == named, sampling


def test_an_option_of_the_config_is_none_of_the_sampler_alone(tmp_path):
    sampling = check_step(make(tmp_path, generation_kwargs={"min_new_tokens": 8}))["sampling"]
    assert sampling.verdict == "cannot tell" and "the sampler has" not in sampling.cause, sampling


@pytest.mark.parametrize("name, value", [("chat_format", "chatml"), ("user_token_id", 195)])
def test_a_foreign_name_in_the_models_config_is_no_option(name, value, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.float32)
    setattr(model.generation_config, name, value)  # as a file of a hub's model holds it
    sampling = check_step(make(tmp_path, model=model))["sampling"]
    assert sampling.verdict == "same", sampling


def test_an_option_at_its_neutral_value_is_none(tmp_path):
    sampling = check_step(make(tmp_path, generation_kwargs={"encoder_repetition_penalty": 1.0}))["sampling"]
    assert sampling.verdict == "same", sampling


def sorted_in_place(completions, **_):
    before = list(completions)
    completions.sort(key=len)
    return [completions.index(text) / 8 for text in before]


def stripped_in_place(completions, **_):
    for (message,) in completions:
        message["content"] = "..."
    return [1.0] * len(completions)


def sorted_apart(completions, **_):
    return sorted_in_place(list(completions))


JUDGES = {"sorted": sorted_in_place, "stripped": stripped_in_place, "sorted apart": sorted_apart}


@pytest.mark.parametrize("name", JUDGES)
def test_a_function_that_writes_into_its_completions_is_named(name, tmp_path):
    trainer = make(tmp_path, funcs=[JUDGES[name], text_length])
    if name == "stripped":
        trainer.processing_class.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
        trainer.train_dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": x}] for x in PROMPTS]})
    rewards = check_step(trainer)["rewards"]
    assert (rewards.verdict == "different") == (name != "sorted apart"), rewards
    assert ("the reward functions get other completions than" in rewards.cause) == (name != "sorted apart"), rewards


def seeded(completions, **_):
    torch.manual_seed(5)
    return [float(len(text)) for text in completions]


def drawing(completions, **_):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        noise = torch.rand(len(completions))
    return (noise + torch.rand(len(completions))).tolist()


@pytest.mark.parametrize("function", [seeded, drawing])
def test_a_function_that_seeds_the_sampler_is_named(function, tmp_path):
    sampling = check_step(make(tmp_path, funcs=[length, function]))["sampling"]
    assert (sampling.verdict == "different") == (function is seeded), sampling
    assert ("seeded sets torch's seed" in sampling.cause) == (function is seeded), sampling


class ColumnsOfTheNextRow(trl.GRPOTrainer):
    def _calculate_rewards(self, inputs, *args):
        return super()._calculate_rewards(inputs[1:] + inputs[:1], *args)


class ColumnsMadeUp(trl.GRPOTrainer):
    def _calculate_rewards(self, inputs, *args):
        return super()._calculate_rewards([row | {"wanted": row["wanted"] + 0.5} for row in inputs], *args)


def near(completions, wanted, **_):
    return [-abs(len(text) - number) for text, number in zip(completions, wanted, strict=True)]


@pytest.mark.parametrize("cls, rows", [(ColumnsOfTheNextRow, "rows 3, 7"), (ColumnsMadeUp, ""), (trl.GRPOTrainer, "")])
def test_a_column_of_another_row_is_named(cls, rows, tmp_path):
    trainer = make(tmp_path, cls=cls, funcs=[near])
    trainer.train_dataset = Dataset.from_dict({"prompt": PROMPTS, "wanted": [5, 20, 30, 40]})
    rewards = check_step(trainer)["rewards"]
    assert (rewards.verdict == "different") == (rewards.where == "rows 3, 7") == bool(rows), rewards
    assert ("other values of 'wanted' than 2 of 8 rows" in rewards.cause) == bool(rows), rewards


def likely_near(completions, **columns):
    name = "".join(["wan", "ted"])  # which its code does not show
    return near(completions, columns[name])


@pytest.mark.parametrize(
    "function, verdict, said",
    [
        (near, "different", "groups [0, 1] hold several values of 'wanted': rewards are compared across tasks"),
        (likely_near, "cannot tell", "groups [0, 1] hold several values of 'wanted', which a reward function may read"),
        (length, "same", ""),
    ],
)
def test_groups_of_several_tasks_are_named(function, verdict, said, tmp_path):
    trainer = make(tmp_path, cls=OnePromptEach, funcs=[function])
    trainer.train_dataset = Dataset.from_dict({"prompt": [PROMPTS[0]] * 4, "wanted": [5, 20, 30, 40]})
    rewards = check_step(trainer)["rewards"]
    assert rewards.verdict == verdict and rewards.cause.startswith(said), rewards


class ColumnsLowered(trl.GRPOTrainer):
    def _calculate_rewards(self, inputs, *args):
        return super()._calculate_rewards([row | {"wanted": row["wanted"].strip().lower()} for row in inputs], *args)


class ColumnsLoweredAndMixed(ColumnsLowered):
    def _calculate_rewards(self, inputs, *args):
        return super()._calculate_rewards(inputs[4:] + inputs[:4], *args)


def has_wanted(completions, wanted, **_):
    return [len(text) / 10 + (word in text) for text, word in zip(completions, wanted, strict=True)]


@pytest.mark.parametrize("cls, mixed", [(ColumnsLowered, False), (ColumnsLoweredAndMixed, True)])
def test_a_column_that_is_lowered_is_its_rows_own(cls, mixed, tmp_path):
    trainer = make(tmp_path, cls=cls, funcs=[has_wanted], per_device_train_batch_size=16)
    trainer.train_dataset = Dataset.from_dict({"prompt": PROMPTS, "wanted": ["Yes", "yes ", "No", "no"]})
    rewards = check_step(trainer)["rewards"]
    assert (rewards.verdict == "different") == ("other values of 'wanted' than" in rewards.cause) == mixed, rewards


def test_texts_that_a_parser_strips_are_their_rows_own(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter"), padding_side="left")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    content = {"close_pattern": r"<\|im_end\|>", "content": "text"}
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "\n",
        "fields": {"content": content},
    }
    trainer = make(
        tmp_path,
        funcs=[text_length],
        max_completion_length=1,  # ' the' and 'the' are in it
        per_device_train_batch_size=64,
        num_generations=16,
        more={"processing_class": tokenizer},
    )
    trainer.train_dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": x}] for x in PROMPTS * 4]})
    rewards = check_step(trainer)["rewards"]
    assert rewards.verdict != "different", rewards


class ReferenceWithoutAdapter(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        ids, mask = ([output[f"prompt_{name}"], output[f"completion_{name}"]] for name in ("ids", "mask"))
        width = output["completion_ids"].shape[1]
        with torch.no_grad(), self.model.disable_adapter():
            scored = self._get_per_token_logps_and_entropies(self.model, torch.cat(ids, 1), torch.cat(mask, 1), width)
        return output | {"ref_per_token_logps": scored[0]}


@pytest.mark.parametrize("cls, verdict", [(ReferenceWithoutAdapter, "different"), (trl.GRPOTrainer, "same")])
def test_the_reference_of_a_trained_adapter_is_its_start(cls, verdict, tmp_path):
    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(resolve_model("starter")), LORA["peft_config"])
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.3)
    reference = check_step(make(tmp_path, cls=cls, model=model, beta=0.2))["reference"]
    assert reference.verdict == verdict, reference


@pytest.mark.parametrize("copied", [True, False])
def test_a_base_model_for_a_trained_adapters_reference_is_told(copied, tmp_path):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(resolve_model("starter")), LORA["peft_config"])
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.3)
    trainer = make(tmp_path, model=model, beta=0.2)
    if not copied:
        trainer.model.delete_adapter("ref")
    reference = check_step(trainer)["reference"]
    assert reference.verdict == ("same" if copied else "cannot tell"), reference
    assert ("it is not the model that the training starts from" in reference.cause) is not copied, reference


class DecaysAll(trl.GRPOTrainer):
    def get_decay_parameter_names(self, model):
        return [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("cls, verdict", [(DecaysAll, "cannot tell"), (trl.GRPOTrainer, "same")])
def test_decay_of_biases_and_norms_is_told(cls, verdict, tmp_path):
    update = check_step(make(tmp_path, cls=cls, weight_decay=0.1, learning_rate=1e-4))["update"]
    assert update.verdict == verdict, update
    assert ("which transformers" in update.cause or "what transformers decays" in update.cause) == (cls is DecaysAll), (
        update
    )


class MeansOfEachOther(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        first, second = (self._metrics["train"][f"rewards/{name}/mean"] for name in self.reward_func_names)
        first[-1], second[-1] = second[-1], first[-1]
        return output


@pytest.mark.parametrize("cls, verdict", [(MeansOfEachOther, "different"), (trl.GRPOTrainer, "same")])
def test_the_mean_of_another_function_is_no_metric_of_it(cls, verdict, tmp_path):
    metrics = check_step(make(tmp_path, cls=cls))["metrics"]
    assert metrics.verdict == verdict, metrics
    assert ("rewards/length/mean is logged as" in metrics.cause) == (cls is MeansOfEachOther), metrics


class DeviationsOfGroups(trl.GRPOTrainer):
    def _calculate_rewards(self, *args):
        self.sums = super()._calculate_rewards(*args)
        return self.sums

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        deviations = self.sums.sum(1).view(-1, self.num_generations).std(1)
        self._metrics["train"]["reward_std"][-1] = deviations.mean().item()
        return output


@pytest.mark.parametrize("cls", [DeviationsOfGroups, trl.GRPOTrainer, trl.RLOOTrainer])
def test_deviations_of_groups_are_none_of_all_rewards(cls, tmp_path):
    metrics = check_step(make(tmp_path, cls=cls))["metrics"]
    assert (metrics.verdict == "different") == (cls is DeviationsOfGroups), metrics
    assert "reward_std" in metrics.cause, metrics


class LengthsOfColumns(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        width = float(output["completion_ids"].shape[1] + 1)  # of a batch, with its padding
        for name in ("mean_length", "min_length"):
            self._metrics["train"][f"completions/{name}"][-1] = width
        return output


@pytest.mark.parametrize("cls", [LengthsOfColumns, trl.GRPOTrainer, trl.RLOOTrainer])
def test_a_logged_length_is_that_of_the_completions(cls, tmp_path):
    metrics = check_step(make(tmp_path, cls=cls))["metrics"]
    assert (metrics.verdict == "different") == (cls is LengthsOfColumns), metrics
    assert "completions/mean_length" in metrics.cause, metrics


class EntropyOfTheFirstOff(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self._metrics["train"]["entropy"][-1] += 5 * (self._step % 2 == 0)
        return loss


class LengthOfTheEndedOff(trl.GRPOTrainer):
    def _generate(self, *args):
        output = super()._generate(*args)
        self._metrics["train"]["completions/mean_terminated_length"][-1] = 99
        return output


class ReturnsTenTimesTheLoss(trl.GRPOTrainer):
    def training_step(self, *args):
        return 10 * super().training_step(*args)


LOGGED = {
    EntropyOfTheFirstOff: "micro-batch 0: entropy is logged as",
    LengthOfTheEndedOff: "completions/mean_terminated_length is logged as 99",
    ReturnsTenTimesTheLoss: "loss is logged as",
    trl.GRPOTrainer: "",
    trl.RLOOTrainer: "",
}


@pytest.mark.parametrize("cls", LOGGED)
def test_what_each_micro_batch_logs_is_compared(cls, tmp_path):
    trainer = make(tmp_path, cls=cls, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    metrics = check_step(trainer)["metrics"]
    assert metrics.verdict == ("different" if LOGGED[cls] else "same"), metrics
    assert metrics.cause.startswith(LOGGED[cls]), metrics


class KlTimesBeta(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self._metrics["train"]["kl"][-1] *= self.beta
        return loss


@pytest.mark.parametrize("cls, verdict", [(KlTimesBeta, "different"), (trl.GRPOTrainer, "same")])
def test_a_kl_that_is_logged_with_its_factor_is_named(cls, verdict, tmp_path):
    trainer = make(tmp_path, cls=cls, beta=0.1, learning_rate=1e-3, max_steps=2, disable_tqdm=True)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    metrics = check.reports[2]["metrics"]
    assert metrics.verdict == verdict and "kl " in metrics.cause, metrics


CLIP = ("clip_ratio/low_mean", "clip_ratio/high_mean")


class ClipRatiosExchanged(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        low, high = (self._metrics["train"][name] for name in CLIP)
        low[-1], high[-1] = high[-1], low[-1]
        return loss


CLIPS = {
    "exchanged": {"cls": ClipRatiosExchanged},
    "a token": {},
    "a sequence": {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon_high": 0.01},
    "limited": {"loss_type": "cispo", "epsilon_high": 1.05},
    "RLOO": {"cls": trl.RLOOTrainer, "epsilon_high": 0.28},
    "masked": {"mask_truncated_completions": True, "beta": 0.1},
    "limited first": {"delta": 1.1, "epsilon": 0.3},  # TRL counts the ratios that delta has limited
}


@pytest.mark.parametrize("name", daily(CLIPS, "exchanged", "a token", "RLOO"))
def test_clip_ratios_of_a_reused_update_are_compared(name, tmp_path):
    fields = {"num_iterations": 2, "learning_rate": 1e-2, "max_steps": 2, "disable_tqdm": True}
    trainer = make(tmp_path, **fields | CLIPS[name])
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    metrics = check.reports[2]["metrics"]
    assert "clip_ratio" in metrics.cause, metrics  # tokens beyond the clip on one side at least
    assert metrics.verdict == ("different" if name == "exchanged" else "same"), metrics
    assert check.reports[2].first == (metrics if name == "exchanged" else None)


@pytest.mark.parametrize("preserved, cls", [(False, trl.GRPOTrainer), (True, trl.GRPOTrainer), (False, LOSING)])
def test_a_layer_computed_again_has_the_same_dropout(preserved, cls, tmp_path):
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.3)
    options = {"use_reentrant": False, "preserve_rng_state": preserved}
    recomputed = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": options}
    trainer = make(tmp_path, cls=cls, more={"peft_config": config}, learning_rate=1e-4, **recomputed)
    gradient = check_step(trainer)["gradient"]
    assert (gradient.verdict == "different") == (not preserved), gradient
    assert ("preserve_rng_state=False" in gradient.cause) == (not preserved and cls is not LOSING), gradient


class DividedByAll(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        return loss * self.current_gradient_accumulation_steps / self.args.gradient_accumulation_steps


@pytest.mark.parametrize("cls", [DividedByAll, trl.GRPOTrainer])
def test_a_watch_checks_the_micro_batches_of_an_epochs_end(cls, tmp_path):
    parts = {"gradient_accumulation_steps": 3, "steps_per_generation": 1, "loss_type": "grpo", "max_steps": 1}
    trainer = make(tmp_path, cls=cls, **parts)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    assert len(PROMPTS) * 4 // 8 == 2  # micro-batches of an epoch, of the 3
    first = check.reports[1].first
    assert (first is not None) == (cls is DividedByAll), check.reports[1]
    assert first is None or first.name in ("loss", "gradient"), first


class LogsItsRate(trl.GRPOTrainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self._metrics["train"]["rate"].append(self.lr_scheduler.get_last_lr()[0])
        return loss


def test_a_step_that_needs_the_scheduler_says_how_to_make_it(tmp_path):
    trainer = make(tmp_path, cls=LogsItsRate)
    with pytest.raises(RunError, match=r"call trainer.create_optimizer_and_scheduler\(STEPS\)"):
        check_step(trainer)
    trainer.create_optimizer_and_scheduler(4)
    assert check_step(trainer).first is None


FAULTS_OF_SEVERAL = {  # processes -> where each lies
    "own tokens": "loss",
    "means of micro-batches": "loss",
    "one seed": "sampling",
    "other baseline": "advantages",
    "other mean": "metrics",
    "own baseline": "advantages",
    "not averaged, step 2": "gradient",
    "weights apart, step 2": "update",
    "other rank": "rewards",
    "other quantile": "loss",
}


@pytest.mark.slow
def test_each_of_two_processes_checks_its_own_rows(tmp_path):
    in_two_processes("steps_in_two_processes.py", tmp_path)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        for name, stages in found.items():
            different = [stage for stage, (verdict, _) in stages.items() if verdict == "different"]
            unknown = [stage for stage, (verdict, _) in stages.items() if verdict == "cannot tell"]
            assert different[:1] == [FAULTS_OF_SEVERAL[name]] if name in FAULTS_OF_SEVERAL else not different, stages
            assert unknown == (["advantages"] if name == "RLOO, normalized" else []), stages
