"""Users' subclasses that override TRL's own methods train on ours as on stock TRL, and the record holds what was scored."""

import functools
import inspect
import math
import sys
import textwrap
from unittest import mock

import pytest
import trl
from configuration_models import SHORT, short_ids, takes_roots
from configuration_runs import build, watched
from conftest import need
from torch.utils.data import DataLoader
from trainers import OURS, STOCK

from workbench.errors import ParameterError
from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.generation.stops import StopSpec
from workbench.runs.run import Run
from workbench.training.ppo_rewards import NotifyingLoader
from workbench.training.rows import EndError

pytestmark = pytest.mark.slow

BOTH = pytest.mark.parametrize("kind", ["GRPO", "RLOO"])


def rewarded(completions, **_):
    return [float(len(text)) for text in completions]


def built(cls, kind: str = "GRPO", fields=None, **options):
    """Our trainer, of a class of the user's."""
    return build("ours", kind, fields, **{"rewards": rewarded, "subclass": lambda _: cls} | options)


@BOTH
def test_rewards_that_a_subclass_changes_are_recorded_changed(kind, tmp_path):
    got = watched("ours", kind, rewards=rewarded, subclass=takes_roots, record_dir=tmp_path)
    rows = got.rows.query("step == 1")
    assert rows["reward"].mean() == pytest.approx(got.log[0]["reward"], rel=1e-5)
    assert rows["reward"].tolist() == pytest.approx([math.sqrt(len(text)) for text in rows["completion"]], rel=1e-5)


def test_rows_that_a_subclass_cuts_are_recorded_cut(tmp_path):
    class Cut(OURS["GRPO"]):
        def _generate(self, prompts):
            first, rows, mask, _, *rest = super()._generate(prompts)
            rows = [list(row)[:SHORT] for row in rows]
            return first, rows, mask, self.processing_class.batch_decode(rows, skip_special_tokens=True), *rest

    seen = []

    def noting(completions, **_):
        seen.extend(completions)
        return rewarded(completions)

    built(Cut, rewards=noting, record_dir=tmp_path).train()
    rows = Run(tmp_path).completions
    assert rows["completion"].tolist() == seen and set(rows["completion_tokens"]) <= set(range(1, SHORT + 1))


def reads_otherwise(base, monkeypatch) -> None:
    """Let TRL's own counting take a row's last id out of a copy, as a release to come may do."""
    source = textwrap.dedent(inspect.getsource(base._generate))
    changed = source.replace("ids[-1] not in eos_and_pad", "list(ids)[-1] not in eos_and_pad")
    assert changed != source
    made: dict = {}
    exec(changed, vars(sys.modules[base.__module__]), made)
    monkeypatch.setattr(base, "_generate", made["_generate"])


@BOTH
def test_a_trl_that_reads_last_ids_otherwise_is_refused(kind, monkeypatch):
    trainer = built(OURS[kind], kind, stops=["e"])
    reads_otherwise(STOCK[kind], monkeypatch)
    with pytest.raises(EndError, match=r"trl .* counts .* of the completions as cut, by their ends it is 0"):
        trainer.train()


@BOTH
def test_rows_changed_between_trl_and_ours_are_refused(kind):
    class Longer(STOCK[kind]):
        def _generate(self, prompts):
            first, rows, *rest = super()._generate(prompts)
            return first, [[*row, 5] for row in rows], *rest

    class Between(OURS[kind], Longer):
        pass

    with pytest.raises(EndError, match="change rows in a child of this trainer"):
        built(Between, kind).train()


@BOTH
def test_trl_without_a_count_of_its_own_trains(kind):
    class Silent(STOCK[kind]):
        def _generate(self, prompts):
            generated = super()._generate(prompts)
            for metrics in self._metrics.values():
                metrics.pop("completions/clipped_ratio", None)
            return generated

    class Between(OURS[kind], Silent):
        pass

    trainer = built(Between, kind)
    trainer.train()
    assert trainer.state.global_step > 0


def test_a_rollout_function_that_comes_late_trains():
    trainer = built(OURS["GRPO"])

    def rollout(prompts, trainer):
        ids = [trainer.processing_class.encode(prompt) for prompt in prompts]
        return {"prompt_ids": ids, "completion_ids": short_ids(trainer, len(prompts)), "logprobs": None}

    trainer.rollout_func = rollout
    trainer.train()
    assert trainer.state.log_history[0]["completions/mean_length"] == SHORT


def test_trl_names_what_a_rollout_lacks_and_it_stays_as_it_is():
    given = {"prompt_ids": [], "completion_ids": []}
    trainer = build("ours", "GRPO", rollout_func=lambda prompts, trainer: given)
    with pytest.raises(ValueError, match=r"must return keys \['logprobs'\]"):
        trainer.train()
    assert given == {"prompt_ids": [], "completion_ids": []}


def test_a_checkpoint_a_subclass_stores_elsewhere_ends_nothing(tmp_path):
    class Elsewhere(OURS["GRPO"]):
        stored = 0

        def _save_checkpoint(self, *_):
            self.stored += 1

    trainer = built(Elsewhere, fields={"save_strategy": "steps", "save_steps": 1}, record_dir=tmp_path / "record")
    trainer.train()
    assert trainer.stored and not list((tmp_path / "record").rglob("complete.json"))


class AsyncBase:
    async def __call__(self, completions, **_):
        return rewarded(completions)


class AsyncReward(AsyncBase):
    pass


@pytest.mark.parametrize("reward", [AsyncReward(), functools.partial(AsyncReward())], ids=["inherited", "partial"])
def test_an_async_reward_of_any_form_is_awaited(reward):
    need(hasattr(trl.trainer.utils, "is_async_callable"), "a TRL that awaits more than plain async functions")
    trainer = built(OURS["GRPO"], rewards=reward)
    trainer.train()
    assert trainer.state.log_history[0]["reward"] > 0


def test_a_generator_is_an_answer_like_a_list():
    trainer = built(OURS["GRPO"], rewards=lambda completions, **_: (float(len(text)) for text in completions))
    trainer.train()
    assert trainer.state.log_history[0]["reward"] > 0


def test_an_early_stop_or_error_leaves_no_record_file_open(tmp_path):
    def breaks(completions, **_):
        raise RuntimeError("no server")

    trainer = built(OURS["GRPO"], rewards=breaks, record_dir=tmp_path)
    with pytest.raises(RuntimeError, match="no server"):
        trainer.train()
    assert trainer.recorder._file is None


def test_a_generate_of_ones_own_gets_no_unknown_argument():
    trainer = built(OURS["GRPO"])
    whole = trainer.model.generate

    def generate(input_ids, attention_mask=None, generation_config=None, disable_compile=None):
        return whole(input_ids, attention_mask=attention_mask, generation_config=generation_config)

    trainer.model.generate = generate
    trainer.train()
    assert trainer.state.global_step > 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stops": [10**6]}, "stop token id 1000000: outside the vocabulary"),
        ({"stops": StopSpec(min_tokens=10**4)}, "min_tokens=10000: no stop can match"),
        ({"record_steps": 3}, "record_steps=3: steps are saved in record_dir"),
        ({"record_steps": "three", "record_dir": "record"}, "record_steps=.three.: expected step numbers"),
    ],
)
def test_what_is_wrong_is_told_before_a_model_is_loaded(options, match, monkeypatch):
    loaded = mock.Mock()
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", loaded)
    args = trl.GRPOConfig("out", use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(ParameterError, match=match):
        OURS["GRPO"](resolve_model("starter"), rewarded, args, train_dataset=load_prompts("starter"), **options)
    assert not loaded.called


def test_a_new_training_moves_all_of_a_former_record_aside(tmp_path):
    for _ in range(2):
        built(OURS["GRPO"], record_dir=tmp_path).train()
    (former,) = tmp_path.glob("replaced-*")
    assert {"metrics.jsonl", "completions.jsonl", "recipe.json", "progress.json"} <= {
        path.name for path in former.iterdir()
    }
    assert (tmp_path / "recipe.json").exists()


def test_ppos_loader_has_what_a_loader_has():
    loader = NotifyingLoader(DataLoader([1, 2, 3], batch_size=2), None)
    assert loader.batch_size == 2 and loader.dataset == [1, 2, 3]


@BOTH
def test_a_child_that_scores_itself_reads_the_last_tokens(kind):
    def subclass(cls):
        class Scorer(cls):
            def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
                self.last = [(ids[-1], list(ids)[-1]) for ids in completion_ids_list]
                return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

        return Scorer

    trainer = build("ours", kind, {"max_completion_length": 2}, subclass=subclass, stops=StopSpec.never())
    trainer.train()
    assert trainer.last and all(one == other for one, other in trainer.last)
