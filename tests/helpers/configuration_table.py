"""What `docs/what_is_tested.md` says: a cell for each configuration and trainer, put there by the test that shows it.

A test says so with `shows` or `shows_refusal`, which also parametrise it; so a cell cannot be filled without a test that runs.
"""

import inspect
from collections.abc import Callable

import pytest

TRAINERS = ("GRPO", "RLOO", "OnlineDPO", "PPO")
CONFIGURATIONS = {
    "tools": "tools in two turns with a stop string, transformers",
    "tools on vLLM": "the same, vLLM in process",
    "environment": "an environment (`environment_factory`), with tools and a reward of its own",
    "rollout": "`rollout_func`",
    "conversations": "conversational prompts",
    "vision, text": "a vision-language model (LLaVA, Qwen2-VL, Gemma 3), text only",
    "vision, images": "the same with images, transformers",
    "vision on vLLM": "the same with images, vLLM in process",
    "LoRA": "LoRA, transformers",
    "LoRA on vLLM": "LoRA with the weight sync to vLLM in process",
    "checkpointing": "gradient checkpointing",
    "compile": "`torch.compile` (`torch_compile=True`)",
    "accumulation": "`gradient_accumulation_steps`",
    "accumulation < generation": "`gradient_accumulation_steps` below `steps_per_generation`",
    "accumulation > generation": "`gradient_accumulation_steps` above `steps_per_generation`",
    "iterations": "`num_iterations=2` (PPO: `num_ppo_epochs=2`)",
    "loss types": "every `loss_type`",
    "eval groups": "`num_generations_eval` different from `num_generations`",
    "correction": "importance-sampling correction on and off, vLLM in process",
    "None": "reward functions that return None",
    "several EOS": "several EOS ids, as Llama-3 has them",
    "several EOS on vLLM": "the same, vLLM in process",
    "pad is EOS": "the pad token among the EOS ids, as in Qwen2.5",
    "control tokens": "control tokens beside the tokenizer's special tokens, as Llama-3 has them",
    "SentencePiece": "a SentencePiece tokenizer with byte fallback, transformers",
    "SentencePiece on vLLM": "the same, vLLM in process",
    "two processes": "two processes (torchrun) with `out_dir`",
}
CELLS: dict[tuple[str, str], str] = {}  # (configuration, trainer) -> what the page says
SENTENCES: dict[str, list[str]] = {name: [] for name in CONFIGURATIONS}  # the tests that show a configuration
ABSENT: list[tuple[str, str, str]] = []  # configuration, trainer, what TRL's trainer would have to have


def shows(configuration: str, *trainers: str) -> Callable:
    """The decorated test shows the configuration for these trainers, default all; it gets each as `kind`."""
    return _add(configuration, dict.fromkeys(trainers or TRAINERS, "tested"), lambda kind, cell: kind, "kind")


def shows_refusal(configuration: str, message: str, *trainers: str) -> Callable:
    """The decorated test shows that this is refused with `message`, which it gets with each trainer, as `kind`."""
    cells = dict.fromkeys(trainers, f"refused: {message}")
    return _add(configuration, cells, lambda kind, cell: (kind, message), "kind,message")


def _add(configuration: str, cells: dict[str, str], argument: Callable, names: str) -> Callable:
    def add(test: Callable) -> Callable:
        for kind, cell in cells.items():
            _fill(configuration, kind, cell)
        SENTENCES[configuration].append(sentence(test))
        values = [argument(kind, cell) for kind, cell in cells.items()]
        return pytest.mark.parametrize(names, values, ids=list(cells))(test)

    return add


def _fill(configuration: str, kind: str, cell: str) -> None:
    assert configuration in CONFIGURATIONS and kind in TRAINERS, f"{configuration}, {kind}: not in the table"
    assert CELLS.setdefault((configuration, kind), cell) == cell, f"{configuration}, {kind}: two verdicts"


def sentence(test: Callable) -> str:
    """A test's name as text; pytest runs it only when it begins so."""
    assert test.__name__.startswith("test_")
    return test.__name__.removeprefix("test_").replace("_", " ")


def trl_has_none(configuration: str, option: str, *trainers: str) -> None:
    """TRL's trainers have no such parameter or config field; a test looks."""
    for kind in trainers:
        _fill(configuration, kind, f"TRL has no `{option}` here")
        ABSENT.append((configuration, kind, option))


def not_tested(configuration: str, reason: str, *trainers: str) -> None:
    """Nobody tried, and why."""
    for kind in trainers:
        _fill(configuration, kind, f"not tested: {reason}")


def options_of(trainer: type, config: type) -> set[str]:
    """Names of a TRL trainer's parameters and of its config's fields."""
    return {*inspect.signature(trainer.__init__).parameters, *inspect.signature(config.__init__).parameters}


def shows_each(table: dict[str, tuple]) -> Callable:
    """Like `shows` for several configurations: name -> (trainers, ...). The test gets `configuration` and `kind`."""

    def add(test: Callable) -> Callable:
        pairs = [(name, kind) for name, (trainers, *_) in table.items() for kind in trainers]
        for name, kind in pairs:
            _fill(name, kind, "tested")
        for name in table:
            SENTENCES[name].append(sentence(test))
        return pytest.mark.parametrize("configuration,kind", pairs, ids=[f"{n}-{k}" for n, k in pairs])(test)

    return add
