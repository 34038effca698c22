"""Ninety-six faults of a training step, by name: 68 of every stage, 20 at the seams between stages, 8 off-policy.

    python -m benchmarks.named_faults [--only NAME ...] [--column now] [--out data/measured/named_faults.json]

Each was named before the check was read, or, at the seams, chosen where it looked open. `check_step` and, where no stage
differs, the watch look for each as for those of `planted_faults`. Of an off-policy fault a step is kept and replayed, too.
`--column before` stores what an earlier check said.
"""

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
import trl

from benchmarks.faults import TWO, Fault, build, measure, measure_all, summary, vowels
from benchmarks.planted_faults import LengthPlusOne, vowels_of_most
from tools.record import ROOT, run_main
from workbench.replay.file import replay_step
from workbench.training.recording import StepRecorder

sys.path += [str(ROOT), str(ROOT / "tests")]  # faults that tests of one kind of fault have, too

from step_cases import CopiedSamples, OtherMetric, OtherOldLogps, ShiftedRewards, ShorterMask, in_bf16

from tests.watch import test_batches as seams
from tests.watch import test_causes as scoring
from tests.watch import test_check_step as backward
from tests.watch import test_off_policy as off_policy
from tests.watch import test_update as updates

LONG = {"per_device_train_batch_size": 32, "max_completion_length": 64}  # a few hundred tokens
FREE: dict[str, Any] = {"num_iterations": 2, "learning_rate": 1e-2}  # ratios of the second update are far from 1
LOSS, RATIO = "loss or gradient", "ratios or loss or gradient"
VALUE = "model.layers.0.self_attn.v_proj.weight"
KL, GSPO = off_policy.KL_OF_GRPO, off_policy.GSPO
FAULTS: dict[str, Fault] = {}
OFF_POLICY: dict[str, int] = {}  # the update that is kept and replayed
TABLE_OF: dict[str, str] = {}


def enter(table: str, name: str, stage: str, cls: type = trl.GRPOTrainer, own: Any = None, **settings: Any) -> None:
    """Enter a fault into FAULTS: a class, or settings of its `own`, which its twin does not have."""
    twin = next(base for base in cls.__mro__ if base.__module__.startswith("trl."))
    FAULTS[name] = Fault(cls, twin, stage, settings, name, own or {})
    TABLE_OF[name] = table


fault = functools.partial(enter, "of every stage")
seam = functools.partial(enter, "at the seams")


def overriding(method: str, change: Callable, base: type = trl.GRPOTrainer) -> type:
    """A trainer of which one method returns what `change(trainer, result, *arguments)` makes of it."""

    def changed(self, *args, **kwargs):
        return change(self, getattr(super(child, self), method)(*args, **kwargs), *args)

    child = type("Faulty", (base,), {method: changed})
    return child


def scored(change: Callable[[dict, Any], dict], base: type = trl.GRPOTrainer) -> type:
    """A trainer whose scored completions are `change(output, trainer)`, with the number of tokens that its mask has."""

    def change_output(trainer, output, *_):
        output = output | change(output, trainer)
        if "num_items_in_batch" in output:  # RLOO has none
            output["num_items_in_batch"] = output["completion_mask"].sum()
        return output

    return overriding("_generate_and_score_completions", change_output, base)


def rewarded(change: Callable[[torch.Tensor], torch.Tensor]) -> type:
    """A trainer whose table of rewards (N, F) is changed."""
    return overriding("_calculate_rewards", lambda trainer, rewards, *_: change(rewards))


def advantages_from(change: Callable[[torch.Tensor], torch.Tensor], base: type = trl.GRPOTrainer) -> type:
    """A trainer whose advantages (N,) are made of the sums of the rewards (N,)."""

    def note(trainer, rewards, *_):
        trainer.sums = rewards.nansum(1)
        return rewards

    noting = overriding("_calculate_rewards", note, base)
    return scored(lambda output, trainer: {"advantages": change(trainer.sums)}, noting)


def advantages_as(change: Callable[[torch.Tensor], torch.Tensor]) -> type:
    return scored(lambda output, trainer: {"advantages": change(output["advantages"])})


def losing(change: Callable[[dict], dict], base: type = trl.GRPOTrainer) -> type:
    """A trainer whose loss gets other inputs."""

    class Losing(base):
        def _compute_loss(self, model, inputs):
            return super()._compute_loss(model, inputs | change(inputs))

    return Losing


def with_attributes(**values: Any) -> type:
    """A trainer that has other values while it computes its loss."""

    class WithAttributes(trl.GRPOTrainer):
        def _compute_loss(self, model, inputs):
            before = {name: getattr(self, name) for name in values}
            vars(self).update(values)
            try:
                return super()._compute_loss(model, inputs)
            finally:
                vars(self).update(before)

    return WithAttributes


def after_backward(change: Callable[[str, torch.Tensor], torch.Tensor]) -> type:
    """A trainer that changes each gradient, by the name of its parameter, behind the last backward pass of an update."""

    def change_gradients(trainer, loss, model, *_):
        if trainer._step % trainer.current_gradient_accumulation_steps == 0:
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    parameter.grad = change(name, parameter.grad)
        return loss

    return overriding("training_step", change_gradients)


def times(part: str, factor: float) -> type:
    """A trainer that multiplies the gradients of parameters whose name has a part."""
    return after_backward(lambda name, gradient: gradient * factor if part in name else gradient)


def with_model(change: Callable[[Any], Any]) -> type:
    """A trainer that changes its model when it is made."""

    class WithModel(trl.GRPOTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            change(self.model)

    return WithModel


def frozen(keeps: Callable[[str], bool]) -> type:
    """A trainer that trains some parameters alone."""

    def freeze(model):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(keeps(name))

    return with_model(freeze)


def optimizer_with(change: Callable) -> type:
    return updates.with_optimizer(change)["cls"]


# --- sampling, turns ----------------------------------------------------------------------------------------------------


class ShortestOfThree(trl.GRPOTrainer):
    def _generate_single_turn(self, *args, **kwargs):
        three = [super(ShortestOfThree, self)._generate_single_turn(*args, **kwargs) for _ in range(3)]
        decode = self.processing_class.decode
        rows = zip(*(ids for ids, *_ in three), strict=True)
        return [min(row, key=lambda ids: len(decode(ids))) for row in rows], *three[0][1:]


def generated(change: Callable) -> type:
    """A trainer whose prompts and completions, ids of each, are `change(trainer, prompts, completions)`."""

    def change_ids(trainer, result, *_):
        return *change(trainer, *result[:2]), *result[2:]

    return overriding("_generate", change_ids)


def encoded_again(trainer, prompts, completions):
    tokenizer = trainer.processing_class
    return prompts, [tokenizer.encode(tokenizer.decode(ids)) for ids in completions]


def exchanged(trainer, prompts, completions):
    return prompts, [completions[-1], *completions[1:-1], completions[0]]


for name, option in {
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.9": {"temperature": 0.9},
    "repetition penalty 1.3": {"repetition_penalty": 1.3},
    "min_p 0.3": {"min_p": 0.3},
    "no repeated pairs of tokens": {"no_repeat_ngram_size": 2},
    "greedy": {"do_sample": False},
}.items():
    fault(f"sampled with {name}", "sampling", own={"generation_kwargs": option}, **LONG)
fault("sampled with top_k 5", "sampling", own={"top_k": 5}, **LONG)
fault("copies in a group", "sampling", CopiedSamples)
fault("the shortest of three is taken", "sampling", ShortestOfThree, **LONG)
fault("prompts cut after sampling", "turns", generated(lambda _, prompts, ids: ([p[-2:] for p in prompts], ids)))
fault("completions encoded again", "turns", generated(encoded_again))
fault("completions of two prompts swapped", "turns", generated(exchanged))
fault("loss has another prompt", "batches", seams.PromptReplaced)

# --- mask ---------------------------------------------------------------------------------------------------------------


def without_ends(output, trainer):
    ends = torch.isin(output["completion_ids"], torch.tensor(trainer.eos_token_ids))
    return {"completion_mask": output["completion_mask"] * ~ends}


fault("mask: last token left out", "mask", ShorterMask)
fault("mask: stop token left out", "mask", scored(without_ends), stops=True)
fault("mask: pads count", "mask", scoring.NothingMasked, stops=True)
fault(
    "mask: one token late",
    "mask",
    scored(lambda output, trainer: {"completion_mask": output["completion_mask"].roll(1, 1)}),
    stops=True,
)
fault("mask: truncated rows left out", "mask", scoring.NoTruncated)
fault(
    "mask in the loss: last token left out",
    f"log-probs or {LOSS}",
    scoring.LeftOutInLoss,
)
fault(
    "mask in the loss: pads count",
    LOSS,
    losing(lambda inputs: {"completion_mask": torch.ones_like(inputs["completion_mask"])}),
    stops=True,
)

# --- rewards, advantages ------------------------------------------------------------------------------------------------


def of_next_row(completions, **_):
    values = vowels(completions)
    return [*values[1:], values[0]]


def in_groups(size: int, divisor: Callable) -> Callable[[torch.Tensor], torch.Tensor]:
    def normalized(sums):
        groups = sums.view(-1, size)
        return ((groups - groups.mean(1, keepdim=True)) / (divisor(groups) + 1e-4)).flatten()

    return normalized


def deviation(groups):
    return groups.std(1, keepdim=True)


class WeightsIgnored(seams.OtherSettings):
    other: ClassVar[dict] = {"reward_weights": torch.ones(2)}


fault("rewards of the next row, in the trainer", "rewards", ShiftedRewards)
fault("a missing reward as 0", "rewards", rewarded(torch.nan_to_num), funcs=(vowels, vowels_of_most))
fault("rewards of the next row, in the function", "rewards", own={"funcs": (of_next_row,)}, funcs=(vowels,))
fault("reward_weights ignored", "rewards", WeightsIgnored, reward_weights=[0.1, 5.0])
fault("the batch as one group", "advantages", advantages_from(in_groups(8, deviation)))
fault("groups of two", "advantages", advantages_from(in_groups(2, deviation)))
fault("advantages negated", "advantages", advantages_as(torch.neg))
fault(
    "standard deviation of n",
    "advantages",
    advantages_from(in_groups(4, lambda groups: groups.std(1, keepdim=True, correction=0))),
)
fault("advantages clipped at 0.5", "advantages", advantages_as(lambda values: values.clamp(-0.5, 0.5)))
fault("advantage of the next row", "advantages", advantages_as(lambda values: values.roll(-1)))
fault("positive advantages alone", "advantages", advantages_as(lambda values: values.clamp(min=0)))
fault(
    "RLOO: a row in its own baseline",
    "advantages",
    advantages_from(in_groups(4, lambda groups: 1.0 - 1e-4), trl.RLOOTrainer),
)

# --- log-probs ----------------------------------------------------------------------------------------------------------


class PadsAttended(trl.GRPOTrainer):
    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, *args, **kwargs):
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, torch.ones_like(attention_mask), *args, **kwargs
        )


def half_detached(trainer, result, *_):
    half = result[0].shape[1] // 2
    return torch.cat([result[0][:, :half], result[0][:, half:].detach()], 1), *result[1:]


class OtherReferenceModel(trl.GRPOTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        with torch.no_grad():
            for parameter in self.ref_model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))


fault("log-probs: temperature forgotten", "log-probs", scoring.ForgottenTemperature, temperature=0.7)
fault("log-probs: dropout", "log-probs", own={"model": scoring.with_attention_dropout})
fault(
    "log-probs: positions count pads",
    "log-probs",
    own={"model": "starter-gpt2"},
    disable_dropout=True,
)
fault("log-probs: attention to pads", "log-probs", PadsAttended)
fault("log-probs: of the token before", "log-probs", scoring.ShiftedByOne)
fault("log-probs: divided by the length", "log-probs", scoring.OverLength)
fault("log-probs: rounded to bf16", "log-probs", scoring.RoundedToBf16)
fault(
    "log-probs: half without gradient",
    LOSS,
    overriding("_get_per_token_logps_and_entropies", half_detached),
)
fault("reference is another model", "reference", OtherReferenceModel, beta=0.1)

# --- loss ---------------------------------------------------------------------------------------------------------------


class NotDetached(torch.Tensor):
    def detach(self):
        return self.as_subclass(torch.Tensor)


class CispoNotDetached(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        clamp = torch.clamp
        with mock.patch.object(torch, "clamp", lambda *args, **limits: clamp(*args, **limits).as_subclass(NotDetached)):
            return super()._compute_loss(model, inputs)


def loss_times(factor: Callable[[Any], float]) -> type:
    return overriding("_compute_loss", lambda trainer, loss, *_: loss * factor(trainer))


class LowEntropyKept(trl.GRPOTrainer):
    def get_high_entropy_mask(self, entropies, mask, threshold):
        return mask.bool() & ~super().get_high_entropy_mask(entropies, mask, threshold)


class OtherQuantile(trl.GRPOTrainer):
    def get_high_entropy_mask(self, entropies, mask, threshold):
        return super().get_high_entropy_mask(entropies, mask, threshold / 2)


class OwnTokensOfMicroBatch(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        own = inputs["completion_mask"].sum() * self.current_gradient_accumulation_steps
        return super()._compute_loss(model, inputs | {"num_items_in_batch": own})


class OtherSapo(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        before, self.args.sapo_temperature_pos = self.args.sapo_temperature_pos, 2.0
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.args.sapo_temperature_pos = before


fault("k1 for the KL's k3", LOSS, off_policy.own_loss(off_policy.of_token, off_policy.k1), num_iterations=2, **KL)
fault(
    "sum for the mean of a sequence",
    RATIO,
    off_policy.own_loss(off_policy.of_sum, off_policy.k3),
    num_iterations=2,
    **KL | GSPO,
)
fault("CISPO: weights not detached", LOSS, CispoNotDetached, loss_type="cispo", epsilon_high=5.0)
fault("loss x 1.1", LOSS, loss_times(lambda trainer: 1.1))
fault(
    "loss not divided by the micro-batches",
    LOSS,
    loss_times(lambda trainer: trainer.current_gradient_accumulation_steps),
    **TWO,
)
fault("DAPO: tokens of the micro-batch", LOSS, OwnTokensOfMicroBatch, stops=True, **TWO)
fault("Dr. GRPO: another constant", LOSS, with_attributes(max_completion_length=20), loss_type="dr_grpo")
fault("SAPO: another temperature", LOSS, OtherSapo, loss_type="sapo")
fault("tokens of low entropy", LOSS, LowEntropyKept, top_entropy_quantile=0.5)
fault("another quantile of entropy", LOSS, OtherQuantile, top_entropy_quantile=0.5)
fault("entropy bonus of the other sign", LOSS, with_attributes(entropy_coef=-0.05), entropy_coef=0.05)
fault("length plus 1", LOSS, LengthPlusOne, loss_type="grpo", stops=True)

# --- gradient, update, metrics ------------------------------------------------------------------------------------------


class FirstForgotten(trl.GRPOTrainer):
    def training_step(self, model, *args):
        loss = super().training_step(model, *args)
        if self._step % 2:
            model.zero_grad()
        return loss


def noisy(name, gradient):
    return gradient + gradient.norm() * torch.randn_like(gradient) / gradient.numel() ** 0.5


def hooked(name: str, change: Callable) -> Callable[[Any], Any]:
    return lambda model: model.get_parameter(name).register_hook(change)


def twice(gradient):
    return 2 * gradient


def mlp_climbs(optimizer, model):
    """Move the mlp's parameters to a group of their own that climbs."""
    mlp = {id(parameter) for name, parameter in model.named_parameters() if ".mlp." in name}
    moved = [p for group in optimizer.param_groups for p in group["params"] if id(p) in mlp]
    updates.without_mlp(optimizer, model)
    optimizer.add_param_group({"params": moved, "maximize": True})


fault("noise on the gradient", "gradient", after_backward(noisy))
fault("a micro-batch forgotten", "gradient", FirstForgotten, **TWO)
fault("a hook doubles v_proj's gradient", "gradient", with_model(hooked(VALUE, twice)))
fault(
    "a hook zeroes the embedding's gradient",
    "gradient",
    with_model(backward.zeroed("model.embed_tokens.weight")),
)
fault("max_grad_norm 1e-9, SGD", "update", own={"max_grad_norm": 1e-9}, optim="sgd", learning_rate=0.1)
fault("max_grad_norm 1e-9, AdamW", "update", own={"max_grad_norm": 1e-9})
fault("bf16 weights at a rate of 1e-7", "update", own={"model": in_bf16, "learning_rate": 1e-7})
fault("optimizer of another model", "update", own={"optimizer": updates.of_another_model})
fault("a bias alone trains", "gradient or update", frozen(lambda name: name.endswith("layers.0.self_attn.k_proj.bias")))
fault("half of the layers frozen", "gradient or update", frozen(lambda name: ".layers.0." not in name))
fault("a rate of 0", "update", own={"learning_rate": 0.0}, lr_scheduler_type="constant")
fault("optimizer without the mlp", "update", optimizer_with(updates.without_mlp))
fault("weight decay 300", "update", own={"weight_decay": 300.0})
fault("maximize=True", "update", optimizer_with(updates.setting(updates.ALL, maximize=True)))
fault("the logged reward plus 1", "metrics", OtherMetric)

# --- seams --------------------------------------------------------------------------------------------------------------

seam("advantages negated behind the generation", "batches", seams.NegatedAdvantages)
seam("advantages rolled behind the generation", "batches", seams.RolledAdvantages)
seam("advantages shuffled apart from their rows", "batches", seams.RowsApart)
seam("mask loses its last token behind the generation", "batches", seams.LastTokenLost)
seam("old log-probs 1 nat off", "batches", seams.OldLogpsOff, num_iterations=2)
seam("old log-probs without reuse", "ratios", OtherOldLogps)
seam("rewards clamped in the trainer", "rewards", rewarded(lambda rewards: rewards.clamp(max=1.0)))
seam("the mlp's group climbs", "update", optimizer_with(mlp_climbs))
seam("gradient of q_proj zeroed", "gradient", times("q_proj", 0.0))
seam("gradient of biases zeroed", "gradient", times("bias", 0.0))
seam("gradient of norms zeroed", "gradient", times("norm", 0.0))
seam("gradient of the embedding doubled", "gradient", times("embed", 2.0))
seam("gradient of layer 0 zeroed", "gradient", times("layers.0.", 0.0))
seam("gradient of a bias negated", "gradient", times("layers.1.self_attn.v_proj.bias", -1.0))
seam("gradient x 1.004", "gradient", times("", 1.004))
seam("a layer's output detached", "gradient", with_model(backward.detached_layer))
seam("a kernel halves its gradient", "gradient", with_model(backward.half_backward))
seam("a hook zeroes q_proj's gradient", "gradient", with_model(backward.zeroed(backward.QUERY)))
seam("a hook zeroes a norm's gradient", "gradient", with_model(backward.zeroed(backward.NORM)))
seam("a hook zeroes half of up_proj's gradient", "gradient", with_model(backward.zeroed(backward.UP, slice(0, 32))))

# --- off-policy ---------------------------------------------------------------------------------------------------------


def later(name: str, cls: type, stage: str = "loss", kept: int = 2, **settings: Any) -> None:
    enter("off-policy", name, stage, cls, **FREE | settings)
    OFF_POLICY[name] = kept


later("clip range swapped", off_policy.Swapped, epsilon_high=0.4)
later("no clipping", with_attributes(epsilon_low=1e9, epsilon_high=1e9))
later("larger branch of the clip", off_policy.LargerBranch)
later("old log-probs ignored", off_policy.IgnoresOld, RATIO)
later("reference from the policy", off_policy.PolicyForReference, kept=3, beta=0.1)
later("SAPO's temperatures swapped", off_policy.SwappedTemperatures, loss_type="sapo")
later("sum of a sequence, off-policy", off_policy.own_loss(off_policy.of_sum, off_policy.k3), RATIO, **KL | GSPO)
later("k1 for the KL's k3, off-policy", off_policy.own_loss(off_policy.of_token, off_policy.k1), RATIO, **KL)


# --- running ------------------------------------------------------------------------------------------------------------


def replayed(fault: Fault, number: int, *, healthy: bool = False) -> dict[str, dict[str, str]]:
    """Keep an update of a training, and replay it from its file."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, _ = build(fault, folder, healthy=healthy)
        trainer.args.max_steps = number
        recorder = StepRecorder(trainer, Path(folder), [number])
        trainer.train()
        assert recorder.on, "the step was not kept"
        return summary(replay_step(Path(folder) / f"steps/step-{number:06d}.json.gz"))


def measure_named(fault: Fault) -> dict[str, Any]:
    """Look for a fault as for a planted one; replay a kept step of one that is off-policy."""
    row = {"table": TABLE_OF[fault.says]} | measure(fault)
    if number := OFF_POLICY.get(fault.says):
        row["replay"] = next(iter(replayed(fault, number)["different"]), "")
        row["false alarms of twin"] += replayed(fault, number, healthy=True)["different"]
    return row


def main() -> None:
    measure_all(__doc__, FAULTS, measure_named)


if __name__ == "__main__":
    run_main(main)
