"""Where the definition of each stage is: the function here that computes it, and TRL's own line. Needs no TRL."""

import ast
import functools
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

# Stage -> the function in `workbench` that has its formula, or that compares where the definition is no formula.
FORMULAS = {
    "sampling": "watch.judge.Judge.sampling",
    "ends": "replay.stages.check_ends",
    "turns": "replay.stages.check_turns",
    "mask": "replay.grpo_math.loss_mask",
    "rewards": "replay.stages.check_rewards",
    "advantages": "replay.grpo_math.group_advantages",
    "batches": "replay.batches.check_batches",
    "images": "watch.images.check_images",
    "log-probs": "watch.judge.Judge.logprobs",
    "reference": "watch.judge.Judge.reference",
    "teacher": "watch.distillation_judge.DistillationJudge.teacher",
    "mismatch": "watch.judge.Judge.mismatch",
    "ratios": "replay.stages.check_ratios",
    "correction": "replay.grpo_math.sampler_correction",
    "loss": "replay.grpo_math.grpo_loss",
    "gradient": "watch.judge.Judge.gradient",
    "update": "watch.update_stage.update_stage",
    "metrics": "replay.stages.check_metrics",
}
# Kind of trainer -> stages that it defines in another way.
_OF_KIND = {
    "RLOO": {"advantages": "replay.grpo_math.leave_one_out_advantages", "loss": "replay.grpo_math.rloo_loss"},
    "AsyncGRPO": {
        "mask": "replay.packed.check_packed_mask",
        "advantages": "replay.packed.check_queued_advantages",
        "batches": "replay.packed.check_packing",
        "ratios": "replay.packed.check_old_logps",
        "loss": "replay.packed.check_update_loss",
        "metrics": "replay.packed.check_packed_metrics",
    },
    "Distillation": {
        "loss": "replay.distillation.divergence",
        "metrics": "replay.distillation.check_distilled_metrics",
    },
}
# Stage -> the method of TRL's trainer, and the name that it assigns there. The update is the work of transformers.
_OF_TRL = {
    "sampling": ("_generate_single_turn", ""),
    "ends": ("_generate", "is_truncated"),
    "turns": ("_tool_call_loop", ""),
    "mask": ("_generate_and_score_completions", "completion_mask"),
    "rewards": ("_calculate_rewards", ""),
    "advantages": ("_generate_and_score_completions", "advantages"),
    "batches": ("_prepare_inputs", ""),
    "log-probs": ("_get_per_token_logps_and_entropies", ""),
    "reference": ("_generate_and_score_completions", "ref_per_token_logps"),
    "mismatch": ("_generate_and_score_completions", "sampling_per_token_logps"),
    "ratios": ("_compute_loss", "coef_1"),
    "correction": ("_generate_and_score_completions", "vllm_importance_sampling_ratio"),
    "loss": ("_compute_loss", ""),
    "gradient": ("training_step", ""),
    "metrics": ("log", ""),
}


def formula_of(stage: str, kind: str = "GRPO") -> str:
    """Module and function of a stage's definition; empty for an unknown stage.

    Args:
        stage: its name in a report.
        kind: of the trainer: GRPO, RLOO, AsyncGRPO or Distillation.

    Example:
        >>> formula_of("loss"), formula_of("loss", "RLOO")
        ('replay.grpo_math.grpo_loss', 'replay.grpo_math.rloo_loss')
    """
    own = _OF_KIND.get(kind, {})
    return own.get(stage, FORMULAS.get(stage, ""))


def trl_line(stage: str, kind: str = "GRPO") -> str:
    """Address of the line in the installed release of TRL that does what a stage checks; empty where there is none.

    A development version has no tag to link to, so it has no address. TRL is read as text and not imported.

    Args:
        stage: its name in a report.
        kind: of the trainer, GRPO or RLOO.
    """
    release = _installed_release()
    if stage not in _OF_TRL or not release:
        return ""
    method, name = _OF_TRL[stage]
    line = _lines_of(_trainer_file(kind), f"{kind}Trainer").get((method, name))
    if line is None:
        return ""
    return f"https://github.com/huggingface/trl/blob/v{release}/trl/trainer/{kind.lower()}_trainer.py#L{line}"


def _installed_release() -> str:
    """`1.16.0`; empty without TRL, or with a version that is no release."""
    try:
        installed = version("trl")
    except PackageNotFoundError:
        return ""
    return installed if re.fullmatch(r"\d+(\.\d+)*", installed) else ""


def _trainer_file(kind: str) -> Path:
    spec = find_spec("trl")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    return folder / "trainer" / f"{kind.lower()}_trainer.py"


@functools.cache  # a file of 3,000 lines, asked once a stage
def _lines_of(file: Path, trainer: str) -> dict[tuple[str, str], int]:
    """(method, name) -> the first line that assigns the name there, else the method's own; no entry without the method."""
    if not file.is_file():
        return {}
    classes = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    methods = {
        node.name: node
        for body in classes
        if body.name == trainer
        for node in body.body
        if isinstance(node, ast.FunctionDef)
    }
    lines = {}
    for method, name in _OF_TRL.values():
        if method in methods:
            assignments = [node for node in ast.walk(methods[method]) if isinstance(node, ast.Assign)]
            assigned = [node.lineno for node in assignments if _assigns(node, name)]
            lines[method, name] = min(assigned, default=methods[method].lineno)
    return lines


def _assigns(node: ast.Assign, name: str) -> bool:
    targets = [part for target in node.targets for part in ast.walk(target)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)
