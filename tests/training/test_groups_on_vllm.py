"""Groups on real vLLM, in process and on a server: equal prompts, layout, seeds, sharing (article A3)."""

import functools
import re

import pytest
import torch
from conftest import daily, on_vllm
from samples import text_logprob
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench.experiments.recipes import load_prompts, resolve_model
from workbench.experiments.toys.search_task import TOPICS
from workbench.training.groups import identical_groups

pytestmark = pytest.mark.slow

# From day to day in process; test_stopping.py trains on a server.
BACKENDS = daily(["vllm", "vllm-server"], "vllm")
ON_A_SERVER = pytest.param("vllm-server", marks=pytest.mark.rare)


@functools.cache
def outcome(url):
    return on_vllm("group_matrix", *([url] if url else []))


@pytest.fixture
def result(request):
    return outcome(request.getfixturevalue("vllm_server") if request.param == "vllm-server" else None)


@pytest.mark.parametrize("result", BACKENDS, indirect=True)
@pytest.mark.parametrize("equal", ["0.0", "0.5", "1.0"])
@pytest.mark.parametrize("g", [2, 4, 8])
def test_prompts_completions_and_advantages_line_up(result, g, equal):
    got = result["matrix"][f"{g} {equal}"]
    assert got["trained_prompts"] == got["asked"] == got["prompts"]
    assert got["trained_ids"] == got["ids"]
    groups = torch.tensor(got["rewards"]).view(-1, g)
    expected = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    torch.testing.assert_close(torch.tensor(got["advantages"]), expected, rtol=1e-4, atol=1e-4)


def of_another_topic(prompt: str) -> str:
    """A prompt of the search task with the next topic; of the starter, the one of another module."""
    if asked := re.search(r"(\w+)\?", prompt):
        return prompt.replace(asked[1], TOPICS[(TOPICS.index(asked[1]) + 1) % len(TOPICS)])
    prompts = load_prompts("starter")["prompt"][:100]
    return prompts[(prompts.index(prompt) + 50) % len(prompts)]


@pytest.mark.parametrize("result", BACKENDS, indirect=True)
def test_no_completion_is_trained_under_a_foreign_prompt(result, request):
    """What was sampled of a prompt is on average likelier under it than under one of another topic, however a model is."""
    name = "starter" if "server" in request.node.callspec.id else "search"
    model, tokenizer = (auto.from_pretrained(resolve_model(name)) for auto in (AutoModelForCausalLM, AutoTokenizer))
    rows = [row for got in result["matrix"].values() for row in zip(got["prompts"], got["ids"], strict=True)]
    gains = []
    for prompt, ids in rows:
        own, other = (text_logprob(model, tokenizer.encode(text), ids) for text in (prompt, of_another_topic(prompt)))
        gains.append(own - other)
    assert sum(gains) > 0


@pytest.mark.parametrize("result", BACKENDS, indirect=True)
def test_a_seed_repeats_the_batch_exactly_and_another_differs(result):
    assert result["seed 7"]["ids"] == result["seed 7 again"]["ids"]
    assert result["seed 7"]["ids"] != result["seed 8"]["ids"]


@pytest.mark.parametrize("result", BACKENDS, indirect=True)
def test_with_a_seed_every_completion_has_a_stream_of_its_own(result):
    for name in ("seed 7", "seed 8"):
        assert identical_groups(result[name]["ids"], 8) == []
        assert result[name]["ids"][:8] != result[name]["ids"][8:]  # two equal prompts, two groups


@pytest.mark.parametrize("result", ["vllm"], indirect=True)
def test_in_process_a_seed_makes_stock_copy_one_completion(result):
    got = result["stock seed"]
    assert identical_groups(got["ids"], 8) == [0, 1]
    assert got["advantages"] == [0.0] * 16


@pytest.mark.parametrize("result", [ON_A_SERVER], indirect=True)
def test_on_a_server_a_seed_makes_stock_copy_for_equal_prompts(result):
    got = result["stock seed"]
    assert got["ids"][:8] == got["ids"][8:]


@pytest.mark.parametrize("result", BACKENDS, indirect=True)
def test_sharing_sends_equal_prompts_once_and_repeats(result):
    alone, shared = result["seed 7"], result["shared"]
    assert shared["requests"] == 1 and shared["prompt_tokens"] < alone["prompt_tokens"]
    assert identical_groups(shared["ids"], 8) == []
    assert shared["ids"] == result["shared again"]["ids"]
    assert shared["trained_prompts"] == shared["asked"]


@pytest.mark.parametrize("result", BACKENDS, indirect=True)
def test_shared_and_separate_requests_have_one_distribution(result):
    alone, shared = (torch.tensor(result[name], dtype=torch.float) for name in ("many alone", "many shared"))
    error = (alone.var() / len(alone) + shared.var() / len(shared)).sqrt()
    assert abs(alone.mean() - shared.mean()) < 4 * error
    assert 0.5 < shared.std() / alone.std() < 2


@pytest.mark.parametrize("result", ["vllm"], indirect=True)
def test_a_whole_run_repeats_with_its_seed_and_no_other(result):
    assert len(result["run 7"]) == 3
    assert result["run 7"] == result["run 7 again"]
    assert result["run 7"] != result["run 8"]
