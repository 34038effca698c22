"""The writer of generated pages: Markdown tables, and a whole file."""

from collections.abc import Iterable
from pathlib import Path

from workbench.runs.files import write_text


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table.

    Example:
        >>> table(["case", "rate"], [["a", "5.0"]])
        ['| case | rate |', '|---|---|', '| a | 5.0 |']
    """
    head, *rows = [list(head), *rows]
    return [_line(head), "|---" * len(head) + "|", *map(_line, rows)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_page(path: Path, lines: Iterable[str]) -> None:
    """Write a page whole, or leave the old one."""
    write_text(path, "\n".join(lines))
