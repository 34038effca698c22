"""RL-Faults: its labels, its judge, and tools that know nothing."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from benchmarks import rl_faults
from benchmarks.rl_faults import CAUSES, Answer, Label, ask, from_audit, from_line, judged, planted, public
from workbench.errors import ParameterError

LABELS = json.loads((rl_faults.PUBLIC / "public.json").read_text(encoding="utf-8"))
ALL = [*planted(), *public()]
FAULT = Label("public", "a", Path("a"), "fault", any_of=frozenset(["collapse"]), none_of=frozenset(["copies"]))
NONE = Label("public", "a", Path("a"), "none", none_of=frozenset(["copies"]))
PLANTED = Label("planted", "a", Path("a"), "fault", first=frozenset(["copies", "zero-gradient"]))
HIDDEN = dataclasses.replace(PLANTED, kind="hidden")
NO_LOG = Label("public", "a", Path("a"), "no log")


def test_the_labels_name_causes_that_there_are():
    sets = [one.first | one.all_of | one.any_of | one.none_of for one in ALL]
    sets += [frozenset([*label["all_of"], *label["any_of"], *label["none_of"]]) for label in LABELS.values()]
    assert frozenset().union(*sets) <= set(CAUSES)


def test_only_logs_whose_licence_allows_it_are_kept():
    kept = {path.parent.name for path in (rl_faults.PUBLIC / "logs").glob("*/*")}
    assert {LABELS[name]["licence"] for name in kept} == {"Apache-2.0"}
    assert kept == {one.name for one in ALL if one.part == "public"}  # each is the blob that was judged
    assert all(label["repository"] and label["path"] and len(label["blob"]) == 40 for label in LABELS.values())


def test_the_page_says_how_many_logs_there_are():
    page = (rl_faults.PUBLIC / "README.md").read_text(encoding="utf-8")
    kinds = [one.kind for one in ALL if one.part == "planted"]
    faults = sum(bool(label["all_of"] or label["any_of"]) for label in LABELS.values())
    no_log = sum(not label["read"] for label in LABELS.values())
    assert f"{len(kinds)} small trainings" in page
    assert f"{len(kinds) - kinds.count('none')} with one fault, {kinds.count('none')} without" in page
    assert f"{len(LABELS)} logs of public" in page
    assert f"{faults} with a fault, {len(LABELS) - faults - no_log} without, {no_log} that are no RL" in page


def test_another_file_than_the_one_judged_is_refused(tmp_path):
    name = next(name for name, label in LABELS.items() if label["path"] == "outputs/logs/dpo_training_log.csv")
    (tmp_path / name).mkdir()
    (tmp_path / name / "dpo_training_log.csv").write_text("step,reward\n1,2\n")
    with pytest.raises(ParameterError, match=r"is git blob .*, the log that was judged is 9fcbc527"):
        list(public(tmp_path))


@pytest.mark.parametrize(
    ("answer", "label", "result"),
    [
        (Answer("problem", ("collapse",)), FAULT, "right"),
        (Answer("no problem", ("solved", "collapse")), FAULT, "right"),
        (Answer("problem", ("solved",)), FAULT, "missed"),
        (Answer("problem", CAUSES), FAULT, "wrong cause"),
        (Answer("not read"), FAULT, "not read"),
        (Answer("no problem", ("solved",)), NONE, "right"),
        (Answer("no problem", ("copies",)), NONE, "wrong cause"),
        (Answer("problem", ("solved",)), NONE, "false problem"),
        (Answer("not read"), NONE, "not read"),
        (Answer("problem", ("zero-gradient", "collapse")), PLANTED, "right"),
        (Answer("problem", ("collapse", "copies")), PLANTED, "wrong cause"),
        (Answer("no problem"), PLANTED, "missed"),
        (Answer("no problem", ("collapse",)), HIDDEN, "right"),
        (Answer("problem", ("copies",)), HIDDEN, "right"),
        (Answer("problem", ("collapse",)), HIDDEN, "wrong cause"),
        (Answer("not read"), NO_LOG, "right"),
        (Answer("no problem"), NO_LOG, "read, and no log"),
    ],
)
def test_an_answer_is_judged_by_its_label(answer, label, result):
    assert judged(answer, label) == result


@pytest.mark.parametrize(
    "label", [FAULT, NONE, PLANTED, HIDDEN, NO_LOG], ids=lambda label: f"{label.part} {label.kind}"
)
def test_no_answer_is_never_right(label):
    assert judged(None, label) == "no answer"


@pytest.mark.parametrize(
    "output",
    ["", "no JSON", "[]", "3", '{"causes": []}', '{"verdict": "bad"}', '{"verdict": "problem", "causes": ["a guess"]}',
     '{"verdict": "problem", "causes": 3}', '{"verdict": "problem"}\nand more']
)  # fmt: skip
def test_an_output_in_another_form_is_no_answer(output):
    assert from_line(output, 0) is None


def test_an_error_of_the_audit_itself_is_no_answer():
    assert from_audit("", 2) == Answer("not read")
    assert from_audit("", 3) is None and from_audit("", 0) is None and from_audit('{"run": "a"}', 1) is None


def test_a_tool_that_says_nothing_finds_no_fault(capsys):
    command = [sys.executable, "-c", 'print(\'{"verdict": "no problem"}\')']
    few = [next(one for one in ALL if one.part == part and one.kind == "fault") for part in ("planted", "public")]
    rows = rl_faults.run(command, [*few, next(one for one in ALL if one.kind == "none")], "line")
    assert [row["result"] for row in rows] == ["missed", "missed", "right"]
    table = "\n".join(rl_faults.scores(rows))
    assert "| faults: named | 0 of 1 | 0 of 1 |" in table
    assert "planted" in capsys.readouterr().out


def test_a_tool_that_cannot_be_started_is_said():
    with pytest.raises(ParameterError, match="no-such-tool: cannot be started"):
        ask(["no-such-tool"], Path("a"), "line")


def test_the_audit_of_the_workbench_is_asked_as_any_tool():
    command = [sys.executable, "-m", "workbench", "audit", "--json"]
    chosen = [one for one in ALL if one.name in ("masked-stop-id-0", "plain-0", "verl-alfworld-grpo-csv")]
    answers = {one.name: ask(command, one.path, "audit") for one in chosen}
    assert {one.name: judged(answers[one.name], one) for one in chosen} == dict.fromkeys(answers, "right")
    assert answers["masked-stop-id-0"].causes[0] == "masked-stops" and len(answers) == 3
