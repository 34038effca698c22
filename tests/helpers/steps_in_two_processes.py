"""`check_step` in two processes, of TRL's trainers and of faults that only several processes have; what torchrun starts.

    torchrun --nproc_per_node 2 tests/helpers/steps_in_two_processes.py FOLDER

Leaves FOLDER/rank-N.json: case -> stage -> verdict.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import trl
from distillation_cases import TWO, MicroBatchMeans
from distillation_cases import make as make_distillation
from step_cases import length, make
from transformers import TrainerCallback

from workbench.experiments.instruments.ppo_learning import preference_model
from workbench.watch import check_step
from workbench.watch.attach import StepCheck


class OwnTokens(trl.GRPOTrainer):
    """Divides by the tokens of its own process."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["num_items_in_batch"] = output["completion_mask"].sum() * self.accelerator.num_processes + 1
        return output


class OtherRank(trl.GRPOTrainer):
    """Takes the rewards of the other process's rows for its own."""

    def _calculate_rewards(self, *args):
        table = super()._calculate_rewards(*args)
        return table.roll(len(table) // 2, 0)


class OneSeed(trl.GRPOTrainer):
    """Seeds each process alike, as a script does that calls `set_seed` behind the trainer."""

    def _generate(self, prompts):
        torch.manual_seed(7)
        return super()._generate(prompts)


class OtherBaseline(trl.RLOOTrainer):
    """Takes the mean of the whole group off each reward, and not that of the others."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] *= (self.num_generations - 1) / self.num_generations
        return output


class KeepsRewards(trl.GRPOTrainer):
    def _calculate_rewards(self, *args):
        self.table = super()._calculate_rewards(*args)
        return self.table


class OwnMean(KeepsRewards):
    """Logs the mean reward of the first process alone."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self._metrics["train"]["reward"][-1] = self.table[: len(inputs)].sum(1).mean().item()
        return output


class NeverAveraged(trl.GRPOTrainer):
    """Trains each process on its own gradient."""

    def training_step(self, *args):
        with self.model_wrapped.no_sync():
            return super().training_step(*args)


class OwnBaseline(KeepsRewards):
    """Takes the mean of the rows of its own process off each reward, though groups have rows in both."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)
        own = self.table[first : first + len(inputs)].sum(1)
        return output | {"advantages": own - own.mean()}


class OtherQuantile(trl.GRPOTrainer):
    """Takes the quantile of entropies with its own, made smaller, in the place of the other process's."""

    def get_high_entropy_mask(self, *args):
        with mock.patch.object(self.accelerator, "gather", lambda entropies: torch.cat([entropies, 0.8 * entropies])):
            return super().get_high_entropy_mask(*args)


class WeightsApart(TrainerCallback):
    """Moves a bias of the second process by a little."""

    def on_step_end(self, args, state, control, model=None, **_):
        if args.process_index:
            next(p for name, p in model.named_parameters() if name.endswith("k_proj.bias")).data += 1e-7


SPREAD = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
CASES: dict[str, dict[str, Any]] = {
    "DAPO": {},
    "DAPO, masked": {"mask_truncated_completions": True, "beta": 0.1},
    "two micro-batches": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "groups in both": SPREAD,
    "a mean of rows": {"loss_type": "grpo"},
    "RLOO": {"cls": trl.RLOOTrainer, "beta": 0.1},
    "RLOO, normalized": {"cls": trl.RLOOTrainer, "beta": 0.1, "normalize_advantages": True},
    "a reward model": {"funcs": (length, str(preference_model()))},
    "distillation": TWO | {"make": make_distillation},
    "means of micro-batches": TWO | {"make": make_distillation, "cls": MicroBatchMeans},
    "a quantile of entropies": {"top_entropy_quantile": 0.3},
    "other quantile": {"top_entropy_quantile": 0.3, "cls": OtherQuantile},
    "own tokens": {"cls": OwnTokens},
    "one seed": SPREAD | {"cls": OneSeed},
    "other baseline": {"cls": OtherBaseline, "beta": 0.1},
    "own baseline": SPREAD | {"cls": OwnBaseline},
    "other mean": {"cls": OwnMean},
    "other rank": {"cls": OtherRank},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "a training": {},
    "not averaged": {"cls": NeverAveraged},
    "weights apart": {"more": {"callbacks": [WeightsApart()]}},
}


def main(folder: str) -> None:
    torch.set_num_threads(1)
    found = {}
    for name, case in CASES.items():
        with contextlib.redirect_stderr(io.StringIO()):
            report = check_step(case.pop("make", make)(Path(folder, name), **case))
        found[name] = {stage.name: [stage.verdict, stage.cause] for stage in report.stages}
    for name, case in TRAININGS.items():
        trainer = make(Path(folder, name), max_steps=2, disable_tqdm=True, **case)
        check = StepCheck(trainer, 1, tell=lambda line: None)
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        for number, report in check.reports.items():
            if number == 2 or case == {}:
                found[f"{name}, step {number}"] = {s.name: [s.verdict, s.cause] for s in report.stages}
    rank = torch.distributed.get_rank()
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
