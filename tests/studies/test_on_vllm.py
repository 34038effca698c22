"""The studies of custom stops and of equal prompts, on real vLLM in process."""

import pytest
from conftest import on_vllm

from workbench.studies import repeated_prompts

pytestmark = pytest.mark.slow

STOCK, UNMASKED, OURS = "stock, masked", "stock, unmasked", "workbench, masked"


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return on_vllm("studies_on_vllm", str(tmp_path_factory.mktemp("studies")))


def test_stock_counts_rows_that_stopped_as_cut_and_the_workbench_counts_them_right(result):
    table = result["stops"]
    assert table.keys() == {STOCK, UNMASKED, OURS}
    for name in (STOCK, UNMASKED):
        assert table[name]["logged clipped ratio"] > table[name]["true clipped ratio"] + 0.3
        assert table[name]["clipped ratio error"] > 0.3
    assert table[OURS]["logged clipped ratio"] == pytest.approx(table[OURS]["true clipped ratio"])
    assert table[OURS]["clipped ratio error"] < 1e-6


def test_every_arm_records_each_row_with_its_real_end(result):
    for rows in result["rows"].values():
        assert rows["step"] == [1] * 16 + [2] * 16
        by_stop = [text.endswith("</search>") for text in rows["completion"]]
        for stopped, reason, trl in zip(by_stop, rows["finish_reason"], rows["trl_finish_reason"], strict=True):
            assert not stopped or (reason == "stop" and trl == "length")
        assert any(by_stop)


def test_a_token_added_in_memory_is_unknown_to_the_engine_and_known_once_saved(result):
    token = result["token"]
    assert "tokenizer differs in 1 tokens: '<call>'" in token["in memory"]["checked"]
    assert token["in memory"]["spelt in tokens"] > 1 and "after 1 tokens" not in token["in memory"]["stop by id"]
    assert token["saved"]["checked"] == "accepted"
    assert token["saved"]["spelt in tokens"] == 1
    assert "after 1 tokens" in token["saved"]["stop by id"] and "after 1 tokens" in token["saved"]["stop by string"]


def test_stop_token_ids_reach_vllm_through_stock_trl_and_end_its_rows(result):
    (at, seen), *others = result["ids"].items()
    assert at == "vLLM" and not others
    assert seen["carries"] is True and seen["rows with the id"] > 0 and seen["tokens after it"] == 0


def test_a_seed_of_stock_trl_collapses_its_groups_and_ours_does_not(result):
    rows = {(row["trainer"], row["seed"]): row for row in result["backends"].values()}
    assert {trainer for trainer, _ in rows} == {
        f"{who}, {at}" for who in ("stock", "workbench") for at in ("transformers", "vLLM")
    }
    assert all(row["wrong prompt"] == 0 and row["advantage error"] < 1e-4 for row in rows.values())
    assert rows["stock, vLLM", "generation_kwargs"]["group is one sample"]
    for seeding in ("generation_seed", "generation_seed, shared"):
        ours = rows["workbench, vLLM", seeding]
        assert ours["repeats"] and not ours["group is one sample"] and not ours["same answers across groups"]
    assert rows["workbench, vLLM", "generation_seed, shared"]["requests"] == 3


def test_with_a_seed_stock_trl_trains_without_any_gradient_and_the_workbench_has_one(result):
    steps = result["repeated"]
    assert steps[repeated_prompts.SEEDED]["grad_norm"] == [0, 0]
    assert steps[repeated_prompts.SEEDED]["frac_reward_zero_std"] == [1, 1]
    for name in repeated_prompts.LEARNING:
        assert max(steps[name]["grad_norm"]) > 0, (
            name
        )  # a step may have no group in which some are right and some are not


def test_a_request_a_row_is_asked_of_vllm_or_where_generation_is_shared_one_a_prompt(result):
    shared = repeated_prompts.SHARED
    for name, steps in result["repeated"].items():
        assert steps["vllm/requests"] == (result["asked"][name] if name == shared else [32, 32]), name
    assert sum(result["repeated"][shared]["vllm/prompt_tokens"]) < 0.3 * sum(
        result["repeated"][repeated_prompts.STOCK]["vllm/prompt_tokens"]
    )
