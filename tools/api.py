"""Write the reference from the package's own words: `python -m tools.api`. Nothing of the package but its parser is imported.

`api.md` has the names of `workbench` and of its parts, from their docstrings; `cli.md` has the commands.
"""

import argparse
import ast
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workbench"
WRITTEN = "This page is written by `python -m tools.api` from docstrings.\n"
PARTS = {
    "audit": "The audit of a log, and rules of your own for it.",
    "curves": "Reward curves: what they are, how sure they are, whether two agree, and the documented runs.",
    "conform": "Any loss, asked what the reference of a step answers.",
    "logs": "Anybody's log, read, and readers of your own formats.",
    "replay": "One training step computed again, from numbers alone.",
    "reward": "What a reward pays for: reports on completions, placebos, and a trial before the training.",
    "runs": "Run folders and the results in them.",
    "watch": "Callbacks and checks that look at a running training and change nothing.",
    "generation": "When completions end, and a folder from which trainer and sampler both start.",
    "consistency": "Padding, positions, importance ratios, and reports on them.",
    "experiments": "Recipes, how they are trained, models and prompts by name, completions from each back end in one form.",
}
ENVIRONMENT = """## Environment variables

There is no configuration file. A few variables say where things are.

| variable | meaning | default |
|---|---|---|
| `WORKBENCH_RUNS` | folder of all runs | `runs/` next to `notebooks/`, or in the current folder |
| `WORKBENCH_NOTEBOOKS` | folder in which commands look for notebooks | `notebooks/` here, then the package's own |
| `WORKBENCH_BASELINES` | folder of further documented runs | none |
| `WORKBENCH_TOYS` | folder of other tiny models, made by `python -m tools.make_toys --out FOLDER` | the shipped ones |
| `WORKBENCH_CACHE` | where SmolLM2 and the locks of GPUs are | `~/.cache/workbench` |
| `WORKBENCH_WATCH` | `0` switches `attach_watch` off without an edit | on |
| `CUDA_VISIBLE_DEVICES` | the GPUs that runs may use; each run gets its own | all |
| `HF_TOKEN` | access token of the model hub; it is refused as a parameter: parameters are in every report | none |
| `OMP_NUM_THREADS` | threads of a run on a CPU, and of the kernels of `make lab` | 1 |
"""
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples)\b(.*):(.*)$")
_ENTRY = re.compile(r"^(\S[^:]*?): (.*)$")


def listed(stub: Path) -> dict[str, Path]:
    """The names that a stub gives, in its order -> the file of each."""
    found, order = {}, []
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            file = stub.parent.joinpath(*node.module.split(".")).with_suffix(".py")
            found |= {alias.name: file for alias in node.names}
        elif isinstance(node, ast.Assign):
            order = ast.literal_eval(node.value)
    return {name: found[name] for name in order}


def definition(file: Path, name: str) -> ast.ClassDef | ast.FunctionDef:
    """Where a module defines a name, also below an `if` or `try`."""
    (found, *_) = [n for n in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if getattr(n, "name", None) == name]
    return found


def signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    """A call as it is written: `name(a, b=1, *, c)`. Of a dataclass, its fields."""
    if isinstance(node, ast.FunctionDef):
        arguments = ast.unparse(_bare(node.args))
        return f"{node.name}({re.sub(r'^(self|cls)(, )?', '', arguments)})"
    made = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    if made:
        return signature(made[0]).replace("__init__", node.name, 1)
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    return (
        f"{node.name}({', '.join(f'{n.target.id}={ast.unparse(n.value)}' if n.value else n.target.id for n in fields)})"
    )


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Arguments without annotations: those are long, and the text under Args says what each is."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in every:
        if argument is not None:
            argument.annotation = None
    return arguments


def as_markdown(doc: str) -> str:
    """A docstring with sections as markdown.

    Example:
        >>> as_markdown("Adds.\\n\\nArgs:\\n    a: one,\\n        long.\\n")
        'Adds.\\n\\n**Args**\\n\\n- `a`: one, long.\\n'
    """
    lines: list[str] = []
    rows = [*doc.splitlines(), ""]
    while rows:
        row = rows.pop(0)
        section = _SECTION.match(row)
        if not section:
            lines.append(row)
            continue
        word, more, text = section.groups()
        body = []
        while rows and (not rows[0].strip() or rows[0].startswith("    ")):
            body.append(rows.pop(0)[4:])
        lines += [f"**{word}{more}**" + (f":{text}" if text.strip() else ""), ""]
        lines += _code(body) if word.startswith("Example") else _entries(body)
        lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _code(body: list[str]) -> list[str]:
    return ["```pycon", *"\n".join(body).strip("\n").splitlines(), "```"]


def _entries(body: list[str]) -> list[str]:
    """`name: text` with its indented rest as an item; what names nothing stays a paragraph."""
    items: list[str] = []
    for row in body:
        entry = _ENTRY.match(row)
        if entry and re.fullmatch(r"[\w*., ]+", entry[1]):
            items.append(f"- `{entry[1]}`: {entry[2]}")
        elif items and row.strip():
            items[-1] += f" {row.strip()}"
        elif row.strip():
            items.append(row.strip())
    return items


def entry(name: str, file: Path, level: int = 2) -> str:
    """Return the part of a page about one name, under a heading of a level."""
    node = definition(file, name)
    doc = ast.get_docstring(node) or ""
    call = signature(node)
    call = call if len(call) < 100 else re.sub(r"\((.*)\)$", lambda m: _broken(m[1]), call, flags=re.S)
    parts = [f"{'#' * level} {name}\n", f"```python\n{call}\n```\n", as_markdown(doc)]
    members = [n for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    rows = [(_member(n), (ast.get_docstring(n) or "").partition("\n\n")[0].replace("\n", " ")) for n in members]
    if isinstance(node, ast.ClassDef) and (rows := [row for row in rows if row[1]]):
        parts.append("\n".join(["**Members**", "", *[f"- `{call}`: {text}" for call, text in rows]]) + "\n")
    where = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return "\n".join([*parts, f"Defined in `{where}`.\n"])


def _broken(arguments: str) -> str:
    """Arguments in brackets, one on a line."""
    return "(\n" + "".join(f"    {part},\n" for part in _split(arguments)) + ")"


def _split(arguments: str) -> list[str]:
    """At commas outside of brackets and quotes.

    Example:
        >>> _split("a, b=(1, 2), *, c='x, y'")
        ['a', 'b=(1, 2)', '*', "c='x, y'"]
    """
    parts, depth, quote = [""], 0, ""
    for letter in arguments:
        quote = "" if letter == quote else quote or (letter if letter in "'\"" else "")
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _member(node: ast.FunctionDef) -> str:
    decorators = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
    return node.name if decorators & {"property", "cached_property"} else signature(node)


def api_pages() -> dict[str, str]:
    """Return path below docs/ -> page: the names at the top, and those of the parts."""
    top = listed(PACKAGE / "__init__.pyi")
    intro = [
        "# Python\n",
        WRITTEN,
        "`import workbench` loads no heavy library; a name is loaded when first used. Most scripts need only these names:",
        f"{_linked(top)}.\n",
        f"Names of the parts: {', '.join(f'[`workbench.{part}`](#workbench{part.lower()})' for part in PARTS)}.\n",
    ]
    parts: list[str] = []
    for part, about in PARTS.items():
        names = listed(PACKAGE / part / "__init__.pyi")
        here = {name: file for name, file in names.items() if name not in top}
        also = _linked(name for name in names if name in top)
        parts += [
            f"## workbench.{part}\n",
            f"{about}\n",
            f"{_linked(here)}." + (f" Also here: {also}." * bool(also)) + "\n",
        ]
        parts += [entry(name, file, 3) for name, file in here.items()]
    first = "\n".join([*intro, *[entry(name, file) for name, file in top.items()]])
    return {"reference/api.md": "\n".join([first, *parts])}


def _linked(names: Iterable[str]) -> str:
    links = [f"[`{name}`](#{name.lower()})" for name in names]
    return textwrap.fill(", ".join(links), 128, break_long_words=False, break_on_hyphens=False)


def cli_page() -> str:
    """The commands, from the parser and the texts of its help."""
    from workbench.cli import _parser
    from workbench.runs.run import runs_root

    (commands,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    lines = ["# Command line\n", WRITTEN.replace("docstrings", "the commands' own help")]
    lines += [
        "Exit codes: 0 success, 1 a run failed or something was found (each says what), 2 wrong input, 3 the command could "
        "not\nfinish (a full disk, an error of the workbench itself), 130 interrupted.\n"
    ]
    first: dict[str, str] = {}  # the line of an option -> the command that has it first
    for command, parser in commands.choices.items():
        example = (parser.epilog or "").removeprefix("Example: ")
        lines += [f"## workbench {command}\n", f"{parser.description}\n", f"    {example}\n"]
        repeated: dict[str, list[str]] = {}  # an earlier command -> the options that are the same here
        for group in parser._action_groups:
            told = []
            for action in group._group_actions:
                if "-h" in action.option_strings:
                    continue
                line = _option(action).replace(str(runs_root()), "runs/")
                earlier = first.setdefault(line, command)
                if earlier == command or not action.option_strings:
                    told.append(line)
                else:
                    repeated.setdefault(earlier, []).append(action.option_strings[-1])
            if told and group.title not in ("positional arguments", "options"):
                lines.append(f"{group.title[:1].upper()}{group.title[1:]}:\n")
            lines += [*told, ""] if told else []
        for earlier, options in repeated.items():
            lines.append(f"As in `workbench {earlier}`: {', '.join(f'`{option}`' for option in options)}\n")
    return "\n".join([*lines, ENVIRONMENT])


def _option(action: argparse.Action) -> str:
    """The line of an argument or option: how it is written, and its help."""
    name = action.metavar or "|".join(action.choices or ()) or action.dest.upper()
    options = ", ".join(action.option_strings)
    shown = f"{options} {name}" if options and action.nargs != 0 else options or name
    text = (action.help or "").replace("%%", "%")
    return f"- `{shown}`" + (f": {text}" if text else "")


def pages() -> dict[str, str]:
    """Path below docs/ -> page."""
    return api_pages() | {"reference/cli.md": cli_page()}


if __name__ == "__main__":
    for place, text in pages().items():
        (ROOT / "docs" / place).write_text(text, encoding="utf-8")
