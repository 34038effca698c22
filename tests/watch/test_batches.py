"""The seam between generation and loss: rows that the loss takes otherwise than they were generated are named."""

import dataclasses
import gzip
import json
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
import trl
from conftest import daily
from step_cases import length, make

from workbench.errors import ParameterError
from workbench.replay.batches import check_batches
from workbench.replay.file import load_step, replay_step
from workbench.replay.grpo_math import LossRow
from workbench.replay.stages import check_metrics
from workbench.replay.step import MicroRows, SampledRow, Step
from workbench.training.recording import StepRecorder
from workbench.watch.attach import StepCheck
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow


class Seam(trl.GRPOTrainer):
    """Changes what the loss gets behind TRL's shuffle and split."""

    def _prepare_inputs(self, batch):
        return self.changed(dict(super()._prepare_inputs(batch)))


class NegatedAdvantages(Seam):
    def changed(self, inputs):
        return inputs | {"advantages": -inputs["advantages"]}


class SmallerAdvantages(Seam):
    def changed(self, inputs):
        return inputs | {"advantages": inputs["advantages"] * 0.985}


class NegatedInPlace(Seam):
    def changed(self, inputs):
        inputs["advantages"].neg_()
        return inputs


class RolledAdvantages(Seam):
    def changed(self, inputs):
        return inputs | {"advantages": inputs["advantages"].roll(1)}


class RowsApart(trl.GRPOTrainer):
    """Shuffles the advantages apart from their rows."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.order = torch.arange(len(output["advantages"])).flip(0)
        return output

    def _prepare_inputs(self, batch):
        generates = self._step % (self.args.steps_per_generation * self.num_iterations) == 0
        inputs = super()._prepare_inputs(batch)
        if generates:
            inputs["advantages"] = inputs["advantages"][self.order]
        return inputs


class LastTokenLost(Seam):
    def changed(self, inputs):
        mask = inputs["completion_mask"].clone()
        mask[torch.arange(len(mask)), mask.sum(1) - 1] = 0
        return inputs | {"completion_mask": mask}


class RowMasked(Seam):
    def changed(self, inputs):
        mask = inputs["completion_mask"].clone()
        mask[0] = 0
        return inputs | {"completion_mask": mask}


class OtherPrompt(Seam):
    def changed(self, inputs):
        return inputs | {name: inputs[name].roll(1, 0) for name in ("prompt_ids", "prompt_mask")}


class PromptCut(Seam):
    def changed(self, inputs):
        mask = inputs["prompt_mask"].clone()
        mask[torch.arange(len(mask)), mask.argmax(1)] = 0
        return inputs | {"prompt_mask": mask}


class PromptReplaced(trl.GRPOTrainer):
    """The prompt that is scored is not the one that was sampled with."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return output | {"prompt_ids": torch.where(output["prompt_mask"] > 0, 70, output["prompt_ids"])}


class TokenReplaced(Seam):
    def changed(self, inputs):
        ids = inputs["completion_ids"].clone()
        ids[0, 2] = (ids[0, 2] + 1) % 300
        return inputs | {"completion_ids": ids}


class RowTwice(Seam):
    def changed(self, inputs):
        order = torch.arange(len(inputs["advantages"]))
        order[-1] = 0
        return {name: x[order] if torch.is_tensor(x) and x.dim() else x for name, x in inputs.items()}


class RowLeftOut(Seam):
    def changed(self, inputs):
        return {name: x[1:] if torch.is_tensor(x) and x.dim() else x for name, x in inputs.items()}


class OldLogpsOff(Seam):
    def changed(self, inputs):
        return inputs | {"old_per_token_logps": inputs["old_per_token_logps"] - 1}


class ReferenceOff(Seam):
    def changed(self, inputs):
        return inputs | {"ref_per_token_logps": inputs["ref_per_token_logps"].roll(1, 0)}


class OldSumsOff(trl.RLOOTrainer):
    def _prepare_inputs(self, batch):
        inputs = dict(super()._prepare_inputs(batch))
        return inputs | {"old_logps": inputs["old_logps"] - 1}


FAULTS = {
    "negated": ({"cls": NegatedAdvantages}, "these advantages are -1 times those of the generation"),
    "smaller, bf16": ({"cls": SmallerAdvantages, "bf16": True}, "these advantages are 0.985 times"),
    "negated in place": ({"cls": NegatedInPlace}, "are -1 times"),
    "rolled": ({"cls": RolledAdvantages}, "of 8 rows of the loss are not as they were generated (advantage"),
    "apart": ({"cls": RowsApart}, "(advantage"),
    "last token": ({"cls": LastTokenLost}, "(mask 8)"),
    "masked row": ({"cls": RowMasked}, "row 0: mask of 0 tokens instead of"),
    "other prompt": ({"cls": OtherPrompt}, "is not the one it was sampled with"),
    "prompt cut": ({"cls": PromptCut}, "is not the one it was sampled with"),
    "prompt replaced": ({"cls": PromptReplaced}, "(prompt 8)"),
    "token": ({"cls": TokenReplaced}, "in the first 2 alone"),
    "row twice": ({"cls": RowTwice}, "row 7: is there more often than it was generated; 1 generated rows are in no"),
    "left out": ({"cls": RowLeftOut}, "1 generated rows are in no micro-batch"),
    "old log-probs": ({"cls": OldLogpsOff, "num_iterations": 2}, "(old log-probs 8)"),
    "reference": ({"cls": ReferenceOff, "beta": 0.1}, "reference log-probs"),
    "old sums": ({"cls": OldSumsOff}, "(old log-probs 8)"),
    "of two micro-batches": ({"cls": RolledAdvantages, "gradient_accumulation_steps": 2}, "of 16 rows of the loss"),
}


@pytest.mark.parametrize(
    "name",
    daily(
        FAULTS,
        "negated",
        "smaller, bf16",
        "last token",
        "other prompt",
        "row twice",
        "old log-probs",
        "reference",
        "of two micro-batches",
    ),
)
def test_a_row_that_the_loss_takes_otherwise_is_named(name, tmp_path):
    options, cause = FAULTS[name]
    first = check_step(make(tmp_path, **options)).first
    assert first is not None and first.name == "batches" and cause in first.cause, first
    assert "are 1 times" not in first.cause, first


class SamplesEachTime(trl.GRPOTrainer):
    """Forgets what it has sampled before each micro-batch."""

    def _prepare_inputs(self, batch):
        self._buffered_inputs = None
        return super()._prepare_inputs(batch)


def test_rows_of_a_generation_that_is_dropped_are_named(tmp_path):
    trainer = make(tmp_path, cls=SamplesEachTime, gradient_accumulation_steps=2, per_device_train_batch_size=4)
    first = check_step(trainer).first
    assert first is not None and first.name == "batches", first
    assert first.cause.startswith("4 generated rows are in no micro-batch"), first


class SecondPassApart(trl.GRPOTrainer):
    """Its second pass has the rows in another order than their old log-probs."""

    def _prepare_inputs(self, batch):
        inputs = super()._prepare_inputs(batch)
        if self._step % self.num_iterations == 0:
            return inputs
        return {name: x.flip(0) if name != "old_per_token_logps" and x.dim() else x for name, x in inputs.items()}


class FadingAdvantages(trl.GRPOTrainer):
    """Each pass leaves smaller advantages in the buffer."""

    def training_step(self, *args):
        loss = super().training_step(*args)
        for inputs in self._buffered_inputs:
            inputs["advantages"].mul_(0.5)
        return loss


PASSES = [
    (SecondPassApart, "(old log-probs 8)"),
    (FadingAdvantages, "these advantages are 0.5 times those of the generation"),
    (trl.GRPOTrainer, ""),
    (trl.RLOOTrainer, ""),
]


@pytest.mark.parametrize("cls, said", PASSES)
def test_a_second_pass_is_compared_with_its_generation(cls, said, tmp_path):
    plain, checked = (
        make(tmp_path / name, cls=cls, num_iterations=2, max_steps=3, learning_rate=1e-3, disable_tqdm=True)
        for name in "ab"
    )
    check = StepCheck(checked, 1, tell=lambda line: None)
    for trainer in (plain, checked):
        torch.manual_seed(0)
        trainer.train()
    verdicts = [check.reports[step]["batches"].verdict for step in (1, 2, 3)]
    assert verdicts == ["same", "different" if said else "same", "same"], check.reports[2]
    assert said in check.reports[2]["batches"].cause
    assert all(map(torch.equal, plain.model.parameters(), checked.model.parameters()))


class FirstPartAgain(trl.GRPOTrainer):
    """Takes its part of a generation by the micro-batch of an update."""

    def _prepare_inputs(self, batch):
        super()._prepare_inputs(batch)
        return self._buffered_inputs[self._step % self.args.gradient_accumulation_steps]


@pytest.mark.parametrize("cls, verdict", [(FirstPartAgain, "different"), (trl.GRPOTrainer, "same")])
def test_rows_that_an_earlier_update_took_are_named(cls, verdict, tmp_path):
    parts = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "per_device_train_batch_size": 2}
    trainer = make(tmp_path, cls=cls, max_steps=2, disable_tqdm=True, **parts)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    batches = check.reports[2]["batches"]
    assert batches.verdict == verdict, batches
    assert ("is there more often than it was generated" in batches.cause) == (verdict == "different"), batches
    assert ("4 generated rows are in no micro-batch" in batches.cause) == (verdict == "different"), batches


def kept(folder, steps=(1, 2), **options):
    trainer = make(folder / "out", max_steps=max(steps), **options)
    recorder = StepRecorder(trainer, folder, list(steps))
    trainer.train()
    assert recorder.on
    return [folder / f"steps/step-{number:06d}.json.gz" for number in steps]


KEPT = ("negated", "last token", "other prompt", "row twice", "old log-probs", "old sums")


@pytest.mark.parametrize("name", daily(KEPT, "other prompt", "old sums"))
def test_a_seam_of_a_kept_step_is_named(name, tmp_path):
    options, cause = FAULTS[name]
    for path in kept(tmp_path, **options):
        first = replay_step(path).first
        assert first is not None and first.name == "batches" and cause in first.cause, first


def same_lengths(completions, **_):
    return [float(number) for number in range(len(completions))]


class Copies(trl.GRPOTrainer):
    """Two equal completions in each group, which have different rewards."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        return [list(ids[n - n % 2]) for n in range(len(ids))], *rest


LAYOUTS = {
    "half of a generation": {"steps_per_generation": 4, "per_device_train_batch_size": 4},
    "two batches an update": {"steps_per_generation": 1, "gradient_accumulation_steps": 2},
    "a batch twice an update": {"steps_per_generation": 1, "num_iterations": 2, "gradient_accumulation_steps": 2},
    "an update over two batches": {
        "per_device_train_batch_size": 4,
        "steps_per_generation": 3,
        "gradient_accumulation_steps": 2,
    },
    "copies": {"cls": Copies, "funcs": [same_lengths]},
    "masked whole": {"mask_truncated_completions": True, "max_completion_length": 4},
    "padded to a multiple": {"pad_to_multiple_of": 8, "beta": 0.1, "num_iterations": 2},
    "RLOO": {"cls": trl.RLOOTrainer, "num_iterations": 2, "steps_per_generation": 2},
}


@pytest.mark.parametrize("name", daily(LAYOUTS, "half of a generation", "an update over two batches", "copies"))
def test_rows_in_every_layout_are_as_they_were_generated(name, tmp_path):
    report = check_step(make(tmp_path / "a", **LAYOUTS[name]))
    assert report["batches"].verdict == "same", report
    for path in kept(tmp_path / "b", steps=(1, 2, 3, 4), **LAYOUTS[name]):
        assert replay_step(path)["batches"].verdict == "same", (path, replay_step(path))


def test_a_data_set_below_one_generation_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="train_dataset has fewer prompts than one generation takes"):
        check_step(make(tmp_path, steps_per_generation=3))


def test_copies_that_change_places_are_a_multiset(tmp_path):
    class Swapped(Copies):
        def _prepare_inputs(self, batch):
            inputs = super()._prepare_inputs(batch)
            return {name: x.flip(0) if torch.is_tensor(x) and x.dim() else x for name, x in inputs.items()}

    assert check_step(make(tmp_path, cls=Swapped, funcs=[same_lengths]))["batches"].verdict == "same"


def test_copies_with_advantages_that_are_near_are_told_apart():
    def step(taken):
        row = SampledRow([5], [6], np.ones(1), True, 1, False, np.ones(1))
        rows = [LossRow(np.zeros(1), advantage, np.ones(1)) for advantage in taken]
        ids = [[6]] * len(taken)
        micro = MicroRows(rows, [[5]] * len(taken), ids, None, 0.0, ids, [np.ones(1)] * len(taken), 0)
        settings = {"gradient_accumulation_steps": 1, "num_generations": 3}
        advantages = [np.array([0.0, 0.019, 0.038])]
        return Step("GRPO", "bfloat16", 1, 0, settings, [row] * 3, ["a"] * 3, [], None, advantages, [micro])

    assert check_batches(step([0.019, 0.038, 0.0])).verdict == "same"
    assert check_batches(step([0.019, 0.038, 0.1])).verdict == "different"


def test_a_file_without_whole_rows_cannot_be_told(tmp_path):
    (path,) = kept(tmp_path, steps=[1])
    content = json.loads(gzip.decompress(path.read_bytes()))
    new_in_step, new_in_row = ("pad_token_id", "deviations", "begun"), ("old_logps", "old_sum", "ref_logps")
    for name in new_in_step:
        del content["step"][name]
    for row in content["step"]["rows"]:
        for name in (*new_in_row, "sampled_logps", "correction"):
            del row[name]
    for micro in content["step"]["micro_batches"]:
        for name in ("completion_ids", "completion_mask", "generation", "entropy_coef", "entropy_threshold"):
            del micro[name]
    path.write_bytes(gzip.compress(json.dumps(content | {"format": 1}).encode()))
    batches = replay_step(path)["batches"]
    assert batches.verdict == "cannot tell" and "the file is of an older workbench" in batches.cause
    assert replay_step(path).first is None


# --- settings that the trainer does not take from its args -----------------------------------------------------------


class OtherSettings(trl.GRPOTrainer):
    other: ClassVar[dict] = {}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        vars(self).update(self.other)


SETTINGS = {
    "reward_weights": ([0.1, 5.0], {"reward_weights": torch.ones(2)}, "rewards"),
    "num_generations": (4, {"num_generations": 2}, "rewards"),
    "temperature": (0.7, {"temperature": 1.0}, "sampling"),
    "scale_rewards": ("none", {"scale_rewards": "group"}, "advantages"),
    "epsilon_high": (None, {"epsilon_high": 0.4}, "loss"),
    "loss_type": ("grpo", {"loss_type": "bnpo"}, "loss"),
    "mask_truncated_completions": (True, {"mask_truncated_completions": False}, "mask"),
}


@pytest.mark.parametrize("name", daily(SETTINGS, "reward_weights", "temperature", "loss_type"))
def test_a_setting_that_the_trainer_ignores_is_named(name, tmp_path):
    value, other, stage = SETTINGS[name]
    cls = type("Ignoring", (OtherSettings,), {"other": other})
    trainer = make(tmp_path, cls=cls, **{name: value})
    report = check_step(trainer)
    of_args = trainer.args.epsilon if name == "epsilon_high" else value
    assert report[stage].verdict == "different", report
    assert report[stage].cause.startswith(f"args.{name} is {of_args}, the trainer has "), report
    assert report.first is not None and report.first.name == stage


def test_a_setting_that_a_callback_changes_is_no_fault(tmp_path):
    trainer = make(tmp_path, beta=0.1, max_steps=1)
    trainer.train()
    trainer.beta = 0.05
    report = check_step(trainer)
    assert report.first is None and report["loss"].verdict == "cannot tell"
    assert report["loss"].cause.startswith("args.beta is 0.1, the trainer has 0.05 (a callback may have changed it)")


def test_settings_of_a_kept_step_are_compared(tmp_path):
    cls = type("Ignoring", (OtherSettings,), {"other": {"reward_weights": torch.ones(2)}})
    (path,) = kept(tmp_path, steps=[1], cls=cls, reward_weights=[0.1, 5.0])
    rewards = replay_step(path)["rewards"]
    assert (
        rewards.verdict == "cannot tell"
        and "args.reward_weights is [0.1, 5.0], the trainer has [1.0, 1.0]" in rewards.cause
    )


# --- healthy settings ------------------------------------------------------------------------------------------------


class OfEachToken(trl.GRPOTrainer):
    """Advantages of shape (B, T), for which TRL's loss leaves room."""

    by_token = staticmethod(lambda advantages, mask: advantages * torch.ones_like(mask))

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        advantages = self.by_token(output["advantages"][:, None], output["completion_mask"])
        return output | {"advantages": advantages}


class Discounted(OfEachToken):
    by_token = staticmethod(lambda advantages, mask: advantages * 0.9 ** (mask.cumsum(1) - 3) - 0.1)


LOSSES = [{"loss_type": name} for name in ("dapo", "sapo", "cispo", "vespo", "grpo")]
LOSSES += [{"importance_sampling_level": "sequence", "num_iterations": 2}, {"off_policy_mask_threshold": 0.1}]


@pytest.mark.parametrize(
    "fields", daily(LOSSES, LOSSES[0], LOSSES[5]), ids=lambda fields: "-".join(map(str, fields.values()))
)
def test_an_advantage_for_each_token_is_checked(fields, tmp_path):
    report = check_step(make(tmp_path, cls=Discounted, beta=0.05, **fields))
    assert report.first is None and report["batches"].verdict == "same", report
    assert report["loss"].verdict == report["gradient"].verdict == "same", report
    assert "each token an advantage of its own" in report["advantages"].cause
    assert "in the mean of its tokens" in report._repr_html_()


def test_equal_advantages_of_all_tokens_are_the_rows(tmp_path):
    assert check_step(make(tmp_path / "a", cls=OfEachToken))["advantages"].verdict == "same"
    (path,) = kept(tmp_path / "b", steps=[1], cls=OfEachToken)
    assert load_step(path).step.advantages[0].ndim == 2 and replay_step(path).first is None


def as_array(completions, **_):
    return np.array([len(text) / 10 for text in completions])


def as_tensor(completions, **_):
    return torch.tensor([len(text) / 10 for text in completions])


def as_iterator(completions, **_):
    return (len(text) / 10 for text in completions)


def test_rewards_in_any_sequence_are_read(tmp_path):
    report = check_step(make(tmp_path, funcs=[as_array, as_tensor, as_iterator]))
    assert report["rewards"].verdict == "same", report


def refusing(completions, **_):
    return [-math.inf if i % 4 == 0 else float(len(text)) for i, text in enumerate(completions)]


def test_rewards_that_are_not_finite_are_named(tmp_path):
    for cls in (trl.GRPOTrainer, trl.RLOOTrainer):
        report = check_step(make(tmp_path, cls=cls, funcs=[length, refusing]))
        assert report.first.name == "rewards", report
        assert report.first.cause == "2 rewards are not finite: refusing" and report.first.where == "rows 0, 4"
        assert report["advantages"].verdict == "cannot tell" and report["metrics"].verdict == "same", report
    clipped = make(tmp_path, cls=trl.RLOOTrainer, funcs=[refusing], reward_clip_range=(-1.0, 1.0))
    assert check_step(clipped).first is None


def test_one_call_shows_rewards_of_equal_completions(tmp_path):
    rewards = check_step(make(tmp_path, cls=Copies, funcs=[same_lengths]))["rewards"]
    assert rewards.verdict == "cannot tell" and rewards.cause.endswith("a function is random or mixes up rows")


def one_judged(completions, **_):
    return [1.0 if number % 4 == 0 else None for number in range(len(completions))]


def test_a_group_with_one_judged_row_is_no_difference(tmp_path):
    report = check_step(make(tmp_path, funcs=[one_judged]))
    assert report.first is None and "frac_reward_zero_std" not in report["metrics"].cause, report


@pytest.mark.parametrize("last", daily([float("inf"), 0.5], float("inf")))
def test_an_entropy_coefficient_that_adapts_is_modelled(last, tmp_path):
    fields = {
        "use_adaptive_entropy": True,
        "entropy_coef": 0.01,
        "entropy_target": 1.0,
        "gradient_accumulation_steps": 2,
    }
    trainer = make(tmp_path / "a", **fields)
    trainer._last_world_entropy = last
    report = check_step(trainer)
    assert report.first is None and report["loss"].verdict == "same", report
    for path in kept(tmp_path / "b", steps=(1, 2, 3), **fields | {"entropy_target": 8.0}):
        assert replay_step(path)["loss"].verdict == "same", replay_step(path)
    assert load_step(path).step.micro_batches[0].entropy_coef > 0


class MovesWithin(trl.GRPOTrainer):
    """Moves its coefficient at each micro-batch, where TRL moves it at the update."""

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.entropy_coef += 0.5 * (not self.accelerator.sync_gradients)
        return loss


@pytest.mark.parametrize("cls, verdict", [(MovesWithin, "different"), (trl.GRPOTrainer, "same")])
def test_a_coefficient_that_moves_within_an_update_is_named(cls, verdict, tmp_path):
    fields = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "gradient_accumulation_steps": 2}
    trainer = make(tmp_path, cls=cls, entropy_target=50.0, **fields)
    trainer._last_world_entropy = 0.1
    loss = check_step(trainer)["loss"]
    assert loss.verdict == verdict, loss


@pytest.mark.parametrize("dtype, verdict", [("bfloat16", "same"), ("float32", "different")])
def test_an_entropy_may_be_rounded_as_the_weights_are(dtype, verdict, tmp_path):
    step = load_step(kept(tmp_path)[0]).step
    entropy = float(torch.tensor(step.metrics["entropy"], dtype=torch.bfloat16))
    metrics = check_metrics(dataclasses.replace(step, dtype=dtype, metrics={"entropy": entropy}), [])
    assert metrics is not None and metrics.verdict == verdict, metrics


class OwnLoss(trl.GRPOTrainer):
    """Has a loss of its own, which does not go through TRL's methods."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        there, trained = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1), inputs["completion_mask"]
        logps = model(input_ids=ids, attention_mask=there).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])
        own = logps[:, -trained.shape[1] :, 0]
        return -(own * inputs["advantages"][:, None] * trained).sum() / trained.sum()


class OwnLossOfOthers(OwnLoss):
    def _prepare_inputs(self, batch):
        inputs = super()._prepare_inputs(batch)
        return inputs | {"advantages": inputs["advantages"].flip(0)}


@pytest.mark.parametrize("cls, verdict", [(OwnLoss, "same"), (OwnLossOfOthers, "different")])
def test_the_batches_of_a_loss_of_ones_own_are_compared(cls, verdict, tmp_path):
    report = check_step(make(tmp_path / "a", cls=cls))
    assert report["batches"].verdict == verdict and ("takes 8 rows" in report["batches"].cause) == (
        verdict == "same"
    ), report
    assert {stage.name for stage in report.undecided} == {"log-probs"}, report
    assert "elsewhere" in report["log-probs"].cause and "this loss takes its own" in report["loss"].cause
    for path in kept(tmp_path / "b", cls=cls):
        assert replay_step(path)["batches"].verdict == verdict
