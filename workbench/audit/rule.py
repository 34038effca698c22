"""A rule of the audit: a function that asks a log, with what is known of it before it is asked."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..logs.log import Log
from .finding import FOUND, Finding, in_words_of

# What whole kinds of logs never hold, in the order in which a report names it.
COMPLETIONS, LOG_PROBS = "completions", "sampler against scorer log-probs"
MODEL_FILES, BASELINE, REWARDS = "model files, or --model", "--baseline", "the means of several reward functions"
UPDATES, TOOLS = "update/moved, which attach_watch logs", "the share of calls of tools that fail"
# What a user can change -> what of a rule's needs and advice says that it would help, in TRL's words, verl's and ms-swift's.
_REMEDIES = {
    "log_completions=True": re.compile(r"completions\b(?!/)|log_completions|rollout_data_dir"),
    "--limit N": re.compile(r"--limit"),
    "vllm_importance_sampling_correction=True (with vLLM)": re.compile(r"log-probs|logp_difference|rollout_probs_diff"),
    "--model MODEL": re.compile(r"--model|tokenizer\.json"),
    "attach_watch(trainer)": re.compile(r"attach_watch"),
    "a log of grad_norm": re.compile(r"grad_norm"),
    "a log of kl (beta above 0)": re.compile(r"\bkl\b"),
    "a log of completion lengths": re.compile(r"mean_length|mean length|clipped_ratio|response_length"),
    "a log of the reward": re.compile(r"Log the reward"),
    "more steps": re.compile(r"[Mm]ore steps|at least \d+ steps"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """What `rule` makes of a function; called with a log, it gives its finding."""

    function: Callable[[Log], Finding]
    needs: str = ""
    explains: tuple[str, ...] = ()
    at_once: bool = False
    notebook: str | None = None

    @property
    def name(self) -> str:
        """`false_clipping` -> `false-clipping`."""
        return self.function.__name__.replace("_", "-")

    @property
    def more(self) -> str:
        """File and line of the function whose docstring describes it; of a built-in rule the file within the package."""
        module, code = self.function.__module__, self.function.__code__
        if module.startswith("workbench."):
            return f"{module.replace('.', '/')}.py:{code.co_firstlineno}"
        return f"{code.co_filename}:{code.co_firstlineno}"

    def __call__(self, log: Log) -> Finding:
        """Ask a log. The finding is kept there, so that rules may ask each other."""
        if self not in log.findings:
            answer = self.function(log)
            if not isinstance(answer, Finding):
                raise TypeError(f"it returned {answer!r}; expected found(...), absent(...) or unknown(...)")
            log.findings[self] = self.signed(answer, log)
        return log.findings[self]

    def signed(self, answer: Finding, log: Log) -> Finding:
        """An answer as this rule's finding, with the parameter names of the log's own framework."""
        says, advice = (in_words_of(log.trainer, text) for text in (answer.says, answer.advice))
        notebook = answer.notebook or (self.notebook if answer.verdict == FOUND else None)
        return dataclasses.replace(answer, by=self, says=says, advice=advice, notebook=notebook)


def what_would_help(silent: Sequence[Finding], most: int = 2) -> list[tuple[str, int]]:
    """The settings with which most of the rules that cannot tell could speak, with their number.

    The first is an option of the command, which needs no new training, if one helps two rules or more.

    Example:
        >>> from .finding import unknown
        >>> asked = [unknown("Give --limit N."), unknown("Give --limit N and completions."), unknown("Log grad_norm.")]
        >>> what_would_help([dataclasses.replace(finding, by=Rule(len)) for finding in asked])
        [('--limit N', 2), ('a log of grad_norm', 1)]
    """
    left = [f"{finding.by.needs} {finding.advice}" for finding in silent if finding.cause != "error"]
    chosen: list[tuple[str, int]] = []
    while left and len(chosen) < most:
        helped = {setting: [text for text in left if words.search(text)] for setting, words in _REMEDIES.items()}
        at_hand = [
            setting for setting in helped if setting.startswith("--") and len(helped[setting]) > 1 and not chosen
        ]
        best = max(at_hand or helped, key=lambda setting: len(helped[setting]))
        if not helped[best]:
            break
        chosen.append((best, len(helped[best])))
        left = [text for text in left if text not in helped[best]]
    return chosen


def rule(
    function: Callable[[Log], Finding] | None = None,
    *,
    needs: str = "",
    explains: tuple[str, ...] = (),
    at_once: bool = False,
    notebook: str | None = None,
) -> Any:
    """Make a rule of the audit from a function that takes a log and returns `found(...)`, `absent(...)` or `unknown(...)`.

    The rule has the name of the function, with `-` for `_`. `workbench audit PATH --rules FILE`, `audit_run` and `attach_watch`
    take your rules in addition to the built-in ones. In the function, `log.metric(NAME)` is a metric, (N,) with NaN for steps
    without it, or None; `log.completions` is a table with one row a completion, or None; `log.facts` are the known settings.

    Args:
        needs: what the rule needs from the log, in words such as `completions`; a report names it if the log lacks it.
        explains: names of rules whose findings follow from a finding of this rule, such as `no-learning`. With a cause,
            `zero-gradient (masked)`, only findings of that cause follow.
        at_once: True if one step is proof enough: `attach_watch` warns at the first such step. False: it warns from step 20
            on, and only if the rule finds it twice in a row.
        notebook: name of a notebook that explains the finding.

    Example:
        >>> from workbench.audit import absent, found, rule
        >>> @rule(explains=("no-learning",))
        ... def short_run(log):
        ...     steps = len(log.steps)
        ...     return found("note", f"{steps} steps.", "Train longer.") if steps < 100 else absent("100 steps or more.")
        >>> short_run.name, short_run.explains
        ('short-run', ('no-learning',))
    """
    make = partial(Rule, needs=needs, explains=explains, at_once=at_once, notebook=notebook)
    return make if function is None else make(function)
