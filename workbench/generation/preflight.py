"""What is checked before anything expensive starts: names of options, stops, and the tokenizer."""

import contextlib
import difflib
import importlib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ParameterError, warn_user
from ..extras import missing
from .stops import OTHER_NAMES, StopRule, StopSpec, tokenizer_in

# Options of generation_kwargs that say when to stop; they have to come as a StopSpec, which all parts then obey.
_STOP_OPTIONS = ("eos_token_id", "stop_strings", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "min_new_tokens")
_VLLM_NAMES = OTHER_NAMES | {"max_new_tokens": "max_tokens"}  # transformers' name of an option -> vLLM's


def backend_of(args: Any) -> str:
    """`transformers`, `vllm` or `vllm-server`, from a TRL config."""
    if hasattr(args, "max_staleness"):  # AsyncGRPO's samples on a server alone
        return "vllm-server"
    if not getattr(args, "use_vllm", False):  # PPO's config has no such field
        return "transformers"
    return "vllm-server" if args.vllm_mode == "server" else "vllm"


def check_generation_kwargs(options: Mapping, backend: str) -> None:
    """Raise for an option that the back end does not know, with the right or nearest name.

    A vLLM server ignores names that it does not know, and transformers ignores vLLM's: every row would run to the length
    limit, without an error. For stops on transformers it is `stops=` of the workbench's trainers: in TRL `stop_strings` is an
    error there, and with `eos_token_id` it trains on pads.

    Example:
        >>> check_generation_kwargs({"top_k": 5}, "transformers")
        >>> check_generation_kwargs({"top_kk": 5}, "transformers")
        Traceback (most recent call last):
        workbench.errors.ParameterError: generation_kwargs 'top_kk': unknown to transformers; did you mean 'top_k'?
    """
    known = _known_options(backend)
    right = {v: t for t, v in _VLLM_NAMES.items()} if backend == "transformers" else _VLLM_NAMES
    for name, value in options.items():
        if name not in known:
            near = [right[name]] if name in right else difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if backend == "transformers" and near and near[0] in ("stop_strings", "eos_token_id"):
                hint = f"; leave it out and use GRPOTrainer or RLOOTrainer of workbench with stops={value!r}"
            raise ParameterError(f"generation_kwargs {name!r}: unknown to {backend}{hint}")


def _known_options(backend: str) -> set[str]:
    if backend == "vllm":
        return {name for name in _of_vllm("vllm").SamplingParams.__struct_fields__ if not name.startswith("_")}
    if backend == "vllm-server":
        return set(_of_vllm("vllm.entrypoints.openai.completion.protocol").CompletionRequest.model_fields)
    from transformers import GenerationConfig

    return {name for name in GenerationConfig().to_dict() if not name.startswith("_")}


def _of_vllm(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if find_spec("vllm") is None:
            raise missing("use_vllm=True", "vllm") from error  # type: ignore[misc]  # an extra has it
        raise


def check_tokenizers(train: Any, sampler: Any, spec: StopSpec) -> None:
    """Raise where the sampler's tokenizer is another: vLLM loads its own from disk, without tokens added in memory."""
    remedy = "save both to one folder with save_policy(model, tokenizer, folder) and start the sampler from it"
    ours, theirs = train.get_vocab(), sampler.get_vocab()
    if missing := sorted((t for t in ours if theirs.get(t) != ours[t]), key=ours.get):
        shown = ", ".join(f"{t!r} (id {ours[t]}, sampler {theirs.get(t)})" for t in missing[:5])
        raise ParameterError(f"the sampler's tokenizer differs in {len(missing)} tokens: {shown}; {remedy}")
    for string in spec.stop:
        ids, sampled = (t.encode(string, add_special_tokens=False) for t in (train, sampler))
        if ids != sampled:
            raise ParameterError(f"stop {string!r}: the trainer's ids are {ids}, the sampler's {sampled}; {remedy}")


def save_policy(model: Any, tokenizer: Any, folder: Path, new_tokens: Iterable[str] = ()) -> Path:
    """Save model, tokenizer and generation config to one folder, so that trainer and sampler agree.

    Args:
        model: without an adapter (`merge_and_unload()` first); its embeddings grow when the tokenizer has more tokens.
        tokenizer: gets `new_tokens` first, as ordinary (not special) tokens: TRL drops special ones from completions.
        folder: created if it does not exist.
        new_tokens: e.g. `("<search>", "</search>")`.

    Returns:
        The folder; pass it as the model path.
    """
    if isinstance(new_tokens, str):
        raise ParameterError(
            f"new_tokens={new_tokens!r}: a text, whose letters would be added; expected [{new_tokens!r}]"
        )
    if new := list(new_tokens):
        tokenizer.add_tokens(new)
    size = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps
    if model.get_input_embeddings().weight.shape[0] < size:
        model.resize_token_embeddings(size, mean_resizing=False)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if model.generation_config.eos_token_id is None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def _check_options(options: Mapping, backend: str) -> None:
    """Raise for stops, seeds and log-probs among `generation_kwargs`: masks, metrics and rewards would not obey them."""
    if "seed" in options:
        raise ParameterError(
            "generation_kwargs 'seed': on vLLM all copies of a prompt get one completion, hence zero advantage. Leave it out: "
            "`seed` of the config seeds the sampling, on vLLM also generation_seed=... of the trainer, for each completion"
        )
    if "logprobs" in options:
        raise ParameterError("generation_kwargs 'logprobs': TRL may read another token's log-prob; leave it out")
    if given := [name for name in options if name in _STOP_OPTIONS]:
        raise ParameterError(
            f"generation_kwargs {given[0]!r}: give stops as stops=StopSpec(...), so that masks and rewards obey them too"
        )
    check_generation_kwargs(options, backend)


def check_before_compute(model: Any, args: Any, stops: StopSpec, tokenizer: Any) -> None:
    """Everything about stops that can be wrong, before an engine starts or a model is built, but for a server's tokenizer."""
    from transformers import AutoTokenizer, GenerationConfig

    options = args.generation_kwargs or {}
    _check_options(options, backend_of(args))
    if (sampled := options.get("temperature", args.temperature)) != args.temperature:
        warn_user(
            f"generation_kwargs 'temperature'={sampled}: completions are sampled at {sampled} and scored at "
            f"temperature={args.temperature}, so ratios compare two policies; set temperature={sampled} in the config alone"
        )
    if getattr(args, "use_transformers_continuous_batching", False) and (stops.stop or stops.min_tokens):
        given = f"stop={stops.stop}, min_tokens={stops.min_tokens}"
        raise ParameterError(
            f"{given}: transformers' continuous batching has neither; leave out use_transformers_continuous_batching"
        )
    tokenizer, by_path = tokenizer_in(tokenizer), isinstance(model, str)
    path, config, on_disk = (model, None, None) if by_path else (model.name_or_path, model.generation_config, None)
    if args.use_vllm or (stops != StopSpec() and by_path):
        if args.use_vllm or tokenizer is None:  # else the folder need not have one
            # No revision: TRL starts vLLM without one, whatever the trainer's model was loaded with.
            on_disk = AutoTokenizer.from_pretrained(path, trust_remote_code=args.trust_remote_code)
        with contextlib.suppress(OSError):  # a folder need not have one
            config = GenerationConfig.from_pretrained(path) if by_path else config
    if (tokenizer := tokenizer or on_disk) and config:
        limits = args.max_completion_length, options.get("max_new_tokens"), options.get("max_tokens")
        StopRule(stops, tokenizer, config, min((limit for limit in limits if limit is not None), default=None))
    if args.use_vllm and args.vllm_mode == "colocate":
        check_tokenizers(tokenizer, on_disk, stops)
