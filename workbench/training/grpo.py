"""TRL's GRPOTrainer and RLOOTrainer with stop control and checked groups, that record their runs."""

from pathlib import Path

import trl
from accelerate.utils import gather_object

from .folder import train_recipe
from .groups import GroupError, check_groups, identical_groups
from .monitoring import MismatchMixin
from .positions import PositionsMixin
from .recipes import Recipe
from .recording import RecordingMixin
from .stopping import EndedRow, StoppingMixin
from .vllm_tap import improbable_copies


class GroupingMixin:
    """Refuses a batch whose groups are not G completions of one prompt, or G copies of one sample.

    Logs `groups/identical`, the share of groups whose completions are all the same: a sharp policy has such groups rightly,
    and learns nothing from them. On vLLM also `vllm/requests` and `vllm/prompt_tokens`, what this process asked for.
    """

    def _generate_and_score_completions(self, inputs):
        prompts = [row.get("prompt", row) for row in inputs]  # an environment may own the prompts
        check_groups(gather_object(prompts), None, self._group_size())  # groups may span processes
        return super()._generate_and_score_completions(inputs)

    def _group_size(self) -> int:
        return self.num_generations if self.model.training else self.num_generations_eval

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        if not hasattr(self, "num_generations"):  # see `StoppingMixin._generate`
            return generated
        rows, size = [list(ids[:]) for ids in generated[1]], self._group_size()
        metrics = self._metrics["train" if self.model.training else "eval"]
        if self.use_vllm:
            metrics["vllm/requests"].append(self.engine_tap.requests)
            metrics["vllm/prompt_tokens"].append(self.engine_tap.prompt_tokens)
        if size > 1 and len(rows) % size == 0:
            identical = identical_groups(rows, size)
            metrics["groups/identical"].append(len(identical) * size / len(rows))
            # RLOO asks for no log-probs, and of several turns (tools, a rollout function) there are the last one's only.
            judged = self._ends and self.use_vllm and len(self.engine_tap.logprobs) == len(rows)
            if identical and judged and self.temperature > 0:
                self._refuse_copies(rows, size)
        return generated

    def _refuse_copies(self, rows: list[list[int]], size: int) -> None:
        if copies := improbable_copies(rows, self.engine_tap.logprobs, size):
            raise GroupError(
                f"groups {copies[:5]}: their {size} completions are the same, far beyond chance at temperature "
                f"{self.temperature}. The engine gave every copy the same random stream; give generation_seed=... to the "
                "trainer, which seeds each completion for itself"
            )


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
            self._ends = []
            output["completion_ids"] = [EndedRow(ids or [pad], self.stop_rule.ends(list(ids)), eos) for ids in rows]
            if not all(rows):
                masks = output.get("env_mask") or [[1] * len(ids) for ids in rows]
                output["env_mask"] = [mask or [0] for mask in masks]
                if output["logprobs"] is not None:
                    output["logprobs"] = [logprobs or [0.0] for logprobs in output["logprobs"]]
            return output

        return rollout


class RLOOTrainer(PositionsMixin, RecordingMixin, GroupingMixin, StoppingMixin, trl.RLOOTrainer):
    """`trl.RLOOTrainer` whose rows end where `stops` says, on every back end, and whose run can be recorded.

    Args: `trl.RLOOTrainer`'s, and those that `GRPOTrainer` adds.
    """


def train_grpo(recipe: Recipe, *, reward_funcs, out_dir: str | Path, **options) -> GRPOTrainer:
    """Train a recipe with GRPO in a run folder; called again after an interruption it goes on.

    Args:
        recipe, reward_funcs, out_dir, **options: see `train_recipe`. With `stops`, `monitor_every`,
            `explicit_positions`, `generation_seed`, `share_generation` and any field of `trl.GRPOConfig`.

    Returns:
        The trainer, trained.
    """
    return train_recipe(GRPOTrainer, recipe, reward_funcs=reward_funcs, out_dir=out_dir, **options)


def train_rloo(recipe: Recipe, *, reward_funcs, out_dir: str | Path, **options) -> RLOOTrainer:
    """As `train_grpo`, with RLOO; the recipe's `beta` is its KL coefficient."""
    return train_recipe(RLOOTrainer, recipe, reward_funcs=reward_funcs, out_dir=out_dir, **options)
