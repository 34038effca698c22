"""The model of a run, given by hand: its files, from a folder or a hub, and what padding does to it, measured."""

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import ParameterError
from ..logs.log import Log
from .finding import CANNOT_TELL, FOUND, NOT_FOUND, WARNING, Finding

_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
_LARGEST = 5e9  # bytes of weights that are loaded to be measured
_TEXTS = ("The sea.", "A red fox ran over the hill and was not seen again.")


def model_folder(model: str | os.PathLike) -> Path:
    """The folder with a model's config: the one given, or a hub's id, of which config and tokenizer are fetched, no weights.

    Raises:
        ParameterError: neither.
    """
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not isinstance(model, str) or model.count("/") > 1:
        raise ParameterError(f"model={str(model)!r}: no config.json there; expected the folder of a model, or a hub id")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=_FILES))
    except Exception as error:  # offline, unknown, gated, not an id: each has a class of its own
        reason = str(error).split("\n")[0][:160]
        raise ParameterError(
            f"model={model!r}: no folder with a config.json, and no hub gives it ({type(error).__name__}: {reason}); "
            "expected the folder of a model, or an id that the hub, or its cache on this machine, has"
        ) from error


def measured(findings: Sequence[Finding], log: Log, folder: Path) -> tuple[Finding, ...]:
    """The findings, `padding-positions` among them measured on the model's weights where its config alone says too little.

    Costs loading the weights and some dozen forward passes of short texts: seconds for 0.5 B parameters on a CPU. Without
    weights in the folder, or with more than 5 GB of them, the finding stays as it is and says so.
    """
    return tuple(_measured(f, log, folder) if f.rule == "padding-positions" else f for f in findings)


def _measured(finding: Finding, log: Log, folder: Path) -> Finding:
    if finding.verdict == NOT_FOUND:
        return finding
    size = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    if not 0 < size <= _LARGEST:
        why = f"{size / 1e9:.0f} GB of weights, too many here" if size else "no *.safetensors in the model's folder"
        return dataclasses.replace(finding, advice=f"{finding.advice} Not measured: {why}.")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ..diagnostics.padding_report import EXACT, ROUNDING, padding_report

    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype="float32")
    report = padding_report(model, AutoTokenizer.from_pretrained(folder), _texts(log), dtypes=["float32"])
    took = f"Measured on the model's weights in {time.perf_counter() - start:.0f} s: {report.kind}."
    evidence = {**finding.evidence, "measured": report.kind, "measured difference, nats": report.worst()}
    if report.kind in (EXACT, ROUNDING):
        return Finding(finding.rule, NOT_FOUND, took, evidence=evidence)
    if finding.verdict == CANNOT_TELL:
        says = (
            f"{took} Where prompts differ in length and the trainer passes no position ids, as TRL's, scores are wrong."
        )
        return dataclasses.replace(
            finding, verdict=FOUND, severity=WARNING, says=says, evidence=evidence, advice=report.reason
        )
    return dataclasses.replace(finding, says=f"{finding.says} {took}", evidence=evidence)


def _texts(log: Log) -> Sequence[str]:
    """The shortest and the longest of the run's first prompts, or two sentences."""
    if log.completions is None:
        return _TEXTS
    prompts = sorted({str(p)[:400] for p in log.completions["prompt"].head(200)}, key=len)
    return (prompts[0], prompts[-1]) if len(prompts) > 1 and len(prompts[0].split()) > 1 else _TEXTS
