"""Makes text and foreign HTML inert: nothing runs, loads, covers or reorders its neighbours, and nothing is invisible."""

import html
import re
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser

from markupsafe import Markup

# Control, bidirectional and invisible characters and lone surrogates; not the joiners that scripts and emoji need.
_UNSEEN = re.compile(
    "([\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f])\\1*"
)
_ACCENT = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED = re.compile(f"({_ACCENT}{{4}})({_ACCENT}+)")
_TAGS = (
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i img "
    "ins kbd li mark ol p pre s samp small span strong sub summary sup table tbody td tfoot th thead tr tt u ul var"
)
_TAGS = frozenset(_TAGS.split())
_VOID = ("br", "col", "hr", "img")
_SKIPPED = (
    "script",
    "style",
    "template",
    "title",
    "textarea",
    "iframe",
    "noscript",
    "object",
    "svg",
    "math",
    "select",
    "head",
)
_ATTRIBUTES = ("abbr", "aria-label", "class", "colspan", "lang", "role", "rowspan", "scope", "start", "style", "title")
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
    """
    text = html.escape(text.replace("\r\n", "\n"), quote=True)
    text = _STACKED.sub(lambda m: f'{m[1]}<span class="unseen">+{len(m[2])} accents</span>', text)
    return Markup(_UNSEEN.sub(_label, text))


def _label(match: re.Match) -> str:
    character, times = match[1], len(match[0])
    name = unicodedata.name(character, "control character").lower()
    count = f" &times;{times}" if times > 1 else ""
    return f'<span class="unseen" title="{name}">{_code(character)}{count}</span>'


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"


def attribute(text: str) -> Markup:
    """Text for an attribute, between double quotes."""
    return Markup(_UNSEEN.sub(lambda m: f"[{_code(m[1])}]", html.escape(text, quote=True)))


def shortened(text: str, most: int, where: str = "", change: Callable[[str], str] = str) -> str:
    """At most `most` characters of the text, its beginning and its end, with a note of how many were left out.

    Args:
        text: of any length; of a long one only what is shown, and a margin, is looked at.
        most: characters to show.
        where: ends the note.
        change: applied to what is shown, before it is cut: a secret on the cut is not shown in part.
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
    """HTML of a notebook's output or markdown, rebuilt from a list of harmless elements and attributes.

    Args:
        source: any text; what stands open at its end is closed, what it closes without having opened is ignored.
        change: applied to every text and attribute before it is escaped.
        image: for an embedded image: a note to show in its place, or "" to keep it.
    """
    cleaner = _Cleaner(change, image)
    cleaner.feed(source)
    cleaner.close()
    return cleaner.result()


class _Cleaner(HTMLParser):
    """What it emits it has written itself, so a browser cannot read it otherwise than this parser did."""

    def __init__(self, change, image):
        super().__init__(convert_charrefs=True)
        self.change, self.image = change, image
        self.out: list[str] = []
        self.open: list[str] = []
        self.rows: list[int] = []  # of each open table, so far
        self.skipping = ""  # an element left out with everything in it, or a table's row beyond the last
        self.depth = 0

    def handle_starttag(self, tag, attrs):
        if self.skipping:
            self.depth += tag == self.skipping
            return
        if tag in _SKIPPED:
            self.skipping, self.depth = tag, 1
        elif tag == "table":
            self.rows.append(0)
            self.out.append('<div class="scroll">')
            self._start(tag, attrs)
        elif tag == "tr" and self.rows:
            self.rows[-1] += 1
            if self.rows[-1] > _MOST_ROWS:
                self.skipping, self.depth = tag, 1
            else:
                self._start(tag, attrs)
        elif tag == "img":
            self._img(dict(attrs))
        elif tag in _TAGS:
            self._start(tag, attrs)

    def handle_startendtag(self, tag, attrs):
        if tag in _VOID:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        if self.skipping:
            self.depth -= tag == self.skipping
            if self.depth > 0 and (self.skipping, tag) != ("tr", "table"):  # a row's own end may be missing
                return
            self.skipping = ""
            if tag != "table":
                return
        if tag in self.open:
            while self._end() != tag:
                pass

    def handle_data(self, data):
        if not self.skipping:
            self.out.append(visible(self.change(data)))

    def result(self) -> Markup:
        while self.open:
            self._end()
        return Markup("".join(self.out))

    def _start(self, tag, attrs):
        self.out.append(f"<{tag}{''.join(self._attribute(k, v or '') for k, v in attrs)}>")
        if tag not in _VOID:
            self.open.append(tag)

    def _end(self) -> str:
        tag = self.open.pop()
        self.out.append(f"</{tag}>")
        if tag == "table":
            self.out.append("</div>")
            if (rows := self.rows.pop()) > _MOST_ROWS:
                self.out.append(f'<p class="note">{rows - _MOST_ROWS:,} of {rows:,} rows left out.</p>')
        return tag

    def _attribute(self, name: str, value: str) -> str:
        if name == "href" and re.match(r"(?:https?://|#)[^\s]", value):
            return f' href="{attribute(self.change(value))}" rel="noreferrer"'
        if name == "style":
            value = "; ".join(rule for rule in map(str.strip, value.split(";")) if _harmless(rule))
        return f' {name}="{attribute(self.change(value))}"' if name in _ATTRIBUTES and value else ""

    def _img(self, attrs: dict):
        alt, source = attribute(self.change(attrs.get("alt") or "no description")), attrs.get("src") or ""
        if not _IMAGE.fullmatch(source):
            self.out.append(f'<span class="note">[image that is not embedded: {alt}]</span>')
        elif note := self.image(source):
            self.out.append(f'<span class="note">[{visible(note)}: {alt}]</span>')
        else:
            self.out.append(f'<img alt="{alt}" src="{source}">')


def _harmless(rule: str) -> bool:
    name, _, value = rule.partition(":")
    return bool(
        _STYLES.fullmatch(name.strip().lower()) and _STYLE_VALUE.fullmatch(value) and "url" not in value.lower()
    )
