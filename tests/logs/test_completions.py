import json

import pandas as pd
import pytest

from workbench.errors import RunError
from workbench.logs.completions import completions_table, read_completions, read_trl_completions


def lines(*steps):
    return [{"step": step, "prompt": "p", "completion": f"c{step}", "reward": 0.5} for step in steps]


@pytest.mark.parametrize(
    "state, rewards", [({"log_history": [{"rewards/accuracy/mean": 0.5}]}, [1, 0]), ({}, [121, 7])]
)
def test_if_the_log_names_its_rewards_other_numbers_are_none(tmp_path, state, rewards):
    (tmp_path / "completions").mkdir()
    rows = {"step": [1, 1], "prompt": ["p"] * 2, "completion": ["a", "b"], "accuracy": [1, 0], "n_words": [120, 7]}
    pd.DataFrame(rows).to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    table, damage = read_trl_completions(tmp_path / "completions")
    assert damage == []
    assert completions_table(table)["reward"].tolist() == rewards
    assert read_completions(tmp_path)[0].equals(table)


def test_completions_are_read_from_lines_but_not_one_cut_short(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in lines(1, 2))
    (tmp_path / "completions.jsonl").write_text(text + '{"step": 3, "pro')
    table, damage = read_completions(tmp_path)
    assert table["completion"].tolist() == ["c1", "c2"] and damage == []
    (tmp_path / "completions.jsonl").write_text('{"step"\n' + text)
    table, damage = read_completions(tmp_path)
    assert len(table) == 2 and len(damage) == 1


def test_what_holds_completions_and_is_a_link_is_not_opened(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "completions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="a link"):
        read_completions(tmp_path)


def test_a_folder_without_completions_has_none(tmp_path):
    table, damage = read_completions(tmp_path)
    assert table.empty and damage == []
