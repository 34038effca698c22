import subprocess
import sys
import time

import pytest

from workbench.errors import ParameterError
from workbench.experiments import __main__ as experiments_main
from workbench.experiments.__main__ import main, parse_fields
from workbench.runs.files import read_json, write_text
from workbench.runs.results import results_of
from workbench.runs.run import load_run
from workbench.runs.stop_request import request_stop


def test_fields_are_read_as_the_recipes_types():
    fields = parse_fields(["model=starter", "max_steps=3", "learning_rate=1e-4"])
    assert fields == {"model": "starter", "max_steps": 3, "learning_rate": 1e-4}


BAD = {"steps=3": "unknown parameter .steps.: did you mean", "max_steps": "NAME=VALUE", "max_steps=x": "expected int"}


@pytest.mark.parametrize(("item", "message"), BAD.items())
def test_bad_fields_are_refused(item, message):
    with pytest.raises(ParameterError, match=message):
        parse_fields([item])


def test_a_server_without_vllm_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="backend=vllm"):
        main(["--out", str(tmp_path), "--vllm-server", "http://127.0.0.1:1"])


@pytest.mark.parametrize(("logged", "confirmed"), [([1, 2, 3], True), ([1, 3], False), ([1, 2, 2, 3], False)])
def test_a_step_that_was_not_logged_is_noticed(tmp_path, monkeypatch, logged, confirmed):
    """Steps that were missing counted as logged exactly once."""

    def train(recipe, *, record_dir, **_):
        write_text(record_dir / "metrics.jsonl", "".join(f'{{"step": {n}, "reward": 1.0}}\n' for n in logged))

    monkeypatch.setattr(experiments_main, "train", train)
    main(["--out", str(tmp_path / "05_grpo_docs_example" / "one"), "-p", "max_steps=3"])
    (once,) = results_of(load_run(tmp_path / "05_grpo_docs_example" / "one").result)
    assert once.holds is confirmed


def launched(out, steps: int) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d"]
    command += ["--rdzv_endpoint", "localhost:0", "-m", "workbench.experiments", "--out", str(out)]
    fields = (f"max_steps={steps}", "per_device_train_batch_size=8", "max_completion_length=16")
    return command + [part for field in fields for part in ("-p", field)]


@pytest.mark.rare
@pytest.mark.slow
def test_two_processes_of_one_run_stop_and_go_on_together(tmp_path, starter_folder):
    out = tmp_path / "05_grpo_docs_example" / "two"
    process = subprocess.Popen(launched(out, 8), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while read_json(out / "progress.json", {"step": 0})["step"] < 1:
        assert process.poll() is None, process.stderr.read()[-3000:]
        time.sleep(0.05)
    request_stop(load_run(out), "enough")
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "workbench.experiments: stopped after step " in errors
    run = load_run(out)
    assert run.status["state"] == "interrupted"
    assert run.status["error"].startswith("stopped after step ")
    again = subprocess.run(launched(out, 8), capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr[-3000:]
    assert run.status["state"] == "done"
    assert run.metrics["step"].tolist() == list(range(1, 9))
    assert run.completions.groupby("step").size().tolist() == [16] * 8
