"""A pytest plugin for people who write trainers or losses. Loading it imports nothing heavy.

The fixture `step_trainer` makes a trainer for a test. `pytest --conform my_pkg.loss:policy_loss --conform-as dapo` adds one
test a case: does the loss compute what its definition says?
"""

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


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("workbench")
    target = "ask a loss what its definition answers, one test a case; with --conform-as"
    group.addoption("--conform", metavar="MODULE:FUNCTION", help=target)
    group.addoption("--conform-as", metavar="NAME", help="that it claims to be, such as dapo")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    target, definition = config.getoption("--conform"), config.getoption("--conform-as")
    if not target and not definition:
        return
    if not target or not definition:
        raise pytest.UsageError("--conform MODULE:FUNCTION and --conform-as NAME go together")
    from .conform.command import load_function
    from .conform.report import conform_report
    from .errors import ParameterError

    try:
        report = conform_report(load_function(target), definition, target)
    except ParameterError as error:
        raise pytest.UsageError(str(error)) from error
    for result in report.results:
        node = f"{target} as {definition}::{result.case}"
        items.append(ConformItem.from_parent(session, name=result.case, nodeid=node, result=result))


class ConformItem(pytest.Item):
    """One case that a loss was asked; `other by choice` passes with a warning."""

    def __init__(self, *, result: Any, **options: Any) -> None:
        super().__init__(**options)
        self.result = result

    def runtest(self) -> None:
        if self.result.verdict == "not offered":
            pytest.skip(str(self.result))
        if self.result.verdict == "wrong":
            pytest.fail(str(self.result), pytrace=False)
        if self.result.verdict == "other by choice":
            self.warn(pytest.PytestWarning(f"other by choice: {self.result}"))

    def reportinfo(self) -> tuple[Path, int, str]:
        return Path("conform"), 0, f"conform: {self.name}"
