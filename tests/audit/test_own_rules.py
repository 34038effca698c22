"""Rules of a user: the page about them, what is refused, and a rule that fails."""

import json
import re

import numpy as np
import pytest
from conftest import ROOT, call
from made_up import EQUAL, MASKED, STOPPED, log

from workbench.audit import absent, audit_run, found, rule, rules_clipping, unknown
from workbench.audit.check import check
from workbench.audit.rules_ends import true_clipping
from workbench.watch.attach import Warnings

PAGE = (ROOT / "docs/how-to/audit_a_log.md").read_text(encoding="utf-8").partition("\n## Write a rule")[2]
SICK = ROOT / "data" / "audit" / "masked_stops"
HEAD = "from workbench.audit import absent, found, rule, unknown\n"


def of(log, rules, name):
    return next(finding for finding in check(log, rules) if finding.rule == name)


def test_example_of_page_finds_what_page_shows(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)
    (tmp_path / "my_rules.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "audit", SICK, "--rules", "my_rules.py")
    assert (code, err) == (1, "")
    assert shown in out


REFUSED = {
    "no file": (None, "no such file"),
    "an error": ("1 / 0", "rules.py:2: ZeroDivisionError: division by zero"),
    "no Python": ("def f(:", "SyntaxError: invalid syntax"),
    "an exit": ("raise SystemExit(0)", "SystemExit: 0"),
    "no rule": ("from workbench.audit.rules_data import log_damage", "the file defines no rule"),
    "a name of a built-in rule": ("@rule\ndef collapse(log):\n    pass", "two rules have the name 'collapse'"),
}


@pytest.mark.parametrize("about", REFUSED)
def test_file_of_rules_is_refused_before_logs_are_read(about, tmp_path, capsys):
    text, says = REFUSED[about]
    if text:
        (tmp_path / "rules.py").write_text(HEAD + text)
    code, out, err = call(capsys, "audit", tmp_path / "no log", "--rules", tmp_path / "rules.py")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err and "no log" not in err


FAILS = {
    "return 1 / 0": "rules.py:5: it raised ZeroDivisionError: division by zero",
    "pass": "rules.py: it raised TypeError: it returned None; expected found(...)",
    "return found('bad', '', '')": "severity='bad': expected one of problem, warning, note",
    "return found('note', 'a', 'b', evidence={'log': log})": "it raised TypeError",
    "return found('note', 'a', 'b', cost={'rows': 'many'})": "it raised ValueError",
}


@pytest.mark.parametrize("body", FAILS)
def test_rule_that_fails_is_named_and_others_are_asked(body, tmp_path, capsys):
    (tmp_path / "rules.py").write_text(f"{HEAD}\n@rule(needs='completions')\ndef breaks(log):\n    {body}\n")
    code, out, _ = call(capsys, "audit", SICK, "--rules", tmp_path / "rules.py")
    assert code == 1 and out.startswith(f"{SICK}: masked-stops; 2 problems")
    assert f"breaks: Repair {tmp_path}/rules.py" in out and FAILS[body] in " ".join(out.split())


def test_rule_is_computed_once_a_log(monkeypatch):
    asked, contradictions = [], rules_clipping._contradictions
    monkeypatch.setattr(rules_clipping, "_contradictions", lambda *about: asked.append(about) or contradictions(*about))
    check(log(**STOPPED, grad_norm=MASKED, zero_std_share=0.1))  # four rules ask false-clipping
    assert len(asked) == 1


def test_finding_from_before_a_dispute_is_not_reused():
    made = log(**STOPPED)
    assert true_clipping(made).verdict == "found"
    assert of(made, [], "true-clipping").verdict == "cannot tell"


def test_rule_explains_findings_of_others():
    def outage(log):
        return found("warning", "The server was down.", "Start it.")

    for cause, expected in (("equal-rewards", "outage"), ("masked", None)):
        own = rule(explains=(f"zero-gradient ({cause})",))(outage)
        assert of(log(**EQUAL, reward=0.0), [own], "zero-gradient").follows_from == expected


def test_own_rules_are_taken_in_python_and_live(tmp_path):
    @rule(at_once=True)
    def short(log):
        return found("problem", "Short.", "Go on.") if len(log.steps) < 100 else absent("Long.")

    assert "short" in audit_run(SICK, rules=[short]).problems
    (line,) = Warnings(tmp_path, [short])([{"step": 1, "reward": 0.5}], [])
    assert line.startswith("step 1: short: Short. Do: Go on. More: ")
    with pytest.raises(ValueError, match="is no rule; expected a function that `@rule` decorates"):
        audit_run(SICK, rules=[unknown])


@pytest.mark.parametrize("suffix", ["log", "jsonl"])
def test_own_rule_sees_any_series_with_nan_and_missing_apart(suffix, tmp_path):
    lines = [{"critic/score/mean": n / 9, "critic/odd": n / 2} for n in range(1, 10)]
    lines[3]["critic/odd"] = float("nan")
    del lines[5]["critic/odd"]
    steps = [{"step": n} | line for n, line in enumerate(lines, 1)]
    text = "\n".join(" - ".join(f"{name}:{value}" for name, value in line.items()) for line in steps)
    (tmp_path / f"a.{suffix}").write_text(text if suffix == "log" else "\n".join(map(json.dumps, steps)))
    seen = []

    @rule
    def odd(log):
        seen.append(log)
        return absent("Seen.")

    audit_run(tmp_path / f"a.{suffix}", rules=[odd])
    series = seen[0].raw("critic/odd")
    assert list(series.index) == [1, 2, 3, 4, 5, 7, 8, 9]
    assert list(np.isnan(series)) == [False, False, False, True, False, False, False, False]
    assert seen[0].raw("critic/absent") is None and seen[0].raw("critic/score/mean")[9] == 1.0
