"""What a rule says: `Finding`."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from ..errors import ParameterError
from ..runs.files import jsonable


class RuleVerdict(StrEnum):
    """The answer of a rule for a run."""

    FOUND = "found"
    """It saw what it looks for."""
    NOT_FOUND = "not found"
    """It looked, and it is not there."""
    CANNOT_TELL = "cannot tell"
    """The log does not hold what would decide it; the advice says what does."""


class Severity(StrEnum):
    """The weight of a finding. The worst comes first."""

    PROBLEM = "problem"
    """The run does not do what it is for, or its numbers are wrong; the exit code becomes 1."""
    WARNING = "warning"
    """It may, and somebody has to look."""
    NOTE = "note"
    """Worth knowing; nothing has to change."""


FOUND, NOT_FOUND, CANNOT_TELL = RuleVerdict
SEVERITIES = PROBLEM, WARNING, NOTE = tuple(Severity)
_LONGEST_TITLE = 60  # characters


@dataclasses.dataclass(frozen=True)
class Finding:
    """One rule's answer for one run.

    Attributes:
        verdict: `found`, `not found`, or `cannot tell`: then `advice` says what would decide it.
        says: what was seen, in a sentence or two.
        severity: `problem`, `warning` or `note`.
        cause: where one rule has several, such as `masked`.
        steps: where it shows.
        evidence: the numbers.
        cost: what it took, such as `{"share of steps": 0.74}`.
        advice: what to change.
        notebook: that shows it.
        follows_from: the rule whose finding explains this one.
        contradicts: logged metrics that are shown to be wrong; no other rule uses them.
        by: the `Rule` that says it.
    """

    verdict: str
    says: str = ""
    severity: str = NOTE
    cause: str = ""
    steps: tuple[int, ...] = ()
    evidence: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cost: Mapping[str, float] = dataclasses.field(default_factory=dict)
    advice: str = ""
    notebook: str | None = None
    follows_from: str | None = None
    contradicts: tuple[str, ...] = ()
    by: Any = None  # rule.py imports this file

    @property
    def rule(self) -> str:
        """The rule's name, such as `false-clipping`."""
        return self.by.name

    @property
    def title(self) -> str:
        """The rule with the cause, such as `zero-gradient (masked)`; at most 60 characters."""
        title = f"{self.rule} ({self.cause})" if self.cause else self.rule
        return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 4]} ..."

    @property
    def is_problem(self) -> bool:
        return self.verdict == FOUND and self.severity == PROBLEM

    @property
    def more(self) -> str:
        """Where the rule is described and shown."""
        return self.by.more + f", notebook {self.notebook}" * bool(self.notebook)

    def as_json(self) -> dict:
        """The fields as strict JSON; numbers that are not finite become null."""
        fields = {name: value for name, value in vars(self).items() if name != "by"}
        return jsonable({"rule": self.rule, "title": self.title} | fields)


def severe_as(finding: Finding, least: str) -> bool:
    """True for what was found at a severity, or at a worse one.

    Example:
        >>> severe_as(found("warning", "Seen.", "Look."), "problem"), severe_as(found("warning", "Seen.", "Look."), "note")
        (False, True)
    """
    return finding.verdict == FOUND and SEVERITIES.index(finding.severity) <= SEVERITIES.index(least)


# What the function of a rule returns.


def found(
    severity: str,
    says: str,
    advice: str,
    *,
    steps: Iterable[int] = (),
    cost: Mapping[str, float] | None = None,
    **about,
) -> Finding:
    """Say that a rule found what it looks for.

    Args:
        severity: `problem`, which makes the exit code 1, `warning` or `note`.
        says: what was seen, in a sentence with its numbers.
        advice: what to change.
        steps: the steps that show it; `log.at(WHERE)` gives them, for `WHERE` (N,) of bool.
        cost: how much of the run it affects, such as `{"share of steps": 0.74}`.
        about: `cause`, one word, for a rule that knows several; `evidence`, the numbers; `notebook`, one that explains it;
            `contradicts`, the names of metrics that are wrong: no later rule uses them.
    """
    if severity not in SEVERITIES:
        raise ParameterError(f"severity={severity!r}: expected one of {', '.join(SEVERITIES)}")
    numbers = {name: float(value) for name, value in (cost or {}).items()}
    return Finding(FOUND, says, Severity(severity), steps=tuple(map(int, steps)), cost=numbers, advice=advice, **about)


def absent(says: str, **evidence) -> Finding:
    """Say that a rule looked and found nothing; `evidence` are the numbers."""
    return Finding(NOT_FOUND, says, evidence=evidence)


def unknown(advice: str, says: str = "", **evidence) -> Finding:
    """Say that the log cannot answer a rule; `advice` is what would decide it."""
    return Finding(CANNOT_TELL, says, advice=advice, evidence=evidence)


# What TRL calls a parameter or a metric -> what another trainer does.
_WORDS = {
    "verl": {
        "max_completion_length": "data.max_response_length",
        "num_generations": "actor_rollout_ref.rollout.n",
        "learning_rate": "actor_rollout_ref.actor.optim.lr",
        "num_iterations": "actor_rollout_ref.actor.ppo_epochs",
        "epsilon": "actor_rollout_ref.actor.clip_ratio",
        "epsilon_high": "actor_rollout_ref.actor.clip_ratio_high",
        "beta": "actor_rollout_ref.actor.kl_loss_coef (with use_kl_loss=True)",
        "max_grad_norm": "actor_rollout_ref.actor.grad_clip",
        "loss_type='grpo' favours long wrong ones: with it, take 'dr_grpo' or 'dapo'": (
            "actor_rollout_ref.actor.loss_agg_mode='seq-mean-token-mean' favours long wrong ones: with it, take "
            "'seq-mean-token-sum-norm' or 'token-mean'"
        ),
        "in TRL's PPOConfig stop_token='eos', in GRPO and RLOO an eos_token_id in the model's generation config (TRL 1.14.2 or "
        "newer)": "the token that ends a turn must be an eos_token_id of the generation_config.json that the engine loads",
        "log_completions=True": "trainer.rollout_data_dir=FOLDER",
        "vllm_importance_sampling_correction=True": "actor_rollout_ref.rollout.calculate_log_probs=True",
        "sampling/sampling_logp_difference (TRL with vLLM and importance sampling correction does)": (
            "training/rollout_probs_diff_mean (actor_rollout_ref.rollout.calculate_log_probs=True)"
        ),
        "generation_kwargs": "the sampling parameters",
        "top_p=1, top_k=0 and min_p=None": "actor_rollout_ref.rollout.top_p=1 and top_k=-1",
        "top_p=1, top_k=0 and no minimal length": "actor_rollout_ref.rollout.top_p=1, top_k=-1 and no minimal length",
        "set disable_dropout=True where the model has dropout (GPT-2); workbench.consistency.mismatch_report separates them": (
            "see that the actor has no dropout"
        ),
        "vllm_importance_sampling_mode='token_truncate'": "algorithm.rollout_correction.rollout_is=token",
        "frac_reward_zero_std": "critic/advantages/min and max",
        "completions/clipped_ratio": "response_length/clip_ratio",
        "completions/mean_length": "response_length/mean",
        "grad_norm": "actor/grad_norm",
    },
    "ms-swift": {
        "max_completion_length": "--max_completion_length",
        "num_generations": "--num_generations",
        "learning_rate": "--learning_rate",
        "num_iterations": "--num_iterations",
        "epsilon": "--epsilon",
        "epsilon_high": "--epsilon_high",
        "beta": "--beta",
        "max_grad_norm": "--max_grad_norm",
        "log_completions=True": "--log_completions true",
        "mask_truncated_completions=False": "--overlong_filter false",
    },
    "RLOO": {"log_completions=True": "attach_watch(trainer), as TRL's RLOO writes no file of them"},
    "PPO": {
        "log_completions=True": "record_dir=FOLDER of the workbench's PPOTrainer",
        "max_completion_length": "response_length",
        "num_iterations": "num_ppo_epochs",
        "epsilon": "cliprange",
        "beta": "kl_coef",
    },
}


# Where no one knows which trainer it is.
_NEUTRAL = {
    "completions (log_completions=True)": "completions",
    "completions of one group (log_completions=True)": "completions of one group",
    "log_completions=True": "completions in the log",
}


def in_words_of(trainer: str, text: str) -> str:
    """A text with the names that a trainer gives to what TRL calls otherwise; without TRL's option where it has no name.

    Example:
        >>> in_words_of("verl", "Raise max_completion_length, or beta.")
        'Raise data.max_response_length, or actor_rollout_ref.actor.kl_loss_coef (with use_kl_loss=True).'
        >>> in_words_of("", "Give completions (log_completions=True).")
        'Give completions.'
    """
    words = next((words for name, words in _WORDS.items() if trainer.startswith(name)), None) if trainer else _NEUTRAL
    if not words:
        return text
    longest_first = sorted(words, key=len, reverse=True)
    names = r"(?<![\w/.-])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w/])"
    return re.sub(names, lambda match: words[match[0]], text)


def step_ranges(steps: tuple[int, ...], most: int = 4) -> str:
    """Steps as a reader writes them.

    Example:
        >>> step_ranges((3, 4, 5, 9))
        '3 to 5, 9'
        >>> step_ranges((1, 3, 5, 7, 9, 11), most=2)
        '1, 3 and 4 more up to 11'
    """
    runs: list[list[int]] = []
    for step in sorted(steps):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    words = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    if len(words) <= most:
        return ", ".join(words)
    left = sum(b - a + 1 for a, b in runs[most:])
    return f"{', '.join(words[:most])} and {left} more up to {runs[-1][1]}"
