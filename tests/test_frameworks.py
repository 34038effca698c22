"""The adapters to frameworks' losses: TRL's is asked, wheels are read without a network, the page says what is stored."""

import ast
import csv
import doctest
import io
import subprocess
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trl
from conftest import ROOT

from benchmarks import frameworks
from repros.frameworks import ms_swift, reduced, run, wheels
from repros.frameworks.causes import CAUSES, cause_of
from tools.record import measured
from workbench.conform import Case, NotOffered, conform_report

STORED = measured("conform")["frameworks"]
ANSWERS = [(name, release, answers) for name, releases in STORED.items() for release, answers in releases.items()]
LOSS = """
import somewhere_else

LIMIT = 2.0

@somewhere_else.compiled
def limited(x):
    return x.clamp(max=LIMIT)

class Trainer:
    @torch.no_grad()
    def weight(self, x):
        return x * self.factor

    def sample(self, rewards):
        if self.scaled:
            mean = rewards.mean()
            rewards = rewards - mean
            logged = somewhere_else.log(rewards)
"""


@pytest.fixture
def wheel(tmp_path):
    (tmp_path / "loss.py").write_text(LOSS)
    return wheels.Wheel(tmp_path)


def test_a_function_is_taken_without_its_imports(wheel):
    taken = wheel.take("loss.py", "LIMIT", "limited", "Trainer.weight")
    x = torch.tensor([1.0, 5.0], requires_grad=True)
    assert taken.limited(x).tolist() == [1.0, 2.0]
    weight = taken.weight(type("Stub", (), {"factor": 3.0}), x)
    assert weight.tolist() == [3.0, 15.0] and not weight.requires_grad
    assert wheel.has("loss.py", "Trainer.sample") and not wheel.has("loss.py", "Trainer.limited")
    with pytest.raises(LookupError, match=r"loss\.py has no absent"):
        wheel.take("loss.py", "absent")


def test_a_file_is_parsed_again_only_if_it_changed(wheel, monkeypatch):
    texts = []

    def parse(text):
        texts.append(text)
        return ast.parse(text)

    monkeypatch.setattr(wheels, "ast", SimpleNamespace(**vars(ast) | {"parse": parse}))
    file = wheel.folder / "loss.py"
    for limit in ("2.5", "7.5"):  # numbers that no other test has parsed
        file.write_text(LOSS.replace("2.0", limit))
        for _ in range(2):
            number = wheel.take("loss.py", "LIMIT").LIMIT
            assert number == float(limit)
            assert wheel.has("loss.py", "Trainer.weight")
    assert len(texts) == 2


def test_lines_of_a_function_are_taken_alone(wheel):
    centred = wheel.lines("loss.py", "Trainer.sample", "mean = ", "rewards = ")
    assert centred(rewards=torch.tensor([1.0, 3.0])).rewards.tolist() == [-1.0, 1.0]
    with pytest.raises(LookupError, match="has no lines from 'median = '"):
        wheel.lines("loss.py", "Trainer.sample", "median = ", "rewards = ")


def test_a_wheel_is_downloaded_once(tmp_path, monkeypatch):
    commands = []

    def download(command, check):
        commands.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "pkg-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("pkg-1.0.data/purelib/pkg/loss.py", "LIMIT = 2.0")
            archive.writestr("pkg/weights.bin", "0")

    monkeypatch.setattr(subprocess, "run", download)
    for _ in range(2):
        folder = wheels.unzipped("pkg", "1.0", tmp_path)
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.*")] == ["pkg/loss.py"]
    assert len(commands) == 1 and commands[0][-1] == "pkg==1.0" and "--no-deps" in commands[0]


@pytest.mark.parametrize("arguments", [[], ["trl", "--all"], ["nowhere"]])
def test_the_command_wants_one_framework_or_all(arguments, capsys):
    with pytest.raises(SystemExit):
        run.main(arguments)
    assert "usage" in capsys.readouterr().err


def test_a_setting_that_is_not_offered_is_not_asked():
    asked = run.within({"beta"}, lambda case: 1.0)
    assert asked(Case("kl", needs=frozenset({"beta"}))) == 1.0
    with pytest.raises(NotOffered, match="no setting for delta"):
        asked(Case("two-sided clip", needs=frozenset({"beta", "delta"})))


def asked(name):
    """What the installed TRL answers, if its answers are stored."""
    if trl.__version__ not in STORED[name]:
        pytest.skip(f"TRL {trl.__version__} is not stored, only {', '.join(STORED[name])}")
    return run.ask(name, Path(trl.__file__).parents[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trl_async", "trl_distillation", "trl_async_distillation"])
def test_trls_other_trainers_answer_what_is_stored(name):
    verdicts = [
        [(claim, case, cell["verdict"]) for claim, case, cell in frameworks.cells(answers)]
        for answers in (asked(name), STORED[name][trl.__version__])
    ]
    assert verdicts[0] == verdicts[1]
    assert {verdict for *_, verdict in verdicts[0]} >= {"same", "wrong"}


@pytest.mark.slow
def test_trl_answers_what_is_stored_of_its_release():
    answers = asked("trl")
    assert answers == STORED["trl"][trl.__version__]
    assert answers["dapo"]["same"] > 30
    wrong = {
        case
        for answer in answers.values()
        for case, cell in answer["others"].items()
        if cell["verdict"] != "not offered"
    }
    assert wrong == {"nan behind the end (old)", "nan behind the end (all but the policy's)"}


# Fault -> definition, and what TRL's source says with and without it.
PLANTED = {
    "divisor": ("dapo", "loss = (per_token_loss * mask).sum() / normalizer", "loss = (per_token_loss * mask).mean()"),
    "sign": ("dapo", "per_token_loss = -torch.min(", "per_token_loss = torch.min("),
    "clip": ("dapo", "coef_2 = torch.clamp(coef_1, 1 - self", "coef_2 = torch.clamp(coef_1, 0.5 - self"),
    "mask": ("dapo", "loss = (per_token_loss * mask).sum() / normalizer", "loss = per_token_loss.sum() / normalizer"),
    "kl": ("dapo", "(ref_per_token_logps - per_token_logps) - 1", "(per_token_logps - ref_per_token_logps) - 1"),
    "group size": (
        "grpo_advantages",
        "torch.nanmean(rewards.view(-1, num_generations), dim=1)",
        "torch.nanmean(rewards).expand(len(rewards) // num_generations)",
    ),
}


def wrong_cases(folder, definition):
    others = run.ask("trl", folder)[definition]["others"]
    return {case for case, cell in others.items() if cell["verdict"] == "wrong"}


@pytest.mark.slow
@pytest.mark.skipif(trl.__version__ != "1.16.0", reason="the faults are put into lines of TRL 1.16.0")
def test_six_faults_in_trls_own_functions_are_wrong(tmp_path, monkeypatch):
    files = ("utils", "grpo_trainer", "rloo_trainer")
    sources = {name: (Path(trl.__file__).parent / f"trainer/{name}.py").read_text() for name in files}
    adapter = run.importlib.import_module("repros.frameworks.trl")
    every_function = adapter.functions

    def two_functions(wheel):
        functions = every_function(wheel)
        return {name: functions[name] for name in ("dapo", "grpo_advantages")}

    monkeypatch.setattr(adapter, "functions", two_functions)
    found = {}
    for fault, (definition, before, after) in {"none": ("dapo", "", ""), **PLANTED}.items():
        place = tmp_path / fault / "trl" / "trainer"
        place.mkdir(parents=True)
        for name, text in sources.items():
            assert name != "grpo_trainer" or before in text, fault
            (place / f"{name}.py").write_text(text.replace(before, after) if before else text)
        found[fault] = wrong_cases(tmp_path / fault, definition)
    healthy = found.pop("none")
    assert healthy == {"nan behind the end (old)", "nan behind the end (all but the policy's)"}
    assert [fault for fault, wrong in found.items() if not wrong - healthy] == []


def test_every_wrong_case_has_a_cause_that_was_read():
    wrong = {
        (name, release, claim, case)
        for name, release, answers in ANSWERS
        for claim, case, cell in frameworks.cells(answers)
        if cell["verdict"] == "wrong"
    }
    assert not [one for one in wrong if cause_of(*one) is None]
    assert {cause_of(*one) for one in wrong} == set(CAUSES)


def test_a_fault_is_reduced_to_lines_that_run():
    assert doctest.testmod(ms_swift) == (0, 5)
    assert doctest.testmod(reduced) == (0, 10)


def own_formulas():
    """Framework and definition of each formula that conform has no name for -> the stored answers, by case."""
    places = {}
    for name, releases in STORED.items():
        release, answers = next(iter(releases.items()))
        for claim, case, cell in frameworks.cells(answers):
            if cell["verdict"] == "wrong" and cause_of(name, release, claim, case).kind == "own formula":
                places.setdefault((name, claim), {})[case] = cell
    return places


@pytest.mark.parametrize("name, claim", own_formulas())
def test_a_reduced_formula_gives_the_stored_numbers(name, claim):
    stored, reports = own_formulas()[name, claim], {}
    for case, cell in stored.items():
        place = next(place for place in reduced.ASKED if place[0] == name and fits(claim, case, *place[1:]))
        if place not in reports:
            reports[place] = {result.case: result for result in conform_report(reduced.ASKED[place], claim).results}
        result = reports[place][case]
        assert result.value == pytest.approx(cell["value"], rel=1e-4, abs=1e-6), case
        if "slope" in cell:  # where two slopes differ by as much, rounding chooses the one that is stored
            gap = abs(float(cell["slope"]) - cell["expected_slope"])
            assert abs(result.slope - result.expected_slope) == pytest.approx(gap, rel=1e-3, abs=1e-6), case


def fits(claim, case, claims, cases):
    return fnmatch(claim, claims) and fnmatch(case, cases)


def test_each_fault_has_a_text_for_its_maintainers_or_is_fixed():
    readme = (ROOT / "repros" / "upstream" / "README.md").read_text()
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    for cause in CAUSES:
        if cause.kind == "fault":
            name = frameworks.NAMES[cause.framework].split()[0]
            assert any(row.startswith(f"| {name} ") for row in rows), cause


def test_stored_verdicts_are_of_the_cases_that_there_are():
    assert {name: tuple(releases) for name, releases in STORED.items()} == run.RELEASES
    for _, _, answers in ANSWERS:
        for claim, answer in answers.items():
            assert answer["others"].keys() <= set(run.cases_of(claim))
            assert answer["same"] + len(answer["others"]) == len(run.cases_of(claim))


def test_the_page_and_its_sheet_count_each_case_once():
    text = (ROOT / "docs/evidence/conform.md").read_text()
    sheet = list(csv.DictReader(io.StringIO((ROOT / "docs/evidence/conform.csv").read_text())))
    for name, releases in STORED.items():
        title = frameworks.NAMES[name]
        assert f"| {title} {next(iter(releases))} |" in text
        for release, answers in releases.items():
            rows = [row for row in sheet if row["framework"] == title and release in row["release"].split(", ")]
            counted = sum(int(row[verdict]) for row in rows for verdict in frameworks.VERDICTS)
            assert counted == sum(len(run.cases_of(claim)) for claim in answers)
    says = "what is not the same (cases)"
    assert not [row for row in sheet if "not read" in row[says]]
    assert not [row for row in sheet if "" in row.values() and (row["not offered"] != "0" or row["wrong"] != "0")]
    assert all(("not offered: " in row[says]) == (row["not offered"] not in ("0", "not asked")) for row in sheet)
