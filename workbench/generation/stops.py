"""When generation stops, said once: `StopSpec`; its renderings for each back end; where a row of ids ends.

TRL has no such description: each trainer compares the last token with the tokenizer's one EOS id, so whatever stopped at
anything else counts as cut by the length limit (articles A0 and A1). Here one pure function from token ids to the end of
the row serves every trainer and every back end.
"""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import ParameterError


@dataclasses.dataclass(frozen=True)
class StopSpec:
    """When a completion is over. `StopSpec()` stops at EOS, every EOS of tokenizer and generation config.

    Attributes:
        strings: stop strings, found in the decoded text wherever tokens split them; special tokens count as text.
        token_ids: further ids that end a completion.
        eos: whether every EOS id ends it too.
        keep: whether the completion's text, as reward functions see it, keeps the stop marker (EOS is never kept).
        min_tokens: a stop counts only after more than this many tokens, as in vLLM.
        legacy: run to the length limit whatever is sampled. Reproduces older work (PPO before TRL 0.14); see `legacy()`.

    Raises:
        ParameterError: an empty string, a negative id, a duplicate, a negative minimum, or no stop without `legacy`.
    """

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    eos: bool = True
    keep: bool = True
    min_tokens: int = 0
    legacy: bool = False

    def __post_init__(self):
        for name in ("strings", "token_ids"):
            value = getattr(self, name)
            if isinstance(value, str | int):
                raise ParameterError(f"StopSpec {name}={value!r}: expected a tuple, e.g. ({value!r},)")
            object.__setattr__(self, name, tuple(value))
            if len(set(value)) < len(self.__dict__[name]):
                raise ParameterError(f"StopSpec {name}={value!r}: a stop is given twice; give each once")
        if "" in self.strings:
            raise ParameterError("StopSpec strings: an empty string would stop everywhere; remove it")
        if wrong := [i for i in self.token_ids if isinstance(i, bool) or not isinstance(i, int) or i < 0]:
            raise ParameterError(f"StopSpec token_ids: {wrong[0]!r} is no token id; expected integers from 0")
        if self.min_tokens < 0:
            raise ParameterError(f"StopSpec min_tokens={self.min_tokens}: expected at least 0")
        if self.legacy and (self.strings or self.token_ids or self.eos):
            raise ParameterError(
                "StopSpec legacy=True runs to the length limit: use StopSpec.legacy_mode(), without stops"
            )
        if not (self.legacy or self.strings or self.token_ids or self.eos):
            raise ParameterError(
                "StopSpec has no stop: set eos, strings or token_ids, or ask for StopSpec.legacy_mode()"
            )

    @classmethod
    def legacy_mode(cls) -> "StopSpec":
        """Never stop before the length limit: the old PPO behaviour, by name only, never a default."""
        return cls(eos=False, legacy=True)

    @property
    def custom(self) -> bool:
        """Whether this differs from stopping at EOS."""
        return self != StopSpec()


@dataclasses.dataclass(frozen=True)
class End:
    """Where a row of token ids ends.

    Attributes:
        index: tokens kept, the stop's own included: `ids[:index]` is the completion.
        stop: the id or string that ended it, or None.
        finish_reason: `stop`, or `length` when nothing ended it.
    """

    index: int
    stop: int | str | None
    finish_reason: str


class StopRule:
    """A `StopSpec` for one tokenizer: finds ends, cuts texts, renders for the back ends.

    Args:
        spec: what to stop at.
        tokenizer: of the trainer.
        generation_config: the model's; its EOS ids count besides the tokenizer's.
        max_tokens: length limit, to refuse a spec that can never match within it.

    Raises:
        ParameterError: an id outside the vocabulary or already an EOS, a string that this tokenizer cannot produce, a
            minimum that leaves no room, or `eos` without any EOS id.
    """

    def __init__(self, spec: StopSpec, tokenizer, generation_config=None, max_tokens: int | None = None):
        self.spec, self.tokenizer = spec, tokenizer
        self.eos_ids = _eos_ids(tokenizer, generation_config)
        self._check(max_tokens)
        self.stop_ids = ((*self.eos_ids,) if spec.eos else ()) + spec.token_ids
        self._stop_id_set = frozenset(self.stop_ids)
        # A string of n characters spans at most 4 n bytes and so at most 4 n tokens; one more for a split character.
        self._tail = 4 * max(map(len, spec.strings), default=0) + 4
        special = set(tokenizer.all_special_ids)
        in_strings = {i for i in special if any(tokenizer.decode([i]) in s for s in spec.strings)}
        self._hidden = special - in_strings - set(spec.token_ids)

    def _check(self, max_tokens: int | None) -> None:
        spec, size = self.spec, len(self.tokenizer)
        if spec.eos and not self.eos_ids:
            raise ParameterError("StopSpec eos=True: neither tokenizer nor generation config has an EOS id; set one")
        for token_id in spec.token_ids:
            if token_id >= size:
                raise ParameterError(f"stop token id {token_id}: outside the vocabulary of {size} tokens")
            if spec.eos and token_id in self.eos_ids:
                raise ParameterError(f"stop token id {token_id}: is an EOS id already; drop it from token_ids")
            if token_id == self.tokenizer.pad_token_id:
                raise ParameterError(f"stop token id {token_id}: is the pad token, which no policy samples to stop")
        for string in spec.strings:
            if string not in _decode(self.tokenizer, self.tokenizer.encode(string, add_special_tokens=False)):
                raise ParameterError(f"stop string {string!r}: this tokenizer cannot produce it, so it can never match")
        if max_tokens is not None and spec.min_tokens >= max_tokens:
            raise ParameterError(f"min_tokens={spec.min_tokens}: no stop can match within {max_tokens} tokens")

    def find(self, ids: Sequence[int]) -> End:
        """The first place where a stop is complete: pure, the same for rows of every back end.

        Args:
            ids: a row's completion ids; whatever follows the end (pads, more text) is ignored.

        Returns:
            The end with the fewest tokens. When a string and an id complete at one token, or several strings do, the
            string that ends first in the text is named, then the one given first.
        """
        by_id = next(
            (n for n, i in enumerate(ids, 1) if i in self._stop_id_set and n > self.spec.min_tokens), len(ids) + 1
        )
        if self.spec.strings and (match := self._find_string(list(ids[:by_id]))):
            return End(match[0], match[1], "stop")
        if by_id <= len(ids):
            return End(by_id, ids[by_id - 1], "stop")
        return End(len(ids), None, "length")

    def _find_string(self, ids: list[int]) -> tuple[int, str] | None:
        text = _decode(self.tokenizer, ids)
        settled = len(_decode(self.tokenizer, ids[: self.spec.min_tokens]))
        found = []
        for order, string in enumerate(self.spec.strings):
            # A match has to end after the text of the first `min_tokens` tokens.
            at = text.find(string, max(0, settled - len(string) + 1))
            if at >= 0:
                found.append((at + len(string), order, string))
        if not found:
            return None
        end, _, string = min(found)
        low, high = self.spec.min_tokens + 1, len(ids)  # fewest tokens whose text reaches `end`, by bisection
        while low < high:
            middle = (low + high) // 2
            prefix = _decode(self.tokenizer, ids[:middle])
            if len(prefix) >= end and prefix[end - len(string) : end] == string:
                high = middle
            else:
                low = middle + 1
        return low, string

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether a row's last token completes a stop; reads only the tail, so it serves at every sampling step."""
        if not ids or len(ids) <= self.spec.min_tokens:
            return False
        if ids[-1] in self._stop_id_set:
            return True
        if not self.spec.strings:
            return False
        tail = list(ids[-self._tail :])
        text, before = _decode(self.tokenizer, tail), _decode(self.tokenizer, tail[:-1])
        return any(s in text and s not in before for s in self.spec.strings)

    def text(self, ids: Sequence[int], end: End) -> str:
        """The completion's text as a reward function should see it: the stop marker in it or not, as `keep` says.

        EOS and other special tokens are left out, as TRL does, save those that are stops themselves.
        """
        kept = list(ids[: end.index])
        if isinstance(end.stop, int) and (end.stop in self.eos_ids or not self.spec.keep):
            kept = kept[:-1]
        text = _decode(self.tokenizer, [i for i in kept if i not in self._hidden])
        if isinstance(end.stop, str) and not self.spec.keep:
            text = text[: text.rfind(end.stop)]
        return text

    def for_transformers(self, prompt_length: int) -> dict:
        """Options for `model.generate`; see `generate`, which also keeps the model's own EOS out where none is wanted.

        Args:
            prompt_length: columns of the prompt in `input_ids`.
        """
        options = {"eos_token_id": list(self.stop_ids) or None, "pad_token_id": self.tokenizer.pad_token_id}
        if self.spec.min_tokens:
            options["min_new_tokens"] = self.spec.min_tokens
        if self.spec.strings:
            options["stopping_criteria"] = [self._criterion(prompt_length)]
        return options

    def generate(self, model, generate, generation_config, **inputs):
        """Call a model's `generate` so that it obeys this rule; returns what it returns.

        Args:
            model: holds the generation config that `generate` fills unset fields from, EOS included.
            generate: `model.generate`.
            generation_config: of the caller; not changed.
            **inputs: `input_ids` and further arguments; those that a generation config has go there.
        """
        options = self.for_transformers(inputs["input_ids"].shape[1])
        criteria = options.pop("stopping_criteria", None)
        config = copy.deepcopy(generation_config)
        config.update(**options, **{name: inputs.pop(name) for name in list(inputs) if hasattr(config, name)})
        inherited = model.generation_config
        before, inherited.eos_token_id = inherited.eos_token_id, options["eos_token_id"]
        try:
            return generate(**inputs, generation_config=config, stopping_criteria=criteria)
        finally:
            inherited.eos_token_id = before

    def _criterion(self, prompt_length: int):
        import torch
        from transformers import StoppingCriteria

        class StopStrings(StoppingCriteria):
            # transformers' own `stop_strings` misses strings in partial bytes and special tokens; this asks `ends`.
            def __call__(self, input_ids, scores, **_):
                rows = input_ids[:, prompt_length:].tolist()
                return torch.tensor([rule.ends(row) for row in rows], device=input_ids.device)

        rule = self
        return StopStrings()

    def for_vllm(self) -> dict:
        """`SamplingParams` fields, or a completion request's: the same in process and on a server.

        Every EOS id is passed, because vLLM knows only what stands on its disk; special tokens stay in the text that
        stop strings are sought in (by default they are dropped there, and such a string never matches).
        """
        if self.spec.legacy:
            return {"ignore_eos": True}
        options: dict = {"stop_token_ids": list(self.stop_ids)} if self.stop_ids else {}
        if not self.spec.eos:
            options["ignore_eos"] = True
        if self.spec.strings:
            options |= {
                "stop": list(self.spec.strings),
                "include_stop_str_in_output": True,
                "skip_special_tokens": False,
            }
        if self.spec.min_tokens:
            options["min_tokens"] = self.spec.min_tokens
        return options


def _eos_ids(tokenizer, generation_config) -> tuple[int, ...]:
    configured = getattr(generation_config, "eos_token_id", None)
    configured = configured if isinstance(configured, list | tuple) else [configured]
    return tuple(dict.fromkeys(i for i in (tokenizer.eos_token_id, *configured) if i is not None))


def _decode(tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def trl_finish_reason(ids: Sequence[int], eos_token_id: int | None, pad_token_id: int | None) -> str:
    """What stock TRL 1.12.0 takes a row for, from its last token alone (grpo_trainer.py 2320, rloo_trainer.py)."""
    return "stop" if len(ids) and ids[-1] in (eos_token_id, pad_token_id) else "length"


# --- options and tokenizers ----------------------------------------------------------------------------------------


_FOREIGN = {  # an option of one back end -> its name on the other side
    "eos_token_id": "stop_token_ids",
    "stop_strings": "stop",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}


def check_generation_kwargs(options: Mapping, backend: str) -> None:
    """Refuse options that the back end does not know.

    A vLLM server takes any name and ignores those it does not know, transformers ignores vLLM's names; so a typo or an
    option of the other back end runs to the length limit without a word.

    Args:
        options: `generation_kwargs` as for TRL's configs.
        backend: `transformers`, `vllm` (in process) or `vllm-server`.

    Raises:
        ParameterError: names the option and the right or nearest name.
    """
    import difflib

    known = _known_options(backend)
    other = _FOREIGN if backend != "transformers" else {theirs: ours for ours, theirs in _FOREIGN.items()}
    for name in options:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = other.get(name) or (near[0] if near else None)
        raise ParameterError(
            f"generation_kwargs {name!r}: unknown to {backend}" + (f"; did you mean {hint!r}?" if hint else "")
        )


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


def check_tokenizers(train, engine, spec: StopSpec) -> None:
    """Refuse an engine whose tokenizer differs from the trainer's where it matters (claims A1.2, A1.6).

    vLLM loads tokenizer and generation config from disk; a token added in memory is unknown to it.

    Args:
        train: the trainer's tokenizer.
        engine: the engine's tokenizer.
        spec: the stops, whose encodings have to agree.

    Raises:
        ParameterError: names the tokens, and the call that mends it.
    """
    remedy = "save both to one folder with save_policy(model, tokenizer, folder) and start the engine from it"
    ours, theirs = train.get_vocab(), engine.get_vocab()
    if missing := sorted((t for t in ours if theirs.get(t) != ours[t]), key=ours.get):
        shown = ", ".join(f"{t!r} (id {ours[t]}, engine {theirs.get(t)})" for t in missing[:5])
        raise ParameterError(f"the engine's tokenizer differs in {len(missing)} tokens: {shown}; {remedy}")
    for string in spec.strings:
        pair = [t.encode(string, add_special_tokens=False) for t in (train, engine)]
        if pair[0] != pair[1]:
            raise ParameterError(f"stop {string!r} is {pair[0]} to the trainer and {pair[1]} to the engine; {remedy}")


def save_policy(model, tokenizer, folder: Path, new_tokens: Iterable[str] = ()) -> Path:
    """Save model, tokenizer and generation config to one folder, so that trainer and engine agree.

    Args:
        model: its embeddings are resized when the tokenizer has outgrown them.
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
