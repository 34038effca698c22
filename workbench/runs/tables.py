"""Tables of a notebook as HTML, by one rule: text stands left, numbers stand right.

JupyterLab aligns every cell right, which is hard to read where a cell holds a sentence. The style is in each cell: JupyterLab
drops the style sheets of a notebook that it does not trust.
"""

import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line opens runs too, and loads no pandas
    import pandas as pd

_LEFT = ' style="text-align:left"'
_ROW = re.compile(r"<tr.*?</tr>", re.DOTALL)


def frame_html(frame: "pd.DataFrame", **options: Any) -> str:
    """A data frame as HTML in which the columns of text are aligned left.

    Args:
        frame: of any shape.
        options: those of `DataFrame.to_html`.

    Example:
        >>> import pandas as pd
        >>> page = frame_html(pd.DataFrame({"n": [1], "what to do": ["Train more steps."]}), index=False)
        >>> '<td>1</td>' in page, '<td style="text-align:left">Train more steps.</td>' in page
        (True, True)
    """
    return _with_text_left(frame.to_html(**options), frame)


def _with_text_left(page: str, frame: "pd.DataFrame") -> str:
    text = [_holds_text(frame.iloc[:, n]) for n in range(frame.shape[1])]
    return _ROW.sub(lambda row: _aligned(row[0], text), page)


def _holds_text(column: "pd.Series") -> bool:
    return column.dtype.kind not in "biufc" and any(isinstance(value, str) for value in column)


def _aligned(row: str, text: list[bool]) -> str:
    """A row of the table; one that does not have a cell for each column, such as that of a hidden column, stays as it is."""
    names, cells = row.count("<th>"), row.count("<td>")
    index = names - len(text) if cells == 0 else names
    if index < 0 or cells not in (0, len(text)):
        return row
    left = iter([True] * index + text)  # the index stands left
    return re.sub(r"<t([hd])>", lambda tag: f"<t{tag[1]}{_LEFT if next(left) else ''}>", row)


def show_text_left() -> None:
    """In a notebook's kernel, show each data frame as `frame_html` does. Elsewhere nothing changes."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        html = shell.display_formatter.formatters["text/html"]
        for module in ("pandas", "pandas.core.frame"):  # what a release of pandas calls its own
            html.for_type_by_name(module, "DataFrame", _shown)


def _shown(frame: "pd.DataFrame") -> str | None:
    page = frame._repr_html_()  # with the rows and columns that pandas shows; None where it shows text alone
    return page and _with_text_left(page, frame)
