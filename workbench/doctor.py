"""Looks at the environment a user has: are the pins installed, which back ends can run here, what is missing."""

import dataclasses
import os
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec


@dataclasses.dataclass(frozen=True)
class Finding:
    """`verdict` is `ok`, `note` (something optional is absent) or `wrong` (things will break)."""

    verdict: str
    subject: str
    detail: str


def examine() -> list[Finding]:
    """Every finding about this environment; nothing is changed and no network is used."""
    return [_python(), *_pins(), _vllm(), _gpu(), _program("slurm", "sbatch"), _program("chromium", "chromium")]


def backends() -> dict[str, str]:
    """Back end -> "available", or the reason it is not."""
    return {
        "transformers": "available",
        "vllm": "available" if find_spec("vllm") else "not installed (make install, or the extra `vllm` on a GPU node)",
    }


def _python() -> Finding:
    have = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= (3, 11)
    return Finding("ok" if good else "wrong", "python", have if good else f"{have}; 3.11 or newer is needed")


def _pins() -> list[Finding]:
    findings = []
    for requirement in requires("workbench") or []:
        pin = re.fullmatch(r"([\w-]+)==([\w.]+)", requirement.split(";")[0].strip())
        if not pin or "extra ==" in requirement:
            continue
        name, wanted = pin.groups()
        try:
            have = version(name)
        except PackageNotFoundError:
            findings.append(Finding("wrong", name, f"not installed; {wanted} is pinned"))
            continue
        same = have.split("+")[0] == wanted
        findings.append(Finding("ok" if same else "wrong", name, have if same else f"{have}; {wanted} is pinned"))
    return findings


def _vllm() -> Finding:
    state = backends()["vllm"]
    return Finding("ok" if state == "available" else "note", "vllm", state)


def _gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("note", "gpu", f"none; torch {torch.__version__}, {os.cpu_count()} cores: toy scale only")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("ok", "gpu", ", ".join(names))


def _program(subject: str, name: str) -> Finding:
    path = shutil.which(name)
    return Finding("ok" if path else "note", subject, path or f"no `{name}` on the PATH")
