"""`check_step` and the watch on TRL's own DistillationTrainer: healthy updates, faults at their stage, a recorded training."""

import json

import numpy as np
import pytest
import torch
from conftest import daily
from datasets import Dataset
from distillation_cases import BASE, FAULTS, HEALTHY, PROMPTS, make, teacher
from trl import DistillationTrainer
from trl.experimental import server_distillation

from workbench import attach_watch, audit_run, check_step
from workbench.errors import ParameterError
from workbench.experiments.recipes import resolve_model
from workbench.logs.completions import read_completions
from workbench.replay.distillation import divergence
from workbench.watch.attach import StepCheck


@pytest.mark.slow
@pytest.mark.parametrize("name", daily(HEALTHY, "reverse KL", "bf16, LoRA"))
def test_a_healthy_update_has_no_difference(name, tmp_path):
    report = check_step(make(tmp_path, **HEALTHY[name]))
    assert [stage.name for stage in report.stages if stage.verdict in ("different", "cannot tell")] == [], report


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", daily(FAULTS, "sampled colder", "mask", "teacher a token late", "twice the loss", "gradient", "metric")
)
def test_a_fault_is_named_at_its_stage(name, tmp_path):
    options, stage, cause = FAULTS[name]
    first = check_step(make(tmp_path, **options)).first
    assert first is not None and first.name == stage and cause in first.cause, first


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_slopes_are_those_of_the_divergence(beta):
    rng, step = np.random.default_rng(0), 1e-6
    student, teacher = (torch.tensor(rng.normal(size=(3, 7))) for _ in range(2))
    values, slopes = divergence(*(logits.log_softmax(-1).numpy() for logits in (student, teacher)), beta)
    moved = np.zeros_like(slopes)
    for i in range(7):
        up, down = student.clone(), student.clone()
        up[:, i] += step
        down[:, i] -= step
        both = [divergence(x.log_softmax(-1).numpy(), teacher.log_softmax(-1).numpy(), beta)[0] for x in (up, down)]
        moved[:, i] = (both[0] - both[1]) / (2 * step)
    assert np.allclose(moved, slopes, atol=1e-8) and (values > 0).all()


@pytest.mark.slow
def test_a_check_leaves_the_trainer_as_it_was(tmp_path):
    trainer = make(tmp_path)
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    state, attributes = torch.random.get_rng_state(), dict(vars(trainer))
    check_step(trainer)
    assert all(map(torch.equal, weights, trainer.model.parameters()))
    assert vars(trainer) == attributes and torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for model in (trainer.model, trainer.teacher_model) for p in model.parameters())


@pytest.mark.slow
def test_the_report_shows_each_token(tmp_path):
    report = check_step(make(tmp_path))
    tables = [report.tokens(row) for row in range(len(report.rows))]
    assert sum(table["gradient"].abs().sum() for table in tables) == pytest.approx(1)
    assert max((table["logp"] - table["logp_alone"]).abs().max() for table in tables) < 1e-4
    assert report._repr_html_().count("<span") == sum(map(len, tables))


@pytest.mark.slow
def test_a_watched_training_is_checked_and_recorded(tmp_path):
    plain, watched = (make(tmp_path / name, max_steps=2, logging_steps=1) for name in ("a", "b"))
    record = tmp_path / "record"
    watch = attach_watch(watched, record)
    check = StepCheck(watched, 1)
    for trainer in (plain, watched):
        torch.manual_seed(0)
        trainer.train()
    assert watch.on and check.on and [*check.reports] == [1, 2]
    assert all(report.first is None for report in check.reports.values())
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    lines = [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and "entropy" in lines[0] and "update/moved" in lines[0]
    table, _ = read_completions(record)
    assert len(table) == 8 and set(table["finish_reason"]) <= {"stop", "length"} and table["prompt"].str.len().all()
    audit = audit_run(record)
    assert audit.problems == [] and audit.runs[0].steps == 2


class FollowedTeacher(DistillationTrainer):
    def training_step(self, *args):
        with torch.no_grad():
            for old, new in zip(self.teacher_model.parameters(), self.model.parameters(), strict=True):
                old.lerp_(new, 0.5)
        return super().training_step(*args)


@pytest.mark.slow
@pytest.mark.parametrize("cls, verdict", [(FollowedTeacher, "cannot tell"), (DistillationTrainer, "same")])
def test_a_teacher_that_follows_the_student_is_told(cls, verdict, tmp_path):
    trainer = make(tmp_path, cls, max_steps=2)
    check = StepCheck(trainer, 1, tell=lambda line: None)
    trainer.train()
    teachers = [check.reports[step]["teacher"] for step in (1, 2)]
    assert [stage.verdict for stage in teachers] == [verdict] * 2, teachers
    assert ("other weights than before step 1" in teachers[1].cause) == (cls is FollowedTeacher), teachers


@pytest.mark.slow
def test_steps_of_a_distillation_are_not_kept_in_files(tmp_path):
    with pytest.raises(ParameterError, match="this trainer is Distillation; check_every"):
        attach_watch(make(tmp_path), record_steps=1)


class OfAServer(server_distillation.ServerDistillationTrainer):
    """The server's teacher is a model in this process."""

    @torch.no_grad()
    def _get_teacher_token_logprobs_from_server(self, inputs, prompt_length):
        logits = teacher()(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        logps = (logits[:, prompt_length - 1 : -1] / self.temperature).log_softmax(-1)
        top = logps.topk(max(1, self.loss_top_k), -1)
        own = logps.gather(-1, inputs["input_ids"][:, prompt_length:, None])[..., 0]
        return {"actual_logprobs": own, "topk_logprobs": top.values, "topk_token_ids": top.indices}


@pytest.mark.slow
def test_a_distillation_from_a_server_is_checked_as_far_as_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("trl.generation.vllm_client.VLLMClient", lambda **_: None)
    args = server_distillation.ServerDistillationConfig(str(tmp_path), teacher_model_server_url="http://none", **BASE)
    data = Dataset.from_dict({"prompt": PROMPTS * 4})
    report = check_step(OfAServer(resolve_model("starter"), args, data))
    assert report.first is None and report["batches"].verdict == "same", report
    assert {stage.name for stage in report.undecided} == {"log-probs", "teacher", "loss", "gradient"}, report
