"""What CI and editors take from the audit: exit codes, SARIF, the schema of the JSON, and a log that is watched."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import jsonschema
import pytest
import yaml
from conftest import ROOT, call, daily

from workbench.audit.check import RULES
from workbench.audit.finding import found
from workbench.audit.follow import _report_new, follow, is_alive
from workbench.audit.rule import rule
from workbench.audit.rules_gradient import zero_gradient
from workbench.errors import ParameterError

SICK = ROOT / "data" / "audit" / "masked_stops"
SCHEMA = json.loads((ROOT / "workbench" / "audit" / "audit.schema.json").read_text())
WARNED = {"completions/clipped_ratio": 1.0, "completions/mean_length": 7.0, "completions/max_length": 9.0}
# The rules of SARIF 2.1.0 that matter to its readers: what has to be there, and the words that are allowed.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
PLACE = {
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "required": ["artifactLocation", "region"],
            "properties": {
                "artifactLocation": {
                    "required": ["uri"],
                    "properties": {"uri": {"type": "string", "pattern": "^[^ \\\\]+$"}},
                },
                "region": {"properties": {"startLine": {"type": "integer", "minimum": 1}}},
            },
        }
    },
}
RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "level", "locations"],
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": TEXT,
        "locations": {"type": "array", "minItems": 1, "items": PLACE},
        "partialFingerprints": {"additionalProperties": {"type": "string"}},
    },
}
DRIVER = {
    "required": ["name", "rules"],
    "properties": {"rules": {"type": "array", "uniqueItems": True, "items": {"required": ["id", "shortDescription"]}}},
}
RUN = {
    "type": "object",
    "required": ["tool", "results"],
    "properties": {
        "tool": {"required": ["driver"], "properties": {"driver": DRIVER}},
        "results": {"type": "array", "items": RESULT},
        "invocations": {"items": {"required": ["executionSuccessful"]}},
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {"version": {"const": "2.1.0"}, "runs": {"type": "array", "minItems": 1, "items": RUN}},
}


def written(path, rows, mode="w"):
    with path.open(mode) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def steps(first, last, **more):
    return [{"step": n, "reward": 0.2 + n / 100 + 0.01 * (n % 3), "grad_norm": 0.3, **more} for n in range(first, last)]


def warned(tmp_path):
    return written(tmp_path / "warned.jsonl", steps(1, 40, **WARNED))


@pytest.mark.parametrize(
    "options, healthy, warning, sick",
    [([], 0, 0, 1), (["--fail-on", "problem"], 0, 0, 1), (["--fail-on", "warning"], 0, 1, 1)],
)
def test_exit_code_is_1_from_the_severity_that_is_asked(options, healthy, warning, sick, tmp_path, capsys):
    well = written(tmp_path / "well.jsonl", steps(1, 40))
    codes = [call(capsys, "audit", path, "--brief", *options)[0] for path in (well, warned(tmp_path), SICK)]
    assert codes == [healthy, warning, sick]


def test_unusable_input_is_2_whatever_fails(tmp_path, capsys):
    code, out, _ = call(capsys, "audit", SICK, tmp_path / "absent", "--sarif", "--fail-on", "warning")
    assert code == 2
    (run,) = json.loads(out)["runs"]
    (invocation,) = run["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (2, False)
    assert "no such file" in invocation["toolExecutionNotifications"][0]["message"]["text"]


def test_sarif_says_which_run_of_a_folder_is_meant(tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(ROOT / "data" / "audit" / "masked_stops", tmp_path / name)
    results = json.loads(call(capsys, "audit", tmp_path, "--sarif")[1])["runs"][0]["results"]
    prints = [result["partialFingerprints"]["rule/v1"] for result in results]
    assert len(set(prints)) == len(prints) > 2
    assert {result["message"]["text"].partition(":")[0] for result in results} == {str(tmp_path / n) for n in "ab"}


def test_sarif_has_what_its_schema_asks_for(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, _ = call(capsys, "audit", "data/audit/masked_stops", warned(tmp_path), "--sarif")
    document = json.loads(out)
    jsonschema.validate(document, SARIF)
    (run,) = document["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert (code, ids) == (1, [rule.name for rule in RULES])
    first = run["results"][0]
    assert (first["ruleId"], first["level"]) == ("masked-stops", "error")
    assert all(ids[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    uris = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert uris == {"data/audit/masked_stops", (tmp_path / "warned.jsonl").as_uri()}
    assert {result["level"] for result in run["results"]} <= {"error", "warning", "note"}


def test_json_obeys_the_schema_that_the_package_has(tmp_path, capsys):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    _, out, _ = call(capsys, "audit", SICK, warned(tmp_path), ROOT / "tests" / "audit" / "corpus" / "plain-0", "--json")
    for line in out.splitlines():
        run = json.loads(line)
        jsonschema.validate(run, SCHEMA)
        assert list(run) == list(SCHEMA["properties"])
        assert set(run["findings"][0]) == set(SCHEMA["properties"]["findings"]["items"]["properties"])
    wrong = run | {"findings": [run["findings"][0] | {"severity": "bad"}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_a_title_has_at_most_60_characters():
    assert max(len(rule.name) for rule in RULES) < 30

    @rule
    def a_rule_whose_name_is_as_long_as_a_sentence_that_nobody_reads(log):
        return CAUSED

    title = a_rule_whose_name_is_as_long_as_a_sentence_that_nobody_reads.signed(CAUSED, LOG).title
    assert len(title) <= 60 and title.endswith(" ...")


CAUSED = found("note", "Seen.", "Look.", cause="and-its-cause")


class LOG:
    trainer = ""


# --- a log that grows ---


class Growing:
    """Writes the next lines of a log whenever the watch waits, and is interrupted when there are no more."""

    def __init__(self, path, *parts):
        self.path, self.parts = path, list(parts)

    def __call__(self, seconds):
        if not self.parts:
            raise KeyboardInterrupt
        written(self.path, self.parts.pop(0), "a")


DEAD = {"grad_norm": 0.0, "reward": 0.1, "frac_reward_zero_std": 1.0}


def test_watch_ends_at_a_problem_and_not_before(tmp_path, capsys):
    log = tmp_path / "train.jsonl"
    growing = Growing(log, steps(1, 15), steps(15, 30), *(steps(n, n + 10, **DEAD) for n in range(30, 200, 10)))
    assert follow(log, until="problem", sleep=growing) == 1
    out, err = capsys.readouterr()
    assert "waiting for steps" in err and growing.parts
    assert "problem zero-gradient (equal-rewards): " in out and "Do: " in out


def test_a_finding_that_follows_is_shown_once_it_does_not(capsys):
    problem = replace(found("problem", "Dead.", "Mend it.", cause="equal-rewards"), by=zero_gradient)
    before, believed, printed = {}, set(), set()

    def report(steps, **more):
        return SimpleNamespace(runs=[SimpleNamespace(run="r", steps=steps, findings=[replace(problem, **more)])])

    for steps in (25, 30):
        before = _report_new(report(steps, follows_from="true-clipping"), before, believed, printed)
    assert believed and not printed and capsys.readouterr().out == ""
    _report_new(report(30, follows_from="true-clipping"), before, believed, set(), "problem")  # before an end with 1
    assert "problem zero-gradient (equal-rewards): Dead." in capsys.readouterr().out
    for steps in (35, 40):
        before = _report_new(report(steps), before, believed, printed)
    assert capsys.readouterr().out.count("Dead.") == 1


def test_watch_goes_on_over_a_problem_of_few_steps(tmp_path, capsys):
    growing = Growing(tmp_path / "a.jsonl", steps(1, 10, **DEAD), steps(10, 15, **DEAD))
    assert follow(tmp_path / "a.jsonl", until="problem", sleep=growing) == 130
    out, err = capsys.readouterr()
    assert (out, "watched until 14 steps; 0 findings were printed" in err) == ("", True)


def test_watch_says_what_it_waits_for_where_a_log_stands(tmp_path, capsys):
    """A training that crashed was watched for ever, without a word."""
    log = written(tmp_path / "a.jsonl", steps(1, 40, **DEAD))
    looks = iter(range(25))

    def sleep(seconds):
        if next(looks, None) is None:
            raise KeyboardInterrupt

    assert follow(log, until="problem", sleep=sleep) == 130
    out, err = capsys.readouterr()
    assert out == "" and err.count("has not grown since 39 steps") == 1
    assert re.search(r"Seen once, and reported if it grows: .*zero-gradient", err) and "--pid N" in err


def test_watch_ends_with_a_process_and_its_last_lines(tmp_path, capsys):
    log = written(tmp_path / "a.jsonl", steps(1, 15))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:

        def sleep(seconds):
            written(log, [{"step": n, **DEAD} for n in range(15, 80)], "a")
            process.communicate(b"\n")

        assert follow(log, until=None, pid=process.pid, sleep=sleep) == 1
    assert "zero-gradient" in capsys.readouterr().out
    assert not is_alive(process.pid) and is_alive(os.getpid())


def test_watch_refuses_what_it_cannot_do(tmp_path):
    for wrong, says in (({"every": 0}, "--every 0"), ({"pid": 2**22 + 1}, "no such process")):
        with pytest.raises(ParameterError, match=says):
            follow(tmp_path / "a.log", **wrong)


def test_watch_is_a_command(tmp_path, capsys):
    code, _, err = call(capsys, "watch", "-", "--until", "problem")
    assert (code, "standard input cannot be read twice" in err) == (2, True)


# --- the workflow ---

WORKFLOW = yaml.safe_load((ROOT / "examples" / "audit.yml").read_text())


LOGS = [(SICK, [0, 1]), (ROOT / "tests" / "audit" / "corpus" / "plain-0", [0, 0])]


@pytest.mark.parametrize("outputs, codes", daily(LOGS, SICK))
def test_commands_of_the_workflow_run(outputs, codes, tmp_path):
    (tmp_path / "outputs").symlink_to(outputs)
    program = tmp_path / "bin" / "workbench"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m workbench "$@"\n')
    program.chmod(0o755)
    where = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    commands = [step["run"] for step in WORKFLOW["jobs"]["audit"]["steps"] if "workbench audit" in step.get("run", "")]
    done = [subprocess.run(["bash", "-e", "-c", line], cwd=tmp_path, env=where, check=False) for line in commands]
    assert [each.returncode for each in done] == codes
    assert json.loads((tmp_path / "audit.sarif").read_text())["version"] == "2.1.0"
