"""The stages of an update of TRL's PPO, each computed again from the stage before it: `check_step` of a PPO trainer."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..consistency.padding import evaluating, model_inputs
from ..training.rows import policy_of, tokenizer_of
from .check_step import Judge, own_gradients, text_key
from .logits import without_autocast
from .ppo_record import Numbers, PPORecord, record_ppo
from .ppo_reference import PPOLoss, PPORow, generalized_advantages, ppo_loss, token_rewards, whiten
from .step import SampledRow, Step
from .step_reference import Row
from .step_report import CheckedRow, Stage, StepReport
from .step_stages import SAME, compared, of_logged, places, tolerance_of


def check_ppo(trainer: Any, batch: list[dict] | None = None) -> StepReport:
    """Run the update of a PPO trainer's first batch and compute each of its stages again; see `check_step`."""
    return _PPOJudge(trainer, record_ppo(trainer, batch)).report()


class _PPOJudge(Judge):
    """The stages of an update, with the models. B rows; the lists of rows are without padding."""

    record: PPORecord

    def __init__(self, trainer: Any, record: PPORecord):
        self.trainer, self.record, self.args = trainer, record, trainer.args
        self.policy, self.tokenizer = policy_of(trainer), tokenizer_of(trainer)
        self.model = trainer.accelerator.unwrap_model(trainer.model)
        self.temperature = self.args.temperature
        batch = record.batch
        self.sampled: list[list[int]] = batch["responses"].tolist()
        self.rule, self.width = getattr(trainer, "stop_rule", None), batch["responses"].shape[1]
        self.ends = [self._end(ids) for ids in self.sampled]
        self.tokens = np.clip(batch["sequence_lengths"] + 1, 0, self.width)  # (B,), as TRL counts them
        self.steps = np.minimum(self.tokens + 1, self.width)
        self.ids = [ids[:end] for ids, end in zip(self.sampled, self.tokens, strict=True)]
        self.logps, self.ref_logps = self._rows("logprobs", self.tokens), self._rows("ref_logprobs", self.tokens)
        self.state_values = self._rows("values", self.steps)
        self.step = self._step()
        self.ppo_losses = [self._loss(micro) for micro in record.micros]
        self.first_step = record.micros[: record.updates[0] if record.updates else len(record.micros)]
        self.alone, self.values_alone = {}, dict[tuple, np.ndarray]()
        self.gradients = self._gradients()

    def report(self) -> StepReport:
        loss = self.loss()
        stages: list[Stage | None] = [self.sampling(), self.check_ends(), self.check_mask(), self.scores()]
        stages += [self.logprobs(), self.reference(), self.values(), self.rewards(), self.advantages(), self.ratios()]
        stages += [loss, self.gradient(loss), self.update(), self.metrics()]
        return StepReport([stage for stage in stages if stage], self._checked_rows())

    def _rows(self, name: str, counts: Sequence[int] | np.ndarray) -> list[Row]:
        return [row[:count] for row, count in zip(self.record.batch[name], counts, strict=True)]

    def _end(self, ids: list[int]) -> tuple[int, bool]:
        """Tokens up to the end of a row, and whether a stop ended it: ours by its rule, TRL's at its stop token, else EOS."""
        if self.rule is not None:
            end = self.rule.find_end(ids)
            return end.index, end.finish_reason == "stop"
        stop = self.trainer.stop_token_id
        stop = self.tokenizer.eos_token_id if stop is None else stop
        return (ids.index(stop) + 1, True) if stop in ids else (len(ids), False)

    def _step(self) -> Step:
        args, parts = self.args, zip(self.record.prompts, self.ids, self.ends, strict=True)
        rows = [
            SampledRow(p, ids, np.ones(len(ids)), end[1], len(ids), False, np.ones(len(ids))) for p, ids, end in parts
        ]
        config = getattr(self.policy, "generation_config", None)  # TRL sets `top_k` and `top_p` aside
        options = {n: v for n, v in vars(config).items() if n not in ("top_k", "top_p", "temperature", "do_sample")}
        settings = {
            "num_generations": 1,
            "temperature": args.temperature,
            "generation_kwargs": options,
            "max_grad_norm": 0,
        }
        weights = str(next(self.policy.parameters()).dtype).removeprefix("torch.")
        accelerator = self.trainer.accelerator  # it knows nothing of `args.bf16`
        dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(accelerator.mixed_precision, weights)
        processes, rank = accelerator.num_processes, accelerator.process_index
        return Step("PPO", dtype, processes, rank, settings, rows, [], [], None, [], [])

    def _loss(self, micro: Numbers) -> PPOLoss:
        """What a micro-batch gives by the definition, from its log-probs and values."""
        advantages, returns = (self._rows(*each) for each in (("advantages", self.tokens), ("returns", self.steps)))
        rows = []
        for i, logps, values in zip(micro["micro_batch_inds"], micro["new_logprobs"], micro["vpred"], strict=True):
            new = logps[: self.tokens[i]], self.logps[i], advantages[i]
            rows.append(PPORow(*new, values[: self.steps[i]], self.state_values[i], returns[i]))
        return ppo_loss(rows, self.args.cliprange, self.args.cliprange_value, self.args.vf_coef)

    def _gradients(self) -> dict[str, torch.Tensor]:
        """Score each row alone, by policy and value model; the gradient is that of the slopes of the first optimizer step."""
        scale = 1 / self.args.gradient_accumulation_steps
        with own_gradients(self.model) as gradients:
            for micro, loss in zip(self.first_step, self.ppo_losses, strict=False):
                for i, slopes, of_values in zip(micro["micro_batch_inds"], loss.slopes, loss.value_slopes, strict=True):
                    self._score_row(i, slopes * scale, of_values * scale)
            for i, ids in enumerate(self.ids):
                if text_key(self.record.prompts[i], ids) not in self.values_alone:
                    self._score_row(i)
        return gradients

    def _score_row(self, i: int, slopes: Row | None = None, value_slopes: Row | None = None) -> None:
        prompt, ids = self.record.prompts[i], self.ids[i]
        if ids:
            by_logps = None if slopes is None else (slopes, None)
            self.alone[text_key(prompt, ids)] = self._score(self.policy, prompt, ids, by_logps)
        with torch.set_grad_enabled(slopes is not None):
            values = self._head(self.model.value_model, prompt + ids)[len(prompt) - 1 :]
            if value_slopes is not None and values.requires_grad:
                used = values[: len(value_slopes)]
                (used * torch.tensor(value_slopes, device=used.device)).sum().backward()
        self.values_alone[text_key(prompt, ids)] = values.detach().double().numpy(force=True)

    def _head(self, model: Any, tokens: list[int]) -> torch.Tensor:
        """What the head of a classifier gives at each token of one text, (T,)."""
        ids = torch.tensor([tokens], device=next(model.parameters()).device)
        body = getattr(model, model.base_model_prefix)
        inputs = model_inputs(body, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "explicit")
        return model.score(body(**inputs, output_hidden_states=True).hidden_states[-1])[0, :, 0]

    def check_ends(self) -> Stage:
        """Whether rows end where their stops say, and the penalty for a missing stop falls on those without one."""
        known = np.array([end for end, _ in self.ends])
        eos, stop = self.tokenizer.eos_token_id, self.trainer.stop_token_id
        ended, count, pad = np.array([stopped for _, stopped in self.ends]), len(self.ends), self.tokenizer.pad_token_id
        late, early = np.flatnonzero(self.tokens > known), np.flatnonzero(self.tokens < known)
        if len(late):
            behind = int((self.tokens - known).max())
            setting = "with stop_token=None TRL ends none at EOS" if stop is None else f"stop_token_id={stop}"
            cause = f"{len(late)} of {count} completions keep up to {behind} tokens after their end: {setting}"
            return Stage("ends", "different", cause, float(behind), places(late))
        if len(early):
            own = any(self.sampled[i][known[i] - 1] == pad for i in early)
            why = (
                "pad and EOS are one token, so the end itself is cut"
                if own
                else "TRL cuts at a pad token that the policy sampled"
            )
            cause = f"{len(early)} of {count} completions are cut before their end: {why}"
            return Stage("ends", "different", cause, float((known - self.tokens).max()), places(early))
        missing = ~self.record.batch["contain_eos_token"].astype(bool)
        if self.rule is None and self.args.missing_eos_penalty and (missing == ended).any():
            cause = f"{int((missing & ended).sum())} completions that ended at stop_token_id={stop} get missing_eos_penalty: "
            wrong = np.flatnonzero(missing == ended)
            return Stage("ends", "different", f"{cause}TRL looks for EOS (id {eos})", len(wrong) / count, places(wrong))
        others = ", the others were truncated" * (not ended.all())
        return Stage("ends", "same", f"{int(ended.sum())} of {count} rows ended{others}")

    def check_mask(self) -> Stage:
        """Whether the masks of tokens and of steps follow from the ends."""
        place = np.arange(self.width)
        for name, counts in (("padding_mask", self.tokens), ("padding_mask_p1", self.steps)):
            wrong = self.record.batch[name].astype(bool) != (place >= counts[:, None])
            if wrong.any():
                cause = f"{name} does not follow from the ends, at {int(wrong.sum())} places"
                return Stage("mask", "different", cause, float(wrong.sum()), places(np.flatnonzero(wrong.any(axis=1))))
        return Stage("mask", "same", f"{int(self.tokens.sum())} tokens and {int(self.steps.sum())} values count")

    def scores(self) -> Stage:
        """Whether rows have what the reward model or the functions give each alone, less the penalty for a missing stop."""
        missing = ~self.record.batch["contain_eos_token"].astype(bool)
        if self.rule is not None and not self.rule.spec.stops_never:
            missing = ~np.array([ended for _, ended in self.ends])
        if not (alone := np.array(self.record.sums)).size:
            texts, model = zip(self.record.prompts, self.ids, strict=True), self.trainer.reward_model
            with torch.no_grad(), evaluating(model), without_autocast(model):
                alone = np.array([float(self._head(model, prompt + ids)[-1]) for prompt, ids in texts])
        expected = alone - (self.args.missing_eos_penalty or 0.0) * missing
        scale, cause = max(1.0, float(np.abs(expected).max())), "a row alone has another score"
        return self._close(
            "scores", self.record.batch["scores"] / scale, expected / scale, cause, unit="of the largest"
        )

    def logprobs(self) -> Stage:
        """Whether the log-probs of the sampler are those of each row alone."""
        alone, options = [self._logps_alone(*text) for text in self._texts()], ", ".join(self.step.sampler_options())
        why = f": TRL takes them after {options}" if options else ""
        cause = f"a row alone, at temperature {self.temperature:g}, has other log-probs{why}"
        return self._close("log-probs", np.concatenate(self.logps), np.concatenate(alone), cause)

    def reference(self) -> Stage:
        alone = self._by_reference(self._texts())
        if alone is None:
            return Stage("reference", "cannot tell", "the reference is an adapter of its own")
        cause = f"the reference gives a row alone, at temperature {self.temperature:g}, other log-probs"
        return self._close("reference", np.concatenate(self.ref_logps), np.concatenate(alone), cause)

    def values(self) -> Stage:
        """Whether the values before the update are those of each row alone."""
        alone = [
            self.values_alone[text_key(*text)][:steps] for text, steps in zip(self._texts(), self.steps, strict=True)
        ]
        used, expected = np.concatenate(self.state_values), np.concatenate(alone)
        scale, cause = max(1.0, float(np.abs(expected).max())), "the value model gives a row alone other values"
        return self._close("values", used / scale, expected / scale, cause, unit="of the largest")

    def _texts(self) -> list[tuple[list[int], list[int]]]:
        return list(zip(self.record.prompts, self.ids, strict=True))

    def rewards(self) -> Stage:
        """Whether each step has its penalty and, the last, its score."""
        used = self.record.batch["rewards"]
        expected, turned = self._rewards(self.args.kl_coef), self._rewards(-self.args.kl_coef)
        stage = compared("rewards", self.step, used, expected, "the definition gives other rewards")
        if stage.verdict == "different" and np.allclose(used, turned, atol=1e-4):
            return dataclasses.replace(
                stage, cause="the KL penalty has the other sign: it rewards leaving the reference"
            )
        full = [i for i, (_, ended) in enumerate(self.ends) if ended and self.tokens[i] == self.width]
        if stage.verdict != "different" and full and self.width < self.args.response_length:
            cause = "the longest rows of this batch get their score at the last token, the others one step later: all "
            cause += f"ended before response_length={self.args.response_length}, but no pad follows the longest ones"
            return Stage("rewards", "different", cause, where=places(full))
        return stage

    def _rewards(self, kl_coef: float) -> np.ndarray:
        """(B, T), 0 behind the last step."""
        parts, found = (self.logps, self.ref_logps, self.record.batch["scores"], self.steps), np.zeros_like
        rows = [token_rewards(*each, kl_coef, self.args.kl_estimator) for each in zip(*parts, strict=True)]
        if self.args.whiten_rewards:
            rows = whiten(rows, shift_mean=False)
        table = found(self.record.batch["rewards"])
        for line, row in zip(table, rows, strict=True):
            line[: len(row)] = row
        return table

    def advantages(self) -> Stage:
        """Whether advantages and returns follow from rewards and values."""
        a, rewards = self.args, self._rows("rewards", self.steps)
        pairs = [generalized_advantages(*row, a.gamma, a.lam) for row in zip(rewards, self.state_values, strict=True)]
        returns = np.concatenate([of_row for _, of_row in pairs])
        own = whiten([of_row[:count] for (of_row, _), count in zip(pairs, self.tokens, strict=True)])
        used = np.concatenate(self._rows("returns", self.steps))
        cause = f"gamma={a.gamma:g} and lam={a.lam:g} give other returns for these rewards and values"
        stage = compared("advantages", self.step, used, returns, cause)
        if stage.verdict != "different":
            used = np.concatenate(self._rows("advantages", self.tokens))
            cause = "the returns are right, and whitening over the tokens gives other advantages"
            stage = compared("advantages", self.step, used, np.concatenate(own), cause)
        return dataclasses.replace(stage, where="")  # places are tokens here

    def ratios(self) -> Stage:
        """Whether the loss scores rows as they were scored before the first optimizer step, when the ratio is 1."""
        logps, values, largest, limits = [], [], 1.0, tolerance_of(self.step)
        for micro in self.first_step:
            for i, new, new_values in zip(
                micro["micro_batch_inds"], micro["new_logprobs"], micro["vpred"], strict=True
            ):
                logps.append(new[: self.tokens[i]] - self.logps[i])
                values.append(new_values[: self.steps[i]] - self.state_values[i])
                largest = max(largest, float(np.abs(self.state_values[i]).max(initial=0.0)))
        found = np.concatenate(logps), np.concatenate(values) / largest
        said = f"ratios of {math.exp(found[0].min()):.4g} to {math.exp(found[0].max()):.4g} before the first optimizer step"
        for name, part in zip(("ratios", "values"), found, strict=True):
            if not np.isfinite(part).all() or np.abs(part).mean() > limits.mean or np.abs(part).max() > limits.largest:
                cause = said if name == "ratios" else "the loss has other values than the ones before it"
                cause += ": the trainer scores a row in two ways"
                return Stage("ratios", "different", cause, float(np.abs(part).max()))
        both = zip(self.record.micros, self.ppo_losses, strict=True)
        pairs = [
            (used[: len(row)], row)
            for micro, loss in both
            for used, row in zip(micro["ratio"], loss.ratios, strict=True)
        ]
        used, expected = (np.concatenate(part) for part in zip(*pairs, strict=True))
        stage = compared("ratios", self.step, used, expected, "the log-probs give other ratios")
        rounding = stage.verdict == "same" and np.abs(found[0]).max() > 2 * SAME
        return dataclasses.replace(stage, verdict="rounding" if rounding else stage.verdict, cause=stage.cause or said)

    def loss(self) -> Stage:
        """Whether each micro-batch's losses, of all epochs, are those of its log-probs and values."""
        a, micros = self.args, self.record.micros
        clipped = sum(int((np.abs(r - 1) > a.cliprange).sum()) for loss in self.ppo_losses for r in loss.ratios)
        for name, of_loss, cause in (
            ("pg_loss", lambda e: e.policy, f"cliprange={a.cliprange:g} gives another policy loss for these ratios"),
            (
                "vf_loss",
                lambda e: e.value,
                f"cliprange_value={a.cliprange_value:g} gives another value loss for these values",
            ),
            (
                "loss",
                lambda e: e.policy + a.vf_coef * e.value,
                f"vf_coef={a.vf_coef:g} gives another sum of both losses",
            ),
        ):
            used, expected = np.array([m[name] for m in micros]), np.array([of_loss(loss) for loss in self.ppo_losses])
            stage = compared("loss", self.step, used, expected, cause)
            if stage.verdict == "different":
                return dataclasses.replace(stage, where=stage.where.replace("rows", "micro-batches"))
        return dataclasses.replace(stage, cause=f"{len(micros)} micro-batches, {clipped} ratios beyond cliprange")

    def gradient(self, loss: Stage) -> Stage:
        head = [p for name, p in self.model.value_model.named_parameters() if name.startswith("score.")]
        if self.record.problem or self.step.processes > 1:
            return Stage("gradient", "cannot tell", self.record.problem or "several processes average it")
        if self.args.vf_coef and not any(p.requires_grad for p in head):
            return Stage("gradient", "different", "the value head is frozen: no weight of `score` has requires_grad")
        return super().gradient(loss)

    def update(self) -> Stage:
        """Whether the optimizer takes a step at the end of each mini-batch, and moves the weights."""
        a, made = self.args, self.record.updates
        size = math.ceil(a.local_mini_batch_size / a.per_device_train_batch_size)
        due = [size * (n + 1) for n in range(a.num_ppo_epochs * a.num_mini_batches)]
        scaler = self.trainer.accelerator.scaler  # of fp16, which leaves out an update whose gradients overflow
        if made != due and not (self.record.problem and scaler is not None):
            cause = f"{len(made)} optimizer steps, but num_ppo_epochs={a.num_ppo_epochs} and num_mini_batches="
            cause += f"{a.num_mini_batches} make {len(due)}"
            if len(made) > len(due):
                cause += ": at the last batch of the data set accelerate ends each accumulation early"
            elif a.num_mini_batches > 1:
                cause += f": accelerate accumulates gradient_accumulation_steps={a.gradient_accumulation_steps} "
                cause += "micro-batches, across the ends of mini-batches"
            return Stage("update", "different", cause, abs(len(made) - len(due)))
        stage = super().update()
        norm = math.sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in self.record.gradients.values()))
        if not a.max_grad_norm or norm <= a.max_grad_norm or stage.verdict == "cannot tell":
            return stage
        said = f"{stage.cause}; TRL's PPO does not clip: max_grad_norm={a.max_grad_norm:g}, the gradient has norm {norm:.3g}"
        return dataclasses.replace(stage, cause=said)

    def metrics(self) -> Stage | None:
        """Whether what is logged of scores, KL and losses is so; None where other processes have a part in it."""
        if self.step.processes > 1:
            return None
        b, micros = self.record.batch, self.record.micros
        expected = {"objective/scores": b["scores"].mean(), "objective/kl": b["kl"].sum(1).mean()}
        for name, part in (("loss/policy_avg", "pg_loss"), ("loss/value_avg", "vf_loss"), ("val/ratio", "ratio")):
            expected[name] = np.mean([micro[part].mean() for micro in micros])
        return of_logged(self.record.logged, expected)

    def _checked_rows(self) -> list[CheckedRow]:
        """The completions as the first epoch takes them."""
        found, seen = [], set[int]()
        for micro, loss in zip(self.record.micros, self.ppo_losses, strict=True):
            for n, i in enumerate(int(i) for i in micro["micro_batch_inds"]):
                if i in seen:
                    continue
                seen.add(i)
                prompt, ids, count = self.record.prompts[i], self.ids[i], self.tokens[i]
                of_tokens = {name: self.record.batch[f"{name}s"][i][:count] for name in ("reward", "value", "return")}
                texts = [self.tokenizer.decode([token]) for token in ids]
                numbers = np.ones(count), self.record.batch["advantages"][i][:count], micro["new_logprobs"][n][:count]
                alone = self._logps_alone(prompt, ids)
                found.append(CheckedRow(prompt, ids, texts, *numbers, alone, loss.ratios[n], loss.slopes[n], of_tokens))
        return found
