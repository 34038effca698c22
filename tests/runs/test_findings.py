import pytest
from conftest import write_run

from workbench.errors import RunError
from workbench.runs.files import write_json
from workbench.runs.findings import RunFindings
from workbench.runs.summary import RunSummary, tally


def finding(title, severity="problem", expected=False, because=""):
    return {
        "title": title,
        "severity": severity,
        "says": "Seen. More.",
        "advice": "Do.",
        "because": because,
        "expected": expected,
    }


def audit(*trainings, error=""):
    each = [{"name": f"seed-{n}", "checked": 15 + n, "rules": 28, "findings": f} for n, f in enumerate(trainings)]
    return {"trainings": each, "error": error}


ODD = finding("never-stops", "warning")
FOLLOWING = [finding("b", because="a"), finding("c", "warning", because="a")]
MEANT = finding("copies", expected=True)
CASES = {  # audit.json, colour, line; from the worst to the best
    "problems": (audit([finding(name) for name in "abcd"]), "bad", "audit: 4 problems a, b, c and 1 more. Seen."),
    "a problem": (audit([finding("a"), ODD], [finding("a"), *FOLLOWING]), "bad",
                  "audit of 2 trainings: problem a in 2, warning never-stops in 1. Seen."),
    "failed": (audit(error="KeyError: 'x'"), "odd", "the audit failed: KeyError: 'x'"),
    "none": ({}, "odd", "not audited"),
    "a warning": (audit([ODD]), "odd", "audit: warning never-stops. Seen."),
    "clean": (audit([MEANT], []), "good",
              "audit of 2 trainings: no problem (15 to 16 of 28 rules could tell); expected: copies in 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_line_says_what_was_audited_and_found(name):
    value, mark, line = CASES[name]
    findings = RunFindings.of(value)
    assert (findings.mark, findings.line) == (mark, line)


def test_the_worst_runs_come_first():
    ranks = [RunFindings.of(value).rank for value, _, _ in CASES.values()]
    assert ranks == sorted(ranks) and len(set(ranks)) == len(ranks)


def test_no_tick_without_an_audit(tmp_path):
    """A run of an earlier version has no `audit.json`."""
    run = write_run(tmp_path, result={"results": [{"says": "a", "holds": True}]})
    assert (RunSummary.of(run).succeeded, RunSummary.of(run).mark) == (True, "odd")
    assert RunSummary.of(run).line.endswith("done; not audited")
    write_json(run.path / "audit.json", audit([]))
    assert RunSummary.of(run).mark == "good"
    write_json(run.path / "audit.json", audit([finding("a")]))
    assert RunSummary.of(run).mark == "bad"


def test_a_tally_counts_as_good_only_what_was_audited(tmp_path):
    runs = [write_run(tmp_path, str(n)) for n in range(len(CASES))]
    for run, (value, _, _) in zip(runs, CASES.values(), strict=True):
        if value:
            write_json(run.path / "audit.json", value)
    says = "2 of 6 runs are done, with no failed check and no problem in the audit"
    parts = "2 with a problem, 1 whose audit failed, 1 not audited, 1 with warnings, 1 without a problem"
    assert tally([RunSummary.of(run) for run in runs]) == f"{says}; audit: {parts}"


@pytest.mark.parametrize(
    "value", [[], {}, {"trainings": [1], "error": ""}, {"trainings": [{}], "error": ""}, audit([{"title": "a"}])]
)
def test_a_damaged_audit_is_named_with_its_file(tmp_path, value):
    run = write_run(tmp_path)
    write_json(run.path / "audit.json", value)
    with pytest.raises(RunError, match=r"audit\.json"):
        _ = run.audit
