import pytest

from workbench.experiments.instruments import hacked_rewards as toy
from workbench.experiments.toys.search_task import TOPICS
from workbench.reward import reward_report
from workbench.reward.features import FEATURES

QUESTION = "Tell me about opals?\n"
RIGHT = "<search>opals</search>"
OTHERS = {  # what exploits each reward; none of them is right
    "format alone": "<search>amber</search>",
    "length": f"{RIGHT} Let me read what I find. " * 8,
    "answer anywhere": f"<search>amber</search> {RIGHT}",
    "copied question": "Tell me about opals?",
    "repetition": " ".join([RIGHT] * 3),
}


def test_held_out_questions_are_new_and_their_topics_are_not():
    train, test = toy.search_questions("train"), toy.search_questions("test")
    prompts = {row["prompt"] for row in train}
    assert len(train) == 96 and len(test) == 24
    assert prompts.isdisjoint(row["prompt"] for row in test)
    assert {row["prompt"] for row in toy.habits()} <= prompts
    answers = [row["answer"] for row in train]
    assert {f"<search>{topic}</search>" for topic in TOPICS} == set(answers)


@pytest.mark.parametrize("hack", toy.HACKS)
def test_each_reward_pays_a_wrong_completion_as_much(hack):
    reward, feature = toy.HACKS[hack]
    texts = [RIGHT, OTHERS[hack]]
    columns = {"completions": texts, "prompts": [QUESTION] * 2, "answer": [RIGHT] * 2}
    right, other = reward(**columns)
    assert other >= right
    assert toy.exact(texts, answer=[RIGHT] * 2) == [1.0, 0.0]
    assert feature in {each.name for each in FEATURES}


@pytest.mark.parametrize("hack", toy.HACKS)
def test_the_report_names_the_hack_in_made_up_completions(hack):
    """The habits of the policy, paid by each reward: what a training begins with."""
    reward, feature = toy.HACKS[hack]
    rows = []
    questions = {row["prompt"]: row["answer"] for row in toy.search_questions("train")}
    for place, row in enumerate(sorted(toy.habits(1600), key=lambda row: row["prompt"])):
        answer = questions[row["prompt"]]
        (paid,) = reward(completions=[row["completion"]], prompts=[row["prompt"]], answer=[answer])
        rows.append({**row, "step": place // 64, "reward": paid})
    said = toy.said_of(reward_report(rows, answers=questions), feature)
    assert feature in said["named"].split(", "), said


def test_a_policy_that_is_there_is_not_trained_again(tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    assert toy.warm_start(tmp_path / "policy") == tmp_path / "policy"
    assert [path.name for path in (tmp_path / "policy").iterdir()] == ["config.json"]


@pytest.mark.slow
def test_a_policy_is_trained_and_can_be_loaded(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = toy.warm_start(tmp_path / "policy", steps=1)
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 100_000
