from collections import Counter

import pytest

from workbench.experiments.toys.search_task import CLOSE, search_corpus, search_model, search_prompts


def test_every_prompt_is_there_once_with_the_call_for_its_topic():
    rows = search_prompts()
    assert len({row["prompt"] for row in rows}) == len(rows) == 120
    for row in rows:
        topic = row["answer"].removeprefix("<search>").removesuffix(CLOSE)
        assert row["prompt"].endswith(f" {topic}?\n") and row["answer"] == f"<search>{topic}</search>"


def test_the_warm_start_targets_are_mixed_as_the_docstring_says():
    answers = {row["prompt"]: row["answer"] for row in search_prompts()}

    def kind(row) -> str:
        call, close, rest = row["completion"].partition(CLOSE)
        if not close:
            return "no call"
        right = "right" if call + close == answers[row["prompt"]] else "wrong"
        return f"{right}, goes on" if rest else right

    counts = Counter(kind(row) for row in search_corpus())
    shares = {name: count / 4800 for name, count in counts.items()}
    expected = {"right": 0.3, "right, goes on": 0.25, "wrong": 0.15, "wrong, goes on": 0.15, "no call": 0.15}
    assert shares == pytest.approx(expected, abs=0.025)  # one wrong call in twenty happens to be right


def test_the_seed_decides_the_targets():
    assert search_corpus(50) == search_corpus(50) == search_corpus(4800)[:50]
    assert search_corpus(50) != search_corpus(50, seed=1)


def test_the_model_calls_for_a_topic_and_often_goes_on_after_it():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (auto.from_pretrained(search_model()) for auto in (AutoTokenizer, AutoModelForCausalLM))
    rows = search_prompts()
    prompts = [row["prompt"] for row in rows]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ids = model.generate(**batch, do_sample=True, max_new_tokens=48)[:, batch.input_ids.shape[1] :]
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert (ids == tokenizer.eos_token_id).any(1).float().mean() > 0.9  # it ends its text
    assert sum(CLOSE in text for text in texts) > 60
    assert 12 < sum(row["answer"] in text for row, text in zip(rows, texts, strict=True)) < 108  # GRPO can improve it
    assert any(not text.endswith(CLOSE) for text in texts if CLOSE in text)
