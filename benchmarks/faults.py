"""What measures faults that are put into a trainer: how one is written down, built, looked for and judged.

`check_step` looks at one step before the training. Where no stage differs, the watch looks at each of three updates. The same
settings without the fault, the fault's twin, are checked in the same way: a stage that differs there would be a false alarm.
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer, Trainer

from tools.record import ROOT, about, parser, use_one_thread
from workbench.experiments.recipes import resolve_model
from workbench.replay.report import StepReport
from workbench.runs.files import read_json, write_json
from workbench.watch.attach import StepCheck
from workbench.watch.check_step import check_step

sys.path.append(str(ROOT / "tests" / "helpers"))  # the tests' trainers of small steps

import async_cases
import distillation_cases
from step_cases import PROMPTS, length, vowels, with_stops

BASE = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": [], "save_strategy": "no"}
BASE |= {
    "disable_tqdm": True,
    "logging_strategy": "no",
    "learning_rate": 1e-4,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
}
BASE |= {"max_completion_length": 16}
MANY = {"per_device_train_batch_size": 16, "max_completion_length": 64}
TWO = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
OFTEN = {"num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4}
STALE_ROWS = {"versions": (2, 1), "now": 2}  # of AsyncGRPO
WHOLE = {"gradient_accumulation_steps": 1, "per_device_train_batch_size": 8}


# --- how a fault is written down ----------------------------------------------------------------------------------------


@dataclass
class Fault:
    """A trainer with a fault, the stage at which it lies, its twin without the fault, and their settings.

    `stage` is one name, or several with "or" between them where each is the place of the fault. `own` are settings that
    are the fault itself, which the twin does not have.
    """

    cls: type
    twin: type
    stage: str
    settings: dict[str, Any]
    says: str = ""
    own: dict[str, Any] = field(default_factory=dict)


def plant(faults: dict[str, Fault], stage: str, /, **settings: Any) -> Callable[[type], type]:
    """Enter a class into a table of faults, with its stage and the settings of its trainer.

    Its docstring says what is wrong; its twin is the nearest trainer that it inherits from.
    """

    def enter(cls: type) -> type:
        twin = next(base for base in cls.__mro__[1:] if issubclass(base, Trainer))
        says = " ".join((cls.__doc__ or "").split())
        faults[cls.__name__] = Fault(cls, twin, stage, settings, says)
        return cls

    return enter


_OF_TWINS: dict[tuple[str, ...], list[str]] = {}


# --- running one --------------------------------------------------------------------------------------------------------


def build(fault: Fault, folder: str, *, healthy: bool = False):
    """Make a trainer with a fault, or its twin without it, and the rows that AsyncGRPO trains."""
    settings = fault.settings | ({} if healthy else fault.own)
    cls = fault.twin if healthy else fault.cls
    torch.manual_seed(0)
    if issubclass(cls, async_cases.AsyncGRPOTrainer):
        rows = async_cases.samples(**settings.pop("rows"))
        version = fault.settings["rows"].get("now", 0)
        return async_cases.make(folder, cls, version=version, **settings), rows
    if issubclass(cls, distillation_cases.DistillationTrainer):
        return distillation_cases.make(folder, cls, **settings), None
    funcs = settings.pop("funcs", (length, vowels))
    policy = settings.pop("model", with_stops if settings.pop("stops", False) else "starter")
    optimizer = settings.pop("optimizer", None)
    config = trl.RLOOConfig if issubclass(cls, trl.RLOOTrainer) else trl.GRPOConfig
    args = config(folder, **(BASE | settings))
    model = policy() if callable(policy) else resolve_model(policy)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("starter" if callable(policy) else policy))
    data = Dataset.from_dict({"prompt": PROMPTS * 4})
    more = {"optimizers": (optimizer(), None)} if optimizer else {}
    return cls(model, list(funcs), args=args, train_dataset=data, processing_class=tokenizer, **more), None


def summary(report: StepReport) -> dict[str, dict[str, str]]:
    """Return the stages that differ and those that cannot be told, each with its cause."""
    return {
        verdict: {stage.name: stage.cause for stage in report.stages if stage.verdict == verdict}
        for verdict in ("different", "cannot tell")
    }


def checked(fault: Fault, *, healthy: bool = False) -> dict[str, dict[str, str]]:
    """Check one step of a trainer before its training."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, rows = build(fault, folder, healthy=healthy)
        return summary(check_step(trainer, batch=rows))


def watched(fault: Fault, *, healthy: bool = False) -> dict[int, dict[str, dict[str, str]]]:
    """Check each of three updates of a training; the result by step."""
    with tempfile.TemporaryDirectory() as folder:
        longer = replace(fault, settings=fault.settings | {"max_steps": 3})
        trainer, _ = build(longer, folder, healthy=healthy)
        check = StepCheck(trainer, 1, tell=lambda line: None)
        trainer.train()
        return {step: summary(report) for step, report in check.reports.items()}


def judged(fault: Fault, before: dict, steps: dict[int, dict]) -> dict[str, Any]:
    """Say where a fault was found.

    Args:
        before: the summary of the step before the training.
        steps: those of watched updates; empty where the first one has a difference.

    Returns:
        `result` is right, other stage, honest or silent; `at` is 0 for `check_step`, else the watched update.
    """
    places = fault.stage.split(" or ")
    for step, stages in {0: before, **steps}.items():
        for name, cause in stages["different"].items():
            result = "right" if name in places else "other stage"
            return {"result": result, "at": step, "named": name, "cause": cause}
    for step, stages in {0: before, **steps}.items():
        for name in places:
            if name in stages["cannot tell"]:
                return {"result": "honest", "at": step, "named": name, "cause": stages["cannot tell"][name]}
    return {"result": "silent", "at": max([0, *steps]), "named": "", "cause": ""}


def false_alarms(fault: Fault, look: Callable[..., dict]) -> list[str]:
    """Return the stages that differ in a fault's twin; twins of the same settings are looked at once."""
    key = look.__name__, fault.twin.__name__, repr(fault.settings)
    if key not in _OF_TWINS:
        result = look(fault, healthy=True)
        reports = [result] if look is checked else result.values()
        _OF_TWINS[key] = [name for report in reports for name in report["different"]]
    return _OF_TWINS[key]


def measure(fault: Fault) -> dict[str, Any]:
    """Look for a fault, and for a difference in its twin."""
    before = checked(fault)
    steps = {} if before["different"] else watched(fault)
    false = list(false_alarms(fault, checked))
    if steps:
        false += false_alarms(fault, watched)
    return {"stage": fault.stage, "says": fault.says} | judged(fault, before, steps) | {"false alarms of twin": false}


def measure_all(
    doc: str | None, faults: Mapping[str, Fault], measure_one: Callable[[Fault], dict[str, Any]] = measure
) -> None:
    """Measure faults by the options of a command line; `--out` stores them next to those of other columns."""
    options = parser(doc, only=[""], column="now").parse_args()
    use_one_thread()
    stored = read_json(options.out, {}).get("rows", {}) if options.out else {}
    rows = stored.get(options.column, {}).get("faults", {})
    for name, fault in faults.items():
        if not name.startswith(tuple(options.only)):
            continue
        rows[name] = measure_one(fault)
        row = rows[name]
        print(f"{name:24} {fault.stage:11} {row['result']:12} {row['named']:11} {row['at']} {row['cause']}", flush=True)
        if row["false alarms of twin"]:
            print(f"{name:24} its twin differs at {row['false alarms of twin']}", flush=True)
        if options.out:
            write_json(options.out, {"rows": stored | {options.column: {"environment": about(), "faults": rows}}})
