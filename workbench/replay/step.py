"""One training step as plain numbers: what a trainer used at each stage, without padding, tensors or the trainer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from .grpo_math import LossRow, LossSettings

# Of the config; generation_kwargs may hold more.
_SAMPLER: tuple[str, ...] = ("top_p", "top_k", "min_p", "repetition_penalty", "vllm_structured_outputs_regex")
# Rules that forbid or force tokens, in transformers or vLLM; none of them, or nothing, is neutral.
_RULES: tuple[str, ...] = ("bad_words", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")
_RULES += (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "sequence_bias",
    "prefix_allowed_tokens_fn",
    "allowed_token_ids",
    "logits_processor",
)
_RULES += ("logit_bias", "structured_outputs", "guided_decoding", "vllm_structured_outputs_regex")


# Options that leave the distribution of the next token as it is: they say where a completion ends, what is returned, or how
# the engine computes. Any other option that is given may change it.
_WITHOUT_EFFECT = {
    "stop",
    "stop_strings",
    "stop_token_ids",
    "include_stop_str_in_output",
    "eos_token_id",
    "pad_token_id",
    "bos_token_id",
    "ignore_eos",
    "seed",
    "n",
    "max_new_tokens",
    "max_length",
    "max_tokens",
    "max_time",
    "stopping_criteria",
    "tokenizer",
    "num_return_sequences",
    "logprobs",
    "prompt_logprobs",
    "flat_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "output_kind",
    "output_text_buffer_length",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
    "return_dict_in_generate",
    "use_cache",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "disable_compile",
    "synced_gpus",
    "low_memory",
    "prefill_chunk_size",
    "early_stopping",
    "length_penalty",
    "renormalize_logits",
    "remove_invalid_values",
    "return_legacy_cache",
    "use_model_defaults",
    "is_assistant",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_early_exit",
    "assistant_lookbehind",
    "target_lookbehind",
    "skip_reading_prefix_cache",
    "decoder_start_token_id",
    "transformers_version",
    "_from_model_config",
}


@dataclass(frozen=True)
class SampledRow:
    """A sampled completion of T tokens, and what was made of it."""

    prompt_ids: list[int]
    ids: list[int]
    own: np.ndarray  # (T,), 0 for tokens of tools
    ended: bool | None  # by itself; None: not known
    end: int  # tokens up to its end
    cut_for_trl: bool
    mask: np.ndarray  # (T,) or longer, of the tokens that the loss takes
    # As scored behind the generation, for the loss; None where it has none.
    old_logps: np.ndarray | None = None  # (T,)
    old_sum: float | None = None  # RLOO keeps the sum over the mask alone
    ref_logps: np.ndarray | None = None  # (T,)
    sampled_logps: np.ndarray | None = None  # (T,), the sampler's own
    correction: np.ndarray | None = None  # (T,) or (1,)


@dataclass(frozen=True)
class Turn:
    """One answer of the sampler: what it was asked, and what it sampled."""

    prompt_ids: list[int]
    ids: list[int]


@dataclass(frozen=True)
class MicroRows:
    """The rows of one micro-batch, as its loss took them."""

    rows: list[LossRow]
    prompt_ids: list[list[int]]
    ids: list[list[int]]
    items: float | None  # tokens in the loss of the whole generation batch, as the trainer counts them
    loss: float
    # None in a file of an older workbench.
    completion_ids: list[list[int]] | None = None  # whole, without the padding: `ids` are those in the mask
    completion_mask: list[np.ndarray] | None = None  # of each row, as long as its `completion_ids`
    generation: int | None = None  # whose rows they are, from 0; -1: of one that nobody took down
    entropy_coef: float | None = None  # that the trainer adapts; None: the setting's
    # The entropy from which on `top_entropy_quantile` keeps tokens, over all processes. None with one process, or if not known.
    entropy_threshold: float | None = None


@dataclass(frozen=True)
class Step:
    """What one process's trainer used in one update. N rows were sampled, in the order of `rows`."""

    kind: str  # GRPO or RLOO
    dtype: str  # that it computes in
    processes: int
    rank: int
    settings: dict[str, Any]  # fields of the TRL config
    rows: list[SampledRow]
    prompts: list[Any]  # N, as the data set has them
    rewards: list[np.ndarray]  # of each generation (N of all processes, F)
    returned: np.ndarray | None  # (N of this process, F), what the functions returned; None: not known
    advantages: list[np.ndarray]  # of each generation, of this process: (N,), or (N, T) where each token has its own
    micro_batches: list[MicroRows]
    turns: list[Turn] | None = None  # None: each row is one turn
    metrics: Mapping[str, float] = field(default_factory=dict)
    pad_token_id: int | None = None
    # Settings of which the trainer has another value than its args: name -> (value in args, value of the trainer).
    deviations: Mapping[str, Any] = field(default_factory=dict)
    begun: bool = False  # the trainer has trained before, so that a callback may have changed such a setting
    reused: bool | None = None  # the completions were sampled before an earlier update; None: not known
    # Rows for which the reward functions got another value than the trainer has: `prompts` or `completions` -> their numbers.
    judged_otherwise: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # Of each micro-batch, what the auxiliary loss of a router adds to its loss; empty for a model without one.
    router_losses: Sequence[float] = ()
    # What the loss of each micro-batch logged; empty where only the last one's numbers are known, in `metrics`.
    logged: Sequence[Mapping[str, float]] = ()
    # In the loss of each generation, counted in all processes; empty where they were not.
    tokens: Sequence[float] = ()
    # (N of this process,), from the reference, that RLOO takes off the rewards, as its trainer has it; NaN where it scored no
    # reference. None: not known.
    kl: np.ndarray | None = None

    @property
    def num_generations(self) -> int:
        return self.settings["num_generations"]

    def loss_settings(self) -> LossSettings:
        """The part of the settings that the loss depends on."""
        names = {f.name for f in fields(LossSettings)}
        return LossSettings(**{name: value for name, value in self.settings.items() if name in names})

    def sampler_options(self) -> list[str]:
        """Settings with which a sampler draws from another distribution than the one that is scored, as `name=value`."""
        return [f"{name}={value}" for name, value in self.sampler_values().items()]

    def sampler_values(self) -> dict[str, Any]:
        """Settings with which a sampler draws from another distribution than the one that is scored."""
        neutral = neutral_options(self.settings.get("temperature"))
        used = {name: self.settings.get(name) for name in _SAMPLER} | dict(self.settings.get("generation_kwargs") or {})
        return {name: value for name, value in used.items() if is_option(name, value, neutral)}


def is_option(name: str, value: Any, neutral: Mapping[str, tuple]) -> bool:
    """True if an option of a sampler may make it draw from another distribution than the one that is scored.

    Example:
        >>> [is_option(n, v, neutral_options(1.0)) for n, v in (("top_p", 1.0), ("stop", ["END"]), ("top_h", 0.4))]
        [False, False, True]
    """
    if value is None or name in _WITHOUT_EFFECT:
        return False
    return value not in neutral.get(name, (False,))


def neutral_options(temperature: float | None) -> dict[str, tuple]:
    """Options of samplers, each with the values at which the scored distribution is sampled; None is neutral too.

    Example:
        >>> neutral_options(0.7)["temperature"]
        (0.7,)
    """
    neutral: dict[str, tuple] = {"top_p": (1.0,), "top_k": (0, -1), "min_p": (0.0,), "repetition_penalty": (1.0,)}
    neutral |= {"temperature": (temperature,), "do_sample": (True,), "typical_p": (1.0,)}
    neutral |= {"presence_penalty": (0.0,), "frequency_penalty": (0.0,), "no_repeat_ngram_size": (0,)}
    neutral |= {"epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,), "num_beams": (1,), "guidance_scale": (1.0,)}
    neutral |= {"encoder_repetition_penalty": (1.0,)}
    neutral |= {"min_new_tokens": (0,), "min_length": (0,), "min_tokens": (0,)}
    return neutral | dict.fromkeys(_RULES, ())


def returned_rewards(calls: Sequence[list], counts: Sequence[int], functions: int) -> np.ndarray | None:
    """Return what reward functions returned, (N, F), from their calls: generation by generation, function by function.

    Example:
        >>> returned_rewards([[1.0, 2.0], [0.5, None]], counts=[2], functions=2)
        array([[1. , 0.5],
               [2. , nan]])
    """
    if not counts or len(calls) != functions * len(counts):
        return None
    tables = []
    for number, count in enumerate(counts):
        own = calls[number * functions : (number + 1) * functions]
        if any(len(call) != count for call in own):
            return None
        tables.append(np.array([[np.nan if x is None else float(x) for x in call] for call in own]).T)
    return np.concatenate(tables)


def all_loss_rows(step: Step) -> Iterator[LossRow]:
    """The rows of all micro-batches, in the order in which the loss took them."""
    for micro in step.micro_batches:
        yield from micro.rows
