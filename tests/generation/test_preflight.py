import copy
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from conftest import need
from generation_cases import tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer, GenerationConfig

from tools.make_toys import build_model
from workbench.errors import MissingDependencyError, ParameterError
from workbench.experiments.recipes import resolve_model
from workbench.generation.preflight import check_before_compute, check_generation_kwargs, check_tokenizers, save_policy
from workbench.generation.stops import StopSpec


@pytest.mark.slow  # imports vLLM
@pytest.mark.parametrize(
    ("backend", "name", "hint"),
    [
        ("transformers", "stop", "stops=1"),
        ("transformers", "stop_token_ids", "stops=1"),
        ("transformers", "stop_string", "stops=1"),
        ("transformers", "min_tokens", "min_new_tokens"),
        ("transformers", "temprature", "temperature"),
        ("vllm", "stop_strings", "'stop'"),
        ("vllm", "eos_token_id", "stop_token_ids"),
        ("vllm-server", "stop_stings", "stop"),
        ("vllm-server", "max_new_tokens", "max_tokens"),
    ],
)
def test_options_of_the_other_back_end_and_typos_are_refused(backend, name, hint):
    if backend != "transformers":
        need(find_spec("vllm"), "vLLM, whose own parameters it reads")
    with pytest.raises(ParameterError, match=hint):
        check_generation_kwargs({name: 1}, backend)


@pytest.mark.slow
def test_options_that_the_back_end_knows_pass():
    need(find_spec("vllm"), "vLLM, whose own parameters it reads")
    check_generation_kwargs({"stop": ["a"], "stop_token_ids": [3], "seed": 1, "skip_special_tokens": False}, "vllm")
    check_generation_kwargs({"stop": ["a"], "min_tokens": 3, "seed": 1}, "vllm-server")
    check_generation_kwargs({"eos_token_id": [1, 2], "repetition_penalty": 1.1}, "transformers")


@pytest.mark.parametrize("backend", ["vllm", "vllm-server"])
def test_options_of_vllm_without_vllm_name_the_extra(backend, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match=r"use_vllm=True needs vllm: pip install 'trl-workbench\[vllm\]'"):
        check_generation_kwargs({}, backend)


def test_a_token_added_in_memory_is_found_missing_in_the_sampler():
    train = copy.deepcopy(tokenizer())
    train.add_tokens(["<search>"])
    with pytest.raises(ParameterError, match=r"'<search>'.*save_policy"):
        check_tokenizers(train, tokenizer(), StopSpec(stop=("<search>",)))
    check_tokenizers(train, train, StopSpec(stop=("<search>",)))


def test_a_stop_string_sampled_in_other_tokens_is_refused():
    sampler = copy.deepcopy(tokenizer())
    sampler.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)  # other ids for the same text
    with pytest.raises(ParameterError, match=r"stop 'topic': the trainer's ids are \[.*\], the sampler's \[.*\]"):
        check_tokenizers(tokenizer(), sampler, StopSpec(stop=("topic",)))


def test_a_saved_policy_knows_its_new_tokens_from_disk(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    grown = copy.deepcopy(tokenizer())
    model = build_model(grown)
    model.generation_config.eos_token_id = None
    before, folder = len(grown), save_policy(model, grown, tmp_path / "policy", new_tokens=["<search>", "</search>"])
    loaded, on_disk = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert loaded.get_input_embeddings().num_embeddings == len(grown) == before + 2
    assert loaded.generation_config.eos_token_id == grown.eos_token_id
    assert loaded.generation_config.pad_token_id == grown.pad_token_id
    assert on_disk.decode(on_disk.encode("<search>"), skip_special_tokens=True) == "<search>"  # ordinary, not special
    check_tokenizers(grown, on_disk, StopSpec(stop=("</search>",)))


def test_a_pad_that_the_models_config_makes_an_eos_may_stop(tmp_path):
    """As Qwen's: the pad token is one of the EOS ids, which the model's generation config has and the tokenizer has not."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("search"))
    tokenizer.save_pretrained(tmp_path)
    args = SimpleNamespace(generation_kwargs=None, use_vllm=False, temperature=1.0, max_completion_length=8)
    args.trust_remote_code, stops = False, StopSpec(stop_token_ids=(tokenizer.pad_token_id,))
    check_before_compute(
        str(tmp_path), args, stops, None
    )  # without a generation config it is checked once there is a model
    GenerationConfig(eos_token_id=tokenizer.eos_token_id).save_pretrained(tmp_path)
    with pytest.raises(ParameterError, match="this is the pad token"):
        check_before_compute(str(tmp_path), args, stops, None)
    GenerationConfig(eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id]).save_pretrained(tmp_path)
    check_before_compute(str(tmp_path), args, stops, None)


def test_a_seed_among_options_is_refused_with_advice_that_holds(tmp_path):
    args = SimpleNamespace(generation_kwargs={"seed": 1}, use_vllm=False, temperature=1.0, max_completion_length=8)
    with pytest.raises(ParameterError, match="Leave it out: `seed` of the config seeds the sampling"):
        check_before_compute(resolve_model("search"), args, StopSpec(), None)


def test_a_minimum_of_tokens_obeys_the_limit_of_the_options():
    args = SimpleNamespace(generation_kwargs={"max_new_tokens": 3}, use_vllm=False, temperature=1.0)
    args.max_completion_length, args.trust_remote_code = 8, False
    with pytest.raises(ParameterError, match="min_tokens=5: no stop can match within 3 tokens"):
        check_before_compute(resolve_model("search"), args, StopSpec(min_tokens=5), None)


def test_a_folder_needs_no_tokenizer_where_one_is_given(tmp_path):
    args = SimpleNamespace(generation_kwargs=None, use_vllm=False, temperature=1.0, max_completion_length=8)
    args.trust_remote_code, tokenizer = False, AutoTokenizer.from_pretrained(resolve_model("search"))
    check_before_compute(str(tmp_path), args, StopSpec(stop=("</search>",)), tokenizer)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id).save_pretrained(tmp_path)
    with pytest.raises(ParameterError, match="stop token id 1000000: outside the vocabulary"):
        check_before_compute(str(tmp_path), args, StopSpec(stop_token_ids=(10**6,)), tokenizer)


def test_a_text_in_place_of_new_tokens_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"new_tokens='<search>': .* expected \['<search>'\]"):
        save_policy(None, tokenizer(), tmp_path, new_tokens="<search>")
