"""{GRPO, RLOO} x {transformers, vLLM in process, vLLM server} x {EOS, id, string, two of each, ...}: every row.

PPO, which TRL runs on transformers only, is in test_ppo.py.
"""

import functools

import pytest
import stop_matrix
from conftest import on_vllm
from transformers import AutoTokenizer

pytestmark = pytest.mark.slow

LABELS = ("eos", "id", "string", "two of each", "no eos", "minimum")


@functools.cache
def outcome(backend, url):
    """Trainer -> what came of its rows."""
    return on_vllm("stop_matrix", backend, *([url] if url else []))


def judge(result, label, tokenizer):
    """Each row against a plain reference: decode every prefix and look for a stop."""
    spec, got = stop_matrix.specs(tokenizer)[label], result[label]
    stops = {*spec.stop_token_ids, *([tokenizer.eos_token_id] if not spec.ignore_eos else [])}

    def first_end(ids):
        for n in range(spec.min_tokens + 1, len(ids) + 1):
            text = tokenizer.decode(ids[:n])
            settled = len(tokenizer.decode(ids[: spec.min_tokens]).rstrip("\ufffd"))
            if ids[n - 1] in stops or any(s in text[max(0, settled - len(s) + 1) :] for s in spec.stop):
                return n
        return None

    ends = [first_end(ids) for ids in got["ids"]]
    assert [end is not None for end in ends] == [r == "stop" for r in got["finish_reason"]]
    for ids, end in zip(got["ids"], ends, strict=True):
        assert len(ids) == (stop_matrix.LIMIT if end is None else end)
    true_ratio = sum(end is None for end in ends) / len(ends)
    assert got["clipped_ratio"] == pytest.approx(true_ratio)
    if got["engine"]:
        assert got["engine"] == got["finish_reason"]
    return ends


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("backend", ["transformers", "vllm", "vllm-server"])
@pytest.mark.parametrize("trainer", ["GRPO", "RLOO"])
def test_every_row_ends_where_the_spec_says(trainer, backend, label, starter_folder, request):
    url = request.getfixturevalue("vllm_server") if backend == "vllm-server" else None
    result = outcome("vllm" if url else backend, url)[trainer]
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    ends = judge(result, label, tokenizer)
    got = result[label]
    assert got["loss_tokens"] == [end or 0 for end in ends]  # mask_truncated_completions
    stopped = [e for e in ends if e is not None]
    assert got["mean_terminated_length"] == pytest.approx(sum(stopped) / max(1, len(stopped)))


@pytest.mark.parametrize("backend", ["transformers", "vllm"])
def test_reward_functions_see_the_marker_and_no_eos(backend, starter_folder):
    got = outcome(backend, None)["GRPO"]["string"]
    tokenizer = AutoTokenizer.from_pretrained(starter_folder)
    for text, ids in zip(got["text"], got["ids"], strict=True):
        assert ("the " in text) == ("the " in tokenizer.decode(ids))
        assert tokenizer.eos_token not in text
