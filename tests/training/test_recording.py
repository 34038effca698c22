import json
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import trl
from conftest import write_run
from ppo_parts import needs_ppo
from tensorboard_files import tensorboard_scalars
from trainers import OURS, make

from workbench.curves.measured import measured_groups, run_curve
from workbench.errors import ParameterError
from workbench.experiments.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.experiments.train import last_checkpoint, quiet_libraries, train
from workbench.generation.stops import StopSpec
from workbench.logs.settings import facts_of
from workbench.runs.run import Run
from workbench.training.grpo import GRPOTrainer
from workbench.training.recording import Recorder, RunRecorder, check_record_dir
from workbench.training.rewards import length_reward
from workbench.training.rows import text_of


def config(processes: int = 1, output_dir: str = "none") -> SimpleNamespace:
    batch = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2, "num_generations": 8}
    return SimpleNamespace(**batch, world_size=processes, process_index=0, output_dir=output_dir)


def test_rows_in_pieces_are_recorded_with_missing_columns_empty(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.add_completions(1, {"completion": ["a"], "parsed": [1.0]})
    recorder.add_completions(1, {"completion": ["b"], "seen": ["x"]})
    rows = Run(tmp_path).completions
    assert rows["completion"].tolist() == ["a", "b"]
    assert rows["parsed"].isna().tolist() == [False, True] and rows["seen"].isna().tolist() == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("bar", [True, False])
def test_progress_is_printed_once(tmp_path, capsys, bar):
    recipe = make_recipe(
        "starter", max_steps=1, max_completion_length=4, num_generations=2, per_device_train_batch_size=2
    )
    args = grpo_config(recipe, tmp_path, save_strategy="no", disable_tqdm=not bar)
    GRPOTrainer(
        resolve_model("starter"),
        length_reward(20),
        args,
        train_dataset=load_prompts("starter"),
        record_dir=tmp_path / "run",
    ).train()
    printed = capsys.readouterr().out
    assert ("'reward':" in printed, "step 1/1" in printed) == (bar, not bar)


@pytest.mark.slow
def test_an_evaluation_logs_no_completions_and_keeps_the_curve(tmp_path):
    batch = {"num_generations": 2, "per_device_train_batch_size": 4}
    recipe = make_recipe("starter", max_steps=2, max_completion_length=4, **batch)
    how = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "save_strategy": "no"}
    data = load_prompts("starter")
    given = {"train_dataset": data, "eval_dataset": data.select(range(4)), "record_dir": tmp_path / "run"}
    GRPOTrainer(resolve_model("starter"), length_reward(20), grpo_config(recipe, tmp_path, **how), **given).train()
    lines = Run(tmp_path / "run").metrics
    of_evaluation = lines["eval_reward"].notna()
    assert of_evaluation.tolist() == [False, True, False, True]
    assert (lines["completions/distinct"].isna() == of_evaluation).all()
    assert run_curve(Run(tmp_path / "run"), "reward").x.tolist() == [1, 2]
    assert run_curve(Run(tmp_path / "run"), "eval_reward", sparse=True).x.tolist() == [1, 2]


@pytest.mark.slow
def test_an_evaluation_stays_one_where_sampling_leaves_it(tmp_path, monkeypatch):
    """After continuous batching TRL puts the model into training, whatever it was in."""
    stock = trl.GRPOTrainer._generate_single_turn

    def leaves(self, *args, **kwargs):
        sampled = stock(self, *args, **kwargs)
        self.model.train()
        return sampled

    monkeypatch.setattr(trl.GRPOTrainer, "_generate_single_turn", leaves)
    recipe = make_recipe(
        "starter", max_steps=1, max_completion_length=4, num_generations=2, per_device_train_batch_size=4
    )
    data, how = load_prompts("starter"), {"per_device_eval_batch_size": 4, "save_strategy": "no"}
    given = {"train_dataset": data, "eval_dataset": data.select(range(4)), "record_dir": tmp_path / "run"}
    trainer = GRPOTrainer(resolve_model("starter"), length_reward(20), grpo_config(recipe, tmp_path, **how), **given)
    trainer.train()
    trainer.evaluate()
    assert len(Run(tmp_path / "run").completions) == 4


KINDS = ["GRPO", "RLOO", pytest.param("PPO", marks=needs_ppo)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_numbers_are_in_tensorboard_too(kind, tmp_path):
    batch = {"num_generations": 2, "per_device_train_batch_size": 4}
    recipe = make_recipe("starter", max_steps=2, max_completion_length=4, **batch)
    options = {"monitor_every": 1, "report_to": "tensorboard"}
    trainer = train(recipe, trainer=OURS[kind], reward_funcs=length_reward(20), record_dir=tmp_path, **options)
    logged = tensorboard_scalars(Path(trainer.args.output_dir))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        numbers = {name: value for name, value in line.items() if name not in ("step", "elapsed_s")}
        expected = {"stops/clipped_ratio", "completions/distinct", "padding/max_difference"}
        expected |= {"groups/identical", "stops/wasted"} if kind != "PPO" else set()
        assert expected <= set(numbers)
        for name, value in numbers.items():
            assert logged[f"train/{name}"][line["step"]] == pytest.approx(value, rel=1e-6), name


def test_a_prompt_of_messages_is_its_texts_and_kinds_of_images():
    """TRL 1.16 logs messages; the last one alone made prompts equal, and the address of an image made them differ."""
    parts = [{"type": "image", "image": object()}, {"type": "text", "text": "What is it?"}]
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert text_of(asked) == "Be brief.\n<image>\nWhat is it?"
    assert text_of([{"role": "assistant", "content": None, "tool_calls": []}]) == ""


def test_a_record_beside_a_saved_model_leaves_its_config(tmp_path):
    """Else the model would be loaded as another one."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    check_record_dir(tmp_path)
    Recorder(tmp_path).describe_trainer(make(OURS["GRPO"]))
    assert (tmp_path / "config.json").read_text() == "{}"
    assert json.loads((tmp_path / "recipe.json").read_text())["source"] == "workbench"


@pytest.mark.parametrize("name", ["config.json", "recipe.json"])
def test_a_folder_with_files_that_are_not_ours_takes_no_record(name, tmp_path):
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(ParameterError, match=f"the record would replace {name} there"):
        check_record_dir(tmp_path)


def test_a_folder_must_be_a_path_that_can_be_written(tmp_path):
    for odd in ("", 3):
        with pytest.raises(ParameterError, match=f"record_dir={odd!r}: expected the path of a folder"):
            check_record_dir(odd)
    with pytest.raises(ParameterError, match="record_steps=3: steps are saved in record_dir"):
        check_record_dir(None, 3)
    check_record_dir(tmp_path / "a" / "b")


@pytest.mark.slow
def test_a_trainer_of_ones_own_leaves_the_settings_for_the_audit(tmp_path):
    batch = {"num_generations": 2, "per_device_train_batch_size": 4}
    recipe = make_recipe("starter", max_steps=1, max_completion_length=4, **batch)
    args = grpo_config(recipe, tmp_path / "trl", reward_weights=[2.0], save_strategy="no")
    given = {"stops": StopSpec(stop=(".",)), "explicit_positions": False, "record_dir": tmp_path / "run"}
    given["train_dataset"] = load_prompts("starter")
    GRPOTrainer(resolve_model("starter"), length_reward(20), args, **given).train()
    facts, damage = facts_of(tmp_path / "run")
    assert damage == []
    assert (facts["trainer"], facts["stop_strings"], facts["explicit_positions"]) == ("GRPOTrainer", ["."], False)
    assert (facts["num_generations"], facts["max_completion_length"], facts["reward_highest"]) == (2, 4, 0.0)
    assert run_curve(Run(tmp_path / "run"), "reward").unit == "as logged"  # twice the function's
    options = json.loads((tmp_path / "run" / "recipe.json").read_text())["overrides"]
    assert (options["loss_type"], options["max_grad_norm"]) == (args.loss_type, 1.0)  # others are no seeds of this one


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["RLOO", pytest.param("PPO", marks=needs_ppo)])
def test_a_trainer_without_a_recipe_describes_itself(kind, tmp_path):
    make(OURS[kind], record_dir=tmp_path, stops=["."]).train()
    facts, damage = facts_of(tmp_path)
    assert (facts["trainer"], facts["stop_strings"], facts["explicit_positions"]) == (f"{kind}Trainer", ["."], True)
    assert not facts.get("stop_token_ids") and facts["eos_token_ids"]  # EOS is no stop of one's own
    assert (facts["max_completion_length"], damage) == (12, [])


def test_a_resumed_training_counts_the_seconds_to_its_checkpoint(tmp_path):
    args = config(output_dir=str(tmp_path / "trainer"))
    (tmp_path / "trainer" / "checkpoint-3").mkdir(parents=True)
    state = SimpleNamespace(global_step=0, max_steps=9, is_world_process_zero=True)
    killed = RunRecorder(tmp_path)
    killed.on_train_begin(args, state, None)
    killed.log(1, {"loss": 1.0})
    killed._started -= 100
    state.global_step = 3
    killed.on_save(args, state, None)
    resumed = RunRecorder(tmp_path)
    resumed.on_train_begin(args, state, None)
    assert 100 <= resumed.elapsed() < 200
    for recorder in (killed, resumed):
        recorder.close()


@pytest.mark.slow
def test_a_checkpoint_counts_once_all_of_it_is_on_the_disk(tmp_path, monkeypatch):
    checkpoint = tmp_path / "checkpoints" / "checkpoint-2"
    (checkpoint / "deep").mkdir(parents=True)
    for name in ("model.safetensors", "deep/rng_state.pth"):
        (checkpoint / name).write_text("x")
    recorder = RunRecorder(tmp_path)
    args = SimpleNamespace(output_dir=str(checkpoint.parent), world_size=1, process_index=0)
    state = SimpleNamespace(global_step=2, max_steps=4, is_world_process_zero=True)
    recorder.begin(0)
    recorder.add_completions(2, {"completion": ["a"]})
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name))
    recorder.on_save(args, state, None)
    *before, complete, folder = synced
    assert {"metrics.jsonl", "completions.jsonl", "model.safetensors", "rng_state.pth"} == set(before)
    assert complete.startswith(".complete.json.") and folder == "checkpoint-2"
    assert last_checkpoint(checkpoint.parent) == checkpoint
    (checkpoint / "complete.json").write_text("")  # as a power cut leaves it on some file systems
    assert last_checkpoint(checkpoint.parent) is None


def test_another_model_batch_or_temperature_is_not_another_seed(tmp_path):
    """Of a notebook that was edited between its runs: their parameters are the same."""
    runs = []
    for n, (model, temperature, batch) in enumerate([("starter", 1.0, 4), ("starter", 0.3, 4), ("starter-gpt2", 1.0, 4),
                                                     ("starter", 1.0, 8), ("starter", 1.0, 4)]):  # fmt: skip
        run = write_run(tmp_path / "runs", str(n))
        about = {"num_generations": 2, "per_device_train_batch_size": batch, "temperature": temperature}
        recipe = make_recipe("starter", max_steps=1, max_completion_length=4, seed=n, **about)
        args = grpo_config(recipe, run.path / "trl", save_strategy="no")
        given = {"train_dataset": load_prompts("starter"), "record_dir": run.path}
        GRPOTrainer(resolve_model(model), length_reward(20), args, **given).train()
        runs.append(run)
    groups, left_out = measured_groups(runs)
    assert (sorted(map(len, groups.values())), left_out) == ([1, 1, 1, 2], [])


def test_a_quiet_notebook_shows_texts_of_tables_whole():
    reason = "refused: generation_kwargs 'stop': unknown to transformers; use stop_strings, and give it a tokenizer"
    before = pd.get_option("display.max_colwidth")
    try:
        quiet_libraries()
        assert reason in pd.DataFrame({"answer": [reason]}).to_html()
    finally:
        pd.set_option("display.max_colwidth", before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
@pytest.mark.parametrize("eval_batch", [2, 16])
def test_evaluation_of_another_batch_size_is_logged_whole(kind, eval_batch, tmp_path):
    """With `log_completions` TRL's table holds rows of training and evaluation; ours stay out of it."""
    recipe = make_recipe(
        "starter", max_steps=2, max_completion_length=4, num_generations=2, per_device_train_batch_size=4
    )
    how = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": eval_batch, "log_completions": True}
    config_class = trl.GRPOConfig if kind == "GRPO" else trl.RLOOConfig
    args = grpo_config(recipe, tmp_path, config_class, save_strategy="no", **how)
    data, seen = load_prompts("starter"), []

    def reward(completions, **_):
        seen.append(len(set(completions)) / len(completions))
        return [0.0] * len(completions)

    given = {"train_dataset": data, "eval_dataset": data.select(range(8)), "stops": ["."]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer = OURS[kind](resolve_model("starter"), reward, args, **given)
        trainer.train()
    logged = [line for line in trainer.state.log_history if "eval_stops/clipped_ratio" in line]
    assert len(logged) == 2
    batches = seen[1 : 1 + 16 // eval_batch]  # 8 prompts, two completions each
    assert logged[0]["eval_completions/distinct"] == pytest.approx(sum(batches) / len(batches))


def test_record_dir_that_is_a_file_is_refused_first(tmp_path):
    (tmp_path / "taken").touch()
    for folder in (tmp_path / "taken", tmp_path / "taken" / "run"):
        with pytest.raises(ParameterError, match="taken is a file; expected the path of a folder"):
            GRPOTrainer("no/such/model", length_reward(20), record_dir=folder)
