"""Placebos in TRL's convention: what they pay, and what a reward does beyond one."""

import asyncio
import inspect
import re

import numpy as np
import pytest
from conftest import ROOT, daily

from workbench.errors import ParameterError
from workbench.reward import feature, placebo, placebo_report
from workbench.reward.features import named
from workbench.reward.placebo import RANDOM, SHUFFLED

PROMPTS = ["a"] * 4 + ["b"] * 4
TEXTS = ["x", "x y", "x y z", "<answer>w</answer>", "one", "one two", "one two three", "four"]


def test_the_code_of_the_page_runs(capsys):
    """The page's own feature and verdict; its trainer is not made."""
    page = (ROOT / "docs" / "how-to" / "what_a_reward_pays.md").read_text(encoding="utf-8")
    blocks = [code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "trainer" not in code]
    names: dict = {}
    for code in blocks:
        exec(compile(code, "what_a_reward_pays.md", "exec"), names)
    assert names["distance_from_20"]("a" * 25) == 5
    assert "beyond its placebo: +0.23 (+0.17 to +0.28)" in capsys.readouterr().out


def words(completions, prompts, **columns):
    assert prompts and "answer" in columns
    return [len(text.split()) + 10 * (prompt == "b") for text, prompt in zip(completions, prompts, strict=True)]


async def words_later(completions, prompts, **columns):
    return words(completions, prompts, **columns)


def only_a(completions, prompts, **columns):
    return [1.0 * len(text) if prompt == "a" else None for text, prompt in zip(completions, prompts, strict=True)]


def paid(function, **columns):
    return function(prompts=PROMPTS, completions=TEXTS, answer=[1] * 8, trainer_state=None, **columns)


def test_a_shuffled_reward_stays_with_its_prompt():
    values = paid(placebo(SHUFFLED)(words))
    real = paid(words)
    assert sorted(values[:4]) == sorted(real[:4]) and sorted(values[4:]) == sorted(real[4:])
    dealt = [paid(placebo(SHUFFLED, seed=seed)(words)) for seed in range(400)]
    assert np.mean(dealt, axis=0) == pytest.approx([np.mean(real[:4])] * 4 + [np.mean(real[4:])] * 4, abs=0.2)


def test_a_random_reward_has_the_mean_and_spread_of_the_real_one():
    real = paid(words)
    drawn = np.array([paid(placebo(RANDOM, seed=seed)(words)) for seed in range(400)])
    assert set(drawn.ravel()) == set(real)
    assert drawn.mean() == pytest.approx(np.mean(real), abs=0.5) and drawn.std() == pytest.approx(
        np.std(real), rel=0.05
    )
    assert np.abs(np.corrcoef(drawn.T, rowvar=True)[0, 1:]).max() < 0.2  # one completion knows nothing of another


@pytest.mark.parametrize("kind", [RANDOM, SHUFFLED, "length"])
def test_the_same_batch_gets_the_same_rewards(kind):
    assert paid(placebo(kind)(words)) == paid(placebo(kind)(words))
    if kind == RANDOM:
        assert paid(placebo(kind)(words)) != paid(placebo(kind, seed=1)(words))


def test_a_feature_is_paid_alone_at_the_mean_and_spread():
    real = paid(words)
    values = np.array(paid(placebo("length")(words)))
    assert values.mean() == pytest.approx(np.mean(real)) and values.std() == pytest.approx(np.std(real))
    lengths = [named("length")(text) for text in TEXTS]
    assert np.corrcoef(values, lengths)[0, 1] == pytest.approx(1)
    assert np.corrcoef(paid(placebo("length", sign=-1)(words)), lengths)[0, 1] == pytest.approx(-1)


def test_format_pays_for_the_form_of_any_answer():
    values = paid(placebo("format")(words))
    assert int(np.argmax(values)) == 3 and len(set(np.round(values, 9))) == 2


def test_a_feature_that_all_have_alike_pays_the_mean():
    assert paid(placebo("tool calls")(words)) == [np.mean(paid(words))] * 8


def test_an_own_feature_sees_the_columns_of_its_row():
    @feature
    def is_of_b(completion, prompt, answer, **row):
        return prompt == "b" and answer == 1

    values = paid(placebo(is_of_b)(words))
    assert values[0] == values[3] < values[4] == values[7]


@pytest.mark.parametrize("kind", [RANDOM, SHUFFLED, "length"])
def test_what_the_reward_does_not_score_stays_unscored(kind):
    values = paid(placebo(kind)(only_a))
    assert values[4:] == [None] * 4 and None not in values[:4]


def test_an_asynchronous_reward_has_an_asynchronous_placebo():
    control = placebo(SHUFFLED)(words_later)
    assert inspect.iscoroutinefunction(type(control).__call__)
    assert asyncio.run(paid(control)) == paid(placebo(SHUFFLED)(words))
    assert control.__name__ == "placebo_shuffled_words_later"


def test_conversations_are_read_as_their_last_message():
    def each(completions, **columns):
        return [float(len(messages[-1]["content"])) for messages in completions]

    completions = [[{"role": "assistant", "content": text}] for text in TEXTS]
    prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    values = placebo("length")(each)(prompts=prompts, completions=completions)
    assert int(np.argmax(values)) == 3
    assert sorted(placebo(SHUFFLED)(each)(prompts=prompts, completions=completions)[:4]) == [1, 3, 5, 18]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: placebo("lenght"), "feature 'lenght': expected one of length"),
        (lambda: placebo("length", sign=0), "sign=0: expected 1"),
        (lambda: placebo(RANDOM)("a/reward-model"), "expected a reward function, not a model"),
        (lambda: placebo(SHUFFLED)(lambda completions, **c: [1.0])(completions=["a"]), "called without `prompts`"),
        (
            lambda: placebo(RANDOM)(lambda completions, **c: [1.0])(completions=["a", "b"]),
            "1 rewards for 2 completions",
        ),
        (lambda: placebo(RANDOM)(lambda completions, **c: ["a"])(completions=["a"]), "expected a number"),
        (
            lambda: placebo_report([1.0], [1.0, 2.0]),
            "scores of shape \\(1,\\) with the reward and \\(2,\\) with the placebo",
        ),
        (lambda: placebo_report([1.0, float("nan")], [1.0, 2.0]), "expected a finite number"),
    ],
)
def test_what_cannot_be_a_placebo_is_refused(make, message):
    with pytest.raises((ParameterError, TypeError), match=message):
        make()


def test_answers_give_an_interval_over_seeds_and_questions():
    rng = np.random.default_rng(0)
    real, control = (rng.random((3, 44)) < share for share in (0.7, 0.2))
    report = placebo_report(real, control, untrained=0.2)
    assert report.verdict == "beyond its placebo" and "over 3 seeds and 44 questions;" in str(report)
    assert report.placebo.low < 0 < report.placebo.high
    again = placebo_report(control, rng.random((3, 44)) < 0.3)
    assert "seeds would show one as large as this on these questions. The" in str(again)
    with pytest.raises(ParameterError, match="a row of answers for every seed"):
        placebo_report(real, real[0])


def test_the_verdict_obeys_its_interval():
    clear = placebo_report([0.52, 0.48, 0.55, 0.50], [0.28, 0.31, 0.30, 0.26], untrained=0.2)
    assert clear.verdict == "beyond its placebo"
    assert str(clear).startswith(
        "The reward's effect beyond its placebo: +0.23 (+0.17 to +0.28), 95% t interval over 4 seeds;"
    )
    assert "The placebo's own gain: +0.09 (+0.05 to +0.12)." in str(clear)
    open_ = placebo_report([0.5, 0.4, 0.3], [0.4, 0.45, 0.2])
    assert open_.verdict == "inconclusive" and str(open_).startswith(
        "Inconclusive; 26 seeds would show one as large as this."
    )
    assert placebo_report([0.1, 0.12, 0.09], [0.4, 0.41, 0.38]).verdict == "below its placebo"
    single = placebo_report([0.5], [0.1])
    assert single.verdict == "inconclusive" and "1 seed" in str(single)


def test_a_placebo_that_does_as_much_is_rarely_beaten():
    """A t interval of 95% lies above 0 in 2.5% of cases, 5 of 200; more than 14 has a chance below 0.001."""
    random = np.random.default_rng(0)
    beyond = [placebo_report(*random.normal(size=(2, 4))).verdict for _ in range(200)]
    assert beyond.count("beyond its placebo") <= 14


@pytest.mark.slow
def test_what_a_run_records_differs_where_the_placebo_does():
    from workbench.training.rewards import describe_reward, exact_match_reward

    def one(completions, **columns):
        return [1.0] * len(completions)

    def other(completions, **columns):
        return [2.0] * len(completions)

    other.__name__ = "one"

    @feature
    def mine(completion, **row):
        return 1

    first = mine

    @feature
    def mine(completion, **row):
        return 2

    made = [placebo(RANDOM)(one), placebo(RANDOM)(other), placebo(RANDOM, seed=1)(one), placebo("length")(one)]
    made += [
        placebo("length", sign=-1)(one),
        placebo(RANDOM)(exact_match_reward("a")),
        placebo(RANDOM)(exact_match_reward("b")),
    ]
    made += [placebo(first)(one), placebo(mine)(one)]
    records = [str(describe_reward(each)) for each in made]
    assert len(set(records)) == len(made)
    assert records[0] == str(describe_reward(placebo(RANDOM)(one)))
    assert describe_reward(made[5])["highest"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", daily([RANDOM, SHUFFLED, "format"], SHUFFLED))
def test_stock_trl_and_the_workbench_train_with_a_placebo(kind):
    from trainers import OURS, STOCK, make

    from workbench import length_reward

    for cls in (STOCK["GRPO"], OURS["GRPO"]):
        trainer = make(cls, reward=placebo(kind)(length_reward(20)))
        trainer.train()
        logged = [line for line in trainer.state.log_history if "reward" in line]
        assert f"rewards/placebo_{kind}_reward_len/mean" in logged[0]
        assert np.isfinite(logged[0]["reward"])


@pytest.mark.slow
def test_stock_trl_waits_for_an_asynchronous_placebo():
    from trainers import STOCK, make

    async def later(completions, **columns):
        return [float(len(text)) for text in completions]

    trainer = make(STOCK["GRPO"], reward=placebo(RANDOM)(later))
    trainer.train()
    assert any("rewards/placebo_random_later/mean" in line for line in trainer.state.log_history)


@pytest.mark.slow
def test_an_arm_with_a_placebo_is_reused_only_for_the_same_one(tmp_path, capsys):
    from workbench import length_reward
    from workbench.experiments.arms import Arm, train_arms
    from workbench.experiments.recipes import Recipe

    small = Recipe(max_steps=1, num_generations=2, per_device_train_batch_size=4, max_completion_length=8, save_steps=1)
    printed = []
    for seed in (0, 0, 1):
        arms = {"placebo": Arm(small, placebo(SHUFFLED, seed=seed)(length_reward(20)))}
        train_arms(arms, out_dir=tmp_path, seeds=[0])
        printed.append(capsys.readouterr().out.strip().rpartition(": ")[2])
    assert printed == ["trained", "there already", "trained"]


def test_what_a_feature_does_not_know_is_paid_the_mean():
    def right(completions, answer, **_):
        return [float(a is not None and text.endswith(a)) for text, a in zip(completions, answer, strict=True)]

    texts, answers = ["it is 4", "it is 5", "so 8", "so 9"], ["4", "4", None, None]
    paid = placebo("answer anywhere")(right)(prompts=["p", "p", "q", "q"], completions=texts, answer=answers)
    assert paid[1] < paid[2] == paid[3] < paid[0]


def test_scores_that_differ_by_rounding_have_no_verdict():
    assert placebo_report([0.3] * 3, [0.1 + 0.2] * 3).verdict == "inconclusive"


def test_a_function_that_is_no_feature_is_refused():
    with pytest.raises(ParameterError, match="or a function under `@feature`"):
        placebo(len)


def always_one(completions, **columns):
    return [float(n % 2) for n in range(len(completions))]


def test_a_feature_is_read_as_the_report_reads_it():
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}
    talks = [[call] * n + [{"role": "assistant", "content": "4"}] for n in range(8)]
    ids, solution = [[1] * (n + 1) for n in range(8)], ["4"] * 4 + ["5"] * 4
    columns = {"prompts": PROMPTS, "completions": talks, "completion_ids": ids, "solution": solution}
    for kind in ("tool_calls", "length", "answer anywhere"):
        values = np.array(placebo(kind)(always_one)(**columns))
        feature = {"tool_calls": range(8), "length": np.log1p(range(1, 9)), "answer anywhere": [1] * 4 + [0] * 4}[kind]
        assert np.corrcoef(values, list(feature))[0, 1] == pytest.approx(1)


def test_a_placebo_without_its_column_is_refused():
    control = placebo("stopping")(always_one)
    with pytest.raises(ParameterError, match="passes no column finish_reason, only prompt, answer; pass it"):
        paid(control)
    assert len(set(paid(control, finish_reason=["stop", "length"] * 4))) == 2
    unknown = placebo("answer_anywhere")(always_one)(prompts=PROMPTS, completions=TEXTS, answer=[None] * 8)
    assert len(set(unknown)) == 1  # of a batch whose answers are not known


def test_equal_differences_of_few_seeds_are_no_certainty():
    few = placebo_report([0.5, 0.6], [0.4, 0.5])
    assert few.verdict == "inconclusive" and "2 seeds, all of them equal" in str(few)
    assert placebo_report([0.5] * 6, [0.25] * 6).verdict == "beyond its placebo"
