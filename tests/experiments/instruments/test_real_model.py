"""What a notebook showed on SmolLM2, next to its own results."""

import html
import json
import re

import pytest
from conftest import NOTEBOOKS, ROOT

from workbench.experiments.instruments.real_model import FILE, measured_on_smollm2, on_smollm2
from workbench.runs.results import Result

ROWS = json.loads((ROOT / "data" / FILE).read_text())["rows"]


def test_verdicts_stand_next_to_each_other():
    name, row = next(iter(ROWS.items()))
    same, other = row["results"][0], row["results"][1]
    here = [
        Result(**same),
        Result(re.sub(r"\d", "7", other["says"]), False),
        Result("of the toy alone", True),
    ]
    shown = on_smollm2(name, here)
    rows = [re.findall("<td[^>]*>(.*?)</td>", row) for row in shown.data.split("<tr>")[2:]]
    lines = {html.unescape(says): (verdict, there) for verdict, there, says in rows}
    assert not any(says.startswith(same["says"]) for says in lines)
    assert lines[f"{other['says']} ({other['why']})"] == ("failed", Result(**other).verdict)
    assert "" in {verdict for verdict, _ in lines.values()}
    assert on_smollm2("00_start_here", here) == "No run of this notebook on SmolLM2 is recorded."
    assert row["environment"]["git_commit"][:7] in shown.data


@pytest.mark.parametrize("name", ROWS)
def test_a_notebook_shows_what_is_recorded_of_it(name):
    cells = json.loads(next(path for path in NOTEBOOKS if path.stem == name).read_text())["cells"]
    (shown,) = (cell for cell in cells if f'on_smollm2("{name}", results)' in "".join(cell["source"]))
    page = "".join("".join(out.get("data", {}).get("text/html", "")) for out in shown["outputs"])
    assert page.count("<tr>") > 2 and ROWS[name]["environment"]["git_commit"][:7] in page


def test_a_stored_result_is_shown_with_its_commit_and_machine():
    stored = json.loads((ROOT / "data" / "measured" / "bf16_padding.json").read_text())
    page = html.unescape(measured_on_smollm2("bf16_padding").data)
    assert all(what in page and says in page for what, says in stored["summary"].items())
    made = stored["environment"]
    assert made["git_commit"][:7] in page and made["cpu"] in page and stored["unit"] in page
    assert measured_on_smollm2("no_such") == "No result of benchmarks/no_such.py is stored."
