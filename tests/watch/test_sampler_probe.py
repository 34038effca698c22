"""Six faults put into real trainings on vLLM, in process and on a server: each is named within two steps, and none without."""

import functools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import daily, in_two_processes, on_vllm

from benchmarks import false_alarms
from workbench.errors import ParameterError
from workbench.watch.sampler_probe import SamplerProbe, attach_sampler_probe
from workbench.watch.sampler_verdict import CACHE, IN_SYNC, LATE, LORA, NOT_SYNCED, PRECISION, TOKENS, UNKNOWN

CLEAN = ["clean", "clean, one beginning", "clean, LoRA", "clean, RLOO", "clean, stock"]
CAUSES = {"not synced": NOT_SYNCED, "not synced, stock": NOT_SYNCED, 
          "synced late, 1": LATE, "lost precision": PRECISION, "LoRA not merged": LORA, "stale prefix cache": CACHE,
          "other tokenizer": TOKENS, "other template": TOKENS}  # fmt: skip


# The trainings of the daily tests: without a fault, with one, and watched.
EACH_DAY = ("clean, stock", "not synced", "not probed", "watched", "watched, masked stops")


@functools.cache
def in_process(each_day: bool) -> dict:
    others = [name for name in [*CLEAN, *CAUSES] if name not in EACH_DAY]
    return on_vllm("sampler_faults", "", "3", *(EACH_DAY if each_day else others))


def check(name: str, got: dict) -> None:
    """A fault is warned of once, by its name, at the second update at the latest; without one nothing is said."""
    cause = CAUSES.get(name)
    decided = [(step, found) for step, found, sure, *_ in got["verdicts"] if found != IN_SYNC and sure]
    assert got["count"] == 3 and all(line["sampler/difference"] >= 0 for line in got["logged"])
    if cause is None:
        assert decided == [] and got["warned"] == [] and got["verdicts"][-1][1] == IN_SYNC
        assert [line["sampler/steps_behind"] for line in got["logged"]] == [0, 0, 0]
        assert all(line["sampler/difference"] < 1e-5 for line in got["logged"])
    else:
        assert {found for _, found in decided} == {cause} and decided[0][0] <= 2, got["verdicts"]
        assert len(got["warned"]) == 1 and cause in got["warned"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", daily([*CLEAN, *CAUSES], "clean, stock", "not synced"))
def test_in_process_only_real_faults_are_named_in_two_updates(name):
    check(name, in_process(name in EACH_DAY)[name])


ON_A_SERVER = [
    "clean, stock",
    "clean, one beginning",
    "clean, LoRA",
    *(name for name in CAUSES if not name.startswith("not synced,")),
]


@functools.cache
def on_a_server() -> dict:
    return on_vllm("sampler_faults", "server", "3", *ON_A_SERVER, "watched, masked stops")


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("name", ON_A_SERVER)
def test_on_a_server_only_real_faults_are_named_in_two_updates(name):
    check(name, on_a_server()[name])


@pytest.mark.slow
@pytest.mark.rare
def test_the_record_of_a_watch_on_a_server_has_the_servers_ends():
    found = on_a_server()["watched, masked stops"]
    assert not found["probed"] and found["logprobs"] and found["first"] == "masked-stops"
    assert set(found["finish_reason"]) == {"stop"} and found["trl_finish_reason"].count("length") > 24  # of 48


@pytest.mark.slow
def test_a_never_synced_engine_is_as_old_as_the_training():
    assert [row[3] for row in in_process(True)["not synced"]["verdicts"]] == [0, 1, 2]


@pytest.mark.rare
@pytest.mark.slow
def test_sizes_and_ages_are_those_that_were_injected():
    result = in_process(False)
    assert result["synced late, 1"]["verdicts"][2][3] == 1
    assert result["stale prefix cache"]["logged"][1]["sampler/cache_difference"] > 1e-3
    assert "a request read 128 tokens from it" in result["stale prefix cache"]["warned"][0]
    times = float(re.search(r"([0-9.]+) times what bfloat16", result["lost precision"]["warned"][0])[1])
    assert 0.1 < times < 2  # weights were rounded, the computation was not


@pytest.mark.slow
def test_a_probed_training_samples_as_it_would_without_a_probe():
    result = in_process(True)
    assert result["clean, stock"]["reward"] == result["not probed"]["reward"]
    assert result["clean, stock"]["entropy"] == result["not probed"]["entropy"]


@pytest.mark.slow
def test_watching_vllm_changes_nothing_and_records_its_ends():
    result = in_process(True)
    watched, masked = result["watched"], result["watched, masked stops"]
    assert watched["reward"] == result["not probed"]["reward"] and watched["entropy"] == result["not probed"]["entropy"]
    assert watched["probed"] and watched["logprobs"] and watched["problems"] == []
    assert set(masked["finish_reason"]) == {"stop"} and masked["trl_finish_reason"].count("length") > 24  # of 48
    assert masked["first"] == "masked-stops"  # a warning: it has fewer steps than a problem takes
    assert len(watched["apart"]) == 48 and len(masked["apart"]) == masked["trl_finish_reason"].count("stop")
    assert (
        max(watched["apart"] + masked["apart"]) < 1e-4
    )  # nats a token; of rows that are masked the scorer sees nothing


@pytest.mark.slow
@pytest.mark.rare
def test_all_processes_end_probing_if_the_engine_of_one_fails(tmp_path):
    in_two_processes("probe_in_two_processes.py", tmp_path)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert found["at the start"] == "not probed" and found["scored"] == [1, 2, 2, 2]
    assert json.loads((tmp_path / "rank-0.json").read_text())["printed"] == 1


@pytest.mark.slow
@pytest.mark.rare
def test_healthy_bf16_trainings_raise_no_false_alarm():
    """Two trainings of the benchmark, which takes them to 40 steps, and one whose engine is late by less than rounding."""
    rows = on_vllm(
        "benchmarks.false_alarms", "6", "ours GRPO, starter, 1e-06, bf16, vLLM", "ours GRPO, starter-gpt2, 0.0003"
    )
    found = false_alarms.judged(rows)
    assert len(rows) == 3 and [said for said, _ in found.values()] == [[], []]
    assert all(row["first named"] is None and row["said"] == [] for row in rows.values())


def test_a_trainer_without_vllm_has_nothing_to_probe():
    for fields in ({"use_vllm": False}, {}):
        assert attach_sampler_probe(SimpleNamespace(args=SimpleNamespace(**fields))) is None


def test_an_unknown_engine_is_reported_and_ends_no_training(capsys):
    trainer = SimpleNamespace(args=SimpleNamespace(use_vllm=True), callback_handler=SimpleNamespace(callbacks=[]))
    assert attach_sampler_probe(trainer) is None
    assert "workbench: the sampler is not probed, the training goes on: AttributeError" in capsys.readouterr().err
    with pytest.raises(ParameterError, match="every=0: expected at least 1 step"):
        attach_sampler_probe(trainer, every=0)


def test_a_sync_late_between_probes_is_named_at_the_next_step(monkeypatch):
    rng = np.random.default_rng(0)
    policy = list((rng.normal(size=(30, 100)) * 1e-3).cumsum(axis=0) - 3)
    state = SimpleNamespace(global_step=0)
    trainer = SimpleNamespace(state=state, args=SimpleNamespace(bf16=False, fp16=False), model=torch.nn.Linear(1, 1))
    trainer.accelerator, trainer.mode = SimpleNamespace(num_processes=1, is_main_process=True), "server"
    trainer.sync_weights, trainer.generate, trainer.processing_class = *[lambda: None] * 2, None
    sampled = lambda ids: (policy[max(0, state.global_step - (state.global_step > 5))],)  # noqa: E731
    engine = SimpleNamespace(length=(100, 100), ask=sampled, encode=dict)
    monkeypatch.setattr("workbench.watch.sampler_probe.EngineServer", lambda generation: engine)
    monkeypatch.setattr("workbench.watch.sampler_probe._prompts", lambda trainer: [[1]])
    monkeypatch.setattr("workbench.watch.sampler_probe._weights_are_local", lambda trainer: False)
    monkeypatch.setattr("workbench.watch.sampler_probe.window", lambda model: None)
    monkeypatch.setattr("workbench.watch.sampler_probe.encoded", lambda tokenizer: {})
    monkeypatch.setattr(SamplerProbe, "_logprobs", lambda self: policy[state.global_step])
    monkeypatch.setattr(SamplerProbe, "_bf16_error", lambda self, trainer: 1e-5)
    probe = SamplerProbe(trainer, every=12)
    with pytest.warns(UserWarning) as warned:
        for state.global_step in range(18):
            trainer.generate()
    found = [(step, verdict.cause, verdict.steps_behind) for step, verdict in probe.verdicts]
    assert found == [(0, IN_SYNC, 0), (1, IN_SYNC, 0), (2, IN_SYNC, 0), (14, UNKNOWN, None), (15, LATE, 1)]
    assert [cause in str(w.message) for w, cause in zip(warned, (UNKNOWN, LATE), strict=True)] == [True, True]


def test_an_error_in_a_probe_ends_probing_and_is_reported_once(capsys):
    probe = object.__new__(SamplerProbe)
    probe._trainer = SimpleNamespace(state=SimpleNamespace(global_step=3))
    probe._count, probe.seconds, probe.on = 0, 0.0, True
    for due in (True, True, False):
        probe._due = due
        probe._probe_once()  # it has neither engine nor model
    assert capsys.readouterr().err.count("workbench: the sampler's probe is off, the training goes on") == 1
    assert not probe.on
