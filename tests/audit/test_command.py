import json
from pathlib import Path

import numpy as np
import pytest

from workbench import cli
from workbench.audit.check import RULES
from workbench.audit.report import audit_run
from workbench.errors import ParameterError

ROOT = Path(__file__).parents[2]


def state(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    return folder


def logged(*, masked=False, reward=lambda n: 0.2 + 0.01 * n):
    """60 steps as stock TRL logs them when all rows stop at a stop string, masked or not."""
    scatter = np.random.default_rng(0).normal(size=60)
    same = {"frac_reward_zero_std": 0.1, "completions/mean_length": 7.0, "learning_rate": 1e-4}
    return [
        {"step": n + 1, "reward": reward(n) + 0.03 * scatter[n], "grad_norm": 0.0 if masked and n % 4 else 0.3}
        | {"completions/clipped_ratio": 0.9 if masked and n % 4 == 0 else 1.0}
        | {"completions/max_length": 9.0 if n % 3 else 8.0, **same}
        for n in range(60)
    ]


def audit(capsys, *arguments):
    code = cli.main(["audit", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_a_masked_run_shows_its_cause_first_a_healthy_one_none(capsys, tmp_path):
    sick, well = state(tmp_path / "sick", logged(masked=True)), state(tmp_path / "well", logged())
    code, out, _ = audit(capsys, sick)
    assert code == 1
    assert out.startswith(f"{sick}: masked-stops; 2 problems, 1 warning")
    assert "PROBLEM zero-gradient (masked), because of masked-stops" in out
    assert "Do not mask truncated completions" in out
    code, out, _ = audit(capsys, well)
    assert code == 0
    assert out.startswith(f"{well}: no problem, 1 warning")
    assert "WARNING false-clipping" in out


def test_no_rule_asks_for_a_clipped_ratio_that_is_there(capsys, tmp_path):
    _, out, _ = audit(capsys, state(tmp_path / "sick", logged(masked=True)), "--json")
    asked = {one["rule"]: one["advice"] for one in json.loads(out)["findings"]}
    for rule in ("never-stops", "true-clipping", "reward-is-ending"):
        assert "the logged clipped ratio is false" in asked[rule]


def test_json_is_an_object_a_run_with_every_rule(capsys, tmp_path):
    sick, well = state(tmp_path / "sick", logged(masked=True)), state(tmp_path / "well", logged())
    code, out, _ = audit(capsys, sick, well, "--json")
    first, second = map(json.loads, out.splitlines())
    assert code == 1
    assert [(run["run"], run["verdict"]) for run in (first, second)] == [
        (str(sick), "problem"),
        (str(well), "no problem"),
    ]
    fields = {"rule", "cause", "verdict", "severity", "steps", "evidence", "advice"}
    for run in (first, second):
        assert len(run["findings"]) == len(RULES) and all(fields <= finding.keys() for finding in run["findings"])
    assert first["findings"][0]["rule"] == "masked-stops"


def test_an_unusable_path_is_a_line_and_the_others_are_audited(capsys, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    well = state(tmp_path / "well", logged())
    for path in (tmp_path / "absent", "a" * 300, "~nobody-has-this-name/run", tmp_path / "loop"):
        code, out, err = audit(capsys, path, well)
        assert (code, err.count("\n")) == (2, 1)
        assert str(well) in out and err.startswith(f"workbench: {path}: ")
    assert "no such file or folder" in audit(capsys, tmp_path / "absent")[2]


def test_a_limit_decides_open_cases_and_a_false_one_is_refused(capsys, tmp_path):
    alike = [row | {"completions/max_length": 7.0} for row in logged()]
    folder = state(tmp_path, alike)
    assert "With --limit N 3 more and with log_completions=True" in " ".join(audit(capsys, folder)[1].split())
    _, out, _ = audit(capsys, folder, "--limit", 32)
    assert "WARNING false-clipping" in out and "PROBLEM true-clipping" not in out
    code, _, err = audit(capsys, folder, "--limit", 0)
    assert (code, "limit=0" in err) == (2, True)
    with pytest.raises(ParameterError, match=r"limit=4: .* logs completions of 7 tokens"):
        audit_run(folder, limit=4)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "reward": 0.5, "completions/max_length": 12290}\n')
    audit_run(tmp_path / "log.jsonl", limit=np.int64(12288))  # of which a Trainer prints four digits


def test_the_python_value_is_a_table_of_what_is_found_and_open(tmp_path):
    report = audit_run(state(tmp_path, logged(masked=True)))
    assert report.problems == ["masked-stops", "zero-gradient"]
    assert set(report.table()["verdict"]) == {"found", "cannot tell"}
    assert "masked-stops" in str(report)


def test_the_model_s_folder_tells_what_the_log_does_not(tmp_path):
    folder, model = state(tmp_path / "run", logged()), tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama", "rope_theta": 10000.0}')
    (run,) = audit_run(folder, model=model).runs
    assert {f.rule: f.verdict for f in run.findings}["padding-positions"] == "not found"
    with pytest.raises(ParameterError, match=r"no config\.json there"):
        audit_run(folder, model=tmp_path / "absent")
    with pytest.raises(ParameterError, match=r"model='who/what': this is no folder .* and the hub did not return"):
        audit_run(folder, model="who/what")


def test_a_setting_can_be_stated_and_an_unknown_one_is_refused(capsys, tmp_path):
    folder = state(tmp_path, [row | {"completions/clipped_ratio": 0.9} for row in logged()])
    assert "masked-stops" not in audit(capsys, folder)[1].split("cannot tell")[0]
    code, out, _ = audit(capsys, folder, "--set", "mask_truncated_completions=true")
    assert (code, "PROBLEM masked-stops" in out) == (1, True)
    assert "settings: mask_truncated_completions True" in out
    for wrong in ("temperature=1", "num_generations=x", "mask_truncated_completions", "max_completion_length=0"):
        code, _, err = audit(capsys, folder, "--set", wrong)
        assert (code, f"set={wrong!r}" in err) == (2, True)
    code, _, err = audit(capsys, folder, "--set", "scale_rewards=bacth")
    assert code == 2 and "did you mean 'batch'? expected one of group, batch, none" in " ".join(err.split())


def test_several_runs_are_a_table_first_and_repeats_stand_once(capsys, tmp_path):
    folders = [state(tmp_path / f"sick-{n}", logged(masked=True)) for n in (1, 2)]
    _, out, _ = audit(capsys, *folders, state(tmp_path / "well", logged()))
    first, *rows = out.splitlines()[:4]
    assert first.split() == ["run", "verdict", "main", "cause"]
    assert [row.split()[1:] for row in rows[:2]] == [["problem", "masked-stops"]] * 2
    assert rows[2].split()[1:] == ["no", "problem", "false-clipping"]
    assert out.count("PROBLEM masked-stops") == 1 and f"open in {folders[0]}, {folders[1]}" in out
    assert "(workbench/" not in out and "more: workbench/audit/rules_" in out
    assert "100% of completions" in out or "% of completions left out" in out
    assert "with log_completions=True" in " ".join(out.split())


def test_brief_is_a_line_a_run_with_its_worst_finding(capsys, tmp_path):
    sick, well = state(tmp_path / "sick", logged(masked=True)), state(tmp_path / "well", logged())
    code, out, _ = audit(capsys, tmp_path, "--brief")
    first, second = out.splitlines()
    assert code == 1
    assert first.startswith(f"{sick}: problem masked-stops: ") and second.startswith(
        f"{well}: warning false-clipping: "
    )
    assert "cannot tell" not in out
    with pytest.raises(SystemExit):
        audit(capsys, tmp_path, "--brief", "--json")


def test_all_runs_below_a_folder_are_audited_each_once(capsys, tmp_path):
    rows = logged()
    state(tmp_path / "a" / "trained" / "checkpoint-60", rows)
    state(tmp_path / "recorded" / "checkpoints" / "checkpoint-60", rows)
    for name in ("recorded/metrics.jsonl", "loose.jsonl", "b/c/other.jsonl", ".git/x.jsonl", "node_modules/y.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b" / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    state(tmp_path / ".venv" / "z", rows)
    _, out, err = audit(capsys, tmp_path, "--brief")
    names = [line.removeprefix(f"{tmp_path}/").partition(":")[0] for line in out.splitlines()]
    assert (sorted(names), err) == (["a/trained", "b/c/other.jsonl", "loose.jsonl", "recorded"], "")


def test_two_runs_in_one_metrics_file_are_both_audited(capsys, tmp_path):
    rows = [{"run": name, **row} for name, masked in (("sick", True), ("well", False)) for row in logged(masked=masked)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = audit(capsys, tmp_path, "--brief")
    places = [line.removeprefix(f"{tmp_path}/") for line in out.splitlines()]
    assert (code, err) == (1, "")
    assert places[0].startswith("metrics.jsonl: run sick: problem masked-stops")
    assert places[1].startswith("metrics.jsonl: run well: warning")


def test_a_folder_of_the_repository_is_read_with_its_folders(capsys):
    _, out, _ = audit(capsys, ROOT / "data" / "audit", "--brief")
    names = {line.removeprefix(f"{ROOT / 'data' / 'audit'}/").partition(":")[0] for line in out.splitlines()}
    assert names == {"masked_stops_gemma.jsonl", "masked_stops", "stop_string"}
