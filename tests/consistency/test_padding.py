from importlib.util import find_spec
from unittest import mock

import pytest
import torch
from conftest import need
from hypothesis import given
from hypothesis import strategies as st
from padding_cases import TEXTS, by_hand, furthest, ones, some_texts, tiny
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, AutoModelForSequenceClassification

from workbench.consistency import padding
from workbench.consistency.logits import cast_copy, map_logits
from workbench.consistency.padding import check_batch, pad_batch, token_logprobs
from workbench.consistency.padding_report import padding_report
from workbench.consistency.positions import backbone, position_ids
from workbench.errors import ParameterError
from workbench.experiments.toys.families import FAMILIES, VOCAB


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


def test_pads_before_and_after_the_text_are_no_hole():
    mask = torch.tensor([[0, 1, 1, 0]])
    assert check_batch({"input_ids": mask, "attention_mask": mask})[1] is mask
    assert position_ids(mask).tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize(
    "broken, message",
    [
        ({"input_ids": ones(0, 3), "attention_mask": ones(0, 3)}, r"input_ids has shape \(0, 3\)"),
        ({"input_ids": ones(2, 0), "attention_mask": ones(2, 0)}, r"at least one row and token"),
        ({"input_ids": ones(3), "attention_mask": ones(3)}, r"expected \(B, T\)"),
        ({"input_ids": ones(2, 3), "attention_mask": ones(2, 4)}, r"shape \(2, 4\), input_ids \(2, 3\)"),
        ({"input_ids": ones(2, 3)}, "a tensor `attention_mask`"),
        ({"input_ids": ones(1, 2), "attention_mask": torch.tensor([[0, 2]])}, "values other than 0 and 1"),
        ({"input_ids": ones(2, 2), "attention_mask": torch.tensor([[1, 1], [0, 0]])}, r"rows \[1\] are pads only"),
        ({"input_ids": ones(1, 3), "attention_mask": torch.tensor([[1, 0, 1]])}, r"rows \[0\] have a hole"),
        ({"input_ids": ones(1, 2), "attention_mask": ones(1, 2, device="meta")}, "is on meta, input_ids on cpu"),
    ],
)
def test_a_batch_that_cannot_be_scored_says_what_is_wrong(broken, message):
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


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_of_some_rows_at_a_time_equal_a_plain_pass(name, monkeypatch):
    model = tiny(name)
    expected = [by_hand(model, text) for text in TEXTS]
    batch = pad_batch(TEXTS, 0, "left")
    for most in (1, 2 * 24 * VOCAB, 2**24):  # a row at a time, two, all
        monkeypatch.setattr(padding, "MAX_LOGITS", most)
        scored = token_logprobs(model, batch)
        assert [len(row) for row in scored] == [23, 16, 8]
        assert furthest(scored, expected) < 1e-5


def test_temperature_divides_the_logits():
    model, batch = tiny("gemma2"), pad_batch(TEXTS[:1], 0)
    assert furthest(token_logprobs(model, batch, temperature=0.7), [by_hand(model, TEXTS[0], 0.7)]) < 1e-5


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
    model = wide(vocabulary, tokens)
    batch = {"input_ids": ones(rows, tokens), "attention_mask": ones(rows, tokens)}
    with Largest() as largest:
        token_logprobs(model, batch)
    assert largest.numel <= 2**24 < rows * tokens * vocabulary / 7
    with Largest() as largest, torch.no_grad():
        model(**{name: value[:2] for name, value in batch.items()})
    assert largest.numel == 2 * tokens * vocabulary  # the measure sees whole logits where there are some


def test_a_report_holds_the_logits_of_texts_and_not_of_padding():
    vocabulary, tokens, texts = 32_000, 512, TEXTS[:2]
    with Largest() as largest:
        report = padding_report(
            wide(vocabulary, tokens), None, texts, dtypes=["float32"], attentions=["eager"], extra_pads=tokens
        )
    assert report.rows["layout"].eq("padded").any()
    assert largest.numel <= 2**24 < len(texts) * tokens * vocabulary


def wide(vocabulary: int, tokens: int):
    """A model of next to nothing but its vocabulary."""
    narrow = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    return tiny("llama", vocab_size=vocabulary, intermediate_size=16, max_position_embeddings=tokens, **narrow)


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
    map_logits(model, pad_batch(TEXTS, 0), lambda *_: None, max_logits=1)
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
    assert furthest(token_logprobs(Bare(model), batch), token_logprobs(model, batch)) < 1e-5


def test_beyond_the_window_texts_and_pads_with_positions_fail():
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
    need(find_spec("peft"), "PEFT")
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(tiny("gpt2"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with pytest.raises(ParameterError, match="turns 24 tokens into 27"):
        token_logprobs(model, pad_batch(TEXTS, 0), "implicit")


def test_slices_reach_a_function_in_order():
    model, batch = tiny("llama"), pad_batch(TEXTS, 0)
    slices = map_logits(model, batch, lambda logits, targets: (logits, targets), max_logits=3 * VOCAB * 10)
    assert [logits.shape[1] for logits, _ in slices] == [10, 10, 4]
    logits, targets = (torch.cat(parts, dim=1) for parts in zip(*slices, strict=True))
    assert torch.equal(targets[:, :-1], batch["input_ids"][:, 1:])
    assert furthest(logits, map_logits(model, batch, lambda logits, targets: logits)[0]) < 1e-5


def test_a_copy_in_another_dtype_leaves_model_and_buffers_alone():
    model = tiny("llama")
    cast = cast_copy(model, "bfloat16")
    assert {p.dtype for p in cast.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {b.dtype for b in cast.buffers()} == {torch.float32}


def test_a_copy_in_another_dtype_keeps_ties_and_casts_directly():
    model = tiny("gpt2")
    with mock.patch.object(torch.nn.Parameter, "__deepcopy__", side_effect=AssertionError("copied before it is cast")):
        cast = cast_copy(model, "float16")
    assert cast.lm_head.weight is cast.transformer.wte.weight
    assert torch.equal(cast.lm_head.weight, model.lm_head.weight.half())
