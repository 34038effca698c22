"""Prompts that are plain strings, on a model with a chat template: TRL applies none to them and says nothing."""

import warnings

import pytest
import trl
from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer

from workbench.audit.report import audit_run
from workbench.experiments.recipes import grpo_config, make_recipe
from workbench.training.grpo import GRPOTrainer
from workbench.training.rewards import length_reward
from workbench.training.updates import has_plain_prompts
from workbench.watch.attach import attach_watch

pytestmark = pytest.mark.slow

# Turns end at the EOS, as an instruct model's do, or at a text that is none, as those of a base model's template.
TURNS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}END {% endfor %}"
RECIPE = make_recipe("starter", max_steps=1, num_generations=2, per_device_train_batch_size=4, max_completion_length=4)
PLAIN, MESSAGES = "go on", [{"role": "user", "content": "go on"}]
SAYS = "prompts are plain strings.*message lists only"


def prompts(prompt):
    return Dataset.from_list([{"prompt": prompt}] * 4)


def make(cls, folder, starter_folder, prompt=PLAIN, **options):
    """A trainer on the starter with an instruct model's template; its TRL argument names come last."""
    tokenizer = AutoTokenizer.from_pretrained(starter_folder, padding_side="left")
    tokenizer.chat_template = TURNS.replace("END", tokenizer.eos_token)
    args = grpo_config(RECIPE, folder, **options)
    data = prompts(prompt)
    return cls(str(starter_folder), length_reward(), args, train_dataset=data, processing_class=tokenizer)


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
    with pytest.warns(UserWarning, match=SAYS):
        make(GRPOTrainer, tmp_path, starter_folder)
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


def test_watch_names_an_option_that_transformers_ignores(tmp_path, starter_folder):
    trainer = make(trl.GRPOTrainer, tmp_path, starter_folder, MESSAGES, generation_kwargs={"stop": ["a"]})
    with pytest.warns(UserWarning, match="'stop': unknown to transformers; did you mean 'stop_strings'.* is ignored"):
        attach_watch(trainer)
