"""Rules about the sampler and the scorer: are they the same policy?"""

import numpy as np

from .finding import FOUND, PROBLEM, WARNING, Finding, absent, unknown
from .levels import change, quarters
from .log import Log

# Mean |log-prob difference| of a token that arithmetic explains; bf16: about 0.012 is reported (trl #4772).
EXPLAINED = {"float32": 0.005, "float16": 0.02, "bfloat16": 0.05}
_DRIFT = 0.02
# Their positions are learned vectors: a token's place in a padded row changes its logits.
LEARNED_POSITIONS = {"gpt2", "gpt_neo", "gpt_bigcode", "openai-gpt"}
_ADVICE = "Log sampling/sampling_logp_difference (TRL with vLLM and importance sampling correction does)."


def stale_sampler(log: Log) -> Finding:
    """Whether the sampler lags behind the scorer: their difference grows at least fivefold over the run.

    A sampler that is updated each step differs by the same small amount all along; one that is not differs by more with
    each step of the scorer.
    """
    rule, difference = "stale-sampler", log.metric("logp_difference")
    found = change(difference)
    if difference is None:
        return unknown(rule, _ADVICE)
    if found is None:
        if np.nanmax(difference) < _DRIFT:
            return absent(rule, "Sampler and scorer agree.")
        return unknown(rule, "More steps.")
    first, last = quarters(difference)
    evidence = {"difference, first quarter": first, "difference, last quarter": last}
    if found.low <= 0 or last < _DRIFT or last < 5 * first:
        return absent(rule, f"Sampler and scorer differ by {first:.2g}, later by {last:.2g}.", **evidence)
    return Finding(
        rule,
        FOUND,
        f"The sampler does not follow the policy: their log-probs differ by {first:.2g} a token in the first quarter and "
        f"by {last:.2g} in the last.",
        severity=PROBLEM,
        evidence=evidence,
        advice="Check that weights, LoRA ones too, reach the engine: sync every step, and compare a greedy sample of both.",
    )


def mismatch(log: Log) -> Finding:
    """Whether sampler and scorer differ by more than the arithmetic of the dtype explains."""
    rule, difference = "mismatch", log.metric("logp_difference")
    if difference is None:
        return unknown(rule, _ADVICE)
    dtype, bound = str(log.facts.get("dtype") or ""), EXPLAINED["bfloat16"]
    mean = float(np.nanmean(difference))
    evidence = {"mean difference of a token's log-prob": mean, "explained": bound, "dtype of the saved model": dtype}
    if mean <= EXPLAINED.get(dtype, bound):
        return absent(
            rule, f"Sampler and scorer differ by {mean:.2g} a token, which {dtype or 'bf16'} explains.", **evidence
        )
    if mean <= bound:
        return unknown(
            rule,
            "Say in which dtype the engine and the trainer computed (bf16=True, vLLM's dtype): bf16 explains the difference.",
            f"Sampler and scorer differ by {mean:.2g} a token, more than the {dtype} of the saved model explains.",
            **evidence,
        )
    first, last = quarters(difference)
    growing = last > 3 * first
    return Finding(
        rule,
        FOUND,
        f"Sampler and scorer differ by {mean:.2g} a token, more than the {bound} that bf16 explains"
        + (", and ever more." if growing else ", from the start."),
        severity=PROBLEM if mean > 2 * bound else WARNING,
        cause="growing" if growing else "constant",
        steps=log.at(np.nan_to_num(difference) > bound),
        evidence=evidence | {"first quarter": first, "last quarter": last},
        advice="Growing: the sampler is not updated. Constant: compare top_p, top_k, temperature and positions of both; "
        "workbench.mismatch_report tells them apart.",
        notebook="03_position_ids_and_padding",
    )


def padding_positions(log: Log) -> Finding:
    """Whether padding shifts the positions of tokens: they are learned, no position ids are passed, prompts are unequal."""
    rule, kind = "padding-positions", log.facts.get("model_type")
    if kind is None:
        return unknown(rule, "Give --model FOLDER, or a checkpoint folder with config.json.")
    if kind not in LEARNED_POSITIONS:
        if log.facts.get("rotary"):
            return absent(rule, f"{kind} has rotary positions, which padding does not change.")
        return unknown(
            rule, f"Run workbench.padding_report on the model: how {kind} counts positions is not known here."
        )
    if log.facts.get("explicit_positions") or log.facts.get("trainer") == "verl":
        return absent(rule, "The trainer passes position ids.")
    varied = _prompts_differ_in_length(log)
    if varied is None:
        return unknown(rule, "Give completions (log_completions=True): padding matters where prompts differ in length.")
    if not varied:
        return absent(rule, "All prompts of a step are equally long, so nothing is padded.")
    return Finding(
        rule,
        FOUND,
        f"{kind} has learned positions, prompts differ in length, and TRL's scorer passes no position ids: padded rows are "
        "scored at other positions than they were sampled at.",
        severity=PROBLEM,
        evidence={"model type": kind, "share of steps with prompts of several lengths": varied},
        advice="Train with workbench's trainer, which passes position ids, or with prompts of one length.",
        notebook="03_position_ids_and_padding",
    )


def _prompts_differ_in_length(log: Log) -> float | None:
    """Share of steps whose prompts have several lengths in characters; None without completions."""
    if log.completions is None or not len(log.completions):
        return None
    lengths = log.completions["prompt"].str.len()
    return float((lengths.groupby(log.completions["step"]).nunique() > 1).mean())
