from types import SimpleNamespace

import conftest
import pytest
import torch
from ppo_parts import needs_ppo, train_ppo
from trainers import EXACT, RECIPE, WRONG, make
from transformers import ProcessorMixin

from workbench.errors import ParameterError
from workbench.experiments.recipes import make_recipe
from workbench.experiments.train import train
from workbench.runs.run import Run
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward
from workbench.training.rows import completion_metrics
from workbench.watch import padding_monitor
from workbench.watch.padding_monitor import PaddingMonitor, attach_padding_monitor, prompts_of_all_lengths

pytestmark = pytest.mark.slow

PADDING = ["padding/max_difference", "padding/mean_difference"]


@pytest.mark.parametrize("explicit", [True, False])
def test_padding_consistency_is_in_the_metrics_every_n_steps(explicit, tmp_path):
    recipe = make_recipe(**RECIPE.__dict__ | {"max_steps": 5})
    options = {"explicit_positions": explicit, "monitor_every": 2, "disable_dropout": True}
    train(recipe, reward_funcs=length_reward(), record_dir=tmp_path, **options)
    metrics = Run(tmp_path).metrics
    measured = metrics.dropna(subset=PADDING)
    assert measured["step"].tolist() == [1, 2, 4]
    largest = measured["padding/max_difference"]
    assert (largest < EXACT).all() if explicit else (largest > WRONG).all()
    assert (measured["padding/mean_difference"] <= largest).all()
    assert metrics["reward"].notna().all()


@pytest.mark.parametrize(("begins", "measured"), [(0, [1, 5, 10, 15]), (10, [15]), (12, [15])])
def test_a_resumed_training_is_measured_as_an_undisturbed_one(begins, measured, monkeypatch):
    monitor = PaddingMonitor(None, [[5], [5, 6]], [[8, 9], [9]], every=5)
    monkeypatch.setattr(monitor, "measure", lambda: {"padding/max_difference": 0.0})
    state = SimpleNamespace(global_step=begins, log_history=[{}])
    monitor.on_train_begin(None, state, None)
    seen = []
    for state.global_step in range(begins + 1, 18):
        logs = {"loss": 0.0, "step": state.global_step}
        monitor.on_log(None, state, None, logs=logs)
        seen += [state.global_step] * ("padding/max_difference" in logs)
    assert seen == measured


@needs_ppo
def test_ppo_is_monitored_too(tmp_path):
    recipe = make_recipe(**RECIPE.__dict__ | {"max_steps": 2})
    train_ppo(recipe, record_dir=tmp_path, monitor_every=1)
    assert (Run(tmp_path).metrics["padding/max_difference"] < EXACT).all()


def test_the_monitor_moves_no_random_number_and_no_dropout():
    trainer = make(GRPOTrainer)
    monitor = attach_padding_monitor(trainer)
    trainer.model.train()
    state = torch.get_rng_state()
    assert monitor.measure() == monitor.measure()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in trainer.model.modules())
    assert trainer.callback_handler.callbacks[0] is monitor  # whatever writes logs stands behind it


def test_what_padding_lowers_and_what_it_raises_do_not_cancel(monkeypatch):
    first, second, other = torch.tensor([-1.0, -2.0]), torch.tensor([-3.0]), torch.tensor([-2.0, -1.0])
    scores = iter([[first, second], [other], [second]])
    monkeypatch.setattr(padding_monitor, "trainer_logprobs", lambda *_: next(scores))
    measured = PaddingMonitor(None, [[5], [5, 6]], [[8, 9], [9]]).measure()
    assert measured["padding/max_difference"] == 1
    assert measured["padding/mean_difference"] == pytest.approx(2 / 3)


def test_streamed_data_are_probed_and_unscored_trainers_refused():
    trainer = make(GRPOTrainer)
    known = prompts_of_all_lengths(trainer)
    trainer.train_dataset = trainer.train_dataset.to_iterable_dataset()
    assert prompts_of_all_lengths(trainer) == known
    with pytest.raises(ParameterError, match="SimpleNamespace: expected TRL's GRPO, RLOO or PPO trainer"):
        attach_padding_monitor(SimpleNamespace())


@pytest.mark.parametrize(
    "probe, every, message",
    [
        (([[5, 6], [5, 6, 7]], [[8], [9]]), 0, "every=0"),
        (([[5, 6], [5, 6]], [[8], [9]]), 10, r"prompts with \[2, 2\] tokens.*unequal length"),
        (([[5, 6], [5]], [[8]]), 10, "a completion for each prompt"),
    ],
)
def test_a_probe_that_cannot_show_padding_is_refused(probe, every, message):
    with pytest.raises(ParameterError, match=message):
        PaddingMonitor(None, *probe, every=every)


def test_logs_count_completions_that_differ_and_that_were_cut():
    ends = {"finish_reason": ["stop", "length"], "trl_finish_reason": ["length"] * 2, "completion_tokens": [3, 5]}
    rows = {"completion": ["a", "a"], **ends, "sampled_tokens": [11, 5]}
    metrics = completion_metrics(rows)
    assert metrics["completions/distinct"] == 0.5
    stops = {name: value for name, value in metrics.items() if name.startswith("stops/")}
    assert stops == {"stops/clipped_ratio": 0.5, "stops/trl_clipped_ratio": 1.0, "stops/wasted": 0.5}
    assert completion_metrics({"completion": ["a", "a"]}) == {"completions/distinct": 0.5}
    del rows["sampled_tokens"]  # of tools, rollout functions and PPO they are not known
    assert "stops/wasted" not in completion_metrics(rows)


# --- on a real vLLM engine -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_vllm():
    """What `mismatch_engine.py` measured in the process of the engines."""
    return conftest.on_vllm("mismatch_engine")


def test_on_vllm_the_padding_part_is_large_the_engines_rounding(on_vllm, record_property):
    parts = on_vllm["rollout"]
    for name, value in parts.items():
        record_property(name, value)
    assert parts["padding"] > WRONG
    assert parts["sampler"] < 1e-4
    assert max(parts[name] for name in ("batch shape", "dtype", "temperature", "top-k", "top-p")) < EXACT
    assert on_vllm["largest"] == "padding" and "Score with position ids" in on_vllm["verdict"]


def test_with_position_ids_only_rounding_is_left_of_it(on_vllm):
    assert on_vllm["explicit"] < 1e-4


def test_raw_ratios_of_grpo_on_vllm_are_1_only_with_position_ids(on_vllm):
    (implicit, _), (explicit, _) = on_vllm["live, implicit"], on_vllm["live, explicit"]
    assert len(implicit) == len(explicit) == 2  # steps
    for line in explicit:
        assert line["mismatch/ratio_1%"] == pytest.approx(1, abs=1e-4)
        assert line["mismatch/ratio_99%"] == pytest.approx(1, abs=1e-4)
        assert line["mismatch/ratios_outside"] == 0 and line["mismatch/ess_sequences"] > 0.999
        assert line["sampling/sampling_logp_difference/max"] < 1e-4  # in the second step of moved weights
    for line in implicit:
        assert line["mismatch/ratio_1%"] < 0.8 and line["mismatch/ratio_99%"] > 1.2
        assert line["mismatch/ratios_outside"] > 0.1 and line["mismatch/ess_sequences"] < 0.95
        assert line["sampling/sampling_logp_difference/max"] > WRONG


@pytest.mark.parametrize("name", ["mismatch/kl", "mismatch/ratio_99%", "sampler/difference", "vllm/requests"])
def test_numbers_of_the_engine_reach_tensorboard(name, on_vllm):
    for positions in ("implicit", "explicit"):
        assert f"train/{name}" in on_vllm[f"live, {positions}"][1]


class Processor(ProcessorMixin):
    """Of any model that sees: a tokenizer and more."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer


def test_the_probe_is_made_with_a_processor_s_tokenizer_too():
    trainer = make(GRPOTrainer)
    expected = attach_padding_monitor(trainer)._batch
    tokenizer = trainer.processing_class
    trainer.processing_class = Processor(tokenizer)
    assert attach_padding_monitor(trainer)._batch == expected
