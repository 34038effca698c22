"""Samples from a model with a vocabulary of 151,936 words and prints by how many MiB the process grew at its peak.

Run as a process of its own, `python tests/helpers/sampling_memory.py ROWS TOKENS`: a peak is of the whole life of a process.
"""

import resource
import sys

import torch
from generation_cases import toy_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from workbench.experiments.sampling import Sampling, TransformersSampler
from workbench.generation.stops import StopRule, StopSpec

VOCABULARY = 151_936


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(rows: int, tokens: int) -> None:
    torch.set_num_threads(1)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **sizes, **heads)).eval()
    sampler, rule = TransformersSampler(model, toy_tokenizer()), StopRule(StopSpec.never(), toy_tokenizer())
    sampler.sample([[5]], rule, Sampling(2))  # what the libraries load at their first call
    before = peak_mib()
    sampled = sampler.sample([[5, 6]] * rows, rule, Sampling(tokens))
    assert all(len(ids) == len(logprobs) == tokens for ids, logprobs, _ in sampled)
    print(f"RESULT {peak_mib() - before}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
