import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.generation.vllm_generation import VLLMGeneration

from workbench.errors import RunError
from workbench.studies.removed_rule import removed_rule_table, strided_prompts, unique_prompts, with_removed_rule


def test_the_old_rule_loses_a_group_when_two_prompts_are_equal():
    assert unique_prompts(["a", "a", "b", "b"]) == strided_prompts(["a", "a", "b", "b"], 2) == ["a", "b"]
    batch = ["a", "a", "a", "a"]
    assert len(unique_prompts(batch)) * 2 != len(batch)
    assert len(strided_prompts(batch, 2)) * 2 == len(batch)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.integers(1, 5))
def test_strided_prompts_undo_the_repetition(prompts, g):
    assert strided_prompts([p for p in prompts for _ in range(g)], g) == prompts


@pytest.mark.slow
def test_put_back_into_trl_the_old_rule_breaks_equal_prompts_on_a_server_and_nothing_else(vllm_server, starter_folder):
    table = removed_rule_table(str(starter_folder), num_generations=2, url=vllm_server)
    cases = {(r["back end"], r["rule"], r["two prompts"]): r for r in table.to_dict("records")}
    assert len(cases) == 8
    broken = cases.pop(("vLLM server", "removed", "equal"))
    assert (broken["prompts"], broken["completions"]) == (4, 2)
    assert broken["error"].startswith("RuntimeError: Sizes of tensors must match")
    for case in cases.values():
        assert (case["prompts"], case["completions"], case["error"]) == (4, 4, "")


def test_the_old_rule_is_gone_when_its_block_ends_and_a_trl_without_the_line_is_named(monkeypatch):
    today = VLLMGeneration.generate
    with with_removed_rule():
        assert VLLMGeneration.generate is not today
    assert VLLMGeneration.generate is today
    monkeypatch.setattr(inspect, "getsource", lambda _: "def generate(self): pass")
    with pytest.raises(RunError, match="the old rule cannot be put back"):
        with_removed_rule()
