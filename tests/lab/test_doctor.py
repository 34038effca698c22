from importlib.machinery import ModuleSpec

import pytest
from conftest import call

from workbench.lab import doctor
from workbench.lab.doctor import Finding, examine


def of(subject: str) -> Finding:
    (finding,) = [f for f in examine() if f.subject == subject]
    return finding


@pytest.mark.parametrize(("verdicts", "code"), [(["ok", "warning"], 0), (["ok", "error", "warning"], 1), ([], 0)])
def test_the_exit_code_is_1_only_when_something_is_wrong(capsys, monkeypatch, verdicts, code):
    monkeypatch.setattr(doctor, "examine", lambda: [Finding(v, "trl", "1.12.0") for v in verdicts])
    worst_first = sorted(verdicts, key=["error", "warning", "ok"].index)
    assert call(capsys, "doctor") == (code, "".join(f"{v:8} trl: 1.12.0\n" for v in worst_first), "")


def test_a_checkout_that_is_not_installed_says_what_to_run(monkeypatch):
    def absent(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", absent)
    assert of("trl-workbench") == Finding(
        "error", "trl-workbench", "not installed; run `make install`, or `pip install .` in the checkout"
    )


def test_every_part_of_the_environment_has_a_line():
    subjects = [finding.subject for finding in examine()]
    assert subjects[0] == "python"
    assert {"torch", "trl", "vllm", "gpu", "slurm", "chromium"} <= set(subjects)
    assert len(subjects) == len(set(subjects))


def test_a_requirement_is_ok_in_its_range_and_wrong_outside_of_it_or_when_it_is_missing(monkeypatch):
    asked = ["trl<1.17,>=1.12", 'papermill>=2.7; extra == "lab"', 'pytest; extra == "dev"', 'vllm>=1; extra == "vllm"']
    monkeypatch.setattr(doctor, "requires", lambda _: asked)
    for version, wanted in (
        ("1.12.0", Finding("ok", "trl", "1.12.0")),
        ("1.16.3+cpu", Finding("ok", "trl", "1.16.3+cpu")),  # a build with a local name
        ("1.11.0", Finding("error", "trl", '1.11.0; the workbench takes "trl<1.17,>=1.12"')),
        ("1.17.0", Finding("error", "trl", '1.17.0; the workbench takes "trl<1.17,>=1.12"')),
    ):
        monkeypatch.setattr(doctor, "version", lambda _, version=version: version)
        assert of("trl") == wanted
    assert of("papermill").verdict == "error"  # 1.17.0 is too old for it
    assert not [f for f in examine() if f.subject == "pytest"]

    def missing(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert of("trl") == Finding("error", "trl", 'not installed; the workbench takes "trl<1.17,>=1.12"')
    assert not [f for f in examine() if f.subject == "papermill"]  # of an extra, which may be absent


def test_a_python_too_old_is_wrong(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 2))
    assert of("python") == Finding("error", "python", "3.9.2; 3.11 or newer is needed")
    monkeypatch.setattr(doctor.sys, "version_info", (3, 12, 0))
    assert of("python") == Finding("ok", "python", "3.12.0")


def test_what_is_optional_and_absent_is_a_note(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    assert of("slurm") == Finding("warning", "slurm", "no `sbatch` on the PATH")
    assert of("vllm").verdict == "warning"
    assert of("vllm").detail.startswith("not installed (")
    monkeypatch.setattr(doctor, "find_spec", lambda name: ModuleSpec(name, None))  # an empty folder, left by a removal
    assert of("vllm").verdict == "warning"
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setattr(doctor, "find_spec", lambda name: ModuleSpec(name, None, origin="vllm/__init__.py"))
    assert of("slurm") == Finding("ok", "slurm", str(tmp_path / "sbatch"))
    assert of("vllm").detail == "available"
