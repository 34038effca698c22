"""Rollouts are the same on every back end."""

import copy
import functools
import json
from types import SimpleNamespace
from unittest import mock

import pytest
import rollout_engine
import sampling_memory
import torch
from conftest import on_vllm, result_of
from generation_cases import toy_tokenizer, transformers_sampler
from peft import LoraConfig, get_peft_model
from rollout_engine import LIMIT
from transformers import AutoTokenizer, GenerationConfig

from workbench.errors import ParameterError
from workbench.experiments.sampling import Sampling, TransformersSampler, VLLMSampler, generate
from workbench.generation.stops import StopSpec

LABELS = ("eos", "id", "string", "two of each", "no eos", "minimum")
ALIKE = ("ids", "text", "reason", "stop")


# --- one back end against the other -------------------------------------------------------------------------------


@functools.cache
def stops() -> dict:
    return rollout_engine.stops_that_part(transformers_sampler())


@functools.cache
def vllm_rollouts():
    return on_vllm("rollout_engine", json.dumps(stops()))


@functools.cache
def transformers_rollouts():
    return rollout_engine.greedy(transformers_sampler(), stops())


def alike(rows) -> list[dict]:
    return [{name: row[name] for name in ALIKE} for row in rows]


ROUNDING = 1e-4  # nats, by which two back ends may score a token apart


def check_greedy(theirs: list[dict], ours: list[dict]) -> None:
    """Two back ends that compute otherwise take the same tokens, but where two are equally likely to rounding.

    There each takes its own best token, which scores what the other's best does, and the rows part; few rows do.
    """
    parted = 0
    for row, other in zip(ours, theirs, strict=True):
        assert len(row["logprobs"]) == len(row["ids"])
        n = next((n for n, pair in enumerate(zip(row["ids"], other["ids"], strict=False)) if len(set(pair)) > 1), None)
        same = None if n is None else n + 1
        assert other["logprobs"][:same] == pytest.approx(row["logprobs"][:same], abs=ROUNDING)
        assert n is not None or alike([row]) == alike([other])
        parted += n is not None
    assert parted <= len(ours) / 8


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_greedy_ids_and_ends_agree_on_transformers_and_vllm(label):
    ours, theirs = transformers_rollouts()[label], vllm_rollouts()["greedy"][label]
    assert len(ours) == 64
    check_greedy(theirs, ours)


@pytest.mark.slow
def test_without_any_stop_every_row_has_its_full_length():
    assert all(row["reason"] == "length" for row in transformers_rollouts()["never"])


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_vllm_reports_the_finish_reason_we_find_in_every_row(label):
    rows = vllm_rollouts()["greedy"][label]
    assert [r["engine"] for r in rows] == [r["reason"] for r in rows]


def check_seeds(rolled) -> None:
    first, again, other = rolled
    assert alike(first) == alike(again)
    for row, repeated in zip(first, again, strict=True):  # a cached prefix may round otherwise
        assert repeated["logprobs"] == pytest.approx(row["logprobs"], abs=1e-4)
    assert [r["ids"] for r in first] != [r["ids"] for r in other]
    pairs = zip(first[::2], first[1::2], strict=True)
    assert any(a["ids"] != b["ids"] for a, b in pairs)  # a seed is of the call, not of each row


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["transformers", "vllm"])
def test_the_same_seed_repeats_rollouts_and_another_does_not(backend):
    check_seeds(vllm_rollouts()["seeded"] if backend == "vllm" else rollout_engine.seeded(transformers_sampler()))


@pytest.mark.slow
def test_generate_leaves_the_models_generation_config_as_it_was():
    sampler = transformers_sampler()
    before = sampler.model.generation_config.to_dict()
    generate(sampler, ["x"], stops=StopSpec(stop_token_ids=(40,)), sampling=Sampling(4))
    assert sampler.model.generation_config.to_dict() == before


@pytest.mark.slow
def test_transformers_computes_only_the_steps_of_the_longest_row():
    ends = [row["reason"] == "stop" for row in transformers_rollouts()["eos"]]  # within the limit
    prompts = [prompt for prompt, end in zip(rollout_engine.prompts(), ends, strict=True) if end][:8]
    rolled = generate(transformers_sampler(), prompts, sampling=rollout_engine.GREEDY)
    longest = max(len(r.completion_ids) for r in rolled)
    assert longest < LIMIT
    assert {r.sampled_tokens for r in rolled} == {longest}


@pytest.mark.slow
def test_log_probs_equal_a_scoring_pass_at_the_same_temperature():
    sampler, how = transformers_sampler(), Sampling(12, temperature=0.7, top_p=0.9, seed=3)
    rolled = generate(sampler, rollout_engine.prompts(6), stops=StopSpec(min_tokens=3), sampling=how)
    ids = [(*r.prompt_ids, *r.completion_ids) for r in rolled]
    assert len(set(map(len, ids))) > 1
    for row, whole in zip(rolled, ids, strict=True):
        with torch.no_grad():
            logits = sampler.model(torch.tensor([whole])).logits[0, len(row.prompt_ids) - 1 : -1]
        scored = (logits / 0.7).log_softmax(-1).gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        assert row.logprobs == pytest.approx(scored.tolist(), abs=1e-4)


def check_equal(rows, others) -> None:
    """The same ids; log-probs may part in their last digits, as sums of a copied model do."""
    for row, other in zip(rows, others, strict=True):
        assert row.completion_ids == other.completion_ids
        assert row.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.slow
def test_a_repetition_penalty_in_a_models_folder_changes_nothing():
    sampler, prompts = transformers_sampler(), rollout_engine.prompts(8)
    plain = generate(sampler, prompts, sampling=rollout_engine.GREEDY)
    for name, value in {"repetition_penalty": 1.5, "num_beams": 2, "return_dict_in_generate": True}.items():
        other = copy.deepcopy(sampler.model)
        setattr(other.generation_config, name, value)
        made = generate(TransformersSampler(other, sampler.tokenizer), prompts, sampling=rollout_engine.GREEDY)
        check_equal(made, plain)
        assert getattr(other.generation_config, name) == value
    drawn = Sampling(8, seed=1)
    other.generation_config.update(min_p=0.9, temperature=0.1)
    made = generate(TransformersSampler(other, sampler.tokenizer), prompts, sampling=drawn)
    check_equal(made, generate(sampler, prompts, sampling=drawn))


@pytest.mark.slow
def test_a_lora_model_and_a_tokenizer_without_pads_sample_too():
    sampler, prompts = transformers_sampler(), rollout_engine.prompts(4)
    plain = generate(sampler, prompts, sampling=rollout_engine.GREEDY)
    adapted = get_peft_model(copy.deepcopy(sampler.model), LoraConfig(r=2, target_modules=["q_proj"]))
    made = generate(TransformersSampler(adapted, sampler.tokenizer), prompts, sampling=rollout_engine.GREEDY)
    check_equal(made, plain)
    unpadded = copy.deepcopy(sampler.tokenizer)
    unpadded.pad_token = None
    made = generate(TransformersSampler(sampler.model, unpadded), prompts, sampling=rollout_engine.GREEDY)
    assert [r.completion_ids for r in made] == [r.completion_ids for r in plain]


@pytest.mark.slow
def test_vllm_rows_end_at_eos_ids_of_the_models_folder(tmp_path):
    tokenizer = transformers_sampler().tokenizer
    tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    GenerationConfig(eos_token_id=[tokenizer.eos_token_id, 7]).save_pretrained(tmp_path)
    engine = SimpleNamespace(get_tokenizer=lambda: tokenizer, model_config=SimpleNamespace(model=str(tmp_path)))
    row = [*tokenizer.encode("Hello", add_special_tokens=False), 7]
    with mock.patch.object(VLLMSampler, "sample", lambda *_: [(row, [0.0] * len(row), "stop")]):
        (rolled,) = generate(VLLMSampler(engine), ["a"])
    assert (rolled.finish_reason, rolled.stop) == ("stop", 7)


@pytest.mark.rare
@pytest.mark.slow
def test_sampling_holds_no_logits_of_all_steps():
    rows, tokens = 32, 32
    whole = rows * tokens * sampling_memory.VOCABULARY * 4 / 2**20  # MiB, 593
    assert result_of("sampling_memory.py", str(rows), str(tokens)) < whole / 2


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_completion_length": 0}, "max_completion_length=0"),
        ({"num_generations": 0}, "num_generations=0"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"top_p": 0}, "top_p=0"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"top_k": -1}, "top_k=-1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": float("nan")}, "top_p=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "a"}, "seed='a'"),
    ],
)
def test_sampling_that_means_nothing_is_refused(fields, message):
    with pytest.raises(ParameterError, match=message):
        Sampling(**fields)


class NeverAsked:
    """A sampler that no refused call may reach."""

    tokenizer = property(lambda self: toy_tokenizer())

    def sample(self, *_):
        raise AssertionError("sampled")


@pytest.mark.parametrize(
    ("prompts", "stops", "message"),
    [
        ([], None, "expected a list of at least one text"),
        (["ask"], StopSpec(stop_token_ids=(99_999,)), "outside the vocabulary"),
        (["ask"], StopSpec(min_tokens=64), "within 64 tokens"),
        (["ask", ""], None, "prompt 1 is empty"),
    ],
)
def test_calls_that_cannot_work_are_refused_before_sampling(prompts, stops, message):
    with pytest.raises(ParameterError, match=message):
        generate(NeverAsked(), prompts, stops=stops)


@pytest.mark.slow
def test_a_model_in_training_mode_samples_without_dropout():
    sampler = transformers_sampler()
    model = copy.deepcopy(sampler.model).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.config.attention_dropout = 0.5
    frozen = next(module for module in model.modules() if module is not model).eval()
    training = TransformersSampler(model, sampler.tokenizer)
    prompts = rollout_engine.prompts(4)
    check_equal(*(generate(s, prompts, sampling=rollout_engine.GREEDY) for s in (sampler, training)))
    assert model.training and not frozen.training


@pytest.mark.slow
def test_a_seeded_call_leaves_the_random_numbers_of_the_process():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    generate(transformers_sampler(), rollout_engine.prompts(1), sampling=Sampling(4, seed=3))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_adapters_on_the_embedding_are_sampled_from():
    sampler = transformers_sampler()
    embedding = next(
        n.split(".")[-1] for n, m in sampler.model.named_modules() if m is sampler.model.get_input_embeddings()
    )
    for config in ({"target_modules": [embedding]}, {"target_modules": ["lm_head"], "modules_to_save": [embedding]}):
        adapted = get_peft_model(copy.deepcopy(sampler.model), LoraConfig(r=2, task_type="CAUSAL_LM", **config)).eval()
        rows = generate(TransformersSampler(adapted, sampler.tokenizer), ["a"], sampling=Sampling(2, temperature=0))
        assert len(rows[0].completion_ids) > 0


def test_one_text_in_the_place_of_a_list_is_refused():
    with pytest.raises(ParameterError, match="prompts='Hello': expected a list"):
        generate(transformers_sampler(), "Hello")


def test_prompts_and_stops_are_taken_as_trainers_take_them():
    sampler, sampling = transformers_sampler(), Sampling(4, temperature=0)
    one = generate(sampler, (text for text in ["a"]), stops=["b"], sampling=sampling)
    assert one == generate(sampler, ["a"], stops=StopSpec.of(["b"]), sampling=sampling)
    with pytest.raises(ParameterError, match="expected a list of at least one text"):
        generate(sampler, iter([]), sampling=sampling)
    with pytest.raises(ParameterError, match=r"max_completion_length=1\.5: expected a whole number"):
        Sampling(1.5)
