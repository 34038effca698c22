from types import SimpleNamespace

from workbench.runs.run import Run
from workbench.training.recording import RunRecorder


def test_rows_scored_in_pieces_end_in_one_part(tmp_path):
    recorder = RunRecorder(tmp_path)
    recorder.add_completions(1, {"completion": ["a"]})
    recorder.add_completions(1, {"completion": ["b"]})
    assert Run(tmp_path).completions["completion"].tolist() == ["a", "b"]


def test_each_logged_step_tells_which_completions_were_really_cut(tmp_path):
    state = SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=10)
    recorder = RunRecorder(tmp_path)
    recorder.on_train_begin(SimpleNamespace(world_size=1), state, None)
    state.global_step = 1
    ends = {"finish_reason": ["stop", "length"], "trl_finish_reason": ["length"] * 2, "completion_tokens": [3, 5]}
    recorder.save_completions(1, {"completion": ["a", "b"], **ends, "sampled_tokens": [11, 5]})
    recorder.on_log(None, state, None, logs={"loss": 0.0})
    line = Run(tmp_path).metrics.iloc[0]
    assert (line["stops/clipped_ratio"], line["stops/trl_clipped_ratio"], line["stops/wasted"]) == (0.5, 1.0, 0.5)
