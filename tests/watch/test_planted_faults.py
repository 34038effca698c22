"""Subtle faults of `planted_faults.py` and `sceptic_faults.py` in benchmarks/, each next to its twin without the fault."""

import pytest
import torch
from conftest import daily
from step_cases import make

from benchmarks import planted_faults, sceptic_faults
from benchmarks.faults import Fault, checked, judged, watched
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow

FAULTS = planted_faults.FAULTS | sceptic_faults.FAULTS
# Most of these were `same` at every stage when they were planted. Fault -> words of its cause.
FOUND = {
    "UnsaidNucleus": "are among the likeliest ones that hold 90% of the probability",
    "GreedyFirstToken": "first tokens are among the likeliest ones",
    "OneRowRepeated": "the sampler drew other ones, and the trainer put one in their place",
    "OtherPromptJudged": "the reward functions get other prompts than 8 of 8 rows have",
    "EqualGroupLifted": "the definition gives other advantages for these rewards",
    "SecondWithoutKl": "the loss is off by up to",
    "KeysDetached": "k_proj",
    "StepsCountedOn": "counts 100 steps before the first update, but its averages are 0",
    "EntropyOverPads": "entropy is logged as",
    "EntropyQuantileOfRow": "gives another loss for these rows",
}
# These show at the second update.
FOUND_LATER = {
    "KlTwice": "the definition gives other advantages",
    "AdapterInReference": "the reference gives a row alone other log-probs",
    "LoraALost": "lora_A",
}


@pytest.mark.parametrize("name", daily(FOUND, "OtherPromptJudged", "SecondWithoutKl", "KeysDetached"))
def test_a_planted_fault_is_named_at_its_stage(name):
    fault = FAULTS[name]
    different = checked(fault)["different"]
    assert next(iter(different), None) == fault.stage, different
    assert FOUND[name] in different[fault.stage], different
    assert checked(fault, healthy=True)["different"] == {}


@pytest.mark.parametrize("name", daily(FOUND_LATER, "KlTwice", "AdapterInReference"))
def test_a_fault_that_a_first_step_hides_is_named_later(name):
    fault = FAULTS[name]
    steps = watched(fault)
    result = judged(fault, steps[1], steps)
    assert (result["result"], result["at"]) == ("right", 2), result
    assert FOUND_LATER[name] in result["cause"]
    assert [stages["different"] for stages in watched(fault, healthy=True).values()] == [{}, {}, {}]


def test_old_log_probs_that_are_dropped_later_are_named():
    steps = watched(FAULTS["OldLogpsRenewed"])
    assert [step for step, stages in steps.items() if "ratios" in stages["different"]] == [3]
    assert "gets no old log-probs" in steps[3]["different"]["ratios"]


def test_a_kl_that_no_row_has_cannot_be_told():
    stages = checked(FAULTS["SquaredKl"])
    assert stages["different"] == {} and "each KL is 0" in stages["cannot tell"]["loss"], stages
    assert "gradient" not in stages["cannot tell"]


def test_completions_that_are_trained_too_often_are_named():
    fault = FAULTS["StaleBuffer"]
    before, steps = checked(fault), watched(fault)
    result = judged(fault, before, steps)
    assert (result["result"], result["at"]) == ("right", 2), result
    assert "has to sample at this update" in result["cause"]
    assert [stages["different"] for stages in watched(fault, healthy=True).values()] == [{}, {}, {}]


def test_a_fault_counts_where_its_stage_differs_first():
    fault = Fault(dict, dict, "loss", {})
    none = {"different": {}, "cannot tell": {}}
    later = {2: none | {"different": {"loss": "why", "gradient": ""}}}
    assert judged(fault, none, later) == {"result": "right", "at": 2, "named": "loss", "cause": "why"}
    assert judged(fault, none | {"different": {"update": ""}}, {})["result"] == "other stage"
    assert judged(fault, none | {"cannot tell": {"loss": "why"}}, {})["result"] == "honest"
    assert judged(fault, none, {})["result"] == "silent"


def test_planted_faults_have_a_sentence_and_a_twin_each():
    assert (len(planted_faults.FAULTS), len(sceptic_faults.FAULTS), len(FAULTS)) == (40, 43, 83)
    assert all(fault.says.endswith(".") for fault in FAULTS.values())
    twins = {fault.twin.__name__ for fault in sceptic_faults.FAULTS.values()}
    assert twins == {"GRPOTrainer", "RLOOTrainer", "DistillationTrainer", "AsyncGRPOTrainer", "WithLora"}


def test_autocast_keeps_no_weights_of_the_sampler(tmp_path):
    torch.manual_seed(0)
    report = check_step(make(tmp_path, cls=planted_faults.OtherWeights, bf16=True))
    assert {report[name].verdict for name in ("log-probs", "gradient")} <= {"same", "rounding"}, report
