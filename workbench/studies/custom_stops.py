"""The same GRPO task under stock TRL and under the workbench's trainer, side by side (article A1)."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import trl

from ..errors import refusal
from ..generation.stops import StopRule, StopSpec, check_tokenizers, save_policy, trl_finish_reason
from ..runs.run import Run
from ..training.grpo import GRPOTrainer
from ..training.recipes import Recipe, grpo_config, load_prompts, resolve_model
from ..training.recording import RecordingMixin, claim_folder, last_checkpoint, quiet_libraries
from ..training.rewards import exact_match_reward
from ..training.vllm_sync import install_cpu_sync, shared_engine, sharing_engines

STOCK_MASKED, STOCK_UNMASKED, OURS = "stock, masked", "stock, unmasked", "workbench, masked"


class ObservedGRPOTrainer(RecordingMixin, trl.GRPOTrainer):
    """Stock `trl.GRPOTrainer`, recorded: each row's real end is noted beside what TRL takes it for. Nothing is mended.

    Args:
        observed: the stops that the engine was given through `generation_kwargs`.
        *args, **kwargs: TRL's, and `out_dir`.
    """

    def __init__(self, *args, observed: StopSpec, **kwargs):
        super().__init__(*args, **kwargs)
        self._rule = StopRule(observed, self._tokenizer, self.model.generation_config)
        if self.use_vllm:
            install_cpu_sync(self.vllm_generation, self.args.output_dir)

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        eos, pad = self._tokenizer.eos_token_id, self._tokenizer.pad_token_id
        rows = generated[1]
        ends = [self._rule.find(row) for row in rows]
        columns = {
            "finish_reason": [end.finish_reason for end in ends],
            "trl_finish_reason": [trl_finish_reason(row, eos, pad) for row in rows],
            "completion_tokens": [len(row) for row in rows],
            "completion_text": [self._rule.text(row, end) for row, end in zip(rows, ends, strict=True)],
        }
        for name, values in columns.items():
            self._log_completion_extra(name, values)
        return generated


def train_variants(recipe: Recipe, stop: str, *, out_dir: Path, seeds: Iterable[int]) -> dict[str, list[Run]]:
    """Train stock TRL with and without masking and the workbench's trainer with it, each seed, on one shared engine.

    A training that is complete on disk is not repeated; an interrupted one goes on from its last checkpoint.

    Args:
        recipe: with `backend="vllm"` and a data set that has an `answer` column; reward 1 for the exact answer.
        stop: stop string.
        out_dir: holds a folder per variant and seed.
        seeds: one training each.

    Returns:
        Variant -> its runs, in the order of the seeds.
    """
    quiet_libraries()
    variants: dict[str, list[Run]] = {STOCK_MASKED: [], STOCK_UNMASKED: [], OURS: []}
    with sharing_engines():
        for seed in seeds:
            for name, runs in variants.items():
                folder = Path(out_dir) / name.replace(", ", "-") / f"seed-{seed}"
                print(f"{name}, seed {seed}", flush=True)
                _train_variant(name, dataclasses.replace(recipe, seed=seed), stop, folder)
                runs.append(Run(folder))
    return variants


def _train_variant(name: str, recipe: Recipe, stop: str, out_dir: Path) -> None:
    spec = StopSpec(strings=(stop,))
    claim_folder(out_dir, dataclasses.asdict(recipe) | {"variant": name, "stop": stop})
    checkpoint = last_checkpoint(out_dir / "checkpoints")
    if checkpoint and int(checkpoint.name.rpartition("-")[2]) == recipe.max_steps:
        return
    fields = {"mask_truncated_completions": name != STOCK_UNMASKED, "save_steps": recipe.max_steps}
    if name != OURS:  # all of what A1's remedies come to on today's TRL
        fields["generation_kwargs"] = {"stop": [stop], "include_stop_str_in_output": True}
    args = grpo_config(recipe, out_dir / "checkpoints", **fields)
    cls, told = (GRPOTrainer, {"stops": spec}) if name == OURS else (ObservedGRPOTrainer, {"observed": spec})
    trainer = cls(
        resolve_model(recipe.model),
        exact_match_reward("answer"),
        args,
        train_dataset=load_prompts(recipe.dataset),
        out_dir=out_dir,
        **told,
    )
    trainer.train()


def variant_table(variants: dict[str, list[Run]]) -> pd.DataFrame:
    """Per variant, over all seeds: reward at both ends, clipped ratio as logged and in truth, steps without gradient."""
    rows = {}
    for name, runs in variants.items():
        metrics = [run.metrics for run in runs]
        completions = pd.concat([run.completions for run in runs])
        logged = pd.concat([m["completions/clipped_ratio"] for m in metrics])
        per_step = pd.concat([r.completions.groupby("step")["finish_reason"].agg(share_cut) for r in runs])
        rows[name] = {
            "reward, first 10 steps": sum(m["reward"].head(10).mean() for m in metrics) / len(metrics),
            "reward, last 10 steps": sum(m["reward"].tail(10).mean() for m in metrics) / len(metrics),
            "logged clipped ratio": logged.mean(),
            "true clipped ratio": share_cut(completions["finish_reason"]),
            "clipped ratio error": abs(logged.to_numpy() - per_step.to_numpy()).max(),
            "steps without gradient": pd.concat([m["grad_norm"] == 0 for m in metrics]).mean(),
        }
    return pd.DataFrame(rows).T


def share_cut(reasons: pd.Series) -> float:
    return float((reasons == "length").mean())


def added_token_story(path: str, token: str, *, folder: Path) -> pd.DataFrame:
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
            "checked": refusal(check_tokenizers, grown, llm.get_tokenizer(), StopSpec(strings=(token,))),
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
    by = f" ({made.stop_reason or 'EOS'})" if made.finish_reason == "stop" else ""
    return f"{made.finish_reason}{by} after {len(made.token_ids)} tokens"
