"""What a notebook showed on SmolLM2, next to its own results."""

import html
import json
import re
from types import SimpleNamespace

import pytest
from conftest import NOTEBOOKS, ROOT

from benchmarks.real import OF_OTHERS, of_model
from workbench.experiments.instruments import real_model
from workbench.experiments.instruments.real_model import FILE, NAMES, alike, measured_on_smollm2, on_smollm2
from workbench.runs.results import Result

ROWS = json.loads((ROOT / "data" / FILE).read_text())["rows"]


BY = {"packages": {"trl": "1.16.0"}, "git_commit": "0123456", "date": "", "cores": 2, "threads": "1"}
MADE = {"environment": BY, "minutes": 1}


def _shown(rows: dict, name: str, results: list[Result]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_model, "read_json", lambda *_: {"rows": rows})
        return on_smollm2(results, run_of(name)).data


def run_of(notebook: str, *, toy: bool = False):
    return SimpleNamespace(notebook=notebook, toy=toy)


def test_verdicts_stand_next_to_each_other():
    name, row = "04_duplicate_prompts", ROWS["04_duplicate_prompts"]
    same, other = row["results"][0], row["results"][1]
    here = [
        Result(**same),
        Result(re.sub(r"\d", "7", other["says"]), False),
        Result("of the toy alone", True),
    ]
    shown = on_smollm2(here, run_of(name))
    rows = [re.findall("<td[^>]*>(.*?)</td>", row) for row in shown.data.split("<tr>")[2:]]
    lines = {html.unescape(says): (verdict, there) for verdict, there, says in rows}
    assert any(says.startswith(same["says"]) for says in lines)
    assert lines[f"{other['says']} ({other['why']})"] == ("failed", Result(**other).verdict)
    assert "" in {verdict for verdict, _ in lines.values()}
    assert on_smollm2(here, run_of("00_start_here")) == "No run of this notebook on SmolLM2 is recorded."
    assert row["environment"]["git_commit"][:7] in shown.data


def test_a_sentence_of_other_trainings_names_their_size():
    other = {"says": "it takes 2 times", "holds": True, "of": {"steps": 10, "seeds": 5}}
    row = {"parameters": {"model": "smollm2"}, "results": [{"says": "it rises", "holds": True}, other]} | MADE
    page = _shown({"01_ppo_eos_stop": row}, "01_ppo_eos_stop", [Result("it takes 3 times", False)])
    assert "it rises</td>" in page and "it takes 2 times (steps: 10, seeds: 5)</td>" in page and "failed" in page


def test_a_toy_confirms_no_claim_next_to_smollm2():
    name, row = "05_grpo_docs_example", ROWS["05_grpo_docs_example"]
    (there,) = (one for one in row["results"] if one["claim"] == "A4.3")
    page = on_smollm2([Result(**there | {"says": f"{there['says']} "})], run_of(name, toy=True)).data
    assert "seen on a toy" in page and page.count("confirmed") == sum(
        Result(**r).verdict == "confirmed" for r in row["results"]
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_notebook_shows_what_is_recorded_of_it(name):
    cells = json.loads(next(path for path in NOTEBOOKS if path.stem == name).read_text())["cells"]
    (shown,) = (cell for cell in cells if "on_smollm2(results, run)" in "".join(cell["source"]))
    page = "".join("".join(out.get("data", {}).get("text/html", "")) for out in shown["outputs"])
    assert page.count("<tr>") > 2 and ROWS[name]["environment"]["git_commit"][:7] in page


def test_a_stored_result_is_shown_with_its_commit_and_machine():
    stored = json.loads((ROOT / "data" / "measured" / "bf16_padding.json").read_text())
    page = html.unescape(measured_on_smollm2("bf16_padding").data)
    assert all(what in page and says in page for what, says in stored["summary"].items())
    made = stored["environment"]
    assert made["git_commit"][:7] in page and made["cpu"] in page and stored["unit"] in page
    assert "benchmarks/hacked_rewards.py" in measured_on_smollm2("hacked_rewards_smollm2").data
    assert measured_on_smollm2("no_such") == "No result of benchmarks/no_such.py is stored."


@pytest.mark.parametrize("name", ROWS)
def test_each_row_names_the_model_of_its_run(name):
    row = ROWS[name]
    assert NAMES[row["parameters"]["model"]] in on_smollm2([], run_of(name)).data
    assert all(of_model(name, one["says"]) for one in row["results"])


@pytest.mark.parametrize("name", OF_OTHERS)
def test_sentences_about_toys_are_known_by_a_notebooks_words(name):
    cells = json.loads(next(path for path in NOTEBOOKS if path.stem == name).read_text())["cells"]
    code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert all(f'"{begin} ' in code for begin in OF_OTHERS[name])
    assert not of_model("03_position_ids_and_padding", "58% of ratios lie outside 0.8 to 1.2, 0% with position ids.")
    assert of_model(name, "In training, pads move the log-probs of smollm2 by 6e-05 nats: by rounding.")


def test_a_sentence_of_another_measure_has_no_verdict_here():
    says = "For one reward it takes 1.3 (0.79 to 2.3) times as many, scored up to EOS"
    other = Result("With a stop the reward up to EOS ends 3 (-4.1 to 10) higher, scored up to EOS", True)
    rows = {"01": {"parameters": {"model": "smollm2"}, "results": [{"says": says, "holds": False}]} | MADE}
    shown = re.findall("<td[^>]*>(.*?)</td>", _shown(rows, "01", [other]))
    assert shown == ["", "failed", says]


def test_a_sentence_that_another_fits_better_has_no_verdict_here():
    recorded = [f"Sampled by {by}, the reward ends 0.00 (0.00 to 0.00) higher." for by in ("transformers", "vllm")]
    assert alike(recorded, ["Sampled by vllm, the reward ends 0.47 (0.14 to 0.84) higher."]) == {1: 0}
