"""`check_step` in settings that meet known defects, on whatever TRL is first on the path.

    PYTHONPATH=FOLDER_WITH_A_TRL:. python -m benchmarks.step_releases [--only NAME ...]

`python repros/matrix.py --step` runs it on release after release. A line of JSON a setting: `state` is `same`, `different`,
`cannot tell` or `cannot run`, and `stage` and `says` are the first such stage and its cause. TRL older than what the
workbench trains with is let in: `check_step` only reads.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

os.environ |= {"TRITON_INTERPRET": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}

from workbench import trl_release

trl_release.OLDEST = "1.0.0"  # before anything of the library is imported

import torch  # noqa: E402

from tools.record import parser  # noqa: E402

PROMPTS = ["Write a word", "The sum of the numbers is a long story", "One", "Python is a language that"]
STOPS = [265, 70, 77, 86, 10, 14]  # common tokens of the starter
BASE: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": [],
    "save_strategy": "no",
}
BASE |= {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 12, "learning_rate": 1e-5}
BASE |= {"disable_tqdm": True, "max_steps": 1}
VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128, "vllm_gpu_memory_utilization": 0.2}
LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
# Setting -> fields of TRL's config; `trainer`, `model`, `lora`, `reward` and `eos` are none of these.
SETTINGS: dict[str, dict[str, Any]] = {
    **{f"loss_type {name}": {"loss_type": name} for name in LOSSES},
    "scale_rewards batch": {"scale_rewards": "batch"},
    "scale_rewards none": {"scale_rewards": "none"},
    "beta": {"beta": 0.1},
    "several updates a generation": {"num_iterations": 2},
    "bf16, LoRA": {"bf16": True, "lora": True, "learning_rate": 1e-4},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "RLOO": {"trainer": "RLOO", "beta": 0.0},
    "RLOO, beta": {"trainer": "RLOO", "beta": 0.1},
    "truncated rows masked": {"mask_truncated_completions": True},
    "4 batches a generation, 2 an update": {
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
    },
    "several EOS ids": {"eos": STOPS},
    "stop ids": {"generation_kwargs": {"eos_token_id": STOPS}},
    "stop ids, RLOO": {"trainer": "RLOO", "beta": 0.0, "generation_kwargs": {"eos_token_id": STOPS}},
    "learned positions": {"model": "starter-gpt2", "disable_dropout": True},
    "dropout": {"model": "starter-gpt2", "per_device_train_batch_size": 4, "data": PROMPTS[:1]},
    "equal groups, scale_rewards batch": {"scale_rewards": "batch", "reward": "of the prompt"},
    "top_k": {"top_k": 5},
}
ON_VLLM: dict[str, dict[str, Any]] = {
    "vLLM": {},
    "vLLM, seed": {"generation_kwargs": {"seed": 7}},
    "vLLM, stop": {"generation_kwargs": {"stop": ["e"], "include_stop_str_in_output": True}},
    "vLLM, stop, masked": {
        "mask_truncated_completions": True,
        "generation_kwargs": {"stop": ["e"], "include_stop_str_in_output": True},
    },
    "vLLM, top_k": {"top_k": 5},
}


def length(completions, **_):
    """Return a reward: longer completions are better."""
    return [len(text) / 10 for text in completions]


def of_the_prompt(prompts, **_):
    """Return a reward that is equal within a group."""
    return [float(len(prompt)) for prompt in prompts]


def build(options: dict[str, Any], folder: str) -> Any:
    """Build TRL's trainer in a setting."""
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    from workbench.experiments.recipes import resolve_model

    names = ("trainer", "model", "lora", "reward", "eos", "data")
    own = {name: options[name] for name in names if name in options}
    fields = BASE | {name: value for name, value in options.items() if name not in names}
    rloo = own.get("trainer") == "RLOO"
    cls, config = (trl.RLOOTrainer, trl.RLOOConfig) if rloo else (trl.GRPOTrainer, trl.GRPOConfig)
    set_seed(0)
    path = resolve_model(own.get("model", "starter"))
    model: Any = path
    if "eos" in own:
        model = AutoModelForCausalLM.from_pretrained(path)
        model.generation_config.eos_token_id = [model.generation_config.eos_token_id, *own["eos"]]
    more = {"peft_config": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")} if "lora" in own else {}
    data = Dataset.from_dict({"prompt": own.get("data", PROMPTS)})
    reward = of_the_prompt if "reward" in own else length
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    trainer = cls(
        model, [reward], args=config(folder, **fields), train_dataset=data, processing_class=tokenizer, **more
    )
    if fields.get("use_vllm"):  # vLLM's CPU backend takes no weights of TRL's, and those on disk are still right
        trainer.vllm_generation.sync_weights = lambda *_, **__: None
    return trainer


def measure(options: dict[str, Any]) -> dict[str, str]:
    """Check one step in a setting."""
    from workbench.watch.check_step import check_step

    with tempfile.TemporaryDirectory() as folder:
        try:
            report = check_step(build(options, folder))
        except Exception as error:  # a setting that this release does not have, or cannot run
            return {
                "state": "cannot run",
                "stage": "",
                "says": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}",
            }
    unknown = next((stage for stage in report.stages if stage.verdict == "cannot tell"), None)
    state, stage = ("different", report.first) if report.first else ("cannot tell" if unknown else "same", unknown)
    return {"state": state, "stage": stage.name if stage else "", "says": stage.cause if stage else ""}


def rows(only: list[str], vllm: bool) -> Iterator[dict]:
    """Measure each setting."""
    import trl

    for name, options in (SETTINGS | ({key: VLLM | value for key, value in ON_VLLM.items()} if vllm else {})).items():
        if name.startswith(tuple(only)):
            yield {"trl": trl.__version__, "setting": name} | measure(options)


def main() -> None:
    options = parser(__doc__, only=[""], vllm=0).parse_args()
    if not options.vllm:
        from workbench.lab.late_vllm import import_vllm_late

        import_vllm_late()  # TRL imports it wherever it finds it
    torch.set_num_threads(1)
    for row in rows(options.only, bool(options.vllm)):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
