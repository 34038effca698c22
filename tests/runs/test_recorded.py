import json

import pandas as pd
import pytest

from workbench.runs.recorded import completions_table, read_trl_completions


@pytest.mark.parametrize(
    "state, rewards", [({"log_history": [{"rewards/accuracy/mean": 0.5}]}, [1, 0]), ({}, [121, 7])]
)
def test_numbers_logged_beside_the_rewards_are_none_where_the_log_names_the_rewards(tmp_path, state, rewards):
    (tmp_path / "completions").mkdir()
    rows = {"step": [1, 1], "prompt": ["p"] * 2, "completion": ["a", "b"], "accuracy": [1, 0], "n_words": [120, 7]}
    pd.DataFrame(rows).to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "trainer_state.json").write_text(json.dumps(state))
    table, damage = read_trl_completions(tmp_path / "completions")
    assert damage == []
    assert completions_table(table)["reward"].tolist() == rewards
