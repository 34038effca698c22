"""What a trainer used in one update, as plain numbers: a `StepRecord` without its padding."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from ..errors import ParameterError
from ..replay.grpo_math import LossRow
from ..replay.stages import SETTING_STAGES, sampled_tokens
from ..replay.step import MicroRows, SampledRow, Step, Turn, is_option, neutral_options, returned_rewards
from .match_rows import UnsampledRow
from .record_distillation import DistillationRecord, DivergenceCall
from .record_step import loss_mask_of
from .rows import eos_ids, policy_of, tokenizer_of, trl_ends
from .step_record import MicroBatch, StepRecord

KINDS = {
    "trl.trainer.grpo_trainer": "GRPO",
    "trl.trainer.rloo_trainer": "RLOO",
    "trl.experimental.async_grpo.async_grpo_trainer": "AsyncGRPO",
    "trl.trainer.distillation_trainer": "Distillation",
}


def kind_of(trainer: Any) -> str:
    """The kind of a trainer, one of KINDS; raises for any other trainer. Nothing is imported: not every TRL has all."""
    for base in type(trainer).__mro__:
        if base.__module__ in KINDS:
            return KINDS[base.__module__]
    raise ParameterError(
        f"trainer={type(trainer).__name__}: expected TRL's GRPOTrainer, RLOOTrainer, AsyncGRPOTrainer or "
        "DistillationTrainer, or a child of one"
    )


def is_gmpo(trainer: Any) -> bool:
    """Say whether a trainer is TRL's GMPOTrainer, which has a loss of its own and does not read `loss_type`."""
    return any(base.__module__ == "trl.experimental.gmpo.gmpo_trainer" for base in type(trainer).__mro__)


# Fields that the config of TRL's GMPOTrainer inherits and its loss does not read, at the values that its loss has.
_UNREAD_BY_GMPO = {"importance_sampling_level": "token", "use_bias_correction_kl": False, "delta": None}
_UNREAD_BY_GMPO |= {"entropy_coef": 0.0, "use_adaptive_entropy": False, "off_policy_mask_threshold": None}


def step_of(trainer: Any, kind: str, record: StepRecord) -> Step:
    """Return what a trainer used, as plain numbers."""
    args, outputs = trainer.args, record.outputs
    deviations, begun = deviations_of(trainer), trainer.state.global_step > 0
    settings = vars(args) | {
        "reward_weights": _weights_of_args(trainer),
        "reward_func_names": list(getattr(trainer, "reward_func_names", [])),
        "gradient_accumulation_steps": len(record.micro_batches),  # fewer at the end of an epoch
        "rollout_func": getattr(trainer, "rollout_func", None) is not None,
        "router_aux_loss_coef": router_coefficient(trainer),
    }
    if is_gmpo(trainer):
        settings |= {"loss_type": "gmpo"} | _UNREAD_BY_GMPO
        defaults = {each.name: each.default for each in dataclasses.fields(args)}
        unread = [n for n in _UNREAD_BY_GMPO if n in defaults and getattr(args, n) != defaults[n]]
        if unread:
            said = ", ".join(f"{name}={getattr(args, name)}" for name in unread)
            record.notice("loss", "cannot tell", f"GMPO's loss does not read {said}", over=("same", "rounding"))
    if begun:  # a callback may have changed the trainer, which then does what it should
        settings |= _settings_of_now(trainer, deviations)
    rows = list(_sampled_rows(trainer, record))
    own_counts = [len(table) // trainer.accelerator.num_processes for table in record.rewards]
    functions = len(trainer.reward_funcs)
    return Step(
        kind=kind,
        dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else coarsest_dtype(policy_of(trainer)),
        processes=trainer.accelerator.num_processes,
        rank=trainer.accelerator.process_index,
        settings=settings,
        rows=rows,
        prompts=[row.get("prompt", row) for row in record.inputs],
        # Those of a generation are not known where the loss takes other rows than it sampled.
        rewards=[] if record.selected else [table.double().numpy(force=True) for table in record.rewards],
        returned=np.zeros((0, functions))
        if record.selected
        else returned_rewards(record.scored, own_counts, functions),
        judged_otherwise={} if record.selected else _judged_otherwise(trainer, record, rows),
        advantages=[output["advantages"].double().numpy(force=True) for output in outputs],
        micro_batches=_of_one_update(record, tokenizer_of(trainer).pad_token_id),
        turns=_turns(trainer, record, rows),
        metrics={name: values[-1] for name, values in record.metrics.items() if values} | _returned_loss(record),
        logged=_logged_by_losses(record),
        pad_token_id=tokenizer_of(trainer).pad_token_id,
        deviations=deviations,
        begun=begun,
        tokens=record.tokens,
        reused=record.reused,
        router_losses=_router_losses(trainer, kind, record),
        kl=_kl_in_rewards(kind, record),
    )


def _kl_in_rewards(kind: str, record: StepRecord) -> np.ndarray | None:
    """(N,) of this process's rows, as RLOO takes it off the rewards; None for others, and where it was not taken down."""
    if kind != "RLOO" or len(record.kl) != len(record.outputs) or not record.kl:
        return None
    return torch.cat(record.kl).numpy(force=True)


def _returned_loss(record: StepRecord) -> dict[str, float]:
    """The loss as it is logged: what `training_step` returned of all micro-batches, where this was taken down."""
    return {"loss": sum(record.step_losses)} if record.step_losses else {}


def _logged_by_losses(record: StepRecord) -> list[dict[str, float]]:
    """For each micro-batch, the metrics that its loss logged; one that was not logged by every loss is left out."""
    count = len(record.micro_batches)
    values = {name: each for name, each in record.metrics.items() if len(each) == count}
    return [{name: each[number] for name, each in values.items()} for number in range(count)]


def _judged_otherwise(trainer: Any, record: StepRecord, rows: Sequence[SampledRow]) -> dict[str, list[int]]:
    """The rows that the reward functions judge by something of another row: what it is -> their numbers."""
    found = {name: set(numbers) for name, numbers in record.judged_otherwise.items()}
    if len(record.texts) == len(rows):
        decode = tokenizer_of(trainer).decode
        sampled = [decode(row.ids, skip_special_tokens=True) for row in rows]
        asked = [_plain(decode(row.prompt_ids)) for row in rows]
        for name, numbers in mixed_texts(record.texts, asked, sampled).items():
            found.setdefault(name, set()).update(numbers)
        if foreign := len(foreign_texts(record.texts, sampled)):
            cause = (
                f"{foreign} of {len(rows)} rows are judged by a text that is neither their completion nor a part of it"
            )
            record.notice("rewards", "cannot tell", f"{cause}: is it changed on purpose?", over=("same", "rounding"))
        # A tokenizer that says how to parse a response leaves out its thinking.
        parses = any(getattr(tokenizer_of(trainer), name, None) for name in ("response_template", "response_schema"))
        if not parses and (cut := cut_texts(record.texts, sampled)):
            none = sum(not text for text in cut.values())
            cause = f"{len(cut)} of {len(rows)} rows are judged by a part of their text" + f", {none} by none" * (
                none > 0
            )
            record.notice("rewards", "cannot tell", f"{cause}: is it cut on purpose?", over=("same", "rounding"))
    return {name: sorted(numbers) for name, numbers in found.items() if numbers}


def mixed_texts(texts: Sequence[tuple], asked: Sequence[str], sampled: Sequence[str]) -> dict[str, list[int]]:
    """The rows whose text, as the reward functions get it, is that of another row's tokens, for `prompts` and `completions`.

    Of a text that is a part of its own row see `cut_texts`, of one that is that of no row `foreign_texts`. A prompt stands in
    its row between what a template writes.

    Args:
        texts: prompt and completion of each row, each a text or messages.
        asked, sampled: the decoded prompt and completion of each row; `asked` as `_plain` gives it.

    Example:
        >>> mixed_texts([("2 + 2", "4"), ("2 + 3", "5")], ["<user>2+3", "<user>2+2"], ["5", "4"])
        {'prompts': [0, 1], 'completions': [0, 1]}
    """
    prompts = [_plain(_last_text(prompt)) for prompt, _ in texts]
    answers, written = _answers(texts), [_plain(text) for text in sampled]
    numbers, everyones = range(len(texts)), set(written)
    elsewhere = {text for text in prompts if any(text in other for other in asked)}
    others = {
        i: text for i, text in enumerate(answers) if text is not None and text != written[i] and text in everyones
    }
    # A short text may be a part of its row by chance, which clears it only where no row has clearly another's.
    is_mixed = any(text not in written[i] for i, text in others.items())
    return {
        "prompts": [
            i
            for i in numbers
            if prompts[i] not in asked[i] and prompts[i] in elsewhere and any(p and p in asked[i] for p in prompts)
        ],
        "completions": list(others) if is_mixed else [],
    }


def foreign_texts(texts: Sequence[tuple], sampled: Sequence[str]) -> list[int]:
    """The rows whose completion, as the reward functions get it, is no part of their own tokens' text.

    Args:
        texts: prompt and completion of each row; of several messages nothing is compared.
        sampled: the decoded completion of each row.

    Example:
        >>> foreign_texts([("2 + 2", "4"), ("2 + 3", "so 5")], ["It is 4.", "It is 5."])
        [1]
    """
    pairs = enumerate(zip(_answers(texts), sampled, strict=True))
    return [i for i, (answer, own) in pairs if answer is not None and answer not in _plain(own)]


def cut_texts(texts: Sequence[tuple], sampled: Sequence[str]) -> dict[int, str]:
    """The rows whose completion, as the reward functions get it, is a part of their own tokens' text alone: row -> the part.

    Example:
        >>> cut_texts([("2 + 2", "4"), ("2 + 3", "It is 5.")], ["It is 4.", "It is 5."])
        {0: '4'}
    """
    pairs = enumerate(zip(_answers(texts), map(_plain, sampled), strict=True))
    return {i: answer for i, (answer, own) in pairs if answer is not None and answer != own and answer in own}


def _answers(texts: Sequence[tuple]) -> list[str | None]:
    """The completion of each row as `_plain` gives it; None where it is several messages, of which nothing is compared."""
    is_one = [isinstance(completion, str) or len(completion) == 1 for _, completion in texts]
    return [_plain(_last_text(completion)) if one else None for (_, completion), one in zip(texts, is_one, strict=True)]


def _last_text(value: Any) -> str:
    """A text, or that of the last of some messages."""
    if isinstance(value, str):
        return value
    content = value[-1].get("content") if value and isinstance(value[-1], Mapping) else None
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def _plain(text: str) -> str:
    """A text without what tokenizers and templates change in it: spaces and capitals."""
    return "".join(text.split()).casefold()


def _settings_of_now(trainer: Any, deviations: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The settings that differ from the args, as the trainer has them now."""
    args, settings = trainer.args, {name: of_trainer for name, (_, of_trainer) in deviations.items()}
    if "temperature" in deviations and getattr(trainer, "temperature", None) == args.temperature:
        # The sampler's alone: log-probs are still taken at the other one.
        own = dict(getattr(args, "generation_kwargs", None) or {}) | {"temperature": settings["temperature"]}
        settings |= {"temperature": args.temperature, "generation_kwargs": own}
    return settings


def deviations_of(trainer: Any) -> dict[str, tuple[Any, Any]]:
    """The settings of which a trainer has another value than its args: name -> (of args, of the trainer)."""
    args, deviations = trainer.args, {}
    for name in SETTING_STAGES:
        attribute = {"epsilon": "epsilon_low"}.get(name, name)
        if not hasattr(args, name) or not hasattr(trainer, attribute):
            continue  # another release, or RLOO
        if name == "entropy_coef" and getattr(trainer, "use_adaptive_entropy", False):
            continue  # TRL moves it from update to update
        if name.startswith("vllm") and not args.use_vllm:
            continue
        of_args, of_trainer = getattr(args, name), getattr(trainer, attribute)
        if name == "reward_weights":
            of_args, of_trainer = _weights_of_args(trainer), of_trainer.tolist()
        elif name == "epsilon_high" and of_args is None:
            of_args = args.epsilon
        if not _equal(of_args, of_trainer):
            deviations[name] = of_args, of_trainer
    return _deviations_of_sampler(trainer) | deviations


def _deviations_of_sampler(trainer: Any) -> dict[str, tuple[Any, Any]]:
    """The same for what transformers samples with, which TRL copies from the args when it makes the trainer."""
    config, args, policy = getattr(trainer, "generation_config", None), trainer.args, policy_of(trainer)
    own, deviations = dict(getattr(args, "generation_kwargs", None) or {}), {}
    if getattr(args, "use_vllm", False):
        return {}
    options = neutral_options(args.temperature)

    def used(name: str) -> Any:
        value, of_model = (getattr(each, name, None) for each in (config, getattr(policy, "generation_config", None)))
        if value is None and of_model not in options.get(name, ()):
            return of_model  # transformers takes what is not set from the model's own config
        return value

    for name in (name for name, stage in SETTING_STAGES.items() if stage == "sampling" and hasattr(args, name)):
        of_args, of_config = own.get(name, getattr(args, name)), used(name)
        if of_config is not None and not _equal(of_args, of_config):
            deviations[name] = of_args, of_config
    image = getattr(policy.config, "image_token_id", None)  # TRL never samples this token
    unusual = {name for each in (config, getattr(policy, "generation_config", None)) for name in _set_in(each)}
    for name in (*options, *sorted(unusual - options.keys())):
        of_config = used(name)
        if hasattr(args, name) or not is_option(name, of_config, options) or of_config == [image]:
            continue
        if not _equal(own.get(name), of_config):
            deviations[name] = own.get(name), of_config
    limit = own.get("max_new_tokens", getattr(args, "max_completion_length", None))
    cut_at = getattr(config, "max_new_tokens", None)
    if cut_at is not None and not _equal(limit, cut_at):
        deviations["max_completion_length"] = limit, cut_at
    return deviations


def _set_in(config: Any) -> set[str]:
    """The options of a generation config that have another value than the default; a model's file may hold other names."""
    return set(config.to_diff_dict()) & vars(GenerationConfig()).keys() if hasattr(config, "to_diff_dict") else set()


def _weights_of_args(trainer: Any) -> list[float]:
    """(F,), 1 each by default; TRL gives 1 to a reward that an environment brings along."""
    functions = len(trainer.reward_funcs)
    weights = list(trainer.args.reward_weights or [])
    return weights + [1.0] * (functions - len(weights))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_equal(*pair) for pair in zip(a, b, strict=True))
    numbers = all(isinstance(x, int | float) for x in (a, b))
    return math.isclose(a, b, rel_tol=1e-6) if numbers else bool(a == b)


def router_coefficient(trainer: Any) -> float:
    """The factor of a router's auxiliary loss in TRL: the config's, or the model's where the config has none."""
    coefficient = getattr(trainer.args, "router_aux_loss_coef", None)
    if coefficient is None:
        coefficient = getattr(policy_of(trainer).config.get_text_config(), "router_aux_loss_coef", None)
    return float(coefficient or 0.0)


def _router_losses(trainer: Any, kind: str, record: StepRecord) -> list[float]:
    """The part of each micro-batch's loss that is a router's auxiliary loss; none where no scoring returned one."""
    if not record.micro_batches or any(router_loss_of(micro) is None for micro in record.micro_batches):
        return []
    divisor = 1 if kind == "RLOO" else len(record.micro_batches)  # TRL's RLOO divides the whole loss afterwards
    factor = router_coefficient(trainer) / divisor
    return [factor * float(router_loss_of(micro)) for micro in record.micro_batches]


def router_loss_of(micro: MicroBatch) -> Any:
    """The auxiliary loss of a router that the scoring of a loss returned, or None."""
    return next((other for other in micro.others if torch.is_tensor(other) and other.dim() == 0), None)


def coarsest_dtype(model: torch.nn.Module) -> str:
    """The dtype of a model's weights that rounds most: a head in fp32 makes the layers below it no more precise.

    Of fp32 it is what torch multiplies in.
    """
    dtypes = {p.dtype for p in model.parameters()} & {torch.float64, torch.float32, torch.float16, torch.bfloat16}
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
    return multiplied_in(model) if coarsest == torch.float32 else str(coarsest).removeprefix("torch.")


def multiplied_in(model: torch.nn.Module) -> str:
    """What torch multiplies float32 matrices in, on the device of a model: `float32`, `tf32` or `bfloat16`.

    `tf32=True` of a config and `torch.set_float32_matmul_precision` change it.
    """
    on_gpu = any(p.device.type == "cuda" for p in model.parameters())
    backend: Any = torch.backends.cuda.matmul if on_gpu else torch.backends.mkldnn.matmul
    precision = backend.fp32_precision
    if precision == "none":  # not set for matrices alone
        precision = torch.backends.fp32_precision
    return {"tf32": "tf32", "bf16": "bfloat16"}.get(precision, "float32")


def distillation_step_of(trainer: Any, record: DistillationRecord) -> Step:
    """An update of a DistillationTrainer as numbers: `ref_logps` are the teacher's, advantages are 0, rewards are none."""
    args, pad = trainer.args, tokenizer_of(trainer).pad_token_id
    deviations, begun = deviations_of(trainer), trainer.state.global_step > 0
    settings = vars(args) | {"num_generations": 1, "gradient_accumulation_steps": len(record.micro_batches)}
    if begun:
        settings |= _settings_of_now(trainer, deviations)
    calls: list = record.calls
    if len(calls) != len(record.micro_batches):  # the divergence is another than TRL's
        calls = [None] * len(record.micro_batches)
    rows = list(_sampled_rows(trainer, record))
    return Step(
        kind="Distillation",
        dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else coarsest_dtype(policy_of(trainer)),
        processes=trainer.accelerator.num_processes,
        rank=trainer.accelerator.process_index,
        settings=settings,
        rows=rows,
        prompts=[row.get("prompt", row) for row in record.inputs],
        rewards=[],
        returned=None,
        advantages=[np.zeros(len(output["completion_mask"])) for output in record.outputs],
        micro_batches=[
            _distilled_rows(dataclasses.replace(micro, loss=loss), call, pad)
            for micro, call, loss in zip(record.micro_batches, calls, record.step_losses, strict=True)
        ],
        turns=_turns(trainer, record, rows),
        metrics={name: sum(values) / len(values) for name, values in record.metrics.items() if values},
        pad_token_id=pad,
        deviations=deviations,
        begun=begun,
        tokens=record.tokens,
    )


def _distilled_rows(micro: MicroBatch, call: DivergenceCall | None, pad: int | None) -> MicroRows:
    """The rows of a micro-batch without their padding, with both models' log-probs of the sampled tokens."""
    there = micro.inputs["completion_mask"].bool()
    inputs = dict(micro.inputs) | {"advantages": torch.zeros(len(there))}
    plain = micro_rows(dataclasses.replace(micro, inputs=inputs), pad)
    if call is None:
        return plain
    rows = []
    for i, row in enumerate(plain.rows):
        ids = micro.inputs["completion_ids"][i][there[i]]
        student, teacher = (_logps_of(logits, ids) for logits in call.logits(i, there[i]))
        rows.append(dataclasses.replace(row, logps=student, ref_logps=teacher))
    return dataclasses.replace(plain, rows=rows)


def _logps_of(logits: torch.Tensor, ids: torch.Tensor) -> np.ndarray:
    """(T,) of the tokens, from (T, V)."""
    return logits.log_softmax(-1).gather(1, ids[:, None].to(logits.device))[:, 0].double().numpy(force=True)


def _sampled_rows(trainer: Any, record: StepRecord) -> Iterator[SampledRow]:
    stops, ends_for_trl = set(eos_ids(trainer)), trl_ends(trainer)
    options = trainer.args.generation_kwargs or {}
    limit = min(trainer.max_completion_length or math.inf, options.get("max_new_tokens", math.inf))
    made = list(_generated(record))
    masks = [mask for output in record.outputs for mask in _masks(output)]
    scored = [(output, i) for output in record.outputs for i in range(len(output["completion_ids"]))]
    known = record.finish_reasons if len(record.finish_reasons) == len(made) else None
    for number, ((prompt, row, own), mask, (output, index)) in enumerate(zip(made, masks, scored, strict=True)):
        ids, ended = list(map(int, row[:])), None  # a subclass may have tensors
        own, end = np.ones(len(ids)) if own is None else np.asarray(own, dtype=float), len(ids)
        if isinstance(row, UnsampledRow):
            ended = None
        elif getattr(row, "end", None) is not None:  # a trainer of ours, which knows
            ended = row.end.finish_reason == "stop"
        elif known:
            ended = known[number] == "stop"
        elif not own.all():  # of several turns the last one's end counts
            last = own[-1] and ids[-1] in stops
            ended = True if last else False if len(ids) >= limit else None
        elif (place := next((i for i, token in enumerate(ids) if token in stops), None)) is not None:
            ended, end = True, place + 1
        elif len(ids) >= limit:
            ended = False
        cut_for_trl = bool(ids) and int(row[-1]) not in ends_for_trl
        width, device = output["completion_ids"].shape[1], output["completion_ids"].device
        there = torch.arange(width, device=device) < len(ids)
        parts = {name: _part(output.get(key), index, there) for name, key in _OF_A_ROW.items()}
        parts["old_sum"] = _old_sum(output, index)
        yield SampledRow(list(map(int, prompt)), ids, own, ended, end, cut_for_trl, mask, **parts)


def with_generation(step: Step, output: Mapping[str, Any], taken: Sequence[Mapping[str, Any]] = ()) -> Step:
    """A step on completions of an earlier one, with these as they were generated and scored; their ends are not known.

    `taken` are the inputs of earlier losses, which come before its own micro-batches.
    """
    rows = []
    for i, mask in enumerate(_masks(output)):
        ids = output["completion_ids"][i]
        parts = {name: _part(output.get(key), i, torch.ones_like(ids).bool()) for name, key in _OF_A_ROW.items()}
        parts["old_sum"] = _old_sum(output, i)
        prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()].tolist()
        rows.append(SampledRow(prompt, ids.tolist(), np.ones(len(ids)), None, len(ids), False, mask, **parts))
    advantages = [output["advantages"].double().numpy(force=True)]
    earlier = [micro_rows(MicroBatch(inputs), step.pad_token_id) for inputs in taken]
    together = [dataclasses.replace(micro, generation=0) for micro in (*earlier, *step.micro_batches)]
    return dataclasses.replace(step, rows=rows, advantages=advantages, micro_batches=together)


def with_counted_items(step: Step, output: Mapping[str, Any]) -> Step:
    """A step on completions of an earlier one, with the tokens in the loss of their generation counted again.

    The loss divides by them, and this is all that a later update has of those that it does not take.
    """
    if step.processes > 1:  # each has a part of them
        return step
    items = float(sum(mask.sum() for mask in _masks(output)))
    counted = [m if m.items is None else dataclasses.replace(m, items=items) for m in step.micro_batches]
    return dataclasses.replace(step, micro_batches=counted)


def collected_means(trainer: Any) -> dict[str, float]:
    """The mean of each metric that steps have collected since the last line of the log, which TRL's `log` writes."""
    means = {}
    for name, values in trainer._metrics["train"].items():
        if values and all(isinstance(value, float | int) and value == value for value in values):
            means[name] = sum(values) / len(values)
    return means


def _turns(trainer: Any, record: StepRecord, rows: Sequence[SampledRow]) -> list[Turn] | None:
    """Return what was sampled turn by turn; None where each row is one turn of TRL's, as it was sampled."""
    turns = [Turn(*pair) for prompts, completions in record.turns for pair in zip(prompts, completions, strict=True)]
    if getattr(trainer, "rollout_func", None) is not None or len(record.turns) > len(record.generated):
        return turns
    # An engine writes out the placeholder of an image, so its prompts are not those of the rows.
    images = any("image" in row or "images" in row for row in record.inputs)
    return None if images or all(sampled_tokens(turns, row).all() for row in rows) else turns


def _generated(record: StepRecord) -> Iterator[tuple]:
    for made in record.generated:
        masks = made[2] if len(made) > 3 and made[2] is not None else [None] * len(made[1])  # RLOO has no tools
        yield from zip(made[0], made[1], masks, strict=True)


def _masks(output: Any) -> list[np.ndarray]:
    return [row.double().numpy(force=True) for row in loss_mask_of(output)]


def micro_rows(micro: MicroBatch, pad: int | None) -> MicroRows:
    """The rows of a micro-batch without their padding; of a row that is masked whole `completion_ids` has the tokens alone."""
    inputs, found = micro.inputs, MicroRows([], [], [], None, micro.loss)
    whole_ids: list[list[int]] = []
    whole_masks: list[np.ndarray] = []
    for i, there in enumerate(inputs["completion_mask"].bool()):
        row = {name: _part(inputs.get(key), i, there) for name, key in _OF_A_ROW.items()}
        mask = there if inputs.get("tool_mask") is None else there & inputs["tool_mask"][i].bool()
        row |= {"logps": _part(micro.logps, i, there), "entropies": _part(micro.entropies, i, there)}
        row |= {"mask": mask[there].double().numpy(force=True), "advantage": _advantage(inputs["advantages"][i], there)}
        row["old_sum"] = _old_sum(inputs, i)
        found.rows.append(LossRow(**row))
        found.prompt_ids.append(inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()].tolist())
        found.ids.append(inputs["completion_ids"][i][there].tolist())
        kept = torch.nonzero(there | (inputs["completion_ids"][i] != pad))
        length = int(kept.max()) + 1 if len(kept) else 0
        whole_ids.append(inputs["completion_ids"][i][:length].tolist())
        whole_masks.append(there[:length].double().numpy(force=True))
    items = inputs.get("num_items_in_batch")
    return MicroRows(
        found.rows,
        found.prompt_ids,
        found.ids,
        None if items is None else float(items),
        micro.loss,
        completion_ids=whole_ids,
        completion_mask=whole_masks,
        generation=micro.generation,
        entropy_coef=micro.entropy_coef,
        entropy_threshold=micro.entropy_threshold,
    )


def _of_one_update(record: StepRecord, pad: int | None) -> list[MicroRows]:
    """The micro-batches of an update, which take one coefficient of the entropy: TRL moves it behind the last."""
    micro_batches = [micro_rows(micro, pad) for micro in record.micro_batches]
    return [dataclasses.replace(micro, entropy_coef=micro_batches[0].entropy_coef) for micro in micro_batches]


def _advantage(value: torch.Tensor, there: torch.Tensor) -> Any:
    """A row's advantage: a number, or one for each of its tokens, which TRL's loss takes from a subclass."""
    return float(value) if value.dim() == 0 else _part(value[None], 0, there)


def _old_sum(table: Any, row: int) -> float | None:
    return None if table.get("old_logps") is None else float(table["old_logps"][row])


_OF_A_ROW = {"old_logps": "old_per_token_logps", "ref_logps": "ref_per_token_logps"}
_OF_A_ROW |= {"sampled_logps": "sampling_per_token_logps", "correction": "importance_sampling_ratio"}


def _part(table: Any, row: int, there: torch.Tensor) -> Any:
    """A row of a table (B, T) without its padding, or of one with a value for each row (B, 1)."""
    if table is None:
        return None
    one_value = table.shape[1] == 1 and len(there) > 1
    return (table[row] if one_value else table[row][there]).double().numpy(force=True)
