"""The stages of a step that need its model, each computed again from the stage before it."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import binom

from ..consistency.logits import without_autocast
from ..consistency.padding import evaluating, logits_of, model_inputs
from ..replay.batches import check_batches
from ..replay.grpo_math import Loss, LossRow
from ..replay.places import BEST_OF_THREE, DIFFERENT, UNLIKELY, Drawn, Uniformity, token_places, uniformity
from ..replay.report import Stage, StepReport
from ..replay.stages import (
    SAME,
    TOLERANCES,
    Tolerance,
    check_advantages,
    check_loss,
    check_metrics,
    checked_rows,
    losses_of,
    places,
    sampled_tokens,
    seen_by_value,
    stages_of_loss,
    stages_of_rows,
    tolerance_of,
    with_deviations,
)
from ..replay.step import SampledRow, Step, all_loss_rows
from ..training.processes import StepNotChecked, average_gradients, failing_together, is_sharded
from ..training.record_step import dropouts_of, record_without_dropout
from ..training.rows import eos_ids, policy_of, stops_of, tokenizer_of
from ..training.step_numbers import (
    coarsest_dtype,
    micro_rows,
    router_coefficient,
    router_loss_of,
    step_of,
    with_generation,
)
from ..training.step_record import MicroBatch, StepRecord
from .causes import (
    UNKNOWN_COPIES,
    RowAlone,
    cause_of_copies,
    cause_of_logprobs,
    cause_of_sampled_logps,
    cause_of_sampling,
    in_float32,
    scores_with,
    shifted,
)
from .finite_difference import check_by_moving
from .images import check_images, has_images, unknown_with_images
from .off_policy import ask_off_policy, in_log_probs, stages_with_answers
from .update_stage import update_stage

_FAR = 5.0  # standard errors, beyond which tokens were not sampled from what is scored
# By which the likelihood of tokens is raised to bound the chance of their surprise: the best is 1 / its standard deviation
# times the standard errors, so a small one fits many tokens.
_POWERS = tuple(0.9 * 0.5**n for n in range(9))
_NEAR, _NOT_NEAR = 0.05, 0.5  # nats a token between sampler and trainer: as of bf16; more than any precision gives
# Of the probability, the likeliest tokens first: a nucleus shows at one of these, long before the distance does.
_SHARES = (0.02, 0.05, *(n / 10 for n in range(1, 10)), 0.95, 0.98)
_CHANCE = (
    1e-7  # of each share, below which tokens do not fall within it so by chance: 3e-6 of all, for two sets of tokens
)
_LEAST_OFF = 0.01  # less is as of an engine in bf16
_ANSWER = "this is the answer"  # whose end a chat template is asked for
COPIES = -30.0  # log-probability below which equal completions of a group are no chance
_PLACED = {"temperature", "top_k", "top_p", "min_p"}  # options whose distribution the places of tokens are taken in
_AT_ONCE = 2**22  # probabilities that are compared at once
# By which the gradient of one tensor is off: of its own norm, and of that of the whole gradient. Of SmolLM2-135M fp32 rounds a
# tensor by up to 6e-5 and 4e-6 of these, bf16 by up to 0.15 and 0.015.
_TENSOR_OFF, _TENSOR_OFF_IN_HALF = (0.1, 2e-5), (0.5, 0.02)
_ROUNDED = 1.5  # times as much as half precision rounds rows alone, a row of a batch is rounded at most
_MOVED = 3.0  # the same of a gradient: of a model with sharp attention it was up to 2.8 times, rarely more
_FEW = 1e-3  # share of trained parameters below which a model without an adapter is asked about
# Stages that a step has decided when it samples; the second line may be missing in a step.
_OF_GENERATION = ("sampling", "ends", "mask", "rewards", "advantages")
_OF_SOME_GENERATIONS = ("turns", "reference", "mismatch")


@dataclass
class _Alone:
    """A completion scored alone, unpadded: arrays (T,)."""

    logps: np.ndarray
    entropies: np.ndarray
    variances: np.ndarray  # of the surprise of a token drawn there
    likeliest: np.ndarray  # 1 where no token is likelier
    # By the distribution that the sampler's options make, as `replay.places.Drawn` has them; NaN where it is not known.
    likelier: np.ndarray
    equal: np.ndarray
    stopping: np.ndarray


class Judge:
    """The stages of a step, with the model."""

    temperature: float

    def __init__(self, trainer: Any, step: Step, record: StepRecord):
        self.trainer, self.step, self.record = trainer, step, record
        self.policy, self.tokenizer = policy_of(trainer), tokenizer_of(trainer)
        self.temperature = step.settings["temperature"]
        self.stops = [*eos_ids(trainer)]
        options = step.sampler_values()
        least = stops_of(trainer)["min_tokens"]  # a StopSpec may have it, which is not among the settings
        if least and not options.keys() & {"min_tokens", "min_new_tokens"}:
            options["min_tokens"] = least
        self.sampler = options
        self.options = None if options.keys() - _PLACED else {"temperature": float(self.temperature)} | options
        self.alone: dict[tuple, _Alone] = {}  # by prompt and completion
        self.scored = self._with_rows_alone()  # step and record, of whose log-probs the loss is defined
        with failing_together(record.averaged):
            self.losses = self._losses()
        self.gradients = self._score_and_differentiate()
        with failing_together(record.averaged):
            self._score_other_rows()

    def _score_other_rows(self) -> None:
        """Score rows that the loss leaves out, which were sampled too."""
        with evaluating(self.policy), without_autocast(self.policy):
            for row in self.step.rows:
                if row.ids and text_key(row.prompt_ids, row.ids) not in self.alone:
                    self.alone[text_key(row.prompt_ids, row.ids)] = self._score(self.policy, row.prompt_ids, row.ids)

    def report(self) -> StepReport:
        step = self.step
        with failing_together(self.record.averaged):
            of_rows = stages_of_rows(step, self.tokenizer.decode, self._reference_kl())
            of_rows[0] = self._beyond_turns(of_rows[0])
            stages = [self._seeded(self.sampling()), *map(self._judged_alone, map(self._with_dropout_in_kl, of_rows))]
            stages += [check_batches(step), self.logprobs(), self.reference(), self.mismatch()]
        stages += [*self._of_update(), self._metrics()]
        return self._report(stages)

    def _seeded(self, sampling: Stage) -> Stage:
        """The stage of sampling, with what sets torch's seed, from which transformers draws: reward functions, or a script."""
        if self.record.drawn_alike and len(self.step.rows) % self.step.num_generations:
            cause = "the rows of a group are in several processes, which draw the same random numbers: they get copies"
            cause += "; was a seed set after the trainer was made?"
            return replace(sampling, verdict="different", cause=f"{cause}; {sampling.cause}")
        if not self.record.seeding or self.step.settings.get("use_vllm"):
            return sampling
        cause = f"{', '.join(sorted(self.record.seeding))} sets torch's seed: a fixed one makes each generation draw the same"
        return replace(sampling, verdict="different", cause=f"{cause}; {sampling.cause}")

    def _beyond_turns(self, ends: Stage | None) -> Stage | None:
        """The stage of ends; not known where rows go on behind the token with which the chat template ends a turn."""
        token = turn_end(self.tokenizer) if any(isinstance(prompt, list) for prompt in self.step.prompts) else None
        if ends is None or ends.verdict == "different" or token is None or token in self.stops:
            return ends
        beyond = [
            i
            for i, row in enumerate(self.step.rows)
            if any(t == token and a and b for t, a, b in zip(row.ids, row.own, row.own[1 : row.end], strict=False))
        ]
        if not beyond:
            return ends
        said = f"{len(beyond)} of {len(self.step.rows)} rows go on behind {self.tokenizer.decode([token])!r} (id {token}), "
        said += "with which the chat template ends a turn, and which is no EOS of tokenizer or generation_config"
        return replace(ends, verdict="cannot tell", cause=f"{said}; {ends.cause}", where=places(beyond))

    def _judged_alone(self, stage: Stage | None) -> Stage | None:
        """The stage of rewards, with what reward models give to each row alone, unpadded and in evaluation."""
        if stage is None or (stage.name, stage.verdict) != ("rewards", "same"):
            return stage
        for model, taken, rewards in self.record.judged:
            # Before a model is in evaluation: whether it was.
            noise = ", ".join(dropouts_of(model)) if model.training else ""
            used, alone = np.array(rewards), rewards_alone(model, taken)
            alone = np.where(np.isnan(alone), used, alone)
            dtype = self.step.dtype if self.step.dtype != "float32" else coarsest_dtype(model)
            limits = TOLERANCES.get(dtype, TOLERANCES["float32"])
            difference = np.abs(used - alone) / max(1.0, float(np.abs(alone).mean()))
            if difference.mean() <= limits.mean and difference.max() <= limits.largest:
                continue
            cause = f"{type(model).__name__} gives {int((difference > limits.mean).sum())} of {len(used)} rows other rewards "
            cause += "alone, without padding, in evaluation"
            cause += f": it is in training, with dropout ({noise}); call eval() on it" if noise else ""
            off = float(np.abs(used - alone).max())
            return Stage("rewards", "different", cause, off, places(np.flatnonzero(difference > limits.mean)))
        return stage

    def report_of_reused(
        self,
        sampled_at: int,
        earlier: StepReport | None,
        generated: Mapping[str, Any] | None = None,
        taken: Sequence[Mapping[str, Any]] = (),
    ) -> StepReport:
        """The report of an update on completions of an earlier step, whose stages of the generation it repeats.

        Args:
            generated: what the trainer's generation and scoring gave at that step; None: not known.
            taken: the inputs of earlier losses in this round of the generation.
        """
        batches = check_batches(self.step if generated is None else with_generation(self.step, generated, taken))
        if earlier is None:
            cause = f"the completions were sampled at step {sampled_at}, whose generation was not checked"
            of_generation = [Stage(name, "cannot tell", cause) for name in _OF_GENERATION]
        else:
            of_generation = [
                replace(stage, cause=f"checked at step {sampled_at}: {stage.cause}")
                for stage in earlier.stages
                if stage.name in (*_OF_GENERATION, *_OF_SOME_GENERATIONS)
            ]
        with failing_together(self.record.averaged):
            of_rows = [batches, self.logprobs()]
        return self._report([*of_generation, *of_rows, *self._of_update(), self._metrics()])

    def _metrics(self) -> Stage | None:
        """The stage of what was logged; a loss that takes its own log-probs logs what it wants."""
        return check_metrics(self.step, losses_of(self.step) if self._takes_own_logps() else self.losses)

    def _of_update(self) -> list[Stage | None]:
        own = self._takes_own_logps()
        # Half precision and dropout may move its value by more than a fault does: then the gradient alone is compared.
        by_gradient = own and (self.step.dtype != "float32" or bool(dropouts_of(self.policy)))
        step, record = (self.step, self.record) if by_gradient else self.scored
        definition = self._form_of_own_loss(step) if own else losses_of
        losses = definition(step) if own else self.losses
        ratios, correction, loss = stages_of_loss(step, losses)
        asked = ask_off_policy(self.trainer, step, record, own, definition)
        ratios, loss = stages_with_answers(ratios, loss, asked)
        if own and loss.verdict != "cannot tell":
            loss = seen_by_value(losses, loss) if asked.problem else loss
            said = "the log-probs are those of each row alone, since this loss takes its own"
            if definition is in_log_probs:
                said = f"it has log-probs in place of ratios, with the same gradient while these are 1; {said}"
            loss = replace(loss, cause="; ".join(filter(None, [loss.cause, said])))
        if ratios and ratios.verdict == "different" and (dropouts := dropouts_of(self.policy)):
            dropout = f"the model has dropout ({', '.join(dropouts)}), which differs between two scorings"
            ratios = replace(ratios, cause=f"{ratios.cause}; {dropout}")
        update = update_stage(self.record, self.policy, self.trainer.args, self.trainer.state)
        return [ratios, correction, loss, self.gradient(loss), update]

    def _report(self, stages: Sequence[Stage | None]) -> StepReport:
        present = [stage for stage in stages if stage]
        if has_images(self.record):
            present = [unknown_with_images(stage) for stage in present]
            place = next((i + 1 for i, stage in enumerate(present) if stage.name == "batches"), len(present))
            present.insert(place, check_images(self.record))
        return StepReport(
            with_deviations(self.step, present),
            checked_rows(self.scored[0], self.losses, self.tokenizer.decode, self._logps_alone),
            self.step.kind,
        )

    def _losses(self) -> list[Loss | None]:
        """The loss of each micro-batch by its definition."""
        return losses_of(self.scored[0])

    def _takes_own_logps(self) -> bool:
        """Say whether the loss takes its log-probs elsewhere, and those of each row alone stand for them."""
        return self.scored[1] is not self.record

    def _form_of_own_loss(self, step: Step) -> Callable[[Step], list[Loss | None]]:
        """How a loss that takes its own log-probs is defined: with these for ratios, where all are 1 and its value says so."""
        rows = [row for micro in step.micro_batches for row in micro.rows]
        if any(row.old_logps is not None or row.old_sum is not None or row.logps is None for row in rows):
            return losses_of
        by_ratios, by_logps = (check_loss(step, form(step)).verdict for form in (losses_of, in_log_probs))
        return in_log_probs if by_ratios == "different" and by_logps != "different" else losses_of

    def _with_rows_alone(self) -> tuple[Step, StepRecord]:
        """Step and record in which a loss that takes its log-probs elsewhere has those of each row alone.

        As they were where a row alone does not have all that the loss depends on, and where it is Liger's.
        """
        step, record = self.step, self.record
        if step.kind not in ("GRPO", "RLOO") or all(micro.logps is not None for micro in record.micro_batches):
            return step, record
        other = getattr(self.trainer, "use_liger_kernel", False) or record.noticed.get(
            "loss"
        )  # as that it takes some rows
        if record.averaged or other or has_images(record) or step.router_losses:
            return step, record
        micro_batches = [self._scored_alone(m) if m.logps is None else m for m in record.micro_batches]
        rows = [micro_rows(micro, step.pad_token_id) for micro in micro_batches]
        rows = [replace(new, entropy_coef=old.entropy_coef) for new, old in zip(rows, step.micro_batches, strict=True)]
        return replace(step, micro_batches=rows), replace(record, micro_batches=micro_batches)

    def _scored_alone(self, micro: MicroBatch) -> MicroBatch:
        """A micro-batch with log-probs and entropies (B, T) of each row alone."""
        inputs, there = micro.inputs, micro.inputs["completion_mask"].bool()
        tables = [torch.zeros(there.shape, dtype=torch.float64) for _ in range(2)]
        with torch.no_grad(), evaluating(self.policy), without_autocast(self.policy):
            for i, mask in enumerate(there.cpu()):
                if mask.any():
                    prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist()
                    alone = self._score(self.policy, prompt, inputs["completion_ids"][i][there[i]].tolist())
                    for table, numbers in zip(tables, (alone.logps, alone.entropies), strict=True):
                        table[i, mask] = torch.from_numpy(numbers)
        logps, entropies = (table.to(there.device) for table in tables)
        return replace(micro, logps=logps, entropies=entropies)

    def _logps_alone(self, prompt: list[int], ids: list[int]) -> np.ndarray:
        return self.alone[text_key(prompt, ids)].logps if ids else np.zeros(0)

    def _score_and_differentiate(self) -> dict[str, torch.Tensor]:
        """Score each row of each micro-batch alone; the gradient is that of their slopes."""
        with own_gradients(self.policy) as gradients:
            with failing_together(self.record.averaged):
                self.alone |= self._differentiate_rows()
                self._differentiate_routers()
            if self.record.averaged:
                average_gradients(self.policy)
        return gradients

    def _differentiate_rows(self) -> dict[tuple, _Alone]:
        """Score each row of each micro-batch, and add the gradients of their slopes."""
        scale, found = self._scale(), {}
        for micro, loss in zip(self.step.micro_batches, self.losses, strict=True):
            for i, (prompt, ids) in enumerate(zip(micro.prompt_ids, micro.ids, strict=True)):
                if ids and loss is not None:
                    by_entropy = loss.entropy_slopes[i] if loss.entropy_slopes else None
                    slopes = loss.slopes[i] * scale, by_entropy
                    found[text_key(prompt, ids)] = self._score(self.policy, prompt, ids, slopes)
        return found

    def _scale(self) -> float:
        """The factor of a loss before its backward pass: RLOO's loss is not divided yet."""
        return 1 / self.step.settings["gradient_accumulation_steps"] if self.step.kind == "RLOO" else 1.0

    def _differentiate_routers(self) -> None:
        """Add the gradient of a router's auxiliary loss, which is that of a whole micro-batch."""
        if not self.step.router_losses:
            return
        factor = router_coefficient(self.trainer) / len(self.step.micro_batches)
        for micro in self.record.micro_batches:
            if router_loss_of(micro) is None or not factor:
                continue
            parts = [[micro.inputs[f"{part}_{kind}"] for part in ("prompt", "completion")] for kind in ("ids", "mask")]
            ids, mask = (torch.cat(part, dim=1) for part in parts)
            outputs = self.policy(input_ids=ids, attention_mask=mask, use_cache=False, output_router_logits=True)
            (factor * outputs.aux_loss).backward()

    def _logits(self, model: Any, prompt: list[int], ids: list[int]) -> torch.Tensor:
        """Logits (T, V) at the tokens of a completion that is scored alone, at the temperature."""
        tokens = torch.tensor([prompt + ids], device=next(model.parameters()).device)
        inputs = model_inputs(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, "explicit")
        return logits_of(model, inputs)[0, len(prompt) - 1 : -1].float() / self.temperature

    def _score(self, model: Any, prompt: list[int], ids: list[int], slopes: tuple | None = None) -> _Alone:
        """Score a completion alone; with slopes by its log-probs and entropies add to the model's gradients."""
        device = next(model.parameters()).device
        tokens = torch.tensor(ids, device=device)
        with torch.set_grad_enabled(slopes is not None):
            logits = self._logits(model, prompt, ids)
            table = logits.log_softmax(-1)
            logps = table.gather(1, tokens[:, None])[:, 0]
            probs = table.exp()
            entropies = -(probs * table).sum(-1)
            if slopes is not None and logits.requires_grad:
                total = (logps * torch.tensor(slopes[0], device=device)).sum()
                if slopes[1] is not None:
                    total = total + (entropies * torch.tensor(slopes[1], device=device)).sum()
                total.backward()
        variances = (probs * (table + entropies[:, None]) ** 2).sum(-1)
        likeliest = logps >= table.max(-1).values
        numbers = logps, entropies, variances, likeliest, *self._places(logits.detach(), prompt, ids)
        return _Alone(*(x.detach().double().numpy(force=True) for x in numbers))

    def _places(self, logits: torch.Tensor, prompt: list[int], ids: list[int]) -> list[torch.Tensor]:
        """Return what is likelier than each token, as likely, and a stop: (T,) each, from (T, V) at the temperature."""
        if self.options is None:
            return [torch.full((len(ids),), torch.nan)] * 3
        parts = []
        size = max(1, _AT_ONCE // logits.shape[1])
        stops = [token for token in self.stops if token < logits.shape[1]]
        for start in range(0, len(ids), size):
            part, tokens = logits[start : start + size], torch.tensor(ids[start : start + size], device=logits.device)
            scores = scores_with(part * self.temperature, prompt, tokens.tolist(), self.options)
            probs = scores.softmax(-1)
            own = probs.gather(1, tokens[:, None])
            likelier, equal = (probs * (probs > own)).sum(-1), (probs * (probs == own)).sum(-1)
            parts.append((likelier, equal, probs[:, stops].sum(-1)))
        return [torch.cat(part) for part in zip(*parts, strict=True)]

    def _scored(self) -> Iterator[tuple[LossRow, list[int], list[int], _Alone]]:
        """The rows in the loss that have tokens, and each alone."""
        for micro in self.step.micro_batches:
            for row, prompt, ids in zip(micro.rows, micro.prompt_ids, micro.ids, strict=True):
                if (alone := self.alone.get(text_key(prompt, ids))) and row.logps is not None:
                    yield row, prompt, ids, alone

    def sampling(self) -> Stage:
        """Say whether the tokens were sampled from what is scored.

        Then the surprise of a token is the entropy in the mean: the sum of the differences has mean 0 and a variance that the
        logits give. And the places of the tokens in the distribution that the sampler's options make are uniform.
        """
        excess, variance, count = 0.0, 0.0, 0
        drawn: dict[str, list[float]] = {"tokens": [], "first tokens": []}
        copies = self._improbable_copies()
        repeats = {i for group in copies for i in group[1:]}
        for number, row in enumerate(self.step.rows):
            if row.ids and number not in repeats:
                alone = self.alone[text_key(row.prompt_ids, row.ids)]
                own = self._sampled(row)
                excess += float(((-alone.logps - alone.entropies) * own).sum())
                variance += float((alone.variances * own).sum())
                count += int(own.sum())
                if self.options is not None:
                    at = token_places(alone.likelier, alone.equal, seed=number)
                    drawn["tokens"] += at[own > 0].tolist()
                    drawn["first tokens"] += at[:1][own[:1] > 0].tolist()
        if not variance:
            return Stage("sampling", "cannot tell", "no token was sampled here, or each was certain")
        errors, options = excess / math.sqrt(variance), ", ".join(self.step.sampler_options())
        numbers = abs(excess) / count, f"{count} tokens"
        chance = self._chance_of_surprise(repeats) if errors > _FAR else 1.0
        is_far = errors < -_FAR or chance < DIFFERENT
        of_places, said_of_places = self._uniformity(options, repeats)
        is_uneven = of_places is not None and of_places.chance < DIFFERENT
        if copies:
            why = cause_of_copies(self.step, self.record, copies, self._share_likeliest)
            times = ", ".join(str(n) for n in sorted({len(rows) for rows in copies}))
            copied = f"a group holds one completion {times} times (in {len(copies)} cases), far beyond chance"
            # A sampler that is sharper than what is scored repeats itself too: then its tokens say more than the copies.
            if UNKNOWN_COPIES not in why or not (is_far or is_uneven):
                rows = places([row for rows in copies for row in rows])
                return Stage("sampling", "different", f"{copied}: {why}", where=rows)
        besides = f"; {copied}" if copies else ""
        if is_far:
            kind = "likelier" if errors < 0 else "less likely"
            said = (
                f"the sampled tokens are {kind} than their scored distribution gives ({errors:+.1f} standard errors): "
            )
            return Stage("sampling", "different", f"{said}{self._why_sampled_otherwise()}{besides}", *numbers)
        if is_uneven:
            return Stage("sampling", "different", f"{said_of_places}{besides}", *numbers)
        for name, values in drawn.items():
            if odd := odd_share(np.array(values)):
                cause = f"{odd[1]:.0%} of {len(values)} {name} are among the likeliest ones that hold "
                cause += f"{odd[0]:.0%} of the probability: "
                why = self._why_sampled_otherwise()
                return Stage("sampling", "different", cause + why, *numbers)
        if options:
            cause = (
                f"{options}: samples another distribution than the one that is scored; {count} tokens do not show it"
            )
            return Stage(
                "sampling", "cannot tell", "; ".join(part for part in (cause, said_of_places) if part), *numbers
            )
        verdict = "cannot tell" if min(chance, of_places.chance if of_places else 1.0) < UNLIKELY else "same"
        rare = f", of rare tokens (chance up to {chance:.1g})" if errors > _FAR else ""
        said = f"{count} tokens, {errors:+.1f} standard errors{rare}; {said_of_places}"
        return Stage("sampling", verdict, said, *numbers)

    def _chance_of_surprise(self, repeats: Collection[int]) -> float:
        """Bound the chance that tokens that are drawn from what is scored are as unlikely as the sampled ones.

        Args:
            repeats: numbers of rows that are copies of another.
        """
        with torch.no_grad(), evaluating(self.policy), without_autocast(self.policy):
            rows = (row for i, row in enumerate(self.step.rows) if row.ids and i not in repeats)
            return chance_of_surprise(
                (self._logits(self.policy, row.prompt_ids, row.ids).log_softmax(-1), row.ids, self._sampled(row))
                for row in rows
            )

    def _why_sampled_otherwise(self) -> str:
        return cause_of_sampling(self.policy, self.step, self.sampler, self.temperature, self._share_likeliest)

    def _uniformity(self, options: str, repeats: Collection[int]) -> tuple[Uniformity | None, str]:
        """The places of the sampled tokens, judged, and a sentence on them; None where their distribution is not known.

        Args:
            repeats: numbers of rows that are copies of another, which are left out.
        """
        if self.options is None:
            return None, f"what {options or 'min_tokens'} leaves of the distribution is not computed"
        rows = [row for i, row in enumerate(self.step.rows) if row.ids and i not in repeats]
        alone = [self.alone[text_key(row.prompt_ids, row.ids)] for row in rows]
        own = np.concatenate([self._sampled(row) for row in rows]) > 0
        ids = np.concatenate([row.ids for row in rows])[own]
        rolls = getattr(self.trainer, "rollout_func", None) is not None
        likelier, equal, stopping = (
            np.concatenate([getattr(each, name) for each in alone])[own] for name in ("likelier", "equal", "stopping")
        )
        stops = np.isin(ids, self.stops).astype(float)
        if rolls or self.step.kind == "AsyncGRPO":  # these may leave out the token that stopped a completion
            stops = stopping = np.zeros(len(ids))
        engine = self.step.settings.get("use_vllm") or self.step.kind == "AsyncGRPO"
        limits = TOLERANCES["bfloat16"] if engine else tolerance_of(self.step)
        judged = uniformity(Drawn(likelier, equal, stopping, stops), limits.mean / 2)
        of = f" with {options}" if options else ""
        if engine:
            of += " by the trainer's model (vLLM's own distribution is not seen)"
        if rolls:
            of += " (how the rollout function samples is not seen)"
        if judged.chance < UNLIKELY:
            said = f"{judged.said}{of} (chance {judged.chance:.1g}): "
            said += "completions or tokens were selected after they were drawn, or drawn from another distribution"
            return judged, said
        said = f"places{of} within {judged.distance:.2g} of uniform"
        if len(rows) < BEST_OF_THREE:
            needed = BEST_OF_THREE * len(ids) / len(rows)
            said += f"; the best of three completions shows from about {round(needed, -2):,.0f} tokens on"
        return judged, said

    def _sampled(self, row: SampledRow) -> np.ndarray:
        """(T,), 1 for the tokens of a row that the sampler drew where they stand, up to its end."""
        return row.own * (np.arange(len(row.ids)) < row.end) * sampled_tokens(self.step.turns, row)

    def _improbable_copies(self) -> list[list[int]]:
        """The rows of each completion that a group holds more than once, which is no chance.

        A rollout function may use a completion again on purpose, so of its groups only those that hold one are counted.
        """
        # In a distillation the rows of one prompt are compared, wherever they stand.
        size = len(self.step.rows) if self.step.kind == "Distillation" else self.step.num_generations
        least = size if getattr(self.trainer, "rollout_func", None) is not None else 2
        equal: dict[tuple, list[int]] = {}
        for i, row in enumerate(self.step.rows):
            equal.setdefault((i // size, text_key(row.prompt_ids, row.ids)), []).append(i)
        copies = []
        for (_, key), rows in equal.items():
            if len(rows) >= least and key in self.alone:
                sampled = self._sampled(self.step.rows[rows[0]])  # pads behind an end are alike in every row
                if chance_of_copies(len(rows), size, float((self.alone[key].logps * sampled).sum())) < COPIES:
                    copies.append(rows)
        return copies

    def _share_likeliest(self, rows: Sequence[SampledRow]) -> float:
        """The share of the tokens that were sampled in these rows and are the likeliest at their places."""
        tokens = [
            self.alone[text_key(row.prompt_ids, row.ids)].likeliest[row.own[: len(row.ids)] > 0]
            for row in rows
            if row.ids
        ]
        return float(np.concatenate(tokens).mean()) if tokens else 0.0

    def logprobs(self) -> Stage:
        """Say whether the trainer's log-probs are those of each row alone."""
        rows = list(self._scored())
        if not rows:
            elsewhere = any(row.logps is None and row.mask.any() for row in all_loss_rows(self.step))
            cause = "the loss computes its log-probs elsewhere" if elsewhere else "no token is in the loss"
            return Stage("log-probs", "cannot tell", cause)
        used, alone = (np.concatenate(part) for part in ([r.logps for r, *_ in rows], [a.logps for *_, a in rows]))
        stage = self._close("log-probs", used, alone, "a row alone, without padding, has other log-probs", self._why)
        return stage if stage.verdict == "different" else self._with_entropies(stage)

    def _with_entropies(self, logprobs: Stage) -> Stage:
        """The stage of log-probs, different where the loss gets other entropies than those of each row alone.

        A trainer's own scoring may take them of other places, and quantile, bonus and metric follow them.
        """
        pairs = [(row.entropies, alone.entropies) for row, *_, alone in self._scored() if row.entropies is not None]
        if not pairs:
            return logprobs
        used, alone = (np.concatenate(part) for part in zip(*pairs, strict=True))
        limits = tolerance_of(self.step)
        # TRL may add up p log p over the vocabulary in half precision, which rounds more than a log-prob.
        wider = 4.0 if self.step.dtype in ("bfloat16", "float16") else 1.0
        difference = np.abs(used - alone)
        mean, largest = float(difference.mean()), float(difference.max())
        if mean <= wider * limits.mean and largest <= wider * limits.largest:
            return logprobs
        neighbours = {"before": 1, "after": -1}
        shifts = {
            name: np.nanmean(np.concatenate([np.abs(u - shifted(a, by)) for u, a in pairs]))
            for name, by in neighbours.items()
        }
        near = [name for name, off in shifts.items() if off <= wider * limits.mean]
        why = f": each is that of the token {near[0]} it" if near else ""
        cause = (
            f"the entropies of the tokens are not those of a row alone{why}: mean {mean:.2g} nats, {self.step.dtype}"
        )
        return replace(logprobs, verdict="different", cause=cause, largest=largest)

    def _why(self) -> str:
        rows = [RowAlone(prompt, ids, row.logps, alone.logps) for row, prompt, ids, alone in self._scored()]
        limits, dtype = tolerance_of(self.step), self.step.dtype
        cause = cause_of_logprobs(self.trainer, self.policy, self.record, rows, limits, self.temperature, dtype)
        return f": {cause}"

    def reference(self) -> Stage | None:
        """Say whether the reference's log-probs are those of each row alone; None without a reference in the loss.

        RLOO has it in its rewards: there only what the reference is can be asked, not what its log-probs were.
        """
        if self.step.kind == "RLOO":
            rows = [(row.prompt_ids, row.ids) for row in self.step.rows if row.ids and self.step.settings["beta"]]
            taken = None
        else:
            scored = [(row, prompt, ids) for row, prompt, ids, _ in self._scored() if row.ref_logps is not None]
            rows = [(prompt, ids) for _, prompt, ids in scored]
            taken = [row.ref_logps for row, *_ in scored]
        if not rows:
            return None
        if moving := self._moves_with_the_policy(*rows[0]):
            return Stage("reference", "different", moving)
        alone = self._by_reference(rows)
        if alone is None:
            return Stage("reference", "cannot tell", "the reference is an adapter of its own")
        stage = Stage("reference", "same", "it is the model that the training starts from")
        if taken is not None:
            cause = "the reference gives a row alone other log-probs"
            stage = self._close("reference", np.concatenate(taken), np.concatenate(alone), cause)
        is_below = getattr(self.trainer, "ref_model", None) is None  # an adapter, which no update moves
        if stage.verdict == "different" or (is_below and self.step.begun):
            return stage
        # TRL loads it from the path in the model's config, which need not have the weights that the model was given. An
        # adapter that is trained on has a copy of its start.
        policy = np.concatenate([self.alone[text_key(prompt, ids)].logps for prompt, ids in rows])
        if self.step.begun:
            if self.step.settings.get("sync_ref_model") or not np.array_equal(np.concatenate(alone), policy):
                return replace(stage, cause="") if taken is None else stage
            cause = "after updates the reference still is the policy: it follows it, or the weights have not moved"
            return replace(stage, verdict="cannot tell", cause=cause)
        cause = "it is not the model that the training starts from"
        start = self._close("reference", np.concatenate(alone), policy, cause, self._why_not_the_start)
        return stage if start.verdict != "different" else replace(start, verdict="cannot tell")

    def _moves_with_the_policy(self, prompt: list[int], ids: list[int]) -> str:
        """Name the weights that train and that the reference has too; empty where there are none."""
        trained = {name: parameter for name, parameter in self.policy.named_parameters() if parameter.requires_grad}
        model = getattr(self.trainer, "ref_model", None)
        if model is not None:
            own = {id(parameter) for parameter in self.trainer.accelerator.unwrap_model(model).parameters()}
            shared = [name for name, parameter in trained.items() if id(parameter) in own]
            said = "the reference has weights of the policy itself, which move with it"
        elif is_sharded(self.policy) or (below := self._below()) is None:
            return ""
        else:
            with own_gradients(self.policy) as gradients, below:
                logits = self._logits(self.policy, prompt, ids)
                if logits.requires_grad:
                    logits.logsumexp(-1).sum().backward()
            shared = [name for name in gradients if name in trained]
            said = "the reference is what lies below the adapter, and part of that trains"
        return f"{said}: {', '.join(shared[:2])}{', ...' if len(shared) > 2 else ''}" if shared else ""

    def _why_not_the_start(self) -> str:
        """Say that the start of an adapter took something off the weights below it, as PiSSA's does."""
        adapters = getattr(self.policy, "peft_config", None) or {}
        starts = {getattr(config, "init_lora_weights", True) for config in adapters.values()}
        named = sorted(start for start in starts if isinstance(start, str) and start != "gaussian")
        return "".join(f", and init_lora_weights={start!r} changes the weights below the adapter" for start in named)

    def mismatch(self) -> Stage | None:
        """Say whether the sampler's log-probs are near those of each row alone; None without them."""
        found = [
            (kept, row.sampled_logps, alone.logps, prompt, ids)
            for row, prompt, ids, alone in self._scored()
            if row.sampled_logps is not None and (kept := (row.mask > 0) & np.isfinite(row.sampled_logps)).any()
        ]
        if not found:
            return None
        sampled, alone = (np.concatenate([row[n][row[0]] for row in found]) for n in (1, 2))
        mean, largest = float(np.abs(sampled - alone).mean()), float(np.abs(sampled - alone).max())
        said, numbers = f"mean {mean:.2g} nats", (largest, f"{len(alone)} tokens")
        if mean <= _NEAR:
            return Stage("mismatch", "same" if largest <= 2 * SAME else "rounding", said, *numbers)
        plain = None
        if self.temperature != 1:
            plain = [self._logps_at_one(prompt, ids) for *_, prompt, ids in found]
        why = cause_of_sampled_logps([row[:3] for row in found], plain, _NEAR)
        if why.startswith("cause not found"):
            # Numbers of other tokens are off by about the surprise.
            if mean <= min(_NOT_NEAR, -float(alone.mean()) / 2):
                cause = "the sampler has lower precision or older weights, or its log-probs are at wrong places"
                return Stage("mismatch", "cannot tell", f"{said}: {cause}", *numbers)
            if options := ", ".join(self.step.sampler_options()):
                why += f"; not tested: {options}"
        cause = f"the sampler's log-probs are not those of these tokens: {why}: {said}"
        return Stage("mismatch", "different", cause, *numbers)

    def _logps_at_one(self, prompt: list[int], ids: list[int]) -> np.ndarray:
        """The log-probs (T,) of a completion alone, at temperature 1."""
        with torch.no_grad(), evaluating(self.policy), without_autocast(self.policy):
            table = (self._logits(self.policy, prompt, ids) * self.temperature).log_softmax(-1)
        return table.gather(1, torch.tensor(ids, device=table.device)[:, None])[:, 0].double().numpy(force=True)

    def _by_reference(self, texts: Sequence[tuple[list[int], list[int]]]) -> list[np.ndarray] | None:
        """Log-probs of completions by the reference: a model, an adapter, or what lies below the policy's; None: not known."""
        model = getattr(self.trainer, "ref_model", None)
        below: Any = contextlib.nullcontext()
        if model is None:
            model = self.policy
            if (below := self._below()) is None:
                return None
        with below, evaluating(model), without_autocast(model):
            return [self._score(model, prompt, ids).logps for prompt, ids in texts]

    def _below(self) -> Any:
        """A context in which the policy computes as its reference, which has no model of its own; None without an adapter."""
        adapters = getattr(self.policy, "peft_config", None)
        if adapters is None:
            return None
        # TRL keeps a copy of an adapter that is trained on.
        return adapter_in_use(self.policy, "ref") if "ref" in adapters else self.policy.disable_adapter()

    def _reference_kl(self) -> np.ndarray | None:
        """(N,) of the sampled rows that RLOO takes off their rewards, None where that is not so or not known."""
        if self.step.kind != "RLOO" or not self.step.settings["beta"]:
            return None
        rows = self.step.rows
        ref = self._by_reference([(row.prompt_ids, row.ids) for row in rows])
        if ref is None:
            return None
        alone = [self.alone[text_key(row.prompt_ids, row.ids)].logps for row in rows]
        masks = [row.mask[: len(row.ids)] for row in rows]
        return np.array([((a - r) * mask).sum() for a, r, mask in zip(alone, ref, masks, strict=True)])

    def _with_dropout_in_kl(self, stage: Stage | None) -> Stage | None:
        """A stage of the rows; TRL's KL in RLOO's rewards has a dropout that nobody can draw again."""
        if stage is None or (stage.name, stage.verdict) != ("advantages", "different"):
            return stage
        dropouts = dropouts_of(self.policy)
        if self.step.kind != "RLOO" or not self.step.settings["beta"] or not dropouts:
            return stage
        if self.step.kl is not None and check_advantages(self.step).verdict == "different":  # with the trainer's own KL
            return stage
        cause = f"{stage.cause}, or dropout ({', '.join(dropouts)}) moves the KL in them"
        return replace(stage, verdict="cannot tell", cause=cause)

    def gradient(self, loss: Stage) -> Stage:
        """Compare the gradient with that of the loss, by parameter; one that differs under dropout is taken again without."""
        stage, dropouts = self._gradient(loss), dropouts_of(self.policy)
        if not dropouts:
            return self._moved(stage)
        if stage.verdict != "different":
            return stage
        record = record_without_dropout(self.trainer, self.record)
        again = Judge(self.trainer, step_of(self.trainer, self.step.kind, record), record)
        without = again._moved(again._gradient(loss))
        options = self.trainer.args.gradient_checkpointing_kwargs or {}
        is_redrawn = self.trainer.args.gradient_checkpointing and options.get("preserve_rng_state") is False
        if is_redrawn and without.verdict in ("same", "rounding"):
            cause = f"preserve_rng_state=False, and the model has dropout ({', '.join(dropouts)}): the backward pass"
            return replace(stage, cause=f"{cause} computes the layers again with another dropout")
        return replace(without, cause=f"compared without dropout ({', '.join(dropouts)}): {without.cause}")

    def gradient_of_other_trainers(self, loss: Stage) -> Stage:
        """Compare the gradient with that of the loss, for a trainer that is not run again without dropout."""
        stage, dropouts = self._gradient(loss), dropouts_of(self.policy)
        if stage.verdict in ("same", "rounding"):
            stage = replace(stage, cause=f"{stage.cause}; a layer's own backward pass is not checked for this trainer")
        if stage.verdict == "different" and dropouts:
            cause = f"the model has dropout ({', '.join(dropouts)}), which is on while it trains: {stage.cause}"
            return replace(stage, verdict="cannot tell", cause=cause)
        return stage

    def _gradient(self, loss: Stage) -> Stage:
        """Compare the gradient with that of the loss, unless half precision moves that of rows alone by as much."""
        stage = self._compared_gradient(loss)
        if stage.verdict != "different" or self.step.dtype not in ("bfloat16", "float16"):
            return stage
        if self.step.kind not in ("GRPO", "RLOO") or not math.isfinite(stage.largest or 0.0):
            return stage
        try:
            with self.trainer.accelerator.autocast():
                rounded = self._gradients_of_rows_alone(contextlib.nullcontext())
            with in_float32(self.policy):
                exact = self._gradients_of_rows_alone(without_autocast(self.policy))
        except (torch.OutOfMemoryError, StepNotChecked):  # fp32 takes more than the training does
            if is_sharded(self.policy):  # FSDP is in the middle of a pass, which ends the check
                raise
            return stage
        names = sorted(rounded.keys() | exact.keys() | self.record.gradients.keys())
        total, used = (
            sum(_off(*_products(exact.get(n), other.get(n))) ** 2 for n in names)
            for other in (rounded, self.record.gradients)
        )
        if used > _MOVED**2 * total:
            return stage
        cause = f"{self.step.dtype} moves the gradient of rows alone as far: {stage.cause}"
        return replace(stage, verdict="cannot tell", cause=cause)

    def _gradients_of_rows_alone(self, precision: contextlib.AbstractContextManager) -> dict[str, torch.Tensor]:
        with own_gradients(self.policy, precision) as gradients:
            with failing_together(self.record.averaged):
                self._differentiate_rows()
                self._differentiate_routers()
            if self.record.averaged:
                average_gradients(self.policy)
        return gradients

    def _compared_gradient(self, loss: Stage) -> Stage:
        if loss.verdict == "cannot tell" and (None in self.losses or not self.losses):
            return Stage("gradient", "cannot tell", "no loss to differentiate")
        used, expected = self.record.gradients, self.gradients
        names = sorted(used.keys() | expected.keys())
        products = {name: _products(expected.get(name), used.get(name)) for name in names}
        dot, expected_square, used_square = (sum(part[i] for part in products.values()) for i in range(3))
        if not math.isfinite(used_square) and self.record.problem:
            return Stage("gradient", "cannot tell", self.record.problem)
        if not math.isfinite(used_square):
            return Stage("gradient", "different", "a gradient is not finite", math.inf)
        if not used_square and not expected_square:
            cause = "no weight that trains moves the loss"
            if not any(row.mask.any() for row in all_loss_rows(self.step)):
                cause = "no token is in the loss"
            elif self.step.kind != "Distillation" and not any(
                np.any(row.advantage) for row in all_loss_rows(self.step)
            ):
                cause = "no row of this batch has an advantage"
            elif self.step.kind != "Distillation" and not any(
                np.any(slopes) for loss in self.losses if loss for slopes in loss.slopes
            ):
                cause = "each token that has an advantage is beyond the clip"
            elif self.step.kind != "Distillation" and (
                trains := [name for name, p in self.policy.named_parameters() if p.requires_grad]
            ):
                merged = any(getattr(module, "merged", False) is True for module in self.policy.modules())
                why = (
                    "the adapter is merged into the weights below it" if merged else "does the model compute with them?"
                )
                cause = f"the loss has slopes, and none of the {len(trains)} tensors that train gets a gradient: {why}"
                return Stage("gradient", "different", cause, 1.0)
            return Stage("gradient", "cannot tell", cause)
        if not used_square or not expected_square:
            cause = "there is one, but the loss gives none" if used_square else "there is none, but the loss gives one"
            return Stage("gradient", "different", cause, 1.0)
        cosine, ratio = dot / math.sqrt(expected_square * used_square), math.sqrt(used_square / expected_square)
        said, limits = f"cosine {cosine:.5f}, norm {ratio:.4g} times what the loss gives", tolerance_of(self.step)
        if cosine < limits.cosine or abs(ratio - 1) > limits.norm:
            worst = sorted(products, key=lambda name: _off(*products[name]), reverse=True)[:2]
            return Stage(
                "gradient", "different", f"{said}; worst in {', '.join(worst)}", max(1 - cosine, abs(ratio - 1))
            )
        own, whole = _TENSOR_OFF if limits == TOLERANCES["float32"] else _TENSOR_OFF_IN_HALF
        if off := _wrong_tensors(products, own, whole * math.sqrt(expected_square)):
            cause = f"{said}; but off by more than {own:.0%} of its size in {', '.join(off[:2])}"
            return Stage("gradient", "different", cause, max(1 - cosine, abs(ratio - 1)))
        total = sum(p.numel() for p in self.policy.parameters())
        count = sum(p.numel() for p in self.policy.parameters() if p.requires_grad)
        if count < _FEW * total and not hasattr(self.policy, "peft_config"):
            cause = f"{said}; only {count:,} of {total:,} parameters train, and there is no adapter"
            return Stage("gradient", "cannot tell", cause, 1 - cosine)
        verdict = "same" if 1 - cosine < SAME and abs(ratio - 1) < SAME else "rounding"
        return Stage("gradient", verdict, f"{said}; {count / total:.2%} of the parameters train", 1 - cosine)

    def _moved(self, gradient: Stage) -> Stage:
        """The stage of the gradient, with whether the loss moves as it says; only a gradient that agrees so far is asked."""
        if gradient.verdict not in ("same", "rounding") or self._takes_own_logps():
            return gradient
        gradients, scale = self.gradients, self._scale()
        moved = check_by_moving(self.trainer, self.policy, self.step, self.record, self.losses, gradients, scale)
        if moved.verdict == "different":
            return replace(gradient, verdict="different", cause=moved.cause, largest=moved.size)
        if moved.verdict == "same":
            return replace(gradient, cause=f"{gradient.cause}; {moved.cause}")
        cause = f"{gradient.cause}; how far the loss moves is not known: {moved.cause}"
        return replace(gradient, cause=cause)

    def _limits_of_rows_alone(self, limits: Tolerance) -> Tolerance:
        """The limits of log-probs, wider where half precision rounds those of rows alone by as much."""
        rows = [(prompt, ids) for _, prompt, ids, _ in self._scored()]
        if self.step.dtype not in ("bfloat16", "float16") or self.step.kind == "AsyncGRPO" or not rows:
            return limits
        try:
            with evaluating(self.policy), torch.no_grad():
                with self.trainer.accelerator.autocast():
                    rounded = [self._score(self.policy, *row).logps for row in rows]
                with without_autocast(self.policy), in_float32(self.policy):
                    exact = [self._score(self.policy, *row).logps for row in rows]
        except torch.OutOfMemoryError:  # fp32 takes more than the training does
            return limits
        off = _ROUNDED * np.abs(np.concatenate(rounded) - np.concatenate(exact))
        return replace(limits, mean=max(limits.mean, float(off.mean())), largest=max(limits.largest, float(off.max())))

    def _close(
        self,
        name: str,
        used: np.ndarray,
        alone: np.ndarray,
        cause: str,
        why: Callable[[], str] = lambda: "",
        dtype: str = "",
    ) -> Stage:
        """A stage of log-probs, within the rounding of a dtype: the step's, if none is given."""
        dtype = dtype or self.step.dtype
        where, limits = f"{len(used)} tokens", tolerance_of(replace(self.step, dtype=dtype))
        if not np.isfinite(used).all():
            return Stage(name, "different", "a number is not finite", math.inf, where)
        difference = np.abs(used - alone)
        mean, largest = float(difference.mean()), float(difference.max())
        if mean > limits.mean or largest > limits.largest:
            limits = self._limits_of_rows_alone(limits)
        if mean <= limits.mean and largest <= limits.largest:
            verdict = "same" if largest <= 2 * SAME else "rounding"
            return Stage(name, verdict, f"mean {mean:.1e} nats, {dtype}", largest, where)
        return Stage(name, "different", f"{cause}{why()}: mean {mean:.2g} nats, {dtype}", largest, where)


def chance_of_copies(count: int, rows: int, logp: float) -> float:
    """Bound the log-probability that one text of this log-prob stands `count` times in that many rows.

    Example:
        >>> chance_of_copies(2, 8, -40.0) < -30, chance_of_copies(130, 256, math.log(0.5)) < -30
        (True, False)
    """
    ways = math.lgamma(rows + 1) - math.lgamma(count + 1) - math.lgamma(rows - count + 1)
    return ways + (count - 1) * logp  # one factor fewer, since any text may be the one that repeats


@contextlib.contextmanager
def own_gradients(
    model: Any, precision: contextlib.AbstractContextManager | None = None
) -> Iterator[dict[str, torch.Tensor]]:
    """Inside the block a model in evaluation has no gradients; the dict has those made there afterwards, the model its own.

    It computes without autocast, or inside of `precision`.
    """
    was, made = {parameter: parameter.grad for parameter in model.parameters()}, dict[str, torch.Tensor]()
    try:
        for parameter in was:
            parameter.grad = None
        with evaluating(model), precision or without_autocast(model):
            yield made
        made |= {name: p.grad for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}
    finally:
        for parameter, gradient in was.items():
            parameter.grad = gradient


def turn_end(tokenizer: Any) -> int | None:
    """The special token that a chat template writes behind an answer; None without a template or such a token."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # a template is anybody's
        return None
    behind = tokenizer.encode(text.rpartition(_ANSWER)[2].strip(), add_special_tokens=False)[:1]
    added = getattr(
        tokenizer, "added_tokens_decoder", {}
    )  # a token that is no EOS for the tokenizer is none of its special ones
    special = {*tokenizer.all_special_ids, *(token for token, each in added.items() if each.special)}
    return behind[0] if behind and behind[0] in special else None


@torch.no_grad()
def rewards_alone(model: Any, taken: Mapping[str, torch.Tensor]) -> np.ndarray:
    """(N,), what a reward model gives to each row of its tables (N, L) alone, without padding, in evaluation.

    NaN for a row without a token.
    """
    found = np.full(len(taken["attention_mask"]), np.nan)
    with evaluating(model):
        for i, mask in enumerate(taken["attention_mask"].bool()):
            if mask.any():
                found[i] = float(model(**{name: table[i : i + 1, mask] for name, table in taken.items()}).logits[0, 0])
    return found


def chance_of_surprise(drawn: Iterable[tuple[torch.Tensor, Sequence[int], np.ndarray]]) -> float:
    """Bound the chance that tokens are as unlikely as these if they are drawn from their distributions.

    Where nearly every token is certain, one that is not moves the mean surprise by many standard errors, and such a token
    comes more often than they say. The mean of `p ** -h` over draws is the sum of `p ** (1 - h)`. A product of such numbers is
    above a limit at most as often as its mean over the limit (Markov).

    Args:
        drawn: of each completion log-probs (T, V), token ids (T,), and 1 for each token that was drawn (T,).

    Example:
        >>> tables = torch.tensor([[0.999, 0.001]]).log().expand(10, 2)
        >>> round(chance_of_surprise([(tables, [1] + [0] * 9, np.ones(10))]), 2)
        0.5
    """
    logs = np.zeros(len(_POWERS))
    for table, ids, own in drawn:
        counted = torch.tensor(own, dtype=torch.float64, device=table.device)
        logps = table.gather(1, torch.tensor(ids, device=table.device)[:, None])[:, 0].double()
        for number, power in enumerate(_POWERS):
            means = ((1 - power) * table).logsumexp(-1).double()
            logs[number] += float(((means + power * logps) * counted).sum())
    return min(1.0, len(_POWERS) * math.exp(min(0.0, float(logs.min()))))


def odd_share(values: np.ndarray) -> tuple[float, float] | None:
    """The share of the probability that drawn tokens do not keep to, and how many of them are within it; None if there is none.

    Args:
        values: (N,), of each token the probability of the likelier ones: even from 0 to 1 if they are drawn as scored.

    Example:
        >>> odd_share(np.linspace(0, 1, 300)), odd_share(np.linspace(0, 0.9, 300))
        (None, (0.9, 1.0))
    """
    found: list[tuple[float, float, float]] = []
    for share in _SHARES if len(values) else ():
        within = int((values <= share).sum())
        chance = 2 * min(binom.cdf(within, len(values), share), binom.sf(within - 1, len(values), share))
        if chance < _CHANCE and abs(within / len(values) - share) > _LEAST_OFF:
            found.append((float(chance), share, within / len(values)))
    return min(found)[1:] if found else None


@contextlib.contextmanager
def adapter_in_use(model: Any, name: str) -> Iterator[None]:
    """Let a PEFT model compute with another of its adapters. What trains is afterwards what trained before."""
    active, trains = model.active_adapter, [(p, p.requires_grad) for p in model.parameters()]
    model.set_adapter(name)
    try:
        yield
    finally:
        model.set_adapter(active)
        for parameter, does in trains:
            parameter.requires_grad_(does)


def text_key(prompt: list[int], ids: list[int]) -> tuple:
    return tuple(prompt), tuple(ids)


def _products(expected: torch.Tensor | None, used: torch.Tensor | None) -> tuple[float, float, float]:
    """Return the dot product of two gradients of a tensor and the square of each, in float64. None counts as zero."""
    first, second = (None if gradient is None else gradient.double().flatten() for gradient in (expected, used))
    dot = 0.0 if first is None or second is None else float(first @ second)
    return dot, 0.0 if first is None else float(first @ first), 0.0 if second is None else float(second @ second)


def _wrong_tensors(products: Mapping[str, tuple[float, float, float]], share: float, least: float) -> list[str]:
    """The tensors whose gradient is another by a share of its size and by more than `least`; the one most off is first."""
    off = {name: _off(*parts) for name, parts in products.items()}
    wrong = [n for n, (_, *squares) in products.items() if off[n] > max(share * math.sqrt(max(squares)), least)]
    return sorted(wrong, key=off.__getitem__, reverse=True)


def _off(dot: float, first: float, second: float) -> float:
    """The norm of the difference of two gradients, by their product and squares."""
    return math.sqrt(max(0.0, first + second - 2 * dot))
