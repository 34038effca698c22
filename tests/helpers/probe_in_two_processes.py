"""The sampler's proof in two processes, where scoring is a collective and the first one's engine fails; what torchrun starts.

    torchrun --nproc_per_node 2 tests/helpers/probe_in_two_processes.py FOLDER

An all-reduce stands for the weights that FSDP and ZeRO-3 gather: a process that scores alone waits for ever. Leaves
FOLDER/rank-N.json.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from accelerate import Accelerator

from workbench.watch import sampler_probe
from workbench.watch.sampler_probe import SamplerProbe, attach_sampler_probe


class Scored(SamplerProbe):
    def _logprobs(self):
        torch.distributed.all_reduce(torch.zeros(1))
        return np.zeros(10) - 1


def main(folder: str) -> None:
    state, accelerator = SimpleNamespace(global_step=0), Accelerator(cpu=True)
    args = SimpleNamespace(bf16=False, fp16=False, use_vllm=True)
    trainer = SimpleNamespace(state=state, args=args, model=torch.nn.Linear(1, 1), accelerator=accelerator)
    trainer.mode, trainer.processing_class = "server", None
    trainer.callback_handler = SimpleNamespace(callbacks=[])
    trainer.sync_weights = trainer.generate = lambda: None

    def ask(ids):
        if state.global_step == 1:
            raise OSError("503 from the server")
        return (np.zeros(10) - 2,)  # another policy: all processes are to find out what rounding makes

    engine = SimpleNamespace(length=(10, 10), ask=ask, encode=dict)
    sampler_probe._prompts, sampler_probe._weights_are_local = lambda trainer: [[1]], lambda trainer: False
    sampler_probe.window, sampler_probe.encoded = lambda model: None, lambda tokenizer: {}

    def away(generation):
        raise OSError("no server")

    with contextlib.redirect_stderr(io.StringIO()) as printed:
        sampler_probe.EngineServer = away
        found: dict = {"at the start": "not probed" if attach_sampler_probe(trainer) is None else "probed"}
        sampler_probe.EngineServer = lambda generation: engine
        probe, found["scored"] = Scored(trainer, every=1), []
        for state.global_step in range(4):
            trainer.generate()
            found["scored"].append(probe._count)
    found["printed"] = printed.getvalue().count("503 from the server")
    Path(folder, f"rank-{accelerator.process_index}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # a process that ends before the other leaves it would abort


if __name__ == "__main__":
    main(*sys.argv[1:])
