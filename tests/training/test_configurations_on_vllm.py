"""Configurations on vLLM in process (tests/helpers/configurations_on_vllm.py), stock beside ours where stock can run."""

import copy
import re
from types import SimpleNamespace

import conftest
import pytest
import torch
from configuration_models import TURN_END, llama2_like
from configuration_runs import LIMIT, STOP, build, tokenizer
from configuration_table import not_tested, shows, shows_refusal, trl_has_none
from configuration_vision import load_vision_model, pictures, save_vision_model
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoTokenizer
from trl.generation.vllm_generation import VLLMGeneration

from workbench.errors import ParameterError
from workbench.training.sync_on_cpu import _vllm_params, reload_server

from .test_configurations_of_turns import assert_two_turns_of

pytestmark = pytest.mark.slow

SAMPLED = ("GRPO", "RLOO", "OnlineDPO")
CORRECTION = "vllm_importance_sampling_correction"
trl_has_none("LoRA on vLLM", "use_vllm", "PPO")
trl_has_none("SentencePiece on vLLM", "use_vllm", "PPO")
trl_has_none("several EOS on vLLM", "use_vllm", "PPO")
trl_has_none("correction", CORRECTION, "RLOO", "OnlineDPO", "PPO")
not_tested(
    "vision on vLLM", "vLLM's vision models need torchvision, which the pinned environment lacks", "GRPO", "RLOO"
)


@pytest.fixture(scope="module")
def on_vllm(tmp_path_factory):
    """Case -> what came of it."""
    return conftest.on_vllm("configurations_on_vllm", str(tmp_path_factory.mktemp("vllm")))


# --- several turns ---------------------------------------------------------------------------------------------------


@shows("tools on vLLM", "GRPO")
def test_stock_masks_every_row_whose_turns_ended_at_a_stop_string(kind, on_vllm):
    got = on_vllm["tools"]["stock"]
    at_eos = [ids[-1] == tokenizer().eos_token_id for ids in got["ids"]]
    assert [bool(row) for row in got["trained"]] == at_eos
    assert any(tokenizer().decode(ids).endswith("</search>") for ids in got["ids"])


@pytest.mark.parametrize("case", ["ours", "environment"])
@shows("tools on vLLM", "GRPO")
def test_both_turns_end_at_the_stop_and_are_corrected_token_by_token(kind, case, on_vllm):
    got = on_vllm["tools"][case]
    assert_two_turns_of(got["ids"], got["trained"], got["rows"], got["metrics"])
    # A row whose log-probs were shifted by the tool's answer would be nats apart.
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-3 for line in got["log"])


@shows("rollout", "GRPO")
def test_a_rollout_function_that_asks_the_engine_itself_is_not_touched_and_its_rows_end_as_they_did(kind, on_vllm):
    got = on_vllm["tools"]["rollout"]
    rows, own = got["rows"], tokenizer()
    ended = ["</search>" in own.decode(ids) or ids[-1] == own.eos_token_id for ids in got["ids"]]
    assert rows["finish_reason"] == ["stop" if e else "length" for e in ended]
    assert got["trained"] == [ids if e else [] for ids, e in zip(got["ids"], ended, strict=True)]
    assert len(set(map(tuple, got["ids"]))) > 1
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-3 for line in got["log"])


# --- LoRA ------------------------------------------------------------------------------------------------------------


@shows("LoRA on vLLM", *SAMPLED)
def test_the_engine_samples_from_the_policy_with_its_adapter_which_stays_apart(kind, on_vllm):
    got = on_vllm["lora"][kind]
    assert got["behind the policy's best"] < 1e-2 < 0.1 < got["behind the base's best"]
    assert got["kept"]
    if kind == "GRPO":
        assert all(line["sampling/sampling_logp_difference/max"] < 1e-3 for line in got["log"])


@shows("LoRA on vLLM", *SAMPLED)
def test_its_rows_end_at_the_stop_and_are_recorded_once(kind, on_vllm):
    got = on_vllm["lora"][kind]
    assert_ended(kind, got, (STOP,), [tokenizer().eos_token_id], tokenizer())


@shows("LoRA on vLLM", "GRPO", "OnlineDPO")
def test_a_server_without_cuda_is_given_weights_with_the_adapter_in_them(kind, tmp_path):
    trainer = build("ours", kind, peft_config=LoraConfig(r=4, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, param in trainer.model.named_parameters():
            if "lora_B" in name:
                param.fill_(0.1)
    if kind == "GRPO":
        generation = VLLMGeneration.__new__(VLLMGeneration)
        generation.model, generation._dist = trainer.model, trainer._dist
        weights = generation._iter_named_params()
    else:
        weights = _vllm_params(trainer)
    answer = SimpleNamespace(raise_for_status=lambda: None)
    client = SimpleNamespace(base_url="", session=SimpleNamespace(post=lambda *_, **__: answer))
    reload_server(client, weights, trainer.model.config, tmp_path)
    merged = copy.deepcopy(trainer.model).merge_and_unload().state_dict()
    given = load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(given, {name: merged[name] for name in given})
    name = "model.layers.0.self_attn.q_proj.weight"
    base = trainer.model.get_base_model().state_dict()[name.replace(".weight", ".base_layer.weight")]
    assert not torch.allclose(given[name], base)


def assert_ended(kind: str, got: dict, strings, eos, own) -> None:
    rows = got["rows"]
    assert len(rows["step"]) == len(got["ids"]) == 16
    assert rows["completion"] == got["texts"]
    for ids, text, reason in zip(got["ids"], got["texts"], rows["finish_reason"], strict=True):
        whole, before = (own.decode([*own.encode("a"), *part]) for part in (ids, ids[:-1]))
        stopped = any(s in whole[1:] for s in strings) or ids[-1] in eos
        assert reason == ("stop" if stopped else "length")
        assert stopped or len(ids) == LIMIT
        assert not any(s in before[1:] for s in strings) and not set(eos) & set(ids[:-1])
        assert text == own.decode(ids, skip_special_tokens=True)
    assert "stop" in rows["finish_reason"]
    if kind != "OnlineDPO":
        assert rows["engine_finish_reason"] == rows["finish_reason"]
        kept = [reason == "stop" for reason in rows["finish_reason"]]
        assert got["trained"] == [ids if k else [] for ids, k in zip(got["ids"], kept, strict=True)]


# --- the correction --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["None", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
@shows("correction", "GRPO")
def test_with_the_correction_on_and_off_it_trains_as_stock_does_on_the_same_samples(kind, mode, on_vllm):
    got = on_vllm["correction"][mode]
    assert got["ours"] == got["stock"] and len(got["stock"]) == 2
    assert got["equal"]
    assert got["texts"][0] == got["texts"][1]
    assert ("sampling/importance_sampling_ratio/mean" in got["stock"][0]) == (mode != "None")


@shows("correction", "GRPO")
def test_masking_changes_what_is_learned(kind, on_vllm):
    learned = {mode: got["weights"] for mode, got in on_vllm["correction"].items()}
    assert len({learned["None"], learned["token_mask"], learned["sequence_mask"]}) == 3


# --- seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SAMPLED)
def test_one_seed_samples_the_same_and_another_one_other_completions(kind, on_vllm):
    """TRL's engine seeds the process alike for every seed."""
    one, again, other = on_vllm["seeds"][kind]
    assert one == again and len(set(one)) > 1
    assert sum(text != unlike for text, unlike in zip(one, other, strict=True)) > len(one) / 2


# --- tokens ----------------------------------------------------------------------------------------------------------


@shows("SentencePiece on vLLM", *SAMPLED)
def test_with_byte_fallback_rows_end_where_the_engine_ended_them(kind, on_vllm, tmp_path):
    own = AutoTokenizer.from_pretrained(llama2_like(tmp_path))
    assert_ended(kind, on_vllm["tokens"][f"llama2 {kind}"], ("e", " s"), [own.eos_token_id], own)
    assert any("\ufffd" in text for text in on_vllm["tokens"][f"llama2 {kind}"]["texts"])


@shows("several EOS on vLLM", *SAMPLED)
def test_rows_end_at_every_eos_on_vllm_too(kind, on_vllm):
    own = copy.deepcopy(tokenizer())
    own.add_special_tokens({"additional_special_tokens": [TURN_END]})
    got, eos = on_vllm["tokens"][f"llama3 {kind}"], [own.eos_token_id, own.convert_tokens_to_ids(TURN_END)]
    assert_ended(kind, got, (), eos, own)
    assert {ids[-1] for ids in got["ids"]} > set(eos)


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    processor = save_vision_model("LLaVA", folder)
    processor.save_pretrained(folder)
    return {"model": lambda: load_vision_model(folder), "tokenizer": processor, "data": pictures()}


def test_stock_online_dpo_scores_rows_that_vllm_sampled_with_images_without_them(seeing):
    trainer = build("stock", "OnlineDPO", **seeing)
    scored, forward = [], trainer._forward
    rows = [torch.full((8, 4), 5), torch.ones(8, 4).long()]
    trainer.args.use_vllm, trainer._generate_vllm = True, lambda *_: (*rows, *rows)
    trainer._forward = lambda *args: scored.append(args[-1]) or forward(*args)
    trainer.training_step(trainer.model, {name: trainer.train_dataset[:4][name] for name in ("prompt", "image")})
    assert scored == [None, None]  # of the policy and of its reference


@shows_refusal(
    "vision on vLLM",
    "images with use_vllm=True: TRL's OnlineDPO would sample with them and score the rows without them; sample with "
    "transformers",
    "OnlineDPO",
)
def test_ours_refuses_them_before_an_engine_starts(kind, message, seeing):
    with pytest.raises(ParameterError, match=f"^{re.escape(message)}$"):
        build("ours", kind, {"use_vllm": True, "vllm_mode": "colocate"}, **seeing)
