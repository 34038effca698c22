import re
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from conftest import daily

from workbench.audit.report import audit_run
from workbench.curves.measured import training_of
from workbench.errors import ParameterError
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.runs.completions import read_parts, token_parts
from workbench.runs.run import Run
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward
from workbench.watch.attach import attach_watch
from workbench.watch.recorder import Watch, limit_of, logged_rows

pytestmark = pytest.mark.slow

RECIPE = make_recipe(
    "starter", max_steps=4, num_generations=2, per_device_train_batch_size=4, max_completion_length=12, beta=0.0
)
TWO_OF_EACH = {"gradient_accumulation_steps": 2, "steps_per_generation": 4}


def stock(cls=trl.GRPOTrainer, reward=None, folder=None, rollout=None, **options):
    """An unmodified trainer of TRL on the starter model."""
    config = trl.RLOOConfig if cls is trl.RLOOTrainer else trl.GRPOConfig
    args = grpo_config(RECIPE, folder or tempfile.mkdtemp(), config, **{"save_strategy": "no"} | options)
    given = {"rollout_func": rollout} if rollout else {}
    data = load_prompts("starter").select(range(0, 5600, 350))
    return cls(resolve_model("starter"), reward or length_reward(), args, train_dataset=data, **given)


def numbers(trainer):
    """What was logged, without times and what the watch adds."""
    added = ("time", "second", "update/moved")
    return [{k: v for k, v in row.items() if not any(a in k for a in added)} for row in trainer.state.log_history]


WATCHED = [(trl.GRPOTrainer, {}), (trl.GRPOTrainer, TWO_OF_EACH), (trl.RLOOTrainer, {})]


@pytest.mark.parametrize("cls, options", daily(WATCHED, trl.GRPOTrainer))
def test_a_watched_run_is_recorded_with_unchanged_numbers(cls, options):
    plain = stock(cls, **options)
    plain.train()
    watched = stock(cls, **options)
    watch = attach_watch(watched, every=1)
    watched.train()
    assert watch.on
    assert numbers(watched) == numbers(plain)
    run = Run(watch.recorder.record_dir)
    assert training_of(run.path)["source"] == "watched"
    assert run.metrics["step"].tolist() == [1, 2, 3, 4]
    assert run.metrics["reward"].tolist() == [row.get("reward") for row in plain.state.log_history[:4]] or options
    made = run.completions
    assert made["step"].unique().tolist() == ([1, 3] if options else [1, 2, 3, 4])
    assert len(made) == (32 if options else 16)
    length = watched.args.max_completion_length
    assert (made["finish_reason"] == "length").tolist() == (
        (made["completion_tokens"] == length) & (made["trl_finish_reason"] == "length")
    ).tolist()
    tokens, _ = read_parts(token_parts(watch.recorder.record_dir))
    assert tokens["completion_ids"].map(len).tolist() == made["completion_tokens"].tolist()
    tokenizer = watched.processing_class
    decoded = tokenizer.batch_decode([list(ids) for ids in tokens["completion_ids"]], skip_special_tokens=True)
    assert decoded == made["completion"].tolist()
    if options:  # TRL computes the scorer's log-probs where a batch serves several steps
        assert tokens["scorer_logprobs"].map(len).tolist() == made["completion_tokens"].tolist()


STOPS = ["a", "e", "o"]


def stops_at_a_vowel(prompts, trainer):
    """A rollout function as agents have one: completions end at a string, none of them at EOS."""
    own = trainer.processing_class
    batch = own(list(prompts), return_tensors="pt", padding=True, padding_side="left")
    options = {"stop_strings": STOPS, "tokenizer": own, "suppress_tokens": [own.eos_token_id, own.pad_token_id]}
    both = trainer.model.generate(**batch, **options, max_new_tokens=12, do_sample=True, top_k=0)
    rows = both[:, batch["input_ids"].shape[1] :].tolist()
    ids = [[token for token in row if token != own.pad_token_id] for row in rows]
    return {"prompt_ids": [own(text)["input_ids"] for text in prompts], "completion_ids": ids, "logprobs": None}


def parity(completions, **_):
    return [float(n % 2) for n in range(len(completions))]


def test_masked_stops_are_named_while_run_trains_and_after(capfd):
    trainer = stock(reward=parity, rollout=stops_at_a_vowel, mask_truncated_completions=True)
    watch = attach_watch(trainer, every=1)
    trainer.train()
    lines = [line for line in capfd.readouterr().err.splitlines() if "masked-stops" in line]
    assert len(lines) == 1
    assert lines[0].startswith("workbench: step ") and "Set mask_truncated_completions=False" in lines[0]
    assert re.search(r"More: workbench/audit/rules_\w+\.py:\d+, notebook 02_grpo_custom_stops", lines[0])
    recorded, logged = (audit_run(path).runs[0] for path in (watch.recorder.record_dir, trainer.args.output_dir))
    assert recorded.main == logged.main == "masked-stops"


@pytest.mark.parametrize("broken", daily(["_keep", "_look", "begin"], "_keep"))
def test_an_error_of_the_watch_is_reported_once_and_ends_nothing(broken, capfd, monkeypatch):
    trainer = stock(max_steps=2)
    watch = attach_watch(trainer, every=1)

    def fails(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(watch.recorder if broken == "begin" else watch, broken, fails)
    trainer.train()
    told = [line for line in capfd.readouterr().err.splitlines() if "workbench:" in line]
    assert [line for line in told if "off" in line] == [
        "workbench: the watch is off, the training goes on: OSError: No space left on device"
    ]
    assert trainer.state.global_step == 2 and not watch.on


def test_where_trl_moved_what_is_watched_it_says_so_and_is_off(capfd, monkeypatch):
    trainer = stock()
    monkeypatch.delattr(trl.GRPOTrainer, "_generate")
    assert not attach_watch(trainer).on
    assert "the watch is off, the training goes on: AttributeError" in capfd.readouterr().err


@pytest.mark.parametrize("vllm, said", [(True, "vLLM raises an error"), (False, "TRL ignores the option")])
def test_an_unknown_option_is_said_with_what_follows(vllm, said, monkeypatch):
    monkeypatch.setattr("workbench.watch.recorder.warn_before_training", lambda trainer: None)
    monkeypatch.setattr("workbench.generation.preflight._known_options", lambda backend: {"top_k"})
    args = SimpleNamespace(generation_kwargs={"top_kk": 5}, use_vllm=vllm, vllm_mode="colocate")
    with pytest.warns(UserWarning, match=f"'top_kk': unknown to .*{said}"):
        Watch._check_settings(SimpleNamespace(_trainer=SimpleNamespace(args=args)))


def test_it_can_be_left_off_and_ended(monkeypatch):
    trainer = stock(max_steps=2)
    monkeypatch.setenv("WORKBENCH_WATCH", "0")
    assert attach_watch(trainer) is None
    monkeypatch.delenv("WORKBENCH_WATCH")
    watch = attach_watch(trainer, check_every=1, record_steps=1)
    watch.detach()
    trainer.train()
    assert not (watch.recorder.record_dir / "metrics.jsonl").exists()
    assert not watch.reports and not list(watch.recorder.record_dir.rglob("step-*"))
    assert not any("update/moved" in line for line in trainer.state.log_history)


def test_a_resumed_run_is_recorded_once(tmp_path):
    first = stock(folder=tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    attach_watch(first, every=1)
    first.train()
    (tmp_path / "checkpoint-4").rename(tmp_path / "gone")
    second = stock(folder=tmp_path, max_steps=4)
    watch = attach_watch(second)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    run = Run(watch.recorder.record_dir)
    assert run.metrics["step"].tolist() == [1, 2, 3, 4]
    assert run.completions["step"].value_counts().to_dict() == dict.fromkeys([1, 2, 3, 4], 4)


def test_another_trainer_is_refused():
    with pytest.raises(ParameterError, match="expected TRL's GRPOTrainer, RLOOTrainer"):
        attach_watch(object(), "folder")
    with pytest.raises(ParameterError, match="trainer=str: expected TRL's"):
        attach_watch("x")
    with pytest.raises(ParameterError, match="is a file; expected the path of a folder"):
        attach_watch(stock(), __file__)
    with pytest.raises(ParameterError, match="every=0"):
        attach_watch(stock(), every=0)


def test_reward_of_functions_that_share_a_name_is_not_known():
    logs = {"prompt": ["", ""], "completion": ["a", "b"], "extra": {}, "advantages": [0.0, 0.0]}
    trainer = SimpleNamespace(_logs=logs | {"rewards": {"odd": [1.0, 2.0]}}, reward_weights=torch.ones(2))
    assert np.isnan(logged_rows(trainer, {}, {})["reward"]).all()
    trainer.reward_weights = torch.tensor([2.0])
    assert logged_rows(trainer, {}, {})["reward"] == [2.0, 4.0]


@pytest.mark.parametrize("limit", [{"max_new_tokens": 3}, {"max_time": 1e-6}])
def test_rows_that_generation_kwargs_cut_have_not_stopped(limit, capfd):
    trainer = stock(generation_kwargs=limit, mask_truncated_completions=True, max_steps=2)
    watch = attach_watch(trainer, every=1)
    trainer.train()
    made = Run(watch.recorder.record_dir).completions
    assert made["finish_reason"].tolist() == made["trl_finish_reason"].tolist() and "length" in set(
        made["finish_reason"]
    )
    printed = capfd.readouterr().err
    assert "masked-stops" not in printed and "false-clipping" not in printed


def test_rows_that_time_or_a_stop_string_ended_are_not_known():
    args = SimpleNamespace(max_completion_length=9, generation_kwargs={"max_time": 1.0})
    assert limit_of(args, [[5], [5, 6]]) == 2
    args.generation_kwargs["stop_strings"] = ["a"]
    assert limit_of(args, [[5], [5, 6]]) is None
    args.generation_kwargs = {"max_new_tokens": 7}
    assert limit_of(args, [[5], [5, 6]]) == 7


def step(completions, log_extra, **_):
    """A reward with names of the record, and a column that is logged at every other call."""
    step.calls += 1
    log_extra("step", [70] * len(completions))
    log_extra("completion_text", ["mine"] * len(completions))
    if step.calls % 2:
        log_extra("often", [f"call {step.calls}"] * len(completions))
    return [float(len(text)) for text in completions]


def test_columns_of_a_reward_replace_none_of_the_record():
    step.calls = 0
    trainer = stock(reward=step)
    watch = attach_watch(trainer, every=1)
    trainer.train()
    assert watch.on
    made = Run(watch.recorder.record_dir).completions
    assert made["step"].tolist() == [n for n in (1, 2, 3, 4) for _ in range(4)]
    assert made["step (function)"].tolist() == [float(len(text)) for text in made["completion"]]
    assert "mine" not in set(made["completion"])
    calls = made.groupby("step")["often"].first()
    assert calls[[1, 3]].tolist() == ["call 1", "call 3"] and calls[[2, 4]].isna().all()


def test_watch_takes_the_ends_that_our_trainer_knows(tmp_path):
    how = {"generation_kwargs": {"max_time": 1000.0}, "max_steps": 2, "save_strategy": "no"}
    args = grpo_config(RECIPE, tmp_path, **how)
    given = {"train_dataset": load_prompts("starter").select(range(8)), "stops": ["e"], "record_dir": tmp_path / "run"}
    trainer = GRPOTrainer(resolve_model("starter"), length_reward(), args, **given)
    watch = attach_watch(trainer, every=1)
    trainer.train()
    own, watched = (Run(recorder.record_dir).completions for recorder in (trainer.recorder, watch.recorder))
    ends = ["finish_reason", "trl_finish_reason", "completion_tokens", "sampled_tokens"]
    assert watched[ends].equals(own[ends]) and "stop" in set(own["finish_reason"])


def test_watch_knows_ends_of_rows_that_a_child_replaced(tmp_path):
    class Replacing(GRPOTrainer):
        def _generate(self, prompts):
            first, rows, *rest = super()._generate(prompts)
            return first, [list(rows[0])[:2], *rows[1:]], *rest

    args = grpo_config(RECIPE, tmp_path, max_steps=2, save_strategy="no")
    given = {"train_dataset": load_prompts("starter").select(range(8)), "stops": ["e"], "record_dir": tmp_path / "run"}
    trainer = Replacing(resolve_model("starter"), length_reward(), args, **given)
    watch = attach_watch(trainer, every=1)
    trainer.train()
    assert watch.on
    own, watched = (Run(recorder.record_dir).completions for recorder in (trainer.recorder, watch.recorder))
    assert watched["finish_reason"].tolist() == own["finish_reason"].tolist()
    assert set(own["finish_reason"]) == {"stop", "length"}


@pytest.mark.parametrize("method", ["_generate", "_generate_single_turn"])
def test_ends_of_rows_that_a_stock_child_makes_are_not_known(method):
    def short(self, *args, **kwargs):
        made = getattr(trl.GRPOTrainer, method)(self, *args, **kwargs)
        cut = [[row[:2] for row in part] if n == (method == "_generate") else part for n, part in enumerate(made)]
        return tuple(cut)

    trainer = stock(type("Short", (trl.GRPOTrainer,), {method: short}), max_steps=2)
    watch = attach_watch(trainer, every=1)
    trainer.train()
    made = Run(watch.recorder.record_dir).completions
    assert watch.on and len(made) == 8
    assert "finish_reason" not in made and "length" in set(made["trl_finish_reason"])
