"""What decides each claim of the articles: a function a claim, from what was measured to its row of the sheet.

A criterion that anything passes shows nothing, so each example below has a case that agrees and a made-up one that differs.
Claims are about the installed libraries; what was true when an article was written stands in `data/claims.json`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..curves.stats import Interval
from ..runs.run import claim_row

ROUNDING = 1e-4  # fp32, in nats or units of a score; above it two ways to compute one number differ
_NO_SERVER = "not run: server=False"
_NO_ARMS = "not run: comparisons=False"
_SAME = {True: "equal prompts share their completions", False: "equal prompts have completions of their own"}

# --- A0: PPO that never stops at EOS -------------------------------------------------------------------------------


def a0_1(stock_forwards: Sequence[int], limit: int) -> dict[str, str]:
    """Agrees where every update of stock PPO, as it comes, spends the whole limit.

    >>> a0_1([64, 64], limit=64)["verdict"], a0_1([64, 23], limit=64)["verdict"]
    ('agrees', 'differs')
    """
    spent = f"stock as it comes: {min(stock_forwards)} to {max(stock_forwards)} forward passes, limit {limit}"
    return claim_row("every response runs to the limit", spent, min(stock_forwards) == limit)


def a0_2(forwards: float, time: Interval, noise: Interval, loss: Interval) -> dict[str, str]:
    """In three parts: without a stop an update takes more forward passes, one reward takes longer, reward and loss get noisier.

    Args:
        forwards: forward passes an update, no stop over stop at EOS; at least 1.2 counts as waste.
        time: seconds to the same reward, no stop over stop at EOS, both scored up to EOS. Slower where the whole interval
            lies above 1, not slower where none of it does; else, and of one seed, undecided.
        noise: standard deviation of what text after EOS adds to a reward, over that of rewards up to EOS; noise where all of
            it lies above 0.1, none where all of it lies below.
        loss: value loss, whole text scored over stop at EOS; shown, not judged.

    >>> spread = lambda low, high: Interval((low + high) / 2, low, high, 0.95, 3, "t", "")
    >>> a0_2(3.3, spread(2.0, 6.0), spread(0.8, 1.4), spread(2, 9))["verdict"]
    'agrees'
    >>> a0_2(3.3, spread(0.5, 0.9), spread(0.0, 0.05), spread(0.5, 2))["verdict"]
    'in part: compute agrees; time differs; noise differs'
    >>> a0_2(1.0, spread(0.8, 6.0), spread(0.0, 0.5), spread(0.5, 2))["verdict"]
    'in part: compute differs; time undecided; noise undecided'
    """
    measured = (
        f"no stop / stop at EOS: {forwards:.1f} x forward passes, {time.in_brief('.2g')} x seconds to one reward, "
    )
    measured += f"{loss.in_brief('.2g')} x value loss; std of what text after EOS adds / std of rewards up to EOS: "
    measured += noise.in_brief(".2g")
    parts = {"compute": forwards > 1.2, "time": _above(time, 1.0), "noise": _above(noise, 0.1)}
    return claim_row("wastes compute, slows training, adds noise", measured, parts)


def _above(found: Interval, bound: float) -> bool | str:
    """Whether a value lies above a bound, "undecided" where its interval holds the bound or there is none."""
    return found.low > bound if found.low > bound or found.high < bound else "undecided"


def a0_3(forwards: Sequence[int], longest: Sequence[int], score_error: float, loss_tokens: bool) -> dict[str, str]:
    """Agrees where generation ends with the longest row, and rows that end early are scored and trained as if alone.

    Args:
        forwards, longest: per update, forward passes and tokens of the longest row.
        score_error: largest difference of a row's score in its batch and alone.
        loss_tokens: whether each row's loss covers its tokens up to the end and no other.

    >>> a0_3([23, 22], [23, 22], 1e-7, True)["verdict"], a0_3([23, 22], [23, 22], 0.3, True)["verdict"]
    ('agrees', 'in part: generation agrees; reward differs; loss agrees')
    """
    parts = {"generation": list(forwards) == list(longest), "reward": score_error < ROUNDING, "loss": loss_tokens}
    equal = sum(a == b for a, b in zip(forwards, longest, strict=True))
    measured = f"forward passes are those of the longest row in {equal} of {len(forwards)} updates, "
    measured += f"{min(forwards)} to {max(forwards)}; scores in batch and alone within {score_error:.0e}"
    return claim_row("EOS ends generation; reward and loss handle it", measured, parts)


def a0_4(ended_by: Mapping[str, int], cut: float) -> dict[str, str]:
    """Agrees where each of several configured stops ended rows, and the limit cut fewer than half of them.

    >>> a0_4({"string": 12, "id": 3, "EOS": 4}, cut=0.1)["verdict"], a0_4({"string": 12, "id": 0}, cut=0.1)["verdict"]
    ('agrees', 'differs')
    """
    measured = ", ".join(f"{name} {rows}" for name, rows in ended_by.items()) + f" rows; cut by the limit {cut:.0%}"
    return claim_row("several stops at once", measured, min(ended_by.values()) > 0 and cut < 0.5)


def a0_5(default: Sequence[int], legacy: Sequence[int], limit: int) -> dict[str, str]:
    """Agrees where the default stops before the limit and legacy mode never does.

    >>> a0_5([23, 22], [64, 64], 64)["verdict"], a0_5([64, 64], [64, 64], 64)["verdict"]
    ('agrees', 'differs')
    """
    spent = [f"{min(one)} to {max(one)}" for one in (default, legacy)]
    measured = f"default {spent[0]} forward passes an update, legacy mode {spent[1]}; see the table of modes"
    return claim_row("stopping is the default, legacy by name", measured, max(default) < limit and min(legacy) == limit)


def a0_6(saved: int | list[int] | None, eos: int, loss_tokens: bool, losses: ArrayLike) -> dict[str, str]:
    """Agrees where the saved policy keeps its EOS, masks cover the rows and no more, and every loss is finite.

    >>> a0_6(1, 1, True, [0.2, 0.1])["verdict"], a0_6(None, 1, True, [0.2, float("nan")])["verdict"]
    ('agrees', 'in part: EOS differs; masks agrees; loss differs')
    """
    finite = bool(np.isfinite(np.asarray(losses)).all())
    kept = eos in saved if isinstance(saved, list) else saved == eos
    parts = {"EOS": kept, "masks": loss_tokens, "loss": finite}
    measured = f"saved EOS {saved}, the tokenizer's {eos}; losses are {'' if finite else 'not '}finite"
    return claim_row("EOS set, masks and loss right", measured, parts)


def a0_7(with_stop: Mapping[str, int], after: Mapping[str, int], longest_token: int) -> dict[str, str]:
    """Agrees where one `StopSpec` ends rows of every trainer, with no more behind it than the rest of its token.

    >>> a0_7({"GRPO": 5, "PPO": 9}, {"GRPO": 0, "PPO": 2}, longest_token=12)["verdict"]
    'agrees'
    >>> a0_7({"GRPO": 5, "PPO": 9}, {"GRPO": 0, "PPO": 80}, longest_token=12)["verdict"]
    'differs'
    """
    measured = ", ".join(f"{name} {rows} rows, {after[name]} characters after it" for name, rows in with_stop.items())
    holds = min(with_stop.values()) > 0 and max(after.values()) < longest_token
    return claim_row("one stop control for all trainers", f"one StopSpec: {measured}", holds)


# --- A1: GRPO and custom stops -------------------------------------------------------------------------------------


def a1_1(rows: Mapping[str, int], after: Mapping[str, int]) -> dict[str, str]:
    """Agrees where stock GRPO with `stop_token_ids` goes on after the id on some back end; back end -> rows, tokens.

    >>> a1_1({"vLLM": 12}, {"vLLM": 0})["verdict"], a1_1({"vLLM": 12}, {"vLLM": 9})["verdict"]
    ('differs', 'agrees')
    >>> a1_1({"vLLM": 0}, {"vLLM": 0})["verdict"]
    'undecided: no completion holds the id'
    """
    measured = ", ".join(f"{at}: {n} rows hold it, at most {after[at]} tokens follow" for at, n in rows.items())
    holds = max(after.values()) > 0 if min(rows.values()) else "undecided: no completion holds the id"
    return claim_row("does not stop at stop_token_ids", measured, holds)


def a1_2(in_memory: str, saved: str) -> dict[str, str]:
    """Agrees where a token added in memory ends nothing on vLLM and, saved to the folder that vLLM reads, does.

    Args:
        in_memory, saved: what came of a generation that is to stop at the token, `stopped ...` or `did not stop ...`.

    >>> a1_2("did not stop, hit its 8-token limit", "stopped at 446 after 1 tokens")["verdict"]
    'agrees'
    >>> a1_2("stopped at 446 after 1 tokens", "stopped at 446 after 1 tokens")["verdict"]
    'differs'
    """
    holds = saved.startswith("stopped") and not in_memory.startswith("stopped")
    return claim_row("an added token is unknown to vLLM", f"in memory: {in_memory}; saved: {saved}", holds)


def a1_3(carries: Mapping[str, bool]) -> dict[str, str]:
    """Agrees where no request of stock TRL carries the ids; back end -> whether it does.

    >>> a1_3({"vLLM": True})["verdict"], a1_3({"vLLM": False})["verdict"]
    ('differs', 'agrees')
    """
    reached = ", ".join(name for name, there in carries.items() if there) or "none"
    return claim_row("TRL passes no stop_token_ids", f"requests that carry them: {reached}", not any(carries.values()))


def a1_4(attribute: bool, stopped: int) -> dict[str, str]:
    """Agrees where the article's attribute is there; `stopped` are the rows that today's way, `generation_kwargs`, stopped.

    >>> a1_4(False, 40)["verdict"], a1_4(True, 40)["verdict"]
    ('differs', 'agrees')
    """
    there = "is there" if attribute else "was removed"
    measured = f"trainer.sampling_params {there}; generation_kwargs={{'stop': ...}} stopped {stopped} rows"
    return claim_row("stop strings through trainer.sampling_params", measured, attribute)


def a1_5(carries: Mapping[str, bool], rows: Mapping[str, int], after: Mapping[str, int]) -> dict[str, str]:
    """Agrees where trainer, client and server all pass the ids on, and rows end there; back end -> what was seen.

    >>> both = {"vLLM": True, "vLLM server": True}
    >>> a1_5(both, {"vLLM": 12, "vLLM server": 9}, {"vLLM": 0, "vLLM server": 0})["verdict"]
    'agrees'
    >>> a1_5(both, {"vLLM": 12, "vLLM server": 9}, {"vLLM": 0, "vLLM server": 7})["verdict"]
    'differs'
    """
    if "vLLM server" not in carries:
        return claim_row("all forward stop_token_ids", "", _NO_SERVER)
    holds = all(carries.values()) and min(rows.values()) > 0 and max(after.values()) == 0
    measured = ", ".join(f"{at}: {n} rows hold the id, {after[at]} tokens follow" for at, n in rows.items())
    return claim_row("trainer, client and server forward them", measured, holds)


def a1_6(by_id: Mapping[str, str], kept: float, rewards: Mapping[str, float], ours: str, stock: str) -> dict[str, str]:
    """In parts: with one tokenizer on both sides a stop by id works and else not; the text keeps the stop; it can be learned.

    Args:
        by_id: `in memory` and `saved`, as in `a1_2`.
        kept: share of rows ended by the stop string whose text shows it.
        rewards: arm -> reward at the end.
        ours, stock: arms that mask truncated rows, scored at the real end and by the last token.

    >>> ends = {"in memory": "did not stop, hit its 8-token limit", "saved": "stopped at 446 after 1 tokens"}
    >>> a1_6(ends, 1.0, {"ours": 0.7, "stock": 0.3}, "ours", "stock")["verdict"]
    'agrees'
    >>> a1_6(ends, 0.8, {"ours": 0.7, "stock": 0.7}, "ours", "stock")["verdict"]
    'in part: one tokenizer agrees; kept in the text differs; scored whole differs'
    """
    one_tokenizer = a1_2(by_id["in memory"], by_id["saved"])["verdict"] == "agrees"
    parts = {
        "one tokenizer": one_tokenizer,
        "kept in the text": kept == 1,
        "scored whole": rewards[ours] > rewards[stock] + 0.15,
    }
    measured = f"stop kept in {kept:.0%} of the rows it ended; " + ", ".join(f"{k} {v:.2f}" for k, v in rewards.items())
    return claim_row("one tokenizer, the stop kept in the text", measured, parts)


# --- A2: position ids and padding ----------------------------------------------------------------------------------


def a2_1(llama: float, learned: float) -> dict[str, str]:
    """In parts, in nats of fp32: left pads without position ids change the outputs of Llama, and of learned positions.

    >>> a2_1(2e-6, 3.0)["verdict"], a2_1(0.05, 3.0)["verdict"]
    ('in part: Llama-like differs; learned positions agrees', 'agrees')
    """
    parts = {"Llama-like": llama > ROUNDING, "learned positions": learned > ROUNDING}
    return claim_row(
        "other positions, other outputs", f"Llama {llama:.1e} nats, learned positions {learned:.2g}, fp32", parts
    )


def a2_2(padded: float, control: float) -> dict[str, str]:
    """Agrees where, in bf16, left pads move a rotary model's log-probs by over 1e-4 nats, and twice as far as another batch.

    >>> a2_2(3e-2, 8e-4)["verdict"], a2_2(8e-4, 7e-4)["verdict"], a2_2(5e-5, 0.0)["verdict"]
    ('agrees', 'differs', 'differs')
    """
    measured = f"rotary, toy scale, bf16: {padded:.1e} nats; without padding, in another batch: {control:.1e}"
    return claim_row("Llama-7B: slight differences", measured, padded > max(2 * control, ROUNDING))


def a2_3(learned: Sequence[float], rotary: Sequence[float]) -> dict[str, str]:
    """In parts: position ids at least halve the largest difference; each pair is without and with them.

    >>> a2_3((3.0, 1e-6), (3e-2, 8e-4))["verdict"]
    'agrees'
    >>> a2_3((3.0, 1e-6), (1.2e-2, 1.0e-2))["verdict"]
    'in part: learned positions agrees; rotary, bf16 differs'
    """
    parts = {"learned positions": learned[1] < learned[0] / 2, "rotary, bf16": rotary[1] < rotary[0] / 2}
    measured = f"learned {learned[0]:.2g} to {learned[1]:.1e}; rotary in bf16 {rotary[0]:.1e} to {rotary[1]:.1e}"
    return claim_row("position ids shrink it markedly", measured, parts)


def a2_4(logprobs: Sequence[float], values: Sequence[float], gain: Sequence[float]) -> dict[str, str]:
    """In three parts: log-probs of one text agree, values of one text agree, training ends higher.

    Args:
        logprobs: largest difference of log-probs while training, without and with position ids, in nats.
        values: largest difference of a value behind other pads, without and with, over the spread of values.
        gain: reward with position ids less that without: estimate, low and high bound over seeds.

    >>> a2_4((6.2, 2e-6), (0.5, 1e-6), (0.05, -0.2, 0.4))["verdict"]
    'in part: log-probs agrees; values agrees; convergence differs'
    >>> a2_4((6.2, 5.0), (0.5, 0.5), (0.05, -0.2, 0.4))["verdict"]
    'differs'
    """
    parts = {"log-probs": logprobs[1] < ROUNDING < logprobs[0], "values": values[1] < ROUNDING < values[0]}
    parts["convergence"] = gain[1] > 0
    measured = f"log-probs {logprobs[0]:.2g} to {logprobs[1]:.0e}, values {values[0]:.2g} to {values[1]:.0e}, "
    measured += f"reward gain {gain[0]:.2g} ({gain[1]:.2g} to {gain[2]:.2g})"
    return claim_row("log-probs and values agree, faster convergence", measured, parts)


def a2_5(passes: Mapping[str, bool]) -> dict[str, str]:
    """In parts, a trainer each: agrees where its scoring passes no position ids.

    >>> a2_5({"GRPO": False, "PPO": True})["verdict"], a2_5({"GRPO": True, "PPO": True})["verdict"]
    ('in part: GRPO agrees; PPO differs', 'differs')
    """
    lacks = ", ".join(name for name, given in passes.items() if not given) or "none"
    return claim_row("TRL passes none", f"not passed by {lacks}", {name: not given for name, given in passes.items()})


def a2_6(without: float, with_ids: float) -> dict[str, str]:
    """Agrees where the monitor sees the fault without position ids, and sees it gone with them; nats, while training.

    >>> a2_6(6.2, 2e-6)["verdict"], a2_6(2e-6, 2e-6)["verdict"]
    ('agrees', 'differs')
    """
    measured = f"max difference while training: {without:.2g} without, {with_ids:.1e} with"
    return claim_row("monitor position consistency", measured, with_ids < ROUNDING < without)


# --- A3: duplicate prompts -----------------------------------------------------------------------------------------


def _batch(rows: Sequence[Mapping], back_end: str, rule: str, pair: str) -> Mapping | None:
    """One row of `removed_rule_table`, or None where its back end was left out."""
    wanted = {"back end": back_end, "rule": rule, "two prompts": pair}
    return next((row for row in rows if wanted.items() <= row.items()), None)


def a3_1(rows: Sequence[Mapping]) -> dict[str, str]:
    """Agrees where today's TRL cannot join equal prompts on vLLM; the removed rule, put back, shows what was reported.

    Args:
        rows: of `removed_rule_table`.

    >>> def case(rule, error): return {"back end": "vLLM server", "rule": rule, "two prompts": "equal", "error": error}
    >>> a3_1([case("removed", "Sizes of tensors must match"), case("every G-th", "")])["verdict"]
    'differs'
    >>> a3_1([case("removed", "Sizes of tensors must match"), case("every G-th", "Sizes must match")])["verdict"]
    'agrees'
    """
    old, new = (_batch(rows, "vLLM server", rule, "equal") for rule in ("removed", "every G-th"))
    if old is None or new is None:
        return claim_row("tensor shapes do not match", "", _NO_SERVER)
    measured = f"rule put back: {old['error'] or 'no error'}; installed: {new['error'] or 'no error'}"
    return claim_row("tensor shapes do not match", measured, bool(new["error"]))


def a3_2(rows: Sequence[Mapping]) -> dict[str, str]:
    """Agrees where today's TRL gets fewer completions than prompts; rows as in `a3_1`.

    >>> def case(rule, completions):
    ...     return {"back end": "vLLM server", "rule": rule, "two prompts": "equal", "prompts": 8, "completions": completions}
    >>> a3_2([case("removed", 4), case("every G-th", 8)])["verdict"]
    'differs'
    >>> a3_2([case("removed", 4), case("every G-th", 4)])["verdict"]
    'agrees'
    """
    old, new = (_batch(rows, "vLLM server", rule, "equal") for rule in ("removed", "every G-th"))
    if old is None or new is None:
        return claim_row("fewer completions than prompts", "", _NO_SERVER)
    measured = (
        f"for {new['prompts']} prompts {new['completions']} completions; {old['completions']} with the rule put back"
    )
    return claim_row("fewer completions than prompts", measured, new["completions"] < new["prompts"])


def a3_3(rows: Sequence[Mapping]) -> dict[str, str]:
    """Agrees where the removed rule, put back, breaks equal prompts on vLLM and leaves transformers whole; rows as in `a3_1`.

    >>> def case(at, error): return {"back end": at, "rule": "removed", "two prompts": "equal", "error": error}
    >>> a3_3([case("transformers", ""), case("vLLM server", "Sizes of tensors must match")])["verdict"]
    'agrees'
    >>> a3_3([case("transformers", ""), case("vLLM server", "")])["verdict"]
    'differs'
    """
    plain, server = (_batch(rows, at, "removed", "equal") for at in ("transformers", "vLLM server"))
    if plain is None or server is None:
        return claim_row("only with vLLM", "", _NO_SERVER)
    measured = f"rule put back: vLLM {server['error'] or 'no error'}; transformers {plain['error'] or 'no error'}"
    return claim_row("only with vLLM", measured, bool(server["error"]) and not plain["error"])


def a3_4(rows: Sequence[Mapping], foreign: int) -> dict[str, str]:
    """Agrees where every G-th prompt gives each prompt its completions, equal or not; rows as in `a3_1`.

    Args:
        rows: of `removed_rule_table`.
        foreign: rows trained under another prompt than they were sampled for.

    >>> def case(pair, completions): return {"rule": "every G-th", "two prompts": pair, "prompts": 8,
    ...                                      "completions": completions, "error": ""}
    >>> a3_4([case("equal", 8), case("different", 8)], foreign=0)["verdict"]
    'agrees'
    >>> a3_4([case("equal", 4), case("different", 8)], foreign=0)["verdict"]
    'differs'
    """
    fixed = [row for row in rows if row["rule"] == "every G-th"]
    whole = all(row["completions"] == row["prompts"] and not row["error"] for row in fixed)
    each = "each has" if whole else "not each has"
    measured = f"{len(fixed)} batches, {each} all its completions; rows trained under another prompt: {foreign}"
    return claim_row("every G-th prompt fixes it", measured, whole and foreign == 0)


def a3_5(planted: int, found: int, found_in_none: int) -> dict[str, str]:
    """Agrees where the report of a data set finds the repeats that were planted, and none where there are none.

    >>> a3_5(planted=30, found=30, found_in_none=0)["verdict"], a3_5(planted=30, found=12, found_in_none=0)["verdict"]
    ('agrees', 'differs')
    """
    measured = f"of {planted} planted repeats {found} found; {found_in_none} in the same data without"
    return claim_row("look for duplicates before training", measured, found == planted > 0 == found_in_none)


def a3_6(foreign: Mapping[str, int], shared: Mapping[str, bool]) -> dict[str, str]:
    """Agrees where equal prompts are right on each vLLM back end: none under another prompt, and each its own completions.

    >>> a3_6({"vLLM": 0, "vLLM server": 0}, {"vLLM": False, "vLLM server": False})["verdict"]
    'agrees'
    >>> a3_6({"vLLM": 0, "vLLM server": 4}, {"vLLM": False, "vLLM server": False})["verdict"]
    'differs'
    """
    measured = ", ".join(f"{at}: {n} rows under another prompt, {_SAME[shared[at]]}" for at, n in foreign.items())
    return claim_row("the vLLM integration copes", measured, not any(foreign.values()) and not any(shared.values()))


def a3_7(
    repeated: int,
    rows: int,
    with_replacement: float,
    batch: int,
    errors: int,
    *,
    repeats: Sequence[float],
    sharing: Sequence[float],
    requests: Sequence[float],
) -> dict[str, str]:
    """In parts: batches with equal prompts are common (over 5%) here, and drawn with replacement; none has to be removed.

    That is so where TRL refuses no such batch, training with repeats ends as high as without, sharing the generation of
    equal prompts ends as high as not, and it saves requests. As high: less than 0.1 below, by the whole interval.

    Args:
        repeated, rows: of the data set.
        with_replacement: share of batches that hold equal prompts where each is drawn from all rows.
        batch: prompts in such a batch.
        errors: batches of equal prompts that today's TRL cannot train on.
        repeats: reward at the end where half of the prompts repeat, less that where none does: estimate, low and high bound
            over seeds, NaN where there is one seed.
        sharing: the same of shared generation, less that of the same trainer without.
        requests: a step: not shared; shared where no prompt repeats; shared where half of them do.

    >>> trained = {"repeats": (0.0, -0.04, 0.04), "sharing": (0.01, -0.01, 0.03), "requests": (64, 16, 13.9)}
    >>> a3_7(300, 5897, 0.75, 128, errors=0, **trained)["verdict"]
    'agrees'
    >>> a3_7(0, 5897, 0.75, 128, errors=0, **trained)["verdict"].split("; ")[:2]
    ['in part: in this data differs', 'drawn with replacement agrees']
    >>> worse = {"repeats": (-0.3, -0.4, -0.2), "sharing": (-0.3, -0.4, -0.2), "requests": (64, 16, 16)}
    >>> a3_7(0, 5897, 0.01, 8, errors=1, **worse)["verdict"]
    'differs'
    >>> wide = trained | {"repeats": (-0.1, -0.3, 0.1)}
    >>> a3_7(300, 5897, 0.75, 128, errors=0, **wide)["verdict"].split("; ")[3]
    'trains as well with them undecided: the interval reaches from -0.3 to 0.1'
    """
    parts = {"in this data": repeated / rows > 0.05, "drawn with replacement": with_replacement > 0.05}
    parts |= {"no need to remove them": errors == 0, "trains as well with them": _as_high(repeats)}
    parts |= {
        "sharing costs no reward": _as_high(sharing),
        "sharing saves requests": requests[0] > requests[1] > requests[2],
    }
    measured = (
        f"{repeated} of {rows} rows repeat; drawn with replacement {with_replacement:.0%} of batches of {batch}; "
    )
    for name, (middle, low, high) in {"trained with repeats": repeats, "generation shared": sharing}.items():
        measured += f"{name}: reward {middle:+.2g} ({low:.2g} to {high:.2g}); "
    measured += "requests a step {:g}, shared {:.3g}, shared with repeats {:.3g}".format(*requests)
    return claim_row("duplicates are common, removing them an option", measured, parts)


def _as_high(gain: Sequence[float], loss: float = 0.1) -> bool | str:
    """Whether a gain's interval (estimate, low, high) rules out a loss of so much; a text where it does not tell."""
    _, low, high = gain
    if np.isnan(low):
        return "undecided: one seed has no interval"
    return low > -loss or (high >= 0 and f"undecided: the interval reaches from {low:.2g} to {high:.2g}")


# --- A4: the documented example ------------------------------------------------------------------------------------


def a4_2(rewards: ArrayLike) -> dict[str, str]:
    """In parts: a jumpy curve, an early peak, a worse end.

    The scatter of single steps comes from second differences, which no smooth curve has. Jumpy: over 1% of the way from the
    lowest to the highest running mean of 10. Early: that mean is highest in the first half. Worse: the last of those
    means lies below the highest by over three standard errors.

    Args:
        rewards: (N,), one a step; below 40 it is undecided.

    >>> rise = 21 * (1 - np.exp(-np.arange(80) / 20)) - 25
    >>> a4_2(rise)["verdict"]
    'differs'
    >>> noise = np.random.default_rng(0).normal(0, 1, 80)
    >>> a4_2(np.where(np.arange(80) < 30, rise, rise[30] - 5) + noise)["verdict"]
    'agrees'
    """
    y = np.asarray(rewards, float)
    if len(y) < 40:
        return claim_row("jumpy, early peak, worse end", "", f"undecided: {len(y)} steps, at least 40 are needed")
    smooth = np.convolve(y, np.ones(10) / 10, "valid")
    scatter = float(np.diff(y, 2).std() / np.sqrt(6))
    top = int(smooth.argmax())
    drop = float(smooth[top] - smooth[-1])
    share = scatter / max(float(np.ptp(smooth)), 1e-300)
    parts = {
        "jumpy": share > 0.01,
        "early peak": top + 9 < len(y) / 2,
        "worse end": drop > 3 * scatter * np.sqrt(2 / 10),
    }
    measured = f"steps scatter by {share:.1%} of the rise, peak at step {top + 10} of {len(y)}, end {drop:.2g} below it"
    return claim_row("jumpy, early peak, worse end", measured, parts)


def a4_3(highest: float, lowest: float, figure: Sequence[float]) -> dict[str, str]:
    """Agrees where the documented figure lies in 0..1 and the measured rewards do not rise above 0, nor all lie in the figure.

    >>> a4_3(-2.6, -33.4, (0, 1))["verdict"], a4_3(0.7, 0.1, (0, 1))["verdict"]
    ('agrees', 'differs')
    """
    holds = tuple(figure) == (0, 1) and highest <= 0 and lowest < 0
    return claim_row(
        "reward at most 0, figure in 0..1",
        f"{lowest:.3g} to {highest:.3g}, figure {figure[0]:g} to {figure[1]:g}",
        holds,
    )


def a4_4(figure: Sequence[float], example: Sequence[float | None], origin: str) -> dict[str, str]:
    """Agrees where the documented figure shows values that the example's reward cannot have.

    Args:
        figure: lowest and highest of its axis.
        example: bounds of the reward function; None where there is none.
        origin: where the figure came from, as far as known.

    >>> a4_4((0, 1), (None, 0.0), "a reward model")["verdict"], a4_4((-300, 0), (None, 0.0), "the example")["verdict"]
    ('agrees', 'differs')
    """
    low, high = example
    outside = (high is not None and figure[1] > high) or (low is not None and figure[0] < low)
    return claim_row("the figure is not of the example", f"figure {figure[0]:g} to {figure[1]:g}; {origin}", outside)


def a4_5(ends: Mapping[str, float]) -> dict[str, str]:
    """Agrees where the documented settings end at least 3 characters from the tuned ones on the same task.

    >>> a4_5({"tuned": -3.9, "documented settings": -22.7})["verdict"]
    'agrees'
    >>> a4_5({"tuned": -3.9, "documented settings": -4.1})["verdict"]
    'differs'
    """
    if "documented settings" not in ends:
        return claim_row("other settings, other curve", "", _NO_ARMS)
    measured = ", ".join(f"{name} {end:.3g}" for name, end in ends.items())
    return claim_row("other settings, other curve", measured, abs(ends["tuned"] - ends["documented settings"]) > 3)


def a4_6(seconds: Mapping[str, float]) -> dict[str, str]:
    """Agrees where a step with vLLM takes over a tenth less time; less than a tenth either way tells nothing.

    Args:
        seconds: arm -> median seconds of a step.

    >>> a4_6({"tuned, vLLM": 0.1, "tuned": 0.2})["verdict"], a4_6({"tuned, vLLM": 0.2, "tuned": 0.1})["verdict"]
    ('agrees', 'differs')
    >>> a4_6({"tuned, vLLM": 0.16, "tuned": 0.17})["verdict"]
    'undecided: less than 10% apart'
    """
    if "tuned, vLLM" not in seconds:
        return claim_row("vLLM speeds training up", "", f"{_NO_ARMS}, or vLLM is not installed")
    vllm, transformers = seconds["tuned, vLLM"], seconds["tuned"]
    close = 0.9 <= vllm / transformers <= 1 / 0.9
    measured = f"{vllm:.2f} s a step, transformers {transformers:.2f} s"
    return claim_row(
        "vLLM speeds training up", measured, "undecided: less than 10% apart" if close else vllm < transformers
    )


def a4_7(ends: Mapping[str, float]) -> dict[str, str]:
    """Agrees where the tuned rate ends above -6 and the documented one, on the same task, below -20.

    >>> a4_7({"tuned": -3.9, "documented rate": -28.1})["verdict"]
    'agrees'
    >>> a4_7({"tuned": -3.9, "documented rate": -3.9})["verdict"]
    'differs'
    """
    if "documented rate" not in ends:
        return claim_row("tuned settings reproduce a rise", "", _NO_ARMS)
    measured = f"tuned {ends['tuned']:.3g}, documented rate {ends['documented rate']:.3g}"
    return claim_row("tuned settings reproduce a rise", measured, ends["tuned"] > -6 and ends["documented rate"] < -20)
