"""The stages of one update of an AsyncGRPOTrainer, each computed again from the stage before it."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..replay.packed import (
    check_old_logps,
    check_packed_mask,
    check_packed_metrics,
    check_packing,
    check_queued_advantages,
    check_update_loss,
)
from ..replay.report import Stage, StepReport
from ..replay.stages import places
from ..training.async_numbers import async_step_of, packed_batches
from ..training.record_async import AsyncRecord
from ..training.record_step import dropouts_of
from ..training.rows import policy_of
from .judge import COPIES, Judge, chance_of_copies, text_key
from .update_stage import update_stage

_TREE = "tree_fa3"  # TRL's attention of packed rows, which takes no row alone


class AsyncJudge(Judge):
    """The stages of an update on packed rows, with the model; each row is scored alone, with another attention kernel."""

    record: AsyncRecord

    def __init__(self, trainer: Any, record: AsyncRecord):
        self.packed = packed_batches(record)
        with plain_attention(policy_of(trainer)):
            super().__init__(trainer, async_step_of(trainer, record, self.packed), record)

    def report(self) -> StepReport:
        step = self.step
        loss = check_update_loss(step, self.losses, self.packed)
        stages = [
            self.sampling(),
            Stage("ends", "cannot tell", "the server decides where a completion ends, and its rows do not say why"),
            Stage("rewards", "cannot tell", "the reward functions run in the worker's own process"),
            self._with_prompts(check_queued_advantages(step, self.packed)),
            check_packing(self.packed, self.trainer.args.max_staleness),
            check_packed_mask(self.packed),
            self.logprobs(),
            self.mismatch(),
            check_old_logps(step, self.packed),
            loss,
            self.gradient_of_other_trainers(loss),
            update_stage(self.record, self.policy, self.trainer.args, self.trainer.state),
            check_packed_metrics(step, self.packed),
        ]
        return self._report(stages)

    def _with_prompts(self, advantages: Stage) -> Stage:
        """The stage of advantages; not known where the rows of a group begin with several prompts."""
        prompts: dict[int, list[list[int]]] = {}
        queued = [row for packed in self.packed for row in packed.rows]
        for row, each in zip(self.step.rows, queued, strict=True):
            prompts.setdefault(each.group, []).append(row.prompt_ids)
        # The prompt of a later row of a conversation goes on.
        shortest = {group: min(each, key=len) for group, each in prompts.items()}
        mixed = [g for g, each in prompts.items() if any(ids[: len(shortest[g])] != shortest[g] for ids in each)]
        if not mixed or advantages.verdict not in ("same", "rounding"):
            return advantages
        cause = f"{len(mixed)} groups have rows that begin with several prompts: are they one task?"
        return replace(advantages, verdict="cannot tell", cause=cause, where=places(mixed, "groups"))

    def sampling(self) -> Stage:
        """Check that the newest rows were sampled from the scored policy. Older rows come from older weights."""
        if self.step.rows and not any(row.own.any() for row in self.step.rows):
            cause = "every row was sampled by older weights than those that score it"
            return Stage("sampling", "cannot tell", cause)
        with plain_attention(self.policy):  # a cause is looked for with the model
            return super().sampling()

    def _improbable_copies(self) -> list[list[int]]:
        """The rows of each completion that a group holds more than once, beyond chance; a queue keeps no order of groups."""
        groups: dict[int, list[int]] = {}
        queued = [row for packed in self.packed for row in packed.rows]
        samples = [taken.sample for packed in self.record.packed for taken in packed.rows]
        given = set[int]()  # a check repeats the rows that it is given until they fill an update
        for i, (row, each, sample) in enumerate(zip(self.step.rows, queued, samples, strict=True)):
            if row.own.any() and id(sample.old_log_probs) not in given:
                groups.setdefault(each.group, []).append(i)
            given.add(id(sample.old_log_probs))
        copies = []
        for rows in groups.values():
            equal: dict[tuple, list[int]] = {}
            for i in rows:
                equal.setdefault(text_key(self.step.rows[i].prompt_ids, self.step.rows[i].ids), []).append(i)
            for key, same in equal.items():
                logp = float(
                    (self.alone[key].logps * self.step.rows[same[0]].own).sum()
                )  # a tool's tokens are no draws
                if chance_of_copies(len(same), len(rows), logp) < COPIES:
                    copies.append(same)
        return copies

    def logprobs(self) -> Stage:
        """Compare the trainer's log-probs of the trained tokens with those of each row alone."""
        pairs = [
            (row.logps[row.mask > 0], alone.logps[row.mask > 0])
            for row, _, _, alone in self._scored()
            if row.mask.any()
        ]
        if not pairs:
            return Stage(
                "log-probs", "cannot tell", "no token is in the loss, or the loss takes log-probs from elsewhere"
            )
        used, alone = (np.concatenate(part) for part in zip(*pairs, strict=True))
        cause = "a row alone, unpacked, has other log-probs"
        return self._close("log-probs", used, alone, cause, self._why)

    def _why(self) -> str:
        dropouts = dropouts_of(self.policy)
        return f": not tested: dropout ({', '.join(dropouts)}), which is on while it trains" if dropouts else ""


@contextlib.contextmanager
def plain_attention(model: Any) -> Iterator[None]:
    """Inside the block a model attends with torch's own kernel, which takes rows that are not packed."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    packed = [config for config in configs.values() if getattr(config, "_attn_implementation", None) == _TREE]
    try:
        for config in packed:
            config._attn_implementation = "sdpa"
        yield
    finally:
        for config in packed:
            config._attn_implementation = _TREE
