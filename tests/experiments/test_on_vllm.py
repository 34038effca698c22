"""The studies of custom stops and of equal prompts, on real vLLM in process."""

import pandas as pd
import pytest
from conftest import on_vllm

# What these studies rest on is tried each day in tests/training: stops, groups and the sampler's proof on vLLM.
pytestmark = [pytest.mark.slow, pytest.mark.rare]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return on_vllm("studies_on_vllm", str(tmp_path_factory.mktemp("studies")))


@pytest.fixture(scope="module")
def batches(result):
    return {(row["back end"], row["trainer"]): row for row in result["backends"]}


@pytest.mark.parametrize("name", ["stock, masked", "workbench, masked"])
def test_only_stock_counts_rows_that_stopped_as_truncated(result, name):
    rows = pd.DataFrame(result["rows"][name])
    truncated = (rows["finish_reason"] == "length").groupby(rows["step"]).mean()
    logged = result["metrics"][name]["completions/clipped_ratio"]
    if name.startswith("stock"):
        assert all(logged > truncated + 0.3)
    else:
        assert logged == pytest.approx(truncated.tolist(), abs=1e-6)


def test_every_arm_records_each_row_with_its_real_end(result):
    for rows in result["rows"].values():
        assert rows["step"] == [1] * 32 + [2] * 32
        by_stop = ["</search>" in text for text in rows["completion"]]
        for stopped, reason, trl in zip(by_stop, rows["finish_reason"], rows["trl_finish_reason"], strict=True):
            assert not stopped or (reason == "stop" and trl == "length")
        assert any(by_stop)


def test_a_token_added_in_memory_is_unknown_to_vllm_until_saved(result):
    token = result["token"]
    assert "tokenizer differs in 1 tokens: '<call>'" in token["in memory"]["checked"]
    assert token["in memory"]["spelt in tokens"] > 1
    # vLLM before 0.30 ran to the limit without a word.
    assert token["in memory"]["stop by id"].startswith(("did not stop, hit its 8-token limit", "error: token_id(s) ["))
    assert token["saved"]["checked"] == "accepted"
    assert token["saved"]["spelt in tokens"] == 1
    assert "after 1 tokens" in token["saved"]["stop by id"] and "after 1 tokens" in token["saved"]["stop by string"]


def test_stop_token_ids_end_rows_of_vllm_through_stock_trl(result):
    (at, seen), *others = result["ids"].items()
    assert at == "vLLM" and not others
    assert (
        seen["request has the id"] is True
        and seen["completions that hold the id"] > 0
        and seen["most tokens after it"] == 0
    )


def test_stock_seeds_copy_groups_or_equal_prompts_of_a_server(batches):
    assert batches["vLLM", "stock TRL, seed"]["distinct per group"] == 1
    on_server = batches["vLLM server", "stock TRL, seed"]
    assert on_server["distinct per group"] > 1 and on_server["equal prompts share"]


def test_no_other_trainer_copies_completions_or_mixes_up_prompts(batches):
    others = {name: row for name, row in batches.items() if not row["error"] and name[1] != "stock TRL, seed"}
    assert len(others) == 9
    for name, row in others.items():
        assert row["wrong prompt"] == 0 and row["completions"] == row["prompts"] == 32, name
        assert row["distinct per group"] > 1 and not row["equal prompts share"], name
    for place in ("vLLM", "vLLM server"):
        assert batches[place, "workbench, share_generation"]["requests"] == 3


def test_the_removed_rule_breaks_only_equal_prompts_on_a_server(batches):
    ((name, broken),) = [(name, row) for name, row in batches.items() if row["error"]]
    assert name == ("vLLM server", "stock TRL, removed rule")
    assert (broken["prompts"], broken["completions"]) == (32, 24)
    assert broken["error"].startswith("RuntimeError: Sizes of tensors must match")


def test_with_a_seed_stock_has_no_gradient_and_the_workbench_has(result):
    steps = result["metrics"]
    assert steps["stock, seed"]["grad_norm"] == [0, 0]
    assert steps["stock, seed"]["frac_reward_zero_std"] == [1, 1]
    for name in ("workbench, seed", "workbench, shared"):
        assert max(steps[name]["grad_norm"]) > 0, name


def test_vllm_gets_a_request_a_row_or_if_shared_one_a_prompt(result):
    for name, steps in result["metrics"].items():
        rows = pd.DataFrame(result["rows"][name])
        asked = rows.groupby("step")["prompt"].nunique().tolist()
        assert steps["vllm/requests"] == (asked if name == "workbench, shared" else [32, 32]), name
    tokens = {name: sum(steps["vllm/prompt_tokens"]) for name, steps in result["metrics"].items()}
    assert tokens["workbench, shared"] < 0.3 * tokens["workbench, seed"]


@pytest.mark.parametrize("name, behind", [("LateBy0", [0, 0]), ("LateBy1", [1, 1]), ("NeverSynced", [2, 3])])
def test_the_proof_says_how_old_the_weights_of_a_late_engine_are(result, name, behind):
    seen = result["samplers"][name]
    assert seen["sampler/steps_behind"][2:] == behind
    late = [apart > 2e-4 for apart in seen["sampler/difference"]]
    assert late == [name != "LateBy0" and step > 0 for step in range(4)]


def test_an_engine_that_reloads_its_base_equals_one_never_synced(result):
    assert result["samplers"]["ReloadedGRPOTrainer"] == result["samplers"]["NeverSynced"]


@pytest.mark.parametrize("right, broken", [("merged", "not merged"), ("cache cleared", "cache kept")])
def test_a_lost_adapter_or_kept_cache_shows_after_one_update(result, right, broken):
    right, broken = (result["samplers"][name] for name in (right, broken))
    logged = "sampling/sampling_logp_difference/mean"
    assert max(right[logged]) < 1e-4 and right["sampler/steps_behind"] == [0] * 4
    assert broken[logged][0] < 1e-4 < 3e-4 < min(broken[logged][2:])


def test_the_proof_separates_a_lost_adapter_from_a_kept_cache(result):
    unmerged, kept = (result["samplers"][name] for name in ("not merged", "cache kept"))
    assert unmerged["sampler/steps_behind"][2:] == [2, 3] and max(unmerged["sampler/cache_difference"]) < 1e-4
    assert min(kept["sampler/cache_difference"][1:]) > 1e-4 > max(kept["sampler/difference"])


def test_with_log_probs_before_the_temperature_rows_are_left_out(result):
    raw, right = result["samplers"]["RawLogprobsGRPOTrainer"], result["samplers"]["LateBy0"]
    name = "sampling/sampling_logp_difference/mean"
    assert min(raw[name]) > 0.01 and max(right[name]) < 1e-3
    assert max(right["ratio/masked"]) == 0 and all(w == pytest.approx(1, abs=1e-2) for w in right["ratio/weight"])
    assert min(abs(w - 1) for w in raw["ratio/weight"]) > 1e-2
