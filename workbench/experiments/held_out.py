"""Answers to held-out questions while a trainer trains, on either back end: what its weights have learnt, whatever samples."""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..errors import ParameterError
from ..generation.stops import StopSpec
from ..runs.files import json_lines, jsonable, write_text
from ..training.rewards import describe_reward, is_async
from .sampling import Sampling, TransformersSampler, generate

FILE = "held_out.jsonl"


def held_out_rewards(folder: Path) -> dict[int, list[float]]:
    """Return step -> the reward of each held-out question at that look, [questions]; empty where there was no look."""
    looks: dict[int, list[float]] = {}
    for _, row in json_lines(folder / FILE) if (folder / FILE).is_file() else ():
        looks.setdefault(row["step"], []).append(row["reward"])
    return dict(sorted(looks.items()))


class HeldOut(TrainerCallback):
    """Answers held-out questions while a trainer trains, one line of `held_out.jsonl` for each question at each look.

    The file is in the trainer's `output_dir`, or above it if that is called `checkpoints`, as `train` calls it. A look changes
    neither weights nor random state. If a resumed training repeats a step, the lines of that step are replaced. For `train`
    another `HeldOut` makes another training.

    Args:
        rows: questions, with `prompt` and the columns that the reward reads. If empty, there is no look.
        reward: a reward function in TRL's convention, but no async one.
        looks: steps after which to look; 0 is before training.
        stops: when completions end.
        limit: most tokens of a completion.
        temperature: 0 answers greedily, without sampling noise; above it each look draws with one and the same seed.

    Raises:
        ParameterError: an async reward function.
    """

    def __init__(
        self,
        rows: Sequence[Mapping],
        reward: Any,
        looks: Collection[int],
        stops: StopSpec,
        limit: int,
        temperature: float = 0.0,
    ):
        if is_async(reward):
            raise ParameterError(
                f"reward={reward!r}: expected a function that returns its rewards at once, not an async one"
            )
        self.rows, self.reward, self.looks, self.stops = list(rows), reward, set(looks), stops
        self.sampling = Sampling(limit, temperature=temperature, seed=0)

    def describe(self) -> dict:
        """Return what a training's record says of it: two that are equal here leave the same lines in `held_out.jsonl`."""
        rows = json.dumps(jsonable(self.rows), sort_keys=True, default=str)
        return {
            "questions": len(self.rows),
            "rows": hashlib.sha256(rows.encode()).hexdigest()[:12],
            "looks": sorted(self.looks),
            "stops": dataclasses.asdict(StopSpec.of(self.stops)),
            "limit": self.sampling.max_completion_length,
            "temperature": self.sampling.temperature,
            "reward": describe_reward(self.reward),
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        if not state.global_step:
            self._look(args, state, **of_trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **of_trainer: Any) -> None:
        self._look(args, state, **of_trainer)

    def _look(self, args: Any, state: Any, *, model: Any, processing_class: Any, **_: Any) -> None:
        step = state.global_step
        if not self.rows or step not in self.looks or not state.is_world_process_zero:
            return
        prompts = [row["prompt"] for row in self.rows]
        training = model.training
        model.eval()
        made = generate(TransformersSampler(model, processing_class), prompts, stops=self.stops, sampling=self.sampling)
        model.train(training)
        completions = [one.completion for one in made]
        columns = {name: [row[name] for row in self.rows] for name in self.rows[0] if name != "prompt"}
        columns |= {"completion_ids": [list(one.completion_ids) for one in made], "trainer_state": state}
        rewards = self.reward(prompts=prompts, completions=completions, **columns)
        lines = [
            {"step": step, "completion": one.completion, "finish_reason": one.finish_reason, "reward": reward}
            for one, reward in zip(made, rewards, strict=True)
        ]
        folder = Path(args.output_dir)  # two trainings next to each other are to leave two files
        file = (folder.parent if folder.name == "checkpoints" else folder) / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for _, row in json_lines(file) if row["step"] < step] if file.is_file() else []
        write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept + lines))
