"""Configurations that need vLLM in process (that of on_vllm.py); judged in test_configurations_on_vllm.py."""

import shutil
from pathlib import Path
from unittest import mock

import torch
from configuration_models import TURN_END, llama2_like, llama3_like
from configuration_runs import STOP, TELL, Watched, build, tokenizer
from configuration_turns import TWO_TURNS, Library, chat_tokenizer, chats, search, topics
from peft import LoraConfig
from samples import until_seen
from small_runs import sharing_every_engine
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.utils.torch_utils import set_random_seed

from workbench.experiments.recipes import load_prompts
from workbench.experiments.toys.search_task import CLOSE, search_prompts
from workbench.experiments.toys.starter import EOS
from workbench.experiments.vllm_server import shared_engine
from workbench.generation.stops import StopSpec
from workbench.runs.files import jsonable
from workbench.runs.run import Run
from workbench.training.sync_on_cpu import install_cpu_sync

ON_VLLM = {"use_vllm": True, "vllm_mode": "colocate"}
POLICY = ON_VLLM | {"vllm_max_model_length": 256}
SAMPLED = ("GRPO", "RLOO", "OnlineDPO")
CLOSED = StopSpec(stop=(CLOSE,))
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def on_vllm(who: str, kind: str, fields: dict, **kwargs) -> Watched:
    """A trainer that samples with vLLM, not yet trained."""
    trainer = build(who, kind, (ON_VLLM if kind == "OnlineDPO" else POLICY) | fields, **kwargs)
    if who == "stock":
        install_cpu_sync(trainer.vllm_generation, trainer.args.output_dir)  # without it stock cannot run on a CPU
    return Watched(trainer)


def told(got: Watched, record_dir: Path | None = None) -> dict:
    """What came of a training, fit for JSON."""
    rows = Run(record_dir).completions.to_dict("list") if record_dir else {}
    metrics = Run(record_dir).metrics.to_dict("list") if record_dir else {}
    made = {"texts": got.texts, "ids": got.ids, "trained": got.trained, "scores": got.scores, "log": got.log}
    return made | {"rows": rows, "metrics": metrics}


def recorded(kind: str, folder: Path, fields: dict, **kwargs) -> dict:
    return told(on_vllm("ours", kind, TELL[kind] | fields, record_dir=folder, **kwargs).train(), folder)


# --- several turns ---------------------------------------------------------------------------------------------------


def tools(folder: Path) -> dict:
    calling = {"tokenizer": chat_tokenizer(), "data": chats(), "tools": [search]}
    stops = {"generation_kwargs": {"stop": [CLOSE], "include_stop_str_in_output": True}}
    return {
        "stock": told(on_vllm("stock", "GRPO", TWO_TURNS | TELL["GRPO"] | stops, **calling).train()),
        "ours": recorded("GRPO", folder / "tools", TWO_TURNS, stops=CLOSED, **calling),
        "environment": recorded("GRPO", folder / "environment", TWO_TURNS, tokenizer=chat_tokenizer(), data=topics(),
                                environment_factory=Library, rewards=None, stops=CLOSED),
        "rollout": recorded("GRPO", folder / "rollout", {}, rollout_func=rollout, stops=CLOSED),
    }  # fmt: skip


def rollout(prompts, trainer) -> dict:
    """A rollout function that asks the engine itself, with parameters of its own."""
    ids = [tokenizer().encode(prompt) for prompt in prompts]
    params = SamplingParams(max_tokens=12, logprobs=0, stop=[CLOSE], include_stop_str_in_output=True)
    outputs = trainer.vllm_generation.llm.generate([{"prompt_token_ids": p} for p in ids], params, use_tqdm=False)
    rows = [output.outputs[0] for output in outputs]
    logprobs = [[s[t].logprob for s, t in zip(row.logprobs, row.token_ids, strict=True)] for row in rows]
    return {"prompt_ids": ids, "completion_ids": [list(row.token_ids) for row in rows], "logprobs": logprobs}


# --- weights and their correction ------------------------------------------------------------------------------------


def lora(folder: Path) -> dict:
    """For each trainer: how far the engine's greedy tokens are from the policy's best, with its adapter and without."""
    made = {}
    for kind in SAMPLED:
        adapter = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules="all-linear")
        own = {"peft_config": adapter, "stops": StopSpec(stop=(STOP,)), "record_dir": folder / f"lora {kind}"}
        fields = TELL[kind] | {"learning_rate": 0.2, "lr_scheduler_type": "constant"}
        got = on_vllm("ours", kind, fields, **own).train()
        trainer, weights = got.trainer, got.weights()
        if kind == "OnlineDPO":
            trainer._move_model_to_vllm()
        else:
            trainer.vllm_generation.sync_weights()
        rows = greedy_of_engine(trainer.llm if kind == "OnlineDPO" else trainer.vllm_generation.llm)
        behind = {"behind the policy's best": behind_the_best(trainer.model, rows)}
        with trainer.model.disable_adapter():
            behind["behind the base's best"] = behind_the_best(trainer.model, rows)
        kept = all(torch.allclose(value, weights[name], atol=1e-5) for name, value in got.weights().items())
        made[kind] = behind | {"kept": kept} | told(got, own["record_dir"])
    return made


def asked() -> list[list[int]]:
    return [tokenizer().encode(row["prompt"]) for row in search_prompts()[::10]]


@torch.no_grad()
def behind_the_best(model, rows: list[list[int]]) -> float:
    """The most by which a token of the rows is less likely under the model than its best one, in nats."""
    gaps = []
    for ids, row in zip(asked(), rows, strict=True):
        logits = model.eval()(input_ids=torch.tensor([ids + row])).logits[0, len(ids) - 1 : -1]
        gaps.append((logits.max(-1).values - logits.gather(1, torch.tensor(row)[:, None])[:, 0]).max().item())
    return max(gaps)


def greedy_of_engine(llm) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=8)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in asked()], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def correction(folder: Path) -> dict:
    """For each mode: whether ours trains as stock does, on the same samples, and what it logs."""
    made = {}
    for mode in (None, *MODES):
        fields = {"vllm_importance_sampling_correction": mode is not None, "learning_rate": 0.05, "num_iterations": 2}
        if mode:
            fields |= {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.0}
        runs = []
        for who in ("stock", "ours"):
            got = on_vllm(who, "GRPO", fields)
            generation = got.trainer.vllm_generation
            # Ours refuses a seed here, since it makes the copies of a prompt one; here that gives both the same samples.
            generation.generation_kwargs = {**(generation.generation_kwargs or {}), "seed": 7}
            runs.append(got.train())
        stock, ours = runs
        weights = stock.weights().items()
        made[str(mode)] = {
            "stock": stock.log,
            "ours": [{name: own[name] for name in line} for own, line in zip(ours.log, stock.log, strict=True)],
            "equal": all(torch.equal(value, ours.weights()[name]) for name, value in weights),
            "texts": [stock.texts, ours.texts],
            "weights": sum(value.double().abs().sum().item() for _, value in weights),
        }
    return made


# --- tokens ---------------------------------------------------------------------------------------------------------


def tokens(folder: Path) -> dict:
    made = {}
    llama2, llama3 = str(llama2_like(folder / "llama2")), str(llama3_like(folder / "llama3"))
    for kind in SAMPLED:
        stops = StopSpec(stop=("e", " s"))
        made[f"llama2 {kind}"] = recorded(kind, folder / f"llama2 {kind}", {}, model=llama2, stops=stops)
    for kind in SAMPLED:
        record_dir = folder / f"llama3 {kind}"

        def train(seed, kind=kind, record_dir=record_dir):
            shutil.rmtree(record_dir, ignore_errors=True)
            return recorded(kind, record_dir, {"seed": seed}, model=llama3)

        eos = {AutoTokenizer.from_pretrained(llama3).convert_tokens_to_ids(token) for token in (EOS, TURN_END)}
        made[f"llama3 {kind}"] = until_seen(train, lambda got, eos=eos: {ids[-1] for ids in got["ids"]} > eos)
    return made


# --- seeds -----------------------------------------------------------------------------------------------------------


def seeds(folder: Path) -> dict:
    """The first step's texts of one prompt with seeds 1, 1 and 2, the engine seeded as where it is started anew."""

    def anew(model, seed=0, **kwargs):
        engine = shared_engine(model, **kwargs)
        set_random_seed(seed)
        return engine

    one_prompt = load_prompts("search").select([0] * 16)

    def texts(kind: str, seed: int) -> list[str]:
        fields = {"seed": seed, "max_steps": 1, "temperature": 2.0}
        return on_vllm("ours", kind, fields, data=one_prompt).train().texts

    modules = ("trl.generation.vllm_generation", "trl.experimental.online_dpo.online_dpo_trainer")
    with mock.patch(f"{modules[0]}.LLM", anew), mock.patch(f"{modules[1]}.LLM", anew):
        return {kind: [texts(kind, seed) for seed in (1, 1, 2)] for kind in SAMPLED}


CASES = {"seeds": seeds, "tools": tools, "lora": lora, "correction": correction, "tokens": tokens}


def result(folder: str) -> dict:
    with sharing_every_engine():
        return jsonable({name: case(Path(folder)) for name, case in CASES.items()})
