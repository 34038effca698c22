"""`workbench conform`: load a function by its name, ask it, print what it answered."""

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ..errors import ParameterError
from ..runs.files import jsonable
from ..runs.own_code import load_module
from ..runs.text import printable
from .report import Verdict, conform_report


def load_function(target: str) -> Callable[..., Any]:
    """Import a function by `package.module:function`, also from the current folder, or `file.py:function`; it is executed.

    Raises:
        ParameterError: if there is no such module or function, or the module raises an error.

    Example:
        >>> load_function("math:log")(1.0)
        0.0
    """
    source, _, name = target.rpartition(":")
    expected = "expected MODULE:FUNCTION or FILE.py:FUNCTION, as in my_pkg.loss:policy_loss"
    if not source or not name:
        raise ParameterError(f"{target}: {expected}")
    try:
        function: Any = load_module(source, expected)
        for part in name.split("."):
            function = getattr(function, part)
    except ParameterError:
        raise
    except (Exception, SystemExit) as error:  # the module is anybody's
        raise ParameterError(f"{target}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ParameterError(f"{target} is {type(function).__name__}: expected a function")
    return function


def conform(target: str, definition: str, *, as_json: bool = False) -> int:
    """Print what a function answers; returns 1 if a case is wrong."""
    with contextlib.redirect_stdout(sys.stderr):  # what the module prints is no part of the report
        report = conform_report(load_function(target), definition, target)
    if as_json:
        for result in report.results:
            print(json.dumps(jsonable({"function": target, "definition": definition} | asdict(result))))
    else:
        print(printable(str(report)))
    return int(bool(report.of(Verdict.WRONG)))
