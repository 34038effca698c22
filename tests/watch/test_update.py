"""The stage `update` on real trainers: each fault of an optimizer is named, and healthy ones are not."""

import itertools
import re
from types import SimpleNamespace

import distillation_cases
import pytest
import torch
import trl
from conftest import daily
from datasets import Dataset
from step_cases import PROMPTS, in_bf16, make
from transformers import TrainerCallback
from transformers.trainer_pt_utils import get_parameter_names

from workbench import attach_watch, check_step
from workbench.training.optimizer_step import OptimizerStep
from workbench.watch.attach import StepCheck
from workbench.watch.update_stage import update_stage

pytestmark = pytest.mark.slow


def update_of(folder, **options):
    return check_step(make(folder, **options))["update"]


def with_optimizer(change, **fields):
    """A GRPOTrainer whose optimizer is changed after transformers made it."""

    class Changed(trl.GRPOTrainer):
        def create_optimizer(self, *args, **kwargs):
            optimizer = super().create_optimizer(*args, **kwargs)
            change(optimizer, self.model)
            return optimizer

    return {"cls": Changed} | fields


def without_mlp(optimizer, model):
    mlp = {id(p) for name, p in model.named_parameters() if ".mlp." in name}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in mlp]


def setting(index, **values):
    def change(optimizer, model):
        for group in optimizer.param_groups[index]:
            group.update(values)

    return change


def negated(optimizer, model):
    def negate(*_):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.neg_()

    optimizer.register_step_pre_hook(negate)


def twice(optimizer, model):
    step = optimizer.step
    optimizer.step = lambda *args, **kwargs: (step(), step())[0]


def one_bias_left(optimizer, model):
    step, bias = optimizer.step, model.model.layers[0].self_attn.q_proj.bias

    def without_bias(*_, **__):
        before = bias.detach().clone()
        step()
        bias.data.copy_(before)

    optimizer.step = without_bias


class Unclipped(trl.GRPOTrainer):
    def _clip_grad_norm(self, model):
        return torch.tensor(1.0)


class Climber(torch.optim.AdamW):
    def step(self, closure=None):
        for group in self.param_groups:
            group["maximize"] = True
        super().step()
        for group in self.param_groups:
            group["maximize"] = False


def of_another_model():
    return torch.optim.AdamW(in_bf16().parameters(), lr=1e-5)


ALL, SECOND = slice(None), slice(1, 2)
FAULTS = {
    "group missing": (with_optimizer(without_mlp), r"no group of the optimizer holds \d+ parameters \(.*\.mlp\."),
    "maximize": (with_optimizer(setting(ALL, maximize=True)), "AdamW climbs the loss: maximize=True"),
    "maximize, one group": (with_optimizer(setting(SECOND, maximize=True)), r"of the group of \d+ parameters"),
    "gradient negated": (with_optimizer(negated), "not the step of AdamW, but -1 times that: it climbs"),
    "gradient negated, SGD": (
        with_optimizer(negated, optim="sgd", learning_rate=1.0),
        "not the step of SGD, but -1 times that",
    ),
    "gradient negated, Adafactor": (with_optimizer(negated, optim="adafactor"), "not the step of Adafactor, but -1"),
    "two steps": (with_optimizer(twice), "not the step of AdamW, but 2 times that"),
    "a bias is left": (with_optimizer(one_bias_left), r"128 of \S+ elements .* most in .*layers\.0.*q_proj\.bias"),
    "decay": (
        with_optimizer(setting(ALL, weight_decay=300.0)),
        "300.0, args give 0.0; weight_decay is 300 for biases",
    ),
    "decay of norms": (
        with_optimizer(setting(SECOND, weight_decay=0.1)),
        "weight_decay is 0.1 for biases and norms, which",
    ),
    "rate": (with_optimizer(setting(ALL, lr=1e-9)), "learning_rate is 1e-09, args give 1e-05"),
    "betas": (with_optimizer(setting(ALL, betas=(0.9, 0.9))), r"\(adam_beta1, adam_beta2\) is \(0.9, 0.9\), args"),
    "eps": (with_optimizer(setting(ALL, eps=1e-2)), "adam_epsilon is 0.01, args give 1e-08"),
    "amsgrad": (with_optimizer(setting(ALL, amsgrad=True)), "amsgrad is True, args give False"),
    "clipped away": ({"max_grad_norm": 1e-9}, "max_grad_norm=1e-09 cuts a gradient of norm"),
    "clipped away, SGD": ({"max_grad_norm": 1e-9, "optim": "sgd"}, "max_grad_norm=1e-09 cuts a gradient of norm"),
    "not clipped": ({"cls": Unclipped, "max_grad_norm": 0.01}, "after clipping, max_grad_norm=0.01 gives 0.01"),
    "lost to bf16": ({"model": in_bf16, "learning_rate": 1e-6}, "the rounding of bfloat16 weights loses"),
    "another model": ({"optimizer": of_another_model}, "no parameter of AdamW trains: it was made for another model"),
}


@pytest.mark.parametrize(
    "name",
    daily(FAULTS, "group missing", "maximize", "gradient negated", "two steps", "rate", "not clipped", "lost to bf16"),
)
def test_a_fault_of_the_update_is_named(name, tmp_path):
    options, cause = dict(FAULTS[name][0]), FAULTS[name][1]
    if "optimizer" in options:
        options["more"] = {"optimizers": (options.pop("optimizer")(), None)}
    if callable(options.get("model")):
        options["model"] = options["model"]()
    update = update_of(tmp_path, **options)
    assert update.verdict == "different", update
    assert re.search(cause, update.cause), update


def own(make_optimizer, model):
    return {"model": model, "more": {"optimizers": (make_optimizer(model), None)}}


def groups_of(model):
    """Two groups as transformers makes them."""
    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], ["bias", "norm"]))
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if n in decayed], "weight_decay": 0.1},
        {"params": [p for n, p in named if n not in decayed], "weight_decay": 0.0},
    ]


def test_an_own_climbing_optimizer_is_named(tmp_path):
    options = {"lr": 1e-5, "weight_decay": 0.0}
    update = update_of(tmp_path, **own(lambda model: Climber(model.parameters(), **options), policy()))
    assert (update.verdict, update.cause.split(":")[0]) == ("different", "Climber climbs the loss"), update
    options["weight_decay"] = 0.01
    update = update_of(tmp_path, **own(lambda model: Climber(model.parameters(), **options), policy()))
    assert update.verdict == "cannot tell" and "it goes along the gradient, which" in update.cause, update


def policy(dtype=torch.float32):
    return in_bf16().to(dtype)


def test_an_own_optimizer_is_not_compared_with_the_config(tmp_path):
    update = update_of(tmp_path, **own(lambda model: torch.optim.AdamW(groups_of(model), lr=3e-4), policy()))
    assert update.verdict == "same" and "since it may be your own" in update.cause, update


class Around(torch.optim.Optimizer):
    """An optimizer around another one, which it forgets to step."""

    def __init__(self, inner):
        self.optimizer, self.defaults = inner, inner.defaults
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure=None):
        pass


def test_an_optimizer_around_another_is_stepped_itself(tmp_path):
    update = update_of(tmp_path, **own(lambda model: Around(torch.optim.AdamW(model.parameters(), lr=1e-5)), policy()))
    assert update.verdict == "cannot tell" and update.cause.startswith("Around moves 0.00% of"), update


def test_decay_in_the_gradient_of_adam_is_no_difference(tmp_path):
    options = {"lr": 1e-4, "weight_decay": 0.1}
    update = update_of(tmp_path, **own(lambda model: torch.optim.Adam(model.parameters(), **options), policy()))
    assert update.verdict == "cannot tell" and "of the step is weight decay" in update.cause, update


def test_a_group_at_a_rate_of_0_need_not_move(tmp_path):
    def resting_embedding(model):
        named = list(model.named_parameters())
        parts = [[p for n, p in named if ("embed" in n) is embeds] for embeds in (True, False)]
        return torch.optim.AdamW([{"params": parts[0], "lr": 0.0}, {"params": parts[1], "lr": 1e-4}])

    update = update_of(tmp_path, **own(resting_embedding, policy()))
    assert update.verdict == "same" and "model.embed_tokens.weight rest, at a rate of 0" in update.cause, update


def test_another_optimizer_is_not_computed(tmp_path):
    update = update_of(tmp_path, optim="rmsprop")
    assert update.verdict == "cannot tell" and "RMSprop" in update.cause, update


@pytest.mark.parametrize("is_computed, verdict", [(True, "different"), (False, "cannot tell")])
def test_few_moved_elements_are_a_fault_of_a_known_step(is_computed, verdict):
    step = OptimizerStep("Sparse", False, True, 1e-5, with_gradient=100, moved=30, is_computed=is_computed)
    record, args = SimpleNamespace(update=step, unlike=[]), SimpleNamespace(max_grad_norm=1.0)
    update = update_stage(record, torch.nn.Linear(2, 2), args, None)
    assert update.verdict == verdict and "the rounding of float32 weights" in update.cause, update
    assert ("or the optimizer itself, leaves" in update.cause) == (not is_computed)


HEALTHY = {
    "AdamW": {"weight_decay": 0.1, "adam_beta2": 0.95},
    "AdamW, not fused": {"optim": "adamw_torch", "max_grad_norm": 0.01},
    "SGD": {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.1},
    "no clipping": {"max_grad_norm": -1.0},
    "Adafactor": {"optim": "adafactor"},
    "AdamW, bf16": {"model": in_bf16, "learning_rate": 1e-3, "weight_decay": 0.1},
    "Adafactor, bf16": {"model": in_bf16, "learning_rate": 1e-3, "optim": "adafactor"},
    "warmup": {"warmup_steps": 3, "lr_scheduler_type": "cosine"},
}


@pytest.mark.parametrize("name", daily(HEALTHY, "AdamW", "no clipping", "warmup"))
def test_a_healthy_update_is_the_same_at_each_step(name, tmp_path):
    options = dict(HEALTHY[name])
    if callable(options.get("model")):
        options["model"] = options["model"]()
    trainer = make(tmp_path, max_steps=4, disable_tqdm=True, **options)
    assert check_step(trainer)["update"].verdict == "same"
    check = StepCheck(trainer, 1)
    trainer.train()
    updates = [report["update"] for report in check.reports.values()]
    expected = ["cannot tell"] * (name == "warmup") + ["same"] * 4  # the first rate of a warmup is 0
    assert [update.verdict for update in updates] == expected[:4], updates
    if name == "warmup":
        assert "lr_scheduler_type='cosine', at the start of a warmup of 3 steps" in updates[0].cause


OF_SGD = [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 1e-3}]


@pytest.mark.parametrize("options", daily(OF_SGD, OF_SGD[1]))
def test_an_own_sgd_is_computed_with_its_momentum(options, tmp_path):
    given = own(lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, **options), policy())
    trainer = make(tmp_path, max_steps=3, **given)
    check = StepCheck(trainer, 1)
    trainer.train()
    assert [report["update"].verdict for report in check.reports.values()] == ["same"] * 3


class Rate(TrainerCallback):
    def on_step_begin(self, args, state, control, *, optimizer, **_):
        for group in optimizer.param_groups:
            group["lr"] = 3e-4


def test_a_rate_that_is_not_the_schedules_is_named(tmp_path):
    trainer = make(tmp_path, max_steps=1)
    trainer.add_callback(Rate())
    check = StepCheck(trainer, 1)
    trainer.train()
    update = check.reports[1]["update"]
    assert "the learning rate is 0.0003, the scheduler gives 1e-05" in update.cause, update


class ByValue(TrainerCallback):
    def on_pre_optimizer_step(self, *args, model=None, **_):
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)


class Looks(TrainerCallback):
    def on_pre_optimizer_step(self, *args, model=None, **_):
        self.norm = sum(float(parameter.grad.norm()) for parameter in model.parameters())


class Shrinks(TrainerCallback):
    @torch.no_grad()
    def on_step_end(self, *args, model=None, **_):
        for parameter in model.parameters():
            parameter.mul_(0.99)


AROUND = {
    ByValue: "ByValue changes the gradient",
    Looks: "",
    Shrinks: "the weights change between the optimizer's step",
}


@pytest.mark.parametrize("kind", AROUND)
@pytest.mark.parametrize("cls", daily([trl.GRPOTrainer, distillation_cases.DistillationTrainer], trl.GRPOTrainer))
def test_what_callbacks_do_around_an_update_is_seen(cls, kind, tmp_path, capsys):
    made = make if cls is trl.GRPOTrainer else distillation_cases.make
    trainer = made(tmp_path, learning_rate=1e-3, max_steps=2, more={"callbacks": [kind()]})
    before = check_step(trainer)["update"]
    assert before.verdict == ("same" if kind is Shrinks else "cannot tell"), before
    assert (f"{kind.__name__} acts between clipping and optimizer" in before.cause) == (kind is not Shrinks)
    check = StepCheck(trainer, 1)
    trainer.train()
    update, cause = check.reports[1]["update"], AROUND[kind]
    assert update.verdict == ("different" if cause else "same"), update
    assert update.cause.startswith(cause) and capsys.readouterr().err.count(cause or "step-check") == bool(cause)
    assert set(vars(trainer.callback_handler)) & {"on_optimizer_step", "on_pre_optimizer_step"}
    check.detach()
    assert not set(vars(trainer.callback_handler)) & {"on_optimizer_step", "on_pre_optimizer_step"}


class Halves(TrainerCallback):
    @torch.no_grad()
    def on_substep_end(self, *args, model=None, **_):
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)


class ShrinksBetween(TrainerCallback):
    @torch.no_grad()
    def on_substep_end(self, *args, model=None, **_):
        for parameter in model.parameters():
            parameter.mul_(0.99)


class ShrinksAtOnce(TrainerCallback):
    @torch.no_grad()
    def on_pre_optimizer_step(self, *args, model=None, **_):
        for parameter in model.parameters():
            parameter.mul_(0.99)


class FasterBetween(TrainerCallback):
    def on_substep_end(self, *args, optimizer=None, **_):
        for group in optimizer.param_groups:
            group["lr"] *= 100


class FasterAtOnce(TrainerCallback):
    def on_pre_optimizer_step(self, *args, optimizer=None, **_):
        for group in optimizer.param_groups:
            group["lr"] *= 100


class LooksAll(Looks):
    def on_step_begin(self, *args, **_):
        pass

    on_substep_end = on_step_begin


CHANGED = {
    Halves: "Halves changes the gradient of the checked update in on_substep_end",
    ShrinksBetween: "ShrinksBetween changes the weights of the checked update in on_substep_end",
    ShrinksAtOnce: "ShrinksAtOnce changes the weights of the checked update in on_pre_optimizer_step",
    FasterBetween: "FasterBetween changes the learning rate of the checked update in on_substep_end",
    FasterAtOnce: "FasterAtOnce changes the learning rate of the checked update in on_pre_optimizer_step",
    Rate: "Rate changes the learning rate of the checked update in on_step_begin",
    LooksAll: "",
}


@pytest.mark.parametrize("kind", CHANGED)
def test_what_a_callback_added_later_changes_is_seen(kind, tmp_path):
    two = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}
    trainer = make(tmp_path, max_steps=1, disable_tqdm=True, **two)
    check = StepCheck(trainer, 1)
    trainer.add_callback(kind())
    trainer.train()
    update = check.reports[1]["update"]
    assert update.verdict == ("different" if CHANGED[kind] else "same"), update
    assert update.cause.startswith(CHANGED[kind]), update


class ScheduledTwice(trl.GRPOTrainer):
    def training_step(self, *args):
        self.lr_scheduler.step()
        return super().training_step(*args)


def test_a_scheduler_that_counts_micro_batches_is_told(tmp_path):
    trainer = make(tmp_path, cls=ScheduledTwice, max_steps=9, disable_tqdm=True)
    check = StepCheck(trainer, 2, tell=lambda line: None)
    trainer.train()
    update = check.reports[4]["update"]
    assert update.verdict == "cannot tell", update
    assert "the scheduler counts 7 steps before update 4" in update.cause, update
    assert trainer.lr_scheduler.last_epoch == 2 * 9  # a check takes back the step that it has run


class TwiceAsLong(trl.GRPOTrainer):
    def create_scheduler(self, num_training_steps, *args, **kwargs):
        return super().create_scheduler(2 * num_training_steps, *args, **kwargs)


@pytest.mark.parametrize("cls, verdict", [(TwiceAsLong, "cannot tell"), (trl.GRPOTrainer, "same")])
def test_a_schedule_of_another_length_is_told(cls, verdict, tmp_path):
    trainer = make(tmp_path, cls=cls, max_steps=2, disable_tqdm=True, learning_rate=1e-3)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    updates = [report["update"] for report in check.reports.values()]
    assert [update.verdict for update in updates] == [verdict] * 2, updates
    said = "the schedule gives update 2 of 2 a learning rate of 0.00075, lr_scheduler_type='linear' gives 0.0005"
    assert (said in updates[0].cause) == (cls is TwiceAsLong), updates


def constant_times(factor):
    class OwnSchedule(trl.GRPOTrainer):
        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda step: factor)
            return self.lr_scheduler

    return OwnSchedule


@pytest.mark.parametrize("factor, verdict", [(1.0, "same"), (100.0, "cannot tell")])
def test_a_schedule_of_ones_own_is_said(factor, verdict, tmp_path):
    trainer = make(tmp_path, cls=constant_times(factor), max_steps=1, disable_tqdm=True)
    check = StepCheck(trainer, 1)
    trainer.train()
    update = check.reports[1]["update"]
    assert update.verdict == verdict and "its schedule is not compared with the config" in update.cause, update
    assert ("the rate is 100 times args.learning_rate" in update.cause) == (factor > 1), update


def test_a_constant_rate_of_0_is_said_with_its_schedule(tmp_path):
    update = update_of(tmp_path, learning_rate=0.0, lr_scheduler_type="constant")
    assert update.verdict == "cannot tell"
    assert update.cause.endswith("is 0: learning_rate=0, lr_scheduler_type='constant'"), update


def test_weight_decay_that_dominates_is_said(tmp_path):
    update = update_of(tmp_path, weight_decay=3000.0)
    assert update.verdict == "cannot tell" and "% of the step is weight decay (weight_decay=3000)" in update.cause


def test_the_share_of_parameters_that_train_is_said(tmp_path):
    trainer = make(tmp_path)
    for name, parameter in trainer.model.named_parameters():
        parameter.requires_grad_(".layers.0." not in name)
    update = check_step(trainer)["update"]
    assert update.verdict == "same" and "% of the parameters train" in update.cause, update


def test_a_matrix_in_the_group_without_decay_is_told(tmp_path):
    def embedding_moved(optimizer, model):
        first, second = optimizer.param_groups
        second["params"].append(first["params"].pop(0))

    update = update_of(tmp_path, **with_optimizer(embedding_moved, weight_decay=0.1))
    assert update.verdict == "cannot tell", update
    assert "transformers decays, or the reverse, in model.embed_tokens.weight: is the optimizer" in update.cause


def test_a_watch_prints_a_fault_of_the_update_once(tmp_path, capsys):
    trainer = make(tmp_path, max_steps=2, **with_optimizer(setting(ALL, maximize=True)))
    watch = attach_watch(trainer, tmp_path / "record", check_every=1)
    trainer.train()
    said = capsys.readouterr().err
    assert said.count("step-check: update is different: AdamW climbs the loss") == 1
    assert "Do: look at `reports[1]` of what" in said and watch.reports[1].first.name == "update"


class TwoModes(torch.optim.SGD):
    """Trains other weights than it evaluates, and only in training, as schedule-free optimizers do."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        for group in self.param_groups:
            group["train_mode"] = False

    @torch.no_grad()
    def _switch(self, to):
        for group in self.param_groups:
            if self.state and group["train_mode"] != to:
                for parameter in group["params"]:
                    parameter.mul_(1.5 if to else 1 / 1.5)
            group["train_mode"] = to

    def train(self):
        self._switch(True)

    def eval(self):
        self._switch(False)

    def step(self, closure=None):
        if not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError("Optimizer was not in train mode when step is called")
        return super().step(closure)


class OwnModes(trl.GRPOTrainer):
    def create_optimizer(self, model=None):
        if self.optimizer is None:
            self.optimizer = TwoModes(self.model.parameters(), lr=1e-3, momentum=0.9)
        return self.optimizer


def test_an_optimizer_with_two_modes_is_stepped_and_left_alone(tmp_path):
    trainer = make(tmp_path, cls=OwnModes, max_steps=1)
    assert check_step(trainer)["update"].verdict == "cannot tell"
    trainer.train()
    trainer.optimizer.eval()
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    check_step(trainer)
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


def test_two_modes_are_no_fault_where_evaluations_switch_them(tmp_path):
    more = {"eval_dataset": Dataset.from_dict({"prompt": PROMPTS[:2]})}
    often = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    trainer = make(tmp_path, cls=OwnModes, max_steps=3, more=more, **often)
    watch = attach_watch(trainer, tmp_path / "watch", check_every=1)
    trainer.train()
    assert {step: report.first for step, report in watch.reports.items()} == {1: None, 2: None, 3: None}
    trainer.optimizer.eval()
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    assert check_step(trainer).first is None
    assert all(torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())
    assert not any(group["train_mode"] for group in trainer.optimizer.param_groups)


class ForgetsTheRate(trl.GRPOTrainer):
    def create_optimizer(self, *args):
        self.optimizer = self.optimizer or torch.optim.AdamW(self.model.parameters())
        return self.optimizer


def test_an_optimizer_made_without_the_configs_rate_is_asked(tmp_path):
    stage = update_of(tmp_path, cls=ForgetsTheRate, learning_rate=1e-5)
    assert stage.verdict == "cannot tell" and "the rate is 100 times args.learning_rate" in stage.cause, stage


class LagsBehind(trl.GRPOTrainer):
    """A schedule that moves at every second update."""

    def create_scheduler(self, *args, **kwargs):
        scheduler = super().create_scheduler(*args, **kwargs)
        step, calls = scheduler.step, itertools.count(1)
        scheduler.step = lambda *a: step(*a) if next(calls) % 2 == 0 else None
        return scheduler


def test_a_schedule_that_lags_behind_the_updates_is_told(tmp_path):
    trainer = make(tmp_path, LagsBehind, max_steps=2)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    stages = [report["update"] for report in check.reports.values()]
    assert [stage.verdict for stage in stages] == ["same", "cannot tell"], stages
    assert "the scheduler counts 0 steps before update 2" in stages[1].cause


def test_a_rate_that_a_plateau_lowered_is_no_question(tmp_path):
    never_better = {"patience": 0, "factor": 0.5, "threshold": 1e9, "threshold_mode": "abs"}
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": never_better}
    plateau |= {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_reward"}
    more = {"eval_dataset": Dataset.from_dict({"prompt": PROMPTS})}
    trainer = make(tmp_path, max_steps=4, per_device_eval_batch_size=8, more=more, **plateau)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    assert trainer.optimizer.param_groups[0]["lr"] < trainer.args.learning_rate
    assert [report["update"].verdict for report in check.reports.values()] == ["same"] * 4
