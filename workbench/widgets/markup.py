"""HTML that the views share: states as text, tables as JupyterLab draws them."""

from ..runs.text import visible

_MARKS = dict.fromkeys(("ready", "trained", "done"), "\u2713")
_MARKS |= {"refused": "!", "failed": "\u2717", "interrupted": "\u2016"}


def status_line(state: str, text: str) -> str:
    """A state as a sign, a word and a sentence; a screen reader reads it out when it changes."""
    weight = "font-weight:bold" if state in ("refused", "failed") else ""
    mark = _MARKS.get(state, "\u2022")
    return f'<p role="status" aria-live="polite" style="{weight}">{mark} {state}: {visible(text, 1000)}</p>'


def as_jupyter_output(inner: str) -> str:
    """HTML marked as a cell's output; without the mark JupyterLab draws tables inside a widget without its style."""
    return f'<div class="jp-RenderedHTMLCommon" style="padding-right:0">{inner}</div>'


def table(rows: list[list[str]], head: list[str], caption: str) -> str:
    """A table of finished HTML cells."""
    heads = "".join(f'<th scope="col" style="text-align:left">{h}</th>' for h in head)
    body = "".join("<tr>" + "".join(f'<td style="text-align:left">{c}</td>' for c in row) + "</tr>" for row in rows)
    title = f'<caption style="text-align:left">{caption}</caption>'
    return f'<table style="margin-left:0">{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
