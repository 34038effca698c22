import dataclasses
import functools
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import need
from generation_cases import tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from workbench.errors import ParameterError
from workbench.generation.stops import End, StopRule, StopSpec


def ids_of(text):
    return tokenizer().encode(text, add_special_tokens=False)


def rule(*strings, **fields):
    return StopRule(StopSpec(**{"stop": strings} | fields), tokenizer())


def test_without_custom_stops_a_row_ends_at_eos_and_keeps_it():
    eos = tokenizer().eos_token_id
    pad = tokenizer().pad_token_id
    assert rule().find_end([5, 6, eos, pad, pad]) == End(3, eos, "stop")
    assert rule().find_end([5, 6, 7]) == End(3, None, "length")
    assert rule().find_end([]) == End(0, None, "length")


def test_every_eos_of_the_generation_config_counts():
    config = GenerationConfig(eos_token_id=[tokenizer().eos_token_id, 40])
    assert StopRule(StopSpec(), tokenizer(), config).find_end([5, 40, 6]) == End(2, 40, "stop")
    assert rule().find_end([5, 40, 6]).finish_reason == "length"


@pytest.mark.parametrize(
    "text, strings, stop",
    [
        ("topic</search>", ("</search>", "</sea"), "</sea"),  # complete first, though a prefix of the other
        ("topic</search>", ("</sea", "</search>"), "</sea"),
        ("see 🙂 and 日本", ("🙂",), "🙂"),
        ("a<|tool|>b", ("<|tool|>",), "<|tool|>"),  # special tokens are text for stop strings
        (" Return <search>topic</search>", ("turn",), "turn"),  # within a token, which is kept whole
    ],
)
def test_the_first_complete_string_ends_the_row_with_its_token(text, strings, stop):
    ids = ids_of(text)
    end = rule(*strings).find_end(ids)
    assert end.stop == stop and stop in tokenizer().decode(ids[: end.index])
    assert stop not in tokenizer().decode(ids[: end.index - 1])


def test_stops_within_the_minimum_do_not_count():
    eos = tokenizer().eos_token_id
    assert rule(min_tokens=3).find_end([eos, 5, 6, 7, eos, 8]) == End(5, eos, "stop")
    ids = ids_of("done. done. done.")
    late = rule("done", min_tokens=3).find_end(ids)
    assert late.index > 3 and late.stop == "done"


def test_legacy_mode_never_stops():
    legacy = StopRule(StopSpec.never(), tokenizer())
    assert legacy.find_end([tokenizer().eos_token_id] * 4) == End(4, None, "length")
    assert legacy.for_transformers(3)["eos_token_id"] is None
    assert legacy.for_vllm() == {"ignore_eos": True}


STRINGS = ["</search>", "</s", "earch>t", "é", "本", "🙂 d", "<|tool|>", "<call>", ". "]


@settings(max_examples=300)
@given(
    ids=st.lists(st.integers(0, len(tokenizer()) - 1), max_size=25),
    text=st.lists(st.sampled_from([*STRINGS, " a", "topic"]), max_size=5),
    cut=st.integers(0, 30),
    strings=st.lists(st.sampled_from(STRINGS), unique=True, max_size=3),
    token_ids=st.lists(st.integers(2, len(tokenizer()) - 1), unique=True, max_size=2),
    min_tokens=st.integers(0, 4),
)
def test_find_agrees_with_decoding_every_prefix(ids, text, cut, strings, token_ids, min_tokens):
    row = (ids[:cut] + ids_of("".join(text)) + ids[cut:])[:40]
    spec = StopSpec(stop=strings, stop_token_ids=token_ids, min_tokens=min_tokens)
    end = StopRule(spec, tokenizer()).find_end(row)
    assert (end.index, end.finish_reason) == by_decoding_every_prefix(spec, row)


def by_decoding_every_prefix(spec, row):
    decode = functools.partial(tokenizer().decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    settled = len(decode(row[: spec.min_tokens]).rstrip("\ufffd"))  # bytes of a character in the making are no text yet
    for n in range(spec.min_tokens + 1, len(row) + 1):
        text = decode(row[:n])
        by_string = any(s in text[max(0, settled - len(s) + 1) :] for s in spec.stop)
        if by_string or row[n - 1] in (tokenizer().eos_token_id, *spec.stop_token_ids):
            return n, "stop"
    return len(row), "length"


@settings(max_examples=150)
@given(
    text=st.lists(st.sampled_from([*STRINGS, " a", "topic", "x"]), min_size=1, max_size=8),
    strings=st.lists(st.sampled_from(STRINGS), unique=True, min_size=1, max_size=3),
)
def test_the_check_at_each_sampling_step_stops_where_find_does(text, strings):
    row, stops = ids_of("".join(text)), rule(*strings)
    stepwise = next((n for n in range(1, len(row) + 1) if stops.last_end(row[:n]).stop is not None), None)
    end = stops.find_end(row)
    assert stepwise == (end.index if end.finish_reason == "stop" else None)


def test_the_criterion_for_generate_marks_only_rows_that_ended():
    stops = rule("topic")
    rows = [ids_of("ab topic"), ids_of("ab tables")]
    width = max(map(len, rows)) + 2
    batch = torch.tensor([[0] * (width - len(r)) + r for r in rows])
    criterion = stops.for_transformers(prompt_length=1)["stopping_criteria"][0]
    assert criterion(batch, None).tolist() == [True, False]


def test_generate_takes_what_a_caller_of_transformers_gives(starter_folder):
    model = AutoModelForCausalLM.from_pretrained(starter_folder)
    given = {"input_ids": torch.tensor([ids_of("a b")]), "max_new_tokens": 6, "do_sample": False}
    stops, seen = StopRule(StopSpec(stop=("</search>",), ignore_eos=True), tokenizer()), []

    def after_two(input_ids, scores, **_):
        seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] == given["input_ids"].shape[1] + 2)

    made = stops.generate(model, model.generate, model.generation_config, **given, stopping_criteria=[after_two])
    assert len(seen) == 2 and made.shape[1] == given["input_ids"].shape[1] + 2
    assert stops.generate(model, model.generate, model.generation_config, **given, pad_token_id=3).shape[1] > 2
    with pytest.raises(ParameterError, match="eos_token_id=5: the rule's spec decides where rows end"):
        stops.generate(model, model.generate, model.generation_config, **given, eos_token_id=5)


def test_texts_keep_or_drop_the_marker_and_never_show_eos():
    eos, tool = tokenizer().eos_token_id, tokenizer().convert_tokens_to_ids("<|tool|>")
    dropped = {"include_stop_str_in_output": False}
    cases = [
        (rule("</search>"), ids_of("a</search> b"), "a</search>"),
        (rule("</search>", **dropped), ids_of("a</search> b"), "a"),
        (rule(stop_token_ids=(tool,)), ids_of("a<|tool|>b"), "a<|tool|>"),
        (rule(stop_token_ids=(tool,), **dropped), ids_of("a<|tool|>b"), "a"),
        (rule(), [*ids_of("a<|tool|>b"), eos, eos], "ab"),
        (rule(tokenizer().eos_token[-1], **dropped), [*ids_of("a b"), eos], "a b"),  # within the EOS's text
        (rule("</search>", tokenizer().eos_token), [*ids_of("a b"), eos], "a b"),
        (rule("</search>", tokenizer().eos_token, **dropped), [*ids_of("a b"), eos], "a b"),
    ]
    for stops, ids, text in cases:
        assert stops.text(ids, stops.find_end(ids)) == text


@pytest.mark.parametrize("stop", [{"stop": (">",)}, {"stop_token_ids": (ids_of(">")[-1],)}])
def test_a_hidden_stop_is_hidden_before_pads_too(stop):
    """A rollout function may leave them in its rows; of a stop id a pad was left out in its place."""
    stops = rule(**stop, include_stop_str_in_output=False)
    row = ids_of("ab>")
    padded = [*row, *[tokenizer().pad_token_id] * 2]
    end = dataclasses.replace(stops.last_end(row), index=len(padded))
    assert stops.text(padded, end) == stops.text(row, stops.find_end(row)) == "ab"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ("",)}, "'': expected strings that are not empty"),
        ({"stop": 13}, "13: expected strings that are not empty; ids go to stop_token_ids="),
        ({"stop": ("a", 13)}, "13: expected strings that are not empty; ids go to stop_token_ids="),
        ({"stop_token_ids": ("</s>",)}, "'</s>': expected token ids from 0; strings go to stop="),
        ({"stop": ("a", "a")}, "given twice"),
        ({"stop_token_ids": (-1,)}, "-1: expected token ids from 0"),
        ({"stop_token_ids": (True,)}, "True: expected token ids"),
        ({"stop_token_ids": (3, 3)}, "given twice"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"min_tokens": "3"}, "min_tokens='3': expected an integer"),
        ({"min_tokens": 2.5}, "min_tokens=2.5: expected an integer"),
        ({"stop": b"ab"}, "b'ab' of type bytes: expected strings and token ids"),
        ({"stop_token_ids": 1.5}, "1.5 of type float: expected strings and token ids"),
    ],
)
def test_bad_specs_are_refused(fields, message):
    with pytest.raises(ParameterError, match=message):
        StopSpec(**fields)


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({"stop": ["a"], "include_stop_str_in_output": False}, StopSpec(stop=("a",), include_stop_str_in_output=False)),
        ({"stop_strings": "a", "min_new_tokens": 2}, StopSpec(stop=("a",), min_tokens=2)),
        ({"eos_token_id": [5, 6]}, StopSpec(stop_token_ids=(5, 6), ignore_eos=True)),
        ({"stop": None, "stop_token_ids": 5}, StopSpec(stop_token_ids=(5,))),
        (np.array([5, 6]), StopSpec(stop_token_ids=(5, 6))),
        (np.int64(5), StopSpec(stop_token_ids=(5,))),
        ({"stop": "a", "min_tokens": np.int64(2)}, StopSpec(stop=("a",), min_tokens=2)),
    ],
)
def test_stops_are_read_in_every_common_form(given, spec):
    assert StopSpec.of(given) == spec
    assert {type(i) for i in (*StopSpec.of(given).stop_token_ids, StopSpec.of(given).min_tokens)} == {int}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stops": ["a"]}, "stops: 'stops' does not end completions; expected stop$"),
        ({"temperature": 1}, "stops: 'temperature' does not end completions; expected stop or stop_token_ids"),
        ({"stop": "a", "stop_strings": "b"}, "stops: stop, stop_strings: two names of one option"),
        (b"</a>", "stops: b'</a>' of type bytes: expected strings and token ids"),
        ([b"</a>"], "stops: b'</a>': expected a StopSpec, or strings and token ids"),
        (1.5, "stops: 1.5 of type float: expected strings and token ids"),
        ([1.5], "stops: 1.5: expected a StopSpec, or strings and token ids"),
    ],
)
def test_stops_of_other_forms_are_refused_with_what_is_expected(given, message):
    with pytest.raises(ParameterError, match=f"^{message}"):
        StopSpec.of(given)


def test_an_eos_id_among_the_stop_ids_changes_nothing():
    eos, tool = tokenizer().eos_token_id, tokenizer().convert_tokens_to_ids("<|tool|>")
    same = StopRule(StopSpec(stop_token_ids=(eos, tool)), tokenizer())
    assert same.stop_ids == rule(stop_token_ids=(tool,)).stop_ids == (eos, tool)
    assert same.text([*ids_of("a"), eos], End(2, eos, "stop")) == "a"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop_token_ids": (99_999,)}, "outside the vocabulary"),
        ({"stop_token_ids": (0,)}, "pad token"),
        ({"min_tokens": 8}, "within 8 tokens"),
    ],
)
def test_stops_that_do_not_fit_the_tokenizer_are_refused(fields, message):
    with pytest.raises(ParameterError, match=message):
        StopRule(StopSpec(**fields), tokenizer(), max_tokens=8)


def test_a_string_the_tokenizer_cannot_produce_is_refused():
    core = Tokenizer(models.WordLevel({"stop": 0, "<unk>": 1, "</s>": 2}, unk_token="<unk>"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    lower = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")
    with pytest.raises(ParameterError, match="can never match"):
        StopRule(StopSpec(stop=("STOP",)), lower)


# --- ends and find say the same, whatever the tokenizer ---------------------------------------------------------------


def sentencepiece_like():
    """Pieces with a leading mark for blanks and bytes for what has no piece, as Llama-2's and Gemma's tokenizers decode."""
    pieces = ["<unk>", "<eos>", *(f"<0x{n:02X}>" for n in range(256))]
    pieces += ["▁", "▁END", "END", "▁a", "b", ">", "▁>>", "é", "\n"]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    core = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", unk_token="<unk>")


def wordpiece():
    words = ["[UNK]", "[SEP]", "a", "end", "##ing", "##s", ">", "the", "##>"]
    core = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="[SEP]", unk_token="[UNK]")


def byte_level():
    words = ["END", " END", ">>", ">>>", "\n\n", "\n\n\n", "日本", "é"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": 300, "special_tokens": ["<eos>"], "show_progress": False}
    core.train_from_iterator([" ".join(words)] * 20, trainers.BpeTrainer(initial_alphabet=alphabet, **options))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")


TOKENIZERS = {
    "byte-level BPE": (byte_level(), ["END", " END", ">>", "\n\n", "本", "é>"]),
    "SentencePiece, byte fallback": (sentencepiece_like(), ["END", " END", ">>", "é", "b é", "日"]),
    "WordPiece": (wordpiece(), ["end", "ending", ">", "the end"]),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=300)
@given(data=st.data())
def test_ends_fires_first_where_find_ends(name, data):
    tokenizer, strings = TOKENIZERS[name]
    text_ids = tokenizer.encode("a END>> é 日本\n\n\n the ending", add_special_tokens=False)
    usual = sorted({*text_ids, *range(min(len(tokenizer), 12))})
    ids = data.draw(st.lists(st.sampled_from(usual) | st.integers(0, len(tokenizer) - 1), max_size=14))
    chosen = data.draw(st.lists(st.sampled_from(strings), unique=True, max_size=3))
    stop_ids = data.draw(st.lists(st.integers(2, len(tokenizer) - 1), unique=True, max_size=2))
    least = data.draw(st.integers(0, 4))
    rule = StopRule(StopSpec(tuple(chosen), tuple(stop_ids), min_tokens=least), tokenizer)
    end = rule.find_end(ids)
    fired = [n for n in range(1, len(ids) + 1) if rule.last_end(ids[:n]).stop is not None]
    assert fired[:1] == ([end.index] if end.stop is not None else [])
    assert rule.find_end(ids[: end.index]) == end


def tokens_until_vllm_stops(rule: StopRule, prompt: list[int], ids: list[int]) -> int | None:
    """After how many tokens of a row vLLM's own detokenizer finds a stop string."""
    need(find_spec("vllm"), "vLLM, whose own detokenizer it asks")
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

    request = SimpleNamespace(request_id="1", prompt_token_ids=prompt, prompt_embeds=None)
    request.sampling_params = SamplingParams(**rule.for_vllm())
    engine = FastIncrementalDetokenizer(rule.tokenizer, request)
    return next((n for n, i in enumerate(ids, 1) if engine.update([i], False) is not None), None)


@pytest.mark.slow
def test_a_stop_with_a_special_token_ends_a_row_on_vllm_too():
    spec, row = StopSpec(stop=("<|tool|>",), ignore_eos=True), ids_of("a <|tool|> b")
    end = StopRule(spec, tokenizer()).find_end(row)
    assert end.stop == "<|tool|>"
    assert tokens_until_vllm_stops(StopRule(spec, tokenizer()), ids_of("a"), row) == end.index


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_row_ends_where_vllm_s_own_detokenizer_ends_it(name):
    tokenizer, strings = TOKENIZERS[name]
    prompt = tokenizer.encode("a", add_special_tokens=False)
    text_ids = tokenizer.encode("a END>> é 日本\n\n\n the ending", add_special_tokens=False)

    @settings(max_examples=300)
    @given(
        ids=st.lists(st.sampled_from(text_ids) | st.sampled_from([*range(2, min(len(tokenizer), 12))]), max_size=14),
        chosen=st.lists(st.sampled_from(strings), unique=True, min_size=1, max_size=3),
        least=st.integers(0, 4),
    )
    def check(ids, chosen, least):
        rule = StopRule(StopSpec(tuple(chosen), ignore_eos=True, min_tokens=least), tokenizer)
        end = rule.find_end(ids)
        assert tokens_until_vllm_stops(rule, prompt, ids) == (end.index if end.stop is not None else None)

    check()


def test_a_row_starting_with_the_stops_blank_ends_as_on_vllm():
    tokenizer = TOKENIZERS["SentencePiece, byte fallback"][0]
    row = [tokenizer.convert_tokens_to_ids("▁END"), tokenizer.convert_tokens_to_ids("b")]
    rule = StopRule(StopSpec(stop=(" END",), include_stop_str_in_output=False), tokenizer)
    assert rule.find_end(row).index == 1 and rule.text(row, rule.find_end(row)) == ""


def test_a_stop_inside_a_longer_token_is_cut_whole():
    tokenizer = byte_level()
    tokenizer.add_tokens(["\n\n\n"])
    row = [*tokenizer.encode("END"), *tokenizer.encode("\n\n\n")]
    assert len(tokenizer.encode("\n\n\n")) == 1
    rule = StopRule(StopSpec(stop=("\n\n",), include_stop_str_in_output=False), tokenizer)
    assert rule.text(row, rule.find_end(row)) == "END"


def test_control_tokens_no_attribute_names_stay_out_of_the_text():
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<|python_tag|>", special=True)])  # as Llama-3 has them
    row = [*tokenizer.encode("END"), tokenizer.convert_tokens_to_ids("<|python_tag|>"), *tokenizer.encode(">>")]
    assert tokenizer.convert_tokens_to_ids("<|python_tag|>") not in tokenizer.all_special_ids
    rule = StopRule(StopSpec(stop=(">>",)), tokenizer)
    assert rule.text(row, rule.find_end(row)) == "END>>" == tokenizer.decode(row, skip_special_tokens=True)


def test_a_second_call_in_one_row_ends_it_too():
    tokenizer = TOKENIZERS["byte-level BPE"][0]
    rule = StopRule(StopSpec(stop=(">>",)), tokenizer)
    turn = tokenizer.encode("a >>")
    assert rule.last_end(turn).stop == rule.last_end([*turn, *tokenizer.encode(" 42 "), *turn]).stop is not None


def test_ids_of_a_vocabulary_with_gaps_are_inside_it():
    core = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2, "c": 7}))
    spaced = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")
    assert StopRule(StopSpec(stop_token_ids=(7,)), spaced).find_end([1, 7, 2]) == End(2, 7, "stop")
    with pytest.raises(ParameterError, match="stop token id 8: outside the vocabulary"):
        StopRule(StopSpec(stop_token_ids=(8,)), spaced)


@pytest.mark.parametrize("as_row", [torch.tensor, np.array])
def test_rows_of_tensors_and_arrays_end_where_lists_do(as_row):
    eos, (other, *_) = tokenizer().eos_token_id, ids_of("b")
    by_id = rule(stop_token_ids=(other,), include_stop_str_in_output=False)
    for each, ids in ((rule(), [5, eos, 7]), (by_id, [*ids_of("a"), other, 7])):
        end = each.find_end(ids)
        assert each.find_end(as_row(ids)) == end and end.finish_reason == "stop"
        assert each.last_end(as_row(ids[: end.index])) == each.last_end(ids[: end.index]) == end
        assert each.text(as_row(ids), end) == each.text(ids, end)


def test_what_is_no_stop_is_refused_by_its_name():
    with pytest.raises(ParameterError, match=r"StopSpec stop: \['a'\]: expected strings"):
        StopSpec(stop=[["a"]])
    with pytest.raises(ParameterError, match="min_tokens=True: expected an integer"):
        StopSpec(min_tokens=True)
