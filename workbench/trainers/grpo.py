"""TRL's GRPOTrainer that records its run: metrics and completions as it goes, checkpoints to resume from."""

import dataclasses
from pathlib import Path

import trl

from ..recipes import Recipe, grpo_config, load_prompts, resolve_model
from .recording import claim_folder, last_checkpoint, quiet_libraries, record
from .vllm_sync import install_cpu_sync


class GRPOTrainer(trl.GRPOTrainer):
    """`trl.GRPOTrainer`, with the run folder `out_dir` written while it trains.

    Args:
        out_dir: run folder for `metrics.jsonl`, `progress.json` and `completions.parquet/`; None records nothing.
        *args, **kwargs: `trl.GRPOTrainer`'s.
    """

    def __init__(self, *args, out_dir: Path | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._recorder = record(self, out_dir) if out_dir else None
        if self.use_vllm:
            install_cpu_sync(self.vllm_generation)

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        completion_ids = generated[1]
        ended = self._tokenizer.eos_token_id
        reasons = ["stop" if ids and ids[-1] == ended else "length" for ids in completion_ids]
        self._log_completion_extra("finish_reason", reasons)
        self._log_completion_extra("completion_tokens", [len(ids) for ids in completion_ids])
        return generated

    def _generate_and_score_completions(self, inputs):
        scored = super()._generate_and_score_completions(inputs)
        if self._recorder and self.model.training and self.accelerator.is_main_process:
            self._recorder.save_completions(self.state.global_step + 1, self._logged_rows())
        return scored

    def _logged_rows(self) -> dict[str, list]:
        """The last generation batch as TRL gathered it over all processes: column -> B values."""
        per_function = {name: list(values) for name, values in self._logs["rewards"].items()}
        weights = self.reward_weights.tolist()
        total = [
            sum(w * r for w, r in zip(weights, row, strict=True)) for row in zip(*per_function.values(), strict=True)
        ]
        return {
            "prompt": [str(p) for p in self._logs["prompt"]],
            "completion": [str(c) for c in self._logs["completion"]],
            **{name: list(values) for name, values in self._logs["extra"].items()},
            "reward": total,
            "advantage": list(self._logs["advantages"]),
            **per_function,
        }


def train_grpo(recipe: Recipe, *, reward_funcs, out_dir: Path, **overrides) -> GRPOTrainer:
    """Train a recipe in a run folder; called again after an interruption it goes on from the last checkpoint.

    Args:
        recipe: what to train; everything about it is checked before the first step.
        reward_funcs: one reward function or several, in TRL's convention.
        out_dir: run folder; holds `checkpoints/` and the recorded metrics and completions.
        **overrides: further `GRPOConfig` fields.

    Returns:
        The trainer, trained.
    """
    quiet_libraries()
    out_dir = Path(out_dir)
    claim_folder(out_dir, dataclasses.asdict(recipe) | {"overrides": {k: str(v) for k, v in overrides.items()}})
    args = grpo_config(recipe, out_dir / "checkpoints", **overrides)
    dataset = load_prompts(recipe.dataset)
    trainer = GRPOTrainer(
        resolve_model(recipe.model), reward_funcs=reward_funcs, args=args, train_dataset=dataset, out_dir=out_dir
    )
    checkpoint = last_checkpoint(out_dir / "checkpoints")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return trainer
