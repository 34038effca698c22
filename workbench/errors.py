"""The workbench's errors: each is also the standard error that fits, so `except ValueError` keeps working; and warnings."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Mapping

# Top modules whose frames lie between a user's line and a warning: the workbench, what calls it, and what imports it.
_NOT_THE_USERS = {"workbench", "trl", "transformers", "accelerate", "torch", "contextlib", "importlib", "lazy_loader"}

NO_MEMORY = "no memory is left"  # what a MemoryError without a text says


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


def warn_user(text: str) -> None:
    """Warn at the user's line: the nearest frame outside of the workbench and of the libraries that call or import it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _top_module(frame.f_globals) in _NOT_THE_USERS:
        frame = frame.f_back
    # Python notes here what it has said at which line.
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__")
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, registry)


def _top_module(names: Mapping) -> str:
    """`trl.trainer.utils` -> `trl`, of the global names of a frame."""
    return str(names.get("__name__")).partition(".")[0]


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
