import re
import runpy
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, write_notebook, write_run

from workbench.errors import ParameterError
from workbench.runs.results import Result, save_result
from workbench.runs.run import list_runs

SCRIPT = ROOT / "docs" / "claims.py"
BEGIN, END, Row, as_markdown, claims_sheet, load_claims, run_command, write_sheet = map(
    runpy.run_path(str(SCRIPT)).get,
    ("BEGIN", "END", "Row", "as_markdown", "claims_sheet", "load_claims", "run_command", "write_sheet"),
)
RECORDED = ROOT / "tests" / "data" / "claims" / "recorded"
EXPECTED = ROOT / "tests" / "data" / "claims" / "sheet.md"
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


def test_every_claim_of_the_articles_has_a_row(rows):
    counts = {"A0": 7, "A1": 6, "A2": 6, "A3": 7, "A4": 7, "A5": 9, "A6": 5, "A7": 3}
    assert list(rows) == [f"{a}.{n}" for a, most in counts.items() for n in range(1, most + 1)]
    assert all(row.claim for row in rows.values())


@pytest.mark.parametrize(
    "claim, expected",
    [("A2.1", {"verdict": "not tested"}),
     ("A0.1", {"verdict": "not tested", "command": ""}),  # its only run failed
     ("A4.1", {"verdict": "not tested", "measured": "it converges smoothly (needs 8 GPUs)"}),
     # runs that disagree are counted, and not hidden behind the latest
     ("A4.2", {"verdict": "confirmed in 1, refuted in 1 of 2 runs", "measured": "turns after 12% of late steps"}),
     ("A4.2", {"scale": "toy"}),
     ("A4.3", {"scale": "full", "measured": "-31.2 to -1.1"}),  # a run of a real model speaks before any toy
     ("A1.1", {"scale": "toy"}),
     # the parameters that are not the notebook's defaults
     ("A4.1", {"command": "workbench run documented_example -p seed=1"}),
     ("A4.3", {"command": "workbench run documented_example -p seed=1 -p model=Qwen/Qwen2-0.5B-Instruct -p steps=2500"})]
)  # fmt: skip
def test_a_row_says_what_the_runs_that_speak_of_its_claim_found(rows, claim, expected):
    assert {name: getattr(rows[claim], name) for name in expected} == expected


def test_the_command_of_a_notebook_that_is_gone_holds_every_parameter(tmp_path):
    run = write_run(tmp_path, notebook="gone", params={"seed": 1, "stop": "a b", "out_dir": "/x", "interactive": False})
    assert run_command(run) == "workbench run gone -p seed=1 -p 'stop=a b'"


def test_a_verdict_recorded_by_a_notebook_comes_through(tmp_path):
    results = [Result("0 of 4 fail without", True, claim="A3.3"), Result("", None, "not run: no GPU", "A3.4")]
    save_result(write_run(tmp_path), results)
    rows = by_id(tmp_path)
    assert (rows["A3.3"].verdict, rows["A3.3"].measured) == ("confirmed", "0 of 4 fail without")
    assert (rows["A3.4"].verdict, rows["A3.4"].measured) == ("not tested", " (no GPU)")


def test_a_result_that_names_an_unknown_claim_is_refused(tmp_path):
    save_result(write_run(tmp_path), [Result("x", True, claim="A9.9")])
    with pytest.raises(ParameterError, match=r"speaks of claim 'A9\.9'"):
        claims_sheet(list_runs(tmp_path))


def test_bars_and_tags_do_not_break_the_table(rows):
    text = as_markdown([rows["A1.1"]])
    assert "`<search>` \\| counted" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) >= 3 and all(len(re.findall(r"(?<!\\)\|", line)) == 6 for line in lines)


def test_a_tag_outside_code_is_escaped_and_shown_as_written():
    row = Row("A1.1", "stops at <search>", measured="`<a>` and <b>")
    assert "| stops at &lt;search> |  | not tested | `<a>` and &lt;b> |" in as_markdown([row])


def test_the_sheet_is_written_between_its_markers_and_only_there(tmp_path, rows):
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_sheet(path, list(rows.values()))
    assert path.read_text() == f"before\n{BEGIN}\n\n{as_markdown(list(rows.values()))}\n{END}\nafter\n"


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_file_without_one_pair_of_markers_is_left_alone(tmp_path, text):
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(ParameterError, match="once each"):
        write_sheet(path, [])
    assert path.read_text() == text


def test_the_script_writes_the_sheet_into_the_page_beside_it(notebooks, tmp_path):
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "claims.md").write_text(f"{BEGIN}\n{END}\n")
    subprocess.run([sys.executable, tmp_path / "claims.py", "--runs-dir", RECORDED], check=True)
    assert EXPECTED.read_text(encoding="utf-8") in (tmp_path / "claims.md").read_text()


def test_the_page_shows_every_claim_as_worded_in_the_data():
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    table = page.partition(BEGIN)[2].partition(END)[0]
    shown = re.findall(r"^\| (A\d\.\d) \| (.*?) \| (.*?) \| ", table, re.M)
    wanted = [(name, about["claim"], about["when_reported"]) for name, about in load_claims().items()]
    assert shown == wanted


def test_the_sheet_has_a_verdict_for_today_in_plain_words_and_each_command_once(rows):
    text = as_markdown(list(rows.values()))
    assert "| confirmed in 1, refuted in 1 of 2 runs (toy) | turns after 12% of late steps |" in text
    for article in text.split("### ")[1:]:
        commands = re.findall(r"^- `(workbench run .*)`: A", article, re.M)
        assert len(commands) == len(set(commands))
    assert text.count("- `workbench run ") > 2


def test_every_claim_is_worded_in_one_line_and_says_what_was_true_of_it_when_it_was_reported():
    for about in load_claims().values():
        assert all("\n" not in text and len(text) <= 120 for text in about.values())
        assert re.match(r"(true|in part|open|unknown|advice)\b", about["when_reported"])
        if about["when_reported"].startswith("true"):  # a version, an issue or a report says of what
            assert re.search(r"#\d+|TRL|report|three weeks", about["when_reported"])


def test_a_claim_with_several_results_is_confirmed_only_as_a_whole(tmp_path):
    results = [Result("3.3 x forward passes", True, claim="A0.2")]
    results.append(Result("1.2 (0.8 to 1.7) x the seconds", None, "its interval holds 1", "A0.2"))
    save_result(write_run(tmp_path / "one"), results[:1])
    save_result(write_run(tmp_path / "both"), results)
    one, both = (by_id(tmp_path / name)["A0.2"] for name in ("one", "both"))
    assert (one.verdict, both.verdict) == ("confirmed", "in part: 1 confirmed, 1 inconclusive")
    assert both.measured == "3.3 x forward passes; 1.2 (0.8 to 1.7) x the seconds (its interval holds 1)"
