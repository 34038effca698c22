"""Rules about where completions end: what the clipped ratio says, what is true, and what was masked because of it."""

import numpy as np

from .finding import FOUND, PROBLEM, WARNING, Finding, absent, unknown
from .levels import ends_at_the_top, quarters, rises
from .log import Log

_ROUNDING = 2e-3  # of four printed digits, relative
_ALL = 0.999  # of the rows: a wrong end can be sampled by chance
_CLIP_METRICS = ("clipped_ratio", "mean_terminated_length")


def cut_rows(log: Log) -> np.ndarray | None:
    """Share of rows at each step that really ran into the limit, from recorded ends, (N,); None where none are recorded."""
    table = log.completions
    if table is None or "finish_reason" not in table:
        return log.logged("true_clipped")
    steps = log.steps["step"].to_numpy()
    place = np.searchsorted(steps, table["step"].to_numpy())  # a row counts to the first step logged after it
    inside = place < len(steps)
    cut = (table["finish_reason"] == "length").to_numpy()[inside]
    rows = np.bincount(place[inside], minlength=len(steps))
    return np.where(rows > 0, np.bincount(place[inside], cut, minlength=len(steps)) / np.maximum(rows, 1), np.nan)


def ended_rows(log: Log) -> np.ndarray | None:
    """Share of texts at each step that end in one of the run's stop strings, (N,); None without texts or strings."""
    table, strings = log.completions, tuple(log.facts.get("stop_strings") or ())
    if table is None or not strings:
        return None
    ended = table["completion"].str.rstrip().str.endswith(tuple(s.rstrip() for s in strings))
    share = ended.groupby(table["step"]).mean()
    return share.reindex(log.steps["step"]).to_numpy(float)


def false_clipping(log: Log) -> Finding:
    """Whether the logged clipped ratio contradicts the logged lengths, the recorded ends, or the texts.

    All rows cut by the limit have one length, the limit, which no row exceeds. So in each step
    `mean_length >= clipped_ratio * limit >= clipped_ratio * max_length`, also for means over several steps.

    Example: half of the rows cut at 32 tokens or more cannot leave a mean of 7.
        >>> import pandas as pd
        >>> def run(mean):
        ...     columns = {"step": [1.0], "clipped_ratio": [0.5], "mean_length": [mean], "max_length": [32.0]}
        ...     return Log("a", "CSV", pd.DataFrame(columns), facts={"max_completion_length": 32})
        >>> false_clipping(run(7.0)).verdict, false_clipping(run(20.0)).verdict
        ('found', 'not found')
    """
    rule, logged = "false-clipping", log.logged("clipped_ratio")
    if logged is None:
        return absent(rule, "No clipped ratio is logged, so none is false.")
    clipped = np.nan_to_num(logged) > 0
    if not clipped.any():
        return absent(rule, "The log counts no row as clipped.")
    reasons = _contradictions(log, logged)
    wrong = np.any(list(reasons.values()), axis=0) if reasons else np.zeros(len(logged), bool)
    if not wrong.any():
        return _consistent(log, logged, clipped)
    true = cut_rows(log)
    counts = {reason: int(where.sum()) for reason, where in reasons.items() if where.any()}
    evidence = {"logged clipped ratio": float(np.nanmean(logged)), "steps that contradict it": counts}
    if true is not None:
        evidence["true clipped ratio"] = float(np.nanmean(true))
    if (mean := log.logged("mean_length")) is not None:
        evidence["mean length"] = float(np.nanmean(mean))
    return Finding(
        rule,
        FOUND,
        f"completions/clipped_ratio says {np.nanmean(logged):.0%} of the completions were cut by the length limit. That is "
        f"wrong: {next(iter(counts))}. They stopped, at something that the trainer does not take for an end.",
        severity=WARNING,
        steps=log.at(wrong),
        evidence=evidence,
        advice="Do not mask truncated completions and do not raise the limit because of this number. Let the trainer know "
        "the stop: put its id into model.generation_config.eos_token_id before the trainer is made, or train with "
        "workbench's trainer and StopSpec.",
        notebook="02_grpo_custom_stops",
        contradicts=_CLIP_METRICS,
    )


def _contradictions(log: Log, logged: np.ndarray) -> dict[str, np.ndarray]:
    """Reason, in words -> the steps where it shows, (N,) of bool."""
    reasons: dict[str, np.ndarray] = {}
    true = cut_rows(log)
    if true is not None:
        reasons["the recorded ends of the rows say otherwise"] = logged - true > 0.005
    ended = ended_rows(log)
    if ended is not None and log.each_step:  # the texts are of the last batch, the ratio of all since the line before
        reasons["the texts end in a stop string"] = logged + ended > 1.02
    mean, longest = log.logged("mean_length"), log.logged("max_length")
    if mean is None or log.logged("tool_calls") is not None:  # with tools, lengths leave out what the tools wrote
        return reasons
    if longest is not None:
        least = logged * longest
        reasons["rows cut by the limit are the longest, and the mean length is too small for so many"] = _less(
            mean, least
        )
    limit = _limit(log)
    if limit:
        reasons[f"so many rows of {limit} tokens need a larger mean length"] = _less(mean, logged * limit)
        if longest is not None and _one_step_a_line(log, longest):
            reasons[f"no row reached the limit of {limit} tokens"] = (logged > 0) & (longest < limit)
    return reasons


def _limit(log: Log) -> int | None:
    """`max_completion_length` where it is known, and no completion is longer: then another run's was given."""
    limit, longest = log.facts.get("max_completion_length"), log.logged("max_length")
    return None if limit is None or (longest is not None and np.nanmax(longest) > limit) else int(limit)


def _less(value: np.ndarray, bound: np.ndarray) -> np.ndarray:
    return value < bound * (1 - _ROUNDING)


def _one_step_a_line(log: Log, longest: np.ndarray) -> bool:
    """Whether a line is of one batch: the longest length of a batch is a whole number, a mean of several seldom is."""
    known = longest[~np.isnan(longest)]
    return bool((known == np.round(known)).all()) and log.each_step


def _consistent(log: Log, logged: np.ndarray, clipped: np.ndarray) -> Finding:
    rule, longest = "false-clipping", log.logged("max_length")
    if cut_rows(log) is not None:
        return absent(rule, "The recorded ends of the rows agree with the clipped ratio.")
    limit, mean = _limit(log), log.logged("mean_length")
    if limit and mean is not None and np.nanmin(mean[clipped], initial=limit) >= 0.98 * limit:
        return absent(rule, "Rows are as long as the limit wherever they count as clipped.", limit=limit)
    if longest is not None and mean is not None and log.logged("tool_calls") is None:
        reached = longest[clipped & ~np.isnan(longest)]
        if limit and len(reached) and reached.min() >= 0.9 * limit:
            return absent(rule, "The longest rows reach the limit wherever rows count as clipped.", limit=limit)
        one_length = len(reached) >= 3 and np.ptp(reached) == 0 and np.nanmax(longest) == reached[0]
        if not limit and one_length and (_varied(log) or _free_texts(log) or _many_endings(log)):
            return absent(rule, "Clipped rows all end at one length, as at a limit.", limit=float(reached[0]))
    return unknown(
        rule,
        "Give the limit of the run with --limit N, or its stop strings with --stop STRING; completions "
        "(log_completions=True) help too.",
        "The lengths neither contradict the clipped ratio nor confirm it.",
    )


def _varied(log: Log) -> bool:
    """Whether lengths below the longest occur: else all rows may just be equally long."""
    mean, longest = log.logged("mean_length"), log.logged("max_length")
    return mean is not None and longest is not None and bool(np.nanmean(mean) < 0.98 * np.nanmean(longest))


def _free_texts(log: Log) -> bool:
    """Whether completions differ so much, at least 10 nats each, that only a limit makes so many equally long."""
    entropy, length = log.logged("entropy"), log.logged("mean_length")
    return entropy is not None and length is not None and bool(np.nanmedian(entropy * length) >= 10)


def _many_endings(log: Log) -> bool:
    """Whether texts end in many ways, as cut ones do: those that stop strings ended have as many last letters as strings."""
    if log.completions is None:
        return False
    last = log.completions["completion"].str.rstrip().str[-1:].value_counts(normalize=True)
    return len(last) >= 8 and float(last.iloc[4:].sum()) >= 0.01


def masked_stops(log: Log) -> Finding:
    """Whether rows that stopped were left out of the loss as truncated: all rows of a step clipped, and no token in the loss.

    Looks at the logged clipped ratio even where it is false, because the mask follows it.
    """
    rule, false, logged = "masked-stops", false_clipping(log), log.logged("clipped_ratio")
    if false.verdict != FOUND or logged is None:
        if false.verdict == "not found":
            return absent(rule, "No row that stopped counts as truncated.")
        return unknown(rule, false.advice, "It is open whether rows that stopped count as truncated.")
    known, norm = log.facts.get("mask_truncated"), log.logged("grad_norm")
    dead, alive = steps_full_of_clipped_rows(log)
    if known is False or alive.any():
        return absent(rule, "Rows that count as truncated are in the loss: steps full of them have a gradient.")
    if not dead.any() and not known:
        return unknown(
            rule,
            "Say whether mask_truncated_completions was True in the config of the run.",
            "No step shows whether truncated rows are left out of the loss.",
        )
    share = float(dead.sum() / len(logged))
    evidence = {"steps all masked": int(dead.sum()), "mean share of rows masked": float(np.nanmean(logged))}
    if norm is not None:
        evidence["steps with a gradient of 0"] = int((norm == 0).sum())
    return Finding(
        rule,
        FOUND,
        "Completions that stopped properly are left out of the loss, because they count as truncated: in "
        f"{share:.0%} of the steps all of them, so that no token is in the loss and the gradient is 0.",
        severity=PROBLEM,
        steps=log.at(dead),
        evidence=evidence,
        cost={"share of rows left out": float(np.nanmean(logged)), "share of steps without gradient": share},
        advice="Set mask_truncated_completions=False, or let the trainer know the stop: put its id into "
        "model.generation_config.eos_token_id before the trainer is made, or train with workbench's trainer and StopSpec.",
        notebook="02_grpo_custom_stops",
        contradicts=("entropy", "clip_region"),  # means over no token
    )


def steps_full_of_clipped_rows(log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Steps whose rows all count as clipped: those without a token in the loss, and those with one.

    Two things tell: the gradient, where rewards differ within groups, and the entropy, a mean over the tokens in the loss.
    """
    logged, norm, equal = log.logged("clipped_ratio"), log.logged("grad_norm"), log.logged("zero_std_share")
    none = np.zeros(len(log.steps), bool)
    if logged is None or norm is None:
        return none, none
    full, entropy = logged >= 1 - 1e-6, log.logged("entropy")
    dead, alive = full & (norm == 0), full & (norm > 0)
    differ = none if equal is None else equal < 1 - 1e-6
    if entropy is None:
        return dead & differ, alive
    return dead & (differ | (entropy == 0)) & ~(entropy > 0), alive | (full & (entropy > 0))


def true_clipping(log: Log) -> Finding:
    """Whether many rows really run into the length limit: a problem where half of them do and the reward does not rise."""
    rule, true = "true-clipping", cut_rows(log)
    true = log.metric("clipped_ratio") if true is None else true
    if true is None:
        return unknown(rule, "Log completions/clipped_ratio, or give completions.") if not log.disputed else unknown(
            rule, "Give --limit N and completions: the logged clipped ratio is false.")  # fmt: skip
    late = quarters(true)[1]
    if late < 0.25:
        return absent(rule, f"{late:.0%} of the rows are cut at the end of the run.", late=late)
    if false_clipping(log).verdict == "undecidable":
        return unknown(rule, "Give --limit N or --stop STRING: it is open whether the clipped ratio is true.")
    learns = rises(log.metric("reward")) or ends_at_the_top(log)
    serious = late >= 0.5 and not learns
    return Finding(
        rule,
        FOUND,
        f"{late:.0%} of the completions are cut by the length limit in the last quarter of the run"
        + (", while the reward rises or is at its highest." if learns else "."),
        severity=PROBLEM if serious else WARNING,
        steps=log.at(true >= 0.25),
        evidence={"share cut, last quarter": late, "share cut, all steps": float(np.nanmean(true))},
        cost={"share of rows cut": float(np.nanmean(true))},
        advice="Raise max_completion_length, or reward shorter completions; masking them leaves fewer rows to learn from.",
        notebook="05_grpo_docs_example",
    )


def never_stops(log: Log) -> Finding:
    """Whether completions run on to the limit whatever is sampled: more than one EOS in a completion, or all of them cut."""
    rule, eos, episodes = "never-stops", log.logged("eos_tokens"), log.logged("episodes")
    if eos is not None and episodes is not None:
        rows = np.diff(episodes, prepend=0.0)
        rows = np.where(rows > 0, rows, np.nan)
        each = eos / rows
        if (each > 1.01).sum() * 2 >= len(each):
            if log.facts.get("pad_token_id") in (None, *log.facts.get("eos_token_ids", ())):
                return unknown(
                    rule,
                    "Give --model FOLDER or a checkpoint folder: where rows are padded with the EOS token, as they are without "
                    "a padding token, these are no sampled ones.",
                    f"Completions hold {np.nanmean(each):.1f} EOS tokens each.",
                )
            return _runs_on(
                log,
                each > 1.01,
                f"Completions hold {np.nanmean(each):.1f} EOS tokens each: the sampler does not stop at EOS, and what "
                "follows it is computed and scored for nothing. A penalty for a missing EOS never applies.",
                {"EOS tokens per completion": float(np.nanmean(each))},
            )
        return absent(rule, "At most one EOS a completion.")
    true = cut_rows(log)
    true = log.metric("clipped_ratio") if true is None else true
    if true is None:
        return unknown(rule, "Log completions/clipped_ratio or val/num_eos_tokens, or give completions.")
    if np.nanmean(true) < _ALL:
        return absent(rule, f"{1 - np.nanmean(true):.1%} of the completions stop.")
    if false_clipping(log).verdict == "undecidable":
        return unknown(rule, "Give --limit N or --stop STRING: it is open whether the clipped ratio is true.")
    return _runs_on(
        log, true >= _ALL, "No completion stops before the length limit, from the first step on.", {"share cut": 1.0}
    )


def _runs_on(log: Log, where: np.ndarray, says: str, evidence: dict) -> Finding:
    return Finding(
        "never-stops",
        FOUND,
        says,
        severity=PROBLEM,
        steps=log.at(where),
        evidence=evidence,
        cost={"share of steps": float(where.mean())},
        advice="Let the sampler stop: stop_token='eos' in TRL's PPOConfig, or an eos_token_id in the model's generation "
        "config; if completions are meant to be longer, raise the limit.",
        notebook="01_ppo_eos_stop",
    )


def added_token(log: Log) -> Finding:
    """Whether a stop id is missing from the saved tokenizer: an engine that loads that tokenizer cannot know the stop."""
    rule, ids = "added-token", log.facts.get("tokenizer_ids")
    stops = [*log.facts.get("eos_token_ids", ()), *log.facts.get("stop_token_ids", ())]
    if not ids or not stops:
        return unknown(rule, "Give a checkpoint folder with tokenizer.json and generation_config.json.")
    missing = sorted(set(stops) - set(ids))
    if not missing:
        return absent(rule, "The saved tokenizer knows every stop id.", stops=stops)
    return Finding(
        rule,
        FOUND,
        f"The saved tokenizer does not know the stop id {missing[0]}: an engine that loads it cannot decode that stop.",
        severity=PROBLEM,
        evidence={"stop ids": stops, "unknown to the tokenizer": missing},
        advice="Save the tokenizer that has the added token beside the resized model, and load both from that folder.",
        notebook="02_grpo_custom_stops",
    )
