"""Where a warning points to: the user's line, whatever lies between it and the workbench."""

import re
from collections.abc import Callable

import pytest
from conftest import ROOT

from workbench.errors import warn_user


def called_by(module: str, inner: Callable) -> Callable:
    """A function of another module, which calls `inner`."""
    scope = {"__name__": module, "inner": inner}
    exec("def outer():\n    inner()\n", scope)
    return scope["outer"]


@pytest.mark.parametrize(
    "modules",
    [["workbench.training.grpo"], ["workbench.training.rows", "trl.trainer.grpo_trainer", "transformers.trainer"]],
    ids=["own", "libraries"],
)
def test_a_warning_points_to_the_line_of_the_user(modules):
    scope = {"__name__": "workbench.training.updates", "warn_user": warn_user}
    exec("def call():\n    warn_user('look here')\n", scope)
    call = scope["call"]
    for module in modules:
        call = called_by(module, call)
    with pytest.warns(UserWarning, match="look here") as caught:
        call()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_that_a_user_gives_is_at_that_line():
    with pytest.warns(UserWarning, match="look here") as caught:
        warn_user("look here")
    assert caught[0].filename == __file__


def test_no_warning_of_the_package_counts_frames():
    counted = re.compile(r"stacklevel|warnings\.warn\(")
    assert [path.name for path in (ROOT / "workbench").rglob("*.py") if counted.search(path.read_text())] == []
