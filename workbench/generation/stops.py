"""When a completion ends: `StopSpec` says it once, `StopRule` finds the end in a row of ids and sets up each back end.

TRL has no such description: it compares the last token with EOS ids (up to 1.14 with the tokenizer's alone), so whatever
stopped at anything else counts as truncated. Here one pure function from token ids to the end of the row serves every trainer
and every back end.
"""

import copy
import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from ..errors import ParameterError

# transformers' name of an option -> the one of vLLM and of `StopSpec`.
OTHER_NAMES = {"stop_strings": "stop", "eos_token_id": "stop_token_ids", "min_new_tokens": "min_tokens"}


def _listed(name: str, value: Any) -> tuple:
    """One stop or several as a tuple, with Python's own integers."""
    value = (value,) if isinstance(value, str | Integral) else value
    if isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise ParameterError(
            f"{name}: {value!r} of type {type(value).__name__}: expected strings and token ids, e.g. ['</answer>', 13]"
        )
    return tuple(int(one) if isinstance(one, Integral) and not isinstance(one, bool) else one for one in value)


@dataclasses.dataclass(frozen=True)
class StopSpec:
    """When completions end, under vLLM's names. `StopSpec()` stops at every EOS of tokenizer and generation config.

    Attributes:
        stop: stop strings, found in the decoded text wherever tokens split them; special tokens count as text.
        stop_token_ids: further ids that end a completion.
        include_stop_str_in_output: whether the completion's text, as reward functions see it, keeps the string, with all of its
            last token, or the id that ended it; never EOS. The ids always keep it. Default: True here, False in vLLM.
        ignore_eos: True if an EOS ends no completion. Without other stops each one runs to the length limit, see `never`.
        min_tokens: a stop counts only after more than this many tokens. Before that the sampler gives stop ids probability 0,
            and the trainer does not. On vLLM TRL corrects for this (`sampling/importance_sampling_ratio/*` fall below 1).

    Raises:
        ParameterError: an empty string, a negative id, a stop that is given twice, or `min_tokens` that is no integer from 0.

    Example:
        >>> StopSpec(stop=("</search>",), include_stop_str_in_output=False).custom
        True
        >>> StopSpec.of(["</answer>", 151645])
        StopSpec(stop=('</answer>',), stop_token_ids=(151645,), include_stop_str_in_output=True, ignore_eos=False, min_tokens=0)
        >>> StopSpec().custom, StopSpec.never().stops_never
        (False, True)
    """

    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = True
    ignore_eos: bool = False
    min_tokens: int = 0

    def __post_init__(self):
        for name, kind, expected, other in (
            ("stop", str, "strings that are not empty", "ids go to stop_token_ids="),
            ("stop_token_ids", int, "token ids from 0", "strings go to stop="),
        ):
            value = _listed(f"StopSpec {name}", getattr(self, name))
            object.__setattr__(self, name, value)
            for one in value:
                if type(one) is not kind or one == "" or (isinstance(one, int) and one < 0):
                    hint = f"; {other}" if type(one) in {str, int} - {kind} else ""
                    raise ParameterError(f"StopSpec {name}: {one!r}: expected {expected}{hint}")
            if len(set(value)) < len(value):
                raise ParameterError(f"StopSpec {name}={value!r}: a stop is given twice; give each once")
        if not isinstance(self.min_tokens, Integral) or self.min_tokens is True or self.min_tokens < 0:
            raise ParameterError(f"StopSpec min_tokens={self.min_tokens!r}: expected an integer of at least 0")
        object.__setattr__(self, "min_tokens", int(self.min_tokens))  # transformers and JSON take no other integer

    @classmethod
    def of(cls, stops: "Stops") -> "StopSpec":
        """Make a spec of what trainers take: a spec, None for every EOS, or strings and ids in addition to every EOS.

        A mapping is read as `generation_kwargs` of vLLM or transformers, whose `eos_token_id` stands in place of every EOS.
        """
        if isinstance(stops, StopSpec):
            return stops
        if isinstance(stops, Mapping):
            return cls._of_options({name: value for name, value in stops.items() if value is not None})
        given = () if stops is None else _listed("stops", stops)
        if wrong := [one for one in given if isinstance(one, bool) or not isinstance(one, str | int)]:
            raise ParameterError(
                f"stops: {wrong[0]!r}: expected a StopSpec, or strings and token ids, e.g. ['</answer>', 13]"
            )
        return cls(tuple(s for s in given if isinstance(s, str)), tuple(i for i in given if isinstance(i, int)))

    @classmethod
    def _of_options(cls, options: Mapping) -> "StopSpec":
        known = {field.name: field.name for field in dataclasses.fields(cls)} | OTHER_NAMES
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1) or known
                raise ParameterError(f"stops: {name!r} does not end completions; expected {' or '.join(near)}")
        fields = {known[name]: value for name, value in options.items()}
        if len(fields) < len(options):
            raise ParameterError(f"stops: {', '.join(options)}: two names of one option; give one of them")
        return cls(**({"ignore_eos": True} if "eos_token_id" in options else {}) | fields)

    @classmethod
    def never(cls) -> "StopSpec":
        """Make a spec without stops: completions run to the length limit, as in PPO before TRL 0.14. It is no default."""
        return cls(ignore_eos=True)

    @property
    def stops_never(self) -> bool:
        """Whether every row runs to the length limit."""
        return self.ignore_eos and not self.stop and not self.stop_token_ids

    @property
    def custom(self) -> bool:
        """Whether this differs from stopping at EOS."""
        return self != StopSpec()


Stops = StopSpec | Mapping | Sequence[str | int] | str | int | None  # what trainers take


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
    """Applies a `StopSpec` with one tokenizer: finds where completions end, cuts their text, and makes back ends stop there.

    Args:
        spec: what to stop at.
        tokenizer: of the trainer.
        generation_config: the model's; its EOS ids count in addition to the tokenizer's.
        max_tokens: length limit; `min_tokens` has to be below it.

    Raises:
        ParameterError: an id outside the vocabulary, the pad token as a stop, a string that this tokenizer cannot produce,
            `min_tokens` that reach the limit, or a spec that needs an EOS id where there is none.
    """

    def __init__(self, spec: StopSpec, tokenizer: Any, generation_config: Any = None, max_tokens: int | None = None):
        self.spec, self.tokenizer = spec, tokenizer
        configured = getattr(generation_config, "eos_token_id", None)
        configured = configured if isinstance(configured, list | tuple) else [configured]
        self.eos_ids = tuple(dict.fromkeys(i for i in (tokenizer.eos_token_id, *configured) if i is not None))
        # Decoders drop the blank that a row begins with; behind other text it stays, as it does on vLLM.
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._hidden_before = len(self._plain(self._before))
        self._check(max_tokens)
        own = tuple(i for i in spec.stop_token_ids if spec.ignore_eos or i not in self.eos_ids)
        self.stop_ids = (() if spec.ignore_eos else (*self.eos_ids,)) + own
        self._stop_id_set = frozenset(self.stop_ids)
        # A string of n characters spans at most 4 n bytes and so at most 4 n tokens; one more for a split character.
        self._tail = 4 * max(map(len, spec.stop), default=0) + 4
        self._completing: dict[int, bool] = {}
        decoder = tokenizer.added_tokens_decoder  # a method of Mistral's tokenizer, which takes no further tokens
        added = [i for i, token in decoder.items() if token.special] if isinstance(decoder, Mapping) else []
        special = {*tokenizer.all_special_ids, *added}
        # EOS given as a string is EOS: reward functions do not see it.
        shown = {i: [s for s in spec.stop if tokenizer.decode([i]) in s] for i in special}
        in_strings = {i for i, found in shown.items() if found}
        in_strings -= {i for i in self.eos_ids if shown.get(i) == [tokenizer.decode([i])]}
        self._hidden = special - in_strings - set(own)

    def _plain(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._plain([*self._before, *ids])[self._hidden_before :]

    def _check(self, max_tokens: int | None) -> None:
        spec, size = self.spec, len(self.tokenizer)
        if not spec.ignore_eos and not self.eos_ids:
            raise ParameterError(
                "StopSpec: neither tokenizer nor generation config has an EOS id; set one, or ignore_eos=True"
            )
        for token_id in spec.stop_token_ids:
            if token_id >= size and token_id > max(self.tokenizer.get_vocab().values()):  # ids may have gaps
                raise ParameterError(f"stop token id {token_id}: outside the vocabulary of {size} tokens")
            if token_id == self.tokenizer.pad_token_id and token_id not in self.eos_ids:
                raise ParameterError(f"stop token id {token_id}: this is the pad token, which a policy does not sample")
        for string in spec.stop:
            if string not in self._decode(self.tokenizer.encode(string, add_special_tokens=False)):
                raise ParameterError(f"stop string {string!r}: this tokenizer cannot produce it, so it can never match")
        if max_tokens is not None and spec.min_tokens >= max_tokens:
            raise ParameterError(f"min_tokens={spec.min_tokens}: no stop can match within {max_tokens} tokens")

    def find_end(self, ids: Sequence[int]) -> End:
        """Find the first place where a stop is complete. Only the ids decide, so the end is the same on every back end.

        Args:
            ids: T completion ids of a row; whatever follows the end (pads, more text) is ignored.

        Returns:
            The end with the fewest tokens. When a string and an id complete at one token, or several strings do, the
            string that ends first in the text is named, then the one given first.

        Example:
            >>> from tokenizers import Tokenizer, models
            >>> from transformers import PreTrainedTokenizerFast
            >>> core = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2, "c": 3}))
            >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")
            >>> rule = StopRule(StopSpec(stop=("b",)), tokenizer)
            >>> rule.find_end([1, 2, 3])
            End(index=2, stop='b', finish_reason='stop')
            >>> rule.find_end([1, 3, 0, 2])
            End(index=3, stop=0, finish_reason='stop')
            >>> rule.find_end([1, 3])
            End(index=2, stop=None, finish_reason='length')
        """
        ids = list(map(int, ids))  # tensors equal no stop in a set
        for n in range(self.spec.min_tokens + 1, len(ids) + 1):
            if (stop := self._stop_completed_at(ids, n)) is not None:
                return End(n, stop, "stop")
        return End(len(ids), None, "length")

    def _stop_completed_at(self, ids: Sequence[int], n: int) -> int | str | None:
        """The stop that the n-th token of a row completes."""
        if self.spec.stop and (string := self._string_completed_at(ids, n)) is not None:
            return string
        return ids[n - 1] if ids[n - 1] in self._stop_id_set else None

    def _string_completed_at(self, ids: Sequence[int], n: int) -> str | None:
        """The stop string that the n-th token of a row completes; of several the one that ends first."""
        if not self._may_complete(ids[n - 1]):
            return None
        tail = ids[max(0, n - self._tail) : n]
        settled = len(self._decode(tail[:-1]).rstrip("\ufffd"))  # bytes of a character in the making are no text yet
        text = self._decode(tail)
        starts = {s: text.find(s, max(0, settled - len(s) + 1)) for s in self.spec.stop}
        offsets = {s: start + len(s) for s, start in starts.items() if start >= 0}
        return min(offsets, key=offsets.__getitem__, default=None)

    def _may_complete(self, token_id: int) -> bool:
        """Say whether a stop string may end within a token, by the token's own text; computed once for each token."""
        if token_id not in self._completing:
            text = self._decode([token_id])
            begins = {text[:n] for n in range(1, len(text) + 1)}
            completes = any(s in text or any(map(s.endswith, begins)) for s in self.spec.stop)
            self._completing[token_id] = completes or not text or "\ufffd" in text
        return self._completing[token_id]

    def last_end(self, ids: Sequence[int], tokens: int | None = None) -> End:
        """Find out from the last token whether a row stopped there: for one that is cut, that grows, or of several turns.

        Args:
            ids: T completion ids of a row, or the last of them: only the tail is read, so it serves at every sampling step.
            tokens: of the row, where `ids` are only its last.
        """
        enough = (len(ids) if tokens is None else tokens) > self.spec.min_tokens
        last = list(map(int, ids[-self._tail :]))
        stop = self._stop_completed_at(last, len(last)) if enough else None
        return End(len(ids), stop, "length" if stop is None else "stop")

    def text(self, ids: Sequence[int], end: End) -> str:
        """The completion's text as reward functions see it, with its stop if `include_stop_str_in_output`.

        EOS and other special tokens are left out, as in TRL, except those that are stops themselves.
        """
        kept = list(map(int, ids[: end.index]))
        if isinstance(end.stop, int) and (end.stop in self.eos_ids or not self.spec.include_stop_str_in_output):
            kept = kept[: -1 - kept[::-1].index(end.stop)]  # behind it a rollout function may have left pads
        shown = [i for i in kept if i not in self._hidden]
        text = self._plain(shown)
        if isinstance(end.stop, str) and not self.spec.include_stop_str_in_output:
            whole, settled = self._decode(shown), len(self._decode(shown[:-1]).rstrip("\ufffd"))
            at = whole.find(end.stop, max(0, settled - len(end.stop) + 1))
            blank = len(whole) - len(text)  # which the stop may begin with
            text = text if at < 0 else text[: max(0, at - blank)]  # below 0 it stands in an EOS, which is not shown
        return text

    def for_transformers(self, prompt_length: int) -> dict:
        """Options for `model.generate`. With `ignore_eos` call the method `generate`: it turns off the model's own EOS, too.

        Args:
            prompt_length: columns of the prompt in `input_ids`.
        """
        options = {"eos_token_id": list(self.stop_ids) or None, "pad_token_id": self.tokenizer.pad_token_id}
        if self.spec.min_tokens:
            options["min_new_tokens"] = self.spec.min_tokens
        if self.spec.stop:
            options["stopping_criteria"] = [functools.partial(self._stopping_criterion, prompt_length)]
        return options

    def generate(self, model: Any, generate: Callable, generation_config: Any, **inputs: Any):
        """Call a model's `generate` so that it obeys this rule, and return its output.

        Args:
            model: holds the generation config that `generate` fills unset fields from, EOS included.
            generate: `model.generate`.
            generation_config: of the caller; not changed.
            **inputs: `input_ids` and further arguments; those that a generation config has go there.

        Raises:
            ParameterError: an `eos_token_id` among them, which this rule has of its own.
        """
        if "eos_token_id" in inputs:
            raise ParameterError(
                f"eos_token_id={inputs['eos_token_id']}: the rule's spec decides where rows end; give "
                "StopSpec(stop_token_ids=...)"
            )
        options = self.for_transformers(inputs["input_ids"].shape[1])
        if (options["pad_token_id"] or 0) >= model.get_input_embeddings().weight.shape[0]:
            options["pad_token_id"] = 0  # behind an end any token of the table does
        own = options.pop("stopping_criteria", ())
        if own:  # a `generate` of one's own may take none
            inputs["stopping_criteria"] = [*(inputs.get("stopping_criteria") or ()), *own]
        config = copy.deepcopy(generation_config)
        config.update(**options | {name: inputs.pop(name) for name in list(inputs) if hasattr(config, name)})
        inherited = model.generation_config
        before, inherited.eos_token_id = inherited.eos_token_id, options["eos_token_id"]
        try:
            return generate(**inputs, generation_config=config)
        finally:
            inherited.eos_token_id = before

    def _stopping_criterion(self, prompt_length: int, input_ids, scores: Any, **_):
        """A stopping criterion: transformers' own `stop_strings` misses strings in partial bytes and special tokens."""
        tokens = input_ids.shape[1] - prompt_length
        rows = input_ids[:, max(prompt_length, input_ids.shape[1] - self._tail) :].tolist()
        return input_ids.new_tensor([self.last_end(row, tokens).finish_reason == "stop" for row in rows], dtype=bool)

    def for_vllm(self) -> dict:
        """Options for vLLM: fields of `SamplingParams` in process, or of a completion request to a server.

        Every EOS id is passed, because vLLM knows only those in the model's folder. Special tokens stay in the text in
        which vLLM looks for stop strings; by default it drops them, and a stop string with one never matches.
        """
        options: dict = {"stop_token_ids": list(self.stop_ids), "stop": list(self.spec.stop)}
        options |= {"ignore_eos": self.spec.ignore_eos, "min_tokens": self.spec.min_tokens}
        options = {name: value for name, value in options.items() if value}
        if self.spec.stop:
            options |= {"include_stop_str_in_output": True, "skip_special_tokens": False}
        return options


def tokenizer_in(processing_class: Any) -> Any:
    """A processor's tokenizer, or the tokenizer itself. Mistral's has a `tokenizer` too, which is none of transformers'."""
    from transformers import ProcessorMixin

    return processing_class.tokenizer if isinstance(processing_class, ProcessorMixin) else processing_class
