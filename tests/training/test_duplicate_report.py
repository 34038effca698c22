import json
import math

import pytest
from datasets import Dataset

from workbench.errors import ParameterError
from workbench.training.duplicate_report import duplicate_report


def test_report_counts_exact_and_normalised_repeats(tmp_path):
    prompts = ["What is 2+2?", "What is 2+2?", "what IS 2 + 2 ?", "Is what 2 2", "Other", "Another", "More", "Last"]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    for data in (prompts, path, Dataset.from_dict({"prompt": prompts})):
        report = duplicate_report(data, prompts_per_batch=4, progress=False)
        assert (report.rows, report.exact, report.normalised) == (8, 1, 2)
        assert report.most_repeated == ((2, 0, "'What is 2+2?'"),)
        assert "1 of 8 rows" in report.verdict


def test_a_stream_that_does_not_know_its_columns_is_read():
    stream = Dataset.from_dict({"prompt": ["a", "a", "b"]}).to_iterable_dataset().map(lambda row: row)
    assert stream.column_names is None
    assert duplicate_report(stream, prompts_per_batch=2, progress=False).exact == 1
    with pytest.raises(ParameterError, match=r"^column='text': the data set has \['prompt'\]"):
        duplicate_report(stream, column="text", progress=False)


def test_conversational_prompts_count_by_their_messages():
    chat = [[{"role": "user", "content": text}] for text in ("hi", "hi", "ho")]
    assert duplicate_report(chat, prompts_per_batch=2, progress=False).exact == 1


@pytest.mark.parametrize(
    ("data", "fields", "message"),
    [
        ([], {}, "0 rows"),
        (["a"], {"prompts_per_batch": 8}, "1 rows"),
        ("nowhere.jsonl", {}, "no such JSONL"),
        (Dataset.from_dict({"text": ["a"]}), {}, "the data set has"),
        (iter(["a", "a"]), {"prompts_per_batch": 2}, "^data: an iterator, and prompts are read twice; give a list"),
        ([{"prompt": "a"}], {}, "^prompt {'prompt': 'a'}: expected a text or a list of messages; of rows give"),
        ([None], {}, "^prompt None: expected"),
    ],
)
def test_data_without_prompts_are_refused(data, fields, message):
    with pytest.raises(ParameterError, match=message):
        duplicate_report(data, progress=False, **fields)


@pytest.mark.parametrize(("line", "message"), [('{"text": "a"}', "line 3 has"), ("{bad", "line 3: not JSON")])
def test_a_line_without_a_prompt_is_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text(f'{{"prompt": "a"}}\n\n{line}\n')
    with pytest.raises(ParameterError, match=message):
        duplicate_report(tmp_path / "a.jsonl", progress=False)


@pytest.mark.parametrize(("rows", "copies", "batch"), [(1000, 200, 8), (10_000, 100, 128), (60, 2, 60), (50, 50, 2)])
def test_share_of_batches_with_duplicates_is_near_the_exact_one(rows, copies, batch):
    prompts = ["same"] * copies + [f"prompt {n}" for n in range(rows - copies)]
    # The ways to take none or one of the equal rows.
    without = math.comb(rows - copies, batch) + copies * math.comb(rows - copies, batch - 1)
    report = duplicate_report(prompts, prompts_per_batch=batch, progress=False)
    missed = math.comb(rows - copies, batch) / math.comb(rows, batch)
    assert report.per_batch == pytest.approx(batch * copies / rows - (1 - missed), abs=0.03)
    assert report.batches_with_duplicates == pytest.approx(1 - without / math.comb(rows, batch), abs=0.015)


def test_vowel_signs_are_letters():
    report = duplicate_report(["दिन", "दान", "दिन!"], prompts_per_batch=2, progress=False)
    assert (report.exact, report.normalised) == (0, 1)
