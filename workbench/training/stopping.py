"""One stop control for GRPO and RLOO: rows end where the `StopSpec` says, and TRL's masks and metrics see the truth.

TRL 1.12.0 decides whether a completion was cut by the length limit from `ids[-1]` alone: anything but the tokenizer's one
EOS or pad counts as cut (`grpo_trainer.py` lines 2320 and 2507). Two things mend all of it: each row is cut at its real
end, and the row that TRL inspects answers `[-1]` with EOS exactly when it really stopped (`EndedRow`).
"""

import contextlib
from collections.abc import Mapping, Sequence
from unittest import mock

from ..errors import ParameterError
from ..generation.backends import check_generation_kwargs, check_tokenizers
from ..generation.stops import End, StopRule, StopSpec, trl_finish_reason
from .reward_calls import checked_all
from .rewards import completion_text
from .sampler_probe import probe_sampler
from .vllm_sync import install_cpu_sync, server_without_nccl
from .vllm_tap import EngineTap

# Options of generation_kwargs that say when to stop; they have to come as a StopSpec, which all parts then obey.
_STOP_OPTIONS = ("eos_token_id", "stop_strings", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "min_new_tokens")
_NO_TOKEN = -1


class EndedRow(list):
    """A row's token ids whose `[-1]` tells TRL whether it stopped: the EOS id if so, else no token id at all.

    Iteration, length, slices and conversion to tensors give the real ids.
    """

    def __init__(self, ids: Sequence[int], stopped: bool, eos_token_id: int):
        super().__init__(ids)
        self._last = eos_token_id if stopped else _NO_TOKEN

    def __getitem__(self, index):
        return self._last if index == -1 else super().__getitem__(index)


def backend_of(args) -> str:
    """`transformers`, `vllm` or `vllm-server`, from a TRL config."""
    return "transformers" if not args.use_vllm else "vllm-server" if args.vllm_mode == "server" else "vllm"


def reject_stop_options(generation_kwargs: Mapping | None) -> None:
    """Refuse stops among `generation_kwargs`: the engine would obey them, but masks, metrics and rewards would not.

    A seed is refused too: copies of a prompt would get one completion, and with it no advantage (article A3).
    """
    if "seed" in (generation_kwargs or {}):
        raise ParameterError(
            "generation_kwargs 'seed': vLLM would give all copies of a prompt the same completion, hence zero advantage; "
            "give generation_seed=... to the trainer, which seeds each completion for itself"
        )
    if given := [name for name in generation_kwargs or {} if name in _STOP_OPTIONS]:
        raise ParameterError(
            f"generation_kwargs {given[0]!r}: give stops as stops=StopSpec(...), so that masks, metrics and rewards "
            "obey them too"
        )


def check_before_compute(model, args, stops: StopSpec, tokenizer) -> None:
    """Everything about stops that can be wrong, before an engine starts or a model is built.

    On vLLM that includes its tokenizer, which it reads from disk. A server's is not looked at: it may stand elsewhere.
    """
    from transformers import AutoTokenizer

    reject_stop_options(args.generation_kwargs)
    check_generation_kwargs(args.generation_kwargs or {}, backend_of(args))
    if stops.strings and getattr(args, "use_transformers_continuous_batching", False):
        raise ParameterError("stop strings: transformers' continuous batching stops at ids only; use token_ids")
    if args.use_vllm:
        # No revision: TRL starts vLLM without one, whatever the trainer's model was loaded with.
        path = model if isinstance(model, str) else model.name_or_path
        on_disk = AutoTokenizer.from_pretrained(path, trust_remote_code=args.trust_remote_code)
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer) or on_disk
        StopRule(stops, tokenizer, None if isinstance(model, str) else model.generation_config)
        if args.vllm_mode == "colocate":
            check_tokenizers(tokenizer, on_disk, stops)


@contextlib.contextmanager
def obeying(rule: StopRule, policy):
    """While open, `policy.generate` obeys the rule; yields a list that gets the ids (B, T) which each call sampled.

    The list holds what `generate` really returned: TRL cuts it at the first EOS, which need not be a stop.
    """
    original, sampled = policy.generate, []

    def generate(**inputs):
        output = rule.generate(policy, original, **inputs)
        sampled.append(output[:, inputs["input_ids"].shape[1] :])
        return output

    with mock.patch.object(policy, "generate", generate):
        yield sampled


def with_stop_text(rule: StopRule, rows, ends, completions: list) -> list:
    """The completions as reward functions should read them: with the stop marker, which TRL drops where it is special.

    Args:
        rule: that found the ends.
        rows: B rows of ids.
        ends: of the rows.
        completions: B texts, or B lists of messages, as TRL has them.
    """
    texts = [rule.text(row, end) for row, end in zip(rows, ends, strict=True)]
    if isinstance(completions[0], str):
        return texts
    # A message with calls or thoughts keeps its content: the text would tell them a second time.
    pairs = zip(completions, texts, strict=True)
    return [[{**c[0], "content": text}] if _is_plain(c) else c for c, text in pairs]


def _is_plain(completion) -> bool:
    """Whether a completion is a text, or a message that has nothing but a text."""
    return isinstance(completion, str) or (len(completion) == 1 and completion[0].keys() <= {"role", "content"})


class StoppingMixin:
    """Stop control for a TRL trainer that generates in `_generate_single_turn`; goes before it in the bases.

    Args:
        stops: when completions end.
        generation_seed: on vLLM, gives every completion a random stream of its own; the run then repeats exactly.
        share_generation: on vLLM, send equal prompts of a batch as one request.
        *args, **kwargs: the TRL trainer's, `args` (the config) by name or third.
    """

    def __init__(
        self,
        model,
        reward_funcs=None,
        args=None,
        *rest,
        stops: StopSpec | None = None,
        generation_seed: int | None = None,
        share_generation: bool = False,
        **kwargs,
    ):
        stops = stops or StopSpec()
        if share_generation and not (args and args.use_vllm):
            raise ParameterError("share_generation=True: equal prompts share requests on vLLM only; set use_vllm=True")
        if args is not None:
            check_before_compute(model, args, stops, kwargs.get("processing_class"))
        with server_without_nccl(args):
            super().__init__(model, checked_all(reward_funcs), args, *rest, **kwargs)
        self._ends: list[End] = []  # empty where rows had several turns: their last turn decides
        self._sampled_ids: list[list[int]] = []
        if self.use_vllm:
            install_cpu_sync(self.vllm_generation, self.args.output_dir)
            how: dict = {"seed": generation_seed, "share": share_generation}
            self.engine_tap = EngineTap(
                self.vllm_generation, lambda: (self.state.global_step, self.model.training), **how
            )
            if self.args.vllm_mode == "colocate":  # on a server it is to be asked for
                probe_sampler(self)
        self.set_stops(stops)

    def set_stops(self, stops: StopSpec) -> None:
        """From the next generation on, end completions at `stops`."""
        self.stop_rule = StopRule(stops, self._tokenizer, self.model.generation_config, self.max_completion_length)
        if self.use_vllm:
            options = self.stop_rule.for_vllm() if stops.custom else {}
            self.vllm_generation.generation_kwargs = {**(self.args.generation_kwargs or {}), **options}

    def _generate_single_turn(self, prompt_ids, *rest, **kwargs):
        with self._stops_in_generate() as raw_ids:
            sampled = super()._generate_single_turn(prompt_ids, *rest, **kwargs)
        completion_ids, logprobs = sampled if isinstance(sampled, tuple) else (sampled, None)
        rows = [list(row) for row in (raw_ids[-1].tolist() if raw_ids else completion_ids)]
        self._ends = [self.stop_rule.find(row) for row in rows]
        self._sampled_ids = rows
        eos = self._tokenizer.eos_token_id
        pairs = zip(rows, self._ends, strict=True)
        cut = [EndedRow(row[: end.index], end.finish_reason == "stop", eos) for row, end in pairs]
        if not isinstance(sampled, tuple):
            return cut
        if logprobs is not None:
            logprobs = [row[: end.index] for row, end in zip(logprobs, self._ends, strict=True)]
        return cut, logprobs

    def _stops_in_generate(self):
        if self.use_vllm:
            return contextlib.nullcontext([])
        self.generation_config.eos_token_id = list(self.stop_rule.stop_ids) or None  # for continuous batching
        return obeying(self.stop_rule, self.accelerator.unwrap_model(self.model_wrapped))

    def _tool_call_loop(self, *args, **kwargs):
        mask, completions, completion_ids, *rest = super()._tool_call_loop(*args, **kwargs)
        self._ends = []
        eos = self._tokenizer.eos_token_id
        completion_ids = [EndedRow(ids, self.stop_rule.ends(list(ids)), eos) for ids in completion_ids]
        return mask, completions, completion_ids, *rest

    def _generate(self, prompts):
        generated = list(super()._generate(prompts))
        if not hasattr(self, "stop_rule"):  # made without `__init__`, as tests of a rollout function do
            return tuple(generated)
        at = 2 if len(generated) == 3 else 3  # RLOO returns three values, GRPO eight
        completion_ids, completions = generated[1], generated[at]
        if self._ends and self.stop_rule.spec.custom:
            real = [ids[:] for ids in completion_ids]
            generated[at] = with_stop_text(self.stop_rule, real, self._ends, completions)
        self._log_ends(completion_ids, generated[at], generated[2] if at == 3 else None)
        return tuple(generated)

    def _log_ends(self, completion_ids, completions, own_tokens) -> None:
        """Add what is known of each row's end to TRL's completions table, which is gathered over processes.

        `own_tokens` is 1 for a token of the policy's and 0 for a tool's or environment's; None where all are its own.
        """
        stopped = [ids[-1] != _NO_TOKEN for ids in completion_ids]
        real = [ids[:] for ids in completion_ids]
        eos, pad = self._tokenizer.eos_token_id, self._tokenizer.pad_token_id
        tokens = [len(ids) for ids in real] if own_tokens is None else [sum(mask) for mask in own_tokens]
        columns = {
            "finish_reason": ["stop" if s else "length" for s in stopped],
            "trl_finish_reason": [trl_finish_reason(ids, eos, pad) for ids in real],
            "completion_tokens": tokens,
            "sampled_tokens": [len(ids) for ids in self._sampled_ids] if self._ends else tokens,
            "completion_text": [self._row_text(*row) for row in zip(completions, real, strict=True)],
        }
        if self.use_vllm:
            reasons = self.engine_tap.reasons  # on a server, the main process alone is told
            columns["engine_finish_reason"] = reasons if len(reasons) == len(real) else [""] * len(real)
        for name, values in columns.items():
            self._log_completion_extra(name, values)

    def _row_text(self, completion, ids) -> str:
        """A row's text for the record; of several turns all of it, and calls too, which messages hold apart."""
        if _is_plain(completion):
            return completion_text(completion)
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        plain = [ids[:] for ids in completion_ids_list]  # reward functions read the real last token
        return super()._calculate_rewards(inputs, prompts, completions, plain)
