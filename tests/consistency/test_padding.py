import copy
import pickle
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from workbench.consistency.padding import check_batch, map_logits, pad_batch, token_logprobs
from workbench.consistency.padding_report import (
    BROKEN,
    CONTROL,
    EXACT,
    NEAR_WINDOW,
    NEEDS_POSITIONS,
    ROUNDING,
    TOLERANCE,
    UNUSED,
    padding_report,
)
from workbench.consistency.positions import (
    backbone,
    derives_positions,
    fills_position_ids,
    position_ids,
    takes_position_ids,
    with_position_ids,
)
from workbench.errors import ParameterError
from workbench.toys.families import FAMILIES, VOCAB
from workbench.toys.families import family_model as tiny
from workbench.toys.families import random_texts as some_texts

VERDICTS = dict.fromkeys(FAMILIES, ROUNDING)
VERDICTS |= dict.fromkeys(["gpt2", "gpt_neo", "gpt_bigcode"], NEEDS_POSITIONS)
VERDICTS |= dict.fromkeys(["llama, dynamic NTK", "phi3, longrope"], NEAR_WINDOW)
VERDICTS |= dict.fromkeys(["bloom", "mpt", "falcon, alibi"], UNUSED)
# Largest |difference of a log-prob| in fp32: (without position ids at least, at most; with them at most).
BOUNDS = {ROUNDING: (0, 1e-5), NEEDS_POSITIONS: (0.5, 99), NEAR_WINDOW: (1e-2, 99), UNUSED: (0, 1e-5)}

TEXTS = some_texts(24, 17, 9)


def by_hand(model, ids: list[int]) -> torch.Tensor:
    """Log-probs of a text, alone and unpadded, by the plain forward pass."""
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return logprobs[:-1].gather(-1, torch.tensor(ids[1:]).unsqueeze(-1)).squeeze(-1)


def furthest(rows, others) -> float:
    return max((a - b).abs().max().item() for a, b in zip(rows, others, strict=True))


# --- batches -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=7), min_size=1, max_size=5),
    st.sampled_from(["left", "right"]),
    st.integers(0, 3),
)
def test_padding_keeps_every_token_in_its_place_of_its_text(sequences, side, extra):
    width = max(map(len, sequences)) + extra
    batch = pad_batch(sequences, pad_id=7, side=side, width=width)
    ids, mask = check_batch(batch)
    assert ids.shape == (len(sequences), width)
    places = position_ids(mask)
    for n, sequence in enumerate(sequences):
        real = mask[n].bool()
        assert ids[n][real].tolist() == sequence and (ids[n][~real] == 7).all()
        assert places[n][real].tolist() == list(range(len(sequence)))
        assert mask[n, -1 if side == "left" else 0] == 1


def test_left_pads_get_position_0_where_the_plain_formula_leaves_minus_1():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0]]
    assert (mask.cumsum(-1) - 1)[0, 0] == -1


def test_pads_before_and_after_the_text_are_no_hole():
    mask = torch.tensor([[0, 1, 1, 0]])
    assert check_batch({"input_ids": mask, "attention_mask": mask})[1] is mask
    assert position_ids(mask).tolist() == [[0, 0, 1, 0]]


def _ids(*shape, device="cpu"):
    return torch.ones(shape, dtype=torch.long, device=device)


@pytest.mark.parametrize(
    "broken, message",
    [
        ({"input_ids": _ids(0, 3), "attention_mask": _ids(0, 3)}, r"input_ids has shape \(0, 3\)"),
        ({"input_ids": _ids(2, 0), "attention_mask": _ids(2, 0)}, r"at least one of each"),
        ({"input_ids": _ids(3), "attention_mask": _ids(3)}, r"expected \(rows, tokens\)"),
        ({"input_ids": _ids(2, 3), "attention_mask": _ids(2, 4)}, r"shape \(2, 4\), input_ids \(2, 3\)"),
        ({"input_ids": _ids(2, 3)}, "a tensor `attention_mask`"),
        ({"input_ids": _ids(1, 2), "attention_mask": torch.tensor([[0, 2]])}, "values other than 0 and 1"),
        ({"input_ids": _ids(2, 2), "attention_mask": torch.tensor([[1, 1], [0, 0]])}, r"rows \[1\] are pads only"),
        ({"input_ids": _ids(1, 3), "attention_mask": torch.tensor([[1, 0, 1]])}, r"rows \[0\] have a hole"),
        ({"input_ids": _ids(1, 2), "attention_mask": _ids(1, 2, device="meta")}, "is on meta, input_ids on cpu"),
    ],
)
def test_a_batch_that_cannot_be_scored_says_what_is_wrong_with_it(broken, message):
    with pytest.raises(ParameterError, match=message):
        token_logprobs(tiny("llama"), broken)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([], 0), "the batch is empty"),
        (([[1], []], 0), r"rows \[1\] hold no tokens"),
        (([[1]], 0, "both"), "side='both'"),
        (([[1]], None), "pad_id=None"),
        (([[1, 2]], 0, "left", 1), "width=1"),
    ],
)
def test_sequences_that_cannot_be_padded_say_why(arguments, message):
    with pytest.raises(ParameterError, match=message):
        pad_batch(*arguments)


# --- log-probs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_from_slices_are_those_of_the_plain_forward_pass(name):
    model = tiny(name)
    expected = [by_hand(model, text) for text in TEXTS]
    batch = pad_batch(TEXTS, 0, "left")
    for max_logits in (1, 3 * VOCAB * 7, 2**24):  # a position at a time, seven, all
        scored = token_logprobs(model, batch, max_logits=max_logits)
        assert [len(row) for row in scored] == [23, 16, 8]
        assert furthest(scored, expected) < 1e-5


def test_temperature_divides_the_logits():
    model, batch = tiny("gemma2"), pad_batch(TEXTS[:1], 0)
    with torch.no_grad():
        logprobs = (model(**batch).logits[0] / 0.7).log_softmax(-1)[:-1]
    expected = logprobs.gather(-1, batch["input_ids"][0, 1:, None]).squeeze(-1)
    assert furthest(token_logprobs(model, batch, temperature=0.7), [expected]) < 1e-5


def test_a_text_of_one_token_has_no_log_prob():
    assert [len(row) for row in token_logprobs(tiny("llama"), pad_batch([[5], [6]], 0))] == [0, 0]
    assert [len(row) for row in token_logprobs(tiny("llama"), pad_batch([[5], [6, 7]], 0))] == [0, 1]


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation inside makes."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


def test_logits_of_a_large_vocabulary_are_never_held_whole():
    vocabulary, rows, tokens = 32_000, 8, 512
    narrow = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = tiny("llama", vocab_size=vocabulary, intermediate_size=16, max_position_embeddings=tokens, **narrow)
    batch = {"input_ids": _ids(rows, tokens), "attention_mask": _ids(rows, tokens)}
    with Largest() as largest:
        token_logprobs(model, batch)
    assert largest.numel <= 2**24 < rows * tokens * vocabulary / 7
    with Largest() as largest, torch.no_grad():
        model(**{name: value[:2] for name, value in batch.items()})
    assert largest.numel == 2 * tokens * vocabulary  # the measure sees whole logits where there are some


def test_scoring_leaves_the_model_as_it_was():
    model = tiny("gpt2").train()
    model.transformer.h[1].eval()
    modes = [module.training for module in model.modules()]
    state, forward = torch.get_rng_state(), backbone(model).forward
    token_logprobs(model, pad_batch(TEXTS, 0))
    padding_report(model, None, TEXTS, dtypes=["float32", "bfloat16"], attentions=["eager"])
    assert [module.training for module in model.modules()] == modes
    assert "forward" not in vars(backbone(model)) and backbone(model).forward == forward
    assert torch.equal(torch.get_rng_state(), state) and model.config._attn_implementation == "sdpa"
    assert next(model.parameters()).dtype == torch.float32


def test_a_forward_that_somebody_wrapped_stays_wrapped():
    model = tiny("llama")
    body, calls = model.model, []
    plain = body.forward
    body.forward = wrapped = lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs)
    token_logprobs(model, pad_batch(TEXTS, 0), max_logits=1)
    assert body.forward is wrapped and calls == [1]  # one pass through the layers, whatever the slices


@pytest.mark.parametrize("auto", [AutoModel, AutoModelForSequenceClassification])
def test_a_model_without_logits_per_token_is_named(auto):
    with pytest.raises(ParameterError, match="gives no logits per token; load it with AutoModelForCausalLM"):
        token_logprobs(tiny("llama", auto), pad_batch(TEXTS, 0))


def test_a_model_whose_backbone_is_not_known_is_scored_too():
    class Bare(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.config = inner, inner.config

        def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=None):
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids)

    model, batch = tiny("gpt2"), pad_batch(TEXTS, 0)
    assert furthest(token_logprobs(Bare(model), batch, max_logits=1), token_logprobs(model, batch)) < 1e-5


def test_text_beyond_the_window_is_refused_and_pads_beyond_it_only_where_they_take_positions():
    model = tiny("gpt2", n_positions=20)
    with pytest.raises(ParameterError, match=r"uses 24 positions, the model's window has 20: shorten the text$"):
        token_logprobs(model, pad_batch(TEXTS, 0))
    batch = pad_batch(TEXTS[1:], 0, width=25)
    with pytest.raises(ParameterError, match=r"uses 25 positions.* or pass positions='explicit'"):
        token_logprobs(model, batch, "implicit")
    assert furthest(token_logprobs(model, batch), [by_hand(model, text) for text in TEXTS[1:]]) < 1e-5
    token_logprobs(tiny("llama, dynamic NTK"), pad_batch(some_texts(40), 0))  # made for text beyond its window


def test_batch_and_model_on_two_devices_are_refused():
    batch = pad_batch(TEXTS, 0)
    with pytest.raises(ParameterError, match="the batch is on cpu, the model on meta"):
        token_logprobs(tiny("llama").to("meta"), batch)


@pytest.mark.parametrize("options, message", [({"positions": "both"}, "positions='both'"), ({"temperature": 0}, "=0")])
def test_scoring_options_out_of_range_are_refused(options, message):
    with pytest.raises(ParameterError, match=message):
        token_logprobs(tiny("llama"), pad_batch(TEXTS, 0), **options)


def test_virtual_tokens_are_refused():
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(tiny("gpt2"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ParameterError, match="turns 24 tokens into 27"):
        token_logprobs(model, pad_batch(TEXTS, 0), "implicit")


# --- the report ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_gets_its_verdict(name, record_property):
    verdict = VERDICTS[name]
    report = padding_report(tiny(name), None, TEXTS, dtypes=["float32"])
    implicit, explicit = report.worst(positions="implicit"), report.worst(positions="explicit")
    record_property("without position ids", implicit)
    record_property("with position ids", explicit)
    assert report.kind == verdict, report.verdict
    low, high = BOUNDS[verdict]
    assert low <= implicit <= high
    if name in ("bloom", "mpt"):
        assert explicit != explicit  # NaN: no such rows
    else:
        assert explicit < 1e-5
    right = report.worst(side="right", positions="implicit")
    assert (right > 1e-2) if verdict == NEAR_WINDOW else (right < 1e-5)


def test_the_verdict_tells_why_position_ids_are_not_used():
    reasons = {
        name: padding_report(tiny(name), None, TEXTS, dtypes=["float32"]).reason for name in ("bloom", "falcon, alibi")
    }
    assert "swallows them in **kwargs" in reasons["bloom"]
    assert "takes them and ignores them" in reasons["falcon, alibi"]


def test_a_model_that_looks_at_pads_is_wrong_even_with_position_ids():
    model = tiny("llama")
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | {"attention_mask": torch.ones_like(kwargs["attention_mask"])}),
        with_kwargs=True,
    )
    report = padding_report(model, None, TEXTS, dtypes=["float32"])
    assert report.kind == BROKEN and report.worst(positions="explicit") > 0.1


def test_a_text_that_passes_the_window_changes_its_neighbours_even_with_position_ids():
    report = padding_report(tiny("phi3, longrope"), None, some_texts(40, 17, 9), dtypes=["float32"])
    assert report.kind == NEAR_WINDOW and "batch texts by length" in report.reason
    assert report.worst(positions="explicit", batch=3) > 1e-2
    assert report.worst(positions="explicit", batch=1) < 1e-5


def test_dynamic_ntk_remembers_a_longer_text_and_the_report_does_not_let_it():
    model, (long, between) = tiny("llama, dynamic NTK"), some_texts(60, 40)
    fresh = by_hand(model, between)
    by_hand(model, long)
    assert (by_hand(model, between) - fresh).abs().max() > 1e-2  # the same call, another answer
    report = padding_report(tiny("llama, dynamic NTK"), None, [between, long], dtypes=["float32"])
    assert report.worst(layout=CONTROL) < 1e-5


def test_the_control_sees_what_the_batch_size_alone_does_and_the_verdict_reckons_with_it():
    model = tiny("llama")
    model.lm_head.register_forward_hook(lambda module, args, logits: logits * (1 + 0.01 * len(logits)))
    report = padding_report(model, None, TEXTS, dtypes=["float32"])
    assert report.worst(layout=CONTROL, batch=1) == 0 and report.worst(layout=CONTROL, batch=4) > 0.01
    assert report.worst(layout="padded", batch=3) > 0.01 > 1e-5 > report.worst(layout="padded", batch=1)
    assert report.kind == ROUNDING  # not padding's doing


def test_a_window_too_wide_to_measure_is_said_and_not_guessed():
    report = padding_report(tiny("llama, dynamic NTK", max_position_embeddings=2**20), None, TEXTS, dtypes=["float32"])
    assert report.kind == ROUNDING and "not reached here" in report.reason
    assert any("not run: padding past the dynamic window" in note for note in report.notes)


def test_lower_precision_rounds_more_and_does_not_change_the_verdict():
    report = padding_report(tiny("qwen2"), None, TEXTS, dtypes=["bfloat16", "float16", "float32"])
    assert report.kind == ROUNDING and list(dict.fromkeys(row.dtype for row in report.rows)) == list(TOLERANCE)
    for dtype in ("float16", "bfloat16"):
        assert 1e-4 < report.worst(dtype, positions="implicit") < TOLERANCE[dtype]
        assert dtype in report.reason


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_verdict_on_learned_positions_holds_in_every_dtype(dtype):
    assert padding_report(tiny("gpt2"), None, TEXTS, dtypes=[dtype]).kind == NEEDS_POSITIONS
    assert padding_report(tiny("llama"), None, TEXTS, dtypes=[dtype]).kind in (ROUNDING, EXACT)


def test_bloom_in_bfloat16_is_moved_by_nothing():
    report = padding_report(tiny("bloom"), None, TEXTS, dtypes=["bfloat16"])
    assert {row.max_logprob for row in report.rows} == {0} and report.kind == UNUSED


def test_the_report_has_every_layout_beside_its_control():
    report = padding_report(tiny("gpt2"), None, TEXTS)
    table = report.table()
    assert set(table["dtype"]) == {"float32", "bfloat16"} and set(table["attention"]) == {"eager", "sdpa"}
    padded = table[table["layout"] == "padded"]
    assert set(zip(padded["side"], padded["positions"], strict=True)) == {
        (side, positions) for side in ("left", "right") for positions in ("implicit", "explicit")
    }
    assert set(padded["batch"]) == {1, 2, 3} and set(table[table["layout"] == CONTROL]["batch"]) == {1, 4}
    worst = padded[(padded["side"] == "left") & (padded["positions"] == "implicit")].iloc[0]
    assert (
        worst["max sequence drift"]
        > worst["max |Δ log-prob|"]
        > worst["99% |Δ log-prob|"]
        > worst["median |Δ log-prob|"]
    )
    assert worst["max KL"] > 0.1 and 0 < worst["share of top-1 flips"] <= 1
    assert 0.1 < worst["share of ratios outside [0.9, 1.1]"] <= 1
    assert "not run: flash_attention_2" in str(report) and report.verdict in str(report)
    assert "<table" in report._repr_html_() and "with_position_ids" in report._repr_html_()


def test_the_report_sees_the_hook_at_work():
    model = tiny("gpt2")
    with with_position_ids(model):
        report = padding_report(model, None, TEXTS, dtypes=["float32"])
    assert report.kind == ROUNDING and any("is at work" in note for note in report.notes)
    assert padding_report(model, None, TEXTS, dtypes=["float32"]).kind == NEEDS_POSITIONS


@pytest.mark.parametrize(
    "texts, options, message",
    [
        (TEXTS[:1], {}, "1 given; expected at least two"),
        ([[1, 2], [3]], {}, r"\[1\] have fewer than two tokens"),
        (TEXTS, {"dtypes": ["float8"]}, "float8 is none of float32"),
        (TEXTS, {"attentions": ["flash_attention_2"]}, "none could be run; not run: flash_attention_2"),
        (some_texts(200, 3), {"dtypes": ["float32"]}, "the longest has 200 tokens, the model's window 128"),
    ],
)
def test_a_report_that_cannot_be_made_says_why(texts, options, message):
    with pytest.raises(ParameterError, match=message):
        padding_report(tiny("gpt2"), None, texts, **options)


@pytest.mark.slow
@pytest.mark.parametrize("architecture, kind", [("qwen2", ROUNDING), ("gpt2", NEEDS_POSITIONS)])
def test_the_report_on_a_starter_model_takes_under_10_seconds_of_one_core(architecture, kind):
    from transformers import AutoTokenizer

    from workbench.toys.starter import one_thread, starter_corpus, starter_model

    folder = starter_model(architecture)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = [row["prompt"] + row["completion"] for row in starter_corpus()[::900]][:6]
    with one_thread():
        start = time.process_time()
        report = padding_report(model, tokenizer, texts)
        assert time.process_time() - start < 10
    assert report.kind == kind
    assert report.worst(positions="explicit") < 1e-5
    assert report.worst(side="left", positions="implicit") > 0.5 or kind == ROUNDING


# --- the hook ------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen():
    """What the backbone was called with last: `seen(model)` starts to watch, `seen.last` is its position ids."""

    def watch(model):
        def remember(module, args, kwargs):
            watch.last = kwargs.get("position_ids")

        backbone(model).register_forward_pre_hook(remember, with_kwargs=True)

    watch.last = None
    return watch


def test_the_hook_makes_left_padded_text_score_as_if_unpadded_and_goes_when_told():
    model, batch = tiny("gpt2"), pad_batch(TEXTS, 0)
    expected = [by_hand(model, text) for text in TEXTS]
    assert furthest(token_logprobs(model, batch, "implicit"), expected) > 0.5
    with with_position_ids(model):
        assert fills_position_ids(model)
        assert furthest(token_logprobs(model, batch, "implicit"), expected) < 1e-5
    assert not fills_position_ids(model)
    assert furthest(token_logprobs(model, batch, "implicit"), expected) > 0.5
    handle = with_position_ids(model)
    assert furthest(token_logprobs(model, batch, "implicit"), expected) < 1e-5
    handle.remove()
    assert not fills_position_ids(model)


def test_the_hook_may_be_installed_twice(seen):
    model, batch = tiny("gpt2"), pad_batch(TEXTS, 0)
    with_position_ids(model)
    with with_position_ids(model):
        pass
    seen(model)
    model(**batch)
    assert torch.equal(seen.last, position_ids(batch["attention_mask"]))


def test_given_position_ids_are_left_alone():
    model, batch = tiny("gpt2"), pad_batch(TEXTS, 0)
    given = position_ids(batch["attention_mask"]) + 3
    body = backbone(model)
    expected = body(**batch, position_ids=given)[0]
    with with_position_ids(model):
        assert torch.equal(body(**batch, position_ids=given)[0], expected)
        # positional: input_ids, past_key_values, attention_mask, token_type_ids, position_ids
        assert torch.equal(body(batch["input_ids"], None, batch["attention_mask"], None, given)[0], expected)
        filled = body(batch["input_ids"], None, batch["attention_mask"], None, None)[0]
    assert torch.equal(filled, body(**batch, position_ids=given - 3)[0])


def test_cached_decoding_is_left_alone(seen):
    model, batch = tiny("gpt2"), pad_batch(TEXTS, 0)
    with_position_ids(model)
    seen(model)
    first = model(**batch, use_cache=True)
    assert torch.equal(seen.last, position_ids(batch["attention_mask"]))  # an empty cache is no decoding yet
    mask = torch.cat([batch["attention_mask"], _ids(3, 1)], dim=1)
    model(input_ids=_ids(3, 1), attention_mask=mask, past_key_values=first.past_key_values)
    assert seen.last is None
    model(input_ids=_ids(3, 1), attention_mask=_ids(3, 1), past_key_values=first.past_key_values)
    assert seen.last is None


@pytest.mark.parametrize(
    "inputs",
    [
        {"attention_mask": None},
        {"attention_mask": torch.ones(3, 1, 24, 24, dtype=torch.bool).tril()},
        {"attention_mask": torch.tensor([[1] * 10 + [2] * 14] * 3)},
        {"attention_mask": _ids(3, 24), "cu_seq_lens_q": torch.tensor([0, 24, 48, 72])},
    ],
    ids=["no mask", "4-D mask", "texts numbered in the mask", "packed lengths"],
)
def test_packed_inputs_and_other_masks_are_left_alone(inputs):
    from workbench.consistency.positions import fill_position_ids

    ids = pad_batch(TEXTS, 0)["input_ids"]
    body = backbone(tiny("llama"))
    assert fill_position_ids(body, (), {"input_ids": ids, **inputs}) is None
    assert fill_position_ids(body, (), {"input_ids": ids, "attention_mask": _ids(3, 24)}) is not None
    embeds = {"inputs_embeds": torch.zeros(3, 24, 64), "attention_mask": _ids(3, 24).bool()}
    assert fill_position_ids(body, (), embeds)[1]["position_ids"].shape == (3, 24)


@pytest.mark.parametrize("name", ["opt", "bloom", "mpt"])
def test_a_model_that_derives_its_positions_or_takes_none_is_left_alone(name):
    model = tiny(name)
    assert derives_positions(model) == (name == "opt") and takes_position_ids(model) == (name == "opt")
    with with_position_ids(model) as handle:
        assert not fills_position_ids(model)
    handle.remove()


def test_positions_that_begin_behind_the_pad_id_are_left_alone():
    fields = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = AutoConfig.for_model("roberta", **fields, is_decoder=True, max_position_embeddings=40)
    model = AutoModelForCausalLM.from_config(config)
    assert takes_position_ids(model) and derives_positions(model)
    with with_position_ids(model):
        assert not fills_position_ids(model)


def test_three_dimensional_positions_of_text_and_images_are_left_alone():
    from transformers import Qwen2VLForConditionalGeneration

    assert derives_positions(Qwen2VLForConditionalGeneration._from_config(_small_qwen2_vl()))


def _small_qwen2_vl():
    text = FAMILIES["llama"][1] | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    }
    return AutoConfig.for_model(
        "qwen2_vl", text_config=text, vision_config={"depth": 1, "embed_dim": 16, "num_heads": 1}
    )


@pytest.mark.parametrize("order", ["hook, then PEFT", "PEFT, then hook"])
def test_the_hook_holds_in_peft(order):
    from peft import LoraConfig, get_peft_model

    model, batch = tiny("gpt2"), pad_batch(TEXTS, 0)
    expected = [by_hand(model, text) for text in TEXTS]
    if order == "hook, then PEFT":
        with_position_ids(model)
    model = get_peft_model(
        model, LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
    ).eval()
    if order == "PEFT, then hook":
        with_position_ids(model)
    assert fills_position_ids(model) and fills_position_ids(model.get_base_model())
    assert furthest(token_logprobs(model, batch, "implicit"), expected) < 1e-5  # LoRA starts as no change
    with model.disable_adapter():
        assert furthest(token_logprobs(model, batch, "implicit"), expected) < 1e-5


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_hook_holds_under_gradient_checkpointing(reentrant):
    batch = pad_batch(TEXTS, 0)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    no_dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    expected, hooked = tiny("gpt2", **no_dropout).train(), tiny("gpt2", **no_dropout).train()
    expected(**batch, labels=labels, position_ids=position_ids(batch["attention_mask"])).loss.backward()
    with_position_ids(hooked)
    hooked.gradient_checkpointing_enable({"use_reentrant": reentrant})
    hooked.enable_input_require_grads()
    hooked(**batch, labels=labels).loss.backward()
    for a, b in zip(expected.parameters(), hooked.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_is_the_same_with_the_hook(name):
    model, batch = tiny(name), pad_batch(TEXTS, 0)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(**batch, **options)
    with with_position_ids(model):
        assert torch.equal(model.generate(**batch, **options), expected)
        assert torch.equal(model.generate(**batch, **options, use_cache=False), expected)


def test_the_hook_is_not_saved_and_models_with_it_can_be_saved_copied_and_pickled(tmp_path):
    model, batch = tiny("gpt2"), pad_batch(TEXTS, 0)
    keys = list(model.state_dict())
    with_position_ids(model)
    assert list(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not fills_position_ids(loaded)
    expected = token_logprobs(model, batch)
    with with_position_ids(loaded):
        assert furthest(token_logprobs(loaded, batch, "implicit"), expected) < 1e-5
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert fills_position_ids(copied)
        assert furthest(token_logprobs(copied, batch, "implicit"), expected) < 1e-5


def test_the_hook_serves_value_heads_and_callers_of_the_backbone(seen):
    model, batch = tiny("gpt2", AutoModelForSequenceClassification, num_labels=1), pad_batch(TEXTS, 0)
    with_position_ids(model)
    seen(model)
    model(**batch)
    assert torch.equal(seen.last, position_ids(batch["attention_mask"]))
    getattr(model, model.base_model_prefix)(batch["input_ids"], attention_mask=batch["attention_mask"])
    assert torch.equal(seen.last, position_ids(batch["attention_mask"]))


def test_slices_reach_a_function_in_order():
    model, batch = tiny("llama"), pad_batch(TEXTS, 0)
    found = map_logits(model, batch, lambda start, logits: (start, logits.shape[1]), max_logits=3 * VOCAB * 10)
    assert found == [(0, 10), (10, 10), (20, 4)]
