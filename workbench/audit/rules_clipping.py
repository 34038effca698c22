"""Whether the logged clipped ratio is true, from lengths, recorded ends and texts."""

import numpy as np

from ..logs.completions import CUT, STOPPED
from ..logs.log import Log
from ..logs.names import plain
from .finding import NOTE, WARNING, Finding, absent, found, unknown
from .rule import rule

_ROUNDING = 2e-3  # of four printed digits, relative
_CLIP_METRICS = ("clipped_ratio", "mean_terminated_length")
_RECORDED, _IN_THE_TEXT = "the recorded finish reasons say otherwise", "the texts end in a stop string"
_BELOW = "no completion reached the limit"
# What slime, prime-rl, open-instruct and NeMo-RL log of the engine's own finish reasons, and OpenRLHF of prompt and completion.
_OF_THE_ENGINE = (
    "rollout/truncated_ratio",
    "rollout/truncated_rate",
    "rollout/truncated",
    "is_truncated/mean",
    "truncation",
    "val/truncated_completion_fraction",
    "val/stop_rate",
    "stop_rate",
    "truncation_rate",
    "response_clip_ratio",
)


def cut_rows(log: Log) -> np.ndarray | None:
    """Share of rows at each step that really ran into the limit, from recorded ends, (N,); None where none are recorded."""
    table = log.completions
    if table is None or "finish_reason" not in table:
        return log.logged("true_clipped")
    steps = log.steps["step"].to_numpy()
    place = np.searchsorted(steps, table["step"].to_numpy())  # a row counts to the first step logged after it
    inside = (place < len(steps)) & table["finish_reason"].isin((*STOPPED, *CUT)).to_numpy()
    if not inside.any():
        return log.logged("true_clipped")
    cut = table["finish_reason"].isin(CUT).to_numpy()[inside]
    rows = np.bincount(place[inside], minlength=len(steps))
    return np.where(rows > 0, np.bincount(place[inside], cut, minlength=len(steps)) / np.maximum(rows, 1), np.nan)


def ended_rows(log: Log) -> np.ndarray | None:
    """Share of texts at each step that end in one of the run's stop strings, (N,); None without texts or strings."""
    table, strings = log.completions, tuple(log.facts.get("stop_strings") or ())
    if table is None or not strings:
        return None
    texts, bare = table["completion"], tuple(s.rstrip() for s in strings if s.rstrip())
    ended = texts.str.endswith(strings) | texts.str.rstrip().str.endswith(bare)
    share = ended.groupby(table["step"]).mean()
    return share.reindex(log.steps["step"]).to_numpy(float)


@rule(at_once=True, notebook="02_grpo_custom_stops")
def false_clipping(log: Log) -> Finding:
    """Whether the logged clipped ratio contradicts the logged lengths, the recorded ends, or the texts.

    All truncated completions have the same length, the limit, and no completion is longer. So in each step
    `mean_length >= clipped_ratio * limit >= clipped_ratio * max_length`, also for means over several steps.

    Wrong where: the context of the engine is shorter than prompt and limit together, and truncates each completion at
    another length. Read one completion to see.
    """
    logged = log.logged("clipped_ratio")
    if logged is None:
        return absent("No clipped ratio is logged, so none is false.")
    clipped = np.nan_to_num(logged) > 0
    if not clipped.any():
        return absent("The log counts no completion as clipped.")
    columns = set() if log.lines is None else set(map(plain, log.lines.columns))
    if log.trainer == "ms-swift" or columns & set(map(plain, _OF_THE_ENGINE)):
        return absent("This trainer counts the completions that the engine reports as truncated, at any length.")
    reasons = _contradictions(log, logged)
    wrong = np.any(list(reasons.values()), axis=0) if reasons else np.zeros(len(logged), bool)
    if not wrong.any():
        return _consistent(log, logged, clipped)
    true = cut_rows(log)
    counts = {reason: int(where.sum()) for reason, where in reasons.items() if where.any()}
    evidence = {"logged clipped ratio": float(np.nanmean(logged)), "steps that contradict it": counts}
    shown = any(reason in (_RECORDED, _IN_THE_TEXT) for reason in counts)  # and not by lengths alone
    other = "" if shown else ", or the engine's context, shorter than prompt and limit, cut them"
    more = {"true clipped ratio": true, "mean length": log.logged("mean_length")}
    evidence |= {name: float(np.nanmean(values)) for name, values in more.items() if values is not None}
    wrongly = f"completions/clipped_ratio says {np.nanmean(logged):.0%} of the completions were truncated by the length limit. "
    wrongly += f"That is wrong: {next(iter(counts))}."
    if log.trainer == "verl" and all(reason.startswith(_BELOW) for reason in counts):
        return found(
            NOTE,
            f"{wrongly} verl counts a completion as truncated that fills the padded batch, and where it pads to the longest "
            "completion, that is the longest.",
            "Ignore the number where response_length/max is below the limit: there no completion is truncated.",
            cause="longest",
            steps=log.at(wrong),
            evidence=evidence,
            contradicts=_CLIP_METRICS,
        )
    return found(
        WARNING,
        f"{wrongly} They ended at a stop that the trainer does not recognise{other}.",
        f"Do not mask truncated completions and do not raise the limit because of this number. Read one. {teach_the_stop(log)}",
        steps=log.at(wrong),
        evidence=evidence,
        contradicts=_CLIP_METRICS,
    )


def teach_the_stop(log: Log) -> str:
    """Advice on a stop that the trainer does not know; an id of a stop of several tokens would end other completions too."""
    add = "add its id to model.generation_config.eos_token_id before you create the trainer (TRL 1.14.2 or newer)"
    own = set(log.facts.get("stop_token_ids") or ()) - set(log.facts.get("eos_token_ids") or ())
    if own and not log.facts.get("stop_strings"):
        return f"Let the trainer know the stop: {add}, or train with workbench's trainer and StopSpec."
    return (
        "Let the trainer know the stop: train with workbench's trainer and StopSpec. "
        f"If the stop is one token, you can also {add}. Do not do this with a stop of several "
        "tokens: each of them alone would end a completion."
    )


def _contradictions(log: Log, logged: np.ndarray) -> dict[str, np.ndarray]:
    """Reason, in words -> the steps where it shows, (N,) of bool. Where ends are recorded, they alone tell."""
    true = cut_rows(log)
    if true is None:
        return _indirect(log, logged)
    indirect = {reason: where & np.isnan(true) for reason, where in _indirect(log, logged).items()}
    return {_RECORDED: logged - true > 0.005} | indirect


def _indirect(log: Log, logged: np.ndarray) -> dict[str, np.ndarray]:
    """The same from texts and lengths. Lengths mislead where a context shorter than prompt and limit cut the rows."""
    reasons: dict[str, np.ndarray] = {}
    ended = ended_rows(log)
    if ended is not None and log.each_step:  # the texts are of the last batch, the ratio of all since the line before
        reasons[_IN_THE_TEXT] = logged + ended > 1.02
    mean, longest = log.logged("mean_length"), log.logged("max_length")
    if mean is None or log.logged("tool_calls") is not None:  # with tools, lengths leave out what the tools wrote
        return reasons
    terminated = log.logged("mean_terminated_length")
    if terminated is not None and np.allclose(mean, (1 - logged) * terminated, rtol=_ROUNDING, equal_nan=True):
        return reasons  # TRL 0.17 takes masked rows for rows of no token
    if longest is not None:
        small = "truncated completions are the longest, and the mean length is too small for so many"
        reasons[small] = mean < logged * longest * (1 - _ROUNDING)
    if limit := _limit(log):
        reasons[f"so many completions of {limit} tokens need a larger mean length"] = mean < logged * limit * (
            1 - _ROUNDING
        )
        if longest is not None and _one_step_a_line(log, longest):
            reasons[f"{_BELOW} of {limit} tokens"] = (logged > 0) & (longest < limit)
    return reasons


def _limit(log: Log) -> int | None:
    """`max_completion_length` where it is known, and no completion is longer: then another run's was given."""
    limit, longest = log.facts.get("max_completion_length"), log.logged("max_length")
    if limit is None or (longest is not None and np.nanmax(longest) > max(limit, float(f"{limit:.4g}"))):
        return None  # a Trainer prints 12288 as 1.229e+04
    return int(limit)


def _one_step_a_line(log: Log, longest: np.ndarray) -> bool:
    """Say whether a line is of one batch: the longest length of a batch is a whole number, a mean of several seldom is."""
    known = longest[~np.isnan(longest)]
    return bool((known == np.round(known)).all()) and log.each_step


def _consistent(log: Log, logged: np.ndarray, clipped: np.ndarray) -> Finding:
    longest = log.logged("max_length")
    if cut_rows(log) is not None:
        return absent("The recorded finish reasons agree with the clipped ratio.")
    limit, mean = _limit(log), log.logged("mean_length")
    if limit and mean is not None and np.nanmin(mean[clipped], initial=limit) >= 0.98 * limit:
        return absent("Rows are as long as the limit wherever they count as clipped.", limit=limit)
    if longest is not None and mean is not None and log.logged("tool_calls") is None:
        reached = longest[clipped & ~np.isnan(longest)]
        if limit and len(reached) and reached.min() >= 0.9 * limit:
            return absent("The longest completions reach the limit wherever completions count as clipped.", limit=limit)
        at_top = reached == np.nanmax(longest)  # a mean over several steps is there where all of them are
        one_length = at_top.sum() >= 3 and (at_top.all() or not log.each_step)
        full = logged >= 1 - 1e-6
        together = full.sum() >= 3 and np.allclose(mean[full], np.nanmax(longest), rtol=_ROUNDING)
        if not limit and (one_length or together) and (_varied(log) or _free_texts(log) or _many_endings(log)):
            return absent("Clipped completions all have one length, as at a limit.", limit=float(np.nanmax(longest)))
    advice = "Give the limit of the run with --limit N, or its stop strings with --stop STRING; completions "
    advice += "(log_completions=True) help too."
    return unknown(advice, "The lengths neither contradict the clipped ratio nor confirm it.")


def _varied(log: Log) -> bool:
    """Say whether lengths below the longest occur: else all rows may just be equally long."""
    mean, longest, ended = (log.logged(name) for name in ("mean_length", "max_length", "mean_terminated_length"))
    if mean is None or longest is None:
        return False
    shorter = 0 if ended is None else int(((ended > 0) & (ended < 0.98 * longest)).sum())
    return bool(np.nanmean(mean) < 0.98 * np.nanmean(longest) or shorter >= 3)


def _free_texts(log: Log) -> bool:
    """Say whether completions differ so much, at least 10 nats each, that only a limit makes so many equally long."""
    entropy, length = log.logged("entropy"), log.logged("mean_length")
    return entropy is not None and length is not None and bool(np.nanmedian(entropy * length) >= 10)


def _many_endings(log: Log) -> bool:
    """Whether texts end in many ways, as cut ones do: those that stop strings ended have as many last letters as strings."""
    if log.completions is None:
        return False
    last = log.completions["completion"].str.rstrip().str[-1:].value_counts(normalize=True)
    return len(last) >= 8 and float(last.iloc[4:].sum()) >= 0.01
