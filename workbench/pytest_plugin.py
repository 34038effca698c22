"""A pytest plugin for people who write trainers: the fixture `step_trainer`. Loading it imports nothing heavy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def step_trainer(tmp_path: Path) -> Callable[..., Any]:
    """Make a trainer on an embedded model of 0.65 M parameters, on the CPU: `step_trainer(MyTrainer, loss_type="dapo")`.

    Keywords are fields of the trainer's config. `workbench.experiments.small_step.small_trainer` has the other options.
    With `assert_step` it is a test of a trainer: `assert_step(step_trainer(MyTrainer))`.
    """

    def build(trainer_class: type, **options: Any) -> Any:
        from .experiments.small_step import small_trainer

        return small_trainer(trainer_class, tmp_path, **options)

    return build
