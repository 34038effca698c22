"""Several ways to train one task, each over some seeds: the loop that every study uses, and stock GRPO as one of the ways."""

import contextlib
import dataclasses
import gc
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import trl

from ..errors import ParameterError
from ..generation.stops import StopRule, StopSpec
from ..runs.run import Run
from ..training.engine import hook_requests, unhook
from ..training.grpo import GRPOTrainer
from ..training.recording import attach_recorder
from ..training.rows import Generation, RecordsRows, stopped_for_trl
from ..training.sync_on_cpu import install_cpu_sync
from .recipes import Recipe
from .train import as_started, check_reward, is_finished, make_config, train, training_record
from .vllm_server import sharing_engines


@dataclasses.dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        recipe: its seed is replaced by each of the study's.
        reward_funcs: one or several, or a reward model.
        trainer: a trainer class of the workbench, or `ObservedGRPOTrainer` for stock GRPO.
        stops: when completions end; None for every EOS.
        options: of `train` in addition to these: of the trainer, and fields of its TRL config.
        seeds: how many of the study's seeds it is trained with; None for all.
    """

    recipe: Recipe
    reward_funcs: Any
    trainer: type = GRPOTrainer
    stops: StopSpec | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int | None = None


class ObservedGRPOTrainer(RecordsRows, trl.GRPOTrainer):
    """Stock `trl.GRPOTrainer`, recorded: each row's real end is noted next to what TRL takes it for. Nothing is fixed.

    `stops` are those that the engine was given through `generation_kwargs`. It also logs `vllm/requests` and
    `vllm/prompt_tokens`, as the workbench's trainer does.
    """

    def __init__(self, *args: Any, stops: StopSpec | None = None, record_dir: str | Path, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._rule = StopRule(stops or StopSpec(), self._tokenizer, self.model.generation_config)
        if self.use_vllm:
            install_cpu_sync(self, self.args.output_dir)
            hook_requests(self.vllm_generation, self._count)
        self.recorder = attach_recorder(self, record_dir)

    def _count(self, original: Any, prompts: Any, *args: Any, **kwargs: Any):
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["vllm/requests"].append(len(prompts))
        metrics["vllm/prompt_tokens"].append(sum(len(prompt["prompt_token_ids"]) for prompt in prompts))
        return original(prompts, *args, **kwargs)

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        rows = [list(row) for row in generated[1]]
        ends = [self._rule.find_end(row) for row in rows]
        texts = [self._rule.text(row, end) for row, end in zip(rows, ends, strict=True)]
        self.generation = Generation(rows=rows, ends=ends, trl_stopped=stopped_for_trl(self, rows), texts=texts)
        return generated


def train_arms(arms: Mapping[str, Arm], *, out_dir: Path, seeds: Iterable[int]) -> dict[str, list[Run]]:
    """Train all arms with one seed, then with the next, each training in `out_dir/<arm>/seed-<n>`; arm -> its runs, by seed.

    A finished training is reused only where recipe, reward functions, stops and options equal what is asked now. An
    interrupted one goes on from its last checkpoint; one with other settings starts again. One line is printed of each;
    what a training prints itself goes to the `log.txt` of its folder.

    Raises:
        ParameterError: a seed that is there twice, names of arms that give one folder, or, with the arm's name, a setting that
            its trainer does not take; before anything is trained.
    """
    seeds = list(seeds)
    if len(set(seeds)) < len(seeds):
        raise ParameterError(f"seeds={seeds}: one is there twice; a repetition would count as a further sample")
    folders = {name: "".join(c if c.isalnum() or c in ".-" else "-" for c in name) for name in arms}
    for place in folders.values():
        if len(alike := [name for name in arms if folders[name] == place]) > 1:
            raise ParameterError(f"arms {alike}: both would train in {place}; rename one, by letters or digits")
    trainings = [
        (name, seed, Path(out_dir) / folders[name] / f"seed-{seed}")
        for number, seed in enumerate(seeds)
        for name, arm in arms.items()
        if arm.seeds is None or number < arm.seeds
    ]
    for name, seed, folder in trainings:
        try:
            _check(arms[name], seed, folder)
        except TypeError as error:  # the config has no such field
            raise ParameterError(
                f"arm {name!r}: {error}; expected options of `train` or fields of that config"
            ) from error
        except ValueError as error:
            raise ParameterError(f"arm {name!r}: {error}") from error
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    vllm = any(arm.recipe.backend == "vllm" for arm in arms.values())
    with sharing_engines() if vllm else contextlib.nullcontext():
        for name, seed, folder in trainings:
            print(f"{name}, seed {seed}: {_train(arms[name], seed, folder)}", flush=True)
            runs[name].append(Run(folder))
    return runs


def _asked(arm: Arm, seed: int, folder: Path) -> tuple[Recipe, dict, bool]:
    """The recipe and what else `train` is asked, checked as far as records go; and whether the folder holds it, finished."""
    recipe = dataclasses.replace(arm.recipe, seed=seed)
    asked = {"reward_funcs": arm.reward_funcs, "stops": arm.stops, **arm.options}
    record = as_started(folder, training_record(arm.trainer.__name__, recipe, **asked))
    same_reward = asked.get("same_reward", False)
    check_reward(folder, record, same_reward)
    return recipe, asked, is_finished(folder, record, same_reward)


def _check(arm: Arm, seed: int, folder: Path) -> None:
    recipe, asked, finished = _asked(arm, seed, folder)
    if not finished:  # what is there already needs no vLLM any more
        of_train = ("reward_funcs", "monitor_every", "same_reward")
        make_config(arm.trainer, recipe, folder, **{name: asked[name] for name in asked if name not in of_train})


def _train(arm: Arm, seed: int, folder: Path) -> str:
    recipe, asked, finished = _asked(arm, seed, folder)
    if finished:
        return "there already"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        trainer = train(recipe, trainer=arm.trainer, record_dir=folder, **asked)
    engine = getattr(getattr(trainer, "vllm_generation", None), "llm", None)
    if engine is not None:  # its hook would keep this trainer, and its model, while the next one loads
        unhook(engine, "generate")
    large = sum(parameter.numel() for parameter in trainer.model.parameters()) > 10**7
    del trainer, engine
    if large:  # it takes a second, in which a toy would be half trained
        gc.collect()
    return "trained"
