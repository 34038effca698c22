import asyncio
import os
import shutil
import signal
import threading
import time
from functools import partial

import pytest
from conftest import ROOT, until, write_run
from widget_samples import widgets_alive, with_problem

from workbench.errors import RunError, TrainingStopped
from workbench.lab.widgets import train_live, watch
from workbench.runs.files import load_metrics
from workbench.runs.run import Run, create_run, set_status
from workbench.runs.stop_request import stop_request


class FakeTraining:
    """Steps of a training that looks for the stop request after each, and goes on where it stopped."""

    def __init__(self, run: Run, steps: int):
        self.run, self.steps, self.step = run, steps, 0
        self.began = threading.Event()

    def __call__(self):
        while self.step < self.steps:
            self.step += 1
            self.began.set()
            time.sleep(0.01)
            if reason := stop_request(self.run.path):
                raise TrainingStopped(f"stopped after step {self.step} of {self.steps}: {reason}")
        return self


@pytest.fixture
def run(tmp_path):
    return create_run("by_hand", {"seed": 0}, tmp_path, state="running")


def test_stop_ends_a_training_after_its_step_continue_resumes_it(run):
    training = FakeTraining(run, steps=10**9)
    view = watch(run, train=training, every=0.02)

    async def press_stop_while_it_trains():
        cell = asyncio.create_task(view.trained())
        while not training.began.is_set():
            await asyncio.sleep(0.01)
        assert "training" in view.state.value and view.go_on.disabled
        view.stop.click()
        assert view.stop.disabled
        await cell

    with pytest.raises(TrainingStopped, match="stopped by its button") as stopped:
        asyncio.run(press_stop_while_it_trains())
    assert stopped.value._render_traceback_()[0].startswith("TrainingStopped: stopped after step")
    assert "interrupted: can go on from its last checkpoint" in view.state.value
    stopped_at, training.steps = training.step, training.step + 3
    view.go_on.click()
    until(lambda: view.trainer is training)
    until(lambda: "trained" in view.state.value)
    assert training.step == stopped_at + 3
    assert view.stop.disabled and view.go_on.disabled


def test_stop_works_again_after_continue(run):
    training = FakeTraining(run, steps=10**9)
    view = watch(run, train=training, every=0.02)
    for _ in range(3):
        training.began.clear()
        view.start()
        until(training.began.is_set)
        view.stop.click()
        until(lambda: "interrupted" in view.state.value and not view.training)


def test_two_views_of_a_run_train_one_at_a_time(run):
    """Continue in the old view, then the cell again."""
    training, again = FakeTraining(run, steps=10**9), FakeTraining(run, steps=3)
    old, new = (watch(run, train=each, every=0.02) for each in (training, again))
    old.start()
    until(training.began.is_set)
    with pytest.raises(RunError, match="trains already, in another view of this kernel"):
        asyncio.run(new.trained())
    new.refresh()
    assert "training" in new.state.value and new.go_on.disabled and not new.stop.disabled
    new.go_on.click()
    new.stop.click()
    until(lambda: "interrupted" in old.state.value and not old.training)
    assert again.step == 0
    until(lambda: not new.go_on.disabled)
    new.go_on.click()
    until(lambda: new.trainer is again)


def test_the_kernel_s_interrupt_stops_like_the_button(run):
    training = FakeTraining(run, steps=10**9)

    async def interrupt():
        cell = asyncio.create_task(train_live(run, training))
        while not training.began.is_set():
            await asyncio.sleep(0.01)
        cell.cancel()
        await cell

    with pytest.raises(TrainingStopped, match="the kernel's interrupt"):
        asyncio.run(interrupt())


def test_an_error_in_the_training_reaches_the_cell_and_the_view(run):
    def broken():
        raise ValueError("<b>no</b> such reward")

    view = watch(run, train=broken, every=0.02)
    with pytest.raises(ValueError, match="such reward"):
        asyncio.run(view.trained())
    assert "failed: see the error. ValueError: &lt;b&gt;no&lt;/b&gt; such reward" in view.state.value
    assert not view.go_on.disabled


def test_without_controls_it_is_a_call_in_the_calling_thread(run, capsys):
    before, where = widgets_alive(), []
    trainer = asyncio.run(
        train_live(run, lambda: where.append(threading.current_thread()) or "trainer", interactive=False)
    )
    assert (trainer, where) == ("trainer", [threading.current_thread()])
    assert widgets_alive() == before
    assert "TrainingProgress" in capsys.readouterr().out  # what display() prints outside a notebook


def test_without_controls_an_interrupt_ends_the_training_at_once(run):
    """asyncio, as a kernel does, has Ctrl-C cancel what awaits; a training in the calling thread would not notice."""
    steps, before = [], signal.getsignal(signal.SIGINT)

    def train():
        steps.append(1)
        os.kill(os.getpid(), signal.SIGINT)
        steps.append(2)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(train_live(run, train, interactive=False))
    assert steps == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_elsewhere_is_followed_to_its_end_or_stopped(tmp_path):
    run = write_run(tmp_path, state="running")
    view = watch(run, every=0.02)
    assert view.go_on.disabled and not view.stop.disabled
    view.stop.click()
    assert stop_request(run.path) == "stopped by its button"
    until(lambda: "stopping" in view.state.value)
    (run.path / "progress.json").write_text('{"step": 3, "max_steps": 4}')
    set_status(run.path, "done")
    until(lambda: "done" in view.state.value and "step 3 of 4" in view.result.value)
    until(lambda: not view._following.is_alive())


def test_a_done_run_with_a_problem_has_no_tick(tmp_path):
    """A training in which nothing moved was shown as done with a tick."""
    view = watch(write_run(tmp_path, "1"))
    assert "\u2713 done: the run is complete<" in view.state.value
    view = watch(with_problem(write_run(tmp_path, "2")))
    assert "\u2717 done: the run is complete. audit: problem zero-gradient<" in view.state.value


def test_a_training_with_a_problem_ends_without_a_tick(run):
    recorded = ROOT / "tests/audit/runs/stock_masked"
    view = watch(run, train=lambda: shutil.copytree(recorded, run.path / "stock"), every=0.02)
    asyncio.run(view.trained())
    assert view.state.value.count("\u2717 trained: ") == 1 and "audit: problem masked-stops" in view.state.value
    assert not (run.path / "audit.json").exists()  # the notebook goes on


def test_a_damaged_folder_is_named_and_does_not_end_the_view(run):
    view = watch(run, train=FakeTraining(run, 1), every=0.02)
    (run.path / "metrics.jsonl").write_text("no json\n")
    view.refresh()
    assert "failed: RunError" in view.result.value
    (run.path / "metrics.jsonl").unlink()
    view.refresh()
    assert "step 0 of ?" in view.result.value


@pytest.mark.slow
def test_a_real_training_stops_by_button_and_goes_on_to_its_end(starter_folder, run):
    from workbench.experiments.recipes import make_recipe
    from workbench.experiments.train import train
    from workbench.training.rewards import length_reward

    fields = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8, "max_steps": 6}
    calls = []

    def reward(completions, **_):
        calls.append(1)
        if len(calls) == 2:
            view.stop.click()
        return length_reward(20)(completions)

    reward.__name__ = "length"
    recipe = make_recipe("starter", **fields)
    view = watch(run, train=partial(train, recipe, reward_funcs=reward, record_dir=run.path), every=0.1)
    with pytest.raises(TrainingStopped, match="stopped after step 2 of 6"):
        asyncio.run(view.trained())
    assert run.status["state"] == "interrupted"
    assert (run.path / "checkpoints/checkpoint-2/complete.json").is_file()
    view.go_on.click()
    until(lambda: view.trainer is not None or (view.error and not view.training))
    assert view.error is None
    assert load_metrics(run.path / "metrics.jsonl")["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.status["state"] == "running"
    until(lambda: "step 6 of 6" in view.result.value)
