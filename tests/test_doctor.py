import pytest
from conftest import call

from workbench import doctor
from workbench.doctor import Finding, backends, examine


def of(subject: str) -> Finding:
    (finding,) = [f for f in examine() if f.subject == subject]
    return finding


@pytest.mark.parametrize(("verdicts", "code"), [(["ok", "note"], 0), (["ok", "wrong", "note"], 1), ([], 0)])
def test_the_exit_code_is_1_only_when_something_is_wrong(capsys, monkeypatch, verdicts, code):
    monkeypatch.setattr(doctor, "examine", lambda: [Finding(v, "trl", "1.12.0") for v in verdicts])
    assert call(capsys, "doctor") == (code, "".join(f"{v:5} trl: 1.12.0\n" for v in verdicts), "")


def test_every_part_of_the_environment_has_a_line():
    subjects = [finding.subject for finding in examine()]
    assert subjects[0] == "python"
    assert {"torch", "trl", "vllm", "gpu", "slurm", "chromium"} <= set(subjects)
    assert len(subjects) == len(set(subjects))


def test_a_pin_is_ok_as_pinned_and_wrong_in_another_version_or_when_it_is_missing(monkeypatch):
    monkeypatch.setattr(
        doctor, "requires", lambda _: ["trl==1.12.0", "torch == 2.1 ; x", "vllm==1; extra == 'vllm'", "a>=1"]
    )
    for version, wanted in (
        ("1.12.0", Finding("ok", "trl", "1.12.0")),
        ("1.12.0+cpu", Finding("ok", "trl", "1.12.0+cpu")),  # a build of the pinned version
        ("0.0.1", Finding("wrong", "trl", "0.0.1; 1.12.0 is pinned")),
    ):
        monkeypatch.setattr(doctor, "version", lambda _, version=version: version)
        assert of("trl") == wanted
    assert not [f for f in examine() if f.subject in ("a", "vllm==1")]

    def missing(name):
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert of("trl") == Finding("wrong", "trl", "not installed; 1.12.0 is pinned")


def test_a_python_too_old_is_wrong(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 2))
    assert of("python") == Finding("wrong", "python", "3.9.2; 3.11 or newer is needed")
    monkeypatch.setattr(doctor.sys, "version_info", (3, 12, 0))
    assert of("python") == Finding("ok", "python", "3.12.0")


def test_what_is_optional_and_absent_is_a_note(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    assert of("slurm") == Finding("note", "slurm", "no `sbatch` on the PATH")
    assert of("vllm").verdict == "note"
    assert backends() == {"transformers": "available", "vllm": of("vllm").detail}
    assert of("vllm").detail.startswith("not installed (")
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setattr(doctor, "find_spec", lambda name: name)
    assert of("slurm") == Finding("ok", "slurm", str(tmp_path / "sbatch"))
    assert backends()["vllm"] == of("vllm").detail == "available"
