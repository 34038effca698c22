"""The same prompts sampled without a stop and with EOS as the stop."""

import json

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from workbench.errors import ParameterError
from workbench.experiments.instruments.without_training import ROWS, count_eos, ratio_of_arms, sampled_twice
from workbench.experiments.recipes import load_prompts, resolve_model


def test_tokens_behind_the_first_eos_are_counted():
    rows = [[7, 2, 9, 2], [3, 9, 9, 9], [9, 9, 9, 2], [8, 8, 8, 8]]
    counts = {"tokens": 16, "after EOS": 5, "with EOS": 3, "longest": 4}
    assert count_eos(rows, {2, 3}) == counts
    assert count_eos([[2, 9], [9, 2]], {2})["longest"] == 2
    assert count_eos([], {2}) == {"tokens": 0, "after EOS": 0, "with EOS": 0, "longest": 0}


def test_a_completion_is_the_same_up_to_eos_in_both_arms():
    prompts = load_prompts("starter")["prompt"][: ROWS + 4]
    batches = pd.DataFrame(sampled_twice(resolve_model("starter"), prompts, 24, temperature=1.0))
    assert batches["completions"].tolist() == [ROWS, 4] == batches["same up to EOS"].tolist()
    assert (batches["passes, no stop"] == 24).all() and (batches["tokens"] == 24 * batches["completions"]).all()
    assert (batches["passes, stop at EOS"] == batches["longest"]).all() and batches["with EOS"].sum() > 0
    assert ratio_of_arms(batches, "passes", np.random.default_rng(0)).estimate >= 1


def test_a_single_text_is_no_list_of_prompts():
    with pytest.raises(ParameterError, match="expected a list of at least one prompt"):
        list(sampled_twice(resolve_model("starter"), "a text", 24))


def test_notebook_01_and_the_results_say_what_is_stored():
    (row,) = json.loads((ROOT / "data" / "measured" / "without_training.json").read_text())["rows"].values()
    summary = row["summary"]
    share = summary["tokens after EOS"].partition("(")[2].rstrip(")")
    without, having = summary["forward passes"].split()[0], summary["forward passes"].partition(", ")[2].split()[0]
    cells = json.loads((ROOT / "notebooks" / "01_ppo_eos_stop.ipynb").read_text())["cells"]
    first = " ".join("".join(cells[0]["source"]).split())
    assert f"{without} forward passes without a stop and {having} with it on {row['completions']} questions" in first
    assert f"{share} of the tokens come after EOS" in first
    results = (ROOT / "docs" / "evidence" / "results.md").read_text()
    assert f"[{without} forward passes](" in results and f"without a stop and {having} with it" in results
    assert f"{share} of its tokens" in results
