"""A step in a file: what its loss consumed, for a replay without the model and for a bug report."""

import dataclasses
import gzip
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ParameterError, RunError
from ..runs.completions import STEPS
from ..runs.files import ASIDE, jsonable, open_plain, whole_file
from ..runs.secrets import hide_tokens, map_text
from .batches import check_batches
from .dump_stages import replay_dump
from .dumps import is_dump
from .fields import UnfitStep, check_fields
from .foreign import with_choices
from .grpo_math import LOSS_TYPES, LossRow
from .other_losses import with_other_loss
from .report import StepReport
from .stages import (
    TOLERANCES,
    check_metrics,
    checked_rows,
    losses_of,
    seen_by_value,
    stages_of_loss,
    stages_of_rows,
    with_deviations,
)
from .step import MicroRows, SampledRow, Step, Turn

_FORMAT = 2
_LARGEST = 500_000_000  # bytes of a file, unpacked
_NAME = re.compile(r"step-(\d+)(?:\.rank\d+)?\.json\.gz")
_HIDDEN = -1  # in place of each token id, where a text of the step holds a secret
_KINDS = ("GRPO", "RLOO")
_NEEDED: dict[str, tuple[str, ...]] = {"GRPO": ("num_generations", "gradient_accumulation_steps")}  # settings
_NEEDED |= {"RLOO": (*_NEEDED["GRPO"], "beta")}
_DEFAULTS = {"scale_rewards": "group", "reward_weights": None, "reward_clip_range": None, "normalize_advantages": False}
_OF_TOKENS = (
    "mask",
    "logps",
    "old_logps",
    "ref_logps",
    "entropies",
)  # the arrays of a row of the loss that have a number a token
_DTYPES = {name: name for name in (*TOLERANCES, "float64")} | {"bf16": "bfloat16", "half": "float16", "fp16": "float16"}
_DTYPES |= {"float": "float32", "fp32": "float32", "double": "float64"}
_ARRAYS = ("own", "mask", "old_logps", "ref_logps", "sampled_logps", "correction")  # of a sampled row
# Settings that are text and no path, host or credential; numbers and flags are all kept.
_TEXTS: tuple[str, ...] = (
    "loss_type",
    "importance_sampling_level",
    "scale_rewards",
    "multi_objective_aggregation",
    "optim",
    "vllm_mode",
)
_TEXTS += ("vllm_importance_sampling_mode", "lr_scheduler_type")


@dataclass(frozen=True)
class SavedStep:
    """A step as its file has it."""

    number: int
    versions: dict[str, str]
    vocabulary: dict[int, str]  # the text of each token id in it
    step: Step
    size: int  # bytes of the file

    def decode(self, ids: list[int]) -> str:
        return "".join(self.vocabulary.get(token, "[hidden]") for token in ids)


def step_path(record_dir: Path, number: int, rank: int = 0) -> Path:
    """Return where a record keeps a step of a process."""
    return record_dir / STEPS / f"step-{number:06d}{f'.rank{rank}' if rank else ''}.json.gz"


def save_step(
    path: Path, number: int, step: Step, decode: Callable[[list[int]], str], versions: Mapping[str, str]
) -> int:
    """Write a step to a file, whole or not at all, without secrets; returns its size in bytes.

    Of a step with a secret in a text no token id is kept, since ids are text too.
    """
    used = dataclasses.asdict(dataclasses.replace(step, settings=_plain_settings(step.settings)))
    texts = [row.prompt_ids + row.ids for row in step.rows] + [turn.prompt_ids + turn.ids for turn in step.turns or ()]
    vocabulary = {token: decode([token]) for token in sorted({token for ids in texts for token in ids})}
    if any(hide_tokens(text) != text for text in map(decode, texts)):
        vocabulary, used["turns"] = {}, None
        for part in (*used["rows"], *used["micro_batches"]):
            for name in {"prompt_ids", "ids", "completion_ids"} & part.keys():
                part[name] = _hidden(part[name])
    used["prompts"] = map_text(json.loads(json.dumps(jsonable(step.prompts), default=str)), hide_tokens)
    content = {"format": _FORMAT, "number": number, "versions": dict(versions), "vocabulary": vocabulary, "step": used}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
        json.dump(jsonable(content), file, allow_nan=False, ensure_ascii=False)
    return path.stat().st_size


def _plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in settings.items():
        several = value if isinstance(value, list | tuple) else [value]
        if name in _TEXTS or all(each is None or isinstance(each, bool | int | float) for each in several):
            kept[name] = value
    options = jsonable(settings.get("generation_kwargs") or {})
    return kept | {"generation_kwargs": map_text(json.loads(json.dumps(options, default=str)), hide_tokens)}


def _hidden(ids: list) -> list:
    return [_hidden(each) if isinstance(each, list) else _HIDDEN for each in ids]


def load_step(path: str | os.PathLike) -> SavedStep:
    """Read a step that a training has kept.

    Raises:
        RunError: a file that is none of these, damaged, or of a newer workbench.
    """
    path = Path(path)
    try:
        with open_plain(path) as opened, gzip.open(opened) as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise RunError(
                f"{path}: larger than {_LARGEST / 1e6:.0f} MB unpacked; no training keeps that much of a step"
            )
        content = json.loads(data)
        if isinstance(content.get("format"), int) and content["format"] > _FORMAT:
            raise RunError(f"{path}: a newer workbench wrote it (format {content['format']}, this one reads {_FORMAT})")
        if "step" not in content:
            raise RunError(f"{path}: this file holds no recorded step, or is damaged")
        check_fields(content)
        vocabulary = {int(token): text for token, text in content["vocabulary"].items()}
        return SavedStep(
            content["number"], content["versions"], vocabulary, _step_from(content["step"]), path.stat().st_size
        )
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except UnfitStep as error:
        raise RunError(f"{path}: its step cannot be read: {error}") from None
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: this file holds no recorded step, or is damaged ({error!r})") from None


def _step_from(content: dict) -> Step:
    arrays = {name: [_array(table) for table in content[name]] for name in ("rewards", "advantages")}
    rows = [
        SampledRow(**{name: _array(row[name]) if name in _ARRAYS else row[name] for name in row})
        for row in content["rows"]
    ]
    turns = content.get("turns") and [Turn(**turn) for turn in content["turns"]]
    arrays |= {name: _array(content.get(name)) for name in ("returned", "kl")}
    micro_batches = [_micro_rows(micro) for micro in content["micro_batches"]]
    settings = _DEFAULTS | content["settings"]
    if isinstance(scale := settings["scale_rewards"], bool):  # TRL's config takes it too
        settings["scale_rewards"] = "group" if scale else "none"
    metrics = {name: _number(value) for name, value in content.get("metrics", {}).items()}
    dtype = str(content["dtype"]).removeprefix("torch.")
    read = {
        "dtype": _DTYPES.get(dtype, dtype),
        "rows": rows,
        "turns": turns,
        "micro_batches": micro_batches,
        "settings": settings,
        "metrics": metrics,
    }
    return _checked(Step(**content | arrays | read))


def _checked(step: Step) -> Step:
    """The step, if its tables fit together.

    Raises:
        UnfitStep: they do not; it names the first that does not.
    """
    if step.dtype not in _DTYPES.values():
        raise UnfitStep(f"dtype {step.dtype!r}: expected {', '.join(dict.fromkeys(_DTYPES.values()))}")
    if step.kind not in _KINDS:
        raise UnfitStep(f"kind {step.kind!r}: expected {' or '.join(_KINDS)}")
    if missing := [name for name in _NEEDED[step.kind] if step.settings.get(name) is None]:
        raise UnfitStep(f"settings without {' and '.join(missing)}")
    if step.settings.get("loss_type") == "dr_grpo" and step.settings.get("max_completion_length") is None:
        raise UnfitStep("settings without max_completion_length, by which loss_type 'dr_grpo' divides")
    if len(step.micro_batches) > step.settings["gradient_accumulation_steps"]:
        said = step.settings["gradient_accumulation_steps"]
        raise UnfitStep(f"{len(step.micro_batches)} micro-batches, and gradient_accumulation_steps is {said}")
    tables = sum(map(len, step.advantages))
    if tables != len(step.rows):
        raise UnfitStep(f"{tables} advantages for {len(step.rows)} rows")
    if step.rewards and step.kl is not None and len(step.kl) != len(step.rows):
        raise UnfitStep(f"kl of {len(step.kl)} rows for {len(step.rows)}")
    weights = step.settings["reward_weights"]
    for table, own in zip(step.rewards, step.advantages, strict=False):
        if table.ndim != 2:
            raise UnfitStep("rewards: expected a list for each row, with a number for each reward function")
        if weights is not None and len(weights) != table.shape[1]:
            raise UnfitStep(f"reward_weights of {len(weights)} reward functions, rewards of {table.shape[1]}")
        if step.processes == 1 and len(table) != len(own):
            raise UnfitStep(f"rewards of {len(table)} rows for {len(own)} advantages")
    if step.rank not in range(step.processes):
        raise UnfitStep(f"rank {step.rank} of {step.processes} processes: expected one from 0 on")
    for i, row in enumerate(step.rows):
        _check_row(i, row)
    for number, micro in enumerate(step.micro_batches):
        _check_micro_batch(step, number, micro)
    return step


def _check_row(i: int, row: SampledRow) -> None:
    if len(row.own) != len(row.ids) or len(row.mask) < len(row.ids) or row.end not in range(len(row.ids) + 1):
        said = f"own {len(row.own)}, mask {len(row.mask)}, end {row.end}"
        raise UnfitStep(f"row {i}: {said} for {len(row.ids)} ids")
    for name in ("old_logps", "ref_logps", "sampled_logps"):
        values = getattr(row, name)
        # A trainer may have one for the whole row.
        if values is not None and len(values) != 1 and row.mask[len(values) : len(row.ids)].any():
            raise UnfitStep(f"row {i}: {name} {len(values)} for {len(row.ids)} ids")


def _check_micro_batch(step: Step, number: int, micro: MicroRows) -> None:
    names = ("rows", "prompt_ids", "ids", "completion_ids", "completion_mask")
    counts = {name: len(part) for name in names if (part := getattr(micro, name)) is not None}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UnfitStep(f"micro-batch {number}: other numbers of rows: {said}")
    for i, row in enumerate(micro.rows):
        lengths = {name: len(array) for name in _OF_TOKENS if (array := getattr(row, name)) is not None}
        if np.ndim(row.advantage) and len(row.advantage) != 1:  # TRL's loss takes one of a row in a list, too
            lengths["advantage"] = len(row.advantage)
        if micro.completion_mask is not None:
            lengths["completion_mask"] = int(micro.completion_mask[i].sum())
        lengths["ids"] = len(micro.ids[i])
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise UnfitStep(f"micro-batch {number}, row {i}: other numbers of tokens: {said}")
        for setting, name in _needed_arrays(step).items():
            if row.logps is not None and getattr(row, name) is None:
                raise UnfitStep(f"micro-batch {number}, row {i} has no {name}, which {setting} needs")


def _needed_arrays(step: Step) -> dict[str, str]:
    """Setting, with its value -> the numbers of each token that a loss with it takes."""
    settings = step.loss_settings()
    if step.kind != "GRPO" or settings.loss_type not in LOSS_TYPES:
        return {}
    needed = {f"beta={settings.beta:g}": "ref_logps"} if settings.beta else {}
    if settings.top_entropy_quantile < 1:
        needed[f"top_entropy_quantile={settings.top_entropy_quantile:g}"] = "entropies"
    if settings.entropy_coef:
        needed[f"entropy_coef={settings.entropy_coef:g}"] = "entropies"
    return needed


def _micro_rows(content: dict) -> MicroRows:
    masks = content.get("completion_mask")
    arrays = {"completion_mask": None if masks is None else [_array(mask) for mask in masks]}
    rows = [*map(_loss_row, content["rows"])]
    return MicroRows(**content | arrays | {"rows": rows, "loss": _number(content["loss"])})


def _loss_row(content: dict) -> LossRow:
    arrays = {name: _array(value) if isinstance(value, list) else value for name, value in content.items()}
    return LossRow(**arrays | {"advantage": _number(arrays["advantage"])})


def _number(value: Any) -> Any:
    """A number that cannot be unknown: null stands for NaN."""
    return math.nan if value is None else value


def _array(values: Any) -> Any:
    """Numbers of a file, in which null stands for what is not finite."""
    return None if values is None else np.array(values, dtype=float)


def replay_step(path: str | os.PathLike) -> StepReport:
    """Compute the stages of a recorded step again, except those that need a model.

    Args:
        path: a file that a training with `record_steps` has kept, such as `RUN/steps/step-000050.json.gz`; or the dump of
            slime, prime-rl, NeMo-RL, verl or AReaL (`.pt`, `.jsonl`), of which each stage is judged that it holds.

    Returns:
        As `check_step` does, with the stages `ends`, `turns`, `mask`, `rewards`, `advantages`, `batches`, `ratios`,
        `correction`, `loss` and `metrics`.

    Raises:
        RunError: the file does not exist, holds no recorded step, or one whose settings and numbers do not fit together.
    """
    if is_dump(Path(path)):
        return replay_dump(path)
    saved = load_step(path)
    try:
        return replay(saved)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"{path}: its settings and numbers do not fit together ({error!r})") from error


def replay(saved: SavedStep) -> StepReport:
    step = saved.step
    losses = losses_of(step)
    ratios, correction, loss = stages_of_loss(step, losses)
    stages = [*stages_of_rows(step, saved.decode), check_batches(step), ratios, correction, seen_by_value(losses, loss)]
    of_trl = "trl" in saved.versions
    if not of_trl:
        stages = with_choices(step, losses, stages)
    stages = [with_other_loss(step, losses, stage) if stage and stage.name == "loss" else stage for stage in stages]
    stages.append(check_metrics(step, losses))
    return StepReport(with_deviations(step, stages), checked_rows(step, losses, saved.decode), step.kind, of_trl)


def saved_steps(folder: Path) -> dict[int, list[Path]]:
    """The recorded steps of the trainings in a folder and below it, each with its files: one of each process."""
    found: dict[int, list[Path]] = {}
    for inner, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith(ASIDE))
        for name in sorted(names):
            if (match := _NAME.fullmatch(name)) and Path(inner).name == STEPS:
                found.setdefault(int(match[1]), []).append(Path(inner) / name)
    return dict(sorted(found.items()))


def files_of(folder: Path, number: int | None) -> list[Path]:
    """The files of a step of the trainings in a folder.

    Raises:
        RunError: no step is recorded, or not this one.
        ParameterError: there are several, and none is named.
    """
    steps = saved_steps(folder)
    if not steps:
        if dumps := sorted(path.name for path in folder.glob("*[0-9].*") if is_dump(path)):
            shown = ", ".join(dumps[:3]) + ", ..." * (len(dumps) > 3)
            raise RunError(
                f"{folder}: no recorded step, but files that may be another framework's dumps ({shown}); give one"
            )
        how = "give record_steps=[1, 50] to GRPOTrainer, RLOOTrainer, train or attach_watch, and train again"
        raise RunError(f"{folder}: no step is recorded; {how}")
    recorded = ", ".join(map(str, [*steps][:20])) + ", ..." * (len(steps) > 20)
    if number is None and len(steps) > 1:
        raise ParameterError(f"{folder}: several steps are recorded; name one with --step: {recorded}")
    if number is not None and number not in steps:
        raise RunError(f"{folder}: step {number} is not recorded; recorded: {recorded}")
    return next(iter(steps.values())) if number is None else steps[number]
