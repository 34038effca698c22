"""What a notebook is made of: how much of its code is bookkeeping, what it imports, whether its training is in the open.

python tests/helpers/notebook_shape.py      prints a row for each notebook
"""

import ast
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
IN_THE_OPEN = (r"(?<!\w)(GRPO|RLOO|OnlineDPO)Trainer\(", r"PPOTrainer\(", r"\.train\(", "generation_kwargs")
BOOKKEEPING = {"open_run", "save_result", "show_results", "Result", "params", "results", "numbers"}
# The package and the parts of it that the reference describes.
PUBLIC = {"workbench", *(f"workbench.{stub.parent.name}" for stub in (ROOT / "workbench").glob("*/__init__.pyi"))}
# Whose imports need no library of ours to be understood.
FIELD = {"accelerate", "datasets", "IPython", "ipywidgets", "matplotlib", "numpy", "pandas", "peft", "scipy", "torch"}
FIELD |= {"transformers", "trl", "vllm"}


def code_cells(path: Path) -> list:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def code_lines(source: str) -> int:
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in source.splitlines())


def bookkeeping_lines(cell) -> int:
    """Lines of parameters, results and saving."""
    if "parameters" in cell.metadata.get("tags", []):
        return code_lines(cell.source)
    lines = 0
    for statement in ast.parse(cell.source).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        if names & BOOKKEEPING:
            lines += statement.end_lineno - statement.lineno + 1
    return lines


def other_imports(cells: list) -> set[str]:
    """Modules imported from that are neither public parts of `workbench` nor the field's or Python's."""
    found: set[str] = set()
    for cell in cells:
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                found.add(node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    known = FIELD | set(sys.stdlib_module_names)
    return {module for module in found if module not in PUBLIC and module.partition(".")[0] not in known}


def shape(path: Path) -> dict:
    """Of one notebook: code cells, code lines, share of bookkeeping, other imports, and what stands in the open."""
    cells = code_cells(path)
    source, lines = "\n".join(cell.source for cell in cells), sum(code_lines(cell.source) for cell in cells)
    return {
        "code cells": len(cells),
        "code lines": lines,
        "bookkeeping": sum(map(bookkeeping_lines, cells)) / lines,
        "other imports": sorted(other_imports(cells)),
        "in the open": [len(re.findall(pattern, source)) for pattern in IN_THE_OPEN],
    }


if __name__ == "__main__":
    print("GRPOTrainer( etc., PPOTrainer(, .train(, generation_kwargs: how often each stands in a code cell")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        of = shape(path)
        about = f"{of['code cells']:3} cells {of['code lines']:4} lines {of['bookkeeping']:4.0%} bookkeeping"
        print(f"{path.stem:32} {about}  {of['in the open']}  {', '.join(of['other imports'])}")
