"""Forty faults in subclasses of TRL's trainers, each written down with its stage before the check was read.

    python -m benchmarks.planted_faults [--only NAME ...] [--out data/measured/planted_faults.json]

Each fault is a small class: its docstring says what is wrong, `@planted` at which stage it lies and with which settings it
is trained. `check_step` looks at one step before the training. Where no stage differs, the watch looks at each of three
updates. The same settings without the fault, the fault's twin, are checked in the same way: a stage that differs there would
be a false alarm. `--column "as found"` stores the result next to that of a later state of the check, `now`.
"""

import functools
import types
from typing import Any
from unittest import mock

import torch
import trl
from transformers import LogitsProcessorList

from benchmarks.faults import (
    MANY,
    OFTEN,
    STALE_ROWS,
    TWO,
    WHOLE,
    Fault,
    async_cases,
    distillation_cases,
    length,
    measure_all,
    plant,
    vowels,
)
from tools.record import run_main

FAULTS: dict[str, Fault] = {}
planted = functools.partial(plant, FAULTS)


# --- rewards ------------------------------------------------------------------------------------------------------------


def vowels_of_most(completions, **_):
    """Judges three of four completions."""
    values = vowels(completions)
    return [None if n % 4 == 2 else value for n, value in enumerate(values)]


def shared_letters(prompts, completions, **_):
    """Counts the letters of a completion that its prompt has."""
    return [sum(letter in prompt for letter in text) / 5 for prompt, text in zip(prompts, completions, strict=True)]


def solved_if_short(prompts, completions, **_):
    """Gives every completion of a short prompt 1."""
    lengths = length(completions)
    return [1.0 if len(prompt) < 10 else value for prompt, value in zip(prompts, lengths, strict=True)]


# --- sampling -----------------------------------------------------------------------------------------------------------


@planted("sampling", **MANY)
class OtherWeights(trl.GRPOTrainer):
    """Samples from weights that are 0.02 of noise away from those that are trained."""

    def _generate_single_turn(self, *args, **kwargs):
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        result = super()._generate_single_turn(*args, **kwargs)
        with torch.no_grad():
            for parameter, values in zip(self.model.parameters(), before, strict=True):
                parameter.copy_(values)
        return result


@planted("sampling", **MANY)
class UnsaidNucleus(trl.GRPOTrainer):
    """Samples with top_p=0.9, which the config does not say."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.generation_config.top_p = 0.9


@planted("sampling", **MANY)
class LikelierOfTwo(trl.GRPOTrainer):
    """Samples each completion twice and takes the likelier one."""

    @torch.no_grad()
    def _mean_logp(self, prompt, completion):
        ids = torch.tensor([prompt + completion])
        logps = self.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
        return logps[len(prompt) - 1 :].mean()

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        first, *rest = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        second, *_ = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        taken = []
        for prompt, one, other in zip(prompt_ids, first, second, strict=True):
            likelier = self._mean_logp(prompt, one) >= self._mean_logp(prompt, other)
            taken.append(one if likelier else other)
        return taken, *rest


class GreedyAt:
    """A logits processor that leaves the likeliest token at one position."""

    def __init__(self, position):
        self.position = position

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] != self.position:
            return scores
        return scores.masked_fill(scores < scores.max(-1, keepdim=True).values, -torch.inf)


@planted("sampling", **MANY)
class GreedyFirstToken(trl.GRPOTrainer):
    """Takes the likeliest token as the first one of each completion, and samples all others."""

    def _generate_single_turn(self, *args, **kwargs):
        generate = self.model.generate

        def greedy_first(*inputs, **options):
            first = GreedyAt(options["input_ids"].shape[1])
            return generate(*inputs, logits_processor=LogitsProcessorList([first]), **options)

        with mock.patch.object(self.model, "generate", greedy_first):
            return super()._generate_single_turn(*args, **kwargs)


@planted("sampling")
class OneRowRepeated(trl.GRPOTrainer):
    """Gives the last completion of the batch the tokens of the one before it."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        ids[-1] = list(ids[-2])
        return ids, *rest


# --- ends, turns, mask --------------------------------------------------------------------------------------------------


@planted("ends", stops=True)
class StopTokenRemoved(trl.GRPOTrainer):
    """Removes the stop token from each completion that stopped."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        ids = [row[:-1] if row[-1] in self.eos_token_ids and len(row) > 1 else row for row in ids]
        return ids, *rest


@planted("mask", stops=True, mask_truncated_completions=True, per_device_train_batch_size=16, max_completion_length=4)
class FullRowsMasked(trl.GRPOTrainer):
    """Counts a completion as truncated whose stop token is the last that fits."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mask = output["completion_mask"]
        mask[mask.sum(1) == self.max_completion_length] = 0
        return output | {"num_items_in_batch": mask.sum()}


@planted("mask")
class OneTokenMasked(trl.GRPOTrainer):
    """Leaves the third token of the last completion out of the loss."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["completion_mask"][-1, 2] = 0
        return output | {"num_items_in_batch": output["completion_mask"].sum()}


def _written(trainer, ids: list[int], tokens: int) -> list[int]:
    with torch.no_grad():
        out = trainer.model.generate(torch.tensor([ids]), do_sample=True, top_k=0, max_new_tokens=tokens)
    return out[0, len(ids) :].tolist()


def two_turns(prompts, trainer) -> dict:
    """A rollout function: five tokens, three of an answer from outside, five more."""
    made: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "env_mask": []}
    for prompt in prompts:
        asked = trainer.processing_class.encode(prompt)
        first = _written(trainer, asked, 5)
        answer = [70, 77, 86]
        second = _written(trainer, asked + first + answer, 5)
        made["prompt_ids"].append(asked)
        made["completion_ids"].append(first + answer + second)
        made["env_mask"].append([1] * len(first) + [0] * len(answer) + [1] * len(second))
    return made


class InTwoTurns(trl.GRPOTrainer):
    """A trainer with a rollout function of two turns."""

    rollout = staticmethod(two_turns)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, rollout_func=type(self).rollout, **kwargs)


def one_answer_token_trained(prompts, trainer) -> dict:
    output = two_turns(prompts, trainer)
    mask = output["env_mask"][1]
    mask[mask.index(0)] = 1
    return output


@planted("turns")
class AnswerTokenOfOneRow(InTwoTurns):
    """Trains the first token of the answer from outside, in one completion."""

    rollout = staticmethod(one_answer_token_trained)


# --- rewards ------------------------------------------------------------------------------------------------------------


@planted("rewards", funcs=(length, vowels_of_most))
class MissingAsMean(trl.GRPOTrainer):
    """Replaces a reward that a function did not give (None) by the mean of that function."""

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        return torch.where(rewards.isnan(), rewards.nanmean(0), rewards)


@planted("rewards", reward_weights=[1.0, 2.0])
class ColumnsSwapped(trl.GRPOTrainer):
    """Gives each reward function the weight of the other one."""

    def _calculate_rewards(self, *args):
        return super()._calculate_rewards(*args).flip(1)


@planted("rewards", funcs=(shared_letters,))
class OtherPromptJudged(trl.GRPOTrainer):
    """Gives the reward function the prompts in reverse order."""

    def _calculate_rewards(self, inputs, prompts, *args):
        return super()._calculate_rewards(inputs, prompts[::-1], *args)


@planted("rewards", scale_rewards="none")
class WeightOnePercentOff(trl.GRPOTrainer):
    """Takes 1.01 for the weight of the first reward function, where the config says nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reward_weights = self.reward_weights * torch.tensor([1.01, 1.0])


# --- advantages ---------------------------------------------------------------------------------------------------------


@planted("advantages")
class InterleavedGroups(trl.GRPOTrainer):
    """Takes every second completion for a group, where the groups are consecutive."""

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self._sums = rewards.sum(1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        groups = self._sums.view(self.num_generations, -1)
        advantages = (groups - groups.mean(0)) / (groups.std(0) + 1e-4)
        return output | {"advantages": advantages.flatten()}


@planted("advantages")
class LeaveOneOutDivisor(trl.RLOOTrainer):
    """Divides the sum of the other rewards of a group by the size of the group, not by that minus 1."""

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self._sums = rewards.sum(1)
        return rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        groups = self._sums.view(-1, self.num_generations)
        others = (groups.sum(1, keepdim=True) - groups) / self.num_generations
        return output | {"advantages": (groups - others).flatten()}


@planted("advantages", funcs=(solved_if_short,), per_device_train_batch_size=16)
class EqualGroupLifted(trl.GRPOTrainer):
    """Gives completions of a group with equal rewards the advantage 0.1, where it is 0."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        advantages = output["advantages"]
        return output | {"advantages": torch.where(advantages == 0, 0.1, advantages)}


@planted("advantages", beta=0.1, learning_rate=1e-3)
class KlLeftOutOfBaseline(trl.RLOOTrainer):
    """Subtracts the KL penalty from a completion's own reward, and not from those of its baseline."""

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self._sums = rewards.sum(1)
        return rewards

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if model is self.ref_model:
            self._reference = result[0]
        return result

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        kl = output["old_logps"] - (self._reference * output["completion_mask"]).sum(1)
        groups = self._sums.view(-1, self.num_generations)
        others = (groups.sum(1, keepdim=True) - groups) / (self.num_generations - 1)
        return output | {"advantages": (groups - others).flatten() - self.beta * kl}


# --- log-probs of others ------------------------------------------------------------------------------------------------


@planted("reference", beta=0.1)
class ReferencesSwapped(trl.GRPOTrainer):
    """Gives the first two completions the reference log-probs of each other."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        reference = output["ref_per_token_logps"].clone()
        reference[[0, 1]] = reference[[1, 0]]
        return output | {"ref_per_token_logps": reference}


def one_turn_with_logps(prompts, trainer) -> dict:
    """A rollout function whose log-probs are the policy's, rounded by 0.02 nats as those of another engine."""
    made: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    for prompt in prompts:
        asked = trainer.processing_class.encode(prompt)
        completion = _written(trainer, asked, 12)
        ids = torch.tensor([asked + completion])
        with torch.no_grad():
            logps = trainer.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        rounded = logps[len(asked) - 1 :] + 0.02 * torch.randn(len(completion))
        made["prompt_ids"].append(asked)
        made["completion_ids"].append(completion)
        made["logprobs"].append(rounded.tolist())
    return made


class SampledElsewhere(trl.GRPOTrainer):
    """A trainer that corrects for another engine, as with vLLM; a rollout function takes the engine's place."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, rollout_func=one_turn_with_logps, **kwargs)
        self.use_vllm = True
        self._last_loaded_step = -1
        self.vllm_generation = types.SimpleNamespace(sync_weights=lambda: None, mode="server")


@planted("correction", vllm_importance_sampling_mode="token_truncate")
class CorrectionInverted(SampledElsewhere):
    """Divides by the ratio of policy and sampler, where the correction multiplies."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        return output | {"importance_sampling_ratio": 1 / output["importance_sampling_ratio"]}


@planted("batches", **OFTEN, learning_rate=1e-3)
class OldLogpsRenewed(trl.GRPOTrainer):
    """Drops the old log-probs when the completions are trained a second time, so that each ratio is 1 there."""

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if self._step % (self.args.steps_per_generation * self.num_iterations) < self.args.steps_per_generation:
            return batch
        return {name: values for name, values in batch.items() if name != "old_per_token_logps"}


# --- loss ---------------------------------------------------------------------------------------------------------------


@planted("loss", **OFTEN)
class DualClip(trl.GRPOTrainer):
    """Limits the ratio of completions with a negative advantage to 3, where the config sets no delta."""

    def _compute_loss(self, model, inputs):
        self.args.delta = 3.0
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.args.delta = None


@planted("loss", beta=0.1, loss_type="grpo", learning_rate=1e-3)
class SquaredKl(trl.GRPOTrainer):
    """Estimates the KL as half the squared log-ratio (k2), where GRPO takes k3."""

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
        squared = 0.5 * (self._policy - inputs["ref_per_token_logps"]) ** 2
        self._metrics["train"]["kl"].append(((squared * mask).sum() / mask.sum()).item())
        of_rows = (squared * mask).sum(1) / mask.sum(1)
        return loss + beta * of_rows.mean() / self.current_gradient_accumulation_steps


@planted("loss", beta=0.1, learning_rate=1e-3, **TWO)
class SecondWithoutKl(trl.GRPOTrainer):
    """Leaves the KL out of the loss of the second micro-batch."""

    def _compute_loss(self, model, inputs):
        if self._step % 2 == 0:
            return super()._compute_loss(model, inputs)
        beta, self.beta = self.beta, 0.0
        loss = super()._compute_loss(model, inputs)
        self.beta = beta
        self._metrics["train"]["kl"].append(self._metrics["train"]["kl"][-1])
        return loss


@planted("loss", loss_type="grpo", stops=True)
class LengthPlusOne(trl.GRPOTrainer):
    """Divides the sum over a completion's tokens by their number plus 1."""

    def _compute_loss(self, model, inputs):
        tokens = inputs["completion_mask"].sum(1)
        return super()._compute_loss(model, inputs | {"advantages": inputs["advantages"] * tokens / (tokens + 1)})


@planted("loss", importance_sampling_level="sequence", stops=True, **OFTEN)
class LengthOfLongest(trl.GRPOTrainer):
    """Divides the log-ratio of a sequence by the length of the longest one, not by its own."""

    _shares = None

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        logps, *rest = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._shares is not None:
            shares, old = self._shares
            logps = old + shares * (logps - old)
        return logps, *rest

    def _compute_loss(self, model, inputs):
        mask = inputs["completion_mask"]
        self._shares = mask.sum(1, keepdim=True) / mask.shape[1], inputs["old_per_token_logps"]
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._shares = None


# --- batches ------------------------------------------------------------------------------------------------------------


@planted("batches", learning_rate=1e-3)
class StaleBuffer(trl.GRPOTrainer):
    """Generates at every second update only, and trains the completions of the one before as if they were new."""

    def _prepare_inputs(self, generation_batch):
        if self._step % 2 and self._buffered_inputs is not None:
            return self._buffered_inputs[0]
        return super()._prepare_inputs(generation_batch)


@planted("batches", **TWO)
class FirstMicroBatchTwice(trl.GRPOTrainer):
    """Trains the first micro-batch twice and the second one never."""

    def _prepare_inputs(self, generation_batch):
        super()._prepare_inputs(generation_batch)
        return self._buffered_inputs[0]


@planted("batches", **TWO)
class TwoRowsExchanged(trl.GRPOTrainer):
    """Exchanges the advantages of two completions of the second micro-batch."""

    def _prepare_inputs(self, generation_batch):
        batch = super()._prepare_inputs(generation_batch)
        if self._step % 2 == 0:
            return batch
        advantages = batch["advantages"].clone()
        advantages[[0, 1]] = advantages[[1, 0]]
        return batch | {"advantages": advantages}


# --- gradient -----------------------------------------------------------------------------------------------------------


@planted("gradient", entropy_coef=0.05)
class EntropyDetached(trl.GRPOTrainer):
    """Adds the entropy bonus to the loss without its gradient."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, entropies, aux_loss = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return logps, None if entropies is None else entropies.detach(), aux_loss


@planted("gradient")
class KeysDetached(trl.GRPOTrainer):
    """Sends no gradient through the keys of the first layer's attention."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        keys = self.model.model.layers[0].self_attn.k_proj
        keys.register_forward_hook(lambda module, inputs, output: output.detach())


@planted("gradient", **TWO)
class DividedOnceMore(trl.GRPOTrainer):
    """Divides the whole gradient by the number of micro-batches, which the loss has done before."""

    def training_step(self, model, *args):
        loss = super().training_step(model, *args)
        if self._step % self.current_gradient_accumulation_steps == 0:
            for parameter in model.parameters():
                parameter.grad /= self.current_gradient_accumulation_steps
        return loss


# --- update -------------------------------------------------------------------------------------------------------------


@planted("update")
class NormsFaster(trl.GRPOTrainer):
    """Trains biases and norms with a learning rate that is 1% larger."""

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.param_groups[1]["lr"] *= 1.01
        return optimizer


@planted("update")
class OptimizerForgets(trl.GRPOTrainer):
    """Empties the optimizer's state before each update."""

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.register_step_pre_hook(lambda optimizer, *_: optimizer.state.clear())
        return optimizer


@planted("update")
class PulledBack(trl.GRPOTrainer):
    """Pulls the weights 1% of each update back to where they were."""

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        step = optimizer.step

        def pulled_back(*args, **kwargs):
            before = [parameter.detach().clone() for parameter in self.model.parameters()]
            step(*args, **kwargs)
            with torch.no_grad():
                for parameter, values in zip(self.model.parameters(), before, strict=True):
                    parameter.lerp_(values, 0.01)

        optimizer.step = pulled_back
        return optimizer


@planted("update")
class StepsCountedOn(trl.GRPOTrainer):
    """Starts with empty moments and a counter at 100 updates, so that AdamW does not correct their bias."""

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = zeros | {"step": torch.tensor(100.0)}
        return optimizer


# --- state of the model, metrics ----------------------------------------------------------------------------------------


@planted("loss", loss_type="grpo", **TWO)
class EvalModeInLoss(trl.GRPOTrainer):
    """Takes the loss in eval mode, in which TRL does not divide by the number of micro-batches."""

    def _compute_loss(self, model, inputs):
        model.eval()
        try:
            return super()._compute_loss(model, inputs)
        finally:
            model.train()


@planted("metrics", stops=True)
class EntropyOverPads(trl.GRPOTrainer):
    """Logs the entropy as a mean over all positions, pads among them."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._entropies = result[1]
        return result

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self._metrics["train"]["entropy"][-1] = self._entropies.mean().item()
        return loss


# --- other trainers -----------------------------------------------------------------------------------------------------


@planted("ratios", rows={}, **WHOLE)
class OldLogpsOneTokenLate(async_cases.AsyncGRPOTrainer):
    """Compares each token with the old log-prob of the token before it."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        moved = inputs | {"old_log_probs": inputs["old_log_probs"].roll(1, -1)}
        return super().compute_loss(model, moved, *args, **kwargs)


@planted("loss", rows=STALE_ROWS, **WHOLE)
class LowSideOpen(async_cases.AsyncGRPOTrainer):
    """Clips ratios above the range and not those below it."""

    def compute_loss(self, *args, **kwargs):
        limit, self.epsilon_low = self.epsilon_low, 1.0
        try:
            return super().compute_loss(*args, **kwargs)
        finally:
            self.epsilon_low = limit


@planted("teacher", gradient_accumulation_steps=2, per_device_train_batch_size=2)
class TeacherRowsSwapped(distillation_cases.DistillationTrainer):
    """Gives the two completions of the second micro-batch the teacher's states of each other."""

    def _get_last_hidden_state(self, model, *args, **kwargs):
        hidden = super()._get_last_hidden_state(model, *args, **kwargs)
        if model is self.teacher_model and self._step % 2:
            return hidden.flip(0)
        return hidden


def main() -> None:
    measure_all(__doc__, FAULTS)


if __name__ == "__main__":
    run_main(main)
