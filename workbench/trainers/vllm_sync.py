"""Weight sync from trainer to vLLM on a machine without CUDA, where TRL's own cannot work.

vLLM's CPU backend repacks linear weights after loading, so `load_weights` finds parameters without `weight_loader`
(AttributeError); vLLM's layerwise reload restores the loadable layout first. On CUDA nothing here is used.
"""


def install_cpu_sync(generation) -> None:
    """Give a colocated `VLLMGeneration` a `sync_weights` that works on vLLM's CPU build; on CUDA do nothing."""
    import torch

    if not torch.cuda.is_available() and generation.mode == "colocate":
        generation.sync_weights = lambda: reload_colocated(generation.llm, generation._iter_named_params())


def reload_colocated(llm, named_params) -> None:
    """Load `(name, tensor)` pairs into an in-process vLLM engine and drop its cached prefixes."""
    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    runner.reload_weights(weights_iterator=named_params)
    llm.reset_prefix_cache()
