from conftest import write_run
from widget_samples import HOSTILE, METRICS

from workbench.lab.widgets.progress import TrainingProgress
from workbench.runs.run import create_run


def test_progress_says_step_pace_and_time_and_shows_completions(tmp_path):
    rows = [{"step": 20, "prompt": "p", "completion": text, "finish_reason": "stop", "reward": -1.25} for text in "ab"]
    rows[0]["completion"] = HOSTILE.replace("\ud800", "")
    run = write_run(tmp_path, metrics=METRICS, completions=rows)
    (run.path / "progress.json").write_text('{"step": 20, "max_steps": 40, "elapsed_s": 10}')
    progress = TrainingProgress(run)
    assert progress.sentence == "step 20 of 40; 0.5 s a step (median of the last 10 steps, 0.5 to 0.5); 10 s to go"
    (run.path / "progress.json").write_text('{"step": 20, "max_steps": 20}')
    assert "to go" not in TrainingProgress(run).sentence
    page = progress._repr_html_()
    assert "<script" not in page and "&lt;script&gt;" in page and "-1.25" in page
    assert 'alt="reward [as logged] goes from' in page


def test_an_empty_run_folder_has_a_view_too(tmp_path):
    run = create_run("by_hand", {"seed": 0}, tmp_path, state="running")
    assert "step 0 of ?" in TrainingProgress(run)._repr_html_()


def test_a_training_that_a_callback_ended_has_no_time_left(tmp_path):
    run = write_run(tmp_path, metrics=METRICS)
    (run.path / "progress.json").write_text('{"step": 20, "max_steps": 40, "finished": true}')
    assert TrainingProgress(run).sentence.endswith("0.5 to 0.5); ended early, by a callback")
