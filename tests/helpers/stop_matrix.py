"""One batch per StopSpec with each of the workbench's trainers, and what came of each row (in the process of on_vllm.py).

The judging is in test_stopping.py.
"""

from contextlib import nullcontext

from configuration_runs import POLICY, build
from generation_cases import specs

from workbench.experiments.recipes import load_prompts
from workbench.experiments.vllm_server import sharing_engines

LIMIT, BATCH, G = 16, 16, 4


def policy_row(trainer) -> dict:
    """A batch that is sampled and scored, and not trained on."""
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
    columns = trainer.generation.end_columns()
    ends = {"finish_reason": columns["finish_reason"], "engine": columns.get("engine_finish_reason")}
    return seen | ends | {"loss_tokens": mask.sum(1).tolist(), **metrics}


def result(backend: str, url: str | None = None) -> dict:
    """Trainer -> StopSpec's name -> what came of its rows."""
    fields, made = {}, {}
    if backend != "transformers":
        fields = {"use_vllm": True, "vllm_mode": "server" if url else "colocate"}
        fields |= {"vllm_server_base_url": url} if url else {}
    policy = {"per_device_train_batch_size": BATCH, "max_completion_length": LIMIT, "mask_truncated_completions": True}
    policy |= fields | ({"vllm_max_model_length": 256} if fields else {})
    with sharing_engines() if backend == "vllm" and not url else nullcontext():
        for name in POLICY:
            own = {"model": "starter", "data": load_prompts("starter"), "explicit_positions": True}
            trainer = build("ours", name, policy, **own)
            made[name] = {}
            for label, spec in specs(trainer._tokenizer).items():
                trainer.set_stops(spec)
                made[name][label] = policy_row(trainer)
    return made
