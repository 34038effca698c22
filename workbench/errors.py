"""The workbench's errors: each is also the standard error that fits, so `except ValueError` keeps working."""

from importlib.util import find_spec


class WorkbenchError(Exception):
    """Root of every error the workbench raises on purpose."""


class ParameterError(WorkbenchError, ValueError):
    """A value given by the user cannot be used; the message names it, what was expected and what to do."""


class MissingDependencyError(WorkbenchError, ImportError):
    """An optional package (vLLM, submitit, ...) or a network resource is needed and absent."""


class RunError(WorkbenchError, RuntimeError):
    """A run, or its folder, is not in the state that the call needs."""


class TrainingStopped(WorkbenchError):
    """A training stopped because it was asked to, with a complete checkpoint of its last step; it can go on from there."""


def need_lab(what: str, *modules: str) -> None:
    """Refuse what needs the extra `lab` where one of its modules is not installed; `what` is named in the message.

    Example:
        >>> need_lab("counting", "math")
        >>> need_lab("a made-up thing", "no_such_package")
        Traceback (most recent call last):
        workbench.errors.MissingDependencyError: a made-up thing needs no_such_package: pip install ".[lab]" in the checkout
    """
    if absent := [name for name in modules if find_spec(name) is None]:
        raise MissingDependencyError(f'{what} needs {", ".join(absent)}: pip install ".[lab]" in the checkout')


def refusal(function, *args, **kwargs) -> str:
    """The message with which a call refuses its arguments, or "accepted": shows a check at work in a notebook."""
    try:
        function(*args, **kwargs)
    except WorkbenchError as error:
        return f"refused: {error}"
    return "accepted"
