"""Looks at the environment a user has: is what the library asks for there, which back ends can run, what is missing."""

import dataclasses
import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from packaging.requirements import Requirement


@dataclasses.dataclass(frozen=True)
class Finding:
    """`verdict` is `ok`, `warning` (something optional is absent) or `error` (things will break)."""

    verdict: str
    subject: str
    detail: str


def examine() -> list[Finding]:
    """Every finding about this environment; nothing is changed and no network is used."""
    return [_python(), *_requirements(), _vllm(), _gpu(), _program("slurm", "sbatch"), _program("chromium", "chromium")]


def _python() -> Finding:
    have = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding("ok" if good else "error", "python", have if good else f"{have}; 3.11 or newer is needed")


def _requirements() -> list[Finding]:
    """Of what the library asks for: wrong where it is missing or outside of its range; an extra's may be missing."""
    findings = []
    try:
        asked = requires("trl-workbench") or []
    except PackageNotFoundError:
        return [
            Finding("error", "trl-workbench", "not installed; run `make install`, or `pip install .` in the checkout")
        ]
    for requirement in map(Requirement, asked):
        extra = requirement.marker is not None and "extra ==" in str(requirement.marker)
        if "dev" in str(requirement.marker) or requirement.name == "vllm":  # which has a line of its own
            continue
        try:
            have = version(requirement.name)
        except PackageNotFoundError:
            if not extra:
                findings.append(Finding("error", requirement.name, f"not installed; {_asked(requirement)}"))
            continue
        good = requirement.specifier.contains(have, prereleases=True)
        findings.append(
            Finding("ok" if good else "error", requirement.name, have if good else f"{have}; {_asked(requirement)}")
        )
    return findings


def _asked(requirement: Requirement) -> str:
    return f'the workbench takes "{requirement.name}{requirement.specifier}"'


def _vllm() -> Finding:
    found = find_spec("vllm")
    if found is None or found.origin is None:  # a folder without a module is what a failed removal leaves
        return Finding("warning", "vllm", "not installed (make install, or the extra `vllm` on a GPU node)")
    return Finding("ok", "vllm", "available")


def _gpu() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:  # a library that torch loads is missing
        return Finding("error", "gpu", f"torch cannot be imported: {str(error).splitlines()[0]}")
    if not torch.cuda.is_available():
        return Finding("warning", "gpu", f"none; torch {torch.__version__}, {os.cpu_count()} cores: toy scale only")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("ok", "gpu", ", ".join(names))


def _program(subject: str, name: str) -> Finding:
    path = shutil.which(name)
    return Finding("ok" if path else "warning", subject, path or f"no `{name}` on the PATH")
