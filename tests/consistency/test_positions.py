import contextlib
import copy
import inspect
import pickle
from importlib.util import find_spec

import pytest
import torch
import transformers
from conftest import need
from packaging.version import Version
from padding_cases import TEXTS, by_hand, furthest, ones, tiny
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from workbench.consistency.padding import pad_batch, token_logprobs
from workbench.consistency.padding_report import length_threshold
from workbench.consistency.positions import (
    backbone,
    derives_positions,
    fills_position_ids,
    position_ids,
    rope_types,
    takes_position_ids,
    window,
    with_position_ids,
)
from workbench.errors import ParameterError
from workbench.experiments.toys.families import FAMILIES, VOCAB, family_model, random_texts


def test_left_pads_get_position_0_and_not_minus_1():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 0, 0]]
    assert (mask.cumsum(-1) - 1)[0, 0] == -1


@pytest.fixture
def seen():
    """What the backbone was called with last: `seen(model)` starts to watch, `seen.last` is its position ids."""

    def watch(model):
        def remember(module, args, kwargs):
            watch.last = kwargs.get("position_ids")

        backbone(model).register_forward_pre_hook(remember, with_kwargs=True)

    watch.last = None
    return watch


def test_a_removable_hook_scores_left_padded_text_as_unpadded():
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
        names = list(inspect.signature(body.forward).parameters)  # input_ids, past_key_values, ..., position_ids
        positional = [(batch | {"position_ids": given}).get(name) for name in names[: names.index("position_ids") + 1]]
        assert torch.equal(body(*positional)[0], expected)
        filled = body(*positional[:-1], None)[0]
    assert torch.equal(filled, body(**batch, position_ids=given - 3)[0])


@pytest.mark.parametrize("texts", [TEXTS, [[5]] * 3])
def test_cached_decoding_is_left_alone(seen, texts):
    model, batch = tiny("gpt2"), pad_batch(texts, 0)
    with_position_ids(model)
    seen(model)
    first = model(**batch, use_cache=True)
    assert torch.equal(seen.last, position_ids(batch["attention_mask"]))  # an empty cache is no decoding yet
    mask = torch.cat([batch["attention_mask"], ones(3, 1)], dim=1)
    model(input_ids=ones(3, 1), attention_mask=mask, past_key_values=first.past_key_values)
    assert seen.last is None
    again = model(**batch, use_cache=True)  # a call adds to the cache
    model(input_ids=ones(3, 1), attention_mask=ones(3, 1), past_key_values=again.past_key_values)
    assert seen.last is None


@pytest.mark.parametrize(
    "inputs",
    [
        {"attention_mask": None},
        {"attention_mask": torch.ones(3, 1, 24, 24, dtype=torch.bool).tril()},
        {"attention_mask": torch.tensor([[1] * 10 + [2] * 14] * 3)},
        {"attention_mask": ones(3, 24), "cu_seq_lens_q": torch.tensor([0, 24, 48, 72])},
    ],
    ids=["no mask", "4-D mask", "texts numbered in the mask", "packed lengths"],
)
def test_packed_inputs_and_other_masks_are_left_alone(inputs):
    from workbench.consistency.positions import fill_position_ids

    ids = pad_batch(TEXTS, 0)["input_ids"]
    body = backbone(tiny("llama"))
    assert fill_position_ids(body, (), {"input_ids": ids, **inputs}) is None
    assert fill_position_ids(body, (), {"input_ids": ids, "attention_mask": ones(3, 24)}) is not None
    embeds = {"inputs_embeds": torch.zeros(3, 24, 64), "attention_mask": ones(3, 24).bool()}
    assert fill_position_ids(body, (), embeds)[1]["position_ids"].shape == (3, 24)


@pytest.mark.parametrize("name", ["opt", "bloom", "mpt"])
def test_a_model_with_derived_or_no_positions_is_left_alone(name):
    model = tiny(name)
    assert derives_positions(model) == (name == "opt") and takes_position_ids(model) == (name == "opt")
    with with_position_ids(model) as handle:
        assert not fills_position_ids(model)
    handle.remove()


def test_a_table_that_takes_a_mask_and_wrong_positions_is_fixed(monkeypatch):
    """BioGPT's counts right from the mask, as OPT's does, but its model counts pads and hands it that."""
    monkeypatch.setitem(FAMILIES, "biogpt", ("biogpt", FAMILIES["opt"][1] | {"intermediate_size": 128}))
    model, batch = family_model("biogpt"), pad_batch(TEXTS, 0)
    expected = [by_hand(model, text) for text in TEXTS]
    counts_pads = Version(transformers.__version__) >= Version("5")  # before, its model handed the table nothing
    assert (furthest(token_logprobs(model, batch, "implicit"), expected) > 0.1) == counts_pads
    with with_position_ids(model):
        assert furthest(token_logprobs(model, batch, "implicit"), expected) < 1e-5


def test_positions_that_begin_after_the_pad_id_are_left_alone():
    fields = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = AutoConfig.for_model("roberta", **fields, is_decoder=True, max_position_embeddings=40)
    model = AutoModelForCausalLM.from_config(config)
    assert takes_position_ids(model) and derives_positions(model)
    with with_position_ids(model):
        assert not fills_position_ids(model)


def test_three_dimensional_positions_with_images_are_left_alone():
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
    need(find_spec("peft"), "PEFT")
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


def test_the_hook_is_copied_and_pickled_with_a_model_never_saved(tmp_path):
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


def test_rotary_kinds_and_windows_are_read_from_the_config():
    kinds = {
        name: rope_types(tiny(name)) for name in ("llama", "gemma3", "llama, dynamic NTK", "phi3, longrope", "gpt2")
    }
    assert kinds["llama"] == kinds["gemma3"] == {"default"} and kinds["gpt2"] == set()
    assert (kinds["llama, dynamic NTK"], kinds["phi3, longrope"]) == ({"dynamic"}, {"longrope"})
    windows = {name: window(tiny(name)) for name in ("gpt2", "mpt", "falcon, alibi", "llama, dynamic NTK")}
    assert windows == {"gpt2": 128, "mpt": 128, "falcon, alibi": None, "llama, dynamic NTK": None}
    assert [length_threshold(tiny(name)) for name in ("llama, dynamic NTK", "phi3, longrope")] == [32, 32]
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
    assert length_threshold(tiny("llama, dynamic NTK", rope_parameters=rope)) == 32  # which longrope alone goes by


def test_a_mask_of_another_shape_has_no_position_ids():
    with pytest.raises(ParameterError, match=r"shape \(3,\): expected \(B, T\)"):
        position_ids(ones(3))


def compiled_where(part, model):
    """The model with its backbone, or the whole of it, under torch.compile; the graphs that were made are counted."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    if part == "backbone":
        model.model = torch.compile(model.model, backend=count)
        return model, graphs
    return torch.compile(model, backend=count), graphs


@pytest.mark.slow
@pytest.mark.parametrize("part", ["backbone", "whole model"])
@pytest.mark.rare
def test_position_ids_are_filled_in_a_compiled_model_too(part):
    plain = family_model("llama, dynamic NTK")
    batch = pad_batch(random_texts(24, 9), 0, "left", width=40)
    with torch.no_grad():
        expected = plain(**batch, position_ids=position_ids(batch["attention_mask"])).logits
        model, _ = compiled_where(part, copy.deepcopy(plain))
        assert backbone(model) is not model and takes_position_ids(model)
        with with_position_ids(model):
            torch.testing.assert_close(model(**batch).logits, expected)
        assert not fills_position_ids(model)


@pytest.mark.slow
def test_a_hooked_model_is_one_graph_where_positions_are_given():
    graphs = {}
    batch = pad_batch(random_texts(12, 9), 0, "left")
    batch["position_ids"] = position_ids(batch["attention_mask"])
    for hooked in (False, True):
        model, graphs[hooked] = compiled_where("whole model", family_model("llama"))
        with with_position_ids(model) if hooked else contextlib.nullcontext(), torch.no_grad():
            model(**batch, use_cache=False)
    assert len(graphs[True]) == len(graphs[False]) == 1
