"""vLLM in the trainer's process, as small as it gets. Import before `tiny`, which else hides vLLM from TRL."""

import os
import tempfile

ENGINE = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
os.environ.update(ENGINE)

import tiny  # noqa: E402
import vllm  # noqa: E402

COLOCATE = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.2}
_start = vllm.LLM.__init__
vllm.LLM.__init__ = lambda self, *args, **kwargs: _start(self, *args, **kwargs | {"enforce_eager": True})  # no compiler


def folder(own) -> str:
    """The tiny model and its tokenizer in a folder: TRL hands vLLM the path, and nothing else."""
    path = tempfile.mkdtemp()
    tiny.model(own).save_pretrained(path)
    own.save_pretrained(path)
    return path


def without_sync(trainer):
    """The trainer, which pushes no weights: vLLM's CPU backend cannot take TRL's, and those on disk are still right."""
    trainer.vllm_generation.sync_weights = lambda *_, **__: None
    return trainer


def outputs(trainer) -> list:
    """A list that fills with vLLM's own outputs, one a completion, as the trainer asks for them."""
    seen, generate = [], trainer.vllm_generation.llm.generate

    def tapped(*args, **kwargs):
        made = generate(*args, **kwargs)
        seen.extend(completion for request in made for completion in request.outputs)
        return made

    trainer.vllm_generation.llm.generate = tapped
    return seen
