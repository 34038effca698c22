"""Rules about the sampler and the scorer: are they the same policy?"""

from importlib.util import find_spec

import numpy as np

from ..logs.log import Log
from .finding import FOUND, PROBLEM, WARNING, Finding, absent, found, unknown
from .rule import LOG_PROBS, MODEL_FILES, rule
from .trends import change, quarters

# Mean |log-prob difference| of a token that arithmetic explains; bf16: about 0.012 is reported (trl #4772).
ROUNDING_NATS = {"float32": 0.005, "float16": 0.02, "bfloat16": 0.05}
_DRIFT = 0.02
_MOST_OF_IT = 0.5  # of the gradient
# Their positions are learned vectors: a token's place in a padded row changes its logits.
LEARNED_POSITIONS = {"gpt2", "gpt_neo", "gpt_bigcode", "openai-gpt"}
_PASS_POSITIONS = ("verl", "PPO")
_ADVICE = "Log sampling/sampling_logp_difference (TRL with vLLM and importance sampling correction does)."


@rule(needs=LOG_PROBS, explains=("mismatch", "collapse", "no-learning"))
def stale_sampler(log: Log) -> Finding:
    """Whether the sampler lags behind the scorer: they agree in the first step, and differ more and more after it.

    A sampler that is updated at each step differs by the same small amount in all steps. A sampler that is not updated has the
    scorer's weights only in the first step. So the rule compares the last quarter with the first step. It is a warning alone
    where bf16 explains the last quarter too: a policy that becomes less sure of its tokens differs by more.

    Wrong where: the difference grows for another reason, such as a precision that becomes too low for the policy.
    """
    difference = _difference(log)
    changed = change(difference)
    if difference is None:
        return unknown(_ADVICE)
    if changed is None:
        if np.nanmax(difference) < _DRIFT:
            return absent("Sampler and scorer agree.")
        return unknown("Log more steps.")
    first, last = float(difference[~np.isnan(difference)][0]), quarters(difference)[1]
    evidence = {"difference, first step": first, "difference, last quarter": last}
    far = (last >= _DRIFT and last >= 5 * first) or (last >= _DRIFT / 20 and last >= 50 * first)
    if not far or (changed.low <= 0 and last < 50 * first):
        return absent(f"Sampler and scorer differ by {first:.2g}, later by {last:.2g}.", **evidence)
    differ = f"their log-probs differ by {first:.2g} a token in the first step and by {last:.2g} in the last quarter"
    advice = "Check that the weights, also those of LoRA, reach the engine: sync every step, compare a greedy sample of both."
    bound = ROUNDING_NATS.get(str(log.facts.get("dtype") or ""), ROUNDING_NATS["bfloat16"])
    if last <= bound and last < 50 * first:
        says = f"The sampler may not follow the policy: {differ}. If the policy became less sure, rounding explains it."
        return found(WARNING, says, advice, evidence=evidence)
    return found(PROBLEM, f"The sampler does not follow the policy: {differ}.", advice, evidence=evidence)


def _difference(log: Log) -> np.ndarray | None:
    """Mean difference of a token's log-prob, or of its probability, as verl logs it, which is never larger.

    NaN for steps without a token to compare: TRL logs exactly 0 where all rows were left out of the loss.
    """
    difference = log.metric("logp_difference")
    difference = log.metric("probability_difference") if difference is None else difference
    return None if difference is None or not np.nansum(difference) else np.where(difference == 0, np.nan, difference)


@rule(needs=LOG_PROBS, notebook="03_position_ids_and_padding")
def mismatch(log: Log) -> Finding:
    """Whether sampler and scorer differ by more than the arithmetic of the dtype explains.

    How: a mean difference above 0.05 nats a token, the most that bf16 explains. Below that, the rule cannot tell from 0.005 on
    for a model saved in fp32, and from 0.02 on in fp16. If no sampled token is less likely under the sampler than under the
    scorer, the cause is top_p, top_k, min_p or min_tokens.
    Wrong where: experts are routed differently in engine and trainer, which makes larger differences with the same weights.
    """
    difference = _difference(log)
    if difference is None:
        return unknown(_ADVICE)
    if log.metric("logp_difference") is None and np.nanmean(difference) <= ROUNDING_NATS["bfloat16"]:
        says = f"Probabilities differ by {np.nanmean(difference):.2g}; log-probs differ by more, which is not logged."
        return unknown(_ADVICE, says)
    dtype, bound = str(log.facts.get("dtype") or ""), ROUNDING_NATS["bfloat16"]
    mean = float(np.nanmean(difference))
    evidence = {"mean difference of a token's log-prob": mean, "explained": bound, "dtype of the saved model": dtype}
    if _only_more_likely(log, difference):
        cause = "min-tokens" if log.facts.get("min_tokens") else "truncated-sampling"
        return _apart(log, cause, difference, bound, evidence)
    if mean <= ROUNDING_NATS.get(dtype, bound):
        return absent(f"Sampler and scorer differ by {mean:.2g} a token, which {dtype or 'bf16'} explains.", **evidence)
    if mean <= bound:
        says = f"Sampler and scorer differ by {mean:.2g} a token, more than the {dtype} of the saved model explains."
        advice = "Say in which dtype the engine and the trainer computed (bf16=True, vLLM's dtype): bf16 explains the "
        return unknown(f"{advice}difference.", says, **evidence)
    others = {"growing": stale_sampler, "positions": padding_positions}
    first = float(difference[~np.isnan(difference)][0])
    otherwise = "lag" if first <= min(bound, mean / 3) else "constant"
    cause = next((cause for cause, other in others.items() if other(log).verdict == FOUND), otherwise)
    return _apart(log, cause, difference, bound, evidence)


_CAUSES = {
    "truncated-sampling": (
        ", and no token was less likely under the sampler than under the scorer: it samples only from a part of the vocabulary",
        "Set top_p=1, top_k=0 and min_p=None for training: the scorer's log-probs are of the whole vocabulary.",
    ),
    "min-tokens": (
        ", and no token was less likely under the sampler than under the scorer: min_tokens forbids stops to the sampler only",
        "Leave min_tokens out and reward length instead, or accept that TRL's correction gives such completions less weight.",
    ),
    "growing": (", and more with each step", "See stale-sampler: the weights do not reach the engine."),
    "positions": (", from the first step on, as with shifted positions", "See padding-positions."),
    "lag": (
        ", but not in the first step: the sampler has older weights since then",
        "See that the weights reach the engine at each step. Asynchronous training samples with older ones: let it lag by "
        "fewer steps, and correct for it by importance sampling.",
    ),
    "constant": (
        ", from the start",
        "Compare temperature, dtype, weights and chat template of both, and set disable_dropout=True where the model has "
        "dropout (GPT-2); workbench.consistency.mismatch_report separates them.",
    ),
}


def _only_more_likely(log: Log, difference: np.ndarray) -> bool:
    """Say whether scorer over sampler is at most 1 in each step: what top_p, top_k and min_p do, and noise does not.

    They leave out tokens and share their probability out among the rest, so every sampled token is more likely to the
    sampler. Any other difference makes some tokens less likely to it, because both sets of probabilities add up to 1.
    """
    highest, mean = log.metric("ratio_max"), log.metric("ratio_mean")
    if highest is None or mean is None or np.nanmean(difference) < 1e-3:
        return False
    apart = difference > 1e-3
    if not (highest[apart] <= 1 + 1e-3).all() or np.nanmean(mean) >= 1 - 1e-3:
        return False
    return bool(np.median(highest[apart]) >= 0.1) or _products_are_as_small(log, difference, apart)


def _products_are_as_small(log: Log, difference: np.ndarray, apart: np.ndarray) -> bool:
    """Say whether ratios of whole, long completions, TRL's default, are as small as top_p makes them.

    A product of that many ratios is far below 1 with any mismatch. Where the ratio of every token is below 1, the logarithm of
    the product is minus the sum of the differences, so that the smallest is at most exp(-difference x length).
    """
    lowest, length = log.metric("ratio_min"), log.metric("mean_length")
    if lowest is None or length is None:
        return False
    told = apart & (lowest > 0)  # 0: masked, or too small for a float
    small = np.log(lowest[told]) <= -0.9 * (difference * length)[told]
    return bool(told.sum() >= 0.5 * apart.sum() and small.mean() > 0.9)


def _apart(log: Log, cause: str, difference: np.ndarray, bound: float, evidence: dict) -> Finding:
    (words, advice), mean = _CAUSES[cause], float(np.nanmean(difference))
    beyond = f", more than the {bound} that bf16 explains" if mean > bound else ""
    says, severity = f"Sampler and scorer differ by {mean:.2g} a token{beyond}{words}.", WARNING
    severity = PROBLEM if mean > 2 * bound else severity
    where = log.at(np.nan_to_num(difference) > (bound if mean > bound else 1e-3))
    return found(severity, says, advice, cause=cause, steps=where, evidence=evidence)


@rule(needs=LOG_PROBS, explains=("no-learning",))
def lost_to_correction(log: Log) -> Finding:
    """Whether the correction for the sampler's log-probs takes most of the gradient.

    How: the mean importance ratio, by which the loss of a token or completion is multiplied. A warning where it is below a half
    in the mean of three steps or more. Steps without a token to compare do not count.
    Wrong where: a trainer logs the ratios before it scales them up again.
    """
    ratio, difference = log.metric("ratio_mean"), log.metric("logp_difference")
    if ratio is None:
        return unknown(
            "Log sampling/importance_sampling_ratio/mean (TRL with vLLM and importance sampling correction does)."
        )
    nothing = np.zeros(len(ratio), bool) if difference is None else np.nan_to_num(difference) == 0
    compared = ~np.isnan(ratio) & ~(nothing & (ratio == 0))
    if compared.sum() < 3:
        return unknown("Log more steps with a token to compare.")
    mean, lowest = float(ratio[compared].mean()), float(ratio[compared].min())
    evidence = {"mean importance ratio": mean, "lowest of a step": lowest}
    if mean >= _MOST_OF_IT:
        return absent(f"The mean importance ratio is {mean:.2g}.", **evidence)
    says = f"The correction for the sampler's log-probs takes {1 - mean:.0%} of the gradient: the importance ratio is "
    says += f"{mean:.2g} in the mean, {lowest:.2g} in the lowest step."
    advice = "Find out why sampler and scorer differ (see mismatch). Ratios of whole completions are products over all tokens, "
    advice += "so rounding alone does this to long ones; only if it is rounding, correct each token: "
    advice += "vllm_importance_sampling_mode='token_truncate'."
    where = log.at(compared & (np.nan_to_num(ratio, nan=1.0) < _MOST_OF_IT))
    return found(WARNING, says, advice, steps=where, evidence=evidence, cost={"share of the gradient": 1 - mean})


@rule(needs=MODEL_FILES, explains=("mismatch",), at_once=True, notebook="03_position_ids_and_padding")
def padding_positions(log: Log) -> Finding:
    """Whether padding shifts learned positions: prompts differ in length, and the trainer passes no position ids.

    How: learned positions (`config.json`), a trainer that passes no position ids, prompts of several lengths in tokens
    (`tokenizer.json`).
    Wrong where: the trainer's own model code makes positions from the attention mask.
    """
    kind = log.facts.get("model_type")
    if kind is None:
        return unknown("Give --model FOLDER, or a checkpoint folder with config.json.")
    if kind not in LEARNED_POSITIONS:
        if log.facts.get("rotary"):
            return absent(f"{kind} has rotary positions, which padding does not change.")
        return unknown(f"Run workbench.padding_report on the model: it is not known how {kind} counts positions.")
    if log.facts.get("explicit_positions") or log.trainer.startswith(_PASS_POSITIONS):
        return absent("The trainer passes position ids.")
    varied = _prompts_differ_in_length(log)
    if varied is None:
        return unknown("Give completions (log_completions=True) and tokenizer.json: lengths in tokens matter.")
    if not varied:
        return absent("All prompts of a step are equally long, so nothing is padded.")
    says = f"{kind} has learned positions, prompts differ in length, and TRL's scorer passes no position ids: padded rows are "
    says += "scored at other positions than they were sampled at."
    advice = "Train with workbench's trainer, which passes position ids, or with prompts of one length."
    evidence = {"model type": kind, "share of steps with prompts of several lengths": varied}
    return found(PROBLEM, says, advice, evidence=evidence)


def _prompts_differ_in_length(log: Log) -> float | None:
    """Share of steps whose prompts differ in tokens; None where neither a tokenizer nor the texts tell."""
    if log.completions is None or not len(log.completions):
        return None
    prompts = log.completions.groupby("step")["prompt"].unique()
    if all(len(of_step) == 1 for of_step in prompts):
        return 0.0
    path = log.facts.get("tokenizer_file") if find_spec("tokenizers") else None
    if path is None:  # of characters: only texts that are much longer surely have more tokens
        return float(np.mean([max(map(len, texts)) >= 2 * min(map(len, texts)) for texts in prompts])) or None
    tokens = _tokens(path, {text for texts in prompts for text in texts})
    return float(np.mean([len({tokens[text] for text in texts}) > 1 for texts in prompts]))


def _tokens(path: str, texts: set[str]) -> dict[str, int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    return {text: len(tokenizer.encode(text).ids) for text in texts}
