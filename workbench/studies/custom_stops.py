"""The same GRPO task under stock TRL and under the workbench's trainer, side by side (notebook 02, article A1)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pandas as pd
import trl

from ..errors import refusal
from ..generation.preflight import check_tokenizers, save_policy
from ..generation.stops import StopRule, StopSpec
from ..recipes.recipes import Recipe
from ..runs.run import Run
from ..training.engine import hook_requests
from ..training.recording import attach_recorder
from ..training.rewards import exact_match_reward
from ..training.sync_on_cpu import install_cpu_sync
from ..training.trl import completion_metrics, end_columns, logged_rows
from .arms import Arm, column_means, share_cut
from .duplicate_prompts import make_trainer
from .engines import shared_engine, sharing_engines

STOCK_MASKED, STOCK_UNMASKED, OURS = "stock, masked", "stock, unmasked", "workbench, masked"


class ObservedGRPOTrainer(trl.GRPOTrainer):
    """Stock `trl.GRPOTrainer`, recorded: each row's real end is noted next to what TRL takes it for. Nothing is fixed.

    It also logs `vllm/requests` and `vllm/prompt_tokens`, as the workbench's trainer does.

    Args:
        stops: that the engine was given through `generation_kwargs`.
        record_dir: run folder.
        *args, **kwargs: TRL's.
    """

    def __init__(self, *args, stops: StopSpec, record_dir, **kwargs):
        super().__init__(*args, **kwargs)
        self._rule = StopRule(stops, self._tokenizer, self.model.generation_config)
        if self.use_vllm:
            install_cpu_sync(self, self.args.output_dir)
            hook_requests(self.vllm_generation, self._count)
        self.recorder = attach_recorder(self, record_dir)

    def _count(self, original, prompts, *args, **kwargs):
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["vllm/requests"].append(len(prompts))
        metrics["vllm/prompt_tokens"].append(sum(len(prompt["prompt_token_ids"]) for prompt in prompts))
        return original(prompts, *args, **kwargs)

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        rows = [list(row) for row in generated[1]]
        ends = [self._rule.find_end(row) for row in rows]
        columns = end_columns(rows, [end.finish_reason == "stop" for end in ends], self._tokenizer)
        columns["completion_text"] = [self._rule.text(row, end) for row, end in zip(rows, ends, strict=True)]
        for name, values in columns.items():
            self._log_completion_extra(name, values)
        return generated

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        rows = logged_rows(self, len(inputs) * self.accelerator.num_processes)
        for name, value in completion_metrics(rows).items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)
        if self.model.training:
            self.recorder.add_completions(self.state.global_step + 1, rows)
        return output


def custom_stop_arms(recipe: Recipe, stop: str) -> dict[str, Arm]:
    """Stock TRL with and without masking of truncated completions, and the workbench's trainer with it.

    Args:
        recipe: with `backend="vllm"` and a data set that has an `answer` column; reward 1 for the exact answer.
        stop: stop string.
    """
    reward, spec = exact_match_reward("answer"), StopSpec(stop=(stop,))
    # All of what A1's remedies come to on today's TRL.
    stock = {"generation_kwargs": {"stop": [stop], "include_stop_str_in_output": True}}
    masked, unmasked = ({"mask_truncated_completions": masked} for masked in (True, False))
    return {
        STOCK_MASKED: Arm(recipe, reward, ObservedGRPOTrainer, spec, masked | stock),
        STOCK_UNMASKED: Arm(recipe, reward, ObservedGRPOTrainer, spec, unmasked | stock),
        OURS: Arm(recipe, reward, stops=spec, options=masked),
    }


def stop_table(runs: Mapping[str, Sequence[Run]]) -> pd.DataFrame:
    """Per arm, over all seeds: reward at both ends, clipped ratio as logged and in truth, steps without gradient."""
    rows = {}
    for name, members in runs.items():
        metrics = [run.metrics for run in members]
        completions = pd.concat([run.completions for run in members])
        logged = pd.concat([m["completions/clipped_ratio"] for m in metrics])
        per_step = pd.concat([run.completions.groupby("step")["finish_reason"].agg(share_cut) for run in members])
        rows[name] = {
            "reward, first 10 steps": column_means(members, "reward", first=10),
            "reward, last 10 steps": column_means(members, "reward", last=10),
            "logged clipped ratio": logged.mean(),
            "true clipped ratio": share_cut(completions["finish_reason"]),
            "clipped ratio error": abs(logged.to_numpy() - per_step.to_numpy()).max(),
            "steps without gradient": pd.concat([m["grad_norm"] == 0 for m in metrics]).mean(),
        }
    return pd.DataFrame(rows).T


def stop_ids_table(path: str, stop_id: int, *, url: str | None) -> pd.DataFrame:
    """Stock GRPO with `generation_kwargs={"stop_token_ids": [stop_id]}`: does vLLM get it, and do rows end there (A1.1, A1.3)?

    Args:
        path: saved model of the search task.
        stop_id: that its completions hold.
        url: of a vLLM server of that model (claim A1.5); None leaves it out.

    Returns:
        A row per back end: whether the request `carries` the id, how many of the 16 rows hold it, and the most tokens that
        follow it in one of them.
    """
    table = {}
    places = {"vLLM": None} | ({"vLLM server": url} if url else {})
    with sharing_engines():
        for place, server in places.items():
            options = {"generation_kwargs": {"stop_token_ids": [stop_id]}}
            trainer = make_trainer(trl.GRPOTrainer, path, 16, vllm=True, url=server, **options)
            at = trainer.vllm_generation.vllm_client if server else trainer.vllm_generation.llm
            name = "_post" if server else "generate"
            with mock.patch.object(at, name, wraps=getattr(at, name)) as request:
                rows = trainer._generate([row["prompt"] for row in trainer.train_dataset.select(range(16))])[1]
            asked = request.call_args.kwargs
            carried = asked["json"].get("stop_token_ids") if server else asked["sampling_params"].stop_token_ids
            after = [len(row) - 1 - row.index(stop_id) for row in rows if stop_id in row]
            table[place] = {
                "carries": stop_id in (carried or ()),
                "rows with the id": len(after),
                "tokens after it": max(after, default=0),
            }
    return pd.DataFrame(table).T


def added_token_table(path: str, token: str, *, folder: Path) -> pd.DataFrame:
    """A token added in memory and then saved, as a real vLLM engine sees it (claims A1.2, A1.6).

    The token is forced by a logit bias, so that the stop, not the model's will, is tested.

    Args:
        path: saved model without the token.
        token: new token, e.g. `<call>`.
        folder: where the grown model is saved.

    Returns:
        Rows: the check, a stop by id, a stop by string. Columns: engine from `path`, engine from `folder`.
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
    params = SamplingParams(max_tokens=8, temperature=0, logit_bias={token_id: 100.0} if known else None, **stops)
    try:
        made = llm.generate([{"prompt_token_ids": [2, 3, 4]}], params, use_tqdm=False)[0].outputs[0]
    except VLLMValidationError as error:
        return f"error: {str(error).splitlines()[0][:90]}"
    if made.finish_reason == "stop":
        return f"stopped at {made.stop_reason or 'EOS'} after {len(made.token_ids)} tokens"
    return f"did not stop, hit its {len(made.token_ids)}-token limit"
