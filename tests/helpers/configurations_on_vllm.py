"""Options that need vLLM in process (that of on_vllm.py); test_configurations_elsewhere.py judges."""

from functools import partial
from pathlib import Path
from unittest import mock

import torch
from configuration_models import TURN_END, TWO_TURNS, calling, in_library, llama2_like, llama3_like, saved, tokenizer
from configuration_runs import POLICY, STOP, TELL, Watched, apart, build
from peft import LoraConfig
from samples import until_seen
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.utils.torch_utils import set_random_seed

from workbench.experiments.recipes import load_prompts
from workbench.experiments.toys.search_task import CLOSE
from workbench.experiments.toys.starter import EOS
from workbench.experiments.vllm_server import shared_engine, sharing_engines
from workbench.generation.stops import StopSpec
from workbench.runs.files import jsonable
from workbench.watch.sampler_probe import attach_sampler_probe

ON_VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 256}
CLOSED = StopSpec(stop=(CLOSE,))
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def on_vllm(who: str, kind: str, fields: dict, **kwargs) -> Watched:
    """A trainer that samples with vLLM, not yet trained."""
    return Watched(build(who, kind, ON_VLLM | fields, **kwargs), kwargs.get("record_dir"))


def outcome(got: Watched) -> dict:
    """What came of a training, fit for JSON."""
    made = {"texts": got.texts, "ids": got.ids, "trained": got.trained, "scores": got.scores, "log": got.log}
    tables = {"rows": got.rows, "metrics": got.metrics} if got.record_dir else {}
    return made | {name: table.to_dict("list") for name, table in tables.items()}


def recorded(kind: str, folder: Path, fields: dict, **kwargs) -> dict:
    return outcome(on_vllm("ours", kind, TELL[kind] | fields, record_dir=folder, **kwargs).train())


def tools(folder: Path) -> dict:
    ours = partial(recorded, "GRPO", stops=CLOSED)
    return {
        "ours": ours(folder / "tools", TWO_TURNS, **calling()),
        "environment": ours(folder / "environment", TWO_TURNS, **in_library()),
        "rollout": ours(folder / "rollout", {}, rollout_func=rollout),
    }


def rollout(prompts, trainer) -> dict:
    """A rollout function that asks the engine itself, with parameters of its own."""
    ids = [tokenizer().encode(prompt) for prompt in prompts]
    params = SamplingParams(max_tokens=12, logprobs=0, stop=[CLOSE], include_stop_str_in_output=True)
    outputs = trainer.vllm_generation.llm.generate([{"prompt_token_ids": p} for p in ids], params, use_tqdm=False)
    rows = [output.outputs[0] for output in outputs]
    logprobs = [[s[t].logprob for s, t in zip(row.logprobs, row.token_ids, strict=True)] for row in rows]
    return {"prompt_ids": ids, "completion_ids": [list(row.token_ids) for row in rows], "logprobs": logprobs}


def lora(folder: Path) -> dict:
    """What came of each trainer, and whether its adapter stays apart from its model when the engine gets both."""
    made = {}
    for kind in POLICY:
        adapter = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules="all-linear")
        own = {"peft_config": adapter, "stops": StopSpec(stop=(STOP,)), "record_dir": folder / f"lora {kind}"}
        fields = TELL[kind] | {"learning_rate": 0.2, "lr_scheduler_type": "constant"}
        got = on_vllm("ours", kind, fields, **own)
        attach_sampler_probe(got.trainer)
        got.train()
        weights = got.weights()
        got.trainer.vllm_generation.sync_weights()
        kept = all(torch.allclose(value, weights[name], atol=1e-5) for name, value in got.weights().items())
        made[kind] = {"kept": kept} | outcome(got)
    return made


def correction(folder: Path) -> dict:
    """For each mode: how far ours is from stock on the same samples."""
    made = {}
    for mode in (None, *MODES):
        fields = {"vllm_importance_sampling_correction": mode is not None, "learning_rate": 0.05, "num_iterations": 2}
        if mode:
            fields |= {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.0}
        runs = []
        for who in ("stock", "ours"):
            runs.append(on_vllm(who, "GRPO", fields))
            generation = runs[-1].trainer.vllm_generation
            # Ours refuses a seed here, since it makes the copies of a prompt one; here that gives both the same samples.
            generation.generation_kwargs = {**(generation.generation_kwargs or {}), "seed": 7}
            runs[-1].train()
        learned = sum(value.double().abs().sum().item() for value in runs[0].weights().values())
        made[str(mode)] = apart(*runs) | {"learned": learned}
    return made


def tokens(folder: Path) -> dict:
    llama2, llama3 = saved(llama2_like), saved(llama3_like)
    made = {}
    for kind in POLICY:
        stops = StopSpec(stop=("e", " s"))
        made[f"llama2 {kind}"] = recorded(kind, folder / f"llama2 {kind}", {}, model=llama2, stops=stops)

        def train(seed, kind=kind):
            return recorded(kind, folder / f"llama3 {kind} {seed}", {"seed": seed}, model=llama3)

        eos = set(AutoTokenizer.from_pretrained(llama3).convert_tokens_to_ids([EOS, TURN_END]))
        made[f"llama3 {kind}"] = until_seen(train, lambda got, eos=eos: {ids[-1] for ids in got["ids"]} > eos)
    return made


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

    with mock.patch("trl.generation.vllm_generation.LLM", anew):
        return {kind: [texts(kind, seed) for seed in (1, 1, 2)] for kind in POLICY}


CASES = {case.__name__: case for case in (seeds, tools, lora, correction, tokens)}


def result(folder: str, *names: str) -> dict:
    with sharing_engines():
        return jsonable({name: CASES[name](Path(folder)) for name in names})
