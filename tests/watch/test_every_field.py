"""Every field of TRL's configs at another healthy value is no difference to `check_step`, and no field is forgotten."""

import dataclasses
from typing import Any

import distillation_cases
import pytest
import step_cases
import trl
from conftest import daily
from transformers import TrainingArguments

from workbench.watch.attach import StepCheck
from workbench.watch.check_step import check_step

pytestmark = pytest.mark.slow

CONFIGS = {"GRPO": trl.GRPOConfig, "RLOO": trl.RLOOConfig, "Distillation": trl.DistillationConfig}
SEQUENCES = {"importance_sampling_level": "sequence"}
VESPO = {"loss_type": "vespo"}
ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 5.0}
SYNCED = {"sync_ref_model": True, "ref_model_sync_steps": 1}
# Field -> values, or with others that it needs.
VALUES: dict[str, list[Any]] = {
    "model_init_kwargs": [{"attn_implementation": "eager"}],
    "disable_dropout": [True],
    "cast_lm_head_to_fp32": [True],
    "num_generations": [2],
    "num_generations_eval": [2],
    "max_completion_length": [3],
    "shuffle_dataset": [False],
    "pad_to_multiple_of": [8, None],
    "generation_batch_size": [{"generation_batch_size": 16, "steps_per_generation": None}],
    "steps_per_generation": [1, 4],
    "temperature": [0.7, 1.5],
    "top_p": [0.9],
    "repetition_penalty": [1.1],
    "generation_kwargs": [{"min_new_tokens": 3}],
    "chat_template_kwargs": [{"enable_thinking": False}],
    "cache_implementation": ["static"],
    "beta": [0.0, 0.5],
    "num_iterations": [1, 3],
    "epsilon": [0.05, 0.5],
    "epsilon_high": [0.02, 0.28],
    "delta": [1.3, {"delta": 1.1, "epsilon": 0.3}],
    "reward_weights": [[0.0, 1.0], [0.5, 2.0]],
    "multi_objective_aggregation": ["normalize_then_sum"],
    "scale_rewards": ["batch", "none", False],
    "loss_type": ["grpo", "dr_grpo", "bnpo", "cispo", "sapo", "vespo", SEQUENCES | {"loss_type": "luspo"}],
    "importance_sampling_level": [SEQUENCES, SEQUENCES | {"loss_type": "cispo", "epsilon_high": 2.0}],
    "sapo_temperature_neg": [{"loss_type": "sapo", "sapo_temperature_neg": 2.0}],
    "sapo_temperature_pos": [{"loss_type": "sapo", "sapo_temperature_pos": 0.5}],
    "vespo_k_pos": [VESPO | {"vespo_k_pos": 1.0}],
    "vespo_lambda_pos": [VESPO | {"vespo_lambda_pos": 1.0}],
    "vespo_k_neg": [VESPO | {"vespo_k_neg": 1.0}],
    "vespo_lambda_neg": [VESPO | {"vespo_lambda_neg": 0.5}],
    "mask_truncated_completions": [True, {"mask_truncated_completions": True, "loss_type": "dr_grpo"}],
    "sync_ref_model": [SYNCED],
    "ref_model_mixup_alpha": [SYNCED | {"ref_model_mixup_alpha": 0.1}],
    "ref_model_sync_steps": [SYNCED | {"ref_model_sync_steps": 2}],
    "top_entropy_quantile": [0.2, {"top_entropy_quantile": 0.5, "mask_truncated_completions": True}],
    "entropy_coef": [0.01, {"entropy_coef": 0.1, "top_entropy_quantile": 0.3}],
    "use_adaptive_entropy": [ADAPTIVE],
    "entropy_coef_min": [ADAPTIVE | {"entropy_coef_min": 0.01}],
    "entropy_coef_max": [ADAPTIVE | {"entropy_coef_max": 0.01}],
    "entropy_coef_delta": [ADAPTIVE | {"entropy_coef_delta": 0.5}],
    "entropy_target": [ADAPTIVE | {"entropy_target": 9.0}],
    "off_policy_mask_threshold": [0.01, 0.5],
    "use_bias_correction_kl": [False, SEQUENCES | {"use_bias_correction_kl": True}],
    "normalize_advantages": [True],
    "reward_clip_range": [(0.0, 2.0), {"reward_clip_range": (0.0, 2.0), "normalize_advantages": True}],
    "log_completions": [True],
    "num_completions_to_print": [{"log_completions": True, "num_completions_to_print": 1}],
    "log_unique_prompts": [True],
}
OF_SAMPLERS = {"top_k", "min_p"}  # with few tokens left, these are a difference: test_check_step.py and test_causes.py
# Fields of which nothing here depends: models, files and servers, or what needs tools, images, experts or the hub.
ELSEWHERE = {"trust_remote_code", "ds3_gather_for_generation", "router_aux_loss_coef", "max_tool_calling_iterations"}
ELSEWHERE |= {"log_multimodal", "log_completions_hub_repo", "vllm_importance_sampling_cap", "use_transformers_paged"}
ELSEWHERE |= {"use_transformers_continuous_batching", "transformers_continuous_batching_config"}  # for GPUs
ELSEWHERE |= {"teacher_model_name_or_path", "teacher_model_revision", "teacher_model_init_kwargs"}


def own_fields(config):
    """The fields that TRL adds to those of transformers, but for vLLM's, of which the grid of settings has some."""
    theirs = {field.name for field in dataclasses.fields(TrainingArguments)}
    added = {field.name for field in dataclasses.fields(config)} - theirs
    return {name for name in added if not name.startswith("vllm_") and name != "use_vllm"}


def cases():
    """Kind of trainer and settings, by a name."""
    found = {}
    for kind, config in CONFIGS.items():
        for name in sorted(own_fields(config) & VALUES.keys()):
            for value in VALUES[name]:
                with_others = isinstance(value, dict) and name in value
                settings = value if with_others else {name: value}
                if settings.keys() <= own_fields(config):
                    found[f"{kind}, {', '.join(f'{key}={each}' for key, each in settings.items())}"] = kind, settings
    return found


CASES = cases()
DAILY = ("RLOO, epsilon_high=0.28", "GRPO, delta=1.1, epsilon=0.3", "Distillation, temperature=0.7")


def test_each_field_of_a_config_has_a_value_or_a_reason():
    known = VALUES.keys() | OF_SAMPLERS | ELSEWHERE
    assert {kind: own_fields(config) - known for kind, config in CONFIGS.items()} == {kind: set() for kind in CONFIGS}
    assert {field for _, settings in CASES.values() for field in settings} >= VALUES.keys()


@pytest.mark.parametrize("name", daily(CASES, *DAILY))
def test_another_value_of_a_field_is_no_difference(name, tmp_path):
    kind, settings = CASES[name]
    base = {"learning_rate": 1e-3, "max_completion_length": 8, "max_steps": 4, "gradient_accumulation_steps": 2}
    if kind == "Distillation":
        base |= {"per_device_train_batch_size": 2}
        trainer = distillation_cases.make(tmp_path, **base | settings)
    else:
        # Two updates on each generation, so that ratios are clipped.
        base |= {"num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4, "beta": 0.05}
        cls = {"GRPO": trl.GRPOTrainer, "RLOO": trl.RLOOTrainer}[kind]
        trainer = step_cases.make(tmp_path, cls=cls, disable_tqdm=True, **base | settings)
    reports = {0: check_step(trainer)}
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    reports |= check.reports
    assert len(reports) == 5 and check.on
    assert {step: report.first for step, report in reports.items()} == dict.fromkeys(range(5)), reports
