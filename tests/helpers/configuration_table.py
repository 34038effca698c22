"""What `docs/evidence/what_is_tested.md` says: a cell for each configuration and trainer, put there by the test that shows it.

A test says so with `shows` or `shows_refusal`, which also parametrise it; so a cell cannot be filled without a test that runs.
"""

import inspect
import re
from collections.abc import Callable
from importlib.metadata import packages_distributions, version

import pytest

TRAINERS = ("GRPO", "RLOO", "OnlineDPO", "PPO")
CONFIGURATIONS = {
    "tools": "tools in two turns with a stop string, transformers",
    "tools on vLLM": "tools in two turns with a stop string, vLLM in process",
    "environment": "an environment (`environment_factory`), with tools and a reward of its own",
    "rollout": "`rollout_func`",
    "conversations": "conversational prompts",
    "vision, text": "a vision-language model (LLaVA, Qwen2-VL, Gemma 3), text only",
    "vision, images": "a vision-language model with images, transformers",
    "vision on vLLM": "a vision-language model with images, vLLM in process",
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
    "several EOS": "several EOS ids, as Llama-3 has them, transformers",
    "several EOS on vLLM": "several EOS ids, vLLM in process",
    "pad is EOS": "the pad token among the EOS ids, as in Qwen2.5",
    "control tokens": "control tokens in addition to the tokenizer's special tokens, as Llama-3 has them",
    "SentencePiece": "a SentencePiece tokenizer with byte fallback, transformers",
    "SentencePiece on vLLM": "a SentencePiece tokenizer with byte fallback, vLLM in process",
    "two processes": "two processes (torchrun) with `record_dir`",
}
CELLS: dict[tuple[str, str], str] = {}  # (configuration, trainer) -> what the page says
TESTS: dict[str, list[Callable]] = {name: [] for name in CONFIGURATIONS}  # that show a configuration
NOTES: dict[tuple[str, str], str] = {}  # the same with what has to be said with it
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
        TESTS[configuration].append(test)
        values = [argument(kind, cell) for kind, cell in cells.items()]
        return pytest.mark.parametrize(names, values, ids=list(cells))(test)

    return add


def _fill(configuration: str, kind: str, cell: str) -> None:
    assert configuration in CONFIGURATIONS and kind in TRAINERS, f"{configuration}, {kind}: not in the table"
    assert CELLS.setdefault((configuration, kind), cell) == cell, f"{configuration}, {kind}: two verdicts"


def trl_has_none(configuration: str, option: str, *trainers: str) -> None:
    """TRL's trainers have no such parameter or config field; a test looks."""
    for kind in trainers:
        _fill(configuration, kind, f"TRL has none: no `{option}`")
        ABSENT.append((configuration, kind, option))


def not_tested(configuration: str, reason: str, *trainers: str) -> None:
    """Nobody tried, and why."""
    for kind in trainers:
        _fill(configuration, kind, f"not tested: {reason}")


def note(configuration: str, text: str, *trainers: str) -> None:
    """What a test shows that "tested" alone does not say."""
    for kind in trainers:
        NOTES[configuration, kind] = f"{CELLS[configuration, kind]} ({text})"


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
            TESTS[name].append(test)
        return pytest.mark.parametrize("configuration,kind", pairs, ids=[f"{n}-{k}" for n, k in pairs])(test)

    return add


HEAD = """\
# What is tested

Configurations that users run, with {versions}, on a CPU. A cell says
"tested" where a test of `tests/training/test_configurations*.py` trains it for two steps with the real TRL; these tests also
write this page. The models are tiny, below a million weights: they show that a configuration works, and nothing about what
a large model learns in it. The page is of the oldest TRL, where all four trainers are; `make test` runs the same tests, but
PPO's, on the pinned release. To write it again:

    PYTHONPATH=.venv/lanes/trl-1.12.0 python tests/training/test_what_is_tested.py > docs/evidence/what_is_tested.md

If no test below says otherwise, "tested" means two things. Without custom stops, on the same seed, every logged number and
every weight equals stock TRL's (`explicit_positions=False`; with position ids, to rounding). With a stop string, rows end
where it does, count as stopped, are neither masked nor punished, reach reward functions with the right text, and are
recorded once each with their rewards in `record_dir`.

| | {trainers} |
|---|{lines}|
"""


def page() -> str:
    """`docs/evidence/what_is_tested.md`."""
    vllm = packages_distributions()["vllm"][0]  # of the build
    names = {"trl": "trl", "transformers": "transformers", "vllm": vllm, "torch": "torch"}
    versions = [f"{name} {version(of).partition('+')[0]}" for name, of in names.items()]
    head = {
        "versions": ", ".join(versions),
        "trainers": " | ".join(TRAINERS),
        "lines": "|".join(["---"] * len(TRAINERS)),
    }
    cells = CELLS | NOTES
    verdicts = {name: " | ".join(cells[name, kind] for kind in TRAINERS) for name in CONFIGURATIONS}
    rows = [f"| {text} | {verdicts[name]} |" for name, text in CONFIGURATIONS.items()]
    parts = [HEAD.format(**head) + "\n".join(rows), "## The tests of each row"]
    for name, text in CONFIGURATIONS.items():
        tests = sorted(TESTS[name], key=lambda test: (test.__module__, test.__code__.co_firstlineno))
        parts.append("\n".join([f"{text[0].upper()}{text[1:]}:", "", *(f"- {sentence(test)}" for test in tests)]))
    return "\n\n".join(parts) + "\n"


_SPELLED = {"trl s": "TRL's", "environment s": "environment's", "online dpo": "OnlineDPO", "trl": "TRL", "ppo": "PPO"}
_SPELLED |= {"grpo": "GRPO", "eos": "EOS", "llava": "LLaVA", "vllm": "vLLM", "cuda": "CUDA", "of none": "of None"}
_SPELLED |= {"counts none": "counts None"}


def sentence(test: Callable) -> str:
    """A test's name as text."""
    text = test.__name__.removeprefix("test_").replace("_", " ")
    for name, spelled in _SPELLED.items():
        text = re.sub(rf"\b{name}\b", spelled, text)
    return text
