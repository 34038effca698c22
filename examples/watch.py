"""A training as anybody writes it with stock TRL, on vLLM with a stop string, and the two lines that watch it.

    python examples/watch.py OUTPUT_DIR [--mask]
    workbench audit OUTPUT_DIR

`--mask` sets mask_truncated_completions=True, which leaves the rows that stopped out of the loss: the watch names it.
The model and the prompts are the workbench's small search task; put yours in their place.
"""

import sys

from trl import GRPOConfig, GRPOTrainer

from workbench import attach_watch, exact_match_reward, load_prompts, resolve_model
from workbench.training.sync_on_cpu import install_cpu_sync

where = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 128}
stop = {"generation_kwargs": {"stop": ["</search>"], "include_stop_str_in_output": True}}
batch = {"per_device_train_batch_size": 32, "num_generations": 8, "max_completion_length": 32, "max_steps": 80}
how = {"learning_rate": 3e-4, "lr_scheduler_type": "constant", "beta": 0.0, "logging_steps": 1, "report_to": "none"}
on_cpu = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "model_init_kwargs": {"dtype": "float32"}}
args = GRPOConfig(
    sys.argv[1], mask_truncated_completions="--mask" in sys.argv, **where, **stop, **batch, **how, **on_cpu
)
trainer = GRPOTrainer(resolve_model("search"), exact_match_reward(), args, train_dataset=load_prompts("search"))
install_cpu_sync(trainer.vllm_generation, args.output_dir)  # without CUDA TRL brings no weights to vLLM

attach_watch(trainer)  # the second of the two lines; the first is its import
trainer.train()
