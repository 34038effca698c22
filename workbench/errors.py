"""The workbench's errors: each is also the standard error that fits, so `except ValueError` keeps working."""


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


def refusal(function, *args, **kwargs) -> str:
    """The message with which a call refuses its arguments, or "accepted": shows a check at work in a notebook."""
    try:
        function(*args, **kwargs)
    except WorkbenchError as error:
        return f"refused: {error}"
    return "accepted"
