import itertools

import pytest
import torch
from conftest import daily
from padding_cases import TEXTS, by_hand, in_mixed_precision, some_texts, tiny
from transformers import AutoModelForCausalLM

from workbench.consistency.logits import computed_dtype
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
from workbench.consistency.positions import with_position_ids
from workbench.errors import ParameterError
from workbench.experiments.toys.families import FAMILIES

VERDICTS = dict.fromkeys(FAMILIES, ROUNDING)
VERDICTS |= dict.fromkeys(["gpt2", "gpt_neo", "gpt_bigcode"], NEEDS_POSITIONS)
VERDICTS |= dict.fromkeys(["llama, dynamic NTK", "phi3, longrope"], NEAR_WINDOW)
VERDICTS |= dict.fromkeys(["bloom", "mpt", "falcon, alibi"], UNUSED)
# Largest |difference of a log-prob| in fp32: (without position ids at least, at most; with them at most).
BOUNDS = {ROUNDING: (0, 1e-5), NEEDS_POSITIONS: (0.5, 99), NEAR_WINDOW: (1e-2, 99), UNUSED: (0, 1e-5)}


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
    for name, reason in {"bloom": "in **kwargs and drops them", "falcon, alibi": "and ignores them"}.items():
        assert f"takes them {reason}" in padding_report(tiny(name), None, TEXTS, dtypes=["float32"]).reason


def test_a_model_that_sees_pads_is_wrong_even_with_position_ids():
    model = tiny("llama")
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: (args, kwargs | {"attention_mask": torch.ones_like(kwargs["attention_mask"])}),
        with_kwargs=True,
    )
    report = padding_report(model, None, TEXTS, dtypes=["float32"])
    assert report.kind == BROKEN and report.worst(positions="explicit") > 0.1


def test_nan_is_no_rounding():
    model = tiny("llama")

    def no_numbers_where_pads_are(module, args, kwargs, output):
        output.logits = output.logits * (1 if kwargs["attention_mask"].all() else float("nan"))
        return output

    model.register_forward_hook(no_numbers_where_pads_are, with_kwargs=True)
    report = padding_report(model, None, TEXTS, dtypes=["float32"], attentions=["eager"])
    assert report.kind == BROKEN and report.worst(layout="padded") == float("inf")
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(ParameterError, match="its logits are NaN for texts alone and unpadded"):
        padding_report(model, None, TEXTS, dtypes=["float32"], attentions=["eager"])


def test_too_long_a_text_changes_neighbours_despite_position_ids():
    report = padding_report(tiny("phi3, longrope"), None, some_texts(40, 17, 9), dtypes=["float32"])
    assert report.kind == NEAR_WINDOW and "batch texts by length" in report.reason
    assert report.worst(positions="explicit", batch=3) > 1e-2
    assert report.worst(positions="explicit", batch=1) < 1e-5


def test_dynamic_ntk_remembers_a_longer_text_but_not_in_a_report():
    model, (long, between) = tiny("llama, dynamic NTK"), some_texts(60, 40)
    fresh = by_hand(model, between)
    by_hand(model, long)
    assert (by_hand(model, between) - fresh).abs().max() > 1e-2  # the same call, another answer
    report = padding_report(tiny("llama, dynamic NTK"), None, [between, long], dtypes=["float32"])
    assert report.worst(layout=CONTROL) < 1e-5


def test_the_verdict_allows_for_what_the_batch_size_alone_does():
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


def test_lower_precision_rounds_more_with_the_same_verdict():
    report = padding_report(tiny("qwen2"), None, TEXTS, dtypes=["bfloat16", "float16", "float32"])
    assert report.kind == ROUNDING and list(report.rows["dtype"].unique()) == list(TOLERANCE)
    for dtype in ("float16", "bfloat16"):
        assert 1e-4 < report.worst(dtype, positions="implicit") < TOLERANCE[dtype]
        assert dtype in report.reason


def test_a_mixed_precision_model_is_scored_in_the_asked_dtypes():
    model = in_mixed_precision(tiny("qwen2"))
    report = padding_report(model, None, TEXTS, dtypes=["float32", "bfloat16"])
    assert report.kind == ROUNDING and report.worst("float32", positions="implicit") < TOLERANCE["float32"]
    plain = padding_report(tiny("qwen2"), None, TEXTS, dtypes=["float32", "bfloat16"])
    assert report.worst("bfloat16", positions="implicit") == plain.worst("bfloat16", positions="implicit") > 1e-4
    assert computed_dtype(model) == "bfloat16" and computed_dtype(tiny("qwen2")) == "float32"


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_verdict_on_learned_positions_holds_in_every_dtype(dtype):
    assert padding_report(tiny("gpt2"), None, TEXTS, dtypes=[dtype]).kind == NEEDS_POSITIONS
    assert padding_report(tiny("llama"), None, TEXTS, dtypes=[dtype]).kind in (ROUNDING, EXACT)


def test_the_report_has_every_layout_beside_its_control():
    report = padding_report(tiny("gpt2"), None, TEXTS)
    table = report.table()
    assert set(table["dtype"]) == {"float32", "bfloat16"} and set(table["attention"]) == {"eager", "sdpa"}
    padded = table[table["layout"] == "padded"]
    layouts = set(itertools.product(("left", "right"), ("implicit", "explicit")))
    assert set(zip(padded["side"], padded["positions"], strict=True)) == layouts
    assert set(padded["batch"]) == {1, 2, 3} and set(table[table["layout"] == CONTROL]["batch"]) == {1, 4}
    worst = padded[(padded["side"] == "left") & (padded["positions"] == "implicit")].iloc[0]
    sizes = [worst[f"{which} |Δ log-prob|"] for which in ("median", "99%", "max")] + [worst["max sequence drift"]]
    assert sizes == sorted(set(sizes))
    assert worst["max KL"] > 0.1 and 0 < worst["share of top-1 flips"] <= 1
    assert 0.1 < worst["share of ratios outside [0.9, 1.1]"] <= 1
    assert "not run: flash_attention_2" in str(report) and report.verdict in str(report)
    assert "<table" in report._repr_html_() and "with_position_ids" in report._repr_html_()


def test_the_report_sees_the_hook_at_work():
    model = tiny("gpt2")
    with with_position_ids(model):
        report = padding_report(model, None, TEXTS, dtypes=["float32"])
    assert report.kind == ROUNDING and any("hook of with_position_ids" in note for note in report.notes)
    assert padding_report(model, None, TEXTS, dtypes=["float32"]).kind == NEEDS_POSITIONS


@pytest.mark.parametrize(
    "texts, options, message",
    [
        (TEXTS[:1], {}, "1 given; expected at least two"),
        ([[1, 2], [3]], {}, r"\[1\] have fewer than two tokens"),
        (TEXTS, {"dtypes": ["float8"]}, "float8 is none of float32"),
        (TEXTS, {"attentions": ["flash_attention_2"]}, "none could be run; not run: flash_attention_2"),
        (some_texts(128, 128), {"dtypes": ["float32"]}, "all have 128 tokens and none gets a pad"),
        (some_texts(9, 9), {"extra_pads": 0}, "all have 9 tokens and none gets a pad .window 128, extra_pads=0"),
        (some_texts(200, 3), {"dtypes": ["float32"]}, "the longest has 200 tokens, the model's window 128"),
    ],
)
def test_a_report_that_cannot_be_made_says_why(texts, options, message):
    with pytest.raises(ParameterError, match=message):
        padding_report(tiny("gpt2"), None, texts, **options)


@pytest.mark.slow
@pytest.mark.parametrize("architecture, kind", daily([("qwen2", ROUNDING), ("gpt2", NEEDS_POSITIONS)], "gpt2"))
def test_the_report_on_a_starter_model_gives_its_verdict(architecture, kind):
    from transformers import AutoTokenizer

    from tools.make_toys import one_thread
    from workbench.experiments.toys.starter import starter_corpus, starter_model

    folder = starter_model(architecture)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = [row["prompt"] + row["completion"] for row in starter_corpus()[::900]][:6]
    with one_thread():
        report = padding_report(model, tokenizer, texts)
    assert report.kind == kind
    assert report.worst(positions="explicit") < 1e-5
    assert report.worst(side="left", positions="implicit") > 0.5 or kind == ROUNDING
