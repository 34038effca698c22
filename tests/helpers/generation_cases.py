"""The tokenizers and the sampler that the tests of generation share; each is made once."""

import functools

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.make_toys import build_tokenizer
from workbench.experiments.sampling import TransformersSampler
from workbench.experiments.toys.starter import starter_model
from workbench.generation.stops import StopSpec


@functools.cache
def tokenizer():
    made = build_tokenizer(
        [{"prompt": "def search(text)", "completion": " Return <search>topic</search> é 日本 🙂 done."}] * 2
    )
    made.add_tokens(["<call>"])
    made.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
    return made


@functools.cache
def toy_tokenizer():
    return build_tokenizer([{"prompt": "ask", "completion": " <search>topic</search> done."}] * 2)


@functools.cache
def transformers_sampler():
    folder = starter_model()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return TransformersSampler(model, AutoTokenizer.from_pretrained(folder))


def specs(tokenizer) -> dict[str, StopSpec]:
    """A stop of each kind that ends some rows of the starter early."""
    of, return_, period, to = (tokenizer.encode(t)[0] for t in (" of", " Return", ".", " to"))
    return {
        "eos": StopSpec(),
        "id": StopSpec(stop_token_ids=(of,)),
        "string": StopSpec(stop=("the ",)),
        "two of each": StopSpec(stop=("ing", " a "), stop_token_ids=(return_, to)),
        "no eos": StopSpec(ignore_eos=True, stop_token_ids=(period,)),
        "minimum": StopSpec(stop=("e",), min_tokens=4),
    }
