"""One batch per StopSpec with each of the workbench's trainers, and what came of each row (in the process of on_vllm.py).

The judging is in test_stopping.py.
"""

import tempfile
from contextlib import ExitStack
from unittest import mock

from workbench.generation.stops import StopSpec
from workbench.recipes.recipes import grpo_config, load_prompts, make_recipe, resolve_model
from workbench.studies.engines import shared_engine, sharing_engines
from workbench.training.rewards import length_reward

LIMIT, BATCH, G = 16, 16, 4


def specs(tokenizer) -> dict[str, StopSpec]:
    of, return_, period, to = (tokenizer.encode(t)[0] for t in (" of", " Return", ".", " to"))
    return {
        "eos": StopSpec(),
        "id": StopSpec(stop_token_ids=(of,)),
        "string": StopSpec(stop=("the ",)),
        "two of each": StopSpec(stop=("ing", " a "), stop_token_ids=(return_, to)),
        "no eos": StopSpec(ignore_eos=True, stop_token_ids=(period,)),
        "minimum": StopSpec(stop=("e",), min_tokens=4),
    }


def policy_trainer(name: str, backend: str, url: str | None):
    import trl

    from workbench.training.grpo import GRPOTrainer, RLOOTrainer

    recipe = make_recipe("starter", max_steps=1, per_device_train_batch_size=BATCH, num_generations=G)
    recipe = make_recipe(**{**recipe.__dict__, "max_completion_length": LIMIT})
    fields = {"mask_truncated_completions": True, "output_dir": tempfile.mkdtemp()}
    if backend != "transformers":
        fields |= {"use_vllm": True, "vllm_mode": "server" if url else "colocate", "vllm_max_model_length": 256}
        fields |= {"vllm_server_base_url": url} if url else {}
    config_class = {"GRPO": trl.GRPOConfig, "RLOO": trl.RLOOConfig}[name]
    args = grpo_config(recipe, fields.pop("output_dir"), config_class, **fields)
    cls = {"GRPO": GRPOTrainer, "RLOO": RLOOTrainer}[name]
    return cls(resolve_model("starter"), length_reward(), args, train_dataset=load_prompts("starter"))


def policy_row(trainer, spec: StopSpec) -> dict:
    trainer.set_stops(spec)
    trainer.model.train()
    rows = [trainer.train_dataset[i * 40] for i in range(BATCH // G) for _ in range(G)]
    seen = {}

    def spying_reward(completions, completion_ids, **_):
        seen.update(text=list(completions), ids=[list(i) for i in completion_ids])
        return [0.0] * len(completions)

    trainer.reward_funcs[0] = spying_reward
    out = trainer._generate_and_score_completions(rows)
    mask = out["completion_mask"] * out.get("tool_mask", 1)
    metrics = {k.partition("/")[2]: v[-1] for k, v in trainer._metrics["train"].items() if k.startswith("completions/")}
    extra = {k: list(v)[-BATCH:] for k, v in trainer._logs["extra"].items()}
    return {
        **seen,
        "finish_reason": extra["finish_reason"],
        "engine": extra.get("engine_finish_reason"),
        "loss_tokens": mask.sum(1).tolist(),
        **metrics,
    }


def online_dpo_trainer(backend: str, url: str | None):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.experimental.online_dpo import OnlineDPOConfig

    from workbench.training.online_dpo import OnlineDPOTrainer

    path = resolve_model("starter")
    fields = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "max_length": 200}
    fields |= {"max_new_tokens": LIMIT, "per_device_train_batch_size": BATCH // 2, "missing_eos_penalty": 100.0}
    if backend != "transformers":
        fields |= {"use_vllm": True, "vllm_mode": "server" if url else "colocate"}
        fields |= {"vllm_server_base_url": url} if url else {}
    return OnlineDPOTrainer(
        AutoModelForCausalLM.from_pretrained(path),
        ref_model=AutoModelForCausalLM.from_pretrained(path),
        reward_funcs=length_reward(),
        args=OnlineDPOConfig(tempfile.mkdtemp(), **fields),
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        train_dataset=load_prompts("starter"),
    )


def online_dpo_row(trainer, spec: StopSpec) -> dict:
    trainer.set_stops(spec)
    seen, scored = {}, {}

    def spying_reward(completions, completion_ids, **_):
        seen.update(text=list(completions), ids=[list(i) for i in completion_ids])
        return [0.0] * len(completions)

    trainer.reward_funcs[0] = spying_reward
    forward, rewards = trainer._forward, trainer._calculate_rewards_from_functions
    trainer._forward = lambda *a, **k: scored.update(mask=a[4]) or forward(*a, **k)
    trainer._calculate_rewards_from_functions = lambda *a, **k: scored.setdefault("rewards", rewards(*a, **k))
    trainer.training_step(
        trainer.model, {"prompt": [trainer.train_dataset[i * 40]["prompt"] for i in range(BATCH // 2)]}
    )
    del trainer._forward, trainer._calculate_rewards_from_functions
    stopped = trainer.stats["val/contain_eos_token"][-1]
    return {
        **seen,
        "finish_reason": ["length" if r < -50 else "stop" for r in scored["rewards"].tolist()],
        "engine": None,
        "loss_tokens": scored["mask"].sum(1).tolist(),
        "clipped_ratio": 1 - stopped,
    }


def result(backend: str, url: str | None = None) -> dict:
    """Trainer -> StopSpec's name -> what came of its rows."""
    made = {}
    with ExitStack() as stack:
        if backend == "vllm" and not url:
            stack.enter_context(sharing_engines())
            stack.enter_context(mock.patch("trl.experimental.online_dpo.online_dpo_trainer.LLM", shared_engine))
        for name in ("GRPO", "RLOO", "OnlineDPO"):
            if name == "OnlineDPO":
                trainer, row = online_dpo_trainer(backend, url), online_dpo_row
            else:
                trainer, row = policy_trainer(name, backend, url), policy_row
            made[name] = {label: row(trainer, spec) for label, spec in specs(trainer._tokenizer).items()}
    return made
