"""The audit of a run by the runner, over logs of real trainings that the tests keep."""

import json
import shutil

import pytest
from conftest import NOTEBOOKS, ROOT, call, write_notebook, write_run

from workbench.errors import ParameterError
from workbench.lab.batch import audit
from workbench.lab.batch.audit import audit_done, expected_findings, write_audit
from workbench.lab.batch.execute import execute_run
from workbench.lab.batch.plan import plan_run
from workbench.runs.findings import RunFindings
from workbench.runs.results import Result, save_result
from workbench.runs.run import create_run, list_runs

RECORDED = ROOT / "tests/audit/runs"
TRAINED = (
    f"import shutil\nshutil.copytree({str(RECORDED / 'stock_masked')!r}, run.path / 'stock')"  # as if it had trained
)


def audited(tmp_path, *names, expects=None):
    """What is found in a run that holds these trainings."""
    run = write_run(tmp_path)
    for name in names:
        shutil.copytree(RECORDED / name, run.path / "arms" / name)
    write_audit(run, expects or {})
    return RunFindings.of(run.audit)


def with_metadata(notebook, expects):
    content = json.loads(notebook.read_text())
    content["metadata"]["workbench"] = {"expects": expects}
    notebook.write_text(json.dumps(content))
    return notebook


def test_each_training_of_a_run_is_audited(tmp_path):
    findings = audited(tmp_path, "stock_masked", "stock_unmasked", "stock_request_seed")
    assert (findings.trainings, findings.mark, findings.passed) == (3, "bad", False)
    assert findings.problems == {"masked-stops": 1, "copies": 1}  # and not what follows from them
    assert findings.warnings["false-clipping"] == 3
    assert findings.line.startswith("audit of 3 trainings: ")


def test_an_expected_finding_and_what_follows_are_no_problem(tmp_path):
    expects = {"masked-stops": ["arms/stock_m*"], "false-clipping": ["*"]}
    findings = audited(tmp_path, "stock_masked", expects=expects)
    assert (findings.problems, findings.warnings, findings.mark) == ({}, {}, "good")
    assert "no problem" in findings.line and findings.line.endswith("; expected: masked-stops, false-clipping")


def test_a_finding_in_another_training_stays_a_problem(tmp_path):
    findings = audited(tmp_path, "stock_masked", expects={"masked-stops": ["arms/stock_unmasked"]})
    assert "masked-stops" in findings.problems


def test_what_a_notebook_printed_is_no_training(tmp_path):
    run = write_run(tmp_path)
    (run.path / "log.txt").write_text("{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.0, 'reward_std': 0.0}\n" * 20)
    write_audit(run, {})
    findings = RunFindings.of(run.audit)
    assert (findings.trainings, findings.mark) == (0, "odd")
    assert findings.line == "nothing to audit: the run recorded no training"


def test_a_damaged_record_is_named_and_others_are_audited(tmp_path):
    run = write_run(tmp_path, metrics=[{"step": 1}])
    (run.path / "metrics.jsonl").write_text("{]\n{}\n")
    shutil.copytree(RECORDED / "stock_no_seed", run.path / "other")
    write_audit(run, {})
    findings = RunFindings.of(run.audit)
    assert findings.trainings == 1 and "metrics.jsonl" in findings.error
    assert "the audit failed: " in findings.line and findings.mark == "odd"


def test_an_audit_that_fails_says_why_and_ends_no_run(tmp_path, monkeypatch):
    def broken(_):
        raise KeyError("reward")

    monkeypatch.setattr(audit, "audit_recorded", broken)
    run = plan_run(str(write_notebook(tmp_path / "mine.ipynb")), {}, root=tmp_path / "runs").prepare()
    assert execute_run(run, notebook=tmp_path / "mine.ipynb", quiet=True) == "done"
    assert RunFindings.of(run.audit).line == "the audit failed: KeyError: 'reward'"


def test_a_notebook_s_own_file_is_kept(tmp_path, capsys):
    run = write_run(tmp_path)
    (run.path / "audit.json").write_text('"mine"')
    write_audit(run, {})
    (aside,) = run.path.glob("replaced-*/audit.json")
    assert aside.read_text() == '"mine"' and RunFindings.of(run.audit).trainings == 0


@pytest.mark.parametrize(
    ("expects", "says"),
    [
        (["masked-stops"], "expected .*RULE"),
        ({"masked-stop": ["*"]}, "did you mean 'masked-stops'"),
        ({"masked-stops": "*"}, "patterns of trainings"),
    ],
)
def test_what_no_rule_can_find_is_refused(tmp_path, expects, says):
    notebook = with_metadata(write_notebook(tmp_path / "mine.ipynb"), expects)
    with pytest.raises(ParameterError, match=says):
        expected_findings(notebook)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_shipped_notebook_expects_what_rules_find(notebook):
    assert isinstance(expected_findings(notebook), dict)


def test_a_problem_in_ones_own_notebook_is_red_everywhere(tmp_path, capsys):
    notebook, runs = write_notebook(tmp_path / "mine.ipynb", TRAINED), ("--runs-dir", tmp_path / "runs")
    code, out, _ = call(capsys, "run", notebook, "-q", *runs)
    assert code == 1
    assert out.splitlines()[-1].startswith("audit: problem masked-stops, ")
    code, out, _ = call(capsys, "status", *runs)
    assert code == 1 and ": done, steps 3, " in out and "; audit: problem masked-stops, " in out
    code, out, _ = call(capsys, "sweep", notebook, "-p", "steps=3", *runs)  # finds the run done
    assert code == 1
    assert "0 of 1 runs are done, with no failed check and no problem in the audit; audit: 1 with a problem" in out
    assert call(capsys, "sweep", notebook, "-p", "steps=3", "--fail-on", "nothing", *runs)[0] == 0
    assert call(capsys, "report", *runs)[0] == 0
    (run,) = list_runs(tmp_path / "runs")
    index, sweep = tmp_path / "reports/index.html", tmp_path / "reports/mine-steps=3.html"
    for page in (index, sweep, run.path / "report.html"):
        text = page.read_text()
        assert '<span class="bad">done</span>' in text and '<span class="good">done</span>' not in text, page
        assert '<span class="bad">audit: problem masked-stops' in text, page
    assert "Completions that stopped properly" in (run.path / "report.html").read_text()


def test_a_run_that_fails_is_audited_and_obeys_its_notebook(tmp_path, capsys):
    notebook = write_notebook(tmp_path / "mine.ipynb", TRAINED, "raise ValueError")
    with_metadata(notebook, {"masked-stops": ["stock"]})
    assert call(capsys, "run", notebook, "-q", "--runs-dir", tmp_path / "runs")[0] == 1
    (run,) = list_runs(tmp_path / "runs")
    findings = RunFindings.of(run.audit)
    assert run.status["state"] == "failed" and findings.trainings == 1
    assert findings.problems == {} and "masked-stops" in findings.expected


def test_a_run_that_ended_in_jupyterlab_is_audited_by_report(tmp_path, capsys):
    """There no runner audits it, and its index said no more than "not audited"."""
    run = create_run("mine", {"seed": 0}, tmp_path / "runs", state="running")
    shutil.copytree(RECORDED / "stock_masked", run.path / "stock")
    save_result(run, [Result("it ran", True)])
    assert RunFindings.of(run.audit).line == "not audited"
    code, _, _ = call(capsys, "report", "--runs-dir", tmp_path / "runs")
    assert code == 0 and "problem masked-stops" in (run.path / "report.html").read_text()
    assert call(capsys, "status", "--runs-dir", tmp_path / "runs")[0] == 1
    (run.path / "audit.json").write_text("{")  # a damaged one stays, and the report says so
    assert call(capsys, "report", "--runs-dir", tmp_path / "runs")[0] == 1
    assert (run.path / "audit.json").read_text() == "{"


@pytest.mark.parametrize("name", ["02_grpo_custom_stops", "gone"])
def test_what_a_shipped_notebook_expects_counts_there_too(tmp_path, name):
    run = write_run(tmp_path, notebook=name)
    shutil.copytree(RECORDED / "stock_masked", run.path / "stock-TRL--masked" / "seed-0")
    audit_done([run])
    assert ("masked-stops" in RunFindings.of(run.audit).problems) == (name == "gone")
