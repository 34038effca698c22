"""What trains on real vLLM is judged in test_on_vllm.py."""

import json

import numpy as np
import pandas as pd
import pytest

from workbench.errors import ParameterError
from workbench.recipes.recipes import load_prompts
from workbench.runs.completions import append_table
from workbench.runs.run import Run
from workbench.studies.custom_stops import ObservedGRPOTrainer
from workbench.studies.repeated_prompts import (
    HALF,
    NONE,
    OURS,
    ROWS,
    SEEDED,
    SHARED,
    STOCK,
    end_gain,
    repeated_prompt_arms,
    repeated_table,
    repeating_rows,
    repeats_in_batches,
    rise,
    save_data,
    search_recipe,
)
from workbench.training.grpo import GRPOTrainer


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Name of the data set -> its prompts, as a training reads them from the file."""
    files = save_data(tmp_path_factory.mktemp("data"))
    return {name: load_prompts(str(file))["prompt"] for name, file in files.items()}


def test_both_data_sets_have_equally_many_rows_and_in_one_half_of_them_are_prompts_that_stand_six_times(prompts):
    counts = {name: pd.Series(texts).value_counts() for name, texts in prompts.items()}
    assert counts[NONE].tolist() == [1] * ROWS
    assert sorted(counts[HALF]) == [1] * (ROWS // 2) + [6] * (ROWS // 12)


def test_every_row_keeps_its_answer(tmp_path):
    for file in save_data(tmp_path).values():
        for row in map(json.loads, file.read_text().splitlines()):
            assert row["answer"].removeprefix("<search>").removesuffix("</search>") in row["prompt"]


@pytest.mark.parametrize("seed", range(5))
def test_equal_prompts_meet_in_nearly_every_batch_of_trl_s_sampler_and_in_none_where_no_prompt_repeats(prompts, seed):
    met = {name: repeats_in_batches(texts, num_generations=4, seed=seed) for name, texts in prompts.items()}
    assert met[NONE] == [0] * 6
    assert len(met[HALF]) == 6 and sum(n > 0 for n in met[HALF]) >= 5 and sum(met[HALF]) >= 10


@pytest.mark.parametrize(("rows", "count", "times"), [(10, 8, 3), (10, 0, 1), (5, 8, 2), (10, 8, 0)])
def test_rows_that_cannot_be_made_to_repeat_so_are_refused(rows, count, times):
    with pytest.raises(ParameterError, match=r"expected a multiple|different ones are needed"):
        repeating_rows([{"prompt": str(n)} for n in range(rows)], count, times)


def test_the_four_arms_differ_in_trainer_and_seed_and_none_masks():
    arms = repeated_prompt_arms(search_recipe("search", steps=2, num_generations=4), 7)
    assert {name: arm.trainer for name, arm in arms.items()} == {
        SEEDED: ObservedGRPOTrainer,
        STOCK: ObservedGRPOTrainer,
        OURS: GRPOTrainer,
        SHARED: GRPOTrainer,
    }
    assert {arm.stops.stop for arm in arms.values()} == {("</search>",)}
    assert not any(arm.options["mask_truncated_completions"] for arm in arms.values())
    assert arms[SEEDED].options["generation_kwargs"].pop("seed") == 7
    assert arms[SEEDED].options["generation_kwargs"] == arms[STOCK].options["generation_kwargs"]
    assert arms[OURS].options | {"share_generation": True} == arms[SHARED].options
    assert arms[OURS].options["generation_seed"] == 7


def trained(folder, rewards, grad_norm=0.5, requests=8, prompts=("a", "a", "b", "b")):
    """A run of two groups of two a step, by its files."""
    folder.mkdir(parents=True)
    line = {"grad_norm": grad_norm, "vllm/requests": requests, "vllm/prompt_tokens": 6 * requests, "step_time": 0.5}
    lines = [{"step": n, "reward": reward} | line for n, reward in enumerate(rewards, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "recipe.json").write_text(json.dumps({"recipe": {"num_generations": 2}}))
    for step in range(1, len(rewards) + 1):
        append_table(folder, pd.DataFrame({"step": step, "prompt": list(prompts)}))
    return Run(folder)


def test_the_table_has_the_rise_with_its_interval_the_lost_steps_and_what_was_asked(tmp_path):
    runs = {
        NONE: {OURS: [trained(tmp_path / f"0-{n}", [0.4, 0.5, 0.6, 0.7 + n / 100]) for n in range(3)]},
        HALF: {SEEDED: [trained(tmp_path / "1", [0.4] * 4, 0.0, 2, "aaaa")]},
    }
    table = repeated_table(runs, np.random.default_rng(0))
    learned, lost = table.loc[(NONE, OURS)], table.loc[(HALF, SEEDED)]
    assert learned["rise"] == pytest.approx(0.31) and 0 < learned["low"] < 0.31 < learned["high"]
    assert (learned["steps without gradient"], learned["batches with equal prompts"]) == (0, 0)
    assert (lost["rise"], lost["steps without gradient"], lost["batches with equal prompts"]) == (0, 1, 1)
    assert (lost["requests a step"], lost["prompt tokens a step"], lost["seconds a step"]) == (2, 12, 0.5)
    assert np.isnan(lost["low"])  # of one seed


def test_rise_and_gain_are_over_seeds_of_the_mean_over_arms(tmp_path):
    arms = [[trained(tmp_path / f"{arm}-{n}", [0.1, 0, 0, 0.5 + n / 10 + arm]) for n in range(2)] for arm in (0, 1)]
    rng = np.random.default_rng(0)
    found = rise(arms, rng)
    assert found.estimate == pytest.approx(0.95) and found.n == 2
    gain = end_gain(arms[1:], arms[:1], rng)
    assert (gain.estimate, gain.low, gain.high) == pytest.approx((1, 1, 1))
