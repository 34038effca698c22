"""What the rules say of logs as other tools write them: rounded, averaged, with a KL term, without TRL's newer metrics."""

import dataclasses
import json
import re

import numpy as np
import pytest
from made_up import flat, log, rising, rows
from tensorboard_files import write_events

from workbench.audit.check import check
from workbench.audit.finding import FOUND
from workbench.audit.report import audit_run
from workbench.audit.rules_data import log_damage
from workbench.audit.rules_ends import never_stops
from workbench.audit.rules_gradient import equal_groups, false_zero_std, wasted_groups, zero_gradient
from workbench.audit.rules_learning import kl_runaway, no_learning, spikes
from workbench.audit.rules_reward import dead_rewards
from workbench.audit.rules_sampler import lost_to_correction
from workbench.errors import ParameterError
from workbench.logs.names import PART
from workbench.logs.read import read

EVERY_OTHER = np.tile([0.0, 1.0], 30)


def rounded(**metrics):
    made = log(**metrics)
    made.steps[list(metrics)] = made.steps[list(metrics)].round(3)
    return made


def problems(made):
    return [f.rule for f in check(made) if f.is_problem]


# --- a rate of 0 ------------------------------------------------------------------------------------------------------


def test_a_learning_rate_printed_as_0_000_may_be_any_small_one():
    small = rounded(reward=rising, grad_norm=lambda share: 0.3 + share, learning_rate=0.0)
    assert problems(small) == []
    assert no_learning(small).verdict == "not found"
    for norms in (0.0, 0.3):
        stuck = rounded(reward=0.25, grad_norm=norms, learning_rate=0.0)
        assert (zero_gradient(stuck).cause == "learning-rate") == (norms > 0)  # it moves, and nothing comes of it


def test_zeros_of_a_run_that_learns_are_no_problem():
    learns = log(reward=rising, grad_norm=0.31234, learning_rate=0.0)
    assert problems(learns) == [] and no_learning(learns).verdict == "not found"
    found = zero_gradient(log(reward=rising, grad_norm=0.0, clip_region=0.01234))
    assert (found.severity, "the reward rises all the same" in found.says) == ("warning", True)


def test_a_learning_rate_of_0_beside_numbers_in_full_is_0():
    assert no_learning(log(reward=flat, grad_norm=rising, learning_rate=0.0)).cause == "learning-rate"


# --- groups without signal ---------------------------------------------------------------------------------------------


def test_if_all_groups_have_equal_rewards_other_terms_are_named():
    found = zero_gradient(log(grad_norm=0.001, kl=0.03, reward=0.0, zero_std_share=1.0))
    assert "whatever gradient other terms give" in found.says


def rollouts_of_verl(folder, texts):
    """Write what verl's `rollout_data_dir` holds: two prompts of four completions a step, mixed by its balancing."""
    folder.mkdir()
    for step in range(1, 31):
        rows = [{"input": f"prompt {n % 2}", "output": texts(step, n), "gts": "7", "score": 0.0} for n in range(8)]
        lines = [json.dumps(row | {"step": step}) for row in rows]
        (folder / f"{step}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("texts", "cause"), [(lambda *_: "the same", "copies"), (lambda step, n: f"{step} {n}", "equal-rewards")]
)
def test_completions_of_verl_tell_copies_from_equal_rewards(texts, cause, tmp_path):
    rows = [f"{step},0.0,0.0,2.0" for step in range(1, 31)]
    head = "step,critic/score/mean,actor/grad_norm,actor/entropy"
    (tmp_path / "metrics.csv").write_text("\n".join([head, *rows, ""]))
    rollouts_of_verl(tmp_path / "rollouts", texts)
    (run,) = audit_run(tmp_path / "metrics.csv", completions=tmp_path / "rollouts").runs
    (found,) = (one for one in run.findings if one.rule == "zero-gradient")
    assert found.cause == cause
    assert "Read two completions" not in found.advice
    alone = audit_run(tmp_path / "metrics.csv")
    assert "rollout_data_dir=FOLDER and --completions FOLDER" in " ".join(str(alone).split())


def test_completions_of_other_steps_are_refused(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,critic/score/mean\n" + "".join(f"{n},0.5\n" for n in range(100, 130)))
    rollouts_of_verl(tmp_path / "rollouts", lambda *_: "a")
    with pytest.raises(ParameterError, match=r"they are of the steps 1 to 30, and .*metrics\.csv has 100 to 129"):
        audit_run(tmp_path / "metrics.csv", completions=tmp_path / "rollouts")


@pytest.mark.parametrize("names", [("critic/score/mean", "actor/grad_norm"), ("critic_score_mean", "actor_grad_norm")])
def test_advice_for_a_log_of_verl_has_verls_names(names, tmp_path):
    rows = [f"{step},0.0,0.0" for step in range(1, 31)]
    (tmp_path / "metrics.csv").write_text("\n".join([",".join(("step", *names)), *rows, ""]))
    run = read(tmp_path / "metrics.csv")
    (found,) = (one for one in check(run) if one.rule == "zero-gradient")
    said = f"{found.says} {found.advice}"
    assert run.trainer == "verl"
    assert "log_completions" not in said
    assert "generation_kwargs" not in said


@pytest.mark.parametrize(
    "equal",
    [
        {"reward_std": 0.3 * EVERY_OTHER},
        {"score_min": 0.0, "score_max": EVERY_OTHER},
        {"advantage_min": -EVERY_OTHER, "advantage_max": EVERY_OTHER, "score_min": 0.0, "score_max": 1.0},
    ],
    ids=["the spread", "verl's scores", "verl's advantages"],
)
def test_any_metric_of_spread_shows_that_all_rewards_are_equal(equal):
    found = zero_gradient(log(**equal, grad_norm=0.3 * EVERY_OTHER, reward=0.2 * EVERY_OTHER))
    assert (found.cause, found.steps[:2]) == ("equal-rewards", (1, 3))


def test_one_gradient_of_ten_steps_is_set_against_a_share_of_all():
    several = log(grad_norm=0.3 * EVERY_OTHER, zero_std_share=0.55, reward=flat)
    several.steps["step"] *= 10
    found = zero_gradient(several)
    assert found.cause == "equal-rewards" and "of the logged steps" in found.says
    lost = log(grad_norm=0.0, zero_std_share=0.2, reward=flat)
    lost.steps["step"] *= 10
    assert zero_gradient(lost).cause == "unknown"


ROUNDED = {"reward": 0.7, "reward_std": 6e-8, "zero_std_share": 0.0, "grad_norm": 5e-4, "learning_rate": 1e-6}


def test_a_spread_below_rounding_is_no_difference():
    found = false_zero_std(log(**ROUNDED))
    assert found.verdict == FOUND and "fp32 rounds the mean" in found.says and "batch" not in found.says
    assert false_zero_std(log(**ROUNDED | {"reward_std": 1e-3})).verdict != FOUND
    assert false_zero_std(log(**ROUNDED | {"zero_std_share": 1.0})).verdict != FOUND
    assert list(equal_groups(log(reward=0.7, reward_std=6e-8))) == [1.0] * 60


@pytest.mark.parametrize("reward", [0.7, 0.75], ids=["fp32 rounds it", "fp32 has it"])
def test_equal_rewards_of_a_group_are_blamed_on_the_right_cause(reward):
    table = rows(size=8, reward=lambda s, g, r: reward if g < 2 else float(r % 2))
    logged = {"zero_std_share": 0.0, "grad_norm": 0.3, "learning_rate": 1e-6}
    found = false_zero_std(log(**logged, completions=table, facts={"num_generations": 8}))
    assert found.verdict == FOUND
    assert ("fp32 rounds the mean" in found.says) == (reward == 0.7)
    assert ("scale_rewards='batch'" in found.says) == (reward == 0.75)
    rloo = false_zero_std(log(**logged, completions=table, facts={"num_generations": 8, "trainer": "RLOOTrainer"}))
    assert ("KL penalty" in rloo.says) == (reward == 0.75) and "scale_rewards" not in rloo.says
    with_kl = log(**logged, kl=0.01, completions=table, facts={"num_generations": 8, "trainer": "RLOOTrainer"})
    assert "KL penalty" in false_zero_std(with_kl).says


@pytest.mark.parametrize(
    "prompt, text, says",
    [
        ("1 + 1?<think>\n", "Two.</think>2", "the prompt opens it"),
        ("1 + 1?", "Two.</think>2", "the chat template may open it"),
        ("1 + 1?", "<think>Two.</think>2", "what it looks for may never be sampled"),
        ("1 + 1?", "2", "what it looks for may never be sampled"),
    ],
    ids=["opened by the prompt", "not shown", "opened by the completion", "no tag"],
)
def test_a_tag_that_the_prompt_opens_is_why_no_format_pays(prompt, text, says):
    table = rows(prompt=lambda s, g, r: f"{s} {g} {prompt}", text=lambda s, g, r: text)
    found = dead_rewards(log(**{"rewards/format": 0.0, "rewards/match": rising}, completions=table))
    assert found.verdict == FOUND and says in found.advice


def test_nobody_is_told_to_log_what_is_logged():
    whole = {"grad_norm": 0.0, "zero_std_share": 0.2, "clipped_ratio": 0.1, "reward": flat}
    assert not zero_gradient(log(**whole)).advice.startswith("Log")
    assert zero_gradient(log(grad_norm=0.0, zero_std_share=0.2)).advice == "Log completions/clipped_ratio, completions."


# --- course ------------------------------------------------------------------------------------------------------------


def test_a_reward_function_that_never_varies_is_named(tmp_path):
    rewards = [{"step": n, "reward": n / 9, "rewards/dead/mean": 0.0, "rewards/alive/mean": n / 9} for n in range(9)]
    (tmp_path / "a.json").write_text(json.dumps(rewards))
    found = dead_rewards(read(tmp_path / "a.json"))
    assert found.says == "Of 2 reward functions 1 never varied: dead gave 0 in every step."


@pytest.mark.parametrize("printed", [True, False], ids=["printed", "JSON"])
def test_losses_that_are_nan_from_the_first_step_are_a_problem(tmp_path, printed):
    lost = [{"loss": float("nan"), "grad_norm": float("nan"), "reward": 0.5, "epoch": n / 9} for n in range(1, 10)]
    (tmp_path / "a.log").write_text("\n".join(map(str, lost)) if printed else json.dumps(lost))
    found = log_damage(read(tmp_path / "a.log"))
    assert (found.severity, found.cause) == ("problem", "not-finite")
    assert found.says.startswith("grad_norm is no finite number in any step; loss is no finite number in any step")


def verl_lines(**lost):
    """60 steps of PPO as verl prints them, with metrics that are no number in their last steps."""
    steps = []
    for n in range(60):
        logged = {"critic/score/mean": n / 60, "actor/grad_norm": 0.3, "critic/vf_loss": 0.1, "critic/grad_norm": 0.2}
        logged |= {"actor/explained": 0.5, "critic/kl": 0.01}
        logged |= {name.replace("__", "/"): float("nan") for name, count in lost.items() if n >= 60 - count}
        steps.append(" - ".join([f"step:{n + 1}", *(f"{name}:{value}" for name, value in logged.items())]))
    return "\n".join(steps)


def lines_as_json(text):
    rows = [dict(part.rsplit(":", 1) for part in line.split(" - ")) for line in text.splitlines()]
    return "\n".join(json.dumps({name: float(value) for name, value in row.items()}) for row in rows)


@pytest.mark.parametrize("suffix", ["log", "jsonl"])
@pytest.mark.parametrize(
    "name, count, severity",
    [
        ("critic__vf_loss", 60, "problem"),
        ("critic__grad_norm", 60, "problem"),
        ("critic__grad_norm", 45, "problem"),
        ("critic__vf_loss", 20, "problem"),
        ("critic__vf_loss", 1, "note"),
        ("critic__kl", 60, "warning"),
        ("actor__explained", 60, "note"),
        ("actor__explained", 45, "note"),
        ("actor__explained", 5, "note"),
        ("actor__explained", 0, ""),
    ],
)
def test_a_series_that_is_no_number_in_some_steps_is_named(tmp_path, suffix, name, count, severity):
    text = verl_lines(**{name: count})
    (tmp_path / f"a.{suffix}").write_text(text if suffix == "log" else lines_as_json(text))
    finding = log_damage(read(tmp_path / f"a.{suffix}"))
    if not severity:
        assert finding.verdict == "not found"
        return
    steps = "any step" if count == 60 else f"the last {count} of 60 steps"
    said = "kl" if "kl" in name else name.replace("__", "/")
    assert (finding.severity, finding.cause) == (severity, "not-finite")
    assert finding.says.startswith(f"{said} is no finite number in {steps}")


def test_a_function_that_scores_no_row_is_a_note(tmp_path):
    lines = [{"step": n, "reward": 0.1 * n, "rewards/task/mean": 0.5 if n % 3 else float("nan")} for n in range(1, 13)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = log_damage(read(path))
    assert (found.severity, found.cause) == ("note", "not-finite")


def test_a_line_of_an_evaluation_alone_is_no_lost_step(tmp_path):
    lines = [f"{n},{'' if n % 10 == 9 else 0.5},{0.5 if n % 10 == 9 else ''}" for n in range(60)]
    (tmp_path / "log.csv").write_text("\n".join(["_step,reward,eval/accuracy", *lines]))
    assert log_damage(read(tmp_path / "log.csv")).verdict == "not found"
    (tmp_path / "log.csv").write_text("\n".join(["_step,reward,eval/accuracy", *(x for x in lines if ",," not in x)]))
    assert log_damage(read(tmp_path / "log.csv")).cause == "missing"


def test_nan_in_tensorboard_and_in_a_notebook_is_named(tmp_path):
    rows = [{"step": n, "reward": n / 9, "critic/vf_loss": float("nan") if n > 3 else 0.1} for n in range(1, 10)]
    write_events(tmp_path / "events.out.tfevents.1", rows)
    head = "".join(f"<th>{name}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{value}</td>" for value in row.values()) + "</tr>" for row in rows)
    page = {"data": {"text/html": f"<table><tr>{head}</tr>{body}</table>"}}
    cells = [{"cell_type": "code", "source": "", "outputs": [page]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    for name in ("events.out.tfevents.1", "a.ipynb"):
        finding = log_damage(read(tmp_path / name))
        assert finding.severity == "problem", name
        assert finding.says.startswith("critic/vf_loss is no finite number in the last 6 of 9 steps"), name


@pytest.mark.parametrize("norm, cause", [(3e9, "always"), (8.0, None)])
def test_a_gradient_norm_that_is_absurd_throughout_is_named(norm, cause):
    found = spikes(log(12, reward=flat, grad_norm=norm))
    assert (found.cause or None) == cause
    assert cause is None or (found.severity, found.verdict) == ("warning", "found")


@pytest.mark.parametrize("steps", [20, 60])
def test_absurd_gradients_are_named_before_a_flat_reward(steps):
    noise = np.random.default_rng(0).normal(0.3, 0.05, steps)
    findings = check(log(steps, reward=noise, grad_norm=3e9, learning_rate=1e-5))
    assert next(f.rule for f in findings if f.verdict == "found") == "spikes"
    (flat_reward,) = [f for f in findings if f.rule == "no-learning"]
    assert "Repair the gradient first, whose norm is 3e+09" in flat_reward.advice
    assert not re.search("rain (more|longer)|learning rate", flat_reward.advice)


def test_a_correction_that_takes_most_of_the_gradient_is_named():
    ratios = np.tile([0.003, 0.26, 0.1], 4)
    found = lost_to_correction(log(12, reward=flat, ratio_mean=ratios, logp_difference=0.01))
    assert (found.verdict, found.severity) == ("found", "warning")
    assert "takes 88% of the gradient" in found.says and "0.003 in the lowest step" in found.says
    healthy = log(
        12, reward=flat, ratio_mean=np.where(ratios == 0.1, 0.0, 0.97), logp_difference=ratios * (ratios != 0.1)
    )
    assert lost_to_correction(healthy).verdict == "not found"


# --- the share of equal groups where it is of the batch ------------------------------------------------------------------


def of_the_batch(**facts):
    """All groups equal under scale_rewards="batch": the share is 0, and so is every other gradient."""
    metrics = {"grad_norm": np.arange(60) % 2, "learning_rate": 1e-5, "zero_std_share": 0.0, "clipped_ratio": 0.1}
    return log(reward=flat, facts=facts, **metrics)


def test_a_share_refuted_by_zero_gradients_is_false_with_a_cause():
    findings = {f.rule: f for f in check(of_the_batch())}
    assert findings["false-zero-std"].severity == "warning" and len(findings["false-zero-std"].steps) == 30
    assert (findings["zero-gradient"].cause, findings["copies"].verdict) == ("equal-rewards", "cannot tell")


def test_with_all_gradients_0_settings_name_the_share():
    dead = of_the_batch()
    dead.steps["grad_norm"] = 0.0
    assert {f.rule: f.verdict for f in check(dead)}["false-zero-std"] == "cannot tell"
    findings = {f.rule: f for f in check(dataclasses.replace(dead, facts={"scale_rewards": "batch"}))}
    assert findings["false-zero-std"].verdict == "found" and findings["zero-gradient"].cause == "equal-rewards"


def test_settings_alone_refute_it_and_only_a_share_of_1_is_used():
    share = np.where(np.arange(60) < 20, 1.0, 0.0)
    known = {"multi_objective_aggregation": "normalize_then_sum"}
    sick = log(reward=flat, zero_std_share=share, grad_norm=np.where(share, 0, 0.3), facts=known)
    findings = {f.rule: f for f in check(sick)}
    assert findings["false-zero-std"].severity == "note"
    assert findings["zero-gradient"].cause == "equal-rewards" and len(findings["zero-gradient"].steps) == 20


def test_of_groups_it_is_believed():
    busy = {"grad_norm": 0.3, "learning_rate": 1e-5, "clipped_ratio": 0.0}
    healthy = log(reward=rising, zero_std_share=np.arange(60) % 5 / 4, **busy)
    assert {f.rule: f.verdict for f in check(healthy)}["false-zero-std"] == "not found"


def test_advice_names_the_parameters_of_the_logs_own_framework():
    def advised(trainer):
        lengths = {"mean_length": 26.0, "max_length": 32.0, "clipped_ratio": 0.6}
        cut = log(reward=flat, facts={"trainer": trainer, "max_completion_length": 32}, **lengths)
        return {f.rule: f.advice for f in check(cut)}["true-clipping"]

    assert "raise max_completion_length" in advised("GRPOTrainer")
    assert "raise data.max_response_length" in advised("verl")


OF_TRL = re.compile(r"TRL|PPOConfig|loss_type|disable_dropout|mismatch_report|top_k=0|'dr_grpo'|'dapo'")


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("never-stops", {"mean_length": 512.0, "max_length": 512.0, "clipped_ratio": 1.0, "reward": flat}),
        ("length-runaway", {"mean_length": lambda share: 10 + 90 * share, "reward": flat}),
        ("kl-runaway", {"kl": lambda share: -2 - 3 * share, "reward": rising}),
        ("mismatch", {"probability_difference": 0.2, "reward": rising}),
    ],
)
def test_advice_for_verl_has_no_parameter_of_trl(name, metrics):
    facts = {"max_completion_length": 512}
    of_verl, of_trl = (log(facts=facts | {"trainer": trainer}, **metrics) for trainer in ("verl", "GRPOTrainer"))
    advice = [{f.rule: f for f in check(made)}[name] for made in (of_verl, of_trl)]
    assert all(f.verdict == FOUND for f in advice)
    assert OF_TRL.search(advice[1].advice) and not OF_TRL.search(advice[0].advice), advice[0].advice


@pytest.mark.parametrize("count, expected", [(3, "not found"), (20, "not-finite")])
def test_gradients_nan_at_first_are_lost_and_not_merely_unlogged(tmp_path, count, expected):
    line = "{{'loss': 0.0, 'grad_norm': {}, 'reward': {}, 'epoch': {}}}\n"
    lines = [line.format("nan" if n < count else 0.3, n / 50, n / 50) for n in range(50)]
    (tmp_path / "a.log").write_text("".join(lines))
    found = log_damage(read(tmp_path / "a.log"))
    assert expected in (found.cause, found.verdict) and found.is_problem is (count == 20)


# --- logs that nobody had seen -------------------------------------------------------------------------------------------


def test_a_few_dead_steps_are_no_reason_why_nothing_is_learned():
    dead = np.where(np.arange(60) % 12 == 5, 0.0, 0.4)  # 8% of the steps
    by_rule = {f.rule: f for f in check(log(reward=flat, grad_norm=dead, zero_std_share=dead == 0))}
    assert by_rule["zero-gradient"].verdict == by_rule["no-learning"].verdict == "found"
    assert by_rule["no-learning"].follows_from is None and by_rule["no-learning"].advice


def test_the_last_gradient_of_several_steps_is_no_problem():
    dead = {"grad_norm": np.tile([0.3, 0.0, 0.2, 0.0, 0.4], 4), "reward_std": 0.2}
    every = log(20, reward=rising, **dead)
    tenth = dataclasses.replace(every, steps=every.steps.assign(step=every.steps["step"] * 10))
    assert zero_gradient(every).severity == "problem"
    assert zero_gradient(tenth).severity == "warning"


def test_beside_a_kl_term_equal_rewards_are_not_all_of_it():
    found = zero_gradient(log(reward=flat, kl=0.1, zero_std_share=EVERY_OTHER))
    assert "whatever gradient other terms give" in found.says


@pytest.mark.parametrize(("column", "groups"), [("value_loss", False), ("loss", True)])
def test_a_trainer_with_a_critic_compares_no_prompts(column, groups):
    made = log(reward=flat, facts={"trainer": "verl"}, **{column: 0.3})
    assert made.grouped is groups
    assert wasted_groups(made).verdict == ("cannot tell" if groups else "not found")


def test_the_cost_counts_the_steps_between_two_lines():
    every = log(reward=flat, zero_std_share=0.6, step_time=10.0)
    tenth = dataclasses.replace(every, steps=every.steps.assign(step=every.steps["step"] * 10))
    assert wasted_groups(every).cost["seconds"] == pytest.approx(0.6 * 60 * 10)
    assert wasted_groups(tenth).cost["seconds"] == pytest.approx(0.6 * 600 * 10)


def test_each_run_in_a_file_counts_however_short():
    order = [*range(1, 11), 1, 2, 3, 1, 1, *range(1, 6)]
    assert "holds 5 runs" in log_damage(log(10, reward=flat, order=order)).says


@pytest.mark.parametrize(
    ("length", "limit", "cause"),
    [
        (32.0, None, "all-cut"),
        (32.0, 32, "all-cut"),
        (32.0, 64, ""),
        (31.5, None, ""),
        (1.0, None, ""),
        (flat, None, ""),
    ],
)
def test_completions_of_one_length_throughout_are_cut(length, limit, cause):
    found = never_stops(log(reward=rising, mean_length=length, facts={"max_completion_length": limit} if limit else ()))
    assert found.cause == cause and found.verdict == ("found" if cause else "cannot tell")


def test_reward_functions_logged_in_few_steps_are_counted():
    assert (
        "2 of them, in too few steps"
        in dead_rewards(log(4, reward=flat, **{f"{PART}{name}": flat for name in "ab"})).says
    )


@pytest.mark.parametrize(
    "names, expected",
    [
        (("completions/clipped_ratio", "completions/mean_length", "completions/max_length"), "found"),
        (("rollout/truncated_ratio", "rollout/response_len/mean", "rollout/response_len/max"), "not found"),
        (("train/truncation_rate", "train/mean_gen_tokens_per_sample", "completions/max_length"), "not found"),
    ],
)
def test_ratios_that_an_engine_reports_are_not_disputed(tmp_path, names, expected):
    row = {"reward": 0.5} | dict(zip(names, (0.6, 50.0, 100.0), strict=True))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"step": n} | row) + "\n" for n in range(60)))
    assert {f.rule: f.verdict for f in check(read(tmp_path / "a.jsonl"))}["false-clipping"] == expected


def test_weights_are_not_lost_where_later_steps_are_finite():
    norm = np.where(np.isin(np.arange(60), range(10, 15)), np.nan, 0.3)
    found = log_damage(log(reward=rising, loss=0.1, grad_norm=norm))
    assert (found.severity, found.cause) == ("warning", "not-finite")
    assert "the weights were not lost" in found.says
    assert log_damage(log(reward=rising, grad_norm=np.where(np.arange(60) < 50, 0.3, np.nan))).severity == "problem"


@pytest.mark.parametrize(
    "cell, elsewhere, severity, says",
    [
        ("NaN", "", "problem", "may be lost"),
        ("", "", "warning", "an empty cell for what was NaN"),
        ("", "nan", "note", "entropy"),
    ],
)
def test_an_empty_cell_at_the_end_is_no_sure_nan(tmp_path, cell, elsewhere, severity, says):
    lines = [
        f"{n},{0.1 if n < 50 else cell},0.{n},{elsewhere if elsewhere and n == 10 else 1.5}\n" for n in range(10, 60)
    ]
    (tmp_path / "a.csv").write_text("step,loss,reward,entropy\n" + "".join(lines))
    found = log_damage(read(tmp_path / "a.csv"))
    assert (found.severity, found.cause, says in found.says) == (severity, "not-finite", True)


def test_masked_steps_ask_first_whether_rows_were_cut():
    masked = log(reward=flat, grad_norm=EVERY_OTHER, clipped_ratio=1 - EVERY_OTHER, zero_std_share=0.0)
    found = zero_gradient(masked)
    assert found.cause == "masked" and found.advice.startswith("If they were really cut, raise max_completion_length.")


# --- what a second reader found -----------------------------------------------------------------------------------------


def test_a_learning_rate_printed_with_five_decimals_may_be_small():
    share = np.linspace(0, 1, 60)
    norm, loss = (1.2 + 0.1 * share).round(5), np.tile([0.00001, 0.00113, 0.00237], 20)
    printed = log(reward=np.tile([0.33333, 0.66667], 30), grad_norm=norm, learning_rate=0.0, loss=loss)
    assert problems(printed) == []


def test_a_count_of_groups_whose_number_nobody_says_is_no_share(tmp_path):
    rows = [
        {"step": n, "critic/score/mean": 0.5, "batch/solve_none": 60 + n % 3, "batch/solve_all": 58}
        for n in range(1, 40)
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = read(tmp_path / "log.jsonl")
    assert made.logged("zero_std_share") is None and problems(made) == []
    for row in rows:
        row["batch/solve_partial"] = 256 - row["batch/solve_none"] - row["batch/solve_all"]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(tmp_path / "log.jsonl").logged("zero_std_share").mean() == pytest.approx(119 / 256, abs=0.01)


@pytest.mark.parametrize("times", [1, 2])
def test_a_generation_that_is_trained_twice_counts_as_once(times):
    """Every second line has no reward where a generation is trained twice."""
    steps, rng = 1500 * times, np.random.default_rng(0)
    there = np.arange(steps) % times == 0
    reward = np.where(there, 0.5 - 0.0134 * np.linspace(0, 1, steps) + 0.02 * rng.normal(size=steps), np.nan)
    (one,) = [f for f in check(log(steps, reward=reward, grad_norm=0.3)) if f.rule == "collapse"]
    assert (one.severity, "less than between steps" in one.says) == ("warning", True)
    equal = np.where(there, 0.6, np.nan)
    wasted = wasted_groups(log(steps, zero_std_share=equal, step_time=2.0))
    assert wasted.cost["seconds"] == pytest.approx(0.6 * 2.0 * steps)


def test_a_kl_of_whole_completions_has_other_bounds(tmp_path):
    rows = [{"step": n, "objective/scores": 0.5 + 0.1 * (n % 2), "objective/kl": 0.05 * 1.15**n} for n in range(1, 30)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert kl_runaway(read(tmp_path / "log.jsonl")).verdict == "not found"
    per_token = [{"step": row["step"], "reward": row["objective/scores"], "kl": row["objective/kl"]} for row in rows]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in per_token))
    assert kl_runaway(read(tmp_path / "log.jsonl")).verdict == "found"


# --- advice that does no harm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("clip_region", np.tile([0.44, 0.46], 30)),
        ("clip_region", np.tile([0.14, 0.16], 30)),
        ("entropy", np.linspace(0.4, 4.0, 60)),
    ],
)
def test_no_higher_rate_is_advised_to_a_policy_that_runs_away(name, values):
    made = log(reward=flat, grad_norm=0.4, kl=0.01, **{name: values})
    (found,) = (f for f in check(made) if f.rule == "no-learning")
    assert "Do not raise the learning rate" in found.advice and "Raise the learning rate" not in found.advice
    assert ("of the tokens are clipped" in found.advice) == (name == "clip_region")


@pytest.mark.parametrize(("end", "easy"), [(0.55, False), (0.97, True)])
def test_groups_equal_at_a_middle_reward_are_not_called_too_easy(end, easy):
    equal = np.repeat([0.3, 0.95], [120, 80])
    found = wasted_groups(log(200, zero_std_share=equal, reward=np.r_[np.linspace(0.2, end, 120), np.full(80, end)]))
    assert "56% of the groups have equal rewards, in the mean of 200 steps" in found.says
    assert "(95% in the last quarter)" in found.says
    assert ("most are too easy" in found.says) == easy
    assert ("the mean reward is 0.55" in found.says) == (not easy)
    assert ("never solved" in found.advice) == (not easy)


def test_parts_that_are_all_dead_at_the_end_hide_nothing():
    alive = np.arange(100) < 50
    match = np.where(alive, 0.2 + 0.004 * np.arange(100), 0.0)
    parts = {"rewards/match": match, "rewards/format": 0.1 * alive}
    made = log(100, reward=match + 0.1 * alive, grad_norm=0.4 * alive, zero_std_share=np.where(alive, 0.2, 1), **parts)
    found = {f.rule: f for f in check(made)}
    assert found["zero-gradient"].severity == "problem" and found["reward-parts"].verdict == "not found"


TRLS = {"completions/mean_length": 7.0, "frac_reward_zero_std": 0.1, "rewards/match/mean": 0.5}


@pytest.mark.parametrize("own", [{}, *({name: value} for name, value in TRLS.items())], ids=" ".join)
def test_an_option_of_trl_is_named_only_where_the_log_is_trls(tmp_path, own):
    rows = [{"step": n, "reward": 0.5 + 0.1 * (n % 2), "loss": 0.1, **own} for n in range(1, 30)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run,) = audit_run(tmp_path / "log.jsonl").runs
    said = " ".join(run.text().split()) + " ".join(f.says + f.advice for f in run.findings)
    assert ("log_completions" in said) == bool(own)
    assert ("with completions in the log" in said) == (not own)


@pytest.mark.parametrize(
    ("full", "longest", "shortest", "cause"),
    [
        (0.4, 512, 90, "prompts"),
        (0.02, 512, 90, ""),  # a few just reach it
        (0.4, [512, 400], 90, ""),  # the width of the batch is its longest prompt, and no limit
        (1.0, 512, 512, ""),  # all prompts have one length
    ],
)
def test_prompts_of_verl_that_fill_their_limit_are_named(tmp_path, full, longest, shortest, cause):
    lines = [f"{n},0.5,0.02,{full},{np.resize(longest, 40)[n]},{shortest}" for n in range(40)]
    head = (
        "step,critic/score/mean,response_length/clip_ratio,prompt_length/clip_ratio,prompt_length/max,prompt_length/min"
    )
    (tmp_path / "metrics.csv").write_text("\n".join([head, *lines, ""]))
    (run,) = audit_run(tmp_path / "metrics.csv").runs
    (found,) = (one for one in run.findings if one.rule == "true-clipping")
    assert found.cause == cause
    if cause:
        assert found.severity == "warning" and "cut there, or just reach it" in found.says
        assert "40% of the prompts" in found.says and "data.max_prompt_length" in found.advice
