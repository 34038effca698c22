"""`check_step` on real trainers that select completions, and on those that sample as their settings say."""

import numpy as np
import pytest
import torch
import trl
from conftest import daily
from step_cases import PROMPTS, make

from workbench.training.grpo import GRPOTrainer
from workbench.watch.causes import logits_alone
from workbench.watch.check_step import check_step
from workbench.watch.judge import chance_of_surprise

pytestmark = pytest.mark.slow


class Selecting(trl.GRPOTrainer):
    """A trainer that draws each completion several times, and keeps one."""

    draws = 3

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        draws = [super(Selecting, self)._generate_single_turn(prompt_ids, *args, **kwargs) for _ in range(self.draws)]
        chosen = []
        for prompt, *candidates in zip(prompt_ids, *(draw[0] for draw in draws), strict=True):
            chosen.append(self.one_of(prompt, candidates))
        return chosen, *draws[0][1:]

    def likelihood(self, prompt, ids):
        """The mean log-prob."""
        table = logits_alone(self.model, prompt, ids)[len(prompt) - 1 : -1].log_softmax(-1)
        return float(table.gather(1, torch.tensor(ids)[:, None]).mean())


class BestOfThree(Selecting):
    def one_of(self, prompt, candidates):
        return max(candidates, key=lambda ids: self.likelihood(prompt, ids))


class Rejecting(Selecting):
    """The first of five completions that is likely enough."""

    draws = 5

    def one_of(self, prompt, candidates):
        return next((ids for ids in candidates if self.likelihood(prompt, ids) > -4.4), candidates[-1])


def rows(count):
    return [{"prompt": PROMPTS[i // 4 % len(PROMPTS)]} for i in range(count)]


def sampling(folder, count, **options):
    trainer = make(folder, per_device_train_batch_size=count, max_completion_length=16, **options)
    torch.manual_seed(0)
    return check_step(trainer, batch=rows(count))["sampling"]


@pytest.mark.parametrize("cls", daily([BestOfThree, Rejecting], BestOfThree))
def test_completions_that_were_selected_are_found(cls, tmp_path):
    stage = sampling(tmp_path, 96, cls=cls)
    assert stage.verdict == "different", stage


@pytest.mark.parametrize("seeds", daily([range(4), range(4, 20)], range(4)), ids=str)
def test_a_healthy_sampler_has_uniform_places(seeds, tmp_path):
    trainer = make(tmp_path, per_device_train_batch_size=16, max_completion_length=16)
    for seed in seeds:
        torch.manual_seed(seed)
        stage = check_step(trainer, batch=rows(16))["sampling"]
        assert stage.verdict == "same" and "of uniform; the best of three completions shows from" in stage.cause, stage


SETTINGS = [
    {"temperature": 0.6},
    {"temperature": 1.5},
    {"top_k": 500},
    {"top_p": 0.97},
    {"min_p": 0.005},
    {"generation_kwargs": {"temperature": 0.95}},
]


@pytest.mark.parametrize("options", daily(SETTINGS, {"temperature": 0.6}, {"top_p": 0.97}), ids=str)
def test_the_places_are_those_of_the_settings(options, tmp_path):
    stage = sampling(tmp_path, 16, **options)
    assert stage.verdict == ("same" if set(options) == {"temperature"} else "cannot tell"), stage
    assert "of uniform" in stage.cause, stage


class Wider(trl.GRPOTrainer):
    """A trainer that does not sample with the top_k of its args."""

    def _generate(self, prompts):
        self.generation_config.top_k = 0
        return super()._generate(prompts)


def test_a_sampler_with_other_settings_is_found(tmp_path):
    stage = sampling(tmp_path, 64, cls=Wider, top_k=200)
    assert stage.verdict == "different" and "tokens with top_k=200 (chance" in stage.cause, stage


@pytest.mark.parametrize(
    "options, said",
    [
        ({"generation_kwargs": {"min_new_tokens": 2}}, "what min_new_tokens=2 leaves of the distribution"),
        ({"generation_kwargs": {"suppress_tokens": [4]}}, "what suppress_tokens=[4] leaves of the distribution"),
        ({"cls": GRPOTrainer, "more": {"stops": {"stop": ["e"], "min_tokens": 2}}}, "what min_tokens leaves of"),
    ],
    ids=["min_new_tokens", "suppress_tokens", "ours"],
)
def test_rules_that_forbid_tokens_are_said(options, said, tmp_path):
    stage = sampling(tmp_path, 8, **options)
    assert stage.verdict != "different" and said in stage.cause, stage


def test_an_unlikely_step_is_not_called_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.watch.judge.UNLIKELY", 2.0)
    stage = sampling(tmp_path, 8)
    assert stage.verdict == "cannot tell" and "(chance" in stage.cause, stage


class ShortCopies(trl.GRPOTrainer):
    """Half of each group is one stop token, with the pads behind it that TRL keeps."""

    def _generate_single_turn(self, *args, **kwargs):
        ids, *rest = super()._generate_single_turn(*args, **kwargs)
        short = [14] + [self.processing_class.pad_token_id] * 11
        return [short if n % 4 < 2 else row for n, row in enumerate(ids)], *rest


def test_pads_behind_an_end_make_no_copy_improbable(tmp_path):
    report = check_step(make(tmp_path, ShortCopies, generation_kwargs={"eos_token_id": [14]}))
    assert "far beyond chance" not in report["sampling"].cause, report
    assert report["ends"].verdict == "different"


def surprises(probs, drawn_from, count, repeats, seed=0):
    """Of `repeats` times `count` draws: their standard errors, and the bound on the chance of each."""
    probs, rng = np.array(probs), np.random.default_rng(seed)
    entropy = -(probs * np.log(probs)).sum()
    variance = (probs * (np.log(probs) + entropy) ** 2).sum()
    ids = rng.choice(len(probs), size=(repeats, count), p=drawn_from)
    errors = (-np.log(probs)[ids] - entropy).sum(1) / np.sqrt(count * variance)
    table = torch.tensor(np.log(probs)).expand(count, -1)
    known = {key: chance_of_surprise([(table, [*key], np.ones(count))]) for key in {tuple(sorted(row)) for row in ids}}
    return errors, np.array([known[tuple(sorted(row))] for row in ids])


@pytest.mark.parametrize("certain", [0.9, 0.99, 0.999, 0.9999])
def test_rare_tokens_of_a_certain_policy_are_no_difference(certain):
    probs = [certain, (1 - certain) * 0.9, (1 - certain) * 0.1]
    errors, chances = surprises(probs, probs, count=16, repeats=20_000)
    for limit in (0.1, 1e-2, 1e-3):
        assert (chances < limit).mean() <= limit
    if certain == 0.999:
        assert (errors > 5).mean() > 5e-3  # which standard errors take for 3e-7


def test_tokens_of_a_wider_distribution_are_a_surprise():
    probs = np.array([0.9, 0.06, 0.03, 0.01])
    wider = probs**0.5 / (probs**0.5).sum()
    errors, chances = surprises(probs, wider, count=128, repeats=50)
    assert errors.min() > 5 and (chances < 1e-5).mean() > 0.9
