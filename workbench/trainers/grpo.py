"""TRL's GRPOTrainer with stop control, that records its run and resumes from its checkpoints."""

import dataclasses
from pathlib import Path

import trl

from ..recipes import Recipe, grpo_config, load_prompts, resolve_model
from ..stops import StopSpec
from .grouping import GroupingMixin
from .monitoring import MismatchMixin, monitor_padding
from .positions import PositionsMixin
from .recording import claim_folder, last_checkpoint, quiet_libraries, record
from .stopping import EndedRow, StoppingMixin


class RecordingMixin:
    """Writes metrics and completions into a run folder; for trainers that keep TRL's completions table (`_logs`).

    Args:
        out_dir: run folder for `metrics.jsonl`, `progress.json` and `completions.parquet/`; None records nothing.
    """

    def __init__(self, *args, out_dir: Path | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._recorder = record(self, out_dir) if out_dir else None

    def _generate_and_score_completions(self, inputs):
        scored = super()._generate_and_score_completions(inputs)
        if self._recorder and self.model.training and self.accelerator.is_main_process:
            self._recorder.save_completions(self.state.global_step + 1, self._logged_rows())
        return scored

    def _logged_rows(self) -> dict[str, list]:
        """The last generation batch as TRL gathered it over all processes: column -> B values."""
        rewards = {name: list(values) for name, values in self._logs["rewards"].items()}
        weights = self.reward_weights.tolist()
        weighted = zip(*rewards.values(), strict=True)
        extra = {name: list(values) for name, values in self._logs["extra"].items()}
        return {
            "prompt": [str(p) for p in self._logs["prompt"]],
            "completion": extra.pop("completion_text"),
            **extra,
            "reward": [sum(w * r for w, r in zip(weights, row, strict=True)) for row in weighted],
            "advantage": list(self._logs["advantages"]),
            **rewards,
        }


class GRPOTrainer(PositionsMixin, RecordingMixin, MismatchMixin, GroupingMixin, StoppingMixin, trl.GRPOTrainer):
    """`trl.GRPOTrainer` whose rows end where `stops` says, whose groups are checked, and whose run can be recorded.

    Without custom stops and with `explicit_positions=False` a run equals the stock trainer's, step for step. With position ids
    it still does to fp32 rounding where positions are rotary; where they are learned, it is stock that scores wrong.

    Args:
        model, reward_funcs, args, ...: `trl.GRPOTrainer`'s.
        stops: when completions end; default at every EOS.
        generation_seed, share_generation: see `StoppingMixin`.
        explicit_positions: see `PositionsMixin`.
        out_dir: run folder to record into.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.rollout_func is not None:
            self.rollout_func = self._with_ends(self.rollout_func)

    def _with_ends(self, rollout_func):
        """A rollout function whose rows tell their ends; an empty completion becomes one pad outside the loss."""

        def rollout(prompts, trainer):
            output = rollout_func(prompts, trainer)
            rows, pad, eos = output["completion_ids"], self._tokenizer.pad_token_id, self._tokenizer.eos_token_id
            self._ends = None
            output["completion_ids"] = [EndedRow(ids or [pad], self.stop_rule.ends(list(ids)), eos) for ids in rows]
            if not all(rows):
                masks = output.get("env_mask") or [[1] * len(ids) for ids in rows]
                output["env_mask"] = [mask or [0] for mask in masks]
                if output["logprobs"] is not None:
                    output["logprobs"] = [logprobs or [0.0] for logprobs in output["logprobs"]]
            return output

        return rollout


def train_grpo(
    recipe: Recipe,
    *,
    reward_funcs,
    out_dir: Path,
    stops: StopSpec | None = None,
    explicit_positions: bool = True,
    monitor_every: int = 0,
    **overrides,
) -> GRPOTrainer:
    """Train a recipe in a run folder; called again after an interruption it goes on from the last checkpoint.

    Args:
        recipe: what to train; everything about it is checked before the first step.
        reward_funcs: one reward function or several, in TRL's convention.
        out_dir: run folder; holds `checkpoints/` and the recorded metrics and completions.
        stops: when completions end; default at every EOS.
        explicit_positions: False scores as TRL does, with left pads counted as text.
        monitor_every: measure the padding consistency of the trainer's scores every so many steps; 0 never.
        **overrides: further `GRPOConfig` fields.

    Returns:
        The trainer, trained.
    """
    quiet_libraries()
    out_dir = Path(out_dir)
    stops = stops or StopSpec()
    asked = {"stops": str(stops), **{k: str(v) for k, v in overrides.items()}}
    if not explicit_positions:
        asked["explicit_positions"] = "False"
    claim_folder(out_dir, dataclasses.asdict(recipe) | {"overrides": asked})
    args = grpo_config(recipe, out_dir / "checkpoints", **overrides)
    trainer = GRPOTrainer(
        resolve_model(recipe.model),
        reward_funcs,
        args,
        train_dataset=load_prompts(recipe.dataset),
        stops=stops,
        explicit_positions=explicit_positions,
        out_dir=out_dir,
    )
    if monitor_every:
        monitor_padding(trainer, every=monitor_every)
    checkpoint = last_checkpoint(out_dir / "checkpoints")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return trainer
