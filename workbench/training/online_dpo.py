"""TRL's OnlineDPOTrainer with the same stop control, on each of its back ends."""

import contextlib

import torch
from trl.experimental.online_dpo import OnlineDPOTrainer as StockOnlineDPOTrainer
from trl.trainer.utils import pad

from ..generation.stops import StopRule, StopSpec
from .positions import PositionsMixin
from .stopping import check_before_compute
from .vllm_sync import cpu_sync_online_dpo, server_without_nccl


class OnlineDPOTrainer(PositionsMixin, StockOnlineDPOTrainer):
    """`trl.experimental.online_dpo.OnlineDPOTrainer` whose rows end where `stops` says.

    Against the stock trainer: stop strings work on vLLM (stock sets `detokenize=False`, which refuses them); no EOS is
    appended that was not sampled; `missing_eos_penalty` and `val/contain_eos_token` follow the configured stops.

    Args:
        model, ref_model, reward_funcs, args, ...: TRL's, by name.
        stops: when completions end; default at every EOS.
        explicit_positions: see `PositionsMixin`.
    """

    def __init__(self, model, *, args, stops: StopSpec | None = None, processing_class=None, **kwargs):
        stops = stops or StopSpec()
        check_before_compute(model, args, stops, processing_class)
        with server_without_nccl(args):
            super().__init__(model, args=args, processing_class=processing_class, **kwargs)
        self._rows = self._ends = None
        self._user_options = args.generation_kwargs or {}
        if args.use_vllm:
            cpu_sync_online_dpo(self)
        self.set_stops(stops)

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

        return SamplingParams(
            n=2,
            repetition_penalty=self.repetition_penalty,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=0.0 if self.min_p is None else self.min_p,
            max_tokens=self.args.max_new_tokens,
            structured_outputs=self.generation_config.structured_outputs,
            detokenize=bool(self.stop_rule.spec.strings),
            **options,
        )

    def _generate(self, model, prompts, images=None):
        with self._stops_in_generate(model):
            prompt_ids, prompt_mask, _, _ = super()._generate(model, prompts, images)
        return prompt_ids, prompt_mask, *self._cut(self._rows)

    @contextlib.contextmanager
    def _stops_in_generate(self, model):
        policy = self.accelerator.unwrap_model(model)
        original = policy.generate

        def generate(**inputs):
            output = self.stop_rule.generate(policy, original, **inputs)
            self._rows = output[:, inputs["input_ids"].shape[1] :].tolist()
            return output

        policy.generate = generate
        try:
            yield
        finally:
            del policy.generate

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
        self.stats["val/contain_eos_token"][-1] = self._stopped().float().mean().item()
        return loss

    def _stopped(self) -> torch.Tensor:
        return torch.tensor([end.finish_reason == "stop" for end in self._ends], device=self.accelerator.device)

    def _calculate_rewards_from_functions(self, prompts, completions, completion_ids_list, **reward_kwargs):
        kept = [row[: end.index] for row, end in zip(self._rows, self._ends, strict=True)]
        if self.stop_rule.spec.custom:
            texts = [self.stop_rule.text(row, end) for row, end in zip(kept, self._ends, strict=True)]
            plain = isinstance(completions[0], str)
            completions = (
                texts if plain else [[{**c[-1], "content": t}] for c, t in zip(completions, texts, strict=True)]
            )
        rewards = super()._calculate_rewards_from_functions(prompts, completions, kept, **reward_kwargs)
        if self._penalty is not None:
            rewards = rewards - self._penalty * ~self._stopped()
        return rewards
