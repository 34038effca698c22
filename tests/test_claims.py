import csv
import re

import pytest
from conftest import ROOT, write_notebook, write_run

from tools import claims
from tools.claims import BEGIN, END, Row, as_markdown, check_tested, claims_sheet, write_sheet
from workbench.errors import ParameterError
from workbench.runs.files import write_json
from workbench.runs.results import Result, claim_titles, load_claims, save_result
from workbench.runs.run import list_runs

RECORDED = ROOT / "tests" / "data" / "claims" / "recorded"
EXPECTED = ROOT / "tests" / "data" / "claims" / "sheet.csv"
PARAMETERS = 'seed: int = 0  # of all\nmodel: str = "starter"  # which\nsteps: int = 80  # optimizer steps'


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """The notebook of the recorded runs, so that its defaults are known; returns the folder."""
    write_notebook(tmp_path / "notebooks" / "documented_example.ipynb", parameters=PARAMETERS)
    monkeypatch.setenv("WORKBENCH_NOTEBOOKS", str(tmp_path / "notebooks"))
    return tmp_path / "notebooks"


@pytest.fixture
def rows(notebooks):
    return by_id(RECORDED)


def by_id(runs) -> dict[str, Row]:
    return {row.id: row for row in claims_sheet(list_runs(runs))}


@pytest.mark.parametrize(
    "claim, expected",
    [("A2.1", {"verdict": "not tested"}),
     ("A0.1", {"verdict": "not tested", "command": ""}),  # its only run failed
     ("A4.1", {"verdict": "not tested", "measured": "it converges smoothly (needs 8 GPUs)"}),
     # runs that disagree are counted, and not hidden behind the latest
     ("A4.2", {"verdict": "not seen on a toy in 1, seen on a toy in 1 of 2 runs", "measured": "turns after 12% of late steps"}),
     ("A4.2", {"scale": "toy"}),
     ("A4.3", {"scale": "full", "measured": "-31.2 to -1.1"}),  # a run of a real model speaks before any toy
     ("A1.1", {"scale": "toy"}),
     # the parameters that are not the notebook's defaults
     ("A4.1", {"command": "workbench run documented_example -p seed=1"}),
     ("A4.3", {"command": "workbench run documented_example -p seed=1 -p model=Qwen/Qwen2-0.5B-Instruct -p steps=2500"})]
)  # fmt: skip
def test_row_shows_what_the_runs_of_its_claim_found(rows, claim, expected):
    assert {name: getattr(rows[claim], name) for name in expected} == expected


def test_result_of_unknown_claim_is_refused(tmp_path):
    save_result(write_run(tmp_path), [Result("x", True, claim="A9.9")])
    with pytest.raises(ParameterError, match=r"speaks of claim 'A9\.9'"):
        claims_sheet(list_runs(tmp_path))


def test_sheet_is_written_between_its_markers(tmp_path, rows):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_sheet(path, list(rows.values()))
    sheet = as_markdown(list(rows.values()))
    assert path.with_suffix(".csv").read_text() == EXPECTED.read_text(encoding="utf-8")
    assert path.read_text() == f"before\n{BEGIN}\n\n{sheet}\n{END}\nafter\n"
    assert "| A4 | The documented GRPO example | not tested 5," in sheet


def test_page_shows_claims_as_worded_in_the_data():
    with claims.PAGE.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        shown = [(row["published claim"], row["true when it was reported?"], row["id"]) for row in csv.DictReader(file)]
    assert shown == [(claim.words, claim.when_reported, name) for name, claim in load_claims().items()]


def test_every_claim_has_a_title_and_a_thread():
    assert {name.partition(".")[0] for name in load_claims()} == set(claim_titles())
    threads = [thread for claim in load_claims().values() for thread in claim.threads]
    assert threads and all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in threads)


def test_sheet_names_commit_and_versions_of_its_runs(tmp_path):
    run = write_run(tmp_path)
    save_result(run, [Result("3.3 x forward passes", True, claim="A0.2")])
    write_json(run.path / "env.json", {"git_commit": "0123456789", "packages": {"trl": "1.12.0"}})
    sheet = as_markdown(claims_sheet(list_runs(tmp_path)))
    date = "-".join((run.id[:4], run.id[4:6], run.id[6:8]))
    assert f"- A0: commit 0123456, {date}, TRL 1.12.0\n" in sheet


def test_a_sheet_without_results_does_not_replace_one(tmp_path):
    sheet = claims_sheet(list_runs(tmp_path))
    with pytest.raises(ParameterError, match=r"no run that is done tests a claim of A0, .*make report"):
        check_tested(sheet, tmp_path)
    page = claims.PAGE.read_text(encoding="utf-8")
    assert not re.findall(r"^\|[^|]*\|[^|]*\| not tested \d+ \|", page, re.MULTILINE)


def test_toy_says_nothing_of_claims_about_real_models(tmp_path):
    why = "not comparable: a toy of 80 steps says nothing of a peak at step 290"
    save_result(write_run(tmp_path), [Result("It peaks at step 79 of 80", None, why, "A4.2")])
    row = by_id(tmp_path)["A4.2"]
    assert row.verdict == "not comparable"
    assert row.measured == "It peaks at step 79 of 80 (a toy of 80 steps says nothing of a peak at step 290)"


def test_a_claim_with_several_results_has_them_counted(tmp_path):
    results = [Result("3.3 x forward passes", True, claim="A0.2")]
    results.append(Result("1.2 (0.8 to 1.7) x the seconds", None, "its interval holds 1", "A0.2"))
    save_result(write_run(tmp_path / "one"), results[:1])
    save_result(write_run(tmp_path / "both"), results)
    one, both = (by_id(tmp_path / name)["A0.2"] for name in ("one", "both"))
    assert (one.verdict, both.verdict) == ("seen on a toy", "in part: 1 seen on a toy, 1 inconclusive")
    assert both.measured == "3.3 x forward passes; 1.2 (0.8 to 1.7) x the seconds (its interval holds 1)"


def test_a_write_ups_claim_does_not_stand_under_a_threads_name():
    claims_known = load_claims()
    assert claims_known["A0.2"].source == "write-up of https://github.com/huggingface/trl/issues/2387"
    assert (
        "(write-up of trl#2387)" in str(claims_known["A0.2"]) and "(write-up of <a " in claims_known["A0.2"].as_html()
    )
    assert claims_known["A5.3"].source == "https://github.com/huggingface/trl/issues/6439"


def test_no_claim_lacks_a_real_cell_or_its_reason():
    with (claims.PAGE.parent / "claims_real.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == list(load_claims())
    assert all(cell for row in rows for cell in row.values())
