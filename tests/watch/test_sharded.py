"""`check_step` in several processes that hold the weights in parts: with FSDP2, and refused with DeepSpeed and FSDP1."""

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import in_two_processes
from step_cases import FAULTS, HEALTHY, make

from workbench import attach_watch
from workbench.errors import ParameterError, RunError
from workbench.training.processes import check_engine, check_placed, failing_together

OWN = ["a reference", "a reward model", "bf16, sent in float32", "distillation"]
# Rows of which one process has another number than the other, an adapter, and a fault of each stage that needs the weights.
OF_EACH_DAY = ["masked", "bf16, LoRA", "RLOO", *OWN, "gradient", "lost to bf16", "dropout", "evaluations"]

# Advantages that are normalized over all processes, whose rewards have a KL: one process does not know that of the others.
UNKNOWN = {"RLOO": ["advantages"]}


def checked(tmp_path, names):
    in_two_processes("sharded_steps.py", tmp_path, *names)
    return [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def assert_judged(found, names):
    for name in names:
        stage = FAULTS[name][1] if name in FAULTS else None
        case = found[name]
        assert case["alike"], f"{name}: the training is another with a check"
        assert case["stages"].keys() == {"1", "2"}, f"{name}: {case}"
        first = case["stages"]["1"]
        different = [of for of, (verdict, _) in first.items() if verdict == "different"]
        assert different[:1] == ([stage] if stage else []), (name, first)
        if stage is None:
            unknown = [of for of, (verdict, _) in first.items() if verdict == "cannot tell"]
            assert unknown == UNKNOWN.get(name, []), (name, first)


@pytest.mark.slow
def test_weights_in_parts_are_judged_as_whole_ones(tmp_path):
    for found in checked(tmp_path, OF_EACH_DAY):
        assert_judged(found, OF_EACH_DAY)
        gradient = found["dropout"]["stages"]["1"]["gradient"]
        assert gradient[0] == "same" and "compared without dropout" in gradient[1], gradient
        assert "the loss moves as it says" in found["masked"]["stages"]["1"]["gradient"][1]


@pytest.mark.rare
@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1, 2])
def test_each_setting_and_fault_is_judged_in_parts(part, tmp_path):
    names = [name for name in [*HEALTHY, *FAULTS] if name not in OF_EACH_DAY][part::3]
    for found in checked(tmp_path, names):
        assert_judged(found, names)


FAILS = ["fails while it scores", "fails at a stage", "fails in a backward pass", "fails in each backward pass"]


@pytest.mark.slow
def test_where_one_process_fails_no_other_waits(tmp_path):
    one, other = checked(tmp_path, FAILS)
    for name in FAILS:
        for found in (one, other):
            assert found[name]["alike"] and found[name]["stages"] == {}, (name, found[name])
        assert "OutOfMemoryError: no memory" in other[name]["said"], other
        assert name.endswith("each backward pass") or "another process" in one[name]["said"], one


@pytest.mark.slow
def test_a_step_that_no_process_can_record_is_trained(tmp_path):
    for found in checked(tmp_path, ["fails to record"]):
        made = found["fails to record"]
        assert made["alike"] and made["stages"] == {}, made
        assert "the training goes on: AttributeError: no such method" in made["said"], made


@pytest.mark.slow
def test_an_error_in_the_step_of_one_process_ends_all(tmp_path):
    with pytest.raises(AssertionError):  # the code of torchrun
        in_two_processes("sharded_steps.py", tmp_path, "a reward fails")
    said = (tmp_path / "out").read_text()
    assert "the check of steps failed in process 1, for which others wait" in said, said
    assert "ConnectionError: the server of rewards is busy" in said, said


def trainer_of(deepspeed=False, fsdp=0, placed="cpu", device="cpu"):
    plugin = SimpleNamespace(fsdp_version=fsdp) if fsdp else None
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin), device=torch.device(device))
    model = torch.nn.Linear(1, 1, device=placed)
    return SimpleNamespace(
        is_deepspeed_enabled=deepspeed, is_fsdp_enabled=bool(fsdp), accelerator=accelerator, model=model
    )


REFUSED = [({"deepspeed": True}, "a check would train"), ({"fsdp": 1}, "fsdp_version: 2 can be checked")]


@pytest.mark.parametrize(("engine", "why"), REFUSED, ids=["DeepSpeed", "FSDP1"])
def test_engines_that_cannot_be_checked_are_refused(engine, why):
    with pytest.raises(ParameterError, match=rf"check_every: .*{why}.* run the script with python"):
        check_engine(trainer_of(**engine), "check_every")
    check_engine(trainer_of(fsdp=2), "check_every")
    check_engine(trainer_of(), "check_every")


def test_a_model_that_fsdp_has_not_placed_is_named():
    with pytest.raises(RunError, match=r"the model is on meta, and FSDP puts it on cpu in train\(\)"):
        check_placed(trainer_of(fsdp=2, placed="meta"))
    check_placed(trainer_of(fsdp=2))
    check_placed(trainer_of(placed="meta"))


@pytest.mark.slow
def test_a_refused_engine_leaves_the_trainer_unwatched(tmp_path, monkeypatch):
    trainer = make(tmp_path)
    before = list(trainer.callback_handler.callbacks)
    monkeypatch.setattr(trainer, "is_deepspeed_enabled", True)
    with pytest.raises(ParameterError, match="check_every: DeepSpeed"):
        attach_watch(trainer, check_every=1)
    assert trainer.callback_handler.callbacks == before


def test_one_process_raises_what_it_raises():
    with pytest.raises(ZeroDivisionError), failing_together(False):
        _ = 1 / 0
