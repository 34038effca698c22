"""A copy of an executed notebook without what must not be shared, for the outputs that are committed."""

import html
from collections.abc import Callable

from workbench.lab.reports.clean import bare_png, clean_html, hide_in_svg
from workbench.lab.reports.outputs import joined_streams, terminal_text, text_of
from workbench.runs.secrets import map_text


def redacted_notebook(notebook: dict, hide: Callable[[str], str]) -> dict:
    """The same notebook with `hide` applied to every text that a reader sees, as the reader sees it.

    HTML is rebuilt from harmless elements. Pictures stay: nothing is read in them.
    """
    cells = [_cell(cell, hide) for cell in notebook["cells"]]
    return map_text({k: v for k, v in notebook.items() if k != "cells"}, hide) | {"cells": cells}


def _cell(cell: dict, hide: Callable[[str], str]) -> dict:
    rest = {k: v for k, v in cell.items() if k not in ("source", "outputs", "attachments")}
    copy = map_text(rest, hide) | {"source": hide(text_of(cell.get("source")))}
    if "outputs" in cell:
        copy["outputs"] = [_output(output, hide) for output in joined_streams(cell["outputs"])]
    return copy


def _output(output: dict, hide: Callable[[str], str]) -> dict:
    copy = {
        k: v if k in ("output_type", "execution_count") else map_text(v, hide) for k, v in output.items() if k != "data"
    }
    if "text" in output:
        copy["text"] = hide(terminal_text(text_of(output["text"])))
    if "traceback" in output:
        copy["traceback"] = hide(terminal_text("\n".join(map(text_of, output["traceback"])))).split("\n")
    if "data" in output:
        copy["data"] = {str(mime): _shown(str(mime), value, hide) for mime, value in output["data"].items()}
    return copy


def _shown(mime: str, value, hide: Callable[[str], str]):
    if mime == "text/html":
        return str(clean_html(text_of(value), hide))
    if mime == "image/svg+xml":
        try:
            return hide_in_svg(text_of(value), hide)
        except ValueError as error:
            return f'<svg xmlns="http://www.w3.org/2000/svg"><desc>left out: {html.escape(str(error))}</desc></svg>'
    if mime == "image/png":
        return bare_png("".join(text_of(value).split()))
    if mime.startswith("image/"):
        return value
    return hide(terminal_text(text_of(value))) if isinstance(value, str | list) else map_text(value, hide)
