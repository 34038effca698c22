"""Rules about where completions end: which were masked, cut by the limit, or ended by nothing at all."""

import numpy as np

from ..logs.log import Log
from .finding import CANNOT_TELL, FOUND, NOT_FOUND, PROBLEM, WARNING, Finding, absent, found, unknown
from .rule import MODEL_FILES, rule
from .rules_clipping import cut_rows, false_clipping, teach_the_stop
from .trends import LEAST, carried, ends_at_the_top, quarters, reward_of, rises

_AGAINST = -0.75  # correlation
_SHORT = 8  # tokens; answers of a letter or a number may well have one length
_CUT_PROMPTS = 0.1  # share of prompts
_ALL = 0.999  # of the rows: a wrong end can be sampled by chance


@rule(explains=("zero-gradient (masked)", "collapse", "no-learning"), at_once=True, notebook="02_grpo_custom_stops")
def masked_stops(log: Log) -> Finding:
    """Whether completions that stopped were left out of the loss as truncated: some steps then have no token in the loss.

    The rule uses the logged clipped ratio even if it is false, because TRL's mask follows it.

    Wrong where: another mask, such as a tool's, takes all tokens of a step out of the loss.
    """
    false, logged = false_clipping(log), log.logged("clipped_ratio")
    if false.verdict != FOUND or logged is None:
        if false.verdict == NOT_FOUND:
            return absent("No completion that stopped counts as truncated.")
        return unknown(false.advice, "It is not known whether completions that stopped count as truncated.")
    known, norm = log.facts.get("mask_truncated_completions"), log.logged("grad_norm")
    dead, alive = steps_full_of_clipped_rows(log)
    if known is False or alive.any():
        return absent("Completions that count as truncated are in the loss: steps with only such ones have a gradient.")
    if not dead.any() and not known:
        says = "No step shows whether truncated completions are left out of the loss."
        return unknown("Say whether mask_truncated_completions was True in the config of the run.", says)
    share = float(dead.sum() / len(logged))
    evidence = {"steps all masked": int(dead.sum()), "mean share of rows masked": float(np.nanmean(logged))}
    if norm is not None:
        evidence["steps with a gradient of 0"] = int((norm == 0).sum())
    all_of_them = f", in {share:.0%} of the steps all of them, so that no token is in the loss and the gradient is 0"
    return found(
        PROBLEM,
        "Completions that stopped properly are left out of the loss, because they count as truncated: "
        f"{np.nanmean(logged):.0%} of all completions{all_of_them * bool(dead.any())}.",
        f"Set mask_truncated_completions=False, or l{teach_the_stop(log)[1:]}",
        steps=log.at(dead),
        evidence=evidence,
        cost={"share of completions left out": float(np.nanmean(logged)), "share of steps without gradient": share},
        contradicts=("entropy", "clip_region"),  # means over no token
    )


def steps_full_of_clipped_rows(log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Steps whose rows all count as clipped: those without a token in the loss, and those with one.

    Two things tell: the gradient, where rewards differ within groups, and the entropy, a mean over the tokens in the loss.
    """
    logged, norm, equal = log.logged("clipped_ratio"), log.logged("grad_norm"), log.metric("zero_std_share")
    none = np.zeros(len(log.steps), bool)
    if logged is None or norm is None:
        return none, none
    logged, equal = carried(logged), None if equal is None else carried(equal)
    full, entropy = logged >= 1 - 1e-6, log.logged("entropy")
    if entropy is not None and (longest := log.logged("max_length")) is not None:
        # TRL takes the mean of a single column over all rows, masked or not.
        entropy = np.where(longest <= 1, np.nan, entropy)
    dead, alive = full & (norm == 0), full & (norm > 0)
    differ = none if equal is None else equal < 1 - 1e-6
    if entropy is None:
        return dead & differ, alive
    return dead & (differ | (entropy == 0)) & ~(entropy > 0), alive | (full & (entropy > 0))


_FALSE = "Give --limit N and completions: the logged clipped ratio is false."


def truncated_share(log: Log) -> np.ndarray | None:
    """Share of truncated rows at each step, (N,): from recorded ends, else as logged where nothing contradicts it."""
    true = cut_rows(log)
    return log.metric("clipped_ratio") if true is None else true


@rule(explains=("zero-gradient (equal-rewards)", "wasted-groups", "no-learning"), notebook="05_grpo_docs_example")
def true_clipping(log: Log) -> Finding:
    """Whether the length limit really truncates many completions: a problem if it is half of them and the reward does not rise.

    How: recorded finish reasons, or a clipped ratio that nothing contradicts, in the last quarter. A problem only if
    half are truncated and the reward neither rises nor is at its highest. Where it is no quarter, verl's
    `prompt_length/clip_ratio`: a warning if a tenth of the prompts has the largest length there may be.
    Wrong where: the truncated completions had already given their answer; prompts have that length without a cut.
    """
    true = truncated_share(log)
    if true is None:
        lacks = _FALSE if log.disputed else "Log completions/clipped_ratio, or give completions."
        return _cut_prompts(log) or unknown(lacks)
    late = quarters(true)[1]
    if late < 0.25 and (prompts := _cut_prompts(log)):
        return prompts
    if late < 0.25:
        return absent(f"{late:.0%} of the completions are truncated at the end of the run.", late=late)
    if false_clipping(log).verdict == CANNOT_TELL:
        return unknown("Give --limit N or --stop STRING: the log does not show whether the clipped ratio is true.")
    learns = rises(log.metric("reward")) or ends_at_the_top(log)
    serious = late >= 0.5 and not learns and (~np.isnan(true)).sum() >= LEAST
    says = f"{late:.0%} of the completions are cut by the length limit in the last quarter of the run"
    says += ", while the reward rises or is at its highest." if learns else "."
    advice = "Read some that were cut. If they were not finished, raise max_completion_length or reward shorter ones; if they "
    advice += "run on after their end, repair the stop. Masking them leaves less to learn from."
    advice = _of_plain_prompts(log) or advice
    where, share = log.at(true >= 0.25), float(np.nanmean(true))
    evidence = {"share cut, last quarter": late, "share cut, all steps": share}
    about = {"evidence": evidence, "cost": {"share of completions truncated": share}}
    return found(PROBLEM if serious else WARNING, says, advice, steps=where, **about)


def _cut_prompts(log: Log) -> Finding | None:
    """Where many of verl's prompts fill the width of the batch, which is the limit unless it varies, or all have one length."""
    full, longest, shortest = (log.logged(name) for name in ("prompt_clipped", "prompt_max", "prompt_min"))
    if full is None or log.trainer != "verl" or (share := float(np.nanmean(full))) < _CUT_PROMPTS:
        return None
    tokens = ""
    if longest is not None and len(reached := longest[(full > 0) & ~np.isnan(longest)]):
        of_one_length = shortest is not None and np.nanmin(shortest) == reached.max()
        if of_one_length or np.ptp(reached):
            return None
        tokens = f", {reached.max():.0f} tokens"
    says = f"{share:.0%} of the prompts are as long as prompts may be{tokens} (prompt_length/clip_ratio): they are cut there, "
    says += "or just reach it. What is cut, such as the question or its end, the model never sees."
    advice = "Compare the prompts of the data with data.max_prompt_length: if some are longer, raise it, or leave them "
    advice += "out (data.filter_overlong_prompts=True). Only data.truncation='error' makes verl stop at one."
    where, cost = log.at(np.nan_to_num(full) >= _CUT_PROMPTS), {"share of prompts": share}
    return found(WARNING, says, advice, cause="prompts", steps=where, evidence={"share of prompts": share}, cost=cost)


@rule
def reward_is_ending(log: Log) -> Finding:
    """Whether the reward measures which completions end before the limit: it falls whenever more of them are truncated.

    How: over at least 12 steps, the changes of the reward and of the truncated share from step to step correlate at -0.75
    or below, and on average at least 10% of the completions are truncated.
    Wrong where: a penalty for truncated completions is a large part of the reward on purpose.
    """
    cut, reward = truncated_share(log), reward_of(log)
    if cut is None or reward is None:
        lacks = "Log the reward and completions/clipped_ratio, or give completions."
        return unknown(_FALSE if cut is None and log.disputed else lacks)
    known = ~np.isnan(cut) & ~np.isnan(reward)
    cut, reward = cut[known], reward[known]
    steps, share = len(cut), float(cut.mean()) if len(cut) else 0.0
    if share < 0.1:
        return absent(f"{share:.0%} of the completions are truncated.", share=share)
    if steps < 12:
        return unknown(f"Log both for at least 12 steps; this log has {steps}.")
    if not np.ptp(cut) or not np.ptp(reward):
        return absent("The reward or the truncated share is the same in all steps.", share=share)
    r = float(np.corrcoef(np.diff(reward), np.diff(cut))[0, 1])
    alike, evidence = int((np.abs(reward + cut - 1) < 0.005).sum()), {"correlation of changes": r, "truncated": share}
    if r > _AGAINST:
        return absent(f"Changes of the reward and of the truncated share correlate at {r:.2f}.", **evidence)
    says = "The reward measures which completions end within the limit: its changes and those of the truncated share "
    says += f"correlate at {r:.2f}, with {share:.0%} truncated."
    if alike >= steps / 2:
        says += f" In {alike} of {steps} steps it equals the share of completions that ended: nearly each of these was right."
    advice = "Raise max_completion_length before you read the reward, or a score at the same limit, as skill. "
    return found(WARNING, says, f"{advice}Report the truncated share with both.", evidence=evidence)


@rule(explains=("true-clipping",))
def never_stops(log: Log) -> Finding:
    """Whether completions never stop before the limit: they hold more than one EOS token, or all of them are truncated.

    How: EOS tokens per completion (PPO, where padding is another token), or a truncated share of 1. If all count as
    truncated and the log does not show whether that is true, it is a warning, since every possible cause is a fault. Where
    no share is logged, so is one mean length of more than 8 tokens in all steps.
    Wrong where: completions are meant to fill the limit, or all have one length by the task.
    """
    eos, episodes = log.logged("eos_tokens"), log.logged("episodes")
    if eos is not None and episodes is not None and np.nanmax(episodes) > 0:
        rows = np.diff(episodes, prepend=0.0)
        rows = np.where(rows > 0, rows, np.nan)
        each = eos / rows
        mean, evidence = np.nanmean(each), {"EOS tokens per completion": float(np.nanmean(each))}
        if (each > 1.01).sum() * 2 >= len(each):
            if log.facts.get("pad_token_id") in (None, *log.facts.get("eos_token_ids", ())):
                advice = "Give --model FOLDER or a checkpoint folder: if the model pads with EOS, as without a padding "
                advice += "token, these tokens are padding and the policy did not sample them."
                return unknown(advice, f"Completions hold {mean:.1f} EOS tokens each.")
            says = f"Completions hold {mean:.1f} EOS tokens each: the sampler does not stop at EOS, and the tokens after it "
            says += "are computed and scored for nothing. A penalty for a missing EOS never applies."
            return _runs_on(log, each > 1.01, says, evidence)
        if len(each) > 1 and np.nanmax(each) < 0.01:
            says = "No completion ends with EOS: the policy has not learned it, or it ends with another token."
            return _runs_on(log, each < 0.01, says, evidence)
        return absent("At most one EOS a completion.")
    true = truncated_share(log)
    if true is None:
        lacks = "Log completions/clipped_ratio or val/num_eos_tokens, or give completions."
        return _all_of_one_length(log) or unknown(_FALSE if log.disputed else lacks)
    late, open_ = quarters(true)[1], false_clipping(log).verdict == CANNOT_TELL
    if np.nanmean(true) < _ALL and not (open_ and late >= 0.95):
        return absent(f"{1 - np.nanmean(true):.1%} of the completions stop.")
    if open_:  # whichever it is, it is wrong
        says = f"{late:.0%} of the completions count as truncated in the last quarter of the run: the limit is too small, or "
        says += "nothing stops them, or they stop at a token or text that the trainer does not know as a stop."
        advice = "Read one completion, or give --limit N or --stop STRING to decide. Until then, mask no completions."
        evidence = {"share cut, last quarter": late, "share cut, all steps": float(np.nanmean(true))}
        where, cost = log.at(true >= 0.95), {"share of completions": late}
        return found(WARNING, says, advice, cause="all-cut", steps=where, evidence=evidence, cost=cost)
    says = "No completion stops before the length limit, from the first step on."
    return _runs_on(log, true >= _ALL, says, {"share cut": 1.0})


def _all_of_one_length(log: Log) -> Finding | None:
    """Where the mean length is one whole number throughout, and no smaller than the limit: all completions are cut there."""
    length, limit = log.metric("mean_length"), log.facts.get("max_completion_length")
    length = np.zeros(0) if length is None else length[~np.isnan(length)]
    if len(length) < LEAST or np.ptp(length) or length[0] <= _SHORT or length[0] % 1 or length[0] < (limit or 0):
        return None
    says = f"The mean length is exactly {length[0]:.0f} tokens in each of {len(length)} steps: the limit seems to cut every "
    says += "completion there."
    advice = "Read one completion; raise max_completion_length, or in notebooks that compute it, max_seq_length."
    return found(WARNING, says, advice, cause="all-cut", evidence={"mean length": float(length[0])})


def _of_plain_prompts(log: Log) -> str:
    """The advice where a record says that prompts lack the model's chat template; else an empty string."""
    says = 'Write prompts as messages, {"prompt": [{"role": "user", "content": ...}]}. They are plain strings now: TRL '
    says += "applies no chat template to them, but the model stops where its template ends a turn. Reward functions then get "
    says += "lists of messages."
    return says if log.facts.get("plain_prompts") else ""


def _runs_on(log: Log, where: np.ndarray, says: str, evidence: dict) -> Finding:
    advice = (
        "Let the sampler stop: in TRL's PPOConfig stop_token='eos', in GRPO and RLOO an eos_token_id in the model's "
    )
    advice += "generation config (TRL 1.14.2 or newer). If completions are meant to be longer, raise the limit."
    advice = _of_plain_prompts(log) or advice
    cost, notebook = {"share of steps": where.mean()}, "01_ppo_eos_stop"
    return found(PROBLEM, says, advice, steps=log.at(where), evidence=evidence, cost=cost, notebook=notebook)


@rule(needs=MODEL_FILES, notebook="02_grpo_custom_stops")
def added_token(log: Log) -> Finding:
    """Whether a stop id is missing from the saved tokenizer: an engine that loads that tokenizer cannot know the stop.

    How: ids of `generation_config.json` against those of `tokenizer.json`.
    Wrong where: the engine loads its tokenizer from elsewhere.
    """
    ids = log.facts.get("tokenizer_ids")
    stops = [*log.facts.get("eos_token_ids", ()), *log.facts.get("stop_token_ids", ())]
    if not ids or not stops:
        return unknown("Give a checkpoint folder with tokenizer.json and generation_config.json.")
    missing = sorted(set(stops) - set(ids))
    if not missing:
        return absent("The saved tokenizer knows every stop id.", stops=stops)
    says = f"The saved tokenizer does not know the stop id {missing[0]}: an engine that loads it cannot decode it."
    advice = "Save the tokenizer with the added token and the resized model to one folder, and load both from there."
    return found(PROBLEM, says, advice, evidence={"stop ids": stops, "unknown to the tokenizer": missing})
