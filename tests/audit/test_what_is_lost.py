"""What the audit says first: rewards without answers, tools that fail; and what it no longer says of healthy runs."""

import json

import numpy as np
import pytest
from made_up import flat, log, rows

from workbench.audit.check import check
from workbench.audit.report import audit_run
from workbench.audit.rules_gradient import copies, zero_gradient
from workbench.audit.rules_learning import no_learning, solved
from workbench.audit.rules_reward import dead_rewards, reward_parts, scores_the_answer, tool_failures

STEPS = np.arange(60)
NOISE = np.random.default_rng(0).normal(size=60)


def up(share):
    return 0.1 + 2 * share


def of_parts(reward, **parts):
    return log(reward=reward, **{f"rewards/{name}": means for name, means in parts.items()})


# --- the parts of the reward ---

# What notebooks in public call their reward functions.
ANSWERS = ["correctness_reward_func", "check_answer", "check_numbers", "accuracy_reward", "equation_reward_func"]
ANSWERS += ["percentage_correct", "information_accuracy", "stage2_correct"]
FORMS = ["xmlcount_reward_func", "match_format_exactly", "soft_format_reward_func", "answer_length", "int_reward_func"]


def test_names_tell_an_answer_from_its_form():
    assert {name: scores_the_answer(name) for name in ANSWERS + FORMS} == dict.fromkeys(ANSWERS, True) | dict.fromkeys(
        FORMS, False
    )


@pytest.mark.parametrize(
    "answer, says",
    [
        (0.0, "check_answer 0 in every step, never earned"),
        (0.35 + 0.01 * NOISE, "check_answer +0.00"),
        (0.35 - 0.09 * STEPS / 60 + 0.01 * NOISE, "check_answer -0.0"),
    ],
    ids=["never earned", "flat", "falls"],
)
def test_reward_that_rises_by_its_form_alone_comes_first(answer, says, tmp_path):
    rows = of_parts(up, match_format=up, check_answer=answer).steps
    rows["loss"], rows["frac_reward_zero_std"] = 0.01, 0.55
    rows.to_csv(tmp_path / "history.csv", index=False)
    report = audit_run(tmp_path / "history.csv")
    first = report.runs[0].findings[0]
    assert (first.title, first.severity) == ("reward-parts (form-only)", "warning")
    assert says in first.says and "match_format +" in first.says
    assert (
        str(report).splitlines()[0].startswith(f"{tmp_path / 'history.csv'}: the reward rises and the answers do not")
    )
    assert "warning reward-parts (form-only): The reward rises" in report.runs[0].brief


def test_an_answer_too_noisy_to_be_flat_is_no_warning():
    found = reward_parts(of_parts(up, match_format=up, check_answer=0.5 + 1.5 * NOISE))
    assert (found.severity, found.cause) == ("note", "")


@pytest.mark.parametrize(
    "answer", [lambda share: 0.3 + 0.5 * share, np.where(STEPS % 9, 1.95, 2.0), 0.97 + 0.005 * NOISE]
)
def test_an_answer_that_rises_or_is_at_its_top_is_no_warning(answer):
    assert reward_parts(of_parts(up, match_format=up, check_answer=answer)).cause == ""


def test_parts_without_a_known_name_are_set_against_the_form():
    assert reward_parts(of_parts(up, format_fn=up, tool_trace=-0.5, tool_use=-0.2)).cause == "form-only"
    assert reward_parts(of_parts(up, brightness=up, tool_trace=-0.5, tool_use=-0.2)).cause == ""


def test_a_part_all_completions_earn_is_not_called_unsampled():
    made = of_parts(up, length=0.15, answer=up)
    assert (
        dead_rewards(made).advice == "length: every completion earns it. Keep it if it is a guard, else ask for more."
    )
    both = dead_rewards(of_parts(up, length=0.15, answer=up, strict=0.0)).advice
    assert both.startswith("Call the function on a completion") and "length: every completion" in both


def test_a_penalty_all_completions_get_is_not_called_unsampled():
    made = of_parts(up, penalty=-0.1, answer=up)
    assert dead_rewards(made).advice.startswith("penalty: every completion gets it.")


@pytest.mark.parametrize("name, about", [("accuracy", "Call the function"), ("format", "Completions close </think>")])
def test_a_tag_is_no_advice_on_a_dead_answer(name, about):
    texts = rows(prompt=lambda s, g, r: "Why? <think>", text=lambda s, g, r: f"{r} </think> {s}")
    made = log(reward=up, completions=texts, **{f"rewards/{name}": 0.0, "rewards/other": up})
    assert dead_rewards(made).advice.startswith(about)


def test_a_part_of_negative_weight_that_falls_does_not_rise():
    made = of_parts(0.5, accuracy=up, repetition=lambda share: 0.9 - share, style=0.5)
    made.steps["reward"] = made.steps["rewards/accuracy"] - made.steps["rewards/repetition"] + 0.5
    assert reward_parts(made).says.startswith("2 of 3 parts of the reward move: ")


# --- tools ---

FLAT = {"reward": 0.06 + 0.02 * NOISE, "grad_norm": 0.3, "loss": 0.01, "entropy": 0.5}
FAILING = {
    "TRL": {"tools/failure_frequency": 0.62 + 0.02 * NOISE, "tools/call_frequency": 1.8},
    "prime-rl": {"error/mean": 0.62 + 0.02 * NOISE},
    "verl": {"env/ratio_of_valid_action": 0.38 + 0.02 * NOISE},
}


@pytest.mark.parametrize("framework", FAILING)
def test_nobody_whose_tools_fail_is_told_to_learn_faster(framework, tmp_path):
    columns = {"step": STEPS + 1.0, **FLAT, **FAILING[framework]}
    rows = [{name: float(np.broadcast_to(values, 60)[n]) for name, values in columns.items()} for n in range(60)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    findings = {f.rule: f for f in audit_run(tmp_path / "log.jsonl").runs[0].findings}
    first = next(iter(findings.values()))
    assert (first.rule, first.severity) == ("tool-failures", "problem") and first.says.startswith("62% of the")
    assert findings["no-learning"].follows_from == "tool-failures"
    assert not any("raise the learning rate" in finding.advice for finding in findings.values())


def test_few_failing_calls_are_not_mentioned():
    assert tool_failures(log(reward=flat, tool_failures=0.02, tool_calls=2.0)).verdict == "not found"
    learns = log(reward=up, tool_failures=0.6, tool_calls=2.0)
    assert tool_failures(learns).severity == "warning"
    assert tool_failures(log(reward=flat)).verdict == "cannot tell"
    no_calls = log(reward=flat, tool_failures=0.0, tool_calls=0.0)
    assert tool_failures(no_calls).verdict == "cannot tell"


# --- equal groups, and the top of the reward ---


@pytest.mark.parametrize("every, severity", [(5, "note"), (2, "warning")])
def test_equal_groups_below_a_third_are_a_note(every, severity):
    equal = (STEPS % every == 0).astype(float)
    found = zero_gradient(log(reward=up, grad_norm=0.3 * (1 - equal), zero_std_share=equal))
    assert (found.cause, found.severity) == ("equal-rewards", severity)


NEAR_1 = np.minimum(0.945 + 0.02 * NOISE, 1.0) - 0.004 * STEPS / 60


def test_no_learning_is_silent_where_the_reward_is_near_1():
    assert no_learning(log(reward=NEAR_1)).verdict == "not found"
    assert no_learning(log(reward=NEAR_1 - 0.3)).verdict != "not found"
    assert no_learning(log(reward=NEAR_1 + 1)).verdict != "not found"
    assert no_learning(log(reward=NEAR_1, score_max=0.97)).verdict != "not found"


def test_solved_and_zero_gradient_say_the_same_of_the_top():
    reward = np.minimum(0.2 + STEPS / 20, 1.9)
    dead = (STEPS > 34).astype(float)
    findings = {f.rule: f for f in check(log(reward=reward, grad_norm=0.3 * (1 - dead), zero_std_share=dead))}
    assert "the highest of the run (the log does not say whether more is possible)" in findings["zero-gradient"].says
    assert findings["solved"].verdict == "cannot tell"
    assert "ends at 1.9, the highest of the run" in findings["solved"].advice
    assert "not known" not in solved(log(reward=reward)).advice


# --- zeros of the loss ---

ZEROS = np.where(STEPS % 3, 0.0, np.round(3 * NOISE, 4))


def test_zeros_of_the_loss_alone_assert_no_cause():
    found = zero_gradient(log(loss=ZEROS, reward=flat))
    assert (found.cause, found.severity) == ("zero-loss", "warning")
    assert "or completions were left out of it" in found.says and "completions/clipped_ratio" in found.advice
    said = zero_gradient(log(loss=ZEROS, reward=flat, reward_std=np.where(ZEROS == 0, 0.0, 0.3)))
    assert (said.cause, said.severity) == ("equal-rewards", "problem")


def test_zeros_of_the_loss_at_the_ends_of_the_reward_are_equal():
    reward = np.where(ZEROS == 0, STEPS % 2, 0.2 + 0.5 * (STEPS % 7) / 7)
    found = zero_gradient(log(loss=ZEROS, reward=reward))
    assert (found.cause, found.severity) == ("equal-rewards", "warning")


def test_zeros_of_the_loss_are_no_copies():
    assert copies(log(loss=ZEROS, reward=flat)).verdict == "cannot tell"
    made = log(loss=np.where(STEPS == 3, 3.1234, 0.0), reward=flat, facts={"request_seed": 7})
    assert copies(made).verdict == "cannot tell"
