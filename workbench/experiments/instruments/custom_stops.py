"""How stop token ids and new tokens reach a real vLLM engine."""

import contextlib
from pathlib import Path
from unittest import mock

import pandas as pd
import trl

from ...errors import refusal
from ...generation.preflight import check_tokenizers, save_policy
from ...generation.stops import StopSpec
from ..vllm_server import serve, shared_engine, sharing_engines
from .duplicate_prompts import make_trainer


def stop_ids_table(path: str, stop_id: int, *, server: bool) -> pd.DataFrame:
    """Stock GRPO with `generation_kwargs={"stop_token_ids": [stop_id]}`: does vLLM get the id, and do completions end there?

    A row per back end, with `server` a vLLM server too: whether the `request has the id`, how many of 16 `completions with
    it`, and the most `tokens after it` in one of them. `path` is a saved model of the search task.
    """
    table = {}
    with sharing_engines(), serve(path) if server else contextlib.nullcontext() as url:
        for place in ("vLLM", *(["vLLM server"] if server else [])):
            served = place == "vLLM server"
            options = {"generation_kwargs": {"stop_token_ids": [stop_id]}}
            trainer = make_trainer(trl.GRPOTrainer, path, 16, vllm=True, url=url if served else None, **options)
            at = trainer.vllm_generation.vllm_client if served else trainer.vllm_generation.llm
            name = "_post" if served else "generate"
            with mock.patch.object(at, name, wraps=getattr(at, name)) as request:
                rows = trainer._generate([row["prompt"] for row in trainer.train_dataset.select(range(16))])[1]
            asked = request.call_args.kwargs
            carried = asked["json"].get("stop_token_ids") if served else asked["sampling_params"].stop_token_ids
            after = [len(row) - 1 - row.index(stop_id) for row in rows if stop_id in row]
            table[place] = {
                "request has the id": stop_id in (carried or ()),
                "completions with it": len(after),
                "tokens after it": max(after, default=0),
            }
    return pd.DataFrame(table).T


def added_token_table(path: str, token: str, *, folder: Path) -> pd.DataFrame:
    """A token added in memory and then saved to `folder`, as a real vLLM engine sees it: a column for each engine.

    The token is forced by a logit bias, so that the stop, not the model's will, is tested.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    grown = AutoTokenizer.from_pretrained(path)
    save_policy(AutoModelForCausalLM.from_pretrained(path), grown, folder, new_tokens=[token])
    new_id = grown.convert_tokens_to_ids(token)
    columns = {}
    for name, place in {"in memory": path, "saved": str(folder)}.items():
        llm = shared_engine(model=place, max_model_len=256)
        columns[name] = {
            "checked": refusal(check_tokenizers, grown, llm.get_tokenizer(), StopSpec(stop=(token,))),
            "spelt in tokens": len(llm.get_tokenizer().encode(token)),
            "stop by id": _forced(llm, new_id, stop_token_ids=[new_id]),
            "stop by string": _forced(llm, new_id, stop=[token], skip_special_tokens=False),
        }
    return pd.DataFrame(columns)


def _forced(llm, token_id: int, **stops) -> str:
    """What comes of a generation that is made to emit `token_id`, where the engine has such a token at all."""
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    known = token_id < len(llm.get_tokenizer())
    params = SamplingParams(
        max_tokens=8, temperature=0, ignore_eos=True, logit_bias={token_id: 100.0} if known else None, **stops
    )
    try:
        made = llm.generate([{"prompt_token_ids": [2, 3, 4]}], params, use_tqdm=False)[0].outputs[0]
    except VLLMValidationError as error:
        return f"error: {str(error).splitlines()[0][:90]}"
    if made.finish_reason == "stop":
        return f"stopped at {made.stop_reason} after {len(made.token_ids)} tokens"
    return f"did not stop, hit its {len(made.token_ids)}-token limit"
