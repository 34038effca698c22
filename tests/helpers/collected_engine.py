"""A shared engine: what it leaves to be collected, and what it says once another engine of the process (on_vllm.py) was."""

import gc

from vllm import LLM, SamplingParams

from workbench.experiments import vllm_server
from workbench.experiments.toys.starter import starter_model
from workbench.experiments.vllm_server import shared_engine
from workbench.training.sync_on_cpu import cpu_engine


def result() -> dict:
    path = str(starter_model())
    vllm_server._engines.pop(path, None)  # another test's
    shared = shared_engine(path, max_model_len=256)
    frozen = gc.get_freeze_count()
    other = LLM(path, dtype="float32", max_model_len=256, use_tqdm_on_load=False, **cpu_engine(path))
    del other
    gc.collect()
    (made,) = shared.generate(["a"], SamplingParams(max_tokens=3), use_tqdm=False)
    return {"frozen": frozen, "tokens": len(made.outputs[0].token_ids)}
