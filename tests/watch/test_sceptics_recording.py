"""What a sceptic found in the recording of a step: healthy steps that could not be checked, and faults that passed as same."""

import copy
import functools
import inspect

import numpy as np
import pytest
import torch
import trl
from peft import LoraConfig, PeftModel, get_peft_model
from step_cases import PROMPTS, length, make, vowels
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

from workbench import check_step
from workbench.errors import RunError
from workbench.experiments.recipes import resolve_model
from workbench.replay.file import replay_step
from workbench.training.match_rows import UnsampledRow, match_rows
from workbench.training.record_rewards import Hearing, apart, heard, is_same, reads
from workbench.training.recording import StepRecorder
from workbench.training.rewards import is_async, name_of
from workbench.training.step_record import StepRecord
from workbench.watch.attach import StepCheck

pytestmark = pytest.mark.slow

OF_ROWS = ("sampling", "ends", "mask", "rewards", "advantages")


def policy():
    return AutoModelForCausalLM.from_pretrained(resolve_model("starter"))


def undecided(report):
    return [stage.name for stage in report.stages if stage.verdict == "cannot tell"]


def strips_ids(completion_ids, **_):
    lengths = [len(ids) for ids in completion_ids]
    for ids in completion_ids:
        del ids[1:]
    return [length / 10 for length in lengths]


@pytest.mark.parametrize("funcs", [[strips_ids], [strips_ids, length]])
def test_a_function_that_strips_its_ids_changes_no_row(funcs, tmp_path):
    report = check_step(make(tmp_path, funcs=funcs))
    assert report.first is None and not undecided(report), report


def pops(completions, tests, **_):
    return [
        float(any(part in text for part in [t.pop() for _ in range(len(t))]))
        for text, t in zip(completions, tests, strict=True)
    ]


def counts(completions, tests, **_):
    return [len(t) + len(text) / 50 for text, t in zip(completions, tests, strict=True)]


def counts_of_all(completions, **columns):
    return counts(completions, columns["tests"])


def may_count(completions, **columns):
    return [len(text) / 50 for text in completions]


WRITERS = {
    "first": ([pops, counts], "different", "pops writes into 'tests', which counts reads after it"),
    "first, by a name": ([pops, counts_of_all], "different", "pops writes into 'tests', which counts_of_all reads"),
    "first, perhaps": ([pops, may_count], "cannot tell", "which may_count gets after it and may read"),
    "last": ([counts, pops, length], "same", "3 functions, 8 rows"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_function_that_empties_a_column_is_named(name, tmp_path):
    funcs, verdict, said = WRITERS[name]
    trainer = make(tmp_path, funcs=funcs)
    rows = [{"prompt": prompt, "tests": ["s", "e"]} for prompt in PROMPTS[:2] for _ in range(4)]
    rewards = check_step(trainer, batch=rows)["rewards"]
    assert rewards.verdict == verdict and said in rewards.cause, rewards
    assert all(row["tests"] == ["s", "e"] for row in rows)  # which a watched training is about to train


def test_rows_that_share_a_list_are_told(tmp_path):
    tests = ["s", "e"]
    rows = [{"prompt": prompt, "tests": tests} for prompt in PROMPTS[:2] for _ in range(4)]
    rewards = check_step(make(tmp_path, funcs=[pops]), batch=rows)["rewards"]
    assert rewards.verdict == "cannot tell" and "of which rows 0, 1, 2, 3, 4, ... have one object" in rewards.cause


def test_equal_values_are_the_same_whatever_holds_them():
    table, vector = {"a": [1, (2.0, None)]}, torch.tensor([1.0, torch.nan])
    assert is_same(table, {"a": [1, (2.0, None)]}) and not is_same(table, {"a": [1, (2.5, None)]})
    assert is_same([vector, vector.numpy()], [vector.clone(), vector.numpy().copy()])
    assert not is_same([vector], [vector[:1]]) and not is_same([vector], [vector + 1])


class Row(dict):
    """A row with something of its own."""

    def __copy__(self):
        raise TypeError("there is one of me")


def test_what_a_function_may_write_into_is_kept_apart():
    shared = ["a"]
    row = {"tests": shared, "also": shared, "table": {"a": [1]}, "array": np.zeros(2), "image": object()}
    own = apart(row)
    assert own["tests"] is own["also"] and own["image"] is row["image"] and is_same(own, row)
    shared.clear(), row["table"]["a"].append(2), row["array"].fill(1)
    assert own["tests"] == ["a"] and own["table"] == {"a": [1]} and not own["array"].any()
    alone = Row(a=1)
    assert apart([alone])[0] is alone


class SamplesAgain(trl.GRPOTrainer):
    """Samples three times and takes the last, as DAPO does until the rewards of each group differ."""

    def _generate_and_score_completions(self, inputs):
        for _ in range(3):
            output = super()._generate_and_score_completions(inputs)
        return output


class CallsItself(trl.GRPOTrainer):
    tries = 0

    def _generate_and_score_completions(self, inputs):
        self.tries += 1
        output = super()._generate_and_score_completions(inputs)
        return self._generate_and_score_completions(inputs) if self.tries % 3 else output


def rows_of(output, rows):
    kept = {name: value[rows] if torch.is_tensor(value) and value.dim() else value for name, value in output.items()}
    return kept | {"num_items_in_batch": kept["completion_mask"].sum()}


class Best(trl.GRPOTrainer):
    """Trains the half of each group whose advantages are largest, as PODS and GFPO do."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        size = self.num_generations
        best = output["advantages"].abs().view(-1, size).topk(size // 2, dim=1).indices
        return rows_of(output, (best + torch.arange(len(best))[:, None] * size).flatten())


class Demonstrated(trl.GRPOTrainer):
    """Puts two completions that nobody sampled behind the sampled ones."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        more = rows_of(output, torch.tensor([*range(8), 0, 4]))
        more["completion_ids"][8:] = self.processing_class.pad_token_id
        more["completion_ids"][8:, :3] = torch.tensor([60, 61, 62])
        more["completion_mask"][8:] = more["completion_ids"][8:] > 0
        return rows_of(more, torch.arange(10))


@pytest.mark.parametrize("cls", [SamplesAgain, CallsItself])
@pytest.mark.parametrize("shifted", [False, True])
def test_the_last_of_several_samplings_is_checked(cls, shifted, tmp_path):
    class Shifted(cls):
        def _calculate_rewards(self, *args):
            rewards = super()._calculate_rewards(*args)
            return rewards.roll(1, 0) if shifted else rewards

    report = check_step(make(tmp_path, cls=Shifted, beta=0.1))
    assert not undecided(report) and "turns" not in [stage.name for stage in report.stages], report
    assert (report.first.name if report.first else None) == ("rewards" if shifted else None), report


def test_rows_are_found_by_their_tokens_last_samples_first():
    record = StepRecord(finish_reasons=["stop", "length", "stop", "length"])
    record.generated = [([[1], [2]], [[5, 6], [7, 0]]), ([[1], [2]], [[5, 6], [8]])]
    record.turns = [([[1], [2]], [[5, 6], [7, 0]]), ([[1], [2]], [[5, 6], [8]])]
    record.rewards, record.scored, record.texts = [torch.zeros(2, 1)] * 2, [[0.0, 0.0]] * 2, [("", "")] * 4
    before = dict.fromkeys(("generated", "rewards", "scored", "texts", "turns", "finish_reasons"), 0)
    ids = torch.tensor([[7, 0], [5, 6]])  # padded with 0
    output = {"completion_ids": ids, "completion_mask": (ids > 0).int()}
    output |= {"prompt_ids": torch.tensor([[0, 2], [0, 1]]), "prompt_mask": torch.tensor([[0, 1], [0, 1]])}
    taken = copy.deepcopy(record)
    taken.outputs = [output]
    match_rows(taken, before, pad=0)
    assert taken.generated == [([[2], [1]], [[7, 0], [5, 6]], None, None)]
    assert taken.finish_reasons == ["length", "stop"] and len(taken.turns) == 1 and len(taken.turns[0][1]) == 4
    assert taken.selected == "the loss takes 2 of 4 sampled completions" and not taken.texts
    strange = copy.deepcopy(record)
    strange.outputs = [output | {"completion_ids": torch.tensor([[7, 0], [5, 9]])}]
    match_rows(strange, before, pad=0)
    assert [type(row) for row in strange.generated[0][1]] == [list, UnsampledRow]
    assert not strange.turns and not strange.finish_reasons
    assert strange.selected == "1 of 2 rows of the loss are of no completion that was sampled here"
    last = copy.deepcopy(record)
    last.outputs = [
        output | {"completion_ids": torch.tensor([[5, 6], [8, 0]]), "prompt_ids": torch.tensor([[0, 1], [0, 2]])}
    ]
    last.judged_otherwise = {"prompts": {0, 3}}
    match_rows(last, before, pad=0)
    assert last.generated == record.generated[1:] and len(last.rewards) == len(last.scored) == len(last.turns) == 1
    assert last.finish_reasons == ["stop", "length"] and len(last.texts) == 2 and not last.noticed
    assert last.judged_otherwise == {"prompts": {1}}


class SamplesByItself(trl.GRPOTrainer):
    """Trains the rows of an earlier generation, as from a buffer; nothing is sampled then."""

    def _generate_and_score_completions(self, inputs):
        self.kept.append(self.kept[0] if self.kept else super()._generate_and_score_completions(inputs))
        return self.kept[0]


def test_rows_of_an_own_buffer_are_not_followed(tmp_path):
    trainer = make(tmp_path, cls=SamplesByItself)
    trainer.kept = []
    assert check_step(trainer).first is None and len(trainer.kept) == 1
    report = check_step(trainer)
    assert undecided(report) == [*OF_ROWS] and report.first is None, report
    assert "8 of 8 rows of the loss are of no completion that was sampled here" in report["rewards"].cause


SELECTED = {
    "the best": (Best, "the loss takes 8 of 16 sampled completions", ["rewards", "advantages"]),
    "and others": (Demonstrated, "2 of 10 rows of the loss are of no completion that was sampled here", [*OF_ROWS]),
}


@pytest.mark.parametrize("name", SELECTED)
def test_a_loss_that_takes_other_rows_is_checked(name, tmp_path):
    cls, said, unknown = SELECTED[name]
    several = {"num_generations": 8, "per_device_train_batch_size": 16} if cls is Best else {}
    report = check_step(make(tmp_path, cls=cls, **several))
    assert report.first is None and undecided(report) == unknown, report
    assert all(said in report[stage].cause for stage in unknown), report


@pytest.mark.parametrize("cls", [Best, Demonstrated, SamplesAgain])
def test_a_kept_step_of_other_rows_can_be_replayed(cls, tmp_path):
    trainer = make(tmp_path, cls=cls, max_steps=1, disable_tqdm=True)
    StepRecorder(trainer, tmp_path, 1)
    trainer.train()
    report = replay_step(next(tmp_path.glob("steps/step-*.gz")))
    assert report.first is None, report


class Scorer:
    """A reward that is an object: a trainer of the user's own talks to it."""

    step, called = 0, 0

    def set_step(self, step):
        self.step = step

    def __call__(self, completions, **_):
        return [len(text) / (10 + self.step) for text in completions]


class LaterScorer(Scorer):
    async def __call__(self, completions, **_):
        return [len(text) / (10 + self.step) for text in completions]


class Tells(trl.GRPOTrainer):
    def _calculate_rewards(self, *args):
        for function in self.reward_funcs:
            assert isinstance(function, Scorer) and self.table[function] == "mine"
            function.set_step(self.state.global_step)
            function.called += 1
        return super()._calculate_rewards(*args)


# An older TRL awaits no object: its training fails.
SCORERS = [Scorer, *([LaterScorer] if hasattr(trl.trainer.utils, "is_async_callable") else [])]


def equal_at_first(completions, **_):
    return [1.0 if i < 4 else len(text) / 10 for i, text in enumerate(completions)]


class WithoutEqualGroups(trl.GRPOTrainer):
    def _compute_loss(self, model, inputs):
        kept, tables = inputs["advantages"] != 0, ("prompt", "completion", "advantages")
        own = {name: x[kept] if name.startswith(tables) else x for name, x in inputs.items()}
        return super()._compute_loss(model, own)


def test_a_loss_of_some_of_its_rows_is_told(tmp_path):
    trainer = make(tmp_path, cls=WithoutEqualGroups, funcs=[equal_at_first], loss_type="grpo", max_steps=1)
    check = StepCheck(trainer, 1)
    trainer.train()
    report = check.reports[1]
    assert report.first is None and report["advantages"].verdict == "same", report
    for name in ("loss", "gradient"):
        assert report[name].verdict == "cannot tell" and report[name].cause == "the loss scores 4 of 8 rows", report


@pytest.mark.parametrize("kind", SCORERS)
def test_a_reward_that_is_an_object_stays_one(kind, tmp_path):
    reward = kind()
    trainer = make(tmp_path, cls=Tells, funcs=[reward])
    trainer.table = {reward: "mine"}
    report = check_step(trainer)
    assert report.first is None and report["rewards"].verdict == "same", report
    assert reward.called == 1 and trainer.reward_funcs == [reward] and type(trainer.reward_funcs[0]) is kind


def test_what_listens_to_a_function_passes_for_it():
    async def later(completions, scale=1.0, **_):
        return [scale for _ in completions]

    hearing = Hearing(torch.nn.Module(), None, {})
    for function in (length, later, functools.partial(later, scale=2.0), Scorer(), LaterScorer(), Scorer().__call__):
        noting = heard(function, [], hearing, None)
        assert callable(noting) and noting == function and hash(noting) == hash(function)
        assert inspect.signature(noting) == inspect.signature(function)
        assert is_async(noting) == is_async(function) and name_of(noting) == name_of(function)
        assert inspect.iscoroutinefunction(noting) == inspect.iscoroutinefunction(function)
        if not inspect.ismethod(function):
            noting.note = 3
            assert function.note == 3
        assert reads(function, "completions") and reads(function, "tests") is False


def curriculum(completions, trainer_state, **_):
    done = (trainer_state.global_step + trainer_state.epoch / trainer_state.num_train_epochs) / trainer_state.max_steps
    return [(1 - done) * len(text) / 10 + done for text in completions]


@pytest.mark.parametrize(
    "fields, expected", [({}, (6, 3)), ({"max_steps": 5}, (5, 3)), ({"num_iterations": 2}, (12, 3))]
)
def test_a_reward_can_ask_how_long_the_training_is(fields, expected, tmp_path):
    asked = []

    def noted(trainer_state, **columns):
        asked.append((trainer_state.max_steps, trainer_state.num_train_epochs))
        return curriculum(trainer_state=trainer_state, **columns)

    trainer = make(tmp_path, funcs=[noted, vowels], disable_tqdm=True, **fields)
    assert check_step(trainer).first is None and trainer.state.max_steps == 0
    trainer.train()
    assert set(asked) == {expected}


def test_a_length_that_is_not_known_is_told(tmp_path):
    trainer = make(tmp_path, funcs=[curriculum])
    trainer.train_dataset = None
    with pytest.raises(RunError, match=r"state.max_steps is 0.*attach_watch\(trainer, check_every=100\)"):
        check_step(trainer, batch=[{"prompt": PROMPTS[0]}] * 8)


def scheduled(optimizer):
    return get_cosine_schedule_with_warmup(optimizer, 2, 6)


def of_another(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3), scheduled(torch.optim.AdamW(model.parameters(), lr=1e-3))


def of_its_own(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = scheduled(optimizer)
    optimizer.step(), schedule.step()
    return optimizer, schedule


def alone(model):
    return None, scheduled(torch.optim.AdamW(model.parameters(), lr=1e-3))


@pytest.mark.parametrize("made, verdict", [(of_another, "different"), (alone, "different"), (of_its_own, "same")])
def test_a_scheduler_of_another_optimizer_is_named(made, verdict, tmp_path):
    model = policy()
    trainer = make(tmp_path, model=model, more={"optimizers": made(model)}, max_steps=2, disable_tqdm=True)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    before = check_step(trainer)["update"]
    trainer.train()
    for update in (before, check.reports[2]["update"]):
        assert update.verdict == verdict, update
        assert ("the scheduler was made for another optimizer" in update.cause) == (verdict == "different"), update


def test_a_scheduler_that_is_made_again_is_no_fault(tmp_path):
    trainer = make(tmp_path)
    trainer.create_optimizer_and_scheduler(6)
    trainer.optimizer = None
    assert check_step(trainer)["update"].verdict == "same"


@pytest.mark.parametrize("loss_type, accumulation", [("dapo", 1), ("grpo", 2)])
def test_a_policy_that_a_reward_leaves_in_evaluation_is_named(loss_type, accumulation, tmp_path):
    def certainty(completions, **_):
        trainer.model.eval()
        return [len(text) / 10 for text in completions]

    trainer = make(tmp_path, funcs=[vowels, certainty], loss_type=loss_type, gradient_accumulation_steps=accumulation)
    report = check_step(trainer)
    assert report.first.name == "loss", report
    said = f"in evaluation in 1 of {accumulation} losses of this step: the reward function certainty leaves it so"
    assert said in report["loss"].cause, report
    assert f"takes {8 * accumulation} rows as they were generated" in report["batches"].cause
    assert report["log-probs"].verdict == "same", report
    assert ("gives another loss" in report["loss"].cause) == (accumulation > 1), report


def steps_in_backward(trainer):
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in trainer.model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)


class StepsItself(trl.GRPOTrainer):
    def training_step(self, model, *args):
        loss = super().training_step(model, *args)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.data.sub_(parameter.grad, alpha=0.1)
        return loss


@pytest.mark.parametrize(
    "cls, said", [(trl.GRPOTrainer, "inside the backward pass: 26 of 26"), (StepsItself, "a method")]
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_weights_that_move_before_the_optimizer_are_put_back(cls, said, accumulation, tmp_path):
    trainer = make(tmp_path, cls=cls, gradient_accumulation_steps=accumulation)
    if cls is trl.GRPOTrainer:
        steps_in_backward(trainer)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    report = check_step(trainer)
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert report.first.name == "update" and said in report.first.cause, report
    if cls is trl.GRPOTrainer:  # the hooks are still there
        next(trainer.model.parameters()).sum().backward()
        assert not torch.equal(before[0], next(trainer.model.parameters()))


def test_a_model_that_was_replaced_is_refused(tmp_path):
    trainer = make(tmp_path)
    trainer.model = policy()
    with pytest.raises(RunError, match=r"trainer.model is not the model .* it was replaced after the trainer was made"):
        check_step(trainer)


def test_a_model_of_which_nothing_trains_says_so(tmp_path):
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    get_peft_model(policy(), config).save_pretrained(tmp_path / "adapter")
    for trains in (False, True):
        model = PeftModel.from_pretrained(policy(), tmp_path / "adapter", is_trainable=trains)
        update = check_step(make(tmp_path, model=model, gradient_checkpointing=True))["update"]
        assert (update.verdict == "different") == (not trains), update
        assert ("PeftModel.from_pretrained needs is_trainable=True" in update.cause) == (not trains), update
