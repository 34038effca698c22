"""What a notebook showed on SmolLM2, next to its own results."""

import json
import re

import pytest
from conftest import NOTEBOOKS, ROOT

from workbench.experiments.instruments.real_model import FILE, on_smollm2
from workbench.runs.results import Result

ROWS = json.loads((ROOT / "data" / FILE).read_text())["rows"]


def test_verdicts_stand_next_to_each_other():
    name, row = next(iter(ROWS.items()))
    same, other = row["results"][0], row["results"][1]
    here = [
        Result(same["says"], True),
        Result(re.sub(r"\d", "7", other["says"]), False),
        Result("of the toy alone", True),
    ]
    shown = on_smollm2(name, here)
    lines = shown.data.set_index("what SmolLM2 shows")
    assert same["says"] not in lines.index
    assert lines.loc[other["says"]].to_dict() == {"here": "failed", "SmolLM2": Result(**other).verdict}
    assert "" in set(lines["here"])
    assert on_smollm2("00_start_here", here) == "No run of this notebook on SmolLM2 is recorded."
    assert row["environment"]["git_commit"][:7] in shown.caption


@pytest.mark.parametrize("name", ROWS)
def test_a_notebook_shows_what_is_recorded_of_it(name):
    cells = json.loads(next(path for path in NOTEBOOKS if path.stem == name).read_text())["cells"]
    (shown,) = (cell for cell in cells if f'on_smollm2("{name}", results)' in "".join(cell["source"]))
    html = "".join("".join(out.get("data", {}).get("text/html", "")) for out in shown["outputs"])
    assert html.count("<tr>") > 2 and ROWS[name]["environment"]["git_commit"][:7] in html
