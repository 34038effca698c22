"""What the shared engine says once another engine of its process was collected (that of on_vllm.py)."""

import gc

from vllm import LLM, SamplingParams

from workbench.experiments.toys.starter import starter_model
from workbench.experiments.vllm_server import shared_engine
from workbench.training.sync_on_cpu import cpu_engine


def result() -> int:
    path = str(starter_model())
    shared = shared_engine(path, max_model_len=256)
    other = LLM(path, dtype="float32", max_model_len=256, use_tqdm_on_load=False, **cpu_engine(path))
    del other
    gc.collect()
    return len(shared.generate(["a"], SamplingParams(max_tokens=3), use_tqdm=False)[0].outputs[0].token_ids)
