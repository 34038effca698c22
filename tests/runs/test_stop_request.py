import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from conftest import write_notebook, write_run
from ppo_parts import needs_ppo

from workbench.errors import RunError, TrainingStopped
from workbench.runs import lock
from workbench.runs import stop_request as stop_request_module
from workbench.runs.files import load_metrics
from workbench.runs.run import create_run, list_runs
from workbench.runs.stop_request import clear_stop, go_on, honour_stop, interruptible, request_stop, stop_request

SMALL = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16, "save_steps": 4}


def test_a_request_is_seen_below_its_run_and_by_no_other_run(tmp_path):
    run, other = write_run(tmp_path, "1", state="running"), write_run(tmp_path, "2", state="running")
    request_stop(run, "enough")
    deep, deeper = run.path / "arms" / "one" / "seed-0", run.path / "arms" / "one" / "seed-0" / "a" / "b"
    deeper.mkdir(parents=True)
    assert [stop_request(f) for f in (run.path, run.path / "arms", deep)] == ["enough"] * 3
    assert stop_request(deeper) is None  # a stranger's folder far above is not its run
    assert stop_request(other.path) is None
    clear_stop(run)
    clear_stop(run)
    assert stop_request(deep) is None


def test_an_honoured_request_goes_and_its_run_reads_interrupted(tmp_path):
    run = create_run("by_hand", {}, tmp_path, state="running")
    request_stop(run, "enough")
    honour_stop(run.path / "arm", "stopped after step 3 of 9: enough")
    assert stop_request(run.path) is None
    assert (run.status["state"], run.status["error"]) == ("interrupted", "stopped after step 3 of 9: enough")
    go_on(run.path)
    assert (run.status["state"], run.status["error"]) == ("running", None)


def test_the_status_of_a_run_of_a_runner_is_left_to_the_runner(tmp_path):
    run = write_run(tmp_path, state="running")
    number = os.dup(lock.open_lock(run.path))  # the runner's
    lock.let_go(run.path)
    honour_stop(run.path, "stopped")
    assert run.status["state"] == "running"
    os.close(number)


def test_a_training_does_not_go_on_if_another_process_has(tmp_path):
    run = create_run("by_hand", {}, tmp_path, state="running")
    honour_stop(run.path, "stopped")
    with lock.looked_at(run.path), pytest.raises(RunError, match="holds its lock"):
        go_on(run.path)
    go_on(run.path)
    assert run.status["state"] == "running"


class AskAfter:
    """Asks for a stop in the middle of a step: a reward function sees the step before it ends."""

    def __init__(self, run, step: int):
        self.run, self.step, self.calls = run, step, 0

    def __call__(self, completions, **_):
        self.calls += 1
        if self.calls == self.step:
            request_stop(self.run, "enough")
        return [-float(len(text)) for text in completions]


def train(record_dir, reward, **fields):
    from workbench.experiments.recipes import make_recipe
    from workbench.experiments.train import train

    return train(make_recipe("starter", **(SMALL | fields)), reward_funcs=reward, record_dir=record_dir)


def log(folder) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    times = ("elapsed_s", "step_time", "rewards/AskAfter/mean", "rewards/AskAfter/std")
    return [{k: v for k, v in json.loads(line).items() if k not in times} for line in lines]


@pytest.mark.slow
def test_grpo_stops_after_a_step_and_goes_on_as_if_never_stopped(starter_folder, tmp_path):
    run = create_run("by_hand", {}, tmp_path, state="running")
    with pytest.raises(TrainingStopped, match="stopped after step 3 of 6: enough"):
        train(run.path, AskAfter(run, 3), max_steps=6)
    assert load_metrics(run.path / "metrics.jsonl")["step"].tolist() == [1, 2, 3]
    assert (run.path / "checkpoints/checkpoint-3/complete.json").is_file()
    assert run.status["state"] == "interrupted"
    train(run.path, AskAfter(run, -1), max_steps=6)
    assert run.status["state"] == "running"
    train(tmp_path / "never stopped", AskAfter(run, -1), max_steps=6)
    assert log(run.path) == log(tmp_path / "never stopped")
    assert run.completions.groupby("step").size().tolist() == [8] * 6


@pytest.mark.slow
def test_a_stop_asked_at_the_first_or_last_step_loses_nothing(starter_folder, tmp_path):
    run = create_run("by_hand", {}, tmp_path, state="running")
    request_stop(run, "too early")
    with pytest.raises(TrainingStopped, match="stopped after step 0 of 2: too early"):
        train(run.path, AskAfter(run, -1), max_steps=2)
    train(run.path, AskAfter(run, 2), max_steps=2)
    assert load_metrics(run.path / "metrics.jsonl")["step"].tolist() == [1, 2]


@needs_ppo
@pytest.mark.slow
def test_ppo_stops_too_and_leaves_its_policy(starter_folder, tmp_path):
    from ppo_parts import train_ppo
    from transformers import TrainerCallback

    from workbench.experiments.recipes import make_recipe

    run = create_run("by_hand", {}, tmp_path, state="running")

    class Ask(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == 1:
                request_stop(run, "enough")

    fields = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8, "max_steps": 4}
    with pytest.raises(TrainingStopped, match="stopped after step 1 of 4"):
        train_ppo(make_recipe("starter", **fields), record_dir=run.path, callbacks=[Ask()])
    assert (run.path / "checkpoints/checkpoint-1/complete.json").is_file()


@pytest.mark.rare
@pytest.mark.slow
def test_a_notebook_asked_to_stop_is_interrupted_and_resumes(starter_folder, tmp_path):
    from workbench.lab.batch.execute import execute_run
    from workbench.lab.batch.plan import plan_run

    cells = (
        "from workbench import length_reward, make_recipe\n"
        "from workbench.experiments import train\n"
        "from workbench.runs.stop_request import request_stop",
        f"recipe = make_recipe('starter', max_steps=4, **{SMALL})\n"
        "if not (run.path / 'asked').exists():\n    request_stop(run, 'enough'); (run.path / 'asked').touch()\n"
        "train(recipe, reward_funcs=length_reward(), record_dir=run.path)",
    )
    path = str(write_notebook(tmp_path / "hand_made.ipynb", *cells))
    run = plan_run(path, {}, root=tmp_path / "runs").prepare()
    assert execute_run(run, notebook=path, quiet=True) == "interrupted"
    assert run.status["error"] == "stopped after step 0 of 4: enough"
    assert execute_run(run, notebook=path, quiet=True) == "done"
    assert list_runs(tmp_path / "runs")[0].metrics["step"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '{"reason": null}', '{"other": 1}'])
def test_a_malformed_request_raises_nothing_inside_a_training(tmp_path, text):
    run = write_run(tmp_path, state="running")
    (run.path / "stop.json").write_text(text)
    assert stop_request(run.path) in (None, "asked to stop")


def test_a_file_system_away_for_a_moment_ends_no_training(tmp_path, monkeypatch):
    run = write_run(tmp_path, state="running")
    request_stop(run, "its button")
    with monkeypatch.context() as away:
        away.setattr(stop_request_module, "_run_folder", Mock(side_effect=OSError(116, "Stale file handle")))
        assert stop_request(run.path) is None
    assert stop_request(run.path) == "its button"


def test_sigterm_and_a_closed_terminal_interrupt_unless_handled():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            with interruptible():  # within another one
                os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_no_handler_is_set():
    def handler_of_sigterm():
        with interruptible():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor() as pool:
        assert pool.submit(handler_of_sigterm).result() is signal.SIG_DFL
