"""Prompts that are plain strings, on a model with a chat template: TRL applies none to them and says nothing."""

import ast
import re
import warnings

import pytest
import trl
from datasets import Dataset, IterableDataset
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from workbench.audit.report import audit_run
from workbench.experiments.recipes import grpo_config, make_recipe
from workbench.generation.stops import StopSpec
from workbench.training.grpo import GRPOTrainer, RLOOTrainer
from workbench.training.rewards import length_reward
from workbench.training.updates import has_plain_prompts, warn_before_training
from workbench.watch.attach import attach_watch

pytestmark = pytest.mark.slow

# Turns end at the EOS, as an instruct model's do, or at a text that is none, as those of a base model's template.
TURNS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}END {% endfor %}"
RECIPE = make_recipe("starter", max_steps=1, num_generations=2, per_device_train_batch_size=4, max_completion_length=4)
PLAIN, MESSAGES = "go on", [{"role": "user", "content": "go on"}]
SAYS = "prompts are plain strings.*message lists only"


def prompts(prompt):
    return Dataset.from_list([{"prompt": prompt}] * 4)


def make(cls, folder, starter_folder, prompt=PLAIN, stops=None, **options):
    """A trainer on the starter with an instruct model's template; its TRL argument names come last."""
    tokenizer = AutoTokenizer.from_pretrained(starter_folder, padding_side="left")
    tokenizer.chat_template = TURNS.replace("END", tokenizer.eos_token)
    config = trl.RLOOConfig if issubclass(cls, trl.RLOOTrainer) else trl.GRPOConfig
    args = grpo_config(RECIPE, folder, config, **options)
    about = {"train_dataset": prompts(prompt), "processing_class": tokenizer}
    if stops is not None:
        about["stops"] = stops
    return cls(str(starter_folder), length_reward(), args, **about)


@pytest.fixture(scope="module")
def stock(tmp_path_factory, starter_folder):
    return make(trl.GRPOTrainer, tmp_path_factory.mktemp("stock"), starter_folder)


@pytest.mark.parametrize(
    "data, end, plain",
    [
        (prompts(PLAIN), None, True),
        (prompts(MESSAGES), None, False),
        (prompts("[user] go on"), None, False),  # the template was applied by hand
        (prompts(PLAIN), "<|end|>", False),  # a base model's template
        (prompts(PLAIN), "", False),
        (IterableDataset.from_generator(lambda: [{"prompt": PLAIN}]), None, False),
    ],
    ids=["plain", "messages", "templated", "base", "template_without_end", "stream"],
)
def test_plain_prompts_are_known_by_template_and_eos(stock, monkeypatch, data, end, plain):
    monkeypatch.setattr(stock, "train_dataset", data)
    template = TURNS.replace("END", stock.processing_class.eos_token if end is None else end)
    monkeypatch.setattr(stock.processing_class, "chat_template", template)
    assert has_plain_prompts(stock) is plain
    monkeypatch.setattr(stock.processing_class, "chat_template", None)
    assert has_plain_prompts(stock) is False


def test_our_trainer_warns_of_plain_prompts(tmp_path, starter_folder):
    with pytest.warns(UserWarning, match=SAYS) as caught:
        make(GRPOTrainer, tmp_path, starter_folder)
    assert [one.filename for one in caught if "plain strings" in str(one.message)] == [__file__]
    with warnings.catch_warnings(record=True) as said:
        warnings.filterwarnings("ignore", "prompts are plain strings")
        make(GRPOTrainer, tmp_path, starter_folder)
    assert not any("plain strings" in str(one.message) for one in said)


def test_stock_trl_says_nothing_of_plain_prompts_the_watch_does(tmp_path, starter_folder):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer = make(trl.GRPOTrainer, tmp_path, starter_folder, generation_kwargs={"suppress_tokens": [0, 1]})
    assert not any("plain" in str(one.message) or "template" in str(one.message) for one in said)
    with pytest.warns(UserWarning, match=SAYS):
        watch = attach_watch(trainer)
    trainer.train()  # without EOS and pad no completion stops
    (run,) = audit_run(watch.recorder.record_dir).runs
    assert any("Write prompts as messages" in finding.advice for finding in run.findings)


def adds(tokenizer, single):
    """The tokenizer, which now adds special tokens to a text as Llama's does."""
    known = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<|bos|>", tokenizer.eos_token)]
    processor = TemplateProcessing(single=single, special_tokens=known)
    tokenizer.backend_tokenizer.post_processor = processor


@pytest.mark.parametrize("cls", [trl.GRPOTrainer, trl.RLOOTrainer], ids=["GRPO", "RLOO"])
@pytest.mark.parametrize(
    "prompt, single, says",
    [
        ("<|bos|>[user] go on", "<|bos|> $A", r"begin with '<\|bos\|>' twice"),
        ("[user] go on", "<|bos|> $A", None),
        ("[user] go on", "<|bos|> $A EOS", "end with .*, which the tokenizer adds"),
        ("[user] go on EOS", "<|bos|> $A", None),
        (MESSAGES, "<|bos|> $A EOS", None),
    ],
    ids=["two BOS", "one BOS", "an EOS", "an EOS of the text", "messages"],
)
def test_a_second_bos_and_an_added_eos_are_known(tmp_path, starter_folder, cls, prompt, single, says):
    trainer = make(cls, tmp_path, starter_folder)
    tokenizer = trainer.processing_class
    tokenizer.add_special_tokens({"bos_token": "<|bos|>"})
    trainer.model.resize_token_embeddings(len(tokenizer))
    adds(tokenizer, single.replace("EOS", tokenizer.eos_token))
    if ends_itself := prompt == "[user] go on EOS":
        prompt = prompt.replace(" EOS", tokenizer.eos_token)
    trainer.train_dataset = prompts(prompt)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_before_training(trainer)
    said = [str(one.message) for one in caught if re.search("begin with|end with", str(one.message))]
    assert len(said) == (says is not None) and all(re.search(says, one) for one in said), said
    ids = trainer._tokenize_prompts([prompt])[0][0]  # what is said is so in TRL
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert (ids[:2] == [bos, bos]) == ("twice" in (says or ""))
    assert (ids[-1] == eos) == (ends_itself or (single.endswith("EOS") and isinstance(prompt, str)))


@pytest.mark.parametrize("ids, says", [([1, 1, 7], True), ([1, 7, 0], False)], ids=["two BOS", "one"])
def test_a_second_bos_is_known_in_tokens_that_are_given(tmp_path, starter_folder, ids, says):
    trainer = make(trl.GRPOTrainer, tmp_path, starter_folder)
    trainer.processing_class.bos_token = trainer.processing_class.convert_ids_to_tokens(1)
    trainer.train_dataset = Dataset.from_list([{"input_ids": ids, "prompt": MESSAGES}] * 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_before_training(trainer)
    assert any("twice" in str(one.message) for one in caught) is says
    assert not any("end with" in str(one.message) for one in caught)


@pytest.mark.parametrize(
    "own, option",
    [(GRPOTrainer, {"stop": ["a", "e"]}), (RLOOTrainer, {"stop_token_ids": [70, 71]})],
    ids=["GRPO", "RLOO"],
)
def test_a_step_trains_with_what_the_watch_says_of_a_stop(tmp_path, starter_folder, own, option):
    ((name, stops),) = option.items()
    trainer = make(getattr(trl, own.__name__), tmp_path, starter_folder, MESSAGES, generation_kwargs=option)
    with pytest.warns(UserWarning, match=f"'{name}': unknown to transformers.* ignore") as said:
        attach_watch(trainer)
    (hint,) = [str(one.message) for one in said if name in str(one.message)]
    match = re.search(r"use GRPOTrainer or RLOOTrainer of workbench with stops=(\[.*?\])", hint)
    assert match, hint
    trainer = make(own, tmp_path / "own", starter_folder, MESSAGES, stops=ast.literal_eval(match[1]))
    trainer.train()
    assert trainer.state.global_step == 1 and StopSpec.of(stops) == trainer.stop_rule.spec
