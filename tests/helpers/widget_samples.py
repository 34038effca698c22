"""What several tests of the views show: metrics of a short run, and text that must not become HTML."""

import ipywidgets

from workbench.runs.files import write_json

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\u202e\x1b[31m\ud800"
METRICS = [
    {"step": n, "elapsed_s": n / 2, "reward": n - 30.0, "step_time": 0.5}
    | {"completions/mean_length": 9.0, "completions/clipped_ratio": 0.25, "frac_reward_zero_std": 0.0}
    for n in range(1, 21)
]


def widgets_alive() -> set:
    return set(ipywidgets.widgets.widget._instances)


def with_problem(run):
    """The run with an audit that found that nothing moved."""
    finding = {"title": "zero-gradient", "severity": "problem", "says": "Nothing moves.", "because": "", "advice": ""}
    training = {"name": "", "checked": 17, "rules": 28, "findings": [finding | {"expected": False}]}
    write_json(run.path / "audit.json", {"trainings": [training], "error": ""})
    return run
