"""TRL's OnlineDPOTrainer with the same stop control on each of its back ends, that records its run."""

from pathlib import Path

import torch
from trl.experimental.online_dpo import OnlineDPOConfig
from trl.experimental.online_dpo import OnlineDPOTrainer as StockOnlineDPOTrainer
from trl.trainer.utils import pad

from ..errors import ParameterError
from ..generation.stops import End, StopRule, StopSpec, trl_finish_reason
from .folder import train_recipe
from .positions import PositionsMixin
from .recipes import Recipe, common_fields, load_prompts, resolve_model, vllm_fields
from .recording import TRAINER_OPTIONS, record, record_rows
from .reward_calls import checked_all
from .rewards import completion_text
from .sampler_probe import probe_sampler
from .stopping import check_before_compute, obeying, with_stop_text
from .vllm_sync import cpu_sync_online_dpo, server_without_nccl


class OnlineDPOTrainer(PositionsMixin, StockOnlineDPOTrainer):
    """`trl.experimental.online_dpo.OnlineDPOTrainer` whose rows end where `stops` says.

    Against the stock trainer: stop strings work on vLLM (stock sets `detokenize=False`, which refuses them); no EOS is
    appended that was not sampled; `missing_eos_penalty` and `val/contain_eos_token` follow the configured stops.

    Args:
        model, ref_model, reward_funcs, args, ...: TRL's, by name.
        stops: when completions end; default at every EOS.
        explicit_positions: see `PositionsMixin`.
        out_dir: run folder to record into.
    """

    def __init__(self, model, *, args, stops: StopSpec | None = None, processing_class=None, out_dir=None, **kwargs):
        stops = stops or StopSpec()
        check_before_compute(model, args, stops, processing_class)
        if args.use_vllm and "image" in (getattr(kwargs.get("train_dataset"), "column_names", None) or ()):
            raise ParameterError(
                "images with use_vllm=True: TRL's OnlineDPO would sample with them and score the rows without them; "
                "sample with transformers"
            )
        if "reward_funcs" in kwargs:
            kwargs["reward_funcs"] = checked_all(kwargs["reward_funcs"])
        with server_without_nccl(args):
            super().__init__(model, args=args, processing_class=processing_class, **kwargs)
        self._rows: list[list[int]] = []
        self._ends: list[End] = []
        self._user_options = args.generation_kwargs or {}
        if args.use_vllm:
            cpu_sync_online_dpo(self)
            if args.vllm_mode == "colocate":  # on a server it is to be asked for
                probe_sampler(self)
        self.set_stops(stops)
        self._recorder = record(self, out_dir) if out_dir else None

    @classmethod
    def from_recipe(cls, recipe: Recipe, *, reward_funcs, out_dir: Path, stops: StopSpec | None = None, **options):
        """The trainer that `train_recipe` trains."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        own = {name: options.pop(name) for name in TRAINER_OPTIONS if name in options}
        args = online_dpo_config(recipe, out_dir / "checkpoints", **options)
        path = resolve_model(recipe.model)
        policy, reference = (AutoModelForCausalLM.from_pretrained(path) for _ in range(2))
        tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        data = {"train_dataset": load_prompts(recipe.dataset), "processing_class": tokenizer}
        kwargs = {"args": args, "reward_funcs": reward_funcs, "stops": stops, "out_dir": out_dir, **data, **own}
        return cls(policy, ref_model=reference, **kwargs)

    def set_stops(self, stops: StopSpec) -> None:
        """From the next generation on, end completions at `stops`."""
        self.stop_rule = StopRule(stops, self._tokenizer, self.model.generation_config, self.args.max_new_tokens)
        if not self.args.use_vllm:
            return
        options = {**self._user_options, **self.stop_rule.for_vllm()}
        self.args.generation_kwargs = options  # read at each request in server mode
        if self.vllm_mode == "colocate":
            self.generation_config = self._sampling_params(options)

    def _sampling_params(self, options: dict):
        """TRL's sampling parameters with `options`; TRL's own never detokenize, and vLLM then refuses stop strings."""
        from vllm import SamplingParams

        names = ("repetition_penalty", "temperature", "top_p", "top_k", "min_p")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        own |= {"n": 2, "max_tokens": self.args.max_new_tokens, "detokenize": bool(self.stop_rule.spec.strings)}
        own["structured_outputs"] = self.generation_config.structured_outputs
        return SamplingParams(**own | options)

    def _generate(self, model, prompts, images=None):
        # TRL 1.16 returns the images' inputs too.
        with obeying(self.stop_rule, self.accelerator.unwrap_model(model)) as raw_ids:
            prompt_ids, prompt_mask, _, _, *images_after = super()._generate(model, prompts, images)
        self._rows = raw_ids[-1].tolist()
        return prompt_ids, prompt_mask, *self._cut(self._rows), *images_after

    def _generate_vllm(self, prompts, images=None):
        prompt_ids, prompt_mask, _, _ = super()._generate_vllm(prompts, images)
        return prompt_ids, prompt_mask, *self._cut(self._rows)

    def _generate_vllm_colocate(self, prompts, images=None):
        self._rows, prompt_ids = super()._generate_vllm_colocate(prompts, images)
        return self._rows, prompt_ids

    def _generate_vllm_server(self, prompts, images=None):
        self._rows, prompt_ids = super()._generate_vllm_server(prompts, images)
        # Stock returns the left-padded prompts here and then masks their pads as real tokens.
        padding = self._tokenizer.pad_token_id
        unpadded = [ids[next((n for n, i in enumerate(ids) if i != padding), len(ids)) :] for ids in prompt_ids]
        return self._rows, unpadded

    def _cut(self, rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows cut at their ends, as ids and mask `[2B, T]`, padded on the right."""
        self._ends = [self.stop_rule.find(row) for row in rows]
        device = self.accelerator.device
        kept = [torch.tensor(row[: end.index]) for row, end in zip(rows, self._ends, strict=True)]
        ids = pad(kept, padding_value=self._tokenizer.pad_token_id, padding_side="right").to(device)
        mask = pad([torch.ones_like(k) for k in kept], padding_value=0, padding_side="right").to(device)
        return ids, mask

    def training_step(self, model, inputs, num_items_in_batch=None):
        """TRL's step, with the missing-EOS penalty and its metric following the configured stops."""
        penalty, self.args.missing_eos_penalty = self.args.missing_eos_penalty, None
        self._penalty = penalty
        try:
            loss = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self.args.missing_eos_penalty = penalty
        # Of all processes; stock logs the first one's.
        self.stats["val/contain_eos_token"][-1] = self.accelerator.gather(self._stopped().float()).mean().item()
        return loss

    def _stopped(self) -> torch.Tensor:
        return torch.tensor([end.finish_reason == "stop" for end in self._ends], device=self.accelerator.device)

    def _calculate_rewards_from_functions(self, prompts, completions, completion_ids_list, **reward_kwargs):
        kept = [row[: end.index] for row, end in zip(self._rows, self._ends, strict=True)]
        if self.stop_rule.spec.custom:
            completions = with_stop_text(self.stop_rule, kept, self._ends, completions)
        rewards = super()._calculate_rewards_from_functions(prompts, completions, kept, **reward_kwargs)
        if self._penalty is not None:
            rewards = rewards - self._penalty * ~self._stopped()
        if self._recorder:
            self._record(prompts, completions, kept, rewards)
        return rewards

    def _record(self, prompts, completions, kept, rewards) -> None:
        ends = (self._tokenizer.eos_token_id, self._tokenizer.pad_token_id)
        columns = {
            "prompt": [str(prompt) for prompt in prompts],
            "completion": [completion_text(completion) for completion in completions],
            "finish_reason": [end.finish_reason for end in self._ends],
            "trl_finish_reason": [trl_finish_reason(row, *ends) for row in kept],
            "completion_tokens": [len(row) for row in kept],
            "sampled_tokens": [len(row) for row in self._rows],
            "reward": rewards.tolist(),
        }
        record_rows(self, columns)


def online_dpo_config(recipe: Recipe, output_dir: Path, **overrides) -> OnlineDPOConfig:
    """TRL's `OnlineDPOConfig` for a recipe, whose batch counts completions: two for each of TRL's prompts.

    Raises:
        ParameterError: `num_generations` is not 2, or a batch without pairs.
    """
    if recipe.num_generations != 2:
        raise ParameterError(f"num_generations={recipe.num_generations}: OnlineDPO compares 2 completions of a prompt")
    if recipe.per_device_train_batch_size % 2:
        raise ParameterError(
            f"per_device_train_batch_size={recipe.per_device_train_batch_size}: counts completions, which OnlineDPO takes in "
            "pairs; expected an even number"
        )
    fields = common_fields(recipe, output_dir) | {
        "max_steps": recipe.max_steps,
        "lr_scheduler_type": recipe.lr_scheduler_type,
        "per_device_train_batch_size": recipe.per_device_train_batch_size // 2,
        "max_new_tokens": recipe.max_completion_length,
        "save_steps": recipe.save_steps,
        "save_total_limit": 2,
    }
    if recipe.beta:  # DPO has no meaning at 0, GRPO's default
        fields["beta"] = recipe.beta
    if recipe.backend == "vllm":
        fields |= {name: value for name, value in vllm_fields(recipe).items() if name != "vllm_max_model_length"}
    return OnlineDPOConfig(**(fields | overrides))


def train_online_dpo(recipe: Recipe, *, reward_funcs, out_dir: str | Path, **options) -> OnlineDPOTrainer:
    """Train a recipe with OnlineDPO in a run folder; called again after an interruption it goes on.

    Args:
        recipe: with `num_generations=2`; a `beta` of 0 takes TRL's default for DPO.
        reward_funcs, out_dir, **options: see `train_recipe`, and any field of TRL's `OnlineDPOConfig`.

    Returns:
        The trainer, trained.
    """
    return train_recipe(OnlineDPOTrainer, recipe, reward_funcs=reward_funcs, out_dir=out_dir, **options)
