"""Whether one training step computed what it says: every stage again, from the stage before it, and the first that differs."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from ..consistency.padding import evaluating, logits_of, model_inputs
from ..errors import ParameterError
from ..training.rows import eos_ids, policy_of, tokenizer_of
from .logits import without_autocast
from .step_record import MicroBatch, StepRecord, record_step
from .step_reference import (
    Loss,
    LossRow,
    LossSettings,
    group_advantages,
    grpo_loss,
    leave_one_out_advantages,
    loss_mask,
    normalized_advantages,
    rloo_loss,
    row_rewards,
    sampler_correction,
)
from .step_report import CheckedRow, Stage, StepReport


@dataclass(frozen=True)
class Tolerance:
    """Up to where a difference is rounding, for a trainer that computes in one dtype."""

    mean: float  # of log-probs, nats a token
    largest: float
    cosine: float  # of gradients, at least
    norm: float  # their ratio of norms, from 1
    value: float  # of losses, advantages and weights, relative to their size


TOLERANCES = {
    "float32": Tolerance(mean=1e-4, largest=0.01, cosine=0.9999, norm=0.005, value=1e-4),
    "bfloat16": Tolerance(mean=0.05, largest=1.0, cosine=0.95, norm=0.1, value=0.02),
    "float16": Tolerance(mean=0.01, largest=0.3, cosine=0.99, norm=0.05, value=0.005),
}
_SAME = 1e-5  # below this the numbers are the same in fp32
_FAR = 5.0  # standard errors, beyond which tokens were not sampled from what is scored
_COPIES = -30.0  # log-probability below which equal completions of a group are no chance
_MOVED = 0.5  # of the elements with a gradient, that an update moves at least


def check_step(trainer: Any, batch: list[dict] | None = None) -> StepReport:
    """Run one step of a trainer and compute each of its stages again.

    The step runs on the trainer's own data, with its own sampler and reward functions. Weights, optimizer, random state,
    metrics and record are afterwards what they were; reward functions are called once more than without it. It needs the
    memory of a training step and two copies of the trained weights.

    Args:
        trainer: TRL's `GRPOTrainer` or `RLOOTrainer`, the workbench's, or a child of them; before or after training.
        batch: rows of the data set, as many as a generation takes; by default the first of the trainer's own.

    Returns:
        `report.first` is the first stage that differs, or None; `report.tokens(i)` has the tokens of a completion. The stages:
        `sampling` (is what was sampled from what is scored), `ends`, `turns`, `mask`, `rewards`, `advantages`, `log-probs`
        (each row alone, unpadded), `reference`, `correction`, `loss`, `gradient`, `update`, `metrics`. Their verdicts: `same`,
        `rounding`, `different`, `cannot tell`.

    Raises:
        ParameterError: another trainer, or one without data.
        Exception: what the step itself raises, as from a reward function; the trainer is then as it was too.
    """
    kind = _kind(trainer)
    record = record_step(trainer, batch)
    return _Judge(trainer, kind, record).report()


def _kind(trainer: Any) -> str:
    for base in type(trainer).__mro__:
        if base.__module__ in ("trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer"):
            return "RLOO" if "rloo" in base.__module__ else "GRPO"
    raise ParameterError(f"check_step: {type(trainer).__name__} is no GRPOTrainer and no RLOOTrainer of TRL")


@dataclass
class _Row:
    """A sampled completion: its ids, where it ended in truth, and whether TRL takes it for cut."""

    prompt: list[int]
    ids: list[int]
    own: np.ndarray  # 0 for tokens of tools
    ended: bool | None  # None: not known
    end: int
    cut_for_trl: bool


@dataclass
class _Scored:
    """A row of a micro-batch, scored alone."""

    row: LossRow
    prompt: list[int]
    ids: list[int]
    logps: np.ndarray
    entropies: np.ndarray
    variances: np.ndarray  # of the surprise of a token drawn there


class _Judge:
    def __init__(self, trainer: Any, kind: str, record: StepRecord):
        self.trainer, self.kind, self.record = trainer, kind, record
        self.args, self.policy, self.tokenizer = trainer.args, policy_of(trainer), tokenizer_of(trainer)
        weights = str(next(self.policy.parameters()).dtype).removeprefix("torch.")
        self.dtype = "bfloat16" if self.args.bf16 else "float16" if self.args.fp16 else weights
        self.tolerance = TOLERANCES.get(self.dtype, TOLERANCES["float32"])
        self.rows = list(self._sampled_rows())
        self.one_process = trainer.accelerator.num_processes == 1
        self.losses = [self._loss(micro) for micro in record.micro_batches]
        self.scored, self.gradients = self._score()
        self.sampled = self._score_sampled()

    def report(self) -> StepReport:
        stages = [
            self.sampling(), self.ends(), self.turns(), self.mask(), self.rewards(), self.advantages(), self.logprobs(),
            self.reference(), self.correction(), self.loss(), self.gradient(), self.update(), self.metrics(),
        ]  # fmt: skip
        return StepReport([stage for stage in stages if stage], list(self._checked_rows()))

    # What was used

    def _sampled_rows(self) -> Iterator[_Row]:
        stops, reasons = set(eos_ids(self.trainer)), self.record.finish_reasons
        known = set(getattr(self.trainer, "eos_token_ids", None) or [self.tokenizer.eos_token_id])
        limit = self.trainer.max_completion_length or math.inf
        limit = min(limit, (self.args.generation_kwargs or {}).get("max_new_tokens", math.inf))
        ended_rows = [row for made in self.record.generated for row in made[1]]
        for number, (prompt, row, own) in enumerate(self._generated()):
            ids = list(row[:])
            own = np.ones(len(ids)) if own is None else np.asarray(own, dtype=float)
            if getattr(row, "end", None) is not None:  # a trainer of ours, which knows
                ended, end = row.end.finish_reason == "stop", len(ids)
            elif len(reasons) == len(ended_rows):
                ended, end = reasons[number] == "stop", len(ids)
            else:
                place = next((i for i, token in enumerate(ids) if token in stops and own[i]), None)
                end = len(ids) if place is None or not own.all() else place + 1
                ended = True if place is not None else False if len(ids) >= limit else None
            cut = bool(ids) and row[-1] not in {*known, self.tokenizer.pad_token_id}
            yield _Row(list(prompt), ids, own, ended, end, cut)

    def _generated(self) -> Iterator[tuple]:
        for made in self.record.generated:
            masks = made[2] if len(made) > 3 and made[2] is not None else [None] * len(made[1])
            yield from zip(made[0], made[1], masks, strict=True)

    def _loss_rows(self, micro: MicroBatch) -> Iterator[tuple[LossRow, list[int], list[int]]]:
        """The rows of a micro-batch without their padding; a row that is masked whole has no token."""
        inputs = micro.inputs
        scored = {
            name: inputs.get(name)
            for name in ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps")
        }
        for i in range(len(inputs["completion_ids"])):
            there = inputs["completion_mask"][i].bool()
            mask = there if inputs.get("tool_mask") is None else there & inputs["tool_mask"][i].bool()

            def part(table: Any, i=i, there=there) -> Any:
                return None if table is None else table[i][there].double().numpy(force=True)

            weight = inputs.get("importance_sampling_ratio")
            if weight is not None:
                weight = (
                    part(weight) if weight.shape[1] > 1 or there.shape[0] == 1 else weight[i].double().numpy(force=True)
                )
            row = LossRow(
                logps=part(micro.logps),
                advantage=float(inputs["advantages"][i]),
                mask=mask[there].double().numpy(force=True),
                old_logps=part(scored["old_per_token_logps"]),
                ref_logps=part(scored["ref_per_token_logps"]),
                sampled_logps=part(scored["sampling_per_token_logps"]),
                correction=weight,
                entropies=part(micro.entropies),
            )
            prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist()
            yield row, prompt, inputs["completion_ids"][i][there].tolist()

    # What the definition gives

    def _settings(self) -> LossSettings:
        given = {f.name: getattr(self.args, f.name) for f in fields(LossSettings) if hasattr(self.args, f.name)}
        return LossSettings(**given)

    def _loss(self, micro: MicroBatch) -> Loss | None:
        if micro.logps is None:
            return None
        rows = [row for row, *_ in self._loss_rows(micro)]
        steps = self.args.gradient_accumulation_steps
        if self.kind == "RLOO":
            return rloo_loss(rows, self.args.epsilon)
        items = float(micro.inputs["num_items_in_batch"]) if "num_items_in_batch" in micro.inputs else None
        if self.one_process and len(self.record.outputs) == 1:
            items = float(sum((o["completion_mask"] * o.get("tool_mask", 1)).sum() for o in self.record.outputs))
        share = 1 / (self.trainer.accelerator.num_processes * self.args.steps_per_generation)
        return grpo_loss(rows, self._settings(), steps, items, share)

    def _score(self) -> tuple[list[_Scored], dict[str, torch.Tensor]]:
        """Each row of each micro-batch alone, unpadded, and the gradient that its slopes give."""
        scored, was = [], {p: p.grad for p in self.policy.parameters()}
        scale = 1 / self.args.gradient_accumulation_steps if self.kind == "RLOO" else 1.0
        try:
            for parameter in was:
                parameter.grad = None
            with evaluating(self.policy), without_autocast(self.policy):
                for micro, loss in zip(self.record.micro_batches, self.losses, strict=True):
                    for i, (row, prompt, ids) in enumerate(self._loss_rows(micro)):
                        slopes = (
                            None
                            if loss is None
                            else (loss.slopes[i] * scale, [*loss.entropy_slopes, *[None] * (i + 1)][i])
                        )
                        if ids and row.logps is not None:
                            scored.append(_Scored(row, prompt, ids, *self._alone(prompt, ids, slopes)))
            return scored, {n: p.grad for n, p in self.policy.named_parameters() if p.grad is not None}
        finally:
            for parameter, gradient in was.items():
                parameter.grad = gradient

    def _score_sampled(self) -> list[_Scored]:
        """Every sampled row alone: those that the loss leaves out were sampled too, and are not like the others."""
        known = {(tuple(s.prompt), tuple(s.ids)): s for s in self.scored}
        found = []
        with evaluating(self.policy), without_autocast(self.policy):
            for row in self.rows:
                same = known.get((tuple(row.prompt), tuple(row.ids)))
                alone = (same.logps, same.entropies, same.variances) if same else self._alone(row.prompt, row.ids, None)
                own = row.own * (np.arange(len(row.ids)) < row.end)
                found.append(_Scored(LossRow(alone[0], 0.0, own), row.prompt, row.ids, *alone))
        return found

    def _alone(
        self, prompt: list[int], ids: list[int], slopes: tuple | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log-probs of a completion, entropies, and the variance of the surprise: (T,) each. Adds to the gradients."""
        device = next(self.policy.parameters()).device
        tokens = torch.tensor([prompt + ids], device=device)
        inputs = model_inputs(self.policy, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, "explicit")
        with torch.set_grad_enabled(slopes is not None):
            logits = logits_of(self.policy, inputs)[0, len(prompt) - 1 : -1].float() / self.trainer.temperature
            table = logits.log_softmax(-1)
            logps = table.gather(1, tokens[0, len(prompt) :, None])[:, 0]
            probs = table.exp()
            entropies = -(probs * table).sum(-1)
            if slopes is not None and logits.requires_grad:
                total = (logps * torch.tensor(slopes[0], device=device)).sum()
                if slopes[1] is not None:
                    total = total + (entropies * torch.tensor(slopes[1], device=device)).sum()
                total.backward()
        variances = (probs * (table + entropies[:, None]) ** 2).sum(-1)
        return tuple(x.detach().double().numpy(force=True) for x in (logps, entropies, variances))

    # Stages

    def sampling(self) -> Stage:
        """The surprise of tokens that were sampled from what is scored is the entropy in the mean: a sum of differences
        with mean 0 and a variance that the logits give."""
        excess, variance, count = 0.0, 0.0, 0
        for s in self.sampled:
            excess += float(((-s.logps - s.entropies) * s.row.mask).sum())
            variance += float((s.variances * s.row.mask).sum())
            count += int(s.row.mask.sum())
        if not variance:
            return Stage("sampling", "cannot tell", "every token is certain")
        score, options = excess / math.sqrt(variance), self._sampler_options()
        if copies := self._improbable_copies():
            cause = f"{copies} groups hold one completion {self.trainer.num_generations} times, far beyond chance: "
            cause += self._seed_cause()
            return Stage("sampling", "different", cause, where=f"{copies} groups")
        where = f"{count} tokens"
        if abs(score) > _FAR:
            kind = "likelier" if score < 0 else "less likely"
            cause = f"the sampled tokens are {kind} than their scored distribution gives ({score:+.1f} standard errors)"
            cause += f": {', '.join(options)}" if options else ": the sampler is not the policy that is scored"
            return Stage("sampling", "different", cause, abs(excess) / count, where)
        if options:
            cause = f"{', '.join(options)} sample from another distribution; {count} tokens do not show it"
            return Stage("sampling", "cannot tell", cause, abs(excess) / count, where)
        return Stage("sampling", "same", f"{count} tokens, {score:+.1f} standard errors", abs(excess) / count, where)

    def _sampler_options(self) -> list[str]:
        """What makes the sampler draw from another distribution than the one that is scored."""
        neutral = {
            "top_p": (None, 1.0),
            "top_k": (None, 0, -1),
            "min_p": (None, 0.0),
            "repetition_penalty": (None, 1.0),
        }
        neutral |= {
            "temperature": (None, self.trainer.temperature),
            "do_sample": (None, True),
            "typical_p": (None, 1.0),
        }
        neutral |= {
            "presence_penalty": (None, 0.0),
            "frequency_penalty": (None, 0.0),
            "no_repeat_ngram_size": (None, 0),
        }
        neutral |= {
            "epsilon_cutoff": (None, 0.0),
            "eta_cutoff": (None, 0.0),
            "bad_words": (None,),
            "logit_bias": (None,),
        }
        used = {name: getattr(self.args, name, None) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
        used |= {n: v for n, v in (self.args.generation_kwargs or {}).items() if n in neutral}
        return [f"{name}={value}" for name, value in used.items() if value not in neutral[name]]

    def _improbable_copies(self) -> int:
        size, found = self.trainer.num_generations, 0
        probability = {(tuple(s.prompt), tuple(s.ids)): float(s.logps.sum()) for s in self.sampled}
        for start in range(0, len(self.rows) - size + 1, size):
            group = [(tuple(row.prompt), tuple(row.ids)) for row in self.rows[start : start + size]]
            found += len(set(group)) == 1 and (size - 1) * probability.get(group[0], 0.0) < _COPIES
        return found

    def _seed_cause(self) -> str:
        seed = (self.args.generation_kwargs or {}).get("seed")
        return (
            f"generation_kwargs has seed={seed}, which every copy gets"
            if seed is not None
            else "one random stream for all"
        )

    def ends(self) -> Stage:
        if not self.rows:
            return Stage("ends", "cannot tell", "no completion was sampled")
        wrong = [i for i, row in enumerate(self.rows) if row.ended is not None and row.ended == row.cut_for_trl]
        behind = [i for i, row in enumerate(self.rows) if row.end < len(row.ids)]
        if wrong:
            missed = [self.rows[i] for i in wrong if self.rows[i].ended]
            if missed:
                last = Counter(row.ids[row.end - 1] for row in missed).most_common(3)
                tokens = ", ".join(f"{self.tokenizer.decode([token])!r} (id {token})" for token, _ in last)
                cause = f"{len(missed)} of {len(self.rows)} rows stopped at {tokens} and count as cut: "
                cause += "TRL takes only EOS and pad for an end"
            else:
                cause = (
                    f"{len(wrong)} of {len(self.rows)} rows were cut and count as ended: their last token is EOS or pad"
                )
            return Stage("ends", "different", cause, len(wrong) / len(self.rows), _places(wrong))
        if behind:
            most = max(len(self.rows[i].ids) - self.rows[i].end for i in behind)
            cause = f"{len(behind)} rows keep up to {most} tokens behind their end, which the loss then trains"
            return Stage("ends", "different", cause, float(most), _places(behind))
        unknown = sum(row.ended is None for row in self.rows)
        if unknown:
            return Stage("ends", "cannot tell", f"of {unknown} rows nothing says why they ended before the limit")
        ended = sum(bool(row.ended) for row in self.rows)
        return Stage("ends", "same", f"{ended} of {len(self.rows)} rows ended, the others were cut")

    def turns(self) -> Stage | None:
        if getattr(self.trainer, "rollout_func", None) is not None:
            return Stage("turns", "cannot tell", "the rollout function samples by itself")
        if len(self.record.turns) <= len(self.record.generated):
            return None  # a single turn
        known: list[list[int]] = []
        broken = count = 0
        for prompts, completions in self.record.turns:
            for prompt in prompts:
                later = [whole for whole in known if len(whole) < len(prompt)]
                if known and len(prompt) > min(map(len, known)):
                    count += 1
                    broken += not any(prompt[: len(whole)] == whole for whole in later)
            known += [list(p) + list(c) for p, c in zip(prompts, completions, strict=True)]
        if broken:
            cause = f"{broken} of {count} turns do not continue the tokens of the turn before: "
            cause += "what was sampled is decoded and encoded again"
            return Stage("turns", "different", cause, broken / count)
        return Stage("turns", "same", f"{count} turns continue the tokens of the turn before")

    def mask(self) -> Stage:
        wrong, tokens = [], 0
        used = self._used_masks()
        for i, (row, mask) in enumerate(zip(self.rows, used, strict=True)):
            ended = (not row.cut_for_trl) if row.ended is None else row.ended
            expected = loss_mask(len(row.ids), ended, getattr(self.args, "mask_truncated_completions", False), row.own)
            expected[row.end :] = 0
            if mask[len(row.ids) :].any() or (mask[: len(row.ids)] != expected).any():
                wrong.append(i)
                tokens += int((mask[: len(row.ids)] != expected).sum())
        if not wrong:
            return Stage("mask", "same", f"{int(sum(mask.sum() for mask in used))} tokens count")
        out = [i for i in wrong if not used[i].any()]
        cause = f"{len(wrong)} of {len(used)} rows have another mask than their ends and tools give"
        if out:
            cause = f"{len(out)} of {len(used)} rows that ended are left out of the loss: "
            cause += "mask_truncated_completions takes them for cut"
        return Stage("mask", "different", cause, float(tokens), _places(wrong))

    def rewards(self) -> Stage:
        size, prompts = self.trainer.num_generations, [row.get("prompt", row) for row in self.record.inputs]
        if self.one_process or len(prompts) % size == 0:
            mixed = [
                g
                for g in range(len(prompts) // size)
                if any(p != prompts[g * size] for p in prompts[g * size : (g + 1) * size])
            ]
            if mixed:
                return Stage(
                    "rewards",
                    "different",
                    f"groups {mixed[:5]} hold several prompts: their rewards are compared across questions",
                    where=f"{len(mixed)} groups",
                )
        returned = _columns(self.record.scored, [len(r) for r in self.record.rewards], len(self.trainer.reward_funcs))
        if returned is None or not self.one_process:
            return Stage(
                "rewards", "cannot tell", "a reward model or an asynchronous function scores, or several processes do"
            )
        used = torch.cat(self.record.rewards).double().numpy(force=True)
        wrong = ~np.isclose(used, returned, rtol=1e-5, atol=1e-6, equal_nan=True)
        if not wrong.any():
            return Stage("rewards", "same", f"{used.shape[1]} functions, {len(used)} rows")
        cause = f"{int(wrong.any(axis=1).sum())} of {len(used)} rows have another reward than the functions returned for them"
        if same := next(
            (k for k in (1, -1) if np.allclose(np.roll(returned, k, axis=0)[1:-1], used[1:-1], equal_nan=True)), None
        ):
            cause += f": each has that of the row {'before' if same == 1 else 'after'} it"
        return Stage(
            "rewards",
            "different",
            cause,
            float(np.nanmax(np.abs(used - returned))),
            _places(np.flatnonzero(wrong.any(axis=1))),
        )

    def advantages(self) -> Stage:
        size, weights = self.trainer.num_generations, self.trainer.reward_weights.tolist()
        expected = []
        for table in self.record.rewards:
            table = table.double().numpy(force=True)
            rewards = row_rewards(table, weights)
            if self.kind == "RLOO":
                if limits := self.args.reward_clip_range:
                    rewards = np.clip(rewards, *limits)
                if self.args.beta:
                    if not self.one_process or self._reference_model() is None:
                        return Stage("advantages", "cannot tell", "the KL penalty in the reward is not known here")
                    rewards = rewards - self.args.beta * self._sampled_kl()
                expected.append(leave_one_out_advantages(rewards, size, self.args.normalize_advantages))
            elif getattr(self.args, "multi_objective_aggregation", "") == "normalize_then_sum":
                expected.append(normalized_advantages(table, size, weights))
            else:
                expected.append(group_advantages(rewards, size, self.args.scale_rewards))
        used = [output["advantages"].double().numpy(force=True) for output in self.record.outputs]
        rank = self.trainer.accelerator.process_index
        mine = [e[rank * len(u) : (rank + 1) * len(u)] for e, u in zip(expected, used, strict=True)]
        return self._compared(
            "advantages",
            np.concatenate(used),
            np.concatenate(mine),
            "the definition gives other advantages for these rewards",
        )

    def logprobs(self) -> Stage:
        if not self.scored:
            return Stage("log-probs", "cannot tell", "no token is in the loss")
        used = np.concatenate([s.row.logps for s in self.scored])
        alone = np.concatenate([s.logps for s in self.scored])
        if used.shape != alone.shape:
            return Stage("log-probs", "different", f"{len(used)} log-probs for {len(alone)} tokens")
        return self._close(
            "log-probs", used, alone, "a row alone, without padding, has other log-probs" + self._why(alone)
        )

    def _why(self, alone: np.ndarray) -> str:
        """What makes the trainer's log-probs others than those of rows alone: once more without dropout."""
        if not any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in self.policy.modules()):
            return (
                ": padding moves them (positions without position_ids, or attention to pads)" if self._padded() else ""
            )
        still = []
        with torch.no_grad(), evaluating(self.trainer.model), self.trainer.accelerator.autocast():
            for micro in self.record.micro_batches:
                ids, mask = (
                    torch.cat([micro.inputs[f"{part}_{kind}"] for part in ("prompt", "completion")], dim=1)
                    for kind in ("ids", "mask")
                )
                there = micro.inputs["completion_mask"].bool()
                logps = self.trainer._get_per_token_logps_and_entropies(self.trainer.model, ids, mask, there.shape[1])[
                    0
                ]
                still.append(logps[there].double().numpy(force=True))
        if float(np.abs(np.concatenate(still) - alone).mean()) <= self.tolerance.mean:
            return ": the model has dropout, which is on while it trains (disable_dropout=True)"
        return ": padding moves them (positions without position_ids, or attention to pads), and dropout is on"

    def _padded(self) -> bool:
        return any(not micro.inputs["prompt_mask"].all() for micro in self.record.micro_batches)

    def reference(self) -> Stage | None:
        rows = [s for s in self.scored if s.row.ref_logps is not None]
        if not rows:
            return None
        if (alone := self._by_reference([(s.prompt, s.ids) for s in rows])) is None:
            return Stage("reference", "cannot tell", "the reference is an adapter of its own")
        used = np.concatenate([s.row.ref_logps for s in rows])
        return self._close("reference", used, np.concatenate(alone), "the reference gives a row alone other log-probs")

    def _reference_model(self) -> Any:
        """The model of the reference; the policy itself where that is the model below its adapter; None: not known."""
        ref = getattr(self.trainer, "ref_model", None)
        return (
            ref
            if ref is not None
            else None
            if "ref" in getattr(self.policy, "peft_config", {"ref": 0})
            else self.policy
        )

    def _by_reference(self, texts: Sequence[tuple[list[int], list[int]]]) -> list[np.ndarray] | None:
        policy, model = self.policy, self._reference_model()
        if model is None:
            return None
        below = policy.disable_adapter() if model is policy else contextlib.nullcontext()
        try:
            self.policy = model
            with below, evaluating(model), without_autocast(model):
                return [self._alone(prompt, ids, None)[0] for prompt, ids in texts]
        finally:
            self.policy = policy

    def _sampled_kl(self) -> np.ndarray:
        """Of each sampled row that is in the loss the log of how much likelier it is than by the reference."""
        ref = self._by_reference([(s.prompt, s.ids) for s in self.sampled]) or []
        counts = [mask[: len(s.ids)] for s, mask in zip(self.sampled, self._used_masks(), strict=True)]
        return np.array([((s.logps - r) * c).sum() for s, r, c in zip(self.sampled, ref, counts, strict=True)])

    def _used_masks(self) -> list[np.ndarray]:
        return [row for output in self.record.outputs for row in _masks(output)]

    def correction(self) -> Stage | None:
        rows = [s.row for s in self.scored if s.row.correction is not None and s.row.sampled_logps is not None]
        if not rows:
            return None
        mode = self.args.vllm_importance_sampling_mode
        low, high = (getattr(self.args, f"vllm_importance_sampling_clip_{end}", None) for end in ("min", "max"))
        expected = [sampler_correction(r.old_logps, r.sampled_logps, r.mask, mode, low, high) for r in rows]
        used = [r.correction[: len(e)] for r, e in zip(rows, expected, strict=True)]
        return self._compared(
            "correction",
            np.concatenate(used),
            np.concatenate(expected),
            f"{mode} gives other weights for these log-probs",
        )

    def loss(self) -> Stage:
        losses = [loss for loss in self.losses if loss is not None]
        if not losses or len(losses) < len(self.losses):
            return Stage(
                "loss", "cannot tell", "the trainer computes its loss elsewhere (Liger, or a method of its own)"
            )
        used = np.array([micro.loss for micro in self.record.micro_batches])
        expected = np.array([loss.value for loss in losses])
        size = max(float(np.abs(slopes).sum()) for loss in losses for slopes in loss.slopes)
        cause = f"loss_type {getattr(self.args, 'loss_type', 'rloo')!r} gives another loss for these rows"
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = used / expected
        if np.ptp(ratios) < 1e-3 * abs(ratios.mean()):
            cause += f": {ratios.mean():.3g} times as much"
        return self._compared("loss", used, expected, cause, max(size, 1e-9))

    def gradient(self) -> Stage:
        if not self.scored or self.loss().verdict == "cannot tell":
            return Stage("gradient", "cannot tell", "no loss to differentiate")
        names = sorted(self.record.gradients.keys() | self.gradients.keys())
        ours = [self.gradients.get(n) for n in names]
        used = [self.record.gradients.get(n) for n in names]
        dot, ours_sq, used_sq = _products(ours, used)
        count, total = (
            sum(p.numel() for p in self.policy.parameters() if p.requires_grad),
            sum(p.numel() for p in self.policy.parameters()),
        )
        if used_sq == 0 and ours_sq == 0:
            return Stage("gradient", "cannot tell", "no row of this batch has an advantage")
        if used_sq == 0 or ours_sq == 0:
            return Stage(
                "gradient",
                "different",
                "there is none" if used_sq == 0 else "there is one, where the loss gives none",
                1.0,
            )
        cosine, ratio = dot / math.sqrt(ours_sq * used_sq), math.sqrt(used_sq / ours_sq)
        said = f"cosine {cosine:.5f}, norm {ratio:.4g} times what the loss gives"
        if cosine >= self.tolerance.cosine and abs(ratio - 1) <= self.tolerance.norm:
            small = count / total < 1e-3 and not hasattr(self.policy, "peft_config")
            if small:
                return Stage(
                    "gradient",
                    "cannot tell",
                    f"{said}; only {count:,} of {total:,} parameters train, and there is no adapter",
                    1 - cosine,
                )
            exact = 1 - cosine < _SAME and abs(ratio - 1) < _SAME
            return Stage(
                "gradient",
                "same" if exact else "rounding",
                f"{said}; {count / total:.2%} of the parameters train",
                1 - cosine,
            )
        worst = sorted(names, key=lambda n: _cosine(self.gradients.get(n), self.record.gradients.get(n)))[:2]
        return Stage("gradient", "different", f"{said}; worst in {', '.join(worst)}", max(1 - cosine, abs(ratio - 1)))

    def update(self) -> Stage:
        if self.record.problem:
            return Stage("update", "cannot tell", self.record.problem)
        moved = sum(m for m, _ in self.record.moved.values())
        with_gradient = sum(int((g != 0).sum()) for g in self.record.gradients.values())
        if not with_gradient:
            return Stage("update", "cannot tell", "nothing has a gradient")
        share = moved / with_gradient
        said = f"the optimizer moves {share:.2%} of the elements that have a gradient, "
        said += f"at a learning rate of {self.args.learning_rate:g}"
        if share >= _MOVED:
            return Stage("update", "same", said, share)
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in self.record.gradients.values()))
        weights = str(next(p.dtype for p in self.policy.parameters() if p.requires_grad)).removeprefix("torch.")
        if self.args.max_grad_norm and norm > 1000 * self.args.max_grad_norm:
            cause = f"max_grad_norm={self.args.max_grad_norm:g} cuts a gradient of norm {norm:.3g}"
        else:
            cause = f"the others are lost to the rounding of {weights} weights"
        return Stage("update", "different", f"{said}; {cause}", share)

    def metrics(self) -> Stage | None:
        if not self.one_process or len(self.record.rewards) != 1:
            return None
        rewards = row_rewards(self.record.rewards[0].double().numpy(force=True), self.trainer.reward_weights.tolist())
        limits = self.args.reward_clip_range if self.kind == "RLOO" else None
        groups = (np.clip(rewards, *limits) if limits else rewards).reshape(-1, self.trainer.num_generations)
        expected = {"reward": float(np.nanmean(rewards))}
        if not (self.kind == "RLOO" and self.args.beta):  # whose groups are compared with the KL penalty in the rewards
            expected["frac_reward_zero_std"] = float((np.nanstd(groups, axis=1) < 1e-6).mean())
        if all(row.ended is not None for row in self.rows):
            expected["completions/clipped_ratio"] = float(np.mean([not row.ended for row in self.rows]))
        logged = {name: self.record.metrics[name][-1] for name in expected if self.record.metrics.get(name)}
        wrong = {n: v for n, v in logged.items() if abs(v - expected[n]) > 1e-4 * max(1, abs(v))}
        if not wrong:
            return Stage("metrics", "same", ", ".join(f"{name} {value:.3g}" for name, value in logged.items()))
        said = "; ".join(
            f"{name} is logged as {value:.3g} and is {expected[name]:.3g}" for name, value in wrong.items()
        )
        return Stage("metrics", "different", said, max(abs(v - expected[n]) for n, v in wrong.items()))

    # Comparing

    def _compared(
        self, name: str, used: np.ndarray, expected: np.ndarray, cause: str, size: float | None = None
    ) -> Stage:
        """Numbers that are computed in fp32, whatever the model computes in."""
        scale = max(1.0, float(np.abs(expected).max(initial=0.0))) if size is None else size
        largest = float(np.abs(used - expected).max(initial=0.0))
        if not np.isfinite(used).all():
            return Stage(name, "different", "a number is not finite", math.inf)
        if largest <= self.tolerance.value * scale:
            return Stage(name, "same" if largest <= _SAME * scale else "rounding", "", largest)
        return Stage(
            name,
            "different",
            cause,
            largest,
            _places(np.flatnonzero(np.abs(used - expected) > self.tolerance.value * scale)),
        )

    def _close(self, name: str, used: np.ndarray, alone: np.ndarray, cause: str) -> Stage:
        """Log-probs, within the rounding of the dtype."""
        difference = np.abs(used - alone)
        mean, largest = float(difference.mean()), float(difference.max())
        where = f"{len(used)} tokens"
        if not np.isfinite(used).all():
            return Stage(name, "different", "a log-prob is not finite", math.inf, where)
        if mean <= self.tolerance.mean and largest <= self.tolerance.largest:
            return Stage(
                name,
                "same" if largest <= 2 * _SAME else "rounding",
                f"mean {mean:.1e} nats, {self.dtype}",
                largest,
                where,
            )
        return Stage(name, "different", f"{cause}: mean {mean:.2g} nats, {self.dtype}", largest, where)

    def _checked_rows(self) -> Iterator[CheckedRow]:
        for micro, loss in zip(self.record.micro_batches, self.losses, strict=True):
            for i, (row, prompt, ids) in enumerate(self._loss_rows(micro)):
                if row.logps is None or loss is None:
                    continue
                match = next((s for s in self.scored if s.ids == ids and s.prompt == prompt), None)
                alone = np.full(len(ids), np.nan) if match is None else match.logps
                texts = [self.tokenizer.decode([token]) for token in ids]
                ratios = np.broadcast_to(loss.ratios[i], len(ids))
                yield CheckedRow(prompt, ids, texts, row.mask, row.advantage, row.logps, alone, ratios, loss.slopes[i])


def _masks(output: Any) -> list[np.ndarray]:
    mask = output["completion_mask"] * output["tool_mask"] if "tool_mask" in output else output["completion_mask"]
    return [row.double().numpy(force=True) for row in mask]


def _columns(calls: Sequence[list], counts: Sequence[int], functions: int) -> np.ndarray | None:
    """What the functions returned, (N, F), from their calls: generation by generation, function by function."""
    if len(calls) != functions * len(counts):
        return None
    tables = []
    for number, count in enumerate(counts):
        own = calls[number * functions : (number + 1) * functions]
        if any(len(call) != count for call in own):
            return None
        tables.append(np.array([[math.nan if x is None else float(x) for x in call] for call in own]).T)
    return np.concatenate(tables)


def _products(ours: Sequence, used: Sequence) -> tuple[float, float, float]:
    dot = ours_sq = used_sq = 0.0
    for a, b in zip(ours, used, strict=True):
        ours_sq += 0.0 if a is None else float((a.double() ** 2).sum())
        used_sq += 0.0 if b is None else float((b.double() ** 2).sum())
        dot += 0.0 if a is None or b is None else float((a.double() * b.double()).sum())
    return dot, ours_sq, used_sq


def _cosine(a: Any, b: Any) -> float:
    dot, x, y = _products([a], [b])
    return dot / math.sqrt(x * y) if x and y else 0.0 if x or y else 1.0


def _places(rows: Sequence[int] | np.ndarray) -> str:
    shown = ", ".join(str(i) for i in list(rows)[:5])
    return f"rows {shown}" + (", ..." if len(rows) > 5 else "")
