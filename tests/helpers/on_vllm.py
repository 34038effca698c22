"""The one process of a run of the tests in which vLLM's engines live: it imports TRL and vLLM once and starts each engine once.

A line of standard input names a module of this folder and the arguments of its `result`; a line of standard output has what
it returned, as JSON, or the traceback. `conftest.on_vllm` is the other end.
"""

import gc
import importlib
import json
import os
import sys
import traceback


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # as TRL sets it: weights are synced within the process
    import torch
    from transformers import set_seed

    from workbench.experiments.train import quiet_libraries

    torch.set_num_threads(1)
    quiet_libraries()
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        set_seed(0)  # whatever was asked before
        try:
            answer = {"result": importlib.import_module(module).result(*arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
        gc.collect()  # a trainer is a circle of references


if __name__ == "__main__":
    main()
