"""Sentences of numbers; what each says of its numbers is in the examples of its docstring, which run as doctests."""

import json
import re

import numpy as np
from conftest import NOTEBOOKS

from workbench.curves.stats import Interval, one_seed
from workbench.studies.findings import of_position_training, of_ppo_stops, show_checks, show_findings
from workbench.studies.pictures import installed_table


def interval(low, high):
    return Interval((low + high) / 2, low, high, 0.95, 3, "t", "")


def test_a_ratio_whose_interval_holds_1_is_called_undecided_and_one_seed_has_no_interval():
    about = {"limit": 48, "saved_eos": None, "names_eos": 1}
    assert "undecided" in of_ppo_stops(3.7, interval(0.8, 6.0), interval(1, 2), **about)[0]
    assert "undecided" not in of_ppo_stops(3.7, interval(2.0, 6.0), interval(1, 2), **about)[0]
    assert "4 x the seconds to the same reward." in of_ppo_stops(3.7, one_seed(4.0), one_seed(1.0), **about)[0]


def test_an_interval_that_holds_0_shows_no_difference_of_training():
    said = [of_position_training(interval(*b), 5, "vllm", {"GRPO": False}, "1.12.0")[0] for b in ((-1, 1), (0.1, 1))]
    assert "no difference shown" in said[0] and said[1].endswith("5 seeds: a difference. It sampled with vllm.")


def test_checks_are_counted_and_those_that_do_not_hold_are_named():
    shown = show_checks({"a": True, "b": np.bool_(False), "c": "not run: no GPU"}).data
    assert shown.splitlines()[0] == "Of 3 checks 1 hold, 1 do not hold, 1 were not run."
    assert "- b: **does not hold**\n- c: not run: no GPU" in shown
    assert show_findings(["One.", "Two."]).data == "1. One.\n2. Two."


def test_every_defect_that_a_notebook_looks_up_was_tried_on_the_pinned_release():
    cells = ["".join(cell["source"]) for path in NOTEBOOKS for cell in json.loads(path.read_text())["cells"]]
    named = {name for cell in cells if "installed_table(" in cell for name in re.findall(r'"(\w+)": "', cell)}
    assert len(named) > 8
    assert not installed_table({name: name for name in named}, trl="1.12.0").eq("not tried").any(axis=None)
