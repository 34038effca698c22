"""Each claim that the notebooks 07 to 09 judge, and some of 04 and 05, have data on which their criterion holds and fails.

The cells that judge are run as they stand in the notebook, on numbers made up here in place of trainings.
"""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import NOTEBOOKS, ROOT
from notebook_shape import code_cells

import workbench
from workbench.curves import seed_interval


def verdicts(number: str, world: dict, monkeypatch) -> dict[str, list]:
    """Claim -> whether each sentence about it holds, of the judging cells of a notebook, which begin where `first` stands."""
    results = []
    monkeypatch.setattr(workbench, "save_result", lambda run, found, numbers: results.extend(found))
    monkeypatch.setattr(workbench, "show_results", lambda found: None)
    (path,) = [path for path in NOTEBOOKS if path.stem.startswith(number)]
    sources = [cell.source for cell in code_cells(path)]
    begin = next(n for n, source in enumerate(sources) if source.startswith(world["first"]))
    scope = {"np": np, "pd": pd, "seed_interval": seed_interval, "rng": np.random.default_rng(0)}
    scope |= {
        "run": SimpleNamespace(toy=False),
        "save_result": workbench.save_result,
        "display": lambda shown: None,
    } | world
    for source in sources[begin:]:
        exec(source, scope)
    held: dict[str, list] = {}
    for one in results:
        held.setdefault(one.claim, []).append(one.holds)
    return held


def of(*values: float):
    """An interval over five seeds around a value, narrow."""
    (middle,) = values
    return seed_interval(middle + np.array([-2, -1, 0, 1, 2]) * 1e-3, np.random.default_rng(0), statistic=np.mean)


def training(**columns) -> SimpleNamespace:
    return SimpleNamespace(metrics=pd.DataFrame(columns))


def world_04(rise=0.5, repeats=0.0) -> dict:
    index = pd.MultiIndex.from_tuples(
        [(place, "stock TRL") for place in ("transformers", "vLLM")], names=["back end", "trainer"]
    )
    rows = {"prompts": 16, "completions": 16, "wrong prompt": 0, "equal prompts share": False}
    return {
        "first": "from workbench.experiments import on_smollm2", "Result": workbench.Result,
        "show_results": workbench.show_results,
        "at": pd.DataFrame([rows] * 2, index=index), "results": [], "planted": 30, "none": 0,
        "report": SimpleNamespace(exact=0, rows=9), "repeats": of(repeats), "rise": {"workbench, seed": of(rise)}, "idle": 1.0,
    }  # fmt: skip


def world_05(model="Qwen/Qwen2-0.5B-Instruct", top=29, drop=5.0, end=-4.0, slow=-27.0) -> dict:
    arms = {"own settings": end, "docs rate alone": slow, "all docs settings": slow}
    table = pd.DataFrame({"reward, last 20 steps": arms, "tokens, last 20 steps": 7.0, "seconds per step": 1.0})
    return {
        "first": "other = f", "model": model, "rewards": pd.Series(np.linspace(-27, -4, 80)), "enough": True, "jumps": 0.1,
        "top": top, "scatter": 1.0, "drop": drop, "judged": {}, "own": "own settings", "figure_range": (0, 1), "highest": -1,
        "table": table, "runs": arms, "more": {}, "settings": {}, "others": {"sign of TRL 0.14": None}, "compared": True,
        "comparisons": False, "find_spec": lambda name: None, "torch": torch, "reward": SimpleNamespace(about={"highest": 0}),
    }  # fmt: skip


def world_08(sign=0.15, cost=-3.0, agreed=1.0, kept=1.0, top=2.9) -> dict:
    mode = ("sequence_mask", "weight left")
    logged = training(**{"sampling/importance_sampling_ratio/max": [top], "reward": [0.0]})
    drawn = {"top-p": [np.full((4, 8), np.log(kept) + n * 1e-6) for n in range(5)]}
    seeds = np.arange(5) * 1e-3
    return {
        "first": "from workbench import Result",
        "named": {"dtype": ["dtype"]}, "drawn": drawn, "runs": {"wrong": [logged], "right": [logged]}, "wrong": "wrong",
        "right": "right", "uncorrected": logged, "modes": pd.DataFrame({mode: {"nothing": agreed}}), "masked": 0.9,
        "ends": pd.DataFrame({"right": seeds + cost, "wrong": seeds * 2}),
        "exponent": {"dtype": of(0.5), "temperature": of(1.0), "top-p": of(1.0)}, "share": of(sign), "seeds": 5,
        "lengths": [8], "tokens": 8,
    }  # fmt: skip


def world_09(never=0.4, growth=0.3, gained=3.0) -> dict:
    delays = ["in time", "late by 1", "late by 2", "late by 4", "late by 8", "never"]
    arms = [*delays, *(f"{name}, no correction" for name in delays[:-1]), "LoRA, merged", "LoRA, not merged"]
    seeds = np.arange(5) * 1e-3
    names = {"logged difference": 0.0, "probe: difference": 0.0, "named at step": np.nan}
    log = pd.DataFrame(names, index=arms)
    log.loc["never", "logged difference"] = never
    log.loc["in time", "logged difference"] = 0.01
    after = [training(**{"sampler/difference": [0.01, 0.0, 0.01 + growth + n * 1e-4]}) for n in range(5)]
    said = {fault: [] for fault in ("never synced", "base reloaded", "LoRA not merged", "stale cache", "cache cleared")}
    lost = {way: dict.fromkeys(delays, of(1)) for way in ("with", "without")}
    return {
        "first": "with_it, _", "arms": arms, "ends": pd.DataFrame(dict.fromkeys(arms, seeds)), "log": log, "third": 1,
        "runs": {"never": after}, "said_of": said, "cost": lost, "gain": {"late by 8": of(gained)},
        "logs": dict.fromkeys(said, pd.DataFrame({"reward": [0.0]})),
    }  # fmt: skip


def world_07(window="different", masked="different", dapo=0.1, grpo=0.0, bnpo=0.1, zero=0.0, default=0.0, between=0.1,
             share=0.0, alike=0.0, unlike=3.0) -> dict:  # fmt: skip
    windows, one = ["1 and 4 batches", "4 and 4 batches", "4 and 2 batches"], "1 batch, masked"
    times = [4.0, 1.0, 0.5, 0.8]
    factors = pd.DataFrame({"gradient x": times, "expected": times}, index=[*windows, one])
    factors["loss of TRL 1.8"] = ["different", "same", "different", "different"]
    split = pd.DataFrame({"one batch": 1.0, "change": [dapo, grpo, grpo, bnpo], "loss, one batch": [default, zero, zero, 0.2]},
                         index=["dapo", "grpo", "dr_grpo", "bnpo"])  # fmt: skip
    apart = pd.DataFrame({"today": [0.01, unlike], "today, rate x 4": [0.8, alike]}, index=["adamw_torch", "sgd"])
    stage = SimpleNamespace(first=None, verdict="cannot tell")
    found = {"no fault": stage} | {
        "sampler with top_p=0.9": {"sampling": stage},
        "reward of the prompt alone": {"gradient": stage},
    }
    alone = {"reward_std": 2.0, "grad_norm": between, "frac_reward_zero_std": share}
    return {
        "first": "healthy, masked", "found": found, "firsts": {"no fault": None}, "factors": factors, "windows": windows,
        "split": split, "apart": apart, "logs": {("prompt alone", "today"): alone}, "hits": ["a"], "faults": ["a"],
        "judged": {(about, "today"): window for about in windows} | {(one, "today"): masked}, "off": {"loss": 0.0},
        "conclusion": "1 of 1", "replayed": SimpleNamespace(returncode=0), "trl": SimpleNamespace(__version__="9.9"),
    }  # fmt: skip


WORLDS = {"A5": ("07", world_07), "A6": ("08", world_08), "A7": ("09", world_09)}
# Claim -> data on which it is true, data on which it is not. A5.6 has two sentences, one of each loss.
CASES = {
    "A5.1": ({"window": "different"}, {"window": "same"}),
    "A5.2": ({"window": "same"}, {"window": "different"}),
    "A5.3": ({"masked": "different"}, {"masked": "same"}),
    "A5.4": ({"dapo": 0.1}, {"dapo": 0.001}),
    "A5.5": ({"bnpo": 0.1}, {"grpo": 0.1}),
    "A5.6": ({"zero": 1e-6, "default": 1e-6}, {"zero": 0.1, "default": 0.1}),
    "A5.7": ({"between": 0.1}, {"between": 0.0}),
    "A5.8": ({"share": 0.0}, {"share": 1.0}),
    "A6.1": ({"sign": 0.9}, {"sign": 0.15}),
    "A6.2": ({"cost": -3.0}, {"cost": 3.0}),
    "A6.3": ({"agreed": 0.6}, {"agreed": 1.0}),
    "A6.4": ({"kept": 0.8}, {"kept": 1.2}),
    "A6.5": ({"top": 2.9}, {"top": 8.0}),
    "A7.1": ({"never": 0.4}, {"never": 0.02}),
    "A7.2": ({"growth": 0.3}, {"growth": -0.3}),
    "A7.3": ({"gained": 3.0}, {"gained": -3.0}),
}


@pytest.mark.parametrize("claim", CASES)
def test_a_criterion_holds_where_the_claim_is_true_and_fails_where_it_is_not(claim, monkeypatch):
    number, world = WORLDS[claim[:2]]
    held = [verdicts(number, world(**change), monkeypatch)[claim] for change in CASES[claim]]
    assert [set(each) for each in held] == [{True}, {False}]


@pytest.mark.parametrize("claim, change", [("A6.1", "sign"), ("A6.2", "cost"), ("A7.2", "growth"), ("A7.3", "gained")])
def test_a_claim_whose_interval_holds_the_bound_is_inconclusive(claim, change, monkeypatch):
    number, world = WORLDS[claim[:2]]
    bound = 0.5 if claim == "A6.1" else 0.0
    assert verdicts(number, world(**{change: bound}), monkeypatch)[claim] == [None]


@pytest.mark.parametrize(
    "claim, changes", [("A4.2", {"top": 70, "drop": 0.0}), ("A4.5", {"slow": -5.0}), ("A4.7", {"slow": -5.0})]
)
def test_documented_example_is_judged_on_its_own_model_alone(claim, changes, monkeypatch):
    assert set(verdicts("05", world_05(), monkeypatch)[claim]) == {True}
    assert False in verdicts("05", world_05(**changes), monkeypatch)[claim]
    assert set(verdicts("05", world_05("starter"), monkeypatch)[claim]) == {None}


@pytest.mark.parametrize(
    "toy, repeats, holds", [(False, 0.0, True), (False, 0.1, False), (False, 0.05, None), (True, 0.0, None)]
)
def test_repeated_prompts_cost_nothing_within_a_tenth_of_the_rise(toy, repeats, holds, monkeypatch):
    world = world_04(repeats=repeats) | {"run": SimpleNamespace(toy=toy)}
    assert verdicts("04", world, monkeypatch)["A3.7"] == [None, holds]


def test_toy_neither_confirms_nor_refutes_what_a_thread_saw(monkeypatch):
    for change in CASES["A6.3"]:
        held = verdicts("08", world_08(**change) | {"run": SimpleNamespace(toy=True)}, monkeypatch)
        assert held["A6.3"] == [None]


@pytest.mark.parametrize("apart, holds", [(0.0, True), (0.1, False)])
def test_training_without_correction_is_that_with_right_log_probs(apart, holds, monkeypatch):
    world = world_08() | {"uncorrected": training(reward=[apart])}
    assert verdicts("08", world, monkeypatch)[""][0] == holds


def test_every_claim_of_these_notebooks_is_here():
    claims = json.loads((ROOT / "data" / "claims.json").read_text(encoding="utf-8"))
    assert set(CASES) == {claim for claim in claims if claim[:2] in WORLDS}


@pytest.mark.parametrize("alike, unlike, holds", [(0.0, 3.0, True), (0.1, 3.0, False), (0.0, 0.0, None)])
def test_sgd_at_four_times_the_rate_is_said_only_if_it_differs(alike, unlike, holds, monkeypatch):
    assert holds in verdicts("07", world_07(alike=alike, unlike=unlike), monkeypatch)[""]


@pytest.mark.parametrize("claim, change", [("A5.1", "window"), ("A5.2", "window"), ("A5.3", "masked")])
def test_a_loss_that_cannot_be_judged_decides_no_claim(claim, change, monkeypatch):
    assert verdicts("07", world_07(**{change: "cannot tell"}), monkeypatch)[claim] == [None]


@pytest.mark.parametrize("verdict, holds", [("cannot tell", None), ("same", False)])
def test_a_fault_is_missed_only_where_its_stage_is_judged(verdict, holds, monkeypatch):
    world = world_07() | {"hits": [], "cases": {"a": ("sampling",)}}
    world["found"]["a"] = {"sampling": SimpleNamespace(verdict=verdict)}
    assert verdicts("07", world, monkeypatch)[""][0] is holds
