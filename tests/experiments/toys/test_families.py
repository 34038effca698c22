import pytest
import torch

from workbench.errors import ParameterError
from workbench.experiments.toys.families import FAMILIES, VOCAB, family_model, random_texts


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_model_is_the_same_each_time_in_fp32_and_eval(name):
    model = family_model(name)
    torch.rand(1)  # whatever is drawn in between
    state = torch.get_rng_state()
    again = family_model(name)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training and {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_fields_replace_the_family_s_own_and_leave_it_as_it_was():
    assert family_model("gpt2", n_positions=20).config.n_positions == 20
    assert family_model("gpt2").config.n_positions == 128


def test_an_unknown_family_names_the_ones_there_are():
    with pytest.raises(ParameterError, match="name='bert': expected one of llama, qwen2"):
        family_model("bert")


def test_texts_have_their_lengths_no_special_token_and_repeat():
    texts = random_texts(24, 17, 9)
    assert [len(text) for text in texts] == [24, 17, 9] and texts == random_texts(24, 17, 9)
    assert all(3 <= token < VOCAB for text in texts for token in text)
