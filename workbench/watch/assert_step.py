"""`check_step` as an assertion, for the tests of a trainer."""

from collections.abc import Sequence
from typing import Any

from ..replay.report import StepReport, stage_names
from .check_step import check_step


def assert_step(
    trainer: Any,
    allow: str | Sequence[str] = ("sampling",),
    batch: list[dict] | None = None,
    meant: str | Sequence[str] = (),
) -> StepReport:
    """Assert that one step of a trainer computes what its definition says.

    A stage that is `different` fails, unless `meant` names it. So does one whose verdict is `cannot tell`, unless `allow` names
    it: a stage that nothing was seen of has not passed. The pytest fixture `step_trainer` makes a trainer for it.

    Args:
        trainer: as `check_step` takes it; it is unchanged afterwards.
        allow: stages that may be undecided, see `check_step` for the names; `()` for none.
        batch: rows of the data set, as `check_step` takes them.
        meant: stages at which your trainer means to differ, as `check_step` takes them.

    Returns:
        The report, if nothing fails.

    Raises:
        AssertionError: a stage fails; the message names each and has the report.
        ParameterError: `allow` or `meant` names no stage, or what `check_step` raises.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    names = stage_names("allow", allow)
    report = check_step(trainer, batch, meant)
    if failures := failures_of(report, names):
        raise AssertionError(f"{'; '.join(failures)}\n{report}")
    return report


def failures_of(report: StepReport, allow: Sequence[str]) -> list[str]:
    """Name what fails, the stages that differ and those that are undecided without being allowed; empty where none does."""
    failures = []
    if different := [stage.name for stage in report.different]:
        failures.append(f"different: {', '.join(different)}")
    if undecided := [stage.name for stage in report.undecided if stage.name not in allow]:
        names = ", ".join(undecided)
        failures.append(f"could not be decided, and allow={tuple(allow)!r} does not name it: {names}")
    return failures
