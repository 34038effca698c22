"""The record of one training step: plain data, from which `step_numbers` makes the numbers that are judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .optimizer_step import OptimizerStep


@dataclass
class MicroBatch:
    """What one call of the loss took and gave. Tensors (B, P + T) or (B, T) as TRL padded them."""

    inputs: Mapping[str, Any]
    logps: torch.Tensor | None = None  # (B, T), without gradients
    entropies: torch.Tensor | None = None
    loss: float = float("nan")
    generation: int = -1  # whose rows they are, of those taken down
    entropy_coef: float | None = None  # that the trainer adapts and this loss took
    others: tuple = ()  # what the scoring returns behind log-probs and entropies, as a router's loss
    entropy_threshold: float | None = None  # from which on tokens of any process are in the loss, of several processes


@dataclass(frozen=True)
class Noticed:
    """What was noticed while a step ran, which the numbers of a stage do not show."""

    verdict: str  # of the stage: `different` or `cannot tell`
    cause: str
    over: tuple[str, ...] = ("same", "rounding", "cannot tell", "different")  # verdicts by numbers that it replaces


@dataclass
class StepRecord:
    """What a trainer used at each stage of one update, of this process."""

    inputs: list[dict] = field(default_factory=list)  # N rows of the data set, of each generation
    generated: list[tuple] = field(default_factory=list)  # what `_generate` returned, of each generation
    turns: list[tuple[list, list]] = field(
        default_factory=list
    )  # prompt ids and completion ids of each call of the sampler
    finish_reasons: list[str] = field(default_factory=list)  # N of the engine, where it says them
    scored: list[list] = field(default_factory=list)  # what each reward function returned, call by call
    rewards: list[torch.Tensor] = field(default_factory=list)  # (N, F), over all processes
    # Rows whose prompt or completion a reward function got otherwise than TRL gave it to the trainer's method.
    judged_otherwise: dict[str, set[int]] = field(default_factory=dict)
    # A reward model, the tables (N, L) that it took, and its rewards, of each call.
    judged: list[tuple[Any, Mapping[str, torch.Tensor], list[float]]] = field(default_factory=list)
    # Prompt and completion of each row, as the reward functions get them.
    texts: list[tuple] = field(default_factory=list)
    seeding: set[str] = field(default_factory=set)  # reward functions that set torch's seed
    drawn_from: str = ""  # the state of torch's generators at the first call of the policy's `generate`, hashed
    states: set[str] = field(default_factory=set)  # the same at each call
    drawn_alike: bool = False  # in another process it was the same
    outputs: list[Mapping[str, Any]] = field(default_factory=list)  # of each generation, as the loss will get it
    # (N of this process,) of each generation, as RLOO takes it off the rewards; NaN where the reference was not scored.
    kl: list[torch.Tensor] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)  # in the loss of each generation, counted in all processes
    micro_batches: list[MicroBatch] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)  # on their device, before clipping
    update: OptimizerStep | None = None  # None where there is a problem
    averaged: bool = False  # gradients are the mean over the processes
    unlike: list[str] = field(default_factory=list)  # parameters that are not the same in all processes
    problem: str = ""  # why there is no update
    open: bool = False  # in a generation of the training
    stale: bool = False  # the generation is one of an earlier update, and the next one replaces it
    reused: bool = False  # a loss took completions that were sampled before an earlier update
    losses: bool = True  # take down losses too
    step_losses: list[float] = field(default_factory=list)  # what `training_step` returned, of each micro-batch
    noticed: dict[str, list[Noticed]] = field(default_factory=dict)  # by stage
    selected: str = ""  # where the loss takes other rows than a generation sampled: in words
    left_in_evaluation: set[str] = field(default_factory=set)  # reward functions that leave the policy so
    losses_in_evaluation: int = 0  # that `training_step` took so
    moving: str = ""  # why weights move before the optimizer steps, where they do

    def forget_generation(self) -> None:
        for part in (
            self.inputs,
            self.generated,
            self.turns,
            self.finish_reasons,
            self.scored,
            self.rewards,
            self.judged_otherwise,
            self.judged,
            self.texts,
            self.seeding,
            self.outputs,
            self.kl,
            self.noticed,
        ):
            part.clear()
        self.stale, self.selected = False, ""

    def notice(self, stage: str, verdict: str, cause: str, over: tuple[str, ...] = Noticed.over) -> None:
        """Add to what was noticed of a stage, once."""
        found = self.noticed.setdefault(stage, [])
        if (each := Noticed(verdict, cause, over)) not in found:
            found.append(each)

    def notice_selection(self, taken: int, sampled: int, strange: int) -> None:
        """Note that the loss gets other rows than were sampled, so that their rewards cannot be followed.

        Args:
            taken, sampled: the number of rows.
            strange: how many of those that are taken were not sampled.
        """
        if strange:
            self.selected = f"{strange} of {taken} rows of the loss are of no completion that was sampled here"
            for stage in ("sampling", "ends", "turns", "mask"):
                self.notice(stage, "cannot tell", self.selected)
        else:
            self.selected = f"the loss takes {taken} of {sampled} sampled completions"
            self.notice("sampling", "cannot tell", f"{self.selected}, not by chance", over=("different",))
        self.notice("rewards", "cannot tell", f"{self.selected}: their rewards are not compared")
        self.notice("advantages", "cannot tell", f"{self.selected}: the rewards behind their advantages are not known")


def row_tokens(ids: Any) -> list[int]:
    """A copy of a row of token ids; of some rows only a slice shows them all."""
    return [int(token) for token in ids[:]]
