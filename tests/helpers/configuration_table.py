"""The table of options that users set, what is expected of each trainer with it, and `docs/evidence/what_is_tested.md`.

A cell of the page says "tested" only where a test runs: a case of the table, or a test under `shows`.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path

import configuration_models as models
import pytest
import trl
from configuration_runs import BATCH, CONFIGS, LIMIT, POLICY, STEPS, STOP, TRAINERS, reward
from peft import LoraConfig
from trainers import STOCK

from tools.record import csv_text
from workbench.experiments.recipes import load_prompts
from workbench.experiments.toys.starter import EOS, PAD
from workbench.generation.stops import StopSpec

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "what_is_tested.md"
EQUAL = "without custom stops it trains as stock TRL does"
STOPS = "with a custom stop, rows end there, count as stopped and are recorded once"


@dataclass(frozen=True)
class Case:
    """A setting, and what is expected of it: that ours equals stock without custom stops, and that stops hold."""

    fields: dict = field(default_factory=dict)  # of the config
    own: Callable[[], dict] = dict  # of `build`; `fields` among them go to the config
    label: str = ""
    kinds: tuple[str, ...] = ()  # default all that the option is tested with
    equal: str = EQUAL  # what the page says; empty where it is not expected
    stops: str = STOPS
    until: Callable | None = None  # what the rows of stock's training have to show, a function of the `Watched`
    placed: bool = True  # whether training with position ids is compared too
    spec: StopSpec = StopSpec(stop=(STOP,))  # noqa: RUF009  # it is frozen
    eos: tuple[str, ...] = ()  # tokens that end rows, each one at least; default the tokenizer's
    seen: Callable | None = None  # what else the rows have to show
    rows: tuple[int, ...] = (BATCH,) * STEPS  # recorded in each step that generates; twice as many of PPO

    def options(self) -> tuple[dict, dict]:
        """Fields of the config, and arguments of `build`."""
        own = self.own()
        return self.fields | own.pop("fields", {}), own


@dataclass(frozen=True)
class Option:
    """A row of the page. What is neither lacking, untested nor refused is tested."""

    text: str
    cases: list[Case] = field(default_factory=list)
    needs: str = ""  # a parameter or a field of the config, without which TRL's trainer has no such option
    untested: dict[str, str] = field(default_factory=dict)  # trainer -> reason
    refused: dict[str, str] = field(default_factory=dict)  # trainer -> message
    notes: dict[str, str] = field(default_factory=dict)  # trainer -> what "tested" alone does not say

    def cell(self, kind: str) -> str:
        if kind in self.untested:
            return f"not tested: {self.untested[kind]}"
        if kind in self.refused:
            return f"refused: {self.refused[kind]}"
        sources = (STOCK[kind], CONFIGS[kind]) if STOCK[kind] else ()
        if self.needs and not any(self.needs in inspect.signature(source.__init__).parameters for source in sources):
            return f"TRL has none: no `{self.needs}`"
        return f"tested ({self.notes[kind]})" if kind in self.notes else "tested"

    def tested(self) -> list[str]:
        return [kind for kind in TRAINERS if self.cell(kind).startswith("tested")]


# --- what the cases are made of --------------------------------------------------------------------------------------


def sometimes(completions, **_):
    return [None if n % 4 in (0, 1) else 1.0 for n in range(len(completions))]


def seldom(completions, **_):
    return [None if n % 4 in (0, 2) else score for n, score in enumerate(reward(completions))]


def has_control_token(got) -> bool:
    return not got.ids or any(got.tokenizer.convert_tokens_to_ids(models.CONTROL) in ids for ids in got.ids)


def has_bytes_and_no_pads(got) -> bool:
    """Whether bytes make no character, and no row is short because the random policy sampled a pad, by which PPO masks."""
    cut = got.rows["finish_reason"] == "length"
    return got.rows["completion"].str.contains("\ufffd").any() and (got.rows["completion_tokens"][cut] == LIMIT).all()


def saved(make: Callable) -> Callable[[], dict]:
    return lambda: {"model": models.saved(make)}


def each_family(data: Callable) -> list[Case]:
    """Gemma 3's random weights write no stop."""
    own = {f: lambda f=f: models.seeing(f) | {"data": data(), "fields": models.not_images(f)} for f in models.FAMILIES}
    return [Case({}, make, family, stops="" if family == "Gemma 3" else STOPS) for family, make in own.items()]


def each_ending(make: Callable, eos: tuple[str, ...], says: str) -> list[Case]:
    """Stock samples on behind an EOS of its own, so that it is not expected to be equal."""
    specs = {"eos": StopSpec(), "string": StopSpec(stop=(STOP,))}
    return [Case({}, saved(make), at, equal="", stops=says, spec=spec, eos=eos) for at, spec in specs.items()]


SUPPORTED = re.search("Supported values are ([^.]*)", trl.GRPOConfig.__dataclass_fields__["loss_type"].metadata["help"])
LOSSES = {loss: {"loss_type": loss, "num_iterations": 2} for loss in re.findall(r"'(\w+)'", SUPPORTED.group(1))}
LOSSES["luspo"]["importance_sampling_level"] = "sequence"
ENVIRONMENTS = {"one": models.Library, "by name": {"library": models.Library}}
NONE = {"weighed": ({}, POLICY), "normalized": ({"multi_objective_aggregation": "normalize_then_sum"}, ("GRPO",))}
EVALUATES = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
NOTHING = {"PPO": "TRL's PPO does nothing with it"}
TEMPLATED = {"PPO": "TRL's PPO takes token ids, so the template is applied before it"}
BLIND = {"PPO": "TRL's PPO takes token ids, and value and reward models that are sequence classifiers"}
LACKING = dict.fromkeys(POLICY, "vLLM's vision models need torchvision, which the pinned environment lacks")
PAD_NEEDED = {"PPO": "pad token id 0: expected an id other than the EOS ids [1, 0] of tokenizer and generation config, because "
              "PPO leaves every pad out of the loss. Give the tokenizer a pad token of its own"}  # fmt: skip
# fmt: off
TABLE = {
    "tools": Option("tools in two turns with a stop string, transformers",
        [Case(models.TWO_TURNS, models.calling, stops="")],
        needs="tools"),
    "tools on vLLM": Option("tools in two turns with a stop string, vLLM in process", needs="tools"),
    "environment": Option("an environment (`environment_factory`), with tools and a reward of its own",
        [Case(models.TWO_TURNS, lambda f=factory: models.in_library(f), label, stops="",
              until=lambda got: set(got.scores) == {0.0, 1.0}) for label, factory in ENVIRONMENTS.items()],
        needs="environment_factory"),
    "rollout": Option("`rollout_func`",
        [Case({}, models.rolling_out, stops="")], needs="rollout_func"),
    "conversations": Option("conversational prompts",
        [Case({}, lambda: {"tokenizer": models.chat_tokenizer(calls=False), "data": models.chats()},
              equal="with conversations it trains as stock does and rewards see messages")], untested=TEMPLATED),
    "vision, text": Option("a vision-language model (LLaVA, Qwen2-VL, Gemma 3), text only",
        each_family(models.chats), untested=BLIND),
    "vision, images": Option("a vision-language model with images, transformers",
        each_family(models.pictures), untested=BLIND),
    "vision on vLLM": Option("a vision-language model with images, vLLM in process", untested=BLIND | LACKING),
    "LoRA": Option("LoRA, transformers", [Case({}, lambda: {"peft_config": LoraConfig(r=4, task_type="CAUSAL_LM")})]),
    "LoRA on vLLM": Option("LoRA with the weight sync to vLLM in process", needs="use_vllm"),
    "checkpointing": Option("gradient checkpointing", [Case({"gradient_checkpointing": True})], notes=NOTHING),
    "compile": Option("`torch.compile` (`torch_compile=True`)",
        [Case({"torch_compile": True, "torch_compile_backend": "eager"})], notes=NOTHING),
    "accumulation": Option("`gradient_accumulation_steps`",
        [Case({"gradient_accumulation_steps": 2}, kinds=POLICY, rows=(16, 16)),  # PPO counts rows, and not steps
         Case({"gradient_accumulation_steps": 2, "total_episodes": STEPS * 4 * BATCH}, kinds=("PPO",), rows=(16, 16))]),
    "accumulation < generation": Option("`gradient_accumulation_steps` below `steps_per_generation`",
        [Case({"gradient_accumulation_steps": 1, "steps_per_generation": 2}, rows=(16,))], needs="steps_per_generation"),
    "accumulation > generation": Option("`gradient_accumulation_steps` above `steps_per_generation`",
        [Case({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, rows=(32, 32))], needs="steps_per_generation"),
    "iterations": Option("`num_iterations=2` (PPO: `num_ppo_epochs=2`)",
        [Case({"num_iterations": 2, "mask_truncated_completions": True}, kinds=POLICY, rows=(8,)),
         Case({"num_ppo_epochs": 2}, kinds=("PPO",))]),
    "loss types": Option("every `loss_type`",
        [Case(fields, label=loss, placed=False, rows=(8,), equal="GRPO trains with every loss as stock does also off policy")
         for loss, fields in LOSSES.items()], needs="loss_type"),
    "eval groups": Option("`num_generations_eval` different from `num_generations`",
        [Case(EVALUATES | {"num_generations_eval": n}, lambda: {"eval_dataset": load_prompts("search").select((0, 30, 60, 90))},
              str(n), equal="an evaluation in groups of another size logs what stock logs", stops="") for n in (1, 2)],
        needs="num_generations_eval"),
    "correction": Option("importance-sampling correction on and off, vLLM in process",
        needs="vllm_importance_sampling_correction"),
    "None": Option("reward functions that return None",
        [Case({"reward_weights": [0.5, 2.0], **fields}, lambda: {"rewards": [seldom, sometimes]}, label, kinds,
              equal="rewards of None count as in stock", stops="") for label, (fields, kinds) in NONE.items()]),
    "several EOS": Option("several EOS ids, as Llama-3 has them, transformers",
        each_ending(models.llama3_like, (EOS, models.TURN_END), "the workbench ends at every EOS and shows none to rewards")),
    "several EOS on vLLM": Option("several EOS ids, vLLM in process", needs="use_vllm"),
    "pad is EOS": Option("the pad token among the EOS ids, as in Qwen2.5",
        each_ending(models.qwen25_like, (EOS, PAD), "the workbench ends at the pad and trains on it as on any EOS"),
        refused=PAD_NEEDED),
    "control tokens": Option("control tokens in addition to the tokenizer's special tokens, as Llama-3 has them",
        [Case({}, saved(models.control_like), seen=has_control_token,
              equal="with control tokens it trains as stock does and rewards do not see them")]),
    "SentencePiece": Option("a SentencePiece tokenizer with byte fallback, transformers",
        [Case({}, saved(models.llama2_like), spec=StopSpec(stop=("e", " s")), seen=has_bytes_and_no_pads)]),
    "SentencePiece on vLLM": Option("a SentencePiece tokenizer with byte fallback, vLLM in process", needs="use_vllm"),
    "subclass": Option("a subclass that overrides TRL's own methods: it samples, cuts or scores rows, or changes rewards",
        [Case({}, lambda change=change: {"subclass": change}, change.__name__, POLICY, stops="",
              placed=False, equal="a subclass of the user trains as on stock TRL")
         for change in (models.samples_itself, models.cuts_each_turn, models.scores_itself, models.takes_roots)],
        untested={"PPO": "TRL's PPO samples and scores in one method"}),
    "two processes": Option("two processes (torchrun) with `record_dir`"),
}
# fmt: on

# --- the tests of the table ------------------------------------------------------------------------------------------

TESTS: list[tuple[Callable, str, str, str]] = []  # test, option, trainer, what the page says


def shows(option: str, *trainers: str, says: str = "") -> Callable:
    """The decorated test shows the option for these trainers, default all that it is tested with; it gets `kind`."""
    return _shows([(option, kind, says, None) for kind in trainers or TABLE[option].tested()])


def shows_cases(*options: str, by: str = "", says: str = "") -> Callable:
    """Like `shows` for each case of options, default all; it gets `case` and `kind`.

    Args:
        by: the field of a case that says what the test shows; empty there, the test does not run for the case.
    """
    found = [(name, case) for name in options or TABLE for case in TABLE[name].cases if not by or getattr(case, by)]
    kinds = [(name, kind, case) for name, case in found for kind in case.kinds or TABLE[name].tested()]
    return _shows([(name, kind, getattr(case, by) if by else says, case) for name, kind, case in kinds])


def _shows(rows: list[tuple[str, str, str, Case | None]]) -> Callable:
    """`rows`: option, trainer, what the page says (default the test's name), and the case."""

    def add(test: Callable) -> Callable:
        TESTS.extend((test, name, kind, says or sentence(test)) for name, kind, says, _ in rows)
        if rows[0][-1] is None:
            return pytest.mark.parametrize("kind", [row[1] for row in rows])(test)
        ids = ["-".join(filter(None, [name, case.label, kind])) for name, kind, _, case in rows]
        return pytest.mark.parametrize("case,kind", [(case, kind) for _, kind, _, case in rows], ids=ids)(test)

    return add


_SPELLED = {"trl": "TRL", "ppo": "PPO", "eos": "EOS", "none": "None", "vllm": "vLLM"}


def sentence(test: Callable) -> str:
    """A test's name as text."""
    return " ".join(_SPELLED.get(word, word) for word in test.__name__.split("_")[1:])


def page() -> str:
    """`docs/evidence/what_is_tested.md` as it stands there, with the releases that are installed."""
    vllm = packages_distributions()["vllm"][0]  # of the build
    names = {"trl": "trl", "transformers": "transformers", "vllm": vllm, "torch": "torch"}
    versions = ", ".join(f"{name} {version(of).partition('+')[0]}" for name, of in names.items())
    return re.sub(r"with trl .*, on a CPU", f"with {versions}, on a CPU", PAGE.read_text(encoding="utf-8"))


def sheet() -> str:
    """`docs/evidence/what_is_tested.csv`: a row for each option, with its cells and what its tests show."""
    tests = sorted(TESTS, key=lambda row: (row[0].__module__, row[0].__code__.co_firstlineno))
    rows = []
    for name, row in TABLE.items():
        shown = dict.fromkeys(says for _, option, _, says in tests if option == name)
        rows.append([row.text, *map(row.cell, TRAINERS), "; ".join(shown)])
    return csv_text(["configuration", *TRAINERS, "what its tests show"], rows)


def write() -> None:
    """Write the page and its CSV."""
    PAGE.write_text(page(), encoding="utf-8")
    PAGE.with_suffix(".csv").write_text(sheet(), encoding="utf-8")
