"""What trainer and back end have to agree on before they start: names of options, and the tokenizer."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import ParameterError
from .stops import StopSpec

_VLLM_NAMES = {  # transformers' name of an option -> vLLM's
    "eos_token_id": "stop_token_ids",
    "stop_strings": "stop",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}


def check_generation_kwargs(options: Mapping, backend: str) -> None:
    """Refuse options that the back end does not know.

    A vLLM server accepts any name and ignores those that it does not know, and transformers ignores vLLM's names. Without
    this check a typo, or an option of the other back end, would let every row run to the length limit, without an error.

    Args:
        options: `generation_kwargs` as for TRL's configs.
        backend: `transformers`, `vllm` (in process) or `vllm-server`.

    Raises:
        ParameterError: names the option and the right or nearest name.

    Example:
        >>> check_generation_kwargs({"top_k": 5}, "transformers")
        >>> check_generation_kwargs({"stop": ["."]}, "transformers")
        Traceback (most recent call last):
        workbench.errors.ParameterError: generation_kwargs 'stop': unknown to transformers; did you mean 'stop_strings'?
    """
    known = _known_options(backend)
    right = {v: t for t, v in _VLLM_NAMES.items()} if backend == "transformers" else _VLLM_NAMES
    for name in options:
        if name not in known:
            near = [right[name]] if name in right else difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ParameterError(f"generation_kwargs {name!r}: unknown to {backend}{hint}")


def _known_options(backend: str) -> set[str]:
    if backend == "vllm":
        from vllm import SamplingParams

        return {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    if backend == "vllm-server":
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        return set(CompletionRequest.model_fields)
    if backend == "transformers":
        from transformers import GenerationConfig

        return {name for name in GenerationConfig().to_dict() if not name.startswith("_")}
    raise ParameterError(f"backend={backend!r}: expected transformers, vllm or vllm-server")


def check_tokenizers(train, sampler, spec: StopSpec) -> None:
    """Refuse a sampler whose tokenizer differs from the trainer's where it matters (claims A1.2, A1.6).

    vLLM loads tokenizer and generation config from disk; a token added in memory is unknown to it.

    Args:
        train: the trainer's tokenizer.
        sampler: the sampler's tokenizer.
        spec: the stops; both have to encode its strings alike.

    Raises:
        ParameterError: names the tokens, and the call that mends it.
    """
    remedy = "save both to one folder with save_policy(model, tokenizer, folder) and start the sampler from it"
    ours, theirs = train.get_vocab(), sampler.get_vocab()
    if missing := sorted((t for t in ours if theirs.get(t) != ours[t]), key=ours.get):
        shown = ", ".join(f"{t!r} (id {ours[t]}, sampler {theirs.get(t)})" for t in missing[:5])
        raise ParameterError(f"the sampler's tokenizer differs in {len(missing)} tokens: {shown}; {remedy}")
    for string in spec.strings:
        ids, sampled = (t.encode(string, add_special_tokens=False) for t in (train, sampler))
        if ids != sampled:
            raise ParameterError(f"stop {string!r} is {ids} to the trainer and {sampled} to the sampler; {remedy}")


def save_policy(model, tokenizer, folder: Path, new_tokens: Iterable[str] = ()) -> Path:
    """Save model, tokenizer and generation config to one folder, so that trainer and sampler agree.

    Args:
        model: its embeddings are enlarged when the tokenizer has more tokens.
        tokenizer: gets `new_tokens` first, as ordinary (not special) tokens: TRL drops special ones from completions.
        folder: made when missing.
        new_tokens: e.g. `("<search>", "</search>")`.

    Returns:
        The folder, to be given as model path.
    """
    tokenizer.add_tokens(list(new_tokens))
    if model.get_input_embeddings().num_embeddings < len(tokenizer):
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if model.generation_config.eos_token_id is None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)
