"""Vision-language models of three families, text only and with images on transformers, stock beside ours."""

import pytest
from configuration_runs import G, assert_equal_runs, assert_stops_hold, build, watched
from configuration_table import not_tested, note, shows
from configuration_turns import chats
from configuration_vision import FAMILIES, load_vision_model, pictures, save_vision_model
from trl_version import TRL

from workbench.diagnostics.padding_monitor import attach_padding_monitor
from workbench.runs.run import Run
from workbench.training.groups import check_groups

pytestmark = pytest.mark.slow

SAMPLED = ("GRPO", "RLOO", "OnlineDPO")
for name in ("vision, text", "vision, images", "vision on vLLM"):
    not_tested(name, "TRL's PPO takes token ids, and value and reward models that are sequence classifiers", "PPO")


@pytest.fixture(scope="module", params=FAMILIES)
def seeing(request, tmp_path_factory):
    """A family's name, and what `build` needs of it."""
    folder = tmp_path_factory.mktemp("vision")
    processor = save_vision_model(request.param, folder)
    return request.param, {"model": lambda: load_vision_model(folder), "tokenizer": processor}


def not_images(own: dict) -> dict:
    """Config fields that keep random weights from sampling a placeholder for an image."""
    tokens = own["tokenizer"].tokenizer.added_tokens_decoder
    return {"generation_kwargs": {"suppress_tokens": [i for i, token in tokens.items() if i > 1 and token.special]}}


@shows("vision, text", *SAMPLED)
def test_without_images_it_trains_as_stock_does_and_ends_at_stop_strings(kind, seeing, tmp_path):
    family, own = seeing
    own = own | {"data": chats()}
    assert_equal_runs(kind, not_images(own), **own)
    if family != "Gemma 3":  # whose random weights write no stop
        assert_stops_hold(kind, tmp_path, not_images(own), **own)


@shows("vision, text", *SAMPLED)
def test_its_padding_is_monitored_with_conversations_whether_they_have_images_or_not(kind, seeing):
    _, own = seeing
    for data in (chats(), pictures()):
        numbers = attach_padding_monitor(build("ours", kind, explicit_positions=True, data=data, **own)).measure()
        assert 0 <= numbers["padding/max_difference"] < 1e-4


@shows("vision, images", "GRPO", "RLOO")
def test_with_images_it_trains_as_stock_does_and_ends_at_stop_strings(kind, seeing, tmp_path):
    family, own = seeing
    own = own | {"data": pictures()}
    assert_equal_runs(kind, not_images(own), **own)
    if family != "Gemma 3":
        assert_stops_hold(kind, tmp_path, not_images(own), **own)
        prompts = Run(tmp_path).completions["prompt"]
        check_groups(prompts.tolist(), G)  # two copies of an image are one prompt
        assert prompts.nunique() > 1


WRONG = {"Qwen2-VL": "`mm_token_type_ids` is missing", "Gemma 3": "0 image tokens but received 1 images"}


@shows("vision, images", "OnlineDPO")
def test_with_images_online_dpo_trains_llava_as_stock_does_and_neither_trains_the_others(kind, seeing, tmp_path):
    family, own = seeing
    own = own | {"data": pictures()}
    if family == "LLaVA" or (family == "Gemma 3" and TRL >= (1, 16)):
        assert_equal_runs(kind, not_images(own), **own)
        if family == "LLaVA":
            assert_stops_hold(kind, tmp_path, not_images(own), **own)
        return
    for who in ("stock", "ours"):
        with pytest.raises(ValueError, match=WRONG[family]):
            watched(who, kind, not_images(own), **own)


note("vision, images", "LLaVA; with Qwen2-VL and Gemma 3 TRL's own code raises", "OnlineDPO")
