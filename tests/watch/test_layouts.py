"""Logits of texts in a layout: each token's own, once, and the model as it was."""

import pytest
import torch
from padding_cases import TEXTS, tiny

from workbench.consistency.padding_report import _text_logits, attention_kernel, use_of_positions


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_size, copies", [(1, 1), (2, 1), (3, 1), (1, 4)])
def test_each_token_is_seen_once_with_plain_forward_pass_logits(side, batch_size, copies):
    model, places, found = tiny("llama"), [], []

    def see(at, logits):
        places.append(at)
        found.append(logits)

    _text_logits(model, TEXTS, see, side, "explicit", batch_size=batch_size, copies=copies, width=40)
    at = torch.cat(places)
    assert at.sort().values.tolist() == list(range(sum(map(len, TEXTS))))
    with torch.no_grad():
        plain = torch.cat([model(input_ids=torch.tensor([text])).logits[0] for text in TEXTS])
    assert torch.allclose(torch.cat(found)[at.argsort()], plain, atol=1e-4)


def test_what_a_model_does_with_position_ids():
    assert use_of_positions(tiny("gpt2"), TEXTS[0]) == use_of_positions(tiny("llama"), TEXTS[0]) == "uses them"
    assert use_of_positions(tiny("bloom"), TEXTS[0]) != "uses them"


def test_another_kernel_is_there_in_the_block_only_even_on_error():
    model = tiny("llama")
    before = model.config._attn_implementation
    other = "eager" if before == "sdpa" else "sdpa"
    with pytest.raises(KeyError), attention_kernel(model, other) as missing:
        assert not missing and model.config._attn_implementation == other
        raise KeyError
    assert model.config._attn_implementation == before
    with attention_kernel(model, "no such kernel") as missing:
        assert missing
