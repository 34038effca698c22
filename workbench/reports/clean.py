"""Makes text and foreign HTML inert: nothing runs, loads, covers or reorders its neighbours, and nothing is invisible."""

import html
import re
import unicodedata
from collections.abc import Callable, Iterator

import nh3
from markupsafe import Markup

from ..runs.text import UNSEEN, code_point, labelled

_ACCENT = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED = re.compile(f"({_ACCENT}{{4}})({_ACCENT}+)")
_TAGS = nh3.ALLOWED_TAGS - {"nav"} | {"tfoot"}  # the page's own nav is not printed
_LEFT_OUT = nh3.CLEAN_CONTENT_TAGS | {"iframe", "math", "noscript", "object", "select", "svg", "template", "textarea"}
_ATTRIBUTES = {
    "*": {"abbr", "aria-label", "class", "colspan", "lang", "role", "rowspan", "scope", "start", "style", "title"},
    "a": {"href"},
    "img": {"alt", "src"},
}
_TOKEN = re.compile(r'<(/?)([a-z0-9]+)((?:[^">]|"[^"]*")*)>|[^<]+')  # of the well-formed HTML that nh3 writes
_STYLES = re.compile(
    r"(?:color|background(?:-color)?|text-align|text-decoration|font-weight|font-style|white-space|vertical-align|opacity"
    r"|(?:max-|min-)?(?:width|height)|padding(?:-\w+)?|border(?:-[\w-]+)?|display|gap|flex(?:-\w+)?|overflow-x|outline)"
)
_STYLE_VALUE = re.compile(r"[\w\s.%#,()+/-]{1,80}")
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/=\s]+")
_MOST_ROWS = 200


def visible(text: str) -> Markup:
    """Text as HTML; each character that would control, reorder or hide text is shown as a label such as `U+202E`.

    Accents stacked so high that they would run through the lines above and below are counted instead.

    Example:
        >>> print(visible("a < b\\x08"))
        a &lt; b<span class="unseen" title="control character">U+0008</span>
    """
    text = html.escape(text.replace("\r\n", "\n"), quote=True)
    text = _STACKED.sub(lambda m: f'{m[1]}<span class="unseen">+{len(m[2])} accents</span>', text)
    return Markup(UNSEEN.sub(_label, text))


def _label(match: re.Match) -> str:
    name = unicodedata.name(match[1], "control character").lower()
    return f'<span class="unseen" title="{name}">{code_point(match[0])}</span>'


def attribute(text: str) -> Markup:
    """Text for an attribute, between double quotes."""
    return Markup(html.escape(labelled(text), quote=True))


def shortened(text: str, most: int, where: str = "", change: Callable[[str], str] = str) -> str:
    """At most `most` characters of the text, its beginning and its end, with a note of how many were left out.

    Args:
        text: of any length; of a long one only what is shown, and a margin, is looked at.
        most: characters to show.
        where: ends the note.
        change: applied to what is shown, before it is cut: a secret on the cut is not shown in part.

    Example:
        >>> print(shortened("abcdefgh", 4))
        abc
        [... 4 of 8 characters left out ...]
        h
    """
    if len(text) <= most:
        return change(text)
    head, tail, margin = most * 3 // 4, most - most * 3 // 4, 8000
    first = change(text[: head + margin])
    last = change(text[-tail - margin :])
    if len(text) > most + 2 * margin:  # else what is at the margin's end is whole
        first, last = first[: -margin // 4], last[margin // 4 :]
    return f"{first[:head]}\n[... {len(text) - most:,} of {len(text):,} characters left out{where} ...]\n{last[-tail:]}"


def clean_html(
    source: str, change: Callable[[str], str] = str, image: Callable[[str], str] = lambda data: ""
) -> Markup:
    """HTML of a notebook's output or markdown, with only harmless elements and attributes.

    Args:
        source: any text; it is read as a browser reads it.
        change: applied to every text and attribute before it is escaped.
        image: for an embedded image: a note to show in its place, or "" to keep it.

    Example:
        >>> print(clean_html("<b onclick='x()'>1 < 2<script>x()</script>"))
        <b>1 &lt; 2</b>
    """

    def attribute_value(tag: str, name: str, value: str) -> str | None:
        if (tag, name) in (("img", "src"), ("a", "rel")):
            return value
        if name == "href" and not re.match(r"(?:https?://|#)[^\s]", value):
            return None
        if name == "style":
            value = "; ".join(rule for rule in map(str.strip, value.split(";")) if _harmless(rule))
        return labelled(change(value)) or None

    inert = nh3.clean(
        source.encode("utf-8", "backslashreplace").decode(),
        tags=_TAGS,
        clean_content_tags=_LEFT_OUT,
        attributes=_ATTRIBUTES,
        attribute_filter=attribute_value,
        link_rel="noreferrer",
        url_schemes={"http", "https", "data"},
    )
    return Markup("".join(_rewritten(inert, change, image)))


def _rewritten(inert: str, change: Callable[[str], str], image: Callable[[str], str]) -> Iterator[str]:
    """The pieces of well-formed HTML: changed text, tables that scroll and end after `_MOST_ROWS`, images or their notes."""
    rows: list[int] = []  # of each open table, so far
    nested = 0  # rows open within a row that is left out, with that one
    for token in _TOKEN.finditer(inert):
        end, tag, attributes = token.groups()
        if tag == "tr" and not end and not nested:
            rows[-1] += 1
        if nested or (tag == "tr" and not end and rows[-1] > _MOST_ROWS):
            nested += (tag == "tr") * (-1 if end else 1)
        elif not tag:
            yield visible(change(html.unescape(token[0])))
        elif tag == "img":
            yield _image(dict(re.findall(r'(\w+)="([^"]*)"', attributes)), image)
        elif tag != "table":
            yield token[0]
        elif not end:
            rows.append(0)
            yield f'<div class="scroll">{token[0]}'
        else:
            yield "</table></div>"
            if (count := rows.pop()) > _MOST_ROWS:
                yield f'<p class="note">{count - _MOST_ROWS:,} of {count:,} rows left out.</p>'


def _image(attributes: dict[str, str], image: Callable[[str], str]) -> str:
    alt, source = attributes.get("alt") or "no description", attributes.get("src", "")
    if not _IMAGE.fullmatch(source):
        return f'<span class="note">[image that is not embedded: {alt}]</span>'
    if note := image(source):
        return f'<span class="note">[{visible(note)}: {alt}]</span>'
    return f'<img alt="{alt}" src="{source}">'


def _harmless(rule: str) -> bool:
    name, _, value = rule.partition(":")
    return bool(
        _STYLES.fullmatch(name.strip().lower()) and _STYLE_VALUE.fullmatch(value) and "url" not in value.lower()
    )
