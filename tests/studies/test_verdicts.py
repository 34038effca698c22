"""The criteria of the claims; their examples, one that agrees and a made-up one that does not, run as doctests."""

import inspect

import numpy as np
import pytest

from workbench.claims import load_claims
from workbench.studies import verdicts

CRITERIA = {
    name.upper().replace("_", "."): f for name, f in vars(verdicts).items() if name[:1] == "a" and name[1:2].isdigit()
}


def test_every_claim_that_can_be_tested_on_one_machine_has_a_criterion():
    assert load_claims().keys() - CRITERIA.keys() == {"A4.1"}  # eight GPUs for a day
    assert not CRITERIA.keys() - load_claims().keys()


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_is_shown_to_agree_and_to_differ(name):
    shown = inspect.getdoc(CRITERIA[name])
    assert "agrees" in shown.partition(">>>")[2]
    assert "differs" in shown.partition(">>>")[2]


def test_a_smooth_curve_is_not_jumpy_whatever_its_shape():
    x = np.arange(100)
    for curve in (x / 10, np.sin(x / 9), np.exp(-x / 20), np.sqrt(x), 1e-6 * x + 1e-8 * np.cos(x)):
        assert "jumpy differs" in verdicts.a4_2(curve)["verdict"] or verdicts.a4_2(curve)["verdict"] == "differs"


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_rise_with_noise_is_jumpy_and_neither_early_nor_worse(seed):
    x = np.arange(80)
    curve = 0.2 * x + np.random.default_rng(seed).normal(0, 0.5, 80)
    assert verdicts.a4_2(curve)["verdict"] == "in part: jumpy agrees; early peak differs; worse end differs"
