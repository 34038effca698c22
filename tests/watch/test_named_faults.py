"""Some of the faults of `benchmarks/named_faults.py`, which measures all of them."""

from collections import Counter

import pytest
from conftest import daily

from benchmarks.faults import checked, judged
from benchmarks.named_faults import FAULTS, OFF_POLICY, TABLE_OF, replayed
from tools.record import measured

pytestmark = pytest.mark.slow

# Fault -> the result, and words of the cause.
SOME = {
    "completions encoded again": ("right", "decoded and encoded again"),
    "mask in the loss: last token left out": ("right", "the loss leaves out 8 tokens that its mask has"),
    "groups of two": ("right", "other advantages"),
    "log-probs: half without gradient": ("right", "worst in"),
    "reference is another model": ("honest", "it is not the model that the training starts from"),
    "CISPO: weights not detached": ("right", "the loss is off by up to"),
    "optimizer without the mlp": ("right", "no group of the optimizer holds"),
    "weight decay 300": ("honest", "of the step is weight decay"),
    "advantages negated behind the generation": ("right", "-1 times"),
    "gradient of a bias negated": ("right", "v_proj.bias"),
    "gradient x 1.004": ("right", "norm 1.004 times"),
    "larger branch of the clip": ("right", "the larger of the plain and the clipped"),
}


@pytest.mark.parametrize(
    "name",
    daily(
        SOME,
        "completions encoded again",
        "reference is another model",
        "CISPO: weights not detached",
        "optimizer without the mlp",
        "gradient x 1.004",
    ),
)
def test_a_named_fault_is_named_at_its_stage(name):
    row = judged(FAULTS[name], checked(FAULTS[name]), {})
    result, cause = SOME[name]
    assert row["result"] == result and cause in row["cause"], row


def test_a_kept_step_shows_a_clip_that_is_missing():
    name = "no clipping"
    assert next(iter(replayed(FAULTS[name], OFF_POLICY[name])["different"])) == "loss"


def test_all_named_faults_are_stored_with_their_results():
    assert Counter(TABLE_OF.values()) == {"of every stage": 68, "at the seams": 20, "off-policy": 8}
    for column, row in measured("named_faults")["rows"].items():
        assert row["faults"].keys() == FAULTS.keys(), column
        assert {name: one["stage"] for name, one in row["faults"].items()} == {n: f.stage for n, f in FAULTS.items()}
