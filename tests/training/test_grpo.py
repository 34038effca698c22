import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import trl
from configuration_models import chat_tokenizer, chats, llama3_like, saved, tokenizer
from configuration_runs import build, watched
from conftest import ROOT, TRAINS, in_two_processes, until, workbench, write_notebook

from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.generation.stops import StopRule, StopSpec
from workbench.runs.files import load_metrics, read_json, write_json
from workbench.runs.run import Run, list_runs
from workbench.runs.stop_request import request_stop
from workbench.training.groups import GroupError, check_groups
from workbench.training.grpo import GRPOTrainer, RLOOTrainer, _Control
from workbench.training.rewards import length_reward
from workbench.training.rows import NO_TOKEN, EmptyRow, Generation
from workbench.watch.recorder import token_columns

TIMES = {"elapsed_s", "step_time"}


def train(record_dir, **fields):
    from workbench.experiments.train import train

    small = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16, "save_steps": 2}
    return train(make_recipe("starter", **(small | fields)), reward_funcs=length_reward(), record_dir=record_dir)


def without_times(record_dir) -> list[dict]:
    lines = (record_dir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


@pytest.fixture(scope="module")
def trained(starter_folder, tmp_path_factory):
    """Six steps, seed 1, recorded."""
    record_dir = tmp_path_factory.mktemp("trained")
    train(record_dir, max_steps=6, seed=1)
    return record_dir


@pytest.mark.slow
def test_the_same_seed_gives_the_same_log_and_another_does_not(trained, tmp_path):
    train(tmp_path / "same", max_steps=6, seed=1)
    train(tmp_path / "other", max_steps=6, seed=2)
    assert len(without_times(trained)) == 6
    assert without_times(tmp_path / "same") == without_times(trained)
    assert without_times(tmp_path / "other") != without_times(trained)


@pytest.mark.slow
def test_each_step_is_logged_once_with_checkpoints_on_disk(trained):
    metrics = load_metrics(trained / "metrics.jsonl")
    assert metrics["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert {"reward", "completions/mean_length", "completions/clipped_ratio", "loss"} <= set(metrics)
    assert metrics["elapsed_s"].is_monotonic_increasing
    means = Run(trained).completions.groupby("step")["reward"].mean()
    assert metrics["reward"].tolist() == pytest.approx(means.tolist(), rel=1e-5)
    progress = json.loads((trained / "progress.json").read_text())
    assert (progress["step"], progress["max_steps"]) == (6, 6)
    assert {p.parent.name for p in trained.glob("checkpoints/*/complete.json")} == {"checkpoint-4", "checkpoint-6"}


@pytest.mark.slow
def test_every_completion_is_recorded_with_prompt_and_reward(trained):
    table = Run(trained).completions
    assert table.groupby("step").size().tolist() == [8] * 6
    assert table["reward"].tolist() == length_reward()(table["completion"].tolist())
    assert set(table["finish_reason"]) <= {"stop", "length"}
    assert (table["prompt"].str.endswith("TL;DR:")).all()


@pytest.mark.slow
def test_a_training_cut_after_a_checkpoint_goes_on_as_if_uncut(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "cut")
    # As a kill in step 6 leaves it: checkpoint 4 is the last complete one, step 6 is half logged.
    (tmp_path / "cut/checkpoints/checkpoint-6/complete.json").unlink()
    lines = (trained / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut/metrics.jsonl").write_text("".join(lines[:5]) + lines[5][:30])
    table = Run(trained).completions
    rows = (trained / "completions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut/completions.jsonl").write_text("".join(rows[: len(rows) * 5 // 6]) + rows[-1][:30])

    train(tmp_path / "cut", max_steps=6, seed=1)
    assert without_times(tmp_path / "cut") == without_times(trained)
    again = Run(tmp_path / "cut").completions
    assert again["completion"].tolist() == table["completion"].tolist()


@pytest.mark.rare
@pytest.mark.slow
def test_a_killed_run_resumes_with_every_step_logged_once(starter_folder, tmp_path):
    notebook = write_notebook(tmp_path / "trains.ipynb", TRAINS)
    arguments = ["run", str(notebook), "-q", "--runs-dir", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "workbench", *arguments]
    runner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (found := list_runs(tmp_path / "runs")) or not logged(found[0].path) > 3:
            assert runner.poll() is None, "the run ended before it could be killed"
            time.sleep(0.05)
    finally:
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    (run,) = found
    until(lambda: run.status["state"] == "interrupted", "the kernel to notice that its runner is gone")

    again = workbench(*arguments, "--resume")
    assert again.returncode == 0, again.stderr
    assert [r.path for r in list_runs(tmp_path / "runs")] == [run.path]
    assert run.status["state"] == "done"
    assert run.metrics["step"].tolist() == list(range(1, 17))
    assert run.completions.groupby("step").size().tolist() == [8] * 16
    assert run.metrics["elapsed_s"].is_monotonic_increasing


def logged(folder) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("g", [4, 16])
def test_two_processes_keep_groups_whole_even_if_one_spans_both(g, tmp_path):
    in_two_processes("group_processes.py", tmp_path, str(g))
    run = Run(tmp_path)
    assert run.metrics["step"].tolist() == [1, 2, 3, 4]
    for _, rows in run.completions.groupby("step"):
        assert len(rows) == 16
        check_groups(rows["prompt"].tolist(), g)
        own = [100.0 * len(p) + len(c) for p, c in zip(rows["prompt"], rows["completion"], strict=True)]
        assert rows["reward"].tolist() == own
        groups = torch.tensor(own).view(-1, g)
        expected = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        torch.testing.assert_close(torch.tensor(rows["advantage"].to_numpy()).float(), expected, rtol=1e-3, atol=1e-3)


# --- configurations in which a review found it wrong -----------------------------------------------------------------


def small_trainer(reward_funcs, record_dir, **fields):
    recipe = make_recipe("starter", max_steps=2, num_generations=2, per_device_train_batch_size=4)
    recipe = make_recipe(**vars(recipe) | {"max_completion_length": 8})
    args = grpo_config(recipe, record_dir / "trl", save_strategy="no", **fields)
    rewards = {} if reward_funcs is None else {"reward_funcs": reward_funcs}
    data = load_prompts("starter").select(range(64))
    return GRPOTrainer(
        resolve_model("starter"), args=args, train_dataset=data, record_dir=record_dir / "run", **rewards
    )


@pytest.mark.slow
def test_a_trainer_without_a_reward_is_refused_in_trls_words(tmp_path):
    with pytest.raises(ValueError, match="No reward source provided"):
        small_trainer(None, tmp_path)


@pytest.mark.slow
def test_all_completions_of_several_generations_are_recorded(tmp_path):
    fields = {"gradient_accumulation_steps": 4, "steps_per_generation": 2}
    trainer = small_trainer(length_reward(20), tmp_path, **fields)
    trainer.train()
    rows = Run(tmp_path / "run").completions
    assert rows.groupby("step").size().tolist() == [16, 16]
    metrics = Run(tmp_path / "run").metrics
    assert metrics["reward"].tolist() == pytest.approx(rows.groupby("step")["reward"].mean().tolist(), rel=1e-5)
    cut = (rows["finish_reason"] == "length").groupby(rows["step"]).mean()
    assert metrics["stops/clipped_ratio"].tolist() == pytest.approx(cut.tolist())


@pytest.mark.slow
def test_a_prompt_that_a_reward_writes_into_is_kept_as_it_was(tmp_path):
    """As one that asks a judge about the conversation, which it puts together in the prompt's own list."""

    def judged(prompts, completions, **_):
        for messages, completion in zip(prompts, completions, strict=True):
            messages += [*completion, {"role": "user", "content": "Is this good?"}]
        return [float(len(completion[-1]["content"])) for completion in completions]

    chat, data = chat_tokenizer(calls=False), chats()
    build("ours", "GRPO", tokenizer=chat, data=data, rewards=judged, record_dir=tmp_path, stops=["</search>"]).train()
    assert set(Run(tmp_path).completions["prompt"]) <= {prompt[0]["content"] for prompt in data["prompt"]}


def bare(sampled=(), logprobs=()) -> GRPOTrainer:
    """A trainer without model and data, after an engine's generation."""
    trainer = object.__new__(GRPOTrainer)
    trainer.engine = SimpleNamespace(logprobs=logprobs, requests=2, prompt_tokens=12)
    trainer.model, trainer._metrics = SimpleNamespace(training=True), {"train": defaultdict(list)}
    trainer.num_generations, trainer.temperature = 2, 1.0
    trainer.generation = Generation(sampled=sampled)
    trainer.args = SimpleNamespace(generation_kwargs=None)
    return trainer


def test_copies_beyond_chance_fail_but_not_those_of_a_last_turn():
    copies = [[5, 6, 7], [5, 6, 7], [8], [9]]
    with pytest.raises(GroupError, match=r"groups \[0\]: the 2 completions of each group are equal"):
        bare(copies, [[-20.0] * 3, [-20.0] * 3, [-1.0], [-1.0]])._log_groups(copies)
    last_turn, none = [[-20.0]], []  # of fewer rows; RLOO asks for none
    for sampled, logprobs in (([], last_turn), ([], [[-20.0]] * 4), (copies, none)):
        trainer = bare(sampled, logprobs)
        trainer._log_groups(copies)
        counted = {"groups/identical": [0.5], "vllm/requests": [2], "vllm/prompt_tokens": [12]}
        assert trainer._metrics["train"] == counted


@pytest.mark.parametrize(("own", "share"), [([[5], [5]], 0.5), ([[7]], 1.0)])
def test_identical_groups_of_all_processes_are_counted(own, share, monkeypatch):
    """The log of the main process had its own groups alone, and none where a group spans processes."""
    others = [[7], [8]] if len(own) == 2 else own
    monkeypatch.setattr("workbench.training.grpo.gather_object", lambda rows: [*rows, *others])
    trainer = bare()
    trainer._log_groups(own)
    assert trainer._metrics["train"]["groups/identical"] == [share]


def test_copies_of_a_greedy_sampler_are_no_fault():
    trainer = bare([[5, 6, 7]] * 2, [[-20.0] * 3] * 2)
    trainer.args.generation_kwargs = {"temperature": 0.0}
    trainer._log_groups([[5, 6, 7]] * 2)
    assert trainer._metrics["train"]["groups/identical"] == [1.0]


def test_vllm_is_given_an_eos_that_is_only_in_memory():
    """It reads those of the model's folder alone, and would sample on."""
    trainer, own = bare(), tokenizer()
    trainer.vllm_generation, trainer.use_vllm, trainer._tokenizer = SimpleNamespace(), True, own
    trainer.args, trainer.max_completion_length = SimpleNamespace(generation_kwargs={"top_k": 5}), 8
    trainer.model.generation_config = SimpleNamespace(eos_token_id=40)
    trainer.set_stops(StopSpec())
    options = trainer.vllm_generation.generation_kwargs
    assert options == {"top_k": 5, "stop_token_ids": [own.eos_token_id, 40]}


def test_a_watch_records_what_was_sampled_behind_an_end(monkeypatch):
    trainer, own = bare(), tokenizer()
    trainer.use_vllm, trainer._tokenizer, eos = True, own, own.eos_token_id
    trainer.stop_rule = StopRule(StopSpec(), own, SimpleNamespace(eos_token_id=None), 8)
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", lambda *_: ([[5, eos, 6]], None))
    kept, _ = trainer._generate_single_turn([[3]])
    stock = {"row": [0], "prompt_ids": [[3]], "completion_ids": [[5, eos]]}
    assert token_columns(SimpleNamespace(), [[3]], kept) == stock
    assert token_columns(trainer, [[3]], kept) == stock | {"sampled_ids": [[5, eos, 6]]}


def test_environment_rows_without_a_prompt_are_grouped_as_rows():
    a, b = {"environment": "a"}, {"environment": "b"}
    bare()._check_groups([a, a, b, b])
    with pytest.raises(GroupError, match="group 0"):
        bare()._check_groups([a, b])


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_the_signature_is_trls_and_ours_by_keyword(kind):
    ours, stock = {"GRPO": (GRPOTrainer, trl.GRPOTrainer), "RLOO": (RLOOTrainer, trl.RLOOTrainer)}[kind]
    parameters = inspect.signature(ours).parameters
    keyword_only = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    own = ["stops", "generation_seed", "share_generation", "explicit_positions", "record_dir", "record_steps"]
    assert keyword_only == own
    assert [n for n in parameters if n not in keyword_only] == list(inspect.signature(stock).parameters)


@pytest.mark.parametrize("cls", [GRPOTrainer, RLOOTrainer])
def test_every_argument_is_handed_on_by_its_name(cls, monkeypatch):
    received = {}
    monkeypatch.setattr(_Control, "__init__", lambda self, **arguments: received.update(arguments))
    names = [name for name in inspect.signature(cls).parameters if name != "rollout_func"]  # which is wrapped
    given = {name: object() for name in names}
    cls(**given)
    received.pop("rollout_func", None)
    assert received == given


@pytest.mark.slow
def test_a_generation_that_is_held_does_not_change(tmp_path):
    generations = []

    def reward(completions, log_extra, **_):
        generations.append(trainer.generation)
        log_extra("words", [len(text.split()) for text in completions])
        return [float(len(text)) for text in completions]

    trainer = small_trainer(reward, tmp_path)
    trainer.train()
    first, second = generations
    assert not first.rewards and not first.logged and first.rows != second.rows
    last, rows = trainer.generation, Run(tmp_path / "run").completions.query("step == 2")
    assert last.rows == second.rows and list(last.texts) == rows["completion"].tolist()
    assert last.rewards == {"reward": rows["reward"].tolist()} and last.logged == {"words": rows["words"].tolist()}


@pytest.mark.slow
def test_a_training_cut_after_its_last_checkpoint_trains_no_more(tmp_path, capsys):
    fields = {"max_steps": 2, "save_steps": 1}
    train(tmp_path, **fields)
    progress = read_json(tmp_path / "progress.json", {})
    assert progress["finished"]
    write_json(tmp_path / "progress.json", progress | {"finished": False})
    trainer = train(tmp_path, **fields)
    assert trainer.state.global_step == 2
    assert "this training is finished (2 steps); nothing is trained again" in capsys.readouterr().out
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2]
    assert read_json(tmp_path / "progress.json", {})["finished"]


@pytest.mark.slow
@pytest.mark.parametrize("asked_to_stop", [False, True])
def test_a_training_resumed_at_its_end_trains_nothing(tmp_path, asked_to_stop):
    """A script of `train(resume_from_checkpoint=True)` and `save_model` is started again on a cluster."""
    args = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "output_dir": str(tmp_path / "out")}
    for again in (False, True):
        trainer = build("ours", "GRPO", args, record_dir=tmp_path / "run")
        if again and asked_to_stop:
            request_stop(Run(tmp_path / "run"), "too late")
        output = trainer.train(resume_from_checkpoint=again)
        assert output.global_step == trainer.state.global_step == 2
        assert not trainer.is_in_train
    assert Run(tmp_path / "run").metrics["step"].tolist() == [1, 2]


def test_a_row_without_tokens_can_be_gone_through():
    row = EmptyRow()
    assert (list(row), row[:], row[-1], len(row)) == ([], [], NO_TOKEN, 0)
    with pytest.raises(IndexError):
        row[0]


@pytest.mark.slow
def test_what_stock_takes_for_truncated_is_what_it_logs():
    """With several EOS ids: TRL 1.14 and before knows the tokenizer's alone."""
    stock, ours = (watched(who, "GRPO", model=saved(llama3_like)) for who in ("stock", "ours"))
    counted = [line["completions/clipped_ratio"] for line in stock.log]
    assert [line["stops/trl_clipped_ratio"] for line in ours.log] == counted and any(counted)
