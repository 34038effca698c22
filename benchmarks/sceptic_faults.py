"""Forty-three faults of a second sceptic, each written down with its stage before the check was read.

    python -m benchmarks.sceptic_faults [--only NAME ...] [--out data/measured/sceptic_faults.json]

They are meant to pass: a third was expected to show at a later update alone, and many lie in an option that few trainings set.
Each is a subclass of one of TRL's trainers, written down and looked for as those of `planted_faults`.
"""

import contextlib
import functools
from unittest import mock

import torch
import trl
from peft import LoraConfig
from transformers import TrainerCallback
from trl.trainer import distillation_trainer

from benchmarks.faults import OFTEN, STALE_ROWS, TWO, WHOLE, Fault, async_cases, distillation_cases, measure_all, plant
from tools.record import run_main

FAULTS: dict[str, Fault] = {}
planted = functools.partial(plant, FAULTS)


class NotesRewards:
    """What keeps the table of rewards (N, F) of a trainer, from which a fault makes its advantages."""

    def _calculate_rewards(self, *args):
        self._table = super()._calculate_rewards(*args)
        return self._table

    def _groups(self, values):
        return values.view(-1, self.num_generations)


class WithLora(trl.GRPOTrainer):
    """A trainer of an adapter."""

    def __init__(self, *args, **kwargs):
        adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        super().__init__(*args, peft_config=adapter, **kwargs)


def normalized(groups):
    """Rewards of groups (G, N) as GRPO's advantages (G * N,)."""
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()


def minus_others(groups):
    """Rewards of groups (G, N) minus the mean of the others in the group, as RLOO's advantages (G, N)."""
    return groups - (groups.sum(1, keepdim=True) - groups) / (groups.shape[1] - 1)


# --- sampling -----------------------------------------------------------------------------------------------------------


@planted("sampling")
class SameSeedEachStep(trl.GRPOTrainer):
    """Samples every generation with one seed, so that the noise is the same at each step."""

    def _generate_single_turn(self, *args, **kwargs):
        torch.manual_seed(42)
        return super()._generate_single_turn(*args, **kwargs)


# --- rewards ------------------------------------------------------------------------------------------------------------


@planted("rewards")
class RewardsOfStepBefore(trl.GRPOTrainer):
    """Takes the rewards of the step before, as of a judge that is one step late."""

    _kept = None

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self._kept, late = rewards, self._kept
        return rewards if late is None else late


@planted("rewards or advantages", beta=0.1, learning_rate=1e-3)
class KlTwice(NotesRewards, trl.GRPOTrainer):
    """Subtracts the KL from the rewards, where the loss has it too."""

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if model is self.ref_model:
            self._reference, self._scored = result[0], (args, kwargs)
        return result

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        args, kwargs = self._scored
        with torch.no_grad():
            own = super()._get_per_token_logps_and_entropies(self.model, *args, **kwargs)[0]
        kl = ((own - self._reference) * output["completion_mask"]).sum(1)
        return output | {"advantages": normalized(self._groups(self._table.sum(1) - self.beta * kl))}


# --- advantages ---------------------------------------------------------------------------------------------------------


@planted("advantages", multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 3.0])
class WeightsBeforeNormalizing(NotesRewards, trl.GRPOTrainer):
    """Weighs the rewards of each function before they are normalized, which undoes the weights."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        table = (self._table * self.reward_weights).view(-1, self.num_generations, 2)
        of_functions = (table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)
        rewards = of_functions.view(-1, 2).sum(1)
        return output | {"advantages": (rewards - rewards.mean()) / (rewards.std() + 1e-4)}


@planted("advantages", beta=0.1, learning_rate=1e-3)
class RlooK3(NotesRewards, trl.RLOOTrainer):
    """Subtracts the estimate k3 of the KL from the rewards, where RLOO takes the log-ratio."""

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if not torch.is_grad_enabled():
            setattr(self, "_reference" if model is self.ref_model else "_own", result[0])
        return result

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        ratio = self._reference - self._own
        kl = ((ratio.exp() - ratio - 1) * output["completion_mask"]).sum(1)
        groups = self._groups(self._table.sum(1) - self.beta * kl)
        return output | {"advantages": minus_others(groups).flatten()}


@planted("advantages", normalize_advantages=True)
class RlooNormalizedByGroup(NotesRewards, trl.RLOOTrainer):
    """Normalizes the advantages in each group, where RLOO normalizes those of the batch."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return output | {"advantages": normalized(minus_others(self._groups(self._table.sum(1))))}


# --- log-probs ----------------------------------------------------------------------------------------------------------


@planted("log-probs")
class ContextCut(trl.GRPOTrainer):
    """Scores the last 20 tokens of a row alone, which cuts long prompts."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, *args, **kwargs):
        cut = input_ids[:, -20:], attention_mask[:, -20:]
        return super()._get_per_token_logps_and_entropies(model, *cut, *args, **kwargs)


@planted("reference", beta=0.1, temperature=0.7)
class ReferenceAtTemperatureOne(trl.GRPOTrainer):
    """Scores with the reference at temperature 1, where the policy has that of the config."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, *args, **kwargs):
        rows = input_ids, attention_mask, logits_to_keep
        result = super()._get_per_token_logps_and_entropies(model, *rows, *args, **kwargs)
        if model is not self.ref_model:
            return result
        with torch.no_grad():
            logits = model(input_ids=input_ids, attention_mask=attention_mask).logits[:, :-1]
        logps = logits.float().log_softmax(-1).gather(-1, input_ids[:, 1:, None])[..., 0]
        return logps[:, -logits_to_keep:], *result[1:]


@planted("reference", learning_rate=1e-2, beta=0.1)
class AdapterInReference(WithLora):
    """Scores with the reference while the adapter is on."""

    def _generate_and_score_completions(self, inputs):
        with mock.patch("trl.trainer.grpo_trainer.use_adapter", lambda *_, **__: contextlib.nullcontext()):
            return super()._generate_and_score_completions(inputs)


@planted("reference", beta=0.1, learning_rate=1e-3)
class ReferenceDrifts(trl.GRPOTrainer):
    """Moves the reference half of the way to the policy before each step."""

    def training_step(self, *args):
        with torch.no_grad():
            for old, new in zip(self.ref_model.parameters(), self.model.parameters(), strict=True):
                old.lerp_(new, 0.5)
        return super().training_step(*args)


@planted("ratios", num_iterations=2)
class OldLogpsInBf16(trl.GRPOTrainer):
    """Scores the old log-probs under autocast in bf16, and those of the loss in float32."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        with torch.autocast("cpu", torch.bfloat16, enabled=not torch.is_grad_enabled()):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)


@planted("ratios or loss or gradient", stops=True)
class RlooMeanRatio(trl.RLOOTrainer):
    """Takes the ratio of a sequence from its mean log-prob, where RLOO takes the sum."""

    _share = None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return (logps if self._share is None else logps * self._share), *rest

    def _compute_loss(self, model, inputs):
        tokens = inputs["completion_mask"].sum(1)
        self._share = 1 / tokens[:, None]
        try:
            return super()._compute_loss(model, inputs | {"old_logps": inputs["old_logps"] / tokens})
        finally:
            self._share = None


# --- loss ---------------------------------------------------------------------------------------------------------------


@planted("loss", **TWO)
class WhitenedInMicroBatch(trl.GRPOTrainer):
    """Whitens the advantages again in every micro-batch."""

    def _compute_loss(self, model, inputs):
        advantages = inputs["advantages"]
        whitened = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return super()._compute_loss(model, inputs | {"advantages": whitened})


@planted("loss", beta=0.1, learning_rate=1e-3)
class KlSubtracted(trl.GRPOTrainer):
    """Subtracts the KL from the loss, where it is added."""

    def _compute_loss(self, model, inputs):
        self.beta = -self.beta
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.beta = -self.beta


@planted("loss or gradient", beta=0.1, loss_type="grpo", learning_rate=1e-3)
class KlDetached(trl.GRPOTrainer):
    """Adds the KL to the loss without its gradient."""

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if model is not self.ref_model:
            self._policy = result[0]
        return result

    def _compute_loss(self, model, inputs):
        beta, self.beta = self.beta, 0.0
        loss = super()._compute_loss(model, inputs)
        self.beta = beta
        mask = inputs["completion_mask"]
        ratio = inputs["ref_per_token_logps"] - self._policy.detach()
        kl = (ratio.exp() - ratio - 1) * mask
        self._metrics["train"]["kl"].append((kl.sum() / mask.sum()).item())
        of_rows = kl.sum(1) / mask.sum(1)
        return loss + beta * of_rows.mean() / self.current_gradient_accumulation_steps


@planted("loss", num_iterations=2, beta=0.1, use_bias_correction_kl=True)
class BiasCorrectionDropped(trl.GRPOTrainer):
    """Computes the loss without the correction of the KL that use_bias_correction_kl asks for."""

    def _compute_loss(self, model, inputs):
        self.args.use_bias_correction_kl = False
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.args.use_bias_correction_kl = True


@planted("loss", steps_per_generation=4, gradient_accumulation_steps=2, per_device_train_batch_size=4)
class WholeGenerationDivisor(trl.GRPOTrainer):
    """Divides by the tokens of the whole generation, of which an update trains half."""

    def _compute_loss(self, model, inputs):
        factor = self.args.steps_per_generation / self.current_gradient_accumulation_steps
        return super()._compute_loss(model, inputs | {"num_items_in_batch": inputs["num_items_in_batch"] * factor})


@planted("loss", mask_truncated_completions=True, stops=True, per_device_train_batch_size=16, max_completion_length=6)
class TruncatedInDivisor(trl.GRPOTrainer):
    """Divides by all tokens, those of masked, truncated completions among them."""

    def _generate(self, prompts):
        result = super()._generate(prompts)
        self._tokens = sum(len(ids) for ids in result[1])
        return result

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return output | {"num_items_in_batch": torch.tensor(self._tokens)}


@planted("loss", top_entropy_quantile=0.3)
class EntropyQuantileOfRow(trl.GRPOTrainer):
    """Takes the quantile of the entropy in each row, where it is that of all tokens."""

    def get_high_entropy_mask(self, entropies, mask, threshold):
        mask_of = super().get_high_entropy_mask
        rows = zip(entropies.split(1), mask.split(1), strict=True)
        return torch.cat([mask_of(*row, threshold) for row in rows])


@planted("loss", entropy_coef=0.05, **TWO)
class EntropyBonusTwice(trl.GRPOTrainer):
    """Does not divide the entropy bonus by the number of micro-batches."""

    def _compute_loss(self, model, inputs):
        before = self.entropy_coef
        self.entropy_coef = before * self.current_gradient_accumulation_steps
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.entropy_coef = before


@planted("loss", loss_type="vespo", num_iterations=2)
class VespoKExchanged(trl.GRPOTrainer):
    """Gives VESPO the k of negative advantages for positive ones, and the other way round."""

    def get_gamma_weights(self, *args, **kwargs):
        exchanged = {"k_pos": kwargs["k_neg"], "k_neg": kwargs["k_pos"]}
        return super().get_gamma_weights(*args, **(kwargs | exchanged))


@planted("loss", off_policy_mask_threshold=0.05, num_iterations=2)
class OffPolicyMaskOfPositive(trl.GRPOTrainer):
    """Drops off-policy completions with a positive advantage, where the mask drops those with a negative one."""

    def get_off_policy_mask(self, advantages, **kwargs):
        return super().get_off_policy_mask(advantages=-advantages, **kwargs)


# --- batches ------------------------------------------------------------------------------------------------------------


@planted("batches", **OFTEN)
class AdvantagesDecayInBuffer(trl.GRPOTrainer):
    """Multiplies the advantages in the buffer by 0.9 after each use, so that the second pass trains smaller ones."""

    def training_step(self, *args):
        loss = super().training_step(*args)
        used = (self._step - 1) % self.args.steps_per_generation
        self._buffered_inputs[used]["advantages"].mul_(0.9)
        return loss


@planted("batches", **OFTEN, learning_rate=1e-3)
class SecondPassShuffled(trl.GRPOTrainer):
    """Reverses the rows of a batch when they are trained a second time, and not their old log-probs."""

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if self._step % (self.args.steps_per_generation * self.num_iterations) < self.args.steps_per_generation:
            return batch
        rows = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"}
        return {name: values.flip(0) if name in rows else values for name, values in batch.items()}


# --- gradient -----------------------------------------------------------------------------------------------------------


@planted("gradient")
class GradientsKept(trl.GRPOTrainer):
    """Does not empty the gradients between updates."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model.zero_grad = lambda *_, **__: None

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.zero_grad = lambda *_, **__: None
        return optimizer


@planted("gradient", **TWO, max_grad_norm=0.2)
class ClippedEachMicroBatch(trl.GRPOTrainer):
    """Clips the gradient after every micro-batch, and the sum again."""

    def training_step(self, model, *args):
        loss = super().training_step(model, *args)
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
        return loss


@planted("gradient", learning_rate=1e-2)
class LoraALost(WithLora):
    """Loses the gradient of each lora_A, which is 0 at the first update anyway."""

    def training_step(self, model, *args):
        loss = super().training_step(model, *args)
        for name, parameter in model.named_parameters():
            if "lora_A" in name and parameter.grad is not None:
                parameter.grad.zero_()
        return loss


# --- update -------------------------------------------------------------------------------------------------------------


@planted("update", max_grad_norm=0.05)
class ClippedByParameter(trl.GRPOTrainer):
    """Clips the gradient of each parameter by its own norm."""

    def _clip_grad_norm(self, model):
        for parameter in model.parameters():
            norm = torch.nn.utils.clip_grad_norm_([parameter], self.args.max_grad_norm)
        return norm


class ByValue(TrainerCallback):
    """Clips each element of the gradient to 0.001."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)


@planted("update")
class ClippedByValue(trl.GRPOTrainer):
    """Clips the gradient by value in a callback, after its norm was clipped."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(ByValue())


@planted("update", **TWO)
class ScheduleTooLong(trl.GRPOTrainer):
    """Counts micro-batches as updates in the schedule, so that the learning rate falls too slowly."""

    def create_scheduler(self, num_training_steps, *args, **kwargs):
        return super().create_scheduler(num_training_steps * self.args.gradient_accumulation_steps, *args, **kwargs)


@planted("update", weight_decay=0.1)
class CoupledDecay(trl.GRPOTrainer):
    """Adds the weight decay to the gradient, as Adam does, where the config asks for AdamW."""

    def create_optimizer(self, *args, **kwargs):
        made = super().create_optimizer(*args, **kwargs)
        groups = [{name: group[name] for name in ("params", "weight_decay")} for group in made.param_groups]
        self.optimizer = torch.optim.Adam(groups, lr=self.args.learning_rate)
        return self.optimizer


@planted("update", optim="adamw_torch")
class SecondMomentsShared(trl.GRPOTrainer):
    """Keeps the second moments of parameters of equal shape in one tensor."""

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        of_shape: dict[torch.Size, torch.Tensor] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                shared = of_shape.setdefault(parameter.shape, torch.zeros_like(parameter))
                state = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": shared}
                optimizer.state[parameter] = state
        return optimizer


@planted("update")
class AmsgradUnsaid(trl.GRPOTrainer):
    """Turns on amsgrad, of which the config says nothing."""

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        for group in optimizer.param_groups:
            group["amsgrad"] = True
        return optimizer


# --- metrics ------------------------------------------------------------------------------------------------------------


@planted("metrics", **OFTEN, learning_rate=1e-2)
class ClipRatiosExchanged(trl.GRPOTrainer):
    """Logs the share of ratios clipped below as that clipped above, and the other way round."""

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        low, high = (self._metrics["train"][f"clip_ratio/{side}_mean"] for side in ("low", "high"))
        low[-1], high[-1] = high[-1], low[-1]
        return loss


@planted("metrics")
class StdOfGroupsLogged(NotesRewards, trl.GRPOTrainer):
    """Logs the mean of the groups' standard deviations as reward_std, which is that of the batch."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self._metrics["train"]["reward_std"][-1] = self._groups(self._table.sum(1)).std(1).mean().item()
        return output


# --- distillation -------------------------------------------------------------------------------------------------------


@planted("loss", beta=0.3)
class MixtureExchanged(distillation_cases.DistillationTrainer):
    """Exchanges the weights of student and teacher in the mixture of the JSD, and not those of its two terms."""

    def _compute_loss(self, student, inputs, items):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)

        def log_probs(model):
            hidden = self._get_last_hidden_state(model, ids, mask, inputs["completion_ids"].shape[1])
            return model.get_output_embeddings()(hidden).float().log_softmax(-1)

        own = log_probs(student)
        with torch.no_grad():
            other = log_probs(self.teacher_model)
        mixture = (self.beta * own.exp() + (1 - self.beta) * other.exp()).log()
        of_teacher = (other.exp() * (other - mixture)).sum(-1)
        of_student = (own.exp() * (own - mixture)).sum(-1)
        trained = inputs["completion_mask"]
        loss = ((self.beta * of_teacher + (1 - self.beta) * of_student) * trained).sum() / items
        entropy = (-(own.exp() * own).sum(-1) * trained).sum()
        return loss, entropy.detach(), trained.sum()


@planted("teacher", learning_rate=1e-3)
class TeacherDrifts(distillation_cases.DistillationTrainer):
    """Moves the teacher half of the way to the student before each step."""

    def training_step(self, *args):
        with torch.no_grad():
            for old, new in zip(self.teacher_model.parameters(), self.model.parameters(), strict=True):
                old.lerp_(new, 0.5)
        return super().training_step(*args)


@planted("teacher or loss", beta=0.0)
class TeacherTop8(distillation_cases.DistillationTrainer):
    """Normalizes the teacher's distribution over its eight likeliest tokens."""

    def _compute_loss(self, *args):
        divergence = distillation_trainer._chunked_divergence_loss

        def of_likeliest(student, teacher, student_head, teacher_head, *args, **kwargs):
            logits = teacher @ teacher_head.T
            kept = logits.masked_fill(logits < logits.topk(8).values[..., -1:], -60.0)
            return divergence(student, kept, student_head, torch.eye(len(teacher_head)), *args, **kwargs)

        with mock.patch.object(distillation_trainer, "_chunked_divergence_loss", of_likeliest):
            return super()._compute_loss(*args)


@planted("loss", temperature=1.5, **distillation_cases.TWO)
class TimesTSquared(distillation_cases.DistillationTrainer):
    """Multiplies the loss by the square of the temperature, as Hinton does; the definition here has no such factor."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) * self.temperature**2


@planted("loss", beta=0.0, **distillation_cases.TWO)
class LastReversed(distillation_cases.DistillationTrainer):
    """Compares the last micro-batch in the other direction."""

    def _compute_loss(self, *args):
        before = self.beta
        if self._step % 2:
            self.beta = 1 - before
        try:
            return super()._compute_loss(*args)
        finally:
            self.beta = before


# --- AsyncGRPO ----------------------------------------------------------------------------------------------------------


@planted("batches", rows={"groups": 3, "versions": (2, 1, 2), "now": 2}, max_staleness=1, **WHOLE)
class StalenessOffByOne(async_cases.AsyncGRPOTrainer):
    """Drops rows that are as old as max_staleness allows."""

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        self._rollout_dataset.max_staleness -= 1
        return loader


@planted("ratios or loss", rows=STALE_ROWS, **WHOLE)
class AsyncSequenceRatio(async_cases.AsyncGRPOTrainer):
    """Gives each token the ratio of its row's mean log-ratio, as GSPO does."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        trained = inputs["token_index"] >= 0
        places, old, rows = (inputs[name][trained] for name in ("token_index", "old_log_probs", "segment_id"))

        def with_means(_, __, output):
            logps = output.log_probs.flatten()
            ratio = logps[places] - old
            empty = torch.zeros(int(rows.max()) + 1)
            mean = empty.index_add(0, rows, ratio) / empty.index_add(0, rows, torch.ones_like(ratio))
            output.log_probs = logps.index_put((places,), old + mean[rows]).view_as(output.log_probs)
            return output

        hook = model.register_forward_hook(with_means)
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            hook.remove()


@planted("loss or mask", rows={}, **WHOLE)
class AsyncLastRowHalved(async_cases.AsyncGRPOTrainer):
    """Counts the last row of a batch half."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        rows, advantages = inputs["segment_id"], inputs["advantages"]
        halved = torch.where(rows == rows.max(), advantages * 0.5, advantages)
        return super().compute_loss(model, inputs | {"advantages": halved}, *args, **kwargs)


def main() -> None:
    measure_all(__doc__, FAULTS)


if __name__ == "__main__":
    run_main(main)
