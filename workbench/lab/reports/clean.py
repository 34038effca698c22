"""Makes text and foreign HTML inert: nothing runs, loads, covers or imitates the page, and nothing is invisible.

The one place where markup that a notebook, a model or a stranger wrote becomes part of a page.
"""

import base64
import html
import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator

import nh3
from markupsafe import Markup

from ...runs.text import labelled, visible
from .redact import changed_together

_SVG = "http://www.w3.org/2000/svg"
_NUMBERS = re.compile(r"[-+\d.,\seEMmLlHhVvCcSsQqTtAaZz%]*")

ET.register_namespace("", _SVG)
ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def hide_in_svg(source: str, hide: Callable[[str], str]) -> str:
    """The same drawing with `hide` applied to its texts, each as a reader sees it, and to its attributes; without comments."""
    try:
        root = ET.fromstring(source)
        for text in root.iter(f"{{{_SVG}}}text"):
            pieces = [(text, "text"), *((e, kind) for e in text.iter() if e is not text for kind in ("text", "tail"))]
            shown = changed_together([getattr(*piece) or "" for piece in pieces], hide)
            for (element, kind), hidden in zip(pieces, shown, strict=True):
                setattr(element, kind, hidden)
        for element in root.iter():  # all texts, those that nobody sees too
            element.text, element.tail = (value and hide(value) for value in (element.text, element.tail))
            for name, value in element.attrib.items():
                if not (_NUMBERS.fullmatch(value) or value.startswith("data:")):
                    element.set(name, hide(value))
        return ET.tostring(root, encoding="unicode")
    except ET.ParseError as error:
        raise ValueError(f"it is not well-formed XML ({error})") from None
    except RecursionError:
        raise ValueError("its elements are nested too deep") from None


MOST_MARKUP = 60_000  # characters of an output, without those of embedded images
MOST_IMAGE = 2_000_000  # characters of an image, as base64
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
_STYLES = set(  # how an element looks, within a frame that clips it: none takes a URL or moves a box out of its place
    re.findall(
        r"[\w-]+",
        """background-color border border-bottom border-collapse border-color border-left border-radius border-right
        border-spacing border-style border-top border-width color display flex-direction flex-wrap font-style font-weight gap
        height max-height max-width min-height min-width overflow-x padding padding-bottom padding-left padding-right
        padding-top text-align text-decoration vertical-align white-space width""",
    )
)
_TOKEN = re.compile(r'<(/?)([a-z0-9]+)((?:[^">]|"[^"]*")*)>|[^<]+')  # of the well-formed HTML that nh3 writes
_DATA = re.compile(r"(data:image/(?:png|jpeg|gif|webp|svg\+xml);base64,)([A-Za-z0-9+/=\n]+)")


def attribute(text: str) -> Markup:
    """Text for an attribute, between double quotes."""
    return Markup(html.escape(labelled(text), quote=True))


def shortened(text: str, most: int, where: str = "", change: Callable[[str], str] = str) -> str:
    """At most `most` characters of the text, its beginning and its end, with a note of how many were left out.

    `where` ends the note; `change` is applied before the text is cut, so that a secret on the cut is not shown in part.
    """
    if len(text) <= most:
        return change(text)
    head, tail, margin = most * 3 // 4, most - most * 3 // 4, 8000
    first = change(text[: head + margin])
    last = change(text[-tail - margin :])
    if len(text) > most + 2 * margin:  # else what is at the margin's end is whole
        first, last = first[: -margin // 4], last[margin // 4 :]
    return f"{first[:head]}\n[... {len(text) - most:,} of {len(text):,} characters left out{where} ...]\n{last[-tail:]}"


def clean_html(source: str, change: Callable[[str], str] = str, where: str = "") -> Markup:
    """HTML of a notebook's output or markdown, with only harmless elements and attributes, in a frame of its own.

    The frame clips what is in it and has a line at its side, so that nothing in it covers the page or passes for it. `change`
    is applied to every attribute and every stretch of text that a reader sees as one, before it is escaped; `where` ends the
    note on what is left out.

    Example:
        >>> print(clean_html("<b onclick='x()'>1 < 2<script>x()</script>"))
        <div class="foreign"><b>1 &lt; 2</b></div>
    """

    def attribute_value(tag: str, name: str, value: str) -> str | None:
        if (tag, name) in (("img", "src"), ("a", "rel")):
            return value
        if name == "href" and not re.match(r"(?:https?://|#)[^\s]", value):
            return None
        return labelled(change(value)) or None

    images: list[str] = []

    def kept(match: re.Match) -> str:
        images.append("".join(match[0].split()))
        return f"data:image/png;base64,{len(images) - 1}"

    source = _DATA.sub(kept, source)
    inert = nh3.clean(
        source[:MOST_MARKUP].encode("utf-8", "backslashreplace").decode(),
        tags=_TAGS,
        clean_content_tags=_LEFT_OUT,
        attributes=_ATTRIBUTES,
        attribute_filter=attribute_value,
        filter_style_properties=_STYLES,
        link_rel="noreferrer",
        url_schemes={"http", "https", "data"},
    )
    if len(inert) > 10 * MOST_MARKUP:  # a parser opens each `<b>` that is not closed again in every block
        return Markup('<p class="note">Left out: the markup of this output grows when it is read{}.</p>').format(where)
    pieces = _rewritten(inert, change, lambda attributes: _image(attributes, images, change, where))
    left = len(source) - MOST_MARKUP
    note = f"{left:,} of {len(source):,} characters left out{where}."
    return Markup('<div class="foreign">{}</div>{}').format(
        Markup("".join(pieces)), Markup('<p class="note">{}</p>').format(note) if left > 0 else ""
    )


def _rewritten(inert: str, change: Callable[[str], str], image: Callable[[dict[str, str]], str]) -> Iterator[str]:
    """The pieces of well-formed HTML: changed text, lower headings, tables that scroll, images or their notes."""
    before = ""
    for inline, group in itertools.groupby(_TOKEN.finditer(inert), key=lambda t: bool(_INLINE.fullmatch(t[2] or ""))):
        if inline:
            stretch = list(group)
            yield from _changed(stretch, before, change)
            before = "".join(html.unescape(t[0]) for t in stretch if not t[2]).strip() or before
            continue
        for source, end, tag, attributes in ((t[0], *t.groups()) for t in group):
            if tag == "img":
                yield image(dict(re.findall(r'(\w+)="([^"]*)"', attributes)))
            elif tag == "table":
                yield "</table></div>" if end else f'<div class="scroll">{source}'
            else:
                yield f"<{end}{_HEADINGS.get(tag, tag)}{attributes}>"


def _changed(stretch: list[re.Match], before: str, change: Callable[[str], str]) -> Iterator[str]:
    """Text and inline elements that a reader sees as one text; `before` is the text of the block before them."""
    texts = [html.unescape(token[0]) for token in stretch if not token[2]]
    shown = iter(changed_together(texts, change, before) if texts else [])
    for token in stretch:
        yield token[0] if token[2] else visible(next(shown))


def _image(attributes: dict[str, str], images: list[str], change: Callable[[str], str], where: str) -> str:
    """An embedded image of `images`, to which `src` refers by number, or a note in its place."""
    alt, source = attributes.get("alt") or "no description", attributes.get("src", "")
    number = re.fullmatch(r"data:image/png;base64,(\d{1,9})", source)
    if not number or int(number[1]) >= len(images):
        return f'<span class="note">[image that is not embedded: {alt}]</span>'
    data = images[int(number[1])]
    if len(data) > MOST_IMAGE:
        return f'<span class="note">[image of {len(data):,} characters left out{html.escape(where)}: {alt}]</span>'
    if data.startswith("data:image/png"):
        data = data.partition(",")[0] + "," + bare_png(data.partition(",")[2])
    if data.startswith("data:image/svg"):
        try:
            drawing = hide_in_svg(base64.b64decode(data.partition(",")[2]).decode("utf-8", "replace"), change)
        except ValueError as error:
            return f'<span class="note">[drawing that is not shown, {visible(str(error))}: {alt}]</span>'
        data = data.partition(",")[0] + "," + base64.b64encode(drawing.encode()).decode()
    return f'<img alt="{alt}" src="{data}">'


def bare_png(data: str) -> str:
    """A picture without what no reader sees of it: comments, the time, the camera; what is no PNG stays as it is."""
    try:
        whole = base64.b64decode(data, validate=True)
    except ValueError:
        return data
    kept, at = whole[:8], 8
    while whole.startswith(b"\x89PNG\r\n\x1a\n") and at + 12 <= len(whole):
        end = at + 12 + int.from_bytes(whole[at : at + 4], "big")
        if whole[at + 4 : at + 8] not in (b"tEXt", b"iTXt", b"zTXt", b"eXIf", b"tIME"):
            kept += whole[at:end]
        at = end
    return base64.b64encode(kept).decode() if at == len(whole) else data
