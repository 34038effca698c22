"""A notebook's `parameters` cell as an interface: names, types, ranges and help, checked before anything starts.

Any cell that papermill takes will do. Of a literal the type is checked, and what its comment says after a semicolon:

    steps: int = 80  # optimizer steps; 1..1000000
    backend: str = "transformers"  # who samples; one of transformers, vllm
    tag: str | None = None
    layers = [0, 1]
"""

import ast
import contextlib
import dataclasses
import functools
import json
import keyword
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import ParameterError, did_you_mean
from .files import jsonable
from .secrets import hide_tokens, looks_like_token, map_text, names_secret

SET_BY_RUNNER = ("out_dir", "interactive")  # parameters that say where a notebook runs, not what it does

_TYPES = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "dict": dict}
_NUMBER = r"(-?\d[\d_]*(?:\.[\d_]+)?(?:[eE][-+]?\d+)?)"
COMPUTED = "(computed)"  # in the place of a default that is no literal


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An assignment of a parameters cell. `low`, `high` and `choices` are None where any value goes.

    `type` is int, float, str, bool, list, dict, `number` (int or float) or `any`. An `optional` one may also be None.
    """

    name: str
    type: str
    default: object
    help: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None
    optional: bool = False

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        words = {"bool": "true or false", "number": "a number", "any": "a number, a text, a list or None"}
        words |= {"list": "a list, such as [0, 1]", "dict": "a mapping, such as {'a': 1}"}
        kind = f"one of {', '.join(self.choices)}" if self.choices else words.get(self.type, self.type)
        kind += "" if self.low is None else f" in {self.low:.12g}..{self.high:.12g}"
        return f"{kind}, or None" if self.optional else kind


def check_notebook_name(name: str) -> None:
    """Refuse the name of a notebook, without `.ipynb`, that would put its runs or reports elsewhere or write on a terminal."""
    page = name.lower().endswith(".html")  # as index.html among the reports
    if not name or name.startswith(".") or "/" in name or page or not name.isprintable():
        raise ParameterError(
            f"notebook {name!r}: its name is also the name of a folder for its runs and reports, so it must not start with a "
            "dot, end in .html, or hold a slash or a character that cannot be printed; rename it"
        )


def notebook_parameters(path: Path) -> dict[str, Parameter]:
    """The parameters of a notebook, in order; none where no cell is tagged `parameters`."""
    if not Path(path).is_file():
        raise ParameterError(f"{path}: no such notebook")
    check_notebook_name(Path(path).stem)
    cells = notebook_cells(path)
    sources = ["".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", [])]
    if len(sources) > 1:
        raise ParameterError(
            f"{path}: {len(sources)} cells are tagged `parameters`; expected one. Take the tag off all but the cell whose "
            "values a run is to set"
        )
    try:
        return parse_parameters(sources[0]) if sources else {}
    except ParameterError as error:
        raise ParameterError(f"{path}: parameters cell: {error}") from error


def notebook_cells(path: Path) -> list[dict]:
    """The cells of a notebook, each with `cell_type`, `source` and `metadata`."""
    try:  # nbformat takes a second to load, and checks what is of no matter here
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if (number := content.get("nbformat", 4)) != 4:
            raise ParameterError(
                f"{path}: a notebook of format {number}, and format 4 runs here; `jupyter nbconvert --to notebook --inplace "
                f"{shlex.quote(str(path))}` rewrites an older one"
            )
        cells = content["cells"]
        for cell in cells:
            _ = cell["cell_type"], "".join(cell["source"]), "parameters" in cell["metadata"].get("tags", [])
    except ParameterError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParameterError(f"{path}: not a notebook of format 4 ({type(error).__name__}: {error})") from error
    return cells


def parse_parameters(source: str) -> dict[str, Parameter]:
    """The parameters that the source of a `parameters` cell declares, in order. Imports and other statements declare none.

    Example:
        >>> parse_parameters("steps: int = 80  # optimizer steps; 1..100")["steps"].expected
        'int in 1..100'
    """
    return dict(_parsed(source))


@functools.lru_cache(maxsize=64)  # a sweep asks four times for the parameters of its notebook
def _parsed(source: str) -> Mapping[str, Parameter]:
    lines, nodes = re.split("\r\n?|\n", source), parse_cell(source)[0].body  # as Python counts lines
    found: dict[str, Parameter] = {}
    for node in nodes:
        line = lines[(node.end_lineno or 1) - 1]
        for constant in ast.walk(node):
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                _refuse_token("a default", constant.value)
        try:
            if parameter := _parameter(node, line):
                if parameter.default != COMPUTED:
                    parameter = dataclasses.replace(parameter, default=_checked(parameter, parameter.default))
                found[parameter.name] = parameter
        except ParameterError as error:
            raise ParameterError(f"`{hide_tokens(line.strip())}`: {error}") from error
    for name, parameter in found.items():
        _refuse_token("a default", parameter.default, name)
    changed = {name for node in nodes if not _declares(node) for name in _names_changed(node)}
    return {n: dataclasses.replace(p, default=COMPUTED) if n in changed else p for n, p in found.items()}


def _declares(node: ast.stmt) -> bool:
    """Say whether a statement only assigns a value to one name."""
    match node:
        case ast.AnnAssign(target=ast.Name()) | ast.Assign(targets=[ast.Name()]):
            return True
    return False


def _names_changed(node: ast.AST) -> set[str]:
    """The names that a statement assigns, deletes or may change in place: `name += 1`, `name.append(1)`, `name[0] = 1`."""
    found = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case (
                ast.Attribute(value=ast.Name(id=name))
                | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del())
            ):
                found.add(name)
    return found


def assigned_in_cells(path: Path, names: Iterable[str]) -> dict[str, int]:
    """Which of these names code cells assign at their top level, and the number of the first such cell, from 1."""
    wanted = set(names)
    found: dict[str, int] = {}
    code = [cell for cell in notebook_cells(path) if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        with contextlib.suppress(ParameterError):  # a cell that is not Python
            for node in parse_cell("".join(cell["source"]))[0].body:
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    for name in wanted & _names_changed(node):
                        found.setdefault(name, number)
    return found


def parse_cell(source: str) -> tuple[ast.Module, list[str]]:
    """The tree of a parameters cell, and the lines that are IPython's, such as `%matplotlib inline` and `!pip list`."""
    try:
        try:
            return ast.parse(source), []
        except SyntaxError:
            lines = source.split("\n")
            magics = [line for line in lines if line.lstrip().startswith(("%", "!"))]
            return ast.parse("\n".join("" if line in magics else line for line in lines)), magics
    except (SyntaxError, ValueError) as error:
        raise ParameterError(f"not Python: {error}") from error


def _parameter(node: ast.stmt, line: str) -> Parameter | None:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
            annotated, optional = _annotated(annotation)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            annotated, optional = "", False
        case _:
            return None
    try:
        default = ast.literal_eval(value)
        if json.loads(json.dumps(default, allow_nan=annotated == "float")) != default:
            default = COMPUTED  # a tuple: params.json has none
    except (ValueError, TypeError):
        default = COMPUTED
    kind = _kind(annotated, default)
    optional = kind in _TYPES and (optional or default is None)
    after = line.encode()[node.end_col_offset :].decode()  # ast counts bytes
    text, semicolon, rule = after.partition("#")[2].strip().rpartition(";")
    parameter = Parameter(name, kind, default, text, optional=optional)
    match = re.fullmatch(rf"\s*{_NUMBER}\.\.{_NUMBER}", rule)
    if match and kind in ("int", "float", "number"):
        return dataclasses.replace(parameter, low=float(match[1]), high=float(match[2]))
    if semicolon and rule.strip().startswith("one of ") and kind == "str":
        choices = rule.strip().removeprefix("one of ").split(",")
        return dataclasses.replace(parameter, choices=tuple(choice.strip() for choice in choices))
    return dataclasses.replace(parameter, help=text + semicolon + rule)


def _annotated(annotation: ast.expr) -> tuple[str, bool]:
    """The type that an annotation names, and whether None is allowed: `str`, `str | None`, `Optional[str]`, `list[int]`."""
    match annotation:
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=("list" | "dict") as name)):
            return name, False
        case (
            ast.BinOp(left=inner, op=ast.BitOr(), right=ast.Constant(value=None))
            | ast.BinOp(left=ast.Constant(value=None), op=ast.BitOr(), right=inner)
            | ast.Subscript(value=ast.Name(id="Optional"), slice=inner)
        ):
            return _annotated(inner)[0], True
        case ast.BinOp(left=one, op=ast.BitOr(), right=other):
            # The default of `int | float` says that it is a number. Of `int | str` it cannot say which one is meant.
            both = {_annotated(one)[0], _annotated(other)[0]}
            return "" if both <= {"int", "float"} else "any", False
    return "", False  # then the default says the type


def _kind(annotated: str, default: object) -> str:
    """The type that values of a parameter are read as: the annotation's where the default is of it, else the default's."""
    wanted, own = _TYPES.get(annotated), type(default)
    if wanted and (default in (COMPUTED, None) or own is wanted or (wanted is float and own is int)):
        return annotated
    if wanted or annotated or default == COMPUTED:
        return "any"
    return {bool: "bool", int: "number", float: "number", str: "str", list: "list", dict: "dict"}.get(own, "any")


def check_parameters(known: Mapping[str, Parameter], given: Mapping[str, object]) -> dict[str, object]:
    """The given values, each as its parameter's type (an int is taken where a float is wanted).

    Example:
        >>> check_parameters(parse_parameters("rate: float = 0.1  # any; 0..1"), {"rate": "1"})
        {'rate': 1.0}
    """
    for name, value in given.items():
        _refuse_token(f"parameter {name}", value, name)
    for name in given:
        if not known and (not name.isidentifier() or keyword.iskeyword(name)):
            raise ParameterError(f"parameter {name!r}: expected a valid Python name")
        if known and name not in known:
            hint = did_you_mean(name, known)
            raise ParameterError(f"unknown parameter {name!r}: {hint}this notebook takes {', '.join(known)}")
    return {name: _checked(known.get(name, Parameter(name, "any", None)), value) for name, value in given.items()}


def _refuse_token(what: str, value, name: str = "") -> None:
    """Before any other check, whose message would show the value; of a list or a mapping all texts are looked at."""
    read = _read(value)
    written = jsonable({name: read})  # what a run writes is looked at too: it would go on with `[token]` for the value
    hidden = map_text(written, hide_tokens) != written
    if hidden or any(looks_like_token(near, text) for near, text in _texts(name, read)):
        shown = "a parameter's name" if looks_like_token("", name) else what
        raise ParameterError(
            f"{shown} looks like a secret, which the run would write into params.json, the notebook and the report; set it in "
            "the environment, e.g. HF_TOKEN"
        )


def _texts(name: str, value) -> Iterator[tuple[str, str]]:
    """The texts in a value, each with what may name it: the parameter, a key, the text before it in a list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield name, str(key)
            yield from _texts(str(key), inner)
            yield from _texts(name, inner)
    elif isinstance(value, list | tuple):
        for before, inner in zip([name, *value], value, strict=False):
            yield from _texts(before if isinstance(before, str) and names_secret(before) else name, inner)
    else:
        yield name, value if isinstance(value, str) else ""


def _checked(parameter: Parameter, value):
    if parameter.optional and value in (None, "None"):
        return None
    value = _typed(parameter, value)
    wrong = (
        (isinstance(value, float) and not math.isfinite(value))
        or (parameter.low is not None and not parameter.low <= value <= parameter.high)
        or (parameter.choices is not None and value not in parameter.choices)
    )
    if wrong:
        raise _wrong_value(parameter, value)
    if isinstance(value, list | dict) and jsonable(value) != value:  # params.json would change it
        raise ParameterError(
            f"parameter {parameter.name}={repr(value)[:200]}: expected finite numbers, and texts as the names of a mapping"
        )
    if value == "" and parameter.default:
        raise ParameterError(
            f"parameter {parameter.name}='': expected a text, such as the default {parameter.default!r}"
        )
    return value


def _wrong_value(parameter: Parameter, value) -> ParameterError:
    several = isinstance(value, str) and parameter.type != "bool" and ("," in value or ".." in value)
    hint = "; only `workbench sweep` takes several values: 1,2 or, for whole numbers, 0..4" if several else ""
    counts = isinstance(value, str) and parameter.type in ("int", "number")
    if counts and (span := re.fullmatch(r"(\d+)(?:-|:|\.\.\.)(\d+)", value)):
        hint = f"; did you mean the range {span[1]}..{span[2]}? `workbench sweep` takes it"
    return ParameterError(f"parameter {parameter.name}={value!r}: expected {parameter.expected}{hint}")


def _typed(parameter: Parameter, value):
    if parameter.type in ("any", "number"):
        value = _read(value)
        if parameter.type == "number" and type(value) not in (int, float):
            raise _wrong_value(parameter, value)
        return value
    wanted = _TYPES[parameter.type]
    if wanted in (list, dict):
        value = _read(value)
    elif isinstance(value, str) and wanted is not str:
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


def _read(value):
    """A text as the literal that it is, as papermill reads one; other texts and values as they are."""
    if not isinstance(value, str):
        return value
    try:
        literal = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        return value if isinstance(literal, str) or json.loads(json.dumps(literal)) != literal else literal
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return value


def parse_assignments(items: Sequence[str], option: str = "-p") -> dict[str, str]:
    """Items of a command line, `NAME=VALUE`, as a dictionary of strings.

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
        if not item.isascii() and item != item.encode("utf-8", "replace").decode():
            raise ParameterError(f"{option} {item!a}: not UTF-8; write the value in UTF-8, as a terminal does")
        if not sign or not name:
            raise ParameterError(f"{option} {item}: expected {option} NAME=VALUE")
        if name in values:
            raise ParameterError(f"{option} {item}: {name} is given twice, first as {values[name]!r}")
        values[name] = value
    return values


def repeat_command(notebook: str, params: Mapping[str, object], known: Mapping[str, Parameter]) -> str:
    """The command line that repeats a run.

    Example:
        >>> repeat_command("00_start_here", {"seed": 1, "steps": 80}, parse_parameters("steps: int = 80"))
        'workbench run 00_start_here -p seed=1'
    """
    changed = {k: v for k, v in params.items() if k not in known or known[k].default != v}
    return command_line("run", notebook, [f"{k}={v}" for k, v in changed.items() if k not in SET_BY_RUNNER])


def command_line(command: str, notebook: str, assignments: Sequence[str]) -> str:
    """`workbench COMMAND NOTEBOOK -p NAME=VALUE ...`, quoted for a shell."""
    return shlex.join(["workbench", command, notebook, *(word for item in assignments for word in ("-p", item))])
