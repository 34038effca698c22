"""The workbench's errors: each is also the standard error that fits, so `except ValueError` keeps working."""

import difflib
from collections.abc import Iterable


class WorkbenchError(Exception):
    """Root of every error the workbench raises on purpose."""


class ParameterError(WorkbenchError, ValueError):
    """A value given by the user cannot be used; the message names it, what was expected and what to do."""


class MissingDependencyError(WorkbenchError, ImportError):
    """An optional package (vLLM, peft, ...) or a network resource is needed and absent."""


class RunError(WorkbenchError, RuntimeError):
    """A run, or its folder, is not in the state that the call needs."""


class TrainingStopped(WorkbenchError):
    """A training stopped because it was asked to, with a complete checkpoint of its last step; it can go on from there."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint for a message, with a blank behind it; empty where no known name is near.

    Example:
        >>> did_you_mean("serch", ["starter", "search"])
        "did you mean 'search'? "
    """
    close = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {close[0]!r}? " if close else ""


def refusal(function, *args, **kwargs) -> str:
    """The message with which a call refuses its arguments, or "accepted": shows a check at work in a notebook."""
    try:
        function(*args, **kwargs)
    except WorkbenchError as error:
        return f"refused: {error}"
    return "accepted"
