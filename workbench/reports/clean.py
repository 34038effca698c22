"""Makes text and foreign HTML inert: nothing runs, loads, covers or imitates the page, and nothing is invisible.

The one place where markup that a notebook, a model or a stranger wrote becomes part of a page.
"""

import base64
import binascii
import html
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator

import nh3
from markupsafe import Markup

from ..runs.text import UNSEEN, code_point, labelled
from .redact import changed_together
from .styles import harmless_style
from .svg import clean_svg

_ACCENT = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
STACKED = re.compile(f"({_ACCENT}{{4}})({_ACCENT}+)")
MOST_MARKUP = (
    60_000  # characters, without those of embedded images: a parser needs more than linear time for nested tags
)
_MOST_ROWS = 200
_TAGS = nh3.ALLOWED_TAGS - {"nav"} | {"tfoot"}  # the page's own nav is not printed
_LEFT_OUT = nh3.CLEAN_CONTENT_TAGS | {"iframe", "math", "noscript", "object", "select", "svg", "template", "textarea"}
_ATTRIBUTES = {  # no class, id or role: with ours, foreign text would look and read like the page's own
    "*": {"abbr", "aria-label", "colspan", "lang", "rowspan", "scope", "start", "style", "title"},
    "a": {"href"},
    "img": {"alt", "src"},
}
_HEADINGS = dict.fromkeys(("h1", "h2", "h3"), "h4")  # the first three levels are the page's own
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|cite|code|data|del|dfn|em|i|ins|kbd|mark|q|rp|rt|ruby|s|samp|small|span|strike|strong|sub|sup"
    "|time|tt|u|var|wbr|"
)
# A parser opens each of these again in every block until it is closed, and again for each set of attributes: 100 kB of them
# would become gigabytes. Without attributes it keeps three of a kind.
_REOPENED = re.compile(r"(?i)<(b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)[\s/][^>]*>?")
_TOKEN = re.compile(r'<(/?)([a-z0-9]+)((?:[^">]|"[^"]*")*)>|[^<]+')  # of the well-formed HTML that nh3 writes
_DATA = re.compile(r"(data:image/(?:png|jpeg|gif|webp|svg\+xml);base64,)([A-Za-z0-9+/=\n]+)")


def visible(text: str) -> Markup:
    """Text as HTML; each character that would control, reorder or hide text is shown as a label such as `U+202E`.

    Accents stacked so high that they would run through the lines above and below are counted instead.

    Example:
        >>> print(visible("a < b\\x08"))
        a &lt; b<span class="unseen" title="control character">U+0008</span>
    """
    text = html.escape(text.replace("\r\n", "\n"), quote=True)
    text = STACKED.sub(lambda m: f'{m[1]}<span class="unseen">+{len(m[2])} accents</span>', text)
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
    """HTML of a notebook's output or markdown, with only harmless elements and attributes, in a frame of its own.

    The frame clips what is in it and has a line at its side, so that nothing in it covers the page or passes for it.

    Args:
        source: any text; it is read as a browser reads it, up to `MOST_MARKUP` characters.
        change: applied to every attribute and every stretch of text that a reader sees as one, before it is escaped.
        image: for an embedded image: a note to show in its place, or "" to keep it.

    Example:
        >>> print(clean_html("<b onclick='x()'>1 < 2<script>x()</script>"))
        <div class="foreign"><b>1 &lt; 2</b></div>
    """

    def attribute_value(tag: str, name: str, value: str) -> str | None:
        if (tag, name) in (("img", "src"), ("a", "rel")):
            return value
        if name == "href" and not re.match(r"(?:https?://|#)[^\s]", value):
            return None
        if name == "style":
            value = harmless_style(value)
        return labelled(change(value)) or None

    images: list[str] = []

    def kept(match: re.Match) -> str:
        images.append("".join(match[0].split()))
        return f"data:image/png;base64,{len(images) - 1}"

    source = _DATA.sub(kept, source)
    inert = nh3.clean(
        _REOPENED.sub(r"<\1>", source[:MOST_MARKUP]).encode("utf-8", "backslashreplace").decode(),
        tags=_TAGS,
        clean_content_tags=_LEFT_OUT,
        attributes=_ATTRIBUTES,
        attribute_filter=attribute_value,
        link_rel="noreferrer",
        url_schemes={"http", "https", "data"},
    )
    left = len(source) - MOST_MARKUP
    tokens = _tokens(inert, cut=left > 0)
    pieces = _rewritten(tokens, change, lambda attributes: _image(attributes, images, change, image))
    note = f'<p class="note">{left:,} of {len(source):,} characters left out.</p>' if left > 0 else ""
    return Markup(f'<div class="foreign">{"".join(pieces)}</div>{note}')


def element_span(cleaned: str, tag: str) -> tuple[int, int] | None:
    """Where the first element of a kind begins and ends in HTML of `clean_html`, with what is nested in it; None without one.

    Example:
        >>> element_span("<p>a</p><figure>b<figure>c</figure></figure>d", "figure")
        (8, 44)
    """
    start, depth = 0, 0
    for match in _TOKEN.finditer(cleaned):
        if match[2] == tag:
            start = start if depth else match.start()
            depth += -1 if match[1] else 1
            if depth == 0:
                return start, match.end()
    return None


_Token = tuple[str, str, str, str]  # as written; "/" of an end tag; its name, "" for text; its attributes


def _rewritten(
    tokens: Iterator[_Token], change: Callable[[str], str], image: Callable[[dict[str, str]], str]
) -> Iterator[str]:
    """The pieces of well-formed HTML: changed text, lower headings, tables that scroll, images or their notes."""
    before = ""
    for inline, group in itertools.groupby(tokens, key=lambda t: bool(_INLINE.fullmatch(t[2]))):
        if inline:
            stretch = list(group)
            yield from _changed(stretch, before, change)
            before = "".join(html.unescape(source) for source, _, tag, _ in stretch if not tag).strip() or before
            continue
        for source, end, tag, attributes in group:
            if tag == "img":
                yield image(dict(re.findall(r'(\w+)="([^"]*)"', attributes)))
            elif tag == "table":
                yield "</table></div>" if end else f'<div class="scroll">{source}'
            elif tag == "note":
                yield source
            else:
                yield f"<{end}{_HEADINGS.get(tag, tag)}{attributes}>"


def _tokens(inert: str, cut: bool) -> Iterator[_Token]:
    """Of well-formed HTML; of a table `_MOST_ROWS` rows, and a note of how many more there are, or were before a cut."""
    rows: list[int] = []  # of each open table, so far
    nested = 0  # rows open within a row that is left out, with that one
    for match in _TOKEN.finditer(inert):
        end, tag, attributes = (group or "" for group in match.groups())
        if tag == "tr" and not end and not nested:
            rows[-1] += 1
        if nested or (tag == "tr" and not end and rows[-1] > _MOST_ROWS):
            nested += (tag == "tr") * (-1 if end else 1)
            continue
        yield match[0], end, tag, attributes
        if tag == "table" and not end:
            rows.append(0)
        elif tag == "table" and (count := rows.pop()) > _MOST_ROWS:
            told = f"{'At least ' if cut else ''}{count - _MOST_ROWS:,} of {count:,} rows left out."
            yield f'<p class="note">{told}</p>', "", "note", ""


def _changed(stretch: list[_Token], before: str, change: Callable[[str], str]) -> Iterator[str]:
    """Text and inline elements that a reader sees as one text; `before` is the text of the block before them."""
    texts = [html.unescape(source) for source, _, tag, _ in stretch if not tag]
    shown = iter(changed_together(texts, change, before) if texts else [])
    for source, _, tag, _ in stretch:
        yield source if tag else visible(next(shown))


def _image(
    attributes: dict[str, str], images: list[str], change: Callable[[str], str], image: Callable[[str], str]
) -> str:
    """An embedded image, or a note in its place.

    Args:
        attributes: of the element, escaped.
        images: those of the source, to which `src` refers by number.
        change: for the text in a drawing.
        image: as for `clean_html`.
    """
    alt, source = attributes.get("alt") or "no description", attributes.get("src", "")
    number = re.fullmatch(r"data:image/png;base64,(\d{1,9})", source)
    if not number or int(number[1]) >= len(images):
        return f'<span class="note">[image that is not embedded: {alt}]</span>'
    data = images[int(number[1])]
    if data.startswith("data:image/svg"):
        try:
            drawing = clean_svg(base64.b64decode(data.partition(",")[2]).decode("utf-8", "replace"), change)
        except (ValueError, binascii.Error) as error:
            return f'<span class="note">[drawing that is not shown, {visible(str(error))}: {alt}]</span>'
        data = data.partition(",")[0] + "," + base64.b64encode(drawing.encode()).decode()
    if note := image(data):
        return f'<span class="note">[{visible(note)}: {alt}]</span>'
    return f'<img alt="{alt}" src="{data}">'
