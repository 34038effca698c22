import dataclasses
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from conftest import need
from datasets import Dataset
from trl_version import HAS_PPO

from workbench.errors import MissingDependencyError, ParameterError
from workbench.experiments import recipes
from workbench.experiments.recipes import (
    DOCS,
    STARTER,
    STARTERS,
    Recipe,
    grpo_config,
    load_prompts,
    make_recipe,
    resolve_model,
    vllm_fields,
)
from workbench.training.rows import has_gpu

OURS = {"model", "dataset", "backend", "lora_rank"}
ROWS = [{"prompt": f"p{n}", "completion": " c"} for n in range(5)]


def test_recipe_has_15_fields_and_all_but_four_are_of_trl():
    from trl import GRPOConfig

    ours = {f.name for f in dataclasses.fields(Recipe)}
    theirs = {f.name for f in dataclasses.fields(GRPOConfig)}
    assert len(ours) <= 15
    assert ours - theirs == OURS


def test_the_model_alone_turns_starter_into_documented_recipe():
    assert make_recipe("starter") == STARTER
    assert load_prompts("starter").column_names == ["prompt", "completion"]
    documented = make_recipe("Qwen/Qwen2-0.5B-Instruct", dataset="trl-lib/tldr", backend="vllm", max_steps=0)
    assert documented == dataclasses.replace(DOCS, backend="vllm")
    assert (documented.max_steps, documented.learning_rate, documented.beta) == (2500, 1e-6, 0.04)


def test_an_open_field_keeps_the_recipes_value_and_seed_0_counts():
    recipe = make_recipe("starter", learning_rate=0.0, max_steps=0, dataset="", seed=0)
    assert recipe == STARTER
    assert make_recipe("starter", seed=3, max_steps=5) == dataclasses.replace(STARTER, seed=3, max_steps=5)


def test_a_field_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(ParameterError, match=r"^lr: a recipe has no such field; it has .*learning_rate"):
        make_recipe("starter", lr=1e-3)


@pytest.mark.parametrize(
    "name, value",
    [("backend", "sglang"), ("max_steps", 0), ("max_completion_length", 0), ("per_device_train_batch_size", -8),
     ("save_steps", 0), ("lora_rank", -1), ("seed", -1), ("num_generations", 1),
     ("learning_rate", 0), ("learning_rate", float("nan")),
     ("learning_rate", float("inf")), ("temperature", 0), ("temperature", float("nan"))]
)  # fmt: skip
def test_a_value_no_run_can_use_is_refused_by_name(name, value):
    with pytest.raises(ParameterError, match=f"^{name}="):
        Recipe(**{name: value})


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"max_steps": "3"}, "int, not str"),
        ({"seed": 1.5}, "int, not float"),
        ({"learning_rate": "1"}, "float, not str"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(field, expected):
    ((name, value),) = field.items()
    with pytest.raises(ParameterError, match=f"^{name}={value!r}: expected {expected}"):
        make_recipe(**field)
    assert make_recipe(learning_rate=1).learning_rate == 1


def test_a_batch_that_groups_do_not_fill_is_refused():
    with pytest.raises(ParameterError, match=r"^num_generations=5: the batch of 32 completions"):
        Recipe(num_generations=5)


def test_the_config_has_the_recipes_numbers_and_logs_every_step(tmp_path):
    config = grpo_config(make_recipe("starter", seed=4), tmp_path)
    for name in dataclasses.asdict(STARTER).keys() - OURS - {"seed"}:
        assert getattr(config, name) == getattr(STARTER, name), name
    assert (config.seed, config.logging_steps, config.report_to, config.output_dir) == (4, 1, [], str(tmp_path))
    assert grpo_config(STARTER, tmp_path, scale_rewards="none", temperature=0.5).temperature == 0.5


def test_without_a_gpu_the_config_is_fp32_on_the_cpu(tmp_path):
    if has_gpu():
        pytest.skip("this machine has a GPU")
    config = grpo_config(STARTER, tmp_path)
    assert (config.use_cpu, config.bf16, config.gradient_checkpointing) == (True, False, False)
    assert config.model_init_kwargs == {"dtype": "float32"}


def test_the_vllm_back_end_samples_in_process(tmp_path, monkeypatch):
    from importlib.util import find_spec

    if HAS_PPO:
        pytest.skip("from this TRL a vLLM that it cannot import is hidden")
    need(find_spec("vllm"), "vLLM")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    config = grpo_config(make_recipe("starter", backend="vllm"), tmp_path)
    assert (config.use_vllm, config.vllm_mode) == (True, "colocate")
    lengths = {"starter": 256, "smollm2": 1024, "Qwen/Qwen2-0.5B-Instruct": None}  # None for a data set of one's own
    for model, length in lengths.items():
        assert grpo_config(make_recipe(model, backend="vllm"), tmp_path).vllm_max_model_length == length


def test_vllm_keeps_room_for_a_long_completion(monkeypatch):
    """It cut completions of a limit of 400 tokens at 256 less the prompt, and said nothing."""
    monkeypatch.setattr(recipes, "find_spec", lambda name: ModuleSpec(name, None, origin="there"))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")

    def length(model, limit):
        return vllm_fields(make_recipe(model, backend="vllm", max_completion_length=limit)).get("vllm_max_model_length")

    assert [length("starter", limit) for limit in (64, 128, 400)] == [256, 256, 512]
    assert [length("smollm2", limit) for limit in (16, 600)] == [1024, None]  # None for all that the model takes
    with pytest.raises(ParameterError, match=r"^max_completion_length=512: expected less than 512, the positions"):
        length("search", 512)


def test_embedded_models_have_the_positions_that_recipes_say():
    for model in STARTERS:
        config = json.loads((Path(resolve_model(model)) / "config.json").read_text())
        assert config.get("max_position_embeddings", config.get("n_positions")) == recipes._POSITIONS


# --- models --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_starter_is_a_folder_that_from_pretrained_takes(starter_folder):
    from transformers import AutoModelForCausalLM

    assert resolve_model("starter") == str(starter_folder)
    assert AutoModelForCausalLM.from_pretrained(resolve_model("starter")).config.model_type == "qwen2"


def test_a_local_model_folder_is_taken_as_it_is(tmp_path):
    from tools.make_toys import build_model, build_tokenizer

    tokenizer = build_tokenizer(ROWS)
    tokenizer.save_pretrained(tmp_path)
    build_model(tokenizer).save_pretrained(tmp_path)
    assert resolve_model(str(tmp_path)) == str(tmp_path)


def test_a_folder_without_a_model_is_not_called_a_missing_folder(tmp_path):
    with pytest.raises(ParameterError, match=r"^model=.*no config.json"):
        resolve_model(str(tmp_path))
    with pytest.raises(ParameterError, match=r"^model=.*no such folder"):
        resolve_model(str(tmp_path / "none"))


def test_a_misspelt_embedded_model_is_named():
    with pytest.raises(MissingDependencyError, match="model='serch': did you mean 'search'\\?"):
        resolve_model("serch")


@pytest.mark.parametrize("parameter, ask", [("model", resolve_model), ("dataset", load_prompts)])
def test_an_unreachable_hub_names_parameter_and_offline_choices(parameter, ask):
    with pytest.raises(MissingDependencyError) as caught:
        ask("no-such-owner/no-such-name")
    assert str(caught.value).startswith(f"{parameter}='no-such-owner/no-such-name': not found on the hub")
    assert f"use {parameter}='starter' or a local folder" in str(caught.value)
    assert isinstance(caught.value, ImportError)


# --- data ----------------------------------------------------------------------------------------------------------


def as_parquet(folder):
    (folder / "data").mkdir()
    Dataset.from_list(ROWS).to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    return folder


def as_jsonl(folder):
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "test.jsonl").write_text(json.dumps({"prompt": "test", "completion": ""}) + "\n")
    return folder


def as_one_file(folder):
    return as_jsonl(folder) / "train.jsonl"


def as_csv_file(folder):
    Dataset.from_list(ROWS).to_csv(folder / "rows.csv")
    return folder / "rows.csv"


@pytest.mark.parametrize("save", [as_parquet, as_jsonl, as_one_file, as_csv_file])
def test_a_local_data_set_in_the_hub_s_format_is_read(tmp_path, save):
    data = load_prompts(str(save(tmp_path)))
    assert data["prompt"] == [row["prompt"] for row in ROWS]
    if save is as_jsonl:
        assert load_prompts(str(tmp_path), split="test")["prompt"] == ["test"]


def test_data_of_one_part_has_no_other_split(tmp_path):
    """The training rows came back as the held-out ones."""
    for name in ("starter", "starter-chat", "search", str(as_one_file(tmp_path))):
        with pytest.raises(ParameterError, match=f"^split='test': dataset='{name}' has one part; expected 'train'"):
            load_prompts(name, "test")
    with pytest.raises(ParameterError, match="split='no-such'"):
        load_prompts("sums", "no-such")


def test_a_conversational_prompt_keeps_its_messages(tmp_path):
    chat = [{"role": "user", "content": "2+2?"}]
    Dataset.from_list([{"prompt": chat}]).to_parquet(tmp_path / "train.parquet")
    assert load_prompts(str(tmp_path))[0]["prompt"] == chat


def test_a_data_set_without_prompts_or_rows_says_what_it_has(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "2+2?"}\n')
    with pytest.raises(ParameterError, match=r"expected a column `prompt`, it has \['question'\]"):
        load_prompts(str(tmp_path / "a.jsonl"))
    with pytest.raises(ParameterError, match="no such folder or file"):
        load_prompts(str(tmp_path / "none.jsonl"))


def test_a_data_set_without_rows_is_refused(tmp_path):
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(ParameterError, match=r"a\.jsonl': the file is empty; expected a row for each prompt"):
        load_prompts(str(tmp_path / "a.jsonl"))
    Dataset.from_list(ROWS).select([]).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"no rows|no data"):
        load_prompts(str(tmp_path))
