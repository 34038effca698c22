"""The two functions of `examples/` that write a step of any trainer: what they write is judged as a step of TRL."""

import dataclasses
import functools
import gzip
import importlib.util
import json
import math

import pytest
import torch
from conftest import ROOT

from workbench import replay_step
from workbench.cli import main
from workbench.errors import RunError
from workbench.replay import fields
from workbench.replay.file import load_step
from workbench.replay.grpo_math import LossRow
from workbench.replay.step import MicroRows, SampledRow, Step, Turn

SETTINGS = {"num_generations": 4, "gradient_accumulation_steps": 2, "num_iterations": 2, "beta": 0.04}
NUMBERS = [[0, 1, 2, 3, 4], [5, 6, 7]]
JUDGED = "ends mask rewards advantages batches ratios loss"


def writer(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_step


@pytest.fixture
def batch():
    """Eight completions of two prompts, padded, with a token of a tool, after an update."""
    return batch_of([3, 6, 2, 5, 6, 4, 1, 3])


def batch_of(numbers_of_tokens):
    torch.manual_seed(3)
    lengths, limit = torch.tensor(numbers_of_tokens), max(numbers_of_tokens)
    there = (torch.arange(limit) < lengths[:, None]).long()
    old = torch.rand(8, limit) * -2
    noise = [torch.randn(8, limit) for _ in range(2)]
    tables = {"old_logps": old, "logps": old + noise[0] * 0.3, "ref_logps": old + noise[1] * 0.1}
    tables |= {
        "prompt_ids": torch.tensor([[5, 6]] * 4 + [[0, 7]] * 4),
        "prompt_mask": torch.tensor([[1, 1]] * 4 + [[0, 1]] * 4),
    }
    tables |= {
        "completion_ids": torch.randint(10, 90, (8, limit)),
        "completion_mask": there,
        "tool_mask": there.clone(),
    }
    tables["tool_mask"][1, 2] = 0
    rewards = torch.randint(0, 3, (8, 2)).float()
    groups = rewards.sum(1).view(2, 4)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    tables |= {"mask": tables["tool_mask"], "rewards": rewards, "returned": rewards, "advantages": advantages.flatten()}
    return tables | {"ended": lengths < limit, "truncated": lengths == limit}


def micro_batches(batch, divisor=None):
    """DAPO's loss with KL, as a trainer computes it from padded tensors."""
    ratio = (batch["logps"] - batch["old_logps"]).exp()
    advantages = batch["advantages"][:, None]
    apart = batch["ref_logps"] - batch["logps"]
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) + 0.04 * (apart.exp() - apart - 1)
    items = float(batch["mask"].sum())
    return [(rows, float((loss * batch["mask"])[rows].sum() / (divisor or items)), items) for rows in NUMBERS]


def plain_rows(batch):
    """The same completions as dictionaries of lists."""
    rows = []
    for i, there in enumerate(batch["completion_mask"].bool()):
        row = {"prompt_ids": batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()}
        names = {
            "completion_ids": "ids",
            "tool_mask": "sampled",
            "mask": "mask",
            "old_logps": "old_logps",
            "ref_logps": "ref_logps",
        }
        row |= {name: batch[table][i][there].tolist() for table, name in names.items()}
        row |= {
            name: batch[name][i].tolist() for name in ("ended", "truncated", "rewards", "returned") if name in batch
        }
        rows.append(row | {"advantage": batch["advantages"][i].item(), "logps": batch["logps"][i][there].tolist()})
    return rows


def written(name, path, batch, micro, **options):
    if name == "write_step_torch":

        def decode(ids):
            return "".join(f"<{i}>" for i in ids)

        writer(name)(path, batch, micro, SETTINGS, 7, {"mine": "1.0"}, decode, **options)
        return path
    rows = plain_rows(batch)
    parts = [
        {"rows": own, "logps": [rows[i]["logps"] for i in own], "loss": loss, "items": items}
        for own, loss, items in micro
    ]
    writer(name)(path, rows, parts, SETTINGS, 7, {"mine": "1.0"}, {5: "<5>"}, **options)
    return path


NAMES = ("write_step", "write_step_torch")


@pytest.mark.parametrize("name", NAMES)
def test_a_right_step_of_another_trainer_has_no_difference(name, batch, tmp_path, capsys):
    path = written(name, tmp_path / "step-000007.json.gz", batch, micro_batches(batch))
    report = replay_step(path)
    assert [stage.name for stage in report.stages] == JUDGED.split()
    assert {stage.verdict for stage in report.stages if stage.name != "ratios"} <= {"same", "rounding"}
    assert report.first is None
    assert len(report.rows) == 8
    assert main(["replay", str(path), "--tokens", "1"]) == 0
    assert "step 7 of GRPO, 8 completions, mine 1.0" in capsys.readouterr().out


def group_of_all(batch):
    rewards = batch["rewards"].sum(1)
    batch["advantages"] = (rewards - rewards.mean()) / (rewards.std() + 1e-4)


def tool_in_loss(batch):
    batch["mask"] = batch["completion_mask"]


def rewards_moved(batch):
    batch["rewards"] = batch["rewards"].roll(1, 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "fault, stage", [(group_of_all, "advantages"), (tool_in_loss, "mask"), (rewards_moved, "rewards")]
)
def test_a_fault_of_another_trainer_is_found_at_its_stage(fault, stage, name, batch, tmp_path):
    fault(batch)
    report = replay_step(written(name, tmp_path / "step.json.gz", batch, micro_batches(batch)))
    assert report.first.name == stage


@pytest.mark.parametrize("name", NAMES)
def test_a_divisor_of_another_trainer_is_found(name, batch, tmp_path):
    report = replay_step(written(name, tmp_path / "step.json.gz", batch, micro_batches(batch, divisor=48.0)))
    assert report.first.name == "loss"
    assert "times as much" in report.first.cause


@pytest.mark.parametrize("name", NAMES)
def test_what_a_trainer_does_not_keep_cannot_be_told(name, batch, tmp_path):
    del batch["returned"]
    report = replay_step(written(name, tmp_path / "step.json.gz", batch, micro_batches(batch)))
    assert report.first is None
    assert report["rewards"].verdict == "cannot tell" and "the file has no `returned`" in report["rewards"].cause


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reused, verdict", [(True, "same"), (False, "different"), (None, "cannot tell")])
def test_a_writer_says_whether_an_update_came_before(reused, verdict, name, batch, tmp_path):
    path = written(name, tmp_path / "step.json.gz", batch, micro_batches(batch), reused=reused)
    assert replay_step(path)["ratios"].verdict == verdict


def test_advice_on_later_updates_fits_a_trainer_of_ones_own(batch, tmp_path):
    batch["logps"] = batch["old_logps"]
    path = written("write_step", tmp_path / "step.json.gz", batch, micro_batches(batch))
    assert "write a file of it too, with `reused`: true" in replay_step(path).advice
    content = json.loads(gzip.decompress(path.read_bytes())) | {"versions": {"trl": "1.16.0"}}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert "attach_watch(trainer, record_steps=[2])" in replay_step(path).advice


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_has_at_most_40_lines(name):
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert len(text[text.index("def write_step") :].splitlines()) <= 40


@pytest.fixture
def changed(batch, tmp_path):
    """A function that changes the step in a file of a right step."""

    def changed_file(change):
        path = written("write_step", tmp_path / "step.json.gz", batch, micro_batches(batch))
        with gzip.open(path, "rt") as file:
            content = json.load(file)
        change(content["step"])
        with gzip.open(path, "wt") as file:
            json.dump(content, file)
        return path

    return changed_file


def test_a_loss_that_is_nan_is_judged(changed):
    report = replay_step(changed(lambda step: step["micro_batches"][1].update(loss=None)))
    assert (report.first.name, report.first.cause) == ("loss", "a number is not finite")


def test_an_advantage_that_is_nan_is_judged(changed):
    def change(step):
        step["advantages"][0][1] = step["micro_batches"][0]["rows"][1]["advantage"] = None

    report = replay_step(changed(change))
    assert (report.first.name, report.first.cause) == ("advantages", "a number is not finite")


def test_a_metric_that_is_nan_is_another_number(changed):
    report = replay_step(changed(lambda step: step.update(metrics={"reward": None})))
    assert report.first.name == "metrics" and "reward is logged as nan, but is" in report.first.cause
    assert math.isnan(report.first.largest)


def test_settings_may_be_as_the_config_takes_them(changed):
    def change(step):
        step["settings"] |= {"scale_rewards": True, "steps_per_generation": None}

    report = replay_step(changed(change))
    assert report.first is None and report["advantages"].verdict == "same"


def test_a_file_that_names_no_updates_does_not_blame_ratios(changed):
    report = replay_step(changed(lambda step: step["settings"].pop("num_iterations")))
    assert report.first is None and "does not say" in report["ratios"].cause
    assert "`reused`: true or false" in report["ratios"].cause


def test_a_number_of_updates_that_is_null_is_not_known(changed):
    report = replay_step(changed(lambda step: step["settings"].update(num_iterations=None)))
    assert report.first is None and "does not say" in report["ratios"].cause


def test_an_update_of_some_rows_may_be_a_later_one(changed):
    def one_iteration(step):
        step["settings"] |= {"num_iterations": 1}

    assert replay_step(changed(one_iteration)).first.name == "ratios"

    def second_half(step):
        one_iteration(step)
        del step["micro_batches"][0]

    assert replay_step(changed(second_half))["ratios"].verdict == "cannot tell"


@pytest.mark.parametrize("reused, verdict", [(None, "cannot tell"), (True, "cannot tell"), (False, "different")])
@pytest.mark.parametrize("shift, neighbour", [(1, "before"), (-1, "after")])
def test_old_logps_of_a_neighbouring_token_are_named(shift, neighbour, reused, verdict, tmp_path):
    batch = batch_of([7, 12, 8, 9, 11, 12, 6, 8])

    def judged_ratios():
        micro = micro_batches(batch)
        return replay_step(written("write_step_torch", tmp_path / "step.json.gz", batch, micro, reused=reused))[
            "ratios"
        ]

    assert "those of the token" not in judged_ratios().cause
    batch["old_logps"] = batch["old_logps"].roll(shift, 1)
    stage = judged_ratios()
    assert stage.verdict == verdict and f"those of the token {neighbour} it" in stage.cause, stage


def test_a_loss_without_a_definition_cannot_be_told(changed):
    report = replay_step(changed(lambda step: step["settings"].update(loss_type="ppo")))
    assert report.first is None
    said = "has no definition here: the known ones are grpo, dapo, bnpo, dr_grpo, luspo, sapo, cispo, vespo, gmpo"
    assert report["loss"].cause == f"loss_type 'ppo' {said}"
    report = replay_step(changed(lambda step: step["settings"].update(loss_type="GRPO")))
    assert "did you mean 'grpo'? the known ones" in report["loss"].cause


def test_rewards_that_are_not_known_cannot_be_told(changed):
    report = replay_step(changed(lambda step: step.update(rewards=[], returned=None)))
    assert report.first is None and report["advantages"].verdict == "cannot tell"


def test_half_precision_hides_no_loss_computed_in_float32(changed):
    def without_kl(step):
        step |= {"dtype": "bfloat16"}
        step["settings"]["beta"] = 0.0

    assert replay_step(changed(without_kl)).first.name == "loss"

    def in_bfloat16(step):
        without_kl(step)
        for micro in step["micro_batches"]:
            for row in micro["rows"]:
                row["logps"] = torch.tensor(row["logps"]).bfloat16().tolist()

    assert replay_step(changed(in_bfloat16))["loss"].verdict == "rounding"


def first_row(step):
    return step["micro_batches"][0]["rows"][0]


UNFIT = {
    "kind 'PPO': expected GRPO or RLOO": lambda step: step.update(kind="PPO"),
    "settings without num_generations": lambda step: step["settings"].pop("num_generations"),
    "2 micro-batches, and gradient_accumulation_steps is 1": lambda step: step["settings"].update(
        gradient_accumulation_steps=1
    ),
    "dtype 'int8': expected float32, bfloat16, float16, tf32, float64": lambda step: step.update(dtype="int8"),
    "without max_completion_length, by which loss_type 'dr_grpo' divides": lambda step: step["settings"].update(
        loss_type="dr_grpo"
    ),
    "row 0: other numbers of tokens: mask 3, logps 3, old_logps 3, ref_logps 3, advantage 2": lambda step: first_row(
        step
    ).update(advantage=[1.0, 1.0]),
    "7 advantages for 8 rows": lambda step: step["advantages"][0].pop(),
    "rewards of 7 rows for 8 advantages": lambda step: step["rewards"][0].pop(),
    "a number for each reward function": lambda step: step.update(rewards=[[1.0] * 8]),
    "row 1: own 6, mask 5, end 6 for 6 ids": lambda step: step["rows"][1]["mask"].pop(),
    "row 0: own 3, mask 3, end 4 for 3 ids": lambda step: step["rows"][0].update(end=4),
    "row 0: `end` is null; expected a whole number": lambda step: step["rows"][0].update(end=None),
    "row 2 has no `ended`: expected true or false, or null": lambda step: step["rows"][2].pop("ended"),
    "row 0: `masks` is no field of it; did you mean 'mask'?": lambda step: step["rows"][0].update(masks=[]),
    "row 1: old_logps 5 for 6 ids": lambda step: step["rows"][1]["old_logps"].pop(),
    "micro-batch 0, row 0 has no `mask`: expected a list with a number for each token": lambda step: first_row(
        step
    ).pop("mask"),
    'micro-batch 0, row 0: `logps[1]` is "a"; expected': lambda step: first_row(step)["logps"].__setitem__(1, "a"),
    "micro-batch 0, row 0 has no ref_logps, which beta=0.04 needs": lambda step: first_row(step).update(ref_logps=None),
    "micro-batch 0: other numbers of rows: rows 5, prompt_ids 4": lambda step: step["micro_batches"][0][
        "prompt_ids"
    ].pop(),
    "expected a list for each generation, with a number for each row": lambda step: step.update(
        advantages=step["advantages"][0]
    ),
    "`rewards[0]` has rows of 1 and 2 numbers": lambda step: step["rewards"][0][0].pop(),
    "reward_weights of 1 reward functions, rewards of 2": lambda step: step["settings"].update(reward_weights=[1.0]),
    "settings: `epsilon` is null; expected a number": lambda step: step["settings"].update(epsilon=None),
    "rank 1 of 1 processes": lambda step: step.update(rank=1),
    "row 0: other numbers of tokens: mask 3, logps 2": lambda step: first_row(step)["logps"].pop(),
}


@pytest.mark.parametrize("says", UNFIT)
def test_a_file_whose_tables_do_not_fit_is_refused(says, changed):
    with pytest.raises(RunError) as error:
        replay_step(changed(UNFIT[says]))
    assert says in str(error.value)


def fields_below(part, path=()):
    """The path of each field below a part of a file; of a list that of its second part alone."""
    for name in part if isinstance(part, dict) else [0, 1][: len(part)][-1:]:
        yield (*path, name)
        if isinstance(part[name], dict | list):
            yield from fields_below(part[name], (*path, name))


def test_no_field_of_a_wrong_kind_shows_an_error_of_python(changed, tmp_path):
    content = json.loads(gzip.decompress(changed(lambda step: None).read_bytes()))
    for path in fields_below(content["step"], ("step",)):
        for value in ("missing", 5, None, "text", {}, [], [[]]):
            other = json.loads(json.dumps(content))
            part = functools.reduce(lambda part, name: part[name], path[:-1], other)
            if value == "missing":
                del part[path[-1]]
            else:
                part[path[-1]] = value
            (tmp_path / "other.json.gz").write_bytes(gzip.compress(json.dumps(other).encode(), 1))
            try:
                replay_step(tmp_path / "other.json.gz")
            except RunError as error:
                assert "its step cannot be read: " in str(error), (path, value, error)


def test_every_field_of_a_step_has_a_kind():
    parts = {Step: fields._STEP, SampledRow: fields._SAMPLED_ROW, Turn: fields._TURN}
    for part, kinds in (parts | {MicroRows: fields._MICRO_BATCH, LossRow: fields._LOSS_ROW}).items():
        assert kinds.keys() == {each.name for each in dataclasses.fields(part)}


def test_a_loss_of_rloo_is_not_compared_with_those_of_grpo(changed):
    def of_rloo(step):
        step |= {"kind": "RLOO", "kl": [0.0] * 8}
        for micro in step["micro_batches"]:
            for row in micro["rows"]:
                del row["ref_logps"]

    assert replay_step(changed(of_rloo))["loss"].verdict == "different"


def scaled(rewards, added=1e-4, ddof=1):
    groups = rewards.sum(1).view(2, 4)
    apart = groups - groups.mean(1, keepdim=True)
    return (apart / (groups.std(1, keepdim=True, correction=ddof) + added)).flatten()


def others(rewards):
    groups = rewards.sum(1).view(2, 4)
    return ((groups - groups.mean(1, keepdim=True)) * 4 / 3).flatten()


ADVANTAGES = [
    (lambda rewards: scaled(rewards, 1e-6), "same", "over its standard deviation (of n - 1)"),
    (lambda rewards: scaled(rewards, 1e-9), "same", "over its standard deviation (of n - 1)"),
    (lambda rewards: scaled(rewards, 1e-6).bfloat16().float(), "same", "over its standard deviation (of n - 1)"),
    (lambda rewards: scaled(rewards, 1e-6, ddof=0), "same", "over its standard deviation (of n)"),
    (others, "cannot tell", "they are: reward minus the mean of the others. scale_rewards='group' is another formula"),
    (lambda rewards: -scaled(rewards, 1e-6), "different", "the negative of: reward minus the mean of the group"),
    (lambda rewards: rewards.sum(1), "different", "they are the rewards: nothing is taken off"),
]


@pytest.mark.parametrize("formula, verdict, says", ADVANTAGES)
def test_advantages_of_other_trainers_are_known_by_formula(formula, verdict, says, batch, tmp_path):
    batch["advantages"] = formula(batch["rewards"])
    path = written("write_step_torch", tmp_path / "step.json.gz", batch, micro_batches(batch))
    stage = replay_step(path)["advantages"]
    assert stage.verdict == verdict and says in stage.cause, stage
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["versions"] = {"trl": "1.16.0"}  # which adds 1e-4 to the deviation, and has no other formula
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert replay_step(path)["advantages"].verdict == "different"


def tokens_losses(batch):
    """(8, 6), of each token: the clipped loss without a KL term, 0 where it is not in the loss."""
    ratio = (batch["logps"] - batch["old_logps"]).exp()
    advantages = batch["advantages"][:, None]
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * batch["mask"]


def judged(batch, micro, path, **settings):
    given = SETTINGS | {"beta": 0.0, "gradient_accumulation_steps": len(micro)} | settings
    writer("write_step_torch")(path / "step.json.gz", batch, micro, given, 7, {"verl": "0.9.1"})
    return replay_step(path / "step.json.gz")["loss"]


@pytest.mark.parametrize("factor, verdict", [(1, "same"), (2, "different")])
def test_micro_batches_may_weigh_as_their_rows_do(factor, verdict, batch, tmp_path):
    rows = tokens_losses(batch).sum(1) / batch["mask"].sum(1)
    micro = [(own, factor * float(rows[own].sum()) / 8, None) for own in NUMBERS]
    loss = judged(batch, micro, tmp_path, loss_type="grpo")
    assert loss.verdict == verdict and ("of 5, 3 rows weigh as their rows do" in loss.cause) == (verdict == "same"), (
        loss
    )


def test_an_update_may_take_some_of_the_rows(batch, tmp_path):
    own, tokens = tokens_losses(batch)[:4].sum(), batch["mask"][:4].sum()
    loss = judged(batch, [([0, 1, 2, 3], float(own / tokens), None)], tmp_path)
    assert loss.verdict == "same" and "takes 4 of 8 rows, and divides by their 15 tokens" in loss.cause, loss
    assert judged(batch, [([0, 1, 2, 3], float(own / 20), None)], tmp_path).verdict == "different"


def test_items_that_are_no_count_of_these_rows_are_asked_about(batch, tmp_path):
    loss = judged(batch, [([*range(8)], float(tokens_losses(batch).sum() / 99), 99.0)], tmp_path)
    assert loss.verdict == "cannot tell" and "divided by items=99, and 29 tokens of these rows" in loss.cause, loss


@pytest.mark.parametrize("factor", [1, -10])
def test_a_loss_that_is_0_by_any_formula_cannot_be_told(factor, batch, tmp_path):
    batch["logps"] = batch["old_logps"]
    rows = tokens_losses(batch).sum(1) / batch["mask"].sum(1)
    loss = judged(batch, [([*range(8)], factor * float(rows.mean()), None)], tmp_path, loss_type="grpo")
    assert loss.verdict == "cannot tell" and "is 0 with any sign, factor or divisor" in loss.cause, loss


def test_settings_by_other_names_are_said_to_be_unread(batch, tmp_path):
    micro = [([*range(8)], float(tokens_losses(batch).sum() / batch["mask"].sum()), None)]
    loss = judged(batch, micro, tmp_path, clip_ratio_high=0.28, adam_beta2=0.95, max_steps=9)
    assert loss.verdict == "same" and loss.cause == "the file's settings clip_ratio_high are not read", loss


def kl_as(batch, estimator):
    apart = batch["ref_logps"] - batch["logps"]
    return {"k1": -apart, "k2": apart**2 / 2, "k3": apart.exp() - apart - 1}[estimator]


LOSSES = [
    (lambda loss, mask: (loss * mask).sum() / mask.sum() / 2, "dapo", "; loss_type='bnpo' gives this one"),
    (lambda loss, mask: ((loss * mask).sum(1) / mask.sum(1)).mean() / 2, "dapo", "; loss_type='grpo' gives this one"),
    (lambda loss, mask: (loss * mask).sum(1).mean() / 2, "grpo", "; loss_type='luspo' gives this one"),
    (lambda loss, mask: (loss * mask).sum() / mask.numel(), "dapo", ""),
    (lambda loss, mask: (loss * mask).sum() / mask.numel(), "bnpo", ""),
]


@pytest.mark.parametrize("mean, loss_type, says", LOSSES)
def test_the_loss_type_that_gives_the_loss_is_named(mean, loss_type, says, batch, tmp_path):
    loss, mask = tokens_losses(batch), batch["mask"]
    micro = [(own, float(mean(loss[own], mask[own])), float(mask[own].sum())) for own in NUMBERS]
    stage = judged(batch, micro, tmp_path, loss_type=loss_type)
    assert stage.verdict == "different", stage
    assert says in stage.cause if says else "gives this one" not in stage.cause, stage


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_the_estimate_of_the_kl_that_gives_the_loss_is_named(estimator, corrected, batch, tmp_path):
    weight = (batch["logps"] - batch["old_logps"]).exp() if corrected else 1.0

    def stage_of(name):
        loss, mask = tokens_losses(batch) + 0.04 * kl_as(batch, name) * weight * batch["mask"], batch["mask"]
        micro = [(own, float(loss[own].sum() / mask.sum()), float(mask.sum())) for own in NUMBERS]
        return judged(batch, micro, tmp_path, beta=0.04, use_bias_correction_kl=corrected)

    assert stage_of("k3").verdict == "same"
    assert f"; {estimator} in place of k3 for the KL gives this one" in stage_of(estimator).cause


def test_a_loss_of_two_other_choices_has_no_name(batch, tmp_path):
    loss, mask = tokens_losses(batch) + 0.04 * kl_as(batch, "k1") * batch["mask"], batch["mask"]
    micro = [(own, float(loss[own].sum() / mask[own].sum() / 2), None) for own in NUMBERS]
    stage = judged(batch, micro, tmp_path, beta=0.04)
    assert stage.verdict == "different" and "gives this one" not in stage.cause, stage


def test_an_advantage_may_be_in_a_list_of_one(changed):
    def listed(step):
        for micro in step["micro_batches"]:
            for row in micro["rows"]:
                row["advantage"] = [row["advantage"]]

    assert replay_step(changed(listed)).first is None


def test_no_formula_stands_for_a_kl_that_is_left_out(batch, tmp_path):
    batch["advantages"] = others(batch["rewards"])
    path = written("write_step_torch", tmp_path / "step.json.gz", batch, micro_batches(batch))
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["step"] |= {"kind": "RLOO", "kl": [0.5 * row for row in range(8)]}
    content["step"]["settings"] |= {"beta": 0.1, "scale_rewards": "none"}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    stage = replay_step(path)["advantages"]
    assert stage.verdict == "different" and "no KL is taken off the rewards" in stage.cause, stage


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", "bf16"])
def test_a_dtype_has_torchs_name_or_a_short_one(dtype, changed):
    path = changed(lambda step: step.update(dtype=dtype))
    assert load_step(path).step.dtype == "bfloat16"
