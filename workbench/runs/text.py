"""Text that a model or a stranger wrote, made safe to show: no character commands the terminal, reorders or hides others."""

import html
import re
import unicodedata
from collections.abc import Iterable

from markupsafe import Markup

# Control, bidirectional and invisible characters and lone surrogates; not the joiners that scripts and emoji need.
UNSEEN = re.compile(
    "([\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f])\\1*"
)

# What colours a terminal's text, or moves its cursor.
ESCAPES = re.compile(r"\x1b\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|\x1b\[[0-?]{0,40}[ -/]{0,9}[@-~]")

_UNUSUAL = re.compile(r"[^\n\t\x20-\x7e]+")


def code_point(characters: str) -> str:
    """`U+0008`, or `U+0008 x3` for three of them in a row."""
    times = f" x{len(characters)}" if len(characters) > 1 else ""
    return f"U+{ord(characters[0]):04X}{times}"


def labelled(text: str) -> str:
    """Each character that would control, reorder or hide text as its code.

    Example:
        >>> labelled("a < b\\x08\\x08")
        'a < b[U+0008 x2]'
    """
    return UNSEEN.sub(lambda m: f"[{code_point(m[0])}]", text)


def visible(text: str, most: int | None = None) -> Markup:
    """Text as HTML; each character that would control, reorder or hide text is shown as a label such as `U+202E`.

    Example:
        >>> print(visible("a < b\\x08"))
        a &lt; b<mark class="unseen" title="control character">U+0008</mark>
        >>> print(visible("abc", most=2))
        ab ... (3 characters)
    """
    more = f" ... ({len(text)} characters)" if most is not None and len(text) > most else ""
    return Markup(UNSEEN.sub(_label, html.escape(text[:most].replace("\r\n", "\n"), quote=True)) + more)


def _label(match: re.Match) -> str:
    name = unicodedata.name(match[1], "control character").lower()
    return f'<mark class="unseen" title="{name}">{code_point(match[0])}</mark>'


def printable(text: str) -> str:
    """Text that cannot command a terminal, whatever a model wrote: colours are dropped, other control characters shown.

    Example:
        >>> printable("\\x1b[31mred\\x1b[0m \\x07 é")
        'red \\\\x07 é'
    """
    if text.isascii() and text.isprintable():
        return text
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNUSUAL.sub(lambda m: "".join(c if c.isprintable() else _escaped(c) for c in m[0]), text)


def one_line(text: str) -> str:
    """The same in one line, for names and errors that a stranger wrote: a line of such a text could pass for one of ours.

    Example:
        >>> one_line("a\\nb")
        'a\\\\nb'
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def html_table(rows: Iterable[Iterable[str]], head: Iterable[str], caption: str = "") -> str:
    """A table of finished HTML cells, aligned left one by one: JupyterLab aligns cells right, and drops the style sheets of a
    notebook that it does not trust.

    Example:
        >>> html_table([["1"]], ["a"]).count('style="text-align:left"')
        2
    """
    heads = "".join(f'<th scope="col" style="text-align:left">{h}</th>' for h in head)
    body = "".join("<tr>" + "".join(f'<td style="text-align:left">{c}</td>' for c in row) + "</tr>" for row in rows)
    title = f'<caption style="text-align:left">{caption}</caption>' if caption else ""
    return f'<table style="margin-left:0">{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
