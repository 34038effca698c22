"""Why a case is wrong, as read in the source of each framework at its newest release that `run.py` asks.

`own formula` is a choice that conform has no name for. `no guard`: NaN comes in, or no token is left, and NaN comes out.
`fault`: a number that neither the definition nor a choice gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class Cause:
    """A cause: of which framework, cases and definitions it is, and its place in the source.

    Attributes:
        cases, claims, releases: patterns of `fnmatch`, any of them.
    """

    framework: str
    kind: str
    text: str
    cases: Sequence[str]
    claims: Sequence[str] = ("*",)
    releases: Sequence[str] = ("*",)


NAN = ("nan behind*", "a log-prob of the sampler missing")
MISSING = ("*: one reward *", "*: a group of nan", "*: None for some")
WEIGHTS = ("weights *", "kl next to weights *")
GSPO_TOKEN = "the form GSPO-token, in which a token's weight acts on its own gradient alone"
CAUSES = (
    Cause("trl", "no guard", "grpo_trainer.py:3016: a weight that is NaN becomes 0", NAN, ("vespo",)),
    Cause("trl", "no guard", "rloo_trainer.py:1822: log-probs times the mask", NAN, ("rloo",)),
    Cause("trl", "no guard", "grpo_trainer.py:3154 and the like: the loss times the mask", NAN),
    Cause(
        "trl_async",
        "fault",
        "async_grpo_trainer.py:1541, 1544: divided by the tokens of a micro-batch, then by the number of micro-batches (#7206)",
        ("*micro-batch*",),
    ),
    Cause(
        "trl_distillation",
        "no guard",
        "distillation_trainer.py:201: masked behind the divergence: the value is right, the gradient NaN; a GPU with Triton "
        "leaves these tokens out before it",
        ("*: nan behind*",),
    ),
    Cause(
        "trl_async_distillation",
        "fault",
        "async_distillation_trainer.py:1737 of 1.16.0: divided by the tokens of a micro-batch, then by the number of "
        "micro-batches (#7206, #7249)",
        ("*micro-batch*",),
    ),
    Cause("verl", "no guard", "core_algos.py:1175: over 0 tokens; its gradient is 0", ("all rows left out",)),
    Cause("verl", "no guard", "core_algos.py:1182, 1196, rollout_corr_helper.py:592: times the mask", NAN),
    Cause("verl", "no guard", "core_algos.py:320, 625: the mean of a group with a NaN", MISSING),
    Cause("verl", "own formula", f"core_algos.py:1589: {GSPO_TOKEN}", WEIGHTS, ("gspo",)),
    Cause(
        "verl",
        "own formula",
        "core_algos.py:1439: the log-prob, weighted with the ratio of 3 at most; up to 3 the gradient is DPPO's",
        ("*",),
        ("dppo",),
    ),
    Cause("verl", "own formula", "core_algos.py:466: 1e-6 and 1e-8 are added", ("gdpo: *",)),
    Cause("openrlhf", "no guard", "loss.py:32: over 0 tokens, or 0 rows", ("all rows left out",)),
    Cause("openrlhf", "no guard", "loss.py:32: the loss times the mask", NAN),
    Cause("openrlhf", "no guard", "experience_maker.py:269 to 274: the mean of a group with a NaN", MISSING),
    Cause(
        "openrlhf",
        "own formula",
        "ppo_actor.py:331: the KL term is a mean over tokens, also where the loss is one over rows",
        ("kl*",),
    ),
    Cause(
        "openrlhf",
        "own formula",
        "loss_utils.py:73: a mean over the rows that have tokens",
        ("a row *", "a micro-batch left out"),
    ),
    Cause(
        "openrlhf",
        "own formula",
        "loss.py:192: with a correction on, GSPO's ratio is to the sampler, without a weight",
        ("weights *",),
        ("gspo",),
    ),
    Cause("skyrl", "no guard", "ppo_utils.py:1092: the loss times the mask", NAN),
    Cause("skyrl", "no guard", "ppo_utils.py:1240, 1325: the mean of a group with a NaN", MISSING),
    Cause("skyrl", "own formula", f"ppo_utils.py:706: {GSPO_TOKEN}", WEIGHTS, ("gspo",)),
    Cause(
        "skyrl",
        "own formula",
        "worker.py:977: the KL term is a mean over rows, also where the loss is one over tokens",
        ("kl*",),
    ),
    Cause("areal", "no guard", "functional.py:509: `where` after `exp`: the value is right, the gradient NaN", NAN[:1]),
    Cause("areal", "no guard", "data.py:1553: the mean of a group with a NaN", MISSING),
    Cause(
        "areal",
        "own formula",
        "functional.py:495: a token that is left out has no part in the row's ratio either",
        ("weights *",),
        ("gspo",),
    ),
    Cause(
        "areal",
        "own formula",
        "data.py:1456: the deviation of the batch is that around the mean of each group",
        ("*: scale batch",),
    ),
    Cause("areal", "own formula", "functional.py:623: SAPO as a mean over the tokens of the step", ("*",), ("sapo",)),
    Cause("ms_swift", "no guard", "grpo_trainer.py:1129: over 0 tokens", ("all rows left out",)),
    Cause("ms_swift", "no guard", "grpo_trainer.py:1084, 1129: the loss times the mask", NAN),
    Cause(
        "ms_swift",
        "fault",
        "grpo_trainer.py:1142 of 4.5.3: divided by the tokens of the step, and by transformers' Trainer once more by the "
        "number of micro-batches; fixed in 4.6.0",
        ("*micro-batch*",),
        ("dapo", "cispo", "dual_clip"),
        ("4.5.*",),
    ),
    Cause(
        "ms_swift",
        "fault",
        "advantage.py:58, 90: `nansum` makes the reward of a completion that no function scored 0, which its group then has",
        MISSING,
    ),
    Cause(
        "ms_swift", "own formula", "grpo_trainer.py:1080: rows off policy leave the divisor too", ("rows off policy",)
    ),
    Cause(
        "ms_swift",
        "own formula",
        "grpo_trainer.py:1064, 1067: the sampler's weight multiplies the KL term too",
        ("kl next to weights *",),
    ),
    Cause("ms_swift", "own formula", "advantage.py:89, 93: 1e-8 is added", ("gdpo: *",)),
)


def cause_of(framework: str, release: str, claim: str, case: str) -> Cause | None:
    """The first cause that fits a case.

    Example:
        >>> cause_of("verl", "0.9.1", "dapo", "all rows left out").kind
        'no guard'
    """
    for cause in CAUSES:
        fits = ((release, cause.releases), (claim, cause.claims), (case, cause.cases))
        if cause.framework == framework and all(any(fnmatch(name, one) for one in several) for name, several in fits):
            return cause
    return None
