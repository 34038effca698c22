"""The audit as it sees a run step by step, on the bundled real runs of stock TRL."""

import sys
from types import SimpleNamespace

import pandas as pd
import pytest

from workbench.extras import packaged
from workbench.logs.read import read_logs
from workbench.training.recording import Recorder
from workbench.watch.attach import Warnings, raise_alerts
from workbench.watch.recorder import Watch


def told(folder, every):
    """Rule -> the step at which it is told, for a run that comes step by step."""
    log = read_logs(packaged("data") / "audit" / folder)[0]
    rows = [{name: value for name, value in row.items() if value == value} for row in log.steps.to_dict("records")]
    warnings, found = Warnings(packaged("data") / "audit" / folder), {}
    for n in range(1, len(rows) + 1, every):
        lines = warnings(rows[:n], pd.DataFrame())
        found |= {line.split(": ")[1]: n for line in lines}
        assert all("\n" not in line and " Do: " in line and " More: workbench/audit/rules_" in line for line in lines)
    return found


def test_masked_stops_are_shown_once_at_the_first_step_of_proof():
    found = told("masked_stops", every=6)
    assert set(found) == {"masked-stops", "false-clipping"}
    assert found["masked-stops"] == 13  # the first step whose rows are all masked


def test_of_its_healthy_twin_only_the_false_metric_is_told():
    assert set(told("stop_string", every=12)) == {"false-clipping"}


@pytest.mark.parametrize("steps, expected", [(21, []), (60, ["collapse"])])
def test_a_course_is_shown_once_it_is_found_twice_in_a_row(tmp_path, steps, expected):
    rows = [{"step": n + 1, "reward": 0.8 - 0.01 * n + 0.02 * (n % 3), "grad_norm": 0.3} for n in range(steps)]
    warnings, rules = Warnings(tmp_path), []
    for n in range(1, steps + 1, 4):
        rules += [line.split(": ")[1] for line in warnings(rows[:n], pd.DataFrame())]
    assert rules == expected


def test_a_full_disk_ends_the_watch_and_not_the_training(capsys, tmp_path):
    watch, state = Watch.__new__(Watch), SimpleNamespace(global_step=1)
    watch.__dict__ |= {"on": True, "lines": [], "seconds": 0.0, "recorder": Recorder(tmp_path, "watched")}
    with open("/dev/full", "a") as watch.recorder._file:
        watch.on_log(None, state, None, {"reward": 1.0})
        watch.on_train_end(None, state, None)
    assert "the watch is off, the training goes on: OSError" in capsys.readouterr().err


def test_warnings_are_alerts_and_a_tracker_that_fails_is_dropped(monkeypatch):
    raised = []

    def tracker(fails):
        def alert(title, text, level):
            if fails:
                raise OSError("no network")
            raised.append((title, text, level))

        return SimpleNamespace(alert=alert, AlertLevel=SimpleNamespace(WARN="WARN"))

    monkeypatch.setitem(sys.modules, "wandb", tracker(fails=False))
    monkeypatch.setitem(sys.modules, "trackio", tracker(fails=True))
    line = "step 7: collapse: The reward fell. Do: stop."
    for report_to in ([], ["wandb", "trackio"], ["tensorboard"]):
        raise_alerts(SimpleNamespace(args=SimpleNamespace(report_to=report_to)), [line])
    assert raised == [("workbench: collapse", line, "WARN")]
