"""A notebook's `parameters` cell as a typed interface: names, types, ranges and help, checked before anything starts.

The cell holds annotated literals, one a line, with the help as trailing comment. After a semicolon the help may end in
the allowed values:

    steps: int = 80  # optimizer steps; 1..1000000
    backend: str = "transformers"  # who samples; one of transformers, vllm
"""

import ast
import dataclasses
import difflib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ParameterError
from .run import SET_BY_RUNNER, check_notebook_name
from .secrets import looks_like_token

_TYPES = {"int": int, "float": float, "str": str, "bool": bool}
_NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell. `low`, `high` and `choices` are None where any value goes."""

    name: str
    type: str
    default: object
    help: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type == "bool":
            return "true or false"
        return self.type if self.low is None else f"{self.type} in {self.low:.12g}..{self.high:.12g}"


def notebook_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of a notebook, in order.

    Raises:
        ParameterError: no notebook, not exactly one `parameters` cell, or what `check_notebook_name` or `parse_parameters`
            refuses.
    """
    if not Path(path).is_file():
        raise ParameterError(f"{path}: no such notebook")
    check_notebook_name(Path(path).stem)
    try:  # nbformat takes a second to load, and checks what is of no matter here
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        cells = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParameterError(f"{path}: not a notebook of format 4 ({type(error).__name__}: {error})") from error
    if len(cells) != 1:
        raise ParameterError(f"{path}: expected one cell tagged `parameters`, found {len(cells)}")
    try:
        return parse_parameters("".join(cells[0]["source"]))
    except ParameterError as error:
        raise ParameterError(f"{path}: parameters cell: {error}") from error


def parse_parameters(source: str) -> dict[str, Parameter]:
    """The parameters that the source of a `parameters` cell declares, in order.

    Raises:
        ParameterError: a line that is no annotated literal of its own type and range, or a name that stands twice.

    Example:
        >>> parse_parameters("steps: int = 80  # optimizer steps; 1..100")["steps"].expected
        'int in 1..100'
    """
    lines = source.split("\n")
    try:
        nodes = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise ParameterError(f"not Python: {error}") from error
    found: dict[str, Parameter] = {}
    for node in nodes:
        line = lines[(node.end_lineno or 1) - 1]
        for constant in ast.walk(node):
            _refuse_token("a default", getattr(constant, "value", None))
        try:
            parameter = _parameter(node, line)
            parameter = dataclasses.replace(parameter, default=_checked(parameter, parameter.default))
        except ParameterError as error:
            raise ParameterError(f"`{line.strip()}`: {error}") from error
        if parameter.name in found:
            raise ParameterError(f"{parameter.name!r} stands there twice")
        found[parameter.name] = parameter
    return found


def _parameter(node: ast.stmt, line: str) -> Parameter:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id=kind), value=ast.expr() as literal):
            pass
        case _:
            raise ParameterError("expected `name: type = literal  # help`")
    if kind not in _TYPES:
        raise ParameterError(f"the type must be one of {', '.join(_TYPES)}")
    try:
        default = ast.literal_eval(literal)
    except ValueError:
        raise ParameterError("expected `name: type = literal  # help`") from None
    if isinstance(default, str) and kind != "str":
        raise ParameterError(f"expected a literal of type {kind}")
    after = line.encode()[node.end_col_offset :].decode()  # ast counts bytes
    text, semicolon, rule = after.partition("#")[2].strip().rpartition(";")
    if match := re.fullmatch(rf"\s*{_NUMBER}\.\.{_NUMBER}", rule):
        if kind not in ("int", "float"):
            raise ParameterError(f"a range does not fit the type {kind}")
        return Parameter(name, kind, default, text, low=float(match[1]), high=float(match[2]))
    if semicolon and rule.strip().startswith("one of "):
        if kind != "str":
            raise ParameterError(f"a list of values does not fit the type {kind}")
        choices = rule.strip().removeprefix("one of ").split(",")
        return Parameter(name, kind, default, text, choices=tuple(choice.strip() for choice in choices))
    return Parameter(name, kind, default, text + semicolon + rule)


def check_parameters(known: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, object]:
    """The given values, each as its parameter's type (an int is taken where a float is wanted).

    Args:
        known: of the notebook.
        given: name -> value; strings, as from a command line, are read as the parameter's type.

    Raises:
        ParameterError: names the parameter, the value and what is allowed; for an unknown name the nearest spelling. An
            access token is refused without being repeated.

    Example:
        >>> check_parameters(parse_parameters("rate: float = 0.1  # any; 0..1"), {"rate": "1"})
        {'rate': 1.0}
    """
    for name, value in given.items():
        _refuse_token(f"parameter {name}", value, name)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ParameterError(f"unknown parameter {name!r}: {hint}this notebook takes {', '.join(known)}")
    return {name: _checked(known[name], value) for name, value in given.items()}


def _refuse_token(what: str, value, name: str = "") -> None:
    """Before any other check, whose message would show the value."""
    if looks_like_token(name, value if isinstance(value, str) else ""):
        shown = "a parameter's name" if looks_like_token("", name) else what
        raise ParameterError(
            f"{shown} looks like an access token; set it in the environment, e.g. HF_TOKEN: it would be written "
            "into params.json, the notebook and the report"
        )


def _checked(parameter: Parameter, value):
    value = _typed(parameter, value)
    wrong = (
        (isinstance(value, float) and not math.isfinite(value))
        or (parameter.low is not None and not parameter.low <= value <= parameter.high)
        or (parameter.choices is not None and value not in parameter.choices)
    )
    if wrong:
        raise _wrong_value(parameter, value)
    if value == "" and parameter.default:
        raise ParameterError(
            f"parameter {parameter.name}='': expected a text, such as the default {parameter.default!r}"
        )
    return value


def _wrong_value(parameter: Parameter, value) -> ParameterError:
    several = isinstance(value, str) and parameter.type != "bool" and ("," in value or ".." in value)
    hint = "; several values are for `workbench sweep`, as 1,2 or, of whole numbers, 0..4" if several else ""
    return ParameterError(f"parameter {parameter.name}={value!r}: expected {parameter.expected}{hint}")


def _typed(parameter: Parameter, value):
    wanted = _TYPES[parameter.type]
    if isinstance(value, str) and wanted is not str:
        try:
            if wanted is bool:
                return {"true": True, "false": False}[value.lower()]
            return wanted(value)
        except (KeyError, ValueError):
            raise _wrong_value(parameter, value) from None
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise _wrong_value(parameter, value)
    return value


def parse_assignments(items: Sequence[str], option: str = "-p") -> dict[str, str]:
    """Items of a command line, `NAME=VALUE`, as a dictionary of strings.

    Raises:
        ParameterError: an item without `=`, a name given twice, or an access token.

    Example:
        >>> parse_assignments(["steps=80", "stop=a=b"])
        {'steps': '80', 'stop': 'a=b'}
    """
    values: dict[str, str] = {}
    for item in items:
        name, sign, value = item.partition("=")
        _refuse_token(
            f"parameter {name}" if sign else "what -p was given", value if sign else item, name if sign else ""
        )
        if not sign or not name:
            raise ParameterError(f"{option} {item}: expected {option} NAME=VALUE")
        if name in values:
            raise ParameterError(f"{option} {item}: {name} was given before, as {values[name]!r}")
        values[name] = value
    return values


def repeat_command(notebook: str, params: Mapping[str, object], known: Mapping[str, Parameter]) -> str:
    """The command line that repeats a run.

    Args:
        notebook: its name.
        params: of the run; those that have the notebook's default, or that the runner sets, are left out.
        known: the notebook's parameters; empty when they are unknown, then all of `params` are named.

    Example:
        >>> repeat_command("00_start_here", {"seed": 1, "steps": 80}, parse_parameters("steps: int = 80"))
        'workbench run 00_start_here -p seed=1'
    """
    changed = {k: v for k, v in params.items() if k not in known or known[k].default != v}
    return command_line("run", notebook, [f"{k}={v}" for k, v in changed.items() if k not in SET_BY_RUNNER])


def command_line(command: str, notebook: str, assignments: Sequence[str]) -> str:
    """`workbench COMMAND NOTEBOOK -p NAME=VALUE ...`, quoted for a shell."""
    return shlex.join(["workbench", command, notebook, *(word for item in assignments for word in ("-p", item))])
