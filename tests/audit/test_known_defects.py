"""Which known defects of TRL some settings meet."""

import dataclasses
import json

import pytest
from conftest import ROOT, call

from workbench.audit.known_defects import DEFAULTS, MET, Settings, met_by, met_defects, read_settings
from workbench.errors import ParameterError

DATA = json.loads((ROOT / "data/defects.json").read_text())
VLLM = {"use_vllm": True}
STOP = {"generation_kwargs": {"stop": ["</a>"]}}
WINDOW = {"steps_per_generation": 4, "gradient_accumulation_steps": 2}
# Defect -> a trainer, settings that meet it, and settings next to them that do not; the last may be another trainer's.
SEED, EOS_IDS = {"generation_kwargs": {"seed": 7}}, {"generation_kwargs": {"eos_token_id": [1, 2]}}
MASK, STRINGS = {"mask_truncated_completions": True}, {"generation_kwargs": {"stop_strings": ["a"]}}
TOP_P = {"top_p": 0.9}
LUSPO = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
CASES = {
    "async_divisor": (
        "AsyncGRPO",
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_steps": 1},
    ),
    "copied_request_seed": ("GRPO", VLLM | SEED, SEED),
    "dropped_finish_reason": ("RLOO", VLLM | STOP, VLLM),
    "engine_seed": ("OnlineDPO", VLLM, VLLM | {"vllm_mode": "server"}, "GRPO"),
    "false_clipping": ("GRPO", VLLM | STOP, STOP),
    "ignored_stop_option": ("GRPO", STOP, VLLM | STOP),
    "lora_without_the_seed": ("GRPO", {"use_peft": True}, {"use_peft": False}),
    "loss_scale_masked": ("GRPO", MASK, MASK | {"loss_type": "grpo"}),
    "loss_scale_window": ("GRPO", WINDOW, WINDOW | {"gradient_accumulation_steps": 4}),
    "luspo_padding": ("GRPO", LUSPO | {"importance_sampling_level": "token"}, LUSPO),
    "masked_stopped_rows": ("GRPO", VLLM | STOP | MASK, STOP | MASK),
    "online_dpo_stop_strings": ("OnlineDPO", VLLM | STOP, STOP),
    "pads_behind_a_stop_id": ("GRPO", EOS_IDS, VLLM | EOS_IDS),
    "ppo_penalty_looks_for_eos": ("PPO", {"missing_eos_penalty": 1.0, "stop_token_id": 5}, {"stop_token_id": 5}),
    "ppo_runs_past_eos": ("PPO", {}, {"stop_token": "eos"}),
    "ratio_over_truncated_support": (
        "GRPO",
        VLLM | TOP_P,
        VLLM | TOP_P | {"vllm_importance_sampling_correction": False},
    ),
    "stop_strings_need_a_tokenizer": ("GRPO", STRINGS, VLLM | STRINGS),
    "zero_std_share": ("GRPO", {"multi_objective_aggregation": "normalize_then_sum"}, {"scale_rewards": "none"}),
}
# What settings alone do not decide.
OPEN = {
    "empty_completion": {},
    "equal_rewards": {"num_generations": 8},
    "hidden_stop_token": {"generation_kwargs": {"stop_token_ids": [5]}},
    "open_tool_turn": VLLM | STOP,
    "padding_without_positions": {},
    "sequence_ratio_is_a_sum": VLLM,
    "several_eos_ids": {},
}


def test_every_defect_of_the_table_has_a_rule_and_a_case():
    assert MET.keys() == DATA["results"].keys() == CASES.keys() | OPEN.keys()


@pytest.mark.parametrize("name", CASES)
def test_settings_meet_a_defect_and_the_ones_next_to_them_do_not(name):
    trainer, meets, near, *other = CASES[name]
    met, why = met_by(name, Settings(trainer, meets))
    assert met is True and why
    assert met_by(name, Settings(*other or [trainer], near))[0] is not True


@pytest.mark.parametrize("name", OPEN)
def test_what_settings_do_not_decide_says_what_would(name):
    met, why = met_by(name, Settings("GRPO", OPEN[name]))
    assert met is None and why


@pytest.mark.parametrize("kwargs, ends", [(STOP, True), (STRINGS, False), (EOS_IDS, False)], ids=str)
def test_only_a_stop_that_the_back_end_knows_meets_a_defect(kwargs, ends):
    names = ("false_clipping", "masked_stopped_rows", "dropped_finish_reason")
    assert {met_by(name, Settings("GRPO", VLLM | MASK | kwargs))[0] is True for name in names} == {ends}
    without = {name: met_by(name, Settings("GRPO", MASK | kwargs))[0] is True for name in names}
    assert without["false_clipping"] == without["masked_stopped_rows"] == (kwargs is EOS_IDS)


def test_a_defect_is_named_only_on_releases_that_have_it():
    settings = Settings("GRPO", WINDOW)
    assert met_defects("1.8.0", settings)["loss_scale_window"][1].endswith("0.5 times the gradient")
    assert "loss_scale_window" not in met_defects("1.9.1", settings)
    with pytest.raises(ParameterError, match=r"trl='1\.8\.9': this release was not tested"):
        met_defects("1.8.9", settings)


def test_generation_batch_size_is_as_many_steps_as_in_trl():
    from trl import GRPOConfig

    settings = {"generation_batch_size": 32, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    assert met_by("loss_scale_window", Settings("GRPO", settings))[1].endswith("0.25 times the gradient")
    config = GRPOConfig("out", num_generations=2, use_cpu=True, bf16=False, **settings)
    assert config.steps_per_generation == Settings("GRPO", settings).steps_per_generation


def test_the_defaults_are_those_of_the_installed_trl():
    from trl import GRPOConfig

    theirs = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    assert {name: theirs[name] for name in DEFAULTS} == DEFAULTS


TOKEN_MODE = {"use_vllm": True, "vllm_importance_sampling_mode": "token_mask"}


@pytest.mark.parametrize("wide", [{"beta": 0.1}, {"top_entropy_quantile": 0.2}, TOKEN_MODE], ids=str)
def test_luspo_meets_its_defect_at_sequence_level_too(wide):
    met, why = met_by("luspo_padding", Settings("GRPO", LUSPO | wide))
    assert met and [*wide][-1] in why and "importance_sampling_level" not in why


YAML = "use_vllm: true\nsteps_per_generation: 4\ngradient_accumulation_steps: 2\ngeneration_kwargs:\n  stop: ['</a>']\n"
ARGS = json.dumps(WINDOW | VLLM | {"generation_kwargs": '{"stop": ["a"]}'})


@pytest.mark.parametrize("name, text", [("grpo.yaml", YAML), ("args.json", ARGS)])
def test_the_command_names_what_the_settings_meet(name, text, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    code, said, _ = call(capsys, "doctor", "--trl", "1.8.0", "--args", tmp_path / name)
    assert code == 1 and "TRL 1.8.0, GRPO: these settings meet 4 known defects" in said
    assert "loss_scale_window: loss_type=dapo (the default), steps_per_generation=4" in said
    assert "false_clipping: stop in generation_kwargs" in said and "cannot tell  several_eos_ids" in said
    if name == "args.json":  # a run's folder
        assert call(capsys, "doctor", "--trl", "1.8.0", "--args", tmp_path)[1] == said


def test_a_workbench_folder_says_its_trainer_backend_and_stops(tmp_path):
    recipe = {"trainer": "RLOOTrainer", "recipe": {"backend": "vllm"}, "stops": {"stop": ["</a>"]}, "overrides": {}}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    settings = read_settings(tmp_path)
    assert (settings.trainer, settings["use_vllm"], settings.stops) == ("RLOO", True, "stop")


def test_a_number_that_yaml_takes_for_a_text_is_one(tmp_path):
    (tmp_path / "a.yaml").write_text("beta: 1e-3\n")
    assert read_settings(tmp_path / "a.yaml")["beta"] == 1e-3


@pytest.mark.parametrize(
    "text, said",
    [
        ("[1]", "expected TRL's arguments as NAME: VALUE"),
        ("gradient_accumulation_steps: two", "gradient_accumulation_steps='two': expected a whole number"),
        ("top_k: '50'", "top_k='50': expected a number"),
        ("use_vllm: true\nvllm_importance_sampling_mode: 5", "vllm_importance_sampling_mode=5: expected a word"),
        ("generation_batch_size: 4", "generation_batch_size=4, per_device_train_batch_size=8 .*expected a multiple"),
        ("mask_truncated_completions: 'false'", "='false': expected true or false, without quotes"),
        ("loss_typ: dapo", "loss_typ: expected an argument of TRL; did you mean 'loss_type'"),
        ("generation_kwargs: [1]", r"generation_kwargs=\[1\]: expected a mapping, NAME: VALUE"),
        ("a: [", "not YAML"),
    ],
)
def test_a_file_that_is_no_settings_is_refused(text, said, tmp_path):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ParameterError, match=said):
        read_settings(tmp_path / "a.yaml")
    with pytest.raises(ParameterError, match="no such file"):
        read_settings(tmp_path / "b.yaml")


def test_no_argument_of_trl_is_taken_for_a_misspelt_one(tmp_path):
    from trl import GRPOConfig, ModelConfig, RLOOConfig, ScriptArguments

    configs = (GRPOConfig, RLOOConfig, ModelConfig, ScriptArguments)
    names = {field.name for config in configs for field in dataclasses.fields(config)}
    (tmp_path / "a.json").write_text(json.dumps(dict.fromkeys(names)))
    assert read_settings(tmp_path / "a.json")["loss_type"] == "dapo"


def test_a_release_without_settings_is_refused(capsys):
    code, _, error = call(capsys, "doctor", "--trl", "1.8.0")
    assert code == 2 and "give them with --args FILE" in error
