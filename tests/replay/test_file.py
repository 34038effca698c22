"""Steps that a training keeps, computed again without its model; and steps that a watch checks while it trains."""

import gzip
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import trl
from conftest import ROOT, daily
from step_cases import FAULTS, HEALTHY, length, make

from workbench import attach_watch
from workbench.cli import main
from workbench.errors import ParameterError, RunError
from workbench.experiments.recipes import make_recipe
from workbench.experiments.train import train
from workbench.replay import file as file_module
from workbench.replay.file import load_step, replay_step
from workbench.training.grpo import GRPOTrainer
from workbench.training.recording import StepRecorder, is_due
from workbench.watch.attach import StepCheck

pytestmark = pytest.mark.slow

RLOO = trl.RLOOTrainer
DUMPS = ROOT / "tests" / "replay" / "dumps"

WITHOUT_A_MODEL = ("ends", "mask", "rewards", "advantages", "batches", "loss", "metrics")


def kept(folder, steps=(1, 2, 3), **options):
    """The files of a training of three steps."""
    trainer = make(folder / "out", max_steps=3, logging_steps=1, **options)
    recorder = StepRecorder(trainer, folder, list(steps))
    trainer.train()
    assert recorder.on
    return [folder / "steps" / f"step-{n:06d}.json.gz" for n in steps]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    kept(folder, steps=(1, 3))
    return folder


@pytest.mark.parametrize("name", daily(HEALTHY, "plain", "masked", "RLOO"))
def test_kept_steps_of_a_healthy_run_have_no_difference(name, tmp_path):
    for path in kept(tmp_path, **HEALTHY[name]):
        report = replay_step(path)
        assert report.first is None, (path, report)
        assert {*WITHOUT_A_MODEL} <= {stage.name for stage in report.stages}


SEEN = ["pads behind a stop", "mask", "rewards shifted", "advantages", "loss"]


@pytest.mark.parametrize("name", daily(SEEN, "mask", "loss"))
def test_a_fault_is_found_in_the_kept_step(name, tmp_path):
    options, stage, cause = FAULTS[name]
    first = replay_step(kept(tmp_path, steps=[2], **options)[0]).first
    assert first is not None and first.name == stage and cause in first.cause, first


def test_a_step_whose_rows_were_sampled_before_it_has_them(tmp_path):
    steps = kept(tmp_path, per_device_train_batch_size=4, steps_per_generation=4, num_iterations=2)
    ids = [[row.ids for row in load_step(path).step.rows] for path in steps]
    assert ids[0] == ids[1] == ids[2] and len(ids[0]) == 16
    ratios = [load_step(path).step.micro_batches for path in steps]
    assert len(ratios[0]) == 1 and replay_step(steps[2]).first is None


def test_kept_steps_change_no_number_of_the_training(tmp_path):
    trainers = [make(tmp_path / name, max_steps=3) for name in "ab"]
    StepRecorder(trainers[0], tmp_path / "a", 1)
    for trainer in trainers:
        torch.manual_seed(0)
        trainer.train()
    assert all(map(torch.equal, *(trainer.model.parameters() for trainer in trainers)))
    assert sorted(path.name for path in (tmp_path / "a/steps").iterdir()) == [
        f"step-{n:06d}.json.gz" for n in (1, 2, 3)
    ]


def test_a_file_reads_as_it_was_written(run):
    saved = load_step(run / "steps/step-000003.json.gz")
    assert saved.number == 3 and {"trl", "transformers", "torch"} == saved.versions.keys()
    sampled, (taken,) = saved.step.rows, saved.step.micro_batches
    assert sorted(taken.ids) == sorted(row.ids for row in sampled)  # TRL shuffles them
    assert [row.logps.shape for row in taken.rows] == [(len(ids),) for ids in taken.ids]
    assert all(np.isfinite(row.logps).all() for row in taken.rows)
    assert saved.decode(sampled[0].ids) == "".join(saved.vocabulary[token] for token in sampled[0].ids)


def test_a_file_holds_no_secret_and_no_path(tmp_path):
    secret = "hf_" + "Ab3dEf6hIj9kLm2nOp5q"
    trainer = make(tmp_path / "out", max_steps=1, hub_token=secret)
    trainer.train_dataset = trainer.train_dataset.map(lambda row: {"prompt": f"{row['prompt']} {secret}"})
    StepRecorder(trainer, tmp_path, [1])
    trainer.train()
    path = tmp_path / "steps/step-000001.json.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    assert secret not in text and str(tmp_path) not in text and "[token]" in text
    assert {token for row in load_step(path).step.rows for token in row.prompt_ids + row.ids} == {-1}
    assert replay_step(path).first is None


def test_a_damaged_or_another_file_is_refused(run, tmp_path):
    whole = (run / "steps/step-000001.json.gz").read_bytes()
    content = json.loads(gzip.decompress(whole))
    for name, data, said in [
        ("cut", whole[: len(whole) // 2], "or is damaged"),
        ("text", b"{}", "or is damaged"),
        ("other", gzip.compress(b'{"format": 1}'), "or is damaged"),
        ("deep", gzip.compress(b"[" * 200_000), "or is damaged"),
        ("newer", gzip.compress(json.dumps(content | {"format": 99}).encode()), "a newer workbench wrote it"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RunError, match=said):
            load_step(tmp_path / name)


def test_no_more_of_a_file_is_unpacked_than_a_step_has(tmp_path, monkeypatch):
    (tmp_path / "bomb").write_bytes(gzip.compress(b" " * 100_000))
    asked = []

    class Counted(gzip.GzipFile):
        def read(self, size=-1):
            asked.append(size)
            return super().read(size)

    monkeypatch.setattr(file_module, "_LARGEST", 1000)
    monkeypatch.setattr(gzip, "open", lambda file: Counted(fileobj=file))
    with pytest.raises(RunError, match="larger than 0 MB unpacked"):
        load_step(tmp_path / "bomb")
    assert asked == [1001]


def test_replay_prints_the_stages_of_a_step(run, capsys):
    assert main(["replay", str(run), "--step", "3"]) == 0
    out = capsys.readouterr().out
    assert "step 3 of GRPO, 8 completions, TRL" in out and "KB)" in out
    _, headline, *lines = out.splitlines()
    assert headline == "no stage differs"
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [*WITHOUT_A_MODEL]
    assert main(["replay", str(run / "steps/step-000001.json.gz"), "--json", "--tokens", "0"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert json.loads(out[0])["name"] == "ends" and "gradient" in out[len(WITHOUT_A_MODEL)]


def test_replay_says_which_steps_there_are(run, tmp_path, capsys):
    cases = [
        ([run, "--step", "2"], "step 2 is not recorded; recorded: 1, 3"),
        ([run], "several steps are recorded; name one with --step: 1, 3"),
        ([tmp_path, "--step", "2"], "no step is recorded; give record_steps=[1, 50] to GRPOTrainer"),
        ([run / "steps/step-000001.json.gz", "--step", "2"], "is step 1"),
        ([run / "steps/step-1.json.gz"], "step-1.json.gz: no such file"),
        (["5.jsonl"], "5.jsonl: no such file"),
        ([DUMPS / "verl"], "may be another framework's dumps (3.jsonl); give one"),
        ([run, "--step", "1", "--tokens", "99"], "--tokens 99: the loss took 8 completions, from 0 on"),
    ]
    for arguments, said in cases:
        assert main(["replay", *map(str, arguments)]) == 2
        assert said in capsys.readouterr().err


def test_replay_exits_with_1_where_a_stage_differs(tmp_path, capsys):
    (path,) = kept(tmp_path, steps=[1], **FAULTS["loss"][0])
    assert main(["replay", str(path)]) == 1
    assert "2 times as much" in capsys.readouterr().out


def test_train_keeps_steps_and_a_resumed_one_drops_later(tmp_path):
    recipe = make_recipe(max_steps=2, per_device_train_batch_size=4, num_generations=4, max_completion_length=8)
    train(recipe, reward_funcs=[length], record_dir=tmp_path, record_steps=[1, 2])
    assert main(["replay", str(tmp_path), "--step", "2"]) == 0
    shutil.copy(tmp_path / "steps/step-000002.json.gz", tmp_path / "steps/step-000003.json.gz")
    from workbench.runs.completions import forget_after

    forget_after(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "steps").iterdir()) == [
        "step-000001.json.gz",
        "step-000002.json.gz",
    ]


@pytest.mark.parametrize("steps", [0, [], [0], ["1"], "1", [1.5], True])
def test_steps_that_are_none_are_refused(steps, tmp_path):
    with pytest.raises(ParameterError, match=r"record_steps=.*expected step numbers"):
        make(tmp_path, GRPOTrainer, more={"record_dir": tmp_path, "record_steps": steps})


def test_steps_without_a_folder_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="record_steps=3: steps are saved in record_dir"):
        make(tmp_path, GRPOTrainer, more={"record_steps": 3})


# --- steps that a watch checks --------------------------------------------------------------------------------------


def trained(folder, options, **watched):
    trainer = make(folder / "out", max_steps=4, logging_steps=1, gradient_accumulation_steps=2, **options)
    if watched:
        attach_watch(trainer, folder / "record", **watched)
    torch.manual_seed(0)
    np.random.seed(0)
    trainer.train()
    return trainer, torch.random.get_rng_state(), [h.get("loss") for h in trainer.state.log_history]


CHECKED = [{}, {"warmup_steps": 2, "shuffle_dataset": True, "num_iterations": 2}]


@pytest.mark.parametrize("options", daily(CHECKED, CHECKED[1]))
def test_a_watch_that_checks_steps_changes_no_number(options, tmp_path):
    plain, state, losses = trained(tmp_path / "a", options)
    seen, seen_state, seen_losses = trained(tmp_path / "b", options, check_every=2)
    assert all(map(torch.equal, plain.model.parameters(), seen.model.parameters()))
    assert torch.equal(state, seen_state) and losses == seen_losses
    (check,) = [each for each in seen.callback_handler.callbacks if isinstance(each, StepCheck)]
    # Step 3 samples the completions of step 4.
    assert check.on and [*check.reports] == ([1, 2, 3, 4] if "num_iterations" in options else [1, 2, 4])
    assert not any(report.first for report in check.reports.values())
    rows = (tmp_path / "b/record/completions.jsonl").read_text().splitlines()
    assert len(rows) == 4 * 16 // options.get("num_iterations", 1)  # none of the checks'


SEVERAL = [
    ({"num_iterations": 2}, {1: "new", 2: 1, 3: "new", 4: 3}),
    ({"num_iterations": 2, "cls": RLOO}, {1: "new", 2: 1, 3: "new", 4: 3}),
    ({"per_device_train_batch_size": 4, "steps_per_generation": 4}, {1: "new", 2: 1, 3: "new", 4: 3}),
]


@pytest.mark.parametrize("options, expected", daily(SEVERAL, SEVERAL[0][0]), ids=["iterations", "RLOO", "batches"])
def test_a_second_update_is_checked_with_its_ratios(options, expected, tmp_path):
    options = {"learning_rate": 1e-3, "beta": 0.1 * ("cls" not in options), **options}
    plain, state, losses = trained(tmp_path / "a", options)
    seen, seen_state, seen_losses = trained(tmp_path / "b", options, check_every=1)
    assert all(map(torch.equal, plain.model.parameters(), seen.model.parameters()))
    assert torch.equal(state, seen_state) and losses == seen_losses
    (check,) = [each for each in seen.callback_handler.callbacks if isinstance(each, StepCheck)]
    assert check.on and [*check.reports] == [1, 2, 3, 4]
    for step, report in check.reports.items():
        assert report.first is None, (step, report)
        if expected[step] == "new":
            assert "all are 1, as they must be here" in report["ratios"].cause
            continue
        assert f"checked at step {expected[step]}" in report["mask"].cause
        assert "of which the loss is computed" in report["ratios"].cause and report["ratios"].largest > 1e-3
        for name in ("log-probs", "ratios", "loss", "gradient", "update"):
            assert report[name].verdict in ("same", "rounding"), (step, report)


@pytest.mark.rare
@pytest.mark.parametrize("times, every, due, sampled", [(4, 3, 3, 1), (2, 4, 4, 3)])
def test_a_reused_generation_has_the_stages_of_its_own_check(times, every, due, sampled, tmp_path):
    seen, *_ = trained(tmp_path, {"num_iterations": times, "warmup_steps": 0}, check_every=every)
    (check,) = [each for each in seen.callback_handler.callbacks if isinstance(each, StepCheck)]
    rewards = check.reports[due]["rewards"]
    assert rewards.verdict == "same" and f"checked at step {sampled}" in rewards.cause


class Late(trl.GRPOTrainer):
    """A loss that ignores the old log-probs from the second update on."""

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(
            model, {**inputs, "old_per_token_logps": None} if self.state.global_step else inputs
        )


@pytest.mark.rare  # test_planted_faults.py has one each day
def test_a_fault_of_the_second_update_alone_is_said(tmp_path, capsys):
    trained(tmp_path, {"cls": Late, "num_iterations": 2, "learning_rate": 1e-3}, check_every=1)
    said = [line for line in capsys.readouterr().err.splitlines() if "step-check" in line]
    assert said and "step 2: step-check: ratios is different: the loss answers as if every ratio were 1" in said[0], (
        said
    )


def test_ratios_of_1_alone_cannot_be_told_by_a_replay(tmp_path):
    for cls in (trl.GRPOTrainer, RLOO):
        first, second = kept(tmp_path / cls.__name__, (1, 2), cls=cls, num_iterations=2, learning_rate=1e-2)
        assert "all ratios are 1" in replay_step(first)["ratios"].cause
        report = replay_step(second)
        assert report.first is None and report["ratios"].verdict == "same", report


def test_a_watch_says_the_first_difference_once(tmp_path, capsys):
    trained(tmp_path, {"cls": FAULTS["advantages"][0]["cls"]}, check_every=2)
    said = [line for line in capsys.readouterr().err.splitlines() if "step-check" in line]
    assert len(said) == 1 and "step 1: step-check: advantages is different: the definition gives" in said[0]


def test_a_step_is_due_as_it_is_named():
    assert [n for n in range(1, 8) if is_due(n, 3)] == [1, 3, 6] and [n for n in range(1, 8) if is_due(n, (2, 5))] == [
        2,
        5,
    ]


def test_replay_loads_no_torch(run):
    code = "import sys; from workbench.cli import main; assert main(['replay', sys.argv[1]]) == 0; print(*sys.modules)"
    path = run / "steps/step-000001.json.gz"
    loaded = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "transformers", "trl"} & set(loaded)


def test_settings_that_do_not_fit_the_numbers_are_an_error(run, tmp_path):
    content = json.loads(gzip.decompress((run / "steps/step-000001.json.gz").read_bytes()))
    for name, value, said in (
        ("num_generations", 0, "`num_generations` is 0; expected a whole number from 1 on"),
        ("epsilon", None, "`epsilon` is null; expected a number"),
        ("beta", 0.1, "row 0 has no ref_logps, which beta=0.1 needs"),
    ):
        settings = content["step"]["settings"] | {name: value}
        (tmp_path / name).write_bytes(
            gzip.compress(json.dumps(content | {"step": content["step"] | {"settings": settings}}).encode())
        )
        with pytest.raises(RunError, match=said):
            replay_step(tmp_path / name)
