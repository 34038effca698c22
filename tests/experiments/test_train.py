import inspect
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType

import pandas as pd
import pytest
import torch
from conftest import need, write_run
from ppo_parts import HAS_PPO, needs_ppo, train_ppo
from tokenizers.processors import TemplateProcessing
from trainers import OURS
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    PreTrainedTokenizerFast,
    TrainerCallback,
)

from workbench import GRPOTrainer, StopSpec, exact_match_reward, length_reward
from workbench.errors import ParameterError, RunError
from workbench.experiments import HeldOut, train
from workbench.experiments.arms import Arm, train_arms
from workbench.experiments.recipes import Recipe, grpo_config, load_prompts, resolve_model
from workbench.experiments.sampling import TransformersSampler
from workbench.experiments.train import (
    _OWN_OPTIONS,
    is_finished,
    last_checkpoint,
    make_trainer,
    open_folder,
    training_record,
)
from workbench.runs import lock
from workbench.runs.files import files_named, read_json, write_json
from workbench.runs.run import Run, take_run
from workbench.training.recording import RunRecorder

SMALL = Recipe(max_steps=2, num_generations=2, per_device_train_batch_size=4, max_completion_length=8)
RECORD = training_record("GRPOTrainer", SMALL, reward_funcs=length_reward(20))


def record_a_step(folder) -> None:
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    RunRecorder(folder).add_completions(1, {"completion": ["a"]})


def test_train_hands_on_each_option_of_our_trainers():
    parameters = inspect.signature(GRPOTrainer).parameters.values()
    own = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    assert own - {*_OWN_OPTIONS} == {"record_dir"}, "name it in _OWN_OPTIONS of experiments/train.py"


def test_an_incomplete_checkpoint_is_passed_over(tmp_path):
    for step, complete in ((5, True), (10, True), (15, False)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if complete:
            (tmp_path / f"checkpoint-{step}" / "complete.json").write_text("{}")
    assert last_checkpoint(tmp_path).name == "checkpoint-10"
    assert last_checkpoint(tmp_path / "nowhere") is None


def test_only_another_trainings_folder_is_moved_aside_by_name(tmp_path, capsys):
    open_folder(tmp_path, RECORD)
    (tmp_path / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    (tmp_path / "checkpoints" / "checkpoint-2" / "complete.json").write_text("{}")
    record_a_step(tmp_path)
    older = {name: value for name, value in RECORD["recipe"].items() if name != "save_steps"}
    logged = RECORD | {"recipe": older, "overrides": {"logging_steps": 5, "report_to": "wandb"}}
    for same in (RECORD, logged, RECORD):  # what is logged, and a field that an older version did not have
        open_folder(tmp_path, same)
        assert (tmp_path / "metrics.jsonl").is_file() and not capsys.readouterr().err
    open_folder(tmp_path, RECORD | {"overrides": {"epsilon": 0.1}})
    assert "holds another training (epsilon null -> 0.1); it is now in replaced-2" in capsys.readouterr().err
    (aside,) = tmp_path.glob("replaced-*")
    assert (aside / "checkpoints" / "checkpoint-2").is_dir()
    assert (aside / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert not (tmp_path / "metrics.jsonl").is_file() and not files_named(tmp_path, "metrics.jsonl")
    assert Run(tmp_path).completions.equals(pd.DataFrame())


def test_settings_that_are_equal_in_value_are_one_training(tmp_path):
    """1 and 1.0, or a dict in another order, were another training: a finished one was moved aside and begun anew."""

    def record(temperature, **kwargs):
        recipe = replace(SMALL, temperature=temperature)
        return training_record("GRPOTrainer", recipe, reward_funcs=length_reward(20), generation_kwargs=kwargs)

    open_folder(tmp_path, record(1.0, min_p=0.1, top_k=5))
    write_json(tmp_path / "progress.json", {"step": 2, "max_steps": 2, "finished": True})
    assert is_finished(tmp_path, record(1, top_k=5, min_p=0.1))
    assert not is_finished(tmp_path, record(1, top_k=6, min_p=0.1))


def test_none_that_switches_a_default_off_is_another_training(tmp_path):
    def record(**options):
        return training_record("GRPOTrainer", SMALL, reward_funcs=length_reward(20), **options)

    open_folder(tmp_path, record())
    write_json(tmp_path / "progress.json", {"step": 2, "max_steps": 2, "finished": True})
    assert is_finished(tmp_path, record(reward_weights=None))
    assert not is_finished(tmp_path, record(max_grad_norm=None))


def test_a_token_among_the_options_is_not_recorded(tmp_path):
    token = "hf_" + "Ab1" * 12
    given = {"hub_token": token, "model_init_kwargs": {"token": token}}
    open_folder(tmp_path, training_record("GRPOTrainer", SMALL, reward_funcs=length_reward(20), **given))
    assert token not in (tmp_path / "recipe.json").read_text()


def test_a_restarted_training_keeps_the_record_of_the_former_one(tmp_path, capsys):
    """As the same script started again does."""
    record_a_step(tmp_path)
    recorder = RunRecorder(tmp_path)
    recorder.begin(0)
    assert "holds the record of a training, and a new one begins; it is now in replaced-2" in capsys.readouterr().err
    (aside,) = tmp_path.glob("replaced-*")
    assert sorted(path.name for path in aside.iterdir()) == ["completions.jsonl", "metrics.jsonl"]


@pytest.mark.parametrize("incomplete", [False, True])
def test_training_begun_anew_keeps_its_settings(tmp_path, capsys, incomplete):
    """Of a run that was killed before its first checkpoint was complete."""
    open_folder(tmp_path, RECORD)
    record_a_step(tmp_path)
    if incomplete:
        (tmp_path / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    open_folder(tmp_path, RECORD)
    RunRecorder(tmp_path).begin(0)
    assert read_json(tmp_path / "recipe.json", {}) == RECORD | {"source": "workbench"}
    assert "holds the record of a training, and a new one begins" in capsys.readouterr().err
    (aside,) = tmp_path.glob("replaced-*")
    assert sorted(path.name for path in aside.iterdir()) == ["completions.jsonl", "metrics.jsonl", "recipe.json"]


LINKS = ("checkpoints", "tokens", "policy", "checkpoints/checkpoint-3", "checkpoints/README.md", "arms/checkpoints")


@pytest.mark.parametrize("name", LINKS)
def test_link_where_a_training_writes_is_refused(tmp_path, name):
    (tmp_path / "private").mkdir()
    run = write_run(tmp_path / "runs", state="interrupted")
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).symlink_to(tmp_path / "private")
    before = run.status
    with pytest.raises(RunError, match=rf"{name}: this is a link, and a training would write where it leads"):
        open_folder(run.path, RECORD)
    with pytest.raises(RunError, match=rf"{name}: this is a link"):
        take_run(run.path, "running")
    assert run.status == before and not lock.holds(run.path)
    assert not (run.path / "recipe.json").exists() and not any((tmp_path / "private").iterdir())


@pytest.mark.parametrize("inner", [".", "seed-1"])
def test_training_in_a_link_below_a_run_is_refused(tmp_path, inner):
    victim = write_run(tmp_path / "victim").path  # which has the files of a run
    run = write_run(tmp_path / "runs")
    (run.path / "arm").symlink_to(victim)
    with pytest.raises(RunError, match="arm: this is a link, and a training would write where it leads"):
        train(SMALL, reward_funcs=length_reward(20), record_dir=run.path / "arm" / inner)
    assert not (victim / "checkpoints").exists() and not (victim / "seed-1").exists()


def test_linked_run_and_links_of_other_tools_are_taken(tmp_path):
    run = write_run(tmp_path / "runs")
    (tmp_path / "latest").symlink_to(run.path)
    (run.path / "wandb").mkdir()
    (run.path / "wandb" / "latest-run").symlink_to(tmp_path)
    open_folder(tmp_path / "latest" / "arm", RECORD)
    assert (run.path / "arm" / "recipe.json").is_file()


def test_folder_takes_one_training_of_a_process_at_a_time(tmp_path):
    with ThreadPoolExecutor(1) as pool, lock.only_training(tmp_path):
        refused = pool.submit(train, SMALL, reward_funcs=length_reward(20), record_dir=tmp_path)
        with pytest.raises(RunError, match="another training of this process writes there"):
            refused.result()
        with lock.only_training(tmp_path):  # of a view around it
            pass
        assert lock.trains(tmp_path) and not any(tmp_path.iterdir())
    assert not lock.trains(tmp_path)


def other(**changed):
    asked = {"trainer": "GRPOTrainer", "recipe": SMALL, "reward_funcs": length_reward(20)} | changed
    return training_record(asked.pop("trainer"), asked.pop("recipe"), **asked)


REWARDS = (
    length_reward(21),
    [length_reward(20), exact_match_reward()],
    lambda completions, **_: [0.0] * len(completions),
)
OTHERS = [other(reward_funcs=functions) for functions in REWARDS]
OTHERS += [other(trainer="RLOOTrainer"), other(recipe=Recipe(seed=1))]
OTHERS += [other(stops=StopSpec(stop=("a",))), other(temperature=0.5)]


@pytest.mark.parametrize("record", OTHERS)
def test_only_the_same_record_at_its_last_step_is_finished(record, tmp_path):
    assert not is_finished(tmp_path, RECORD)
    write_json(tmp_path / "recipe.json", RECORD)
    assert not is_finished(tmp_path, RECORD)
    write_json(tmp_path / "progress.json", {"step": 2, "max_steps": 2, "finished": True})
    assert is_finished(tmp_path, RECORD)
    assert record != RECORD and not is_finished(tmp_path, record)


def ends_at(number):
    def rollout(prompts, trainer):
        return prompts[:number]

    return rollout


def quantized(**fields):
    return {"quantization_config": BitsAndBytesConfig(load_in_8bit=True, **fields)}


PAIRS = [  # two makers of an option, which JSON has no form for
    (lambda: {"model_init_kwargs": {"dtype": torch.bfloat16}}, lambda: {"model_init_kwargs": {"dtype": torch.float32}}),
    (lambda: {"model_init_kwargs": quantized()}, lambda: {"model_init_kwargs": quantized(llm_int8_threshold=5.0)}),
    (lambda: {"rollout_func": ends_at(1)}, lambda: {"rollout_func": ends_at(2)}),
    (lambda: {"rollout_func": partial(ends_at, 1)}, lambda: {"rollout_func": partial(ends_at, 2)}),
    (lambda: {"generation": GenerationConfig(top_k=3)}, lambda: {"generation": GenerationConfig(top_k=4)}),
]


@pytest.mark.parametrize(("one", "another"), PAIRS)
def test_options_without_a_json_form_are_told_apart(tmp_path, one, another):
    """Only the kind of thing was recorded: a training in float32 counted as one in bfloat16."""
    open_folder(tmp_path, other(**one()))
    write_json(tmp_path / "progress.json", {"step": 2, "max_steps": 2, "finished": True})
    assert is_finished(tmp_path, other(**one())) and not is_finished(tmp_path, other(**another()))


def test_options_are_recorded_as_by_earlier_versions():
    """A training that one of them finished is found again."""
    given = {
        "beta": 0.1,
        "model_init_kwargs": {"dtype": "float32"},
        "generation_kwargs": {"stop": ["a"], "min_p": None},
    }
    assert other(**given)["overrides"] == given
    need(find_spec("peft"), "PEFT")
    from peft import LoraConfig

    config = LoraConfig(
        r=4, target_modules=["up_proj", "down_proj"], task_type="CAUSAL_LM", modules_to_save=["lm_head"]
    )
    fields = {
        "r": 4,
        "target_modules": ["down_proj", "up_proj"],
        "task_type": "CAUSAL_LM",
        "modules_to_save": ["lm_head"],
    }
    assert other(peft_config=config)["overrides"]["peft_config"].items() >= ({"kind": "LoraConfig"} | fields).items()
    assert other(peft_config=config)["overrides"]["peft_config"].keys() <= {"kind", "peft_type", *fields}


def test_stops_in_a_trainers_own_form_are_recorded_as_a_spec():
    assert other(stops=["a", 5])["stops"] == other(stops=StopSpec(stop=("a",), stop_token_ids=(5,)))["stops"]


def test_other_local_data_or_models_make_another_training(tmp_path, monkeypatch):
    data, model, judge = (tmp_path / name for name in ("prompts.jsonl", "model", "judge"))
    for folder in (model, judge):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights of 1")

    def asked():
        recipe = Recipe(model=str(model), dataset=str(data))
        return training_record("GRPOTrainer", recipe, reward_funcs=[str(judge), length_reward(20)])

    data.write_text('{"prompt": "a"}')
    before = asked()
    (model / "a_run_of_it").mkdir()
    (model / "a_run_of_it" / "metrics.jsonl").write_text("{}")  # no part of a model
    stat = data.stat()
    data.write_text('{"prompt": "a"}')  # written again, and the same
    assert asked() == before
    for changed in (data, model / "model.safetensors", judge / "model.safetensors"):
        known = changed.read_bytes()
        changed.write_bytes(known[:-1] + b"2")
        os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        open_folder(tmp_path / "run", before)
        write_json(tmp_path / "run" / "progress.json", {"step": 2, "max_steps": 2, "finished": True})
        assert is_finished(tmp_path / "run", before) and not is_finished(tmp_path / "run", asked())
        changed.write_bytes(known)
    assert asked() == before and "contents" not in RECORD


@pytest.mark.slow
def test_trainers_leave_recipes_of_one_shape(tmp_path):
    stops = StopSpec(stop=(" the",))
    rewards = {"GRPO": length_reward(20), "RLOO": length_reward(20)} | ({"PPO": "random weights"} if HAS_PPO else {})
    for kind, reward in rewards.items():
        folder = tmp_path / kind
        train(SMALL, trainer=OURS[kind], reward_funcs=reward, record_dir=folder, stops=stops)
        run, written = Run(folder), read_json(folder / "recipe.json", {})
        assert written.keys() == {*RECORD, "source"}
        assert written["recipe"] == RECORD["recipe"] and written["stops"]["stop"] == [" the"]
        assert written["reward_funcs"][0]["name"] == ("random weights" if kind == "PPO" else "reward_len")
        assert run.metrics["step"].tolist() == [1, 2]
        assert set(run.metrics.columns) >= {"completions/distinct", "stops/clipped_ratio", "elapsed_s"}
        assert run.completions.groupby("step").size().tolist() == [4, 4]
        assert is_finished(run.path, written)


@pytest.mark.slow
def test_a_wrong_setting_is_refused_before_the_folder_is_touched(tmp_path):
    open_folder(tmp_path, RECORD)
    record_a_step(tmp_path)
    for wrong in ({"num_generations": 3}, {"generation_kwargs": {"stop": ["a"]}}):
        with pytest.raises(ValueError):
            train(SMALL, reward_funcs=length_reward(20), record_dir=tmp_path, **wrong)
    assert read_json(tmp_path / "recipe.json", {}) == RECORD | {"source": "workbench"}
    assert Run(tmp_path).metrics["step"].tolist() == [1]


class Interrupt(TrainerCallback):
    """Ctrl-C behind the checkpoint of the first step."""

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 1:
            raise KeyboardInterrupt


def train_small(folder, reward, **options):
    return train(replace(SMALL, save_steps=1), reward_funcs=reward, record_dir=folder, **options)


@pytest.mark.slow
def test_a_reward_edited_in_its_module_begins_anew(tmp_path, monkeypatch, capsys):
    scoring = ModuleType("scoring")
    exec("TARGET, CALLS = 20, []\ndef score(text): CALLS.append(1); return -abs(TARGET - len(text))", vars(scoring))

    def reward(completions, **_):
        return [scoring.score(text) for text in completions]

    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path, reward, callbacks=[Interrupt()])
    scoring.TARGET = 500
    train_small(tmp_path, reward)
    assert "holds another training (reward_funcs" in capsys.readouterr().err
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2] and len(list(tmp_path.glob("replaced-*"))) == 1
    assert (Run(tmp_path).completions["reward"] < -400).all()
    train_small(tmp_path, reward)  # its calls are counted, and nobody edited it
    scoring.TARGET = 20
    train_small(tmp_path, reward, same_reward=True)
    assert capsys.readouterr().out.count("this training is finished (2 steps)") == 2


@pytest.mark.slow
def test_resuming_asks_about_values_of_a_reward_that_nobody_sees(tmp_path, capsys):
    head = torch.nn.Linear(1, 1)

    def judge(completions, **_):
        return [head(torch.ones(1)).item() + len(text) for text in completions]

    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path, judge, callbacks=[Interrupt()])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ParameterError, match=r"head \(Linear\)\. .*give same_reward=True"):
        train_small(tmp_path, judge)
    assert sorted(tmp_path.rglob("*")) == before
    train_small(tmp_path, judge, same_reward=True)
    assert Run(tmp_path).metrics["step"].tolist() == [1, 2]
    arms = {"all": Arm(replace(SMALL, save_steps=1), judge)}
    (tmp_path / "arms").mkdir()
    train_arms(arms, out_dir=tmp_path / "arms", seeds=[0])
    with pytest.raises(ParameterError, match="give same_reward=True"):
        train_arms(arms, out_dir=tmp_path / "arms", seeds=[0])
    train_arms({"all": replace(arms["all"], options={"same_reward": True})}, out_dir=tmp_path / "arms", seeds=[0])
    assert "all, seed 0: there already" in capsys.readouterr().out


@pytest.mark.slow
def test_a_trainer_resumed_with_another_reward_says_so(tmp_path):
    def resumed(reward, folder, **given):
        args = grpo_config(replace(SMALL, save_steps=1), folder / "checkpoints")
        path, data = resolve_model("starter"), load_prompts("starter").select(range(8))
        return OURS["GRPO"](path, reward, args, train_dataset=data, record_dir=folder, **given)

    with pytest.raises(KeyboardInterrupt):
        resumed(length_reward(20), tmp_path, callbacks=[Interrupt()]).train()
    with pytest.warns(UserWarning, match="resumed after step 1; its reward was .*'target': 20.* is .*'target': 500"):
        resumed(length_reward(500), tmp_path).train(resume_from_checkpoint=True)


@pytest.mark.slow
def test_lora_rank_of_a_recipe_trains_an_adapter(tmp_path):
    need(find_spec("peft"), "PEFT")
    recipe = replace(SMALL, lora_rank=4)
    made = make_trainer(GRPOTrainer, recipe, reward_funcs=length_reward(20), record_dir=tmp_path)
    config = made.model.peft_config["default"]
    assert (config.r, config.lora_alpha) == (4, 8)
    assert {"q_proj", "down_proj"} <= {name.rpartition(".")[2] for name in config.target_modules}


def with_bos(folder) -> str:
    """The starter with a tokenizer that puts a BOS in front of texts, and a template whose texts begin with one."""
    AutoModelForCausalLM.from_pretrained(resolve_model("starter")).save_pretrained(folder)
    plain = AutoTokenizer.from_pretrained(resolve_model("starter"))
    core = plain.backend_tokenizer
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=plain.eos_token, pad_token=plain.pad_token)
    made.bos_token = made.pad_token
    bos = (made.bos_token, made.bos_token_id)
    made.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    made.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    made.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:prompts are plain strings")
@pytest.mark.parametrize("chat", [True, False])
def test_prompts_of_ppo_and_held_out_are_those_of_grpo(tmp_path, monkeypatch, chat):
    """Messages had two BOS, that of the template and that of the tokenizer."""
    texts = ["a b", "the"]
    rows = [{"prompt": [{"role": "user", "content": text}] if chat else text} for text in texts * 2]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = replace(SMALL, model=with_bos(tmp_path / "model"), dataset=str(tmp_path / "rows.jsonl"))
    grpo = make_trainer(GRPOTrainer, recipe, reward_funcs=length_reward(20), record_dir=tmp_path / "grpo")
    tokenizer, asked = grpo.processing_class, []
    ids = grpo._tokenize_prompts([row["prompt"] for row in rows])[0]
    assert [row.count(tokenizer.bos_token_id) for row in ids] == [1] * 4 and ids[0][0] == tokenizer.bos_token_id
    sample = TransformersSampler.sample
    monkeypatch.setattr(TransformersSampler, "sample", lambda *given: asked.append(given[1]) or sample(*given))
    look = HeldOut(rows, length_reward(20), [0], StopSpec(), 4)
    look.on_train_begin(grpo.args, grpo.state, None, model=grpo.model, processing_class=tokenizer)
    assert asked == [ids]
    if HAS_PPO:
        ppo = make_trainer(OURS["PPO"], recipe, reward_funcs="random weights", record_dir=tmp_path / "ppo")
        assert ppo.train_dataset["input_ids"] == ids


@pytest.mark.slow
@needs_ppo
def test_ppo_trains_a_bf16_checkpoint_in_fp32(tmp_path):
    """As GRPO does: transformers 5 loads weights in the dtype in which they are stored."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("starter"), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(resolve_model("starter")).save_pretrained(tmp_path / "model")
    recipe = replace(SMALL, model=str(tmp_path / "model"))
    made = make_trainer(OURS["PPO"], recipe, reward_funcs="random weights", record_dir=tmp_path)
    models = (made.policy_model, made.ref_model, made.value_model, made.reward_model)
    assert {weight.dtype for model in models for weight in model.parameters()} == {torch.float32}


@needs_ppo
def test_a_trainer_without_a_recipe_of_its_kind_is_refused():
    with pytest.raises(ParameterError, match="samples with transformers only"):
        train_ppo(Recipe(backend="vllm"), record_dir="unused")
