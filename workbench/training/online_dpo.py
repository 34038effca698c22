"""TRL's OnlineDPOTrainer with the same stop control on each of its back ends, that can record its run."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from trl.data_utils import maybe_apply_chat_template
from trl.experimental.online_dpo import OnlineDPOConfig
from trl.experimental.online_dpo import OnlineDPOTrainer as StockOnlineDPOTrainer
from trl.trainer.utils import pad

from ..errors import ParameterError
from ..generation.preflight import check_before_compute
from ..generation.stops import End, StopRule, StopSpec
from .grpo import Stops, attach_ours, stops_in_generate, with_stop_text
from .rewards import validate_all
from .rows import TrainedOnce, add_rows, check_no_hook, completion_metrics, end_columns, text_of
from .sync_on_cpu import building_on_cpu, install_cpu_sync

_OWN = ("self", "__class__", "stops", "explicit_positions", "record_dir")  # arguments that TRL's trainer does not have


class OnlineDPOTrainer(TrainedOnce, StockOnlineDPOTrainer):
    """`trl.experimental.online_dpo.OnlineDPOTrainer` that stops completions as `stops` says.

    Against the stock trainer: stop strings work on vLLM (stock sets `detokenize=False`, which refuses them); no EOS is
    appended that was not sampled; `missing_eos_penalty` and `val/contain_eos_token` follow the configured stops.

    Args:
        model, ref_model, reward_funcs, args, ..., preprocess_logits_for_metrics: TRL's.
        stops, explicit_positions, record_dir: see `GRPOTrainer`.

    Raises:
        ParameterError: before an engine or model starts: stops that cannot match, options that the back end does not know,
            images with vLLM.
    """

    recorder: Any = None  # a `RunRecorder`

    def __init__(
        self,
        model: "str | torch.nn.Module",
        ref_model: torch.nn.Module | None = None,
        reward_funcs: Any = None,
        args: OnlineDPOConfig | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        peft_config: Any = None,
        compute_metrics: Callable | None = None,
        callbacks: list | None = None,
        optimizers: tuple = (None, None),
        preprocess_logits_for_metrics: Callable | None = None,
        *,
        stops: Stops = None,
        explicit_positions: bool = True,
        record_dir: str | Path | None = None,
    ):
        given = {name: value for name, value in locals().items() if name not in _OWN}
        if args is None:
            raise ParameterError("args=None: expected an OnlineDPOConfig")
        spec = StopSpec.of(stops)
        if not explicit_positions:
            check_no_hook([model, ref_model])
        check_before_compute(model, args, spec, processing_class)
        if args.use_vllm and "image" in (getattr(train_dataset, "column_names", None) or ()):
            raise ParameterError(
                "images with use_vllm=True: TRL's OnlineDPO would sample with them and score the rows without them; "
                "sample with transformers"
            )
        with building_on_cpu(args):
            super().__init__(**given | {"reward_funcs": validate_all(reward_funcs, logged=False)})
        self.args = args = copy.copy(args)  # stops are set in it, and the user's may serve another trainer
        self._rows: list[list[int]] = []
        self._ends: list[End] = []
        if args.use_vllm:
            install_cpu_sync(self, args.output_dir)
        self._user_options = args.generation_kwargs or {}
        self.set_stops(spec)
        attach_ours(self, record_dir, explicit_positions)

    def set_stops(self, stops: StopSpec) -> None:
        """From the next generation on, end completions at `stops`."""
        self.stop_rule = StopRule(stops, self._tokenizer, self.model.generation_config, self.args.max_new_tokens)
        if self.args.use_vllm:
            options = {**self._user_options, **self.stop_rule.for_vllm()}
            self.args.generation_kwargs = options  # read at each request in server mode
            if self.vllm_mode == "colocate":
                self.generation_config = self._sampling_params(options)

    def _sampling_params(self, options: dict):
        """TRL's sampling parameters with `options`; TRL's own never detokenize, and vLLM then refuses stop strings."""
        from vllm import SamplingParams

        names = ("repetition_penalty", "temperature", "top_p", "top_k", "min_p")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        own |= {"n": 2, "max_tokens": self.args.max_new_tokens, "detokenize": bool(self.stop_rule.spec.stop)}
        made = {"structured_outputs": self.generation_config.structured_outputs}  # by TRL, of the user's dictionary
        return SamplingParams(**own | options | made)

    def _generate(self, model: Any, prompts: list, images: Any = None):
        # TRL 1.16 returns the images' inputs too.
        with stops_in_generate(self.stop_rule, self.accelerator.unwrap_model(model)) as raw_ids:
            prompt_ids, prompt_mask, _, _, *images_after = super()._generate(model, prompts, images)
        self._rows = raw_ids[-1].tolist()
        return prompt_ids, prompt_mask, *self._cut(self._rows), *images_after

    def _generate_vllm(self, prompts: list, images: Any = None):
        prompt_ids, prompt_mask, _, _ = super()._generate_vllm(prompts, images)
        return prompt_ids, prompt_mask, *self._cut(self._rows)

    def _generate_vllm_colocate(self, prompts: list, images: Any = None):
        self._rows, prompt_ids = super()._generate_vllm_colocate(prompts, images)
        return self._rows, prompt_ids

    def _generate_vllm_server(self, prompts: list, images: Any = None):
        self._rows, _ = super()._generate_vllm_server(prompts, images)
        # Stock returns the left-padded prompts here and then masks their pads as real tokens.
        texts = [maybe_apply_chat_template({"prompt": prompt}, self.processing_class)["prompt"] for prompt in prompts]
        return self._rows, 2 * self._tokenizer(texts, add_special_tokens=False)["input_ids"]

    def _cut(self, rows: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows cut at their ends, as ids and mask `[2B, T]`, padded on the right."""
        self._ends = [self.stop_rule.find_end(row) for row in rows]
        device = self.accelerator.device
        kept = [torch.tensor(row[: end.index]) for row, end in zip(rows, self._ends, strict=True)]
        ids = pad(kept, padding_value=self._tokenizer.pad_token_id, padding_side="right").to(device)
        mask = pad([torch.ones_like(k) for k in kept], padding_value=0, padding_side="right").to(device)
        return ids, mask

    def _forward(self, model: Any, *inputs: Any):
        """Log-probs (2B, T), 0 on pads: TRL leaves pads out of the loss, but not out of `objective/entropy` and `kl`."""
        return super()._forward(model, *inputs) * inputs[3]  # the completions' mask

    def training_step(self, model: Any, inputs: dict, num_items_in_batch: Any = None):
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

    def _calculate_rewards_from_functions(
        self, prompts: list, completions: list, completion_ids_list: list, **reward_kwargs: Any
    ):
        kept = [row[: end.index] for row, end in zip(self._rows, self._ends, strict=True)]
        if self.stop_rule.spec.custom:
            completions = with_stop_text(self.stop_rule, kept, completions)
        rewards = super()._calculate_rewards_from_functions(prompts, completions, kept, **reward_kwargs)
        if self._penalty is not None:
            rewards = rewards - self._penalty * ~self._stopped()
        columns = {
            "prompt": [text_of(prompt) for prompt in prompts],
            "completion": [text_of(completion) for completion in completions],
            **end_columns(
                kept,
                [end.finish_reason == "stop" for end in self._ends],
                self._tokenizer,
                sampled_tokens=[len(row) for row in self._rows],
            ),
            "reward": rewards.tolist(),
        }
        for name, value in completion_metrics(add_rows(self, columns)).items():
            self.stats.setdefault(name, []).append(value)
        return rewards
