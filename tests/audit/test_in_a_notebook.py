"""What a notebook shows of an audit."""

import re

from conftest import ROOT

from workbench import audit_run


def test_three_open_rules_are_shown_and_the_others_folded():
    report = audit_run(ROOT / "data" / "audit" / "masked_stops")
    page, (run,) = report._repr_html_(), report.runs
    folded = re.search(r"<details><summary>(\d+) more</summary>(.*?)</details>", page, re.DOTALL)
    silent = [f.rule for f in run.findings if f.verdict == "cannot tell"]
    assert len(silent) == 3 + int(folded[1]) and silent[3] in folded[2] and silent[2] not in folded[2]
    assert page.count("<td") == page.count('<td style="text-align:left">')


def test_a_notebook_and_a_terminal_count_the_same_rules():
    report = audit_run(ROOT / "data" / "audit" / "masked_stops")
    counts = re.search(r"checked \d+ of \d+ rules", str(report))[0]
    assert counts in report._repr_html_()
