"""Why a stage differs: each suspect is changed alone, and the one without which the difference goes is the cause.

The trainer's own scoring is run again on the micro-batches of the step: with position ids, row by row, without padding, without
dropout, without autocast, in float32. The numbers of a row alone are changed too: another temperature, a shift by a token, a
mean over the length, rounding. A suspect is named only if the change takes the difference within the rounding of the dtype.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers.generation import logits_process

from ..consistency.logits import without_autocast
from ..consistency.padding import evaluating, logits_of, model_inputs
from ..consistency.positions import takes_position_ids, with_position_ids
from ..replay.stages import Tolerance, sampled_tokens
from ..replay.step import SampledRow, Step
from ..training.processes import nothing_cast
from ..training.record_step import dropouts_of, restored
from ..training.step_record import MicroBatch, StepRecord

# What a rerun of the trainer's scoring changes, and what is then said.
_SENTENCES = {
    "again": "scored once more they agree: they change from call to call, or the loss passes other inputs",
    "left out": "the loss leaves out {tokens} tokens that its mask has: with this mask they agree",
    "positions": "padding moves them: with position ids that count no pads they agree",
    "neighbours": "rows of a batch move one another: row by row, with their padding, they agree",
    "padding": "padding moves them: row by row, without padding, they agree",
    "dropout": "the model has dropout, which is on while it trains ({dropouts}): without it they agree",
    "training": "the model computes otherwise while it trains{noise}: in evaluation they agree",
    "autocast": "autocast rounds them: without it they agree",
    "precision": "{dtype} rounds them: in float32 they agree",
}
_TEMPERATURES = [round(0.1 * n, 1) for n in range(1, 21)]
_NOTHING = 0.1  # of what is rounding: changes that leave less explain a difference equally well
_TOLD_APART = 3.0  # times the smallest difference that a change leaves: beyond it a change explains less
_GREEDY = 0.99  # share of tokens that are the likeliest at their place, from which on a sampler is greedy
_FAR = 5.0  # standard errors, beyond which tokens were not sampled so


@dataclass(frozen=True)
class RowAlone:
    """A completion in the loss: token ids, and log-probs (T,) of the trainer and of the row alone."""

    prompt_ids: list[int]
    ids: list[int]
    used: np.ndarray
    alone: np.ndarray


def cause_of_logprobs(
    trainer: Any,
    policy: Any,
    record: StepRecord,
    rows: Sequence[RowAlone],
    limits: Tolerance,
    temperature: float,
    dtype: str,
) -> str:
    """A sentence on why log-probs are not those of rows alone; without a cause it lists what was tested.

    Args:
        rows: those of all micro-batches that have tokens, in their order.
        limits: within which a difference is rounding.
        temperature: that the log-probs should have.
        dtype: the coarsest that the forward pass computes in.
    """
    used, alone = [row.used for row in rows], [row.alone for row in rows]
    tested: list[str] = []
    sentences: list[tuple[float, str]] = []  # the difference that is left, and what took the rest away
    for name, sentence, numbers in _of_other_numbers(policy, rows, temperature):
        tested.append(name)
        sentences.append((_gap(numbers, used, limits), sentence))
    rerun = _Rerun(trainer, policy, record, rows, temperature)
    for change in rerun.changes:
        if (again := rerun.scored({change})) is not None:
            tested.append(change)
            left_out = _left_out(rows, limits)
            dropouts, alpha = ", ".join(dropouts_of(policy)), trainer.args.neftune_noise_alpha
            noise = f" (neftune_noise_alpha={alpha:g})" if alpha else ""
            words = {"dropouts": dropouts, "dtype": dtype, "tokens": left_out, "noise": noise}
            name = "left out" if change == "again" and left_out else change
            sentence = _SENTENCES["training" if name == "dropout" and not dropouts else name].format(**words)
            sentences.append((_gap(again, rerun.target({change}, alone), limits), sentence))
    least = min((left for left, _ in sentences), default=np.inf)
    if least <= min(1.0, _gap(used, alone, limits) / 2):
        return next(said for left, said in sentences if left <= max(_TOLD_APART * least, _NOTHING))
    if together := rerun.needed_together(alone, limits):
        dropouts = f" ({', '.join(dropouts_of(policy))})" if "dropout" in together else ""
        return f"{' and '.join(together)} together{dropouts}: without these they agree"
    names = [name for name in dict.fromkeys(tested) if name != "again"]
    said = f"cause not found; not: {', '.join(names)}"
    again = rerun.scored(set())
    if again is not None and _gap(again, used, limits) > 1:
        said += "; scored once more they are others"
    return said


def _left_out(rows: Sequence[RowAlone], limits: Tolerance) -> int:
    """The number of tokens with log-prob 0, which TRL gives those outside of a mask; 0 where others differ, too."""
    used, alone = (np.concatenate([getattr(row, name) for row in rows]) for name in ("used", "alone"))
    differs = np.abs(used - alone) > limits.largest
    return int(differs.sum()) if (used[differs] == 0).all() else 0


def _gap(numbers: Sequence[np.ndarray], target: Sequence[np.ndarray], limits: Tolerance) -> float:
    """A difference as a multiple of what is rounding, over the tokens for which there are numbers; infinite without any."""
    differences = np.abs(np.concatenate(list(numbers)) - np.concatenate(list(target)))
    differences = differences[~np.isnan(differences)]
    if not len(differences):
        return np.inf
    return max(float(differences.mean()) / limits.mean, float(differences.max()) / limits.largest)


def _of_other_numbers(
    policy: Any, rows: Sequence[RowAlone], temperature: float
) -> Iterator[tuple[str, str, list[np.ndarray]]]:
    """Changes of the numbers of rows alone: name, sentence, and the numbers. NaN where a token has none."""
    alone = [row.alone for row in rows]
    for neighbour, shift in (("before", 1), ("after", -1)):
        yield "a shift by a token", f"each is that of the token {neighbour} it", [shifted(row, shift) for row in alone]
    lengths = [np.full(len(row), float(len(row))) for row in alone]
    divided = [row / length for row, length in zip(alone, lengths, strict=True)]
    yield "the length", "each is divided by the length of its completion", divided
    means = [np.full(len(row), row.mean()) for row in alone]
    yield "the length", "each is the mean over its completion", means
    for name in ("bfloat16", "float16"):
        rounded = [torch.tensor(row).to(getattr(torch, name)).double().numpy() for row in alone]
        if all((_in_dtype(row.used, name) == row.used).all() for row in rows):
            yield "precision", f"they are rounded to {name}", rounded
    names: list[tuple[str, str]] = []
    tables: list[list[np.ndarray]] = []
    for row in rows:
        variants = list(_of_other_logits(policy, row, temperature))
        names = [(name, sentence) for name, sentence, _ in variants]
        tables.append([numbers for *_, numbers in variants])
    for (name, sentence), numbers in zip(names, zip(*tables, strict=True), strict=True):
        yield name, sentence, list(numbers)


def _of_other_logits(policy: Any, row: RowAlone, temperature: float) -> Iterator[tuple[str, str, np.ndarray]]:
    """Changes of the logits of a row alone: name, sentence, and its log-probs (T,)."""
    logits, start = logits_alone(policy, row.prompt_ids, row.ids), len(row.prompt_ids) - 1
    tokens = torch.tensor(row.ids, device=logits.device)[:, None]

    def logps(table: torch.Tensor, divisor: float = temperature) -> np.ndarray:
        chosen = (table.float() / divisor).log_softmax(-1).gather(1, tokens[: len(table)])[:, 0]
        numbers = np.full(len(row.ids), np.nan)
        numbers[: len(chosen)] = chosen.double().numpy(force=True)
        return numbers

    own = logits[start : start + len(row.ids)]
    for other in [1.0, temperature**2, *_TEMPERATURES]:
        if not np.isclose(other, temperature):
            sentence = f"they are at temperature {other:g}, args.temperature is {temperature:g}"
            yield "temperature", sentence, logps(own, other)
    for name in ("bfloat16", "float16"):
        sentence = f"they are of logits that are rounded to {name}"
        yield "precision", sentence, logps(own.to(getattr(torch, name)))
    later = logits[start + 1 : start + 1 + len(row.ids)]
    yield "a shift by a token", "each is of the distribution behind its token, and not before it", logps(later)


@torch.no_grad()
def logits_alone(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """(P + T, V), fp32 logits of a completion behind its prompt: alone, unpadded, without dropout."""
    tokens = torch.tensor([[*prompt, *ids]], device=next(model.parameters()).device)
    with evaluating(model), without_autocast(model):
        inputs = model_inputs(model, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, "explicit")
        return logits_of(model, inputs)[0].float()


def shifted(numbers: np.ndarray, by: int) -> np.ndarray:
    """(T,) numbers moved to later tokens, or to earlier ones if `by` is negative; NaN where none comes.

    Example:
        >>> shifted(np.array([1.0, 2.0, 3.0]), 1)
        array([nan,  1.,  2.])
    """
    moved = np.full(len(numbers), np.nan)
    if by > 0:
        moved[by:] = numbers[:-by]
    else:
        moved[:by] = numbers[-by:]
    return moved


def cause_of_sampled_logps(
    rows: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    plain: Sequence[np.ndarray] | None,
    near: float,
) -> str:
    """A sentence on log-probs of a sampler that are not those of their tokens: what they are, or what was tested.

    Args:
        rows: own tokens (T,) of bool, the sampler's log-probs (T,), those of each row alone (T,).
        plain: the log-probs of each row alone (T,) at temperature 1, where the trainer's is another.
        near: nats; half of the tokens have to be as near, and five times as near as to their own log-probs.

    Example:
        >>> own, alone = np.array([True, True, False, True]), np.array([-1.0, -2.0, -3.0, -4.0])
        >>> cause_of_sampled_logps([(own, np.array([-2.0, -3.0, -4.0, 0.0]), alone)], None, 0.05)
        'each is that of the token after it'
    """
    usual = np.median(np.concatenate([np.abs(sampled - alone)[own] for own, sampled, alone in rows]))
    limit = min(near, float(usual) / 5)

    def are(expected: Sequence[np.ndarray]) -> bool:
        off = np.concatenate(
            [np.abs(s - e)[np.isfinite(s) & np.isfinite(e)] for (_, s, _), e in zip(rows, expected, strict=True)]
        )
        return bool(len(off)) and float(np.median(off)) <= limit

    def at_own(own: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        placed = np.full(len(own), np.nan)
        placed[own] = numbers
        return placed

    for neighbour, by in (("before", 1), ("after", -1)):
        whole = [np.where(own, shifted(alone, by), np.nan) for own, _, alone in rows]
        if are(whole) or are([at_own(own, shifted(alone[own], by)) for own, _, alone in rows]):
            return f"each is that of the token {neighbour} it"
    if are([np.append(alone[own], np.full((~own).sum(), np.nan)) for own, _, alone in rows]):
        return "they stand at the start of their row one behind another, without places for the tokens between them"
    tested = "a shift by a token, places that are left out"
    if plain is not None:
        if are([np.where(own, numbers, np.nan) for (own, *_), numbers in zip(rows, plain, strict=True)]):
            return "they are of temperature 1, and the trainer's temperature is another"
        tested += ", temperature 1"
    return f"cause not found; not: {tested}"


def _in_dtype(numbers: np.ndarray, dtype: str) -> np.ndarray:
    return torch.tensor(numbers).to(getattr(torch, dtype)).double().numpy()


class _Rerun:
    """The trainer's own scoring of a step's micro-batches, again with changes."""

    def __init__(self, trainer: Any, policy: Any, record: StepRecord, rows: Sequence[RowAlone], temperature: float):
        self.trainer, self.policy, self.record, self.rows = trainer, policy, record, rows
        self.temperature = temperature
        padded = any(not micro.inputs["prompt_mask"].all() for micro in record.micro_batches)
        padded |= any(not micro.inputs["completion_mask"].all() for micro in record.micro_batches)
        several = any(len(micro.inputs["completion_mask"]) > 1 for micro in record.micro_batches)
        weights = {p.dtype for p in policy.parameters() if p.is_floating_point()}
        self.changes = ["again"]
        self.changes += ["positions"] if padded and takes_position_ids(policy) else []
        self.changes += ["neighbours"] if several else []
        self.changes += ["padding"] if padded else []
        self.changes += ["dropout", "autocast"]
        self.changes += ["precision"] if weights - {torch.float32, torch.float64} else []

    def scored(self, changes: set[str]) -> list[np.ndarray] | None:
        """Log-probs of each row (T,); None where the trainer's scoring cannot be run so."""
        try:
            with restored(self.trainer), torch.no_grad(), contextlib.ExitStack() as stack:
                self.trainer.model.train()
                if "positions" in changes:
                    stack.enter_context(with_position_ids(self.trainer.model))
                if "dropout" in changes:
                    stack.enter_context(evaluating(self.trainer.model))
                if "autocast" in changes or "precision" in changes:
                    stack.enter_context(_no_autocast())
                if "precision" in changes:
                    stack.enter_context(in_float32(self.trainer.model))
                with self.trainer.accelerator.autocast():
                    return [row for micro in self.record.micro_batches for row in self._scored(micro, changes)]
        except Exception:  # a scoring function is anybody's, and need not take single rows
            return None

    def _scored(self, micro: MicroBatch, changes: set[str]) -> Iterator[np.ndarray]:
        inputs = micro.inputs
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        there = inputs["completion_mask"].bool()
        if not changes & {"neighbours", "padding"}:
            table = self._logps(ids, mask, there.shape[1])
            yield from (table[i][there[i]].double().numpy(force=True) for i in range(len(there)) if there[i].any())
            return
        for i in range(len(there)):
            if not there[i].any():
                continue
            if "padding" in changes:
                own = mask[i].bool()
                row = self._logps(ids[i : i + 1, own], mask[i : i + 1, own], int(there[i].sum()))[0]
            else:
                row = self._logps(ids[i : i + 1], mask[i : i + 1], there.shape[1])[0][there[i]]
            yield row.double().numpy(force=True)

    def _logps(self, ids: torch.Tensor, mask: torch.Tensor, tokens: int) -> torch.Tensor:
        score = self.trainer._get_per_token_logps_and_entropies
        return score(self.trainer.model, ids, mask, tokens, compute_entropy=True)[0]

    def target(self, changes: set[str], alone: list[np.ndarray]) -> list[np.ndarray]:
        """The log-probs to expect after the change: of rows alone, in float32 where that is the change."""
        if "precision" not in changes:
            return alone
        numbers = []
        with in_float32(self.policy):
            for row in self.rows:
                logits = logits_alone(self.policy, row.prompt_ids, row.ids)[len(row.prompt_ids) - 1 : -1]
                table = (logits / self.temperature).log_softmax(-1)
                tokens = torch.tensor(row.ids, device=table.device)[:, None]
                numbers.append(table.gather(1, tokens)[:, 0].double().numpy(force=True))
        return numbers

    def needed_together(self, alone: list[np.ndarray], limits: Tolerance) -> list[str]:
        """The changes without any of which a difference stays, where all of them together take it away."""

        def goes(changes: set[str]) -> bool:
            numbers = self.scored(changes)
            return numbers is not None and _gap(numbers, self.target(changes, alone), limits) <= 1

        changes = set(self.changes) - {"again", "neighbours", "positions"}
        if not goes(changes):
            return []
        return [change for change in self.changes if change in changes and not goes(changes - {change})]


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Inside the block no `torch.autocast` takes effect, whoever opens it."""
    with (
        mock.patch.object(torch.autocast, "__enter__", lambda self: self),
        mock.patch.object(torch.autocast, "__exit__", lambda self, *error: None),
    ):
        yield


@contextlib.contextmanager
def in_float32(model: torch.nn.Module) -> Iterator[None]:
    """Inside the block a model's weights and buffers are float32; afterwards they are the same tensors as before."""
    narrow = [x for x in (*model.parameters(), *model.buffers()) if x.dtype in (torch.bfloat16, torch.float16)]
    before = [tensor.data for tensor in narrow]
    try:
        for tensor in narrow:
            tensor.data = tensor.data.float()
        with nothing_cast(model):
            yield
    finally:
        for tensor, data in zip(narrow, before, strict=True):
            tensor.data = data


# Options of a sampler that transformers' own classes apply to logits, in its order.
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "repetition_penalty": logits_process.RepetitionPenaltyLogitsProcessor,
    "temperature": logits_process.TemperatureLogitsWarper,
    "top_k": logits_process.TopKLogitsWarper,
    "top_p": logits_process.TopPLogitsWarper,
    "min_p": logits_process.MinPLogitsWarper,
    "typical_p": logits_process.TypicalLogitsWarper,
    "epsilon_cutoff": logits_process.EpsilonLogitsWarper,
}


def sampled_with(
    logits: torch.Tensor, prompt: Sequence[int], ids: Sequence[int], options: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Log-probs, entropies and variances (T,) of tokens by the distribution that a sampler's options make of logits.

    Args:
        logits: (T, V), before each token, not yet divided by a temperature.
        prompt, ids: the text before, and the T tokens.
        options: name -> value, `temperature` among them.

    Returns:
        None if an option is not one of transformers' classes. The log-prob of a token that the options exclude is -inf.
    """
    if options.keys() - _OPTIONS.keys():
        return None
    table = scores_with(logits, prompt, ids, options).log_softmax(-1)
    probs = table.exp()
    informations = torch.where(probs > 0, -table, 0.0)
    entropies = (probs * informations).sum(-1)
    variances = (probs * (informations - entropies[:, None]) ** 2).sum(-1)
    logps = table.gather(1, torch.tensor(list(ids), device=table.device)[:, None])[:, 0]
    first, second, third = (x.double().numpy(force=True) for x in (logps, entropies, variances))
    return first, second, third


def scores_with(
    logits: torch.Tensor, prompt: Sequence[int], ids: Sequence[int], options: Mapping[str, Any]
) -> torch.Tensor:
    """(T, V), the logits that a sampler's options leave; arguments as in `sampled_with`, each option one that it knows."""
    scores = logits.float()
    for name, processor in _OPTIONS.items():
        if name not in options:
            continue
        apply = processor(options[name])
        if name == "repetition_penalty":  # it looks at all tokens before
            before = [torch.tensor([[*prompt, *ids[:place]]], device=scores.device) for place in range(len(ids))]
            scores = torch.cat([apply(b, scores[i : i + 1].clone()) for i, b in enumerate(before)])
        else:
            scores = apply(torch.tensor([list(ids)], device=scores.device), scores)
    return scores


UNKNOWN_COPIES = "the sampler itself returned them; cause not found; not: greedy sampling, a seed in generation_kwargs"


def cause_of_copies(
    step: Step,
    record: StepRecord,
    copies: Sequence[Sequence[int]],
    share_likeliest: Callable[[Sequence[SampledRow]], float],
) -> str:
    """A sentence on why groups hold one completion.

    Args:
        copies: numbers of the rows of each such group.
        share_likeliest: gives the share of the tokens of rows that are the likeliest at their places.
    """
    if share_likeliest([step.rows[i] for group in copies for i in group]) >= _GREEDY:
        return _greedy(step)
    drawn = [ids for _, completions in record.turns for ids in completions]
    if len(drawn) == len(step.rows) and any(drawn[i] != drawn[group[0]] for group in copies for i in group):
        return "the sampler drew other ones, and the trainer put one in their place"
    if (seed := (step.settings.get("generation_kwargs") or {}).get("seed")) is not None:
        return f"generation_kwargs has seed={seed}, which every copy gets"
    return UNKNOWN_COPIES


def cause_of_sampling(
    policy: Any,
    step: Step,
    options: Mapping[str, Any],
    temperature: float,
    share_likeliest: Callable[[Sequence[SampledRow]], float],
) -> str:
    """A sentence on why sampled tokens are likelier or less likely than scored: the sampler's options, if they explain it.

    Args:
        options: with which the sampler draws from another distribution than the scored one: name -> value.
        temperature: of the scored distribution.
        share_likeliest: as in `cause_of_copies`.
    """
    if share_likeliest(step.rows) >= _GREEDY:
        return _greedy(step)
    said = ", ".join(f"{name}={value}" for name, value in options.items())
    if not options:
        return "the sampler is not the policy that is scored, or tokens were selected after they were drawn"
    if "do_sample" in options:
        return f"{said} is set, but not each token is the likeliest one"
    excess = variance = 0.0
    for row in step.rows:
        if not row.ids:
            continue
        logits = logits_alone(policy, row.prompt_ids, row.ids)[len(row.prompt_ids) - 1 : -1]
        drawn = sampled_with(logits, row.prompt_ids, row.ids, {"temperature": float(temperature)} | dict(options))
        if drawn is None:
            return f"{said} is set, which was not tested"
        logps, entropies, variances = drawn
        sampled = (row.own > 0) & (np.arange(len(row.ids)) < row.end) & (sampled_tokens(step.turns, row) > 0)
        excess += float((-logps - entropies)[sampled].sum())
        variance += float(variances[sampled].sum())
    if abs(excess) <= _FAR * np.sqrt(variance):
        return f"{said}, with which they are as likely as they should be"
    return f"{said} is set, but does not explain it"


def _greedy(step: Step) -> str:
    options = ", ".join(step.sampler_options())
    return "each token is the likeliest one, as greedy sampling takes it" + (f" ({options})" if options else "")
