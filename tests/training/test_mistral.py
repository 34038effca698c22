"""Mistral's tokenizer, which is no tokenizer of transformers' own kinds: a real tekken file, and a small random model."""

import functools
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from configuration_runs import build
from conftest import need
from datasets import Dataset
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

from workbench.generation.preflight import check_before_compute
from workbench.generation.stops import StopRule, StopSpec
from workbench.runs.run import Run
from workbench.training.rows import tokenizer_of
from workbench.watch.attach import attach_watch

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
PROMPTS = [{"prompt": f"What is {n}?"} for n in range(8)]
BOTH = pytest.mark.parametrize("kind", ["GRPO", "RLOO"])


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """A folder with a model and a tekken file, and the tokenizer that transformers makes of it."""
    need(find_spec("mistral_common"), "mistral-common, whose tokenizer it trains with")
    import mistral_common

    folder = tmp_path_factory.mktemp("mistral")
    shutil.copy(Path(mistral_common.__file__).parent / "data" / "tekken_240718.json", folder / "tekken.json")
    config = MistralConfig(vocab_size=131072, num_hidden_layers=1, **SIZES, eos_token_id=2, pad_token_id=11)
    MistralForCausalLM(config).save_pretrained(folder)
    own = AutoTokenizer.from_pretrained(folder, padding_side="left")
    assert type(own).__name__ == "MistralCommonBackend"
    return folder, own


def made(who, kind, mistral, **own):
    folder, tokenizer = mistral
    model = functools.partial(MistralForCausalLM.from_pretrained, folder)
    fields = {"max_steps": 1, "max_completion_length": 4}
    return build(who, kind, fields, model=model, tokenizer=tokenizer, data=Dataset.from_list(PROMPTS), **own)


@BOTH
@pytest.mark.parametrize("stops", [None, [".", 1000]])
def test_mistral_trains_with_and_without_stops(kind, stops, mistral, tmp_path):
    trainer = made("ours", kind, mistral, stops=stops, record_dir=tmp_path)
    trainer.train()
    assert tokenizer_of(trainer) is mistral[1]
    assert len(Run(tmp_path).completions) == 8


@BOTH
def test_watch_stays_on_with_stock_on_mistral(kind, mistral):
    trainer = made("stock", kind, mistral)
    watch = attach_watch(trainer, every=1)
    trainer.train()
    assert watch.on and set(Run(watch.recorder.record_dir).completions["finish_reason"]) <= {"stop", "length"}


def test_preflight_for_vllm_takes_mistrals_tokenizer(mistral):
    folder, tokenizer = mistral
    need(find_spec("vllm"), "vLLM, whose engine it prepares")
    args = build("stock", "GRPO").args
    args.use_vllm, args.vllm_mode = True, "colocate"
    check_before_compute(str(folder), args, StopSpec(stop=(".",)), tokenizer)


def test_special_ids_of_mistral_stay_out_of_the_text(mistral):
    tokenizer = mistral[1]
    rule, word = StopRule(StopSpec(), tokenizer), tokenizer.encode("word", add_special_tokens=False)
    ids = [*word, tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert rule.text(ids, rule.find_end(ids)) == "word"
