"""What a reward pays for: planted rewards are named, healthy and random ones are not; records of any writer."""

import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, call

from benchmarks.reward_report import PLANTED, exact, healthy, planted, run_of
from workbench.errors import ParameterError, RunError
from workbench.logs.rollouts import load_completions
from workbench.reward import feature, reward_report
from workbench.reward.report import LEAST
from workbench.runs.files import jsonable

LONGER = [{"step": s, "prompt": "p", "completion": "word " * n, "reward": n} for s in range(30) for n in (1, 5, 9)]


@pytest.mark.slow
def test_each_planted_reward_is_named_and_grows_in_completions():
    found = planted()
    assert [row["right"] for row in found.values()] == [True] * len(PLANTED) == [True] * 5
    grows = [name for name, row in found.items() if "Over the run this grows" in row["headline"]]
    assert [name.partition(":")[0] for name in grows] == ["length", "tools"]
    assert all("completions have more of it" in row["headline"] for row in found.values())


@pytest.mark.slow
def test_healthy_and_random_rewards_are_met_with_silence():
    found = healthy()
    assert len(found) == 20 and [name for name, names in found.items() if names] == []


def test_right_answers_explain_a_healthy_reward():
    report = reward_report(run_of(exact, "length", steps=15))
    assert report.verdict == "nothing found" and report.answers == pytest.approx(1)
    assert "leaves next to nothing for another feature" in report.headline


def _right_ones_are_longer(known_steps, unknown=None):
    """60 groups of 8; the reward is 1 for right completions, which are somewhat longer."""
    rng, rows = np.random.default_rng(0), []
    for step in range(60):
        for right in rng.permutation([1] * 4 + [0] * 4):
            words = int(rng.integers(5, 18)) + 3 * right
            row = {
                "step": step,
                "prompt": f"p{step}",
                "completion": "w " * words + ("is 4" if right else "is 5"),
                "reward": right,
            }
            rows.append(row | {"answer": "4" if step in known_steps else unknown})
    return rows


@pytest.mark.parametrize("unknown", [None, "", pd.NA, {"tests": "..."}], ids=str)
def test_completions_without_an_answer_are_not_equally_right(unknown):
    whole = reward_report(_right_ones_are_longer(range(60)))
    half = reward_report(_right_ones_are_longer(range(30), unknown))
    assert whole.verdict == half.verdict == "nothing found" and whole.answers == half.answers == 1
    assert "240 of 480 completions have no known answer: what right answers explain is judged on the others" in str(
        half
    )
    few = reward_report(_right_ones_are_longer(range(LEAST - 1), unknown))
    assert few.verdict == "nothing found" and few.answers is None and "all are judged as if none had" in str(few)


def test_a_report_says_when_no_completion_reads_as_right():
    rows = [row | {"answer": "7"} for row in _right_ones_are_longer(())]
    assert "None of the 480 completions with a known answer reads as right" in str(reward_report(rows))
    assert "reads as right" not in str(reward_report(_right_ones_are_longer(range(60))))


def test_few_groups_with_differing_rewards_are_too_few():
    rows = [row | {"reward": row["reward"] if row["step"] < 19 else 1} for row in LONGER]
    report = reward_report(rows)
    assert report.verdict == "cannot tell" and "rewards differ in 19 groups" in str(report)
    assert "rewards differ in 19 of 30 groups" in str(report)
    nothing = reward_report([row | {"reward": None} for row in LONGER])
    assert (nothing.groups, nothing.completions) == (0, 0)


def test_the_report_shows_three_completions_of_one_group():
    report = reward_report(LONGER)
    assert report.verdict == "pays for length" and "no right answers are known" in report.headline
    assert [example.reward for example in report.examples] == [9, 5, 1]
    assert len({example.step for example in report.examples}) == 1
    page = report._repr_html_()
    assert "Three completions of one group" in page and "<script" not in page


def test_a_page_shows_what_a_model_wrote_as_text():
    rows = [row | {"completion": row["completion"] + "<script>alert(1)</script>"} for row in LONGER]
    assert "<script>" not in reward_report(rows)._repr_html_()


def test_an_own_feature_is_named():
    @feature
    def distance_from_five_words(completion, **row):
        return abs(len(completion.split()) - 5)

    rows = [row | {"reward": -abs(row["reward"] - 5) + 0.001 * row["reward"]} for row in LONGER]
    assert reward_report(rows).named == ()
    (paid, *_) = reward_report(rows, features=[distance_from_five_words]).named
    assert (paid.name, paid.sign) == ("distance from five words", -1)


def test_the_same_record_gives_the_same_report():
    assert str(reward_report(LONGER)) == str(reward_report(pd.DataFrame(LONGER)))


def test_advantages_are_explained_where_the_record_has_them():
    rows = [row | {"advantage": (row["reward"] - 5) / 4} for row in LONGER]
    assert reward_report(rows).target == "advantage"
    mixed = [row | {"advantage": 1.0} for row in rows]  # they do not add up to 0: no advantages of these groups
    assert reward_report(mixed).target == "reward"


def test_recorded_completions_of_a_real_training_are_read():
    """SmolLM2 adds two numbers, and TRL pays the right answer in its tag."""
    report = reward_report(ROOT / "data/measured/stop_string/completions-stock-masked-seed-1.jsonl.gz")
    assert report.completions == 960 and report.named == ()
    assert report.answers == pytest.approx(1, abs=0.01)


def test_parquet_of_stock_trl_is_read_with_answers_from_a_file(tmp_path):
    folder = ROOT / "tests/audit/runs/stock_no_seed"
    table, _ = load_completions(folder)
    file = tmp_path / "train.jsonl"
    rows = table[table["reward"] == 1][["prompt", "completion"]].drop_duplicates()
    file.write_text("".join(json.dumps({"prompt": p, "answer": c}) + "\n" for p, c in rows.to_numpy()))
    assert reward_report(folder).answers is None
    report = reward_report(folder, answers=file)
    assert report.named == () and report.answers == pytest.approx(1, abs=0.01)


def test_rollouts_of_verl_and_of_prime_rl_are_read(tmp_path):
    for step in range(1, 25):
        verl = [{"input": "p", "output": "word " * n, "gts": "7", "score": n, "step": step} for n in (1, 5, 9)]
        write_lines(tmp_path / "verl" / f"{step}.jsonl", verl)
        message = [{"role": "assistant", "content": "word"}]
        prime = [
            {"example_id": 3, "prompt": "Which?", "completion": message * n, "answer": "7", "reward": n} for n in (1, 9)
        ]
        write_lines(tmp_path / "prime" / f"step_{step}" / "train_rollouts.jsonl", prime)
        write_lines(tmp_path / "prime" / f"step_{step}" / "eval_rollouts.jsonl", prime)
    for name, number in (("verl", 72), ("prime", 48)):
        report = reward_report(tmp_path / name)
        assert (report.completions, report.groups, report.named[0].name) == (number, 24, "length")
    for folder in ("latest", "contest_math"):  # no word within a name makes an evaluation of it
        write_lines(tmp_path / "more" / folder / "1.jsonl", verl)
    assert len(load_completions(tmp_path / "more")[0]) == 6
    single = load_completions(tmp_path / "verl" / "7.jsonl")[0]
    assert single["step"].unique().tolist() == [7] and single["answer"].tolist() == ["7"] * 3


def write_lines(path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_half_of_a_character_is_read_from_a_file_and_a_list(tmp_path):
    parts = [row | {"completion": f"{row['completion']}\ud800"} for row in LONGER]
    chats = [row | {"completion": [{"role": "assistant", "content": row["completion"]}]} for row in parts]
    for rows in (parts, chats):
        write_lines(tmp_path / "rollouts.jsonl", rows)
        for source in (rows, tmp_path / "rollouts.jsonl"):
            report = reward_report(source)
            assert report.verdict == "pays for length" and report.examples[0].completion.endswith("word ?")


def test_tools_of_a_conversation_are_counted():
    call_ = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    failed = {"role": "tool", "content": "Error: timed out"}
    rows = [
        {"step": s, "prompt": [{"role": "user", "content": "p"}], "completion": [call_, failed] * n, "reward": -n}
        for s in range(25)
        for n in (1, 2, 3)
    ]
    names = [paid.what for paid in reward_report(rows).named]
    assert "less tool calls" in names and "less failed tool calls" in names


def test_of_very_many_completions_whole_groups_are_judged(monkeypatch):
    from workbench.reward import report

    monkeypatch.setattr(report, "MOST", 40)
    judged = reward_report(LONGER)  # 30 groups of 3
    assert (judged.completions, judged.total) == (30, 10)
    assert "30 of 90 completions are judged: 1 group in 3." in str(judged)


def test_the_groups_that_are_judged_are_of_all_kinds_of_prompts(monkeypatch):
    monkeypatch.setattr("workbench.reward.report.MOST", 240)
    paid, unpaid = ({"prompt": "b"}, {"prompt": "a", "reward": 0})
    report = reward_report(
        [{**row, "step": s, **kind} for s in range(80) for kind in (unpaid, paid) for row in LONGER[:3]]
    )
    assert (report.total, report.verdict) == (80, "pays for length") and 20 < report.groups < 60


@pytest.mark.parametrize("column", ["prompt", "completion", "uid"])
def test_one_long_text_takes_room_for_one(column):
    rows = [{"uid": "u", **row} for row in LONGER]
    rows[1][column] = "x" * 1_000_000
    tracemalloc.start()
    reward_report(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6  # 90 such texts have 360e6 bytes


def test_a_data_set_of_trl_is_read():
    from datasets import Dataset

    from workbench.reward import try_reward

    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"{n} + 1?"}], "answer": str(n + 1)} for n in range(9)]
    )
    paid = try_reward(
        lambda completions, answer, **c: [
            float(t[0]["content"] == a) for t, a in zip(completions, answer, strict=True)
        ],
        data,
    )
    assert (paid.right, paid.wrong, paid.problems) == (1, 0, ())


def test_evaluations_in_the_record_are_left_out():
    rows = [row | {"of": "training"} for row in LONGER] + [row | {"of": "held out", "reward": 0} for row in LONGER]
    assert reward_report(rows).completions == len(LONGER)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda table: table.drop(columns="completion"), "no column `completion`, only step, prompt, reward"),
        (lambda table: table.drop(columns="step"), "no column `step`"),
        (lambda table: table.drop(columns="reward"), "no `reward`"),
        (lambda table: table.assign(reward="good"), "`reward` has 'good'; expected a number"),
        (lambda table: table.assign(reward=[[1.0, 2.0]] * len(table)), r"`reward` has \[1.0, 2.0\]; expected a number"),
        (lambda table: table.assign(step="step_1"), "`step` has 'step_1'; expected a number"),
        (lambda table: table[:0], "no rows; expected some with `step`"),
    ],
)
def test_a_missing_column_is_named(change, says):
    with pytest.raises(ParameterError, match=says):
        reward_report(change(pd.DataFrame(LONGER)))


def test_an_id_of_each_completion_is_no_group():
    for name in ("uid", "group_id"):
        report = reward_report([row | {name: f"r{k}"} for k, row in enumerate(LONGER)])
        assert report.groups == 30 and report.verdict == "pays for length"


def test_advantages_of_tokens_leave_the_reward():
    report = reward_report([row | {"advantages": [0.1, 0.2]} for row in LONGER])
    assert (report.target, report.verdict) == ("reward", "pays for length")


def test_a_completion_without_a_step_is_left_out_and_said():
    report = reward_report([row | {"step": None} if k == 4 else row for k, row in enumerate(LONGER)])
    assert report.completions == len(LONGER) - 1
    assert report.damage == ("1 of 90 completions have no number as their step; left out.",)


def test_an_infinite_reward_is_left_out_and_said_in_json_too():
    report = reward_report([row | {"reward": float("-inf")} if k in (4, 9) else row for k, row in enumerate(LONGER)])
    assert report.completions == len(LONGER) - 2
    assert report.as_json()["damage"] == ["2 of 90 completions have an infinite reward; left out."]


@pytest.mark.parametrize("seed", [-1, 0.5, "0"])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ParameterError, match=f"seed={seed!r}: expected a whole number of at least 0"):
        reward_report(LONGER, seed=seed)


def test_of_one_step_nothing_is_said_over_the_run():
    report = reward_report([row | {"step": 0, "prompt": f"p{row['step']}"} for row in LONGER])
    assert "has too few steps to say whether this changes" in report.headline and "quarter, " not in report.headline
    assert json.loads(json.dumps(jsonable(report.as_json())))["features"][0]["quarters"][0] is None


def test_a_sound_reward_of_letters_in_sentences_is_no_finding():
    texts = [f"{'so ' * length}the answer is {letter}." for letter in "AB" for length in (1, 4)]
    rows = [
        {"step": s, "prompt": "p", "completion": t, "reward": float("B." in t), "answer": "B"}
        for s in range(30)
        for t in texts
    ]
    assert reward_report(rows).answers == pytest.approx(1) and reward_report(rows).verdict == "nothing found"


def test_several_right_answers_in_an_array_are_read():
    rows = [row | {"answer": np.array(["1", "one"])} for row in LONGER]
    assert reward_report(pd.DataFrame(rows)).left == 30


def test_answers_are_found_in_a_prompt_with_a_template():
    def templated(question: str) -> str:
        return f"<|im_start|>user\nWhat is 1 + 1?\n{question}<|im_end|>\n<|im_start|>assistant\n"

    answers = {"What is 1 + 1?": "2", "2 + 2": "other", "What is 2 + 2?": "4", "": "nothing"}
    rows = [row | {"prompt": templated("What is 2 + 2?")} for row in LONGER]
    assert set(load_completions(rows, answers)[0]["answer"]) == {"4"}
    with pytest.raises(ParameterError, match="none of its 1 prompts"):
        load_completions(rows, {"2 + 2": "4"})


def test_answers_may_be_unknown_but_their_file_is_there(tmp_path):
    write_lines(tmp_path / "answers.jsonl", [{"prompt": "p", "answer": "1"}, {"prompt": "q", "answer": None}])
    rows = LONGER + [row | {"prompt": "q"} for row in LONGER]
    known = load_completions(rows, tmp_path / "answers.jsonl")[0]["answer"]
    assert set(known.dropna()) == {"1"} and known.isna().sum() == len(LONGER)
    for answers, says in (
        (tmp_path / "gone.jsonl", "no such file; expected JSON lines with `prompt` and `answer`"),
        ([{"prompt": None, "answer": "1"}], "a row has the prompt None, and `answer` '1'; leave it out"),
        ([{"prompt": "p"}], "a row has prompt; expected `prompt` and `answer`"),
        ([{"prompt": "p", "answer": None}], "none of its 0 prompts with an answer"),
    ):
        with pytest.raises(ParameterError, match=says):
            load_completions(rows, answers)


def test_a_place_without_completions_is_refused(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(RunError, match="no completions in this folder"):
        reward_report(tmp_path)
    with pytest.raises(RunError, match="no such file or folder"):
        reward_report(tmp_path / "gone")
    with pytest.raises(ParameterError, match="none of its 1 prompts"):
        reward_report(LONGER, answers={"other": 1})


def test_the_command_says_by_its_code_if_something_is_named(capsys, tmp_path):
    write_lines(tmp_path / "rollouts.jsonl", LONGER)
    code, out, _ = call(capsys, "reward-report", tmp_path / "rollouts.jsonl")
    assert code == 1 and out.startswith("The reward pays for length")
    code, out, _ = call(capsys, "reward-report", tmp_path / "rollouts.jsonl", "--json")
    assert code == 1 and json.loads(out)["features"][0]["named"] is True
    write_lines(tmp_path / "flat.jsonl", [row | {"reward": 1} for row in LONGER])
    assert call(capsys, "reward-report", tmp_path / "flat.jsonl")[0] == 0
    assert call(capsys, "reward-report", tmp_path / "gone")[0] == 2


def test_equal_completions_with_other_rewards_show_nothing():
    rng = np.random.default_rng(0)
    rows = [{"step": s, "prompt": "p", "completion": "x", "reward": rng.random()} for s in range(30) for _ in range(4)]
    report = reward_report(rows)
    assert (report.groups, report.named) == (30, ())
    json.dumps(report.as_json(), allow_nan=False)


def test_rewards_far_from_0_differ_as_those_near_it():
    pairs = (("a", 0.0), ("bb", 1.0), ("ccc", 0.0), ("dddd", 1.0))
    rows = [{"step": s, "prompt": "p", "completion": x, "reward": 1e6 + r} for s in range(30) for x, r in pairs]
    assert reward_report(rows).groups == 30


@pytest.mark.parametrize("of_reward, of_feature", [(1e-6, 1), (1e6, 1), (1, 1e-9), (1, 1e9), (1e-9, 1e-9)])
@pytest.mark.parametrize("answer", [None, "yes"])
def test_units_of_reward_and_feature_change_no_verdict(of_reward, of_feature, answer):
    rng = np.random.default_rng(0)
    rows = [
        {
            "step": s,
            "prompt": "p",
            "completion": "yes" if rng.random() < 0.5 else "no",
            "mark": rng.random(),
            "answer": answer,
        }
        for s in range(30)
        for _ in range(6)
    ]

    def judged(reward_unit, feature_unit):
        @feature
        def marks(completion, mark, **row):
            return mark * feature_unit

        paid = [row | {"reward": reward_unit * (row["mark"] + (row["completion"] == "yes"))} for row in rows]
        return reward_report(paid, features=[marks])

    here, there = judged(1, 1), judged(of_reward, of_feature)
    assert "marks" in [paid.name for paid in here.named]
    assert (here.groups, here.left, here.verdict) == (there.groups, there.left, there.verdict)
    for one, other in zip(here.features, there.features, strict=True):
        same = ("alone", "added", "beyond", "p", "through_answers", "change", "change_p")
        assert [getattr(one, name) for name in same] == pytest.approx([getattr(other, name) for name in same])
        assert one.quarters == pytest.approx(other.quarters)


def test_rounding_far_from_0_makes_no_difference():
    rng = np.random.default_rng(0)
    rows = [row | {"reward": float(np.float32(1e6) + rng.normal() * 1e-3)} for row in LONGER]
    assert reward_report(rows).groups == 0


def test_a_record_of_evaluations_alone_is_refused():
    with pytest.raises(ParameterError, match="the completions are all of evaluations"):
        reward_report([{"step": 1, "prompt": "p", "completion": "c", "reward": 1, "of": "evaluation"}])


@pytest.mark.parametrize(("cut", "ends"), [(True, ["length", "stop"]), (False, ["max_turns_reached", None])])
def test_whether_a_row_was_cut_counts_before_its_condition(cut, ends):
    """prime-rl writes both; of `stop_condition` alone it is not known."""
    rows = [
        {
            "step": 1,
            "prompt": "p",
            "completion": "c",
            "reward": 1.0,
            "stop_condition": condition,
            "is_truncated": truncated,
        }
        for condition, truncated in (("max_turns_reached", True), (None, False))
    ]
    rows = rows if cut else [{name: row[name] for name in row if name != "is_truncated"} for row in rows]
    reasons = load_completions(rows)[0]["finish_reason"].astype(object)
    assert reasons.where(reasons.notna(), None).tolist() == ends
