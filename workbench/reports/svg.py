"""A drawing (SVG) rebuilt from shapes and text: nothing in it multiplies, loads or runs, and its text can be changed."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator

from ..runs.tokens import hide_tokens
from .redact import changed_together

_MOST = 2_000_000  # characters
_MOST_DRAWN = 100_000  # elements, each counted as often as it is drawn
_DEEPEST = 100
_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_SHAPES = (
    "circle ellipse g line path polygon polyline rect symbol svg use defs clipPath linearGradient radialGradient stop"
)
_TAGS = {f"{{{_SVG}}}{name}" for name in f"{_SHAPES} text tspan title desc".split()}
_NUMBERS = re.compile(r"[-+\d.,\seEMmLlHhVvCcSsQqTtAaZz%]*")
_LOADS = re.compile(r"(?i)url\((?!#)|image-set|\\")
_REFERENCE = re.compile(r"url\(#([^)\s]+)\)")

ET.register_namespace("", _SVG)
ET.register_namespace("xlink", _XLINK)


def clean_svg(source: str, change: Callable[[str], str] = str) -> str:
    """A drawing with shapes and text only.

    Args:
        source: an SVG document.
        change: applied to each text of the drawing as a reader sees it, and to names in it.

    Raises:
        ValueError: it is no such document, it is too large or too deep to be drawn, or its text holds a secret in pieces;
            says which.

    Example:
        >>> clean_svg('<svg xmlns="http://www.w3.org/2000/svg"><script>x</script><text>a</text></svg>', str.upper)
        '<svg xmlns="http://www.w3.org/2000/svg"><text>A</text></svg>'
    """
    if len(source) > _MOST:
        raise ValueError(f"it has {len(source):,} characters, more than {_MOST:,}")
    if "<!ENTITY" in source:
        raise ValueError("it defines entities of its own")
    root = _parsed(source)
    _strip(root, change)
    _weight(root, {e.get("id", ""): e for e in root.iter()}, {})
    for texts in [*root.iter(f"{{{_SVG}}}text"), *root.iter(f"{{{_SVG}}}title"), *root.iter(f"{{{_SVG}}}desc")]:
        pieces = list(_pieces(texts))
        for (element, kind), text in zip(
            pieces, changed_together([getattr(*piece) for piece in pieces], change), strict=True
        ):
            setattr(element, kind, text)
    joined = "".join(root.itertext())
    if hide_tokens(joined) != joined:
        raise ValueError("its texts, read one after the other, hold what looks like a secret")
    return ET.tostring(root, encoding="unicode")


def _parsed(source: str) -> ET.Element:
    """The document's first element.

    Raises:
        ValueError: no SVG, or nested so deep that the functions below, which call themselves, would not get through.
    """
    parser, depth, root = ET.XMLPullParser(("start", "end")), 0, None
    try:
        for n in range(0, len(source), 10_000):
            parser.feed(source[n : n + 10_000])
            for event, element in parser.read_events():
                root = element if root is None else root
                depth += 1 if event == "start" else -1
                if depth > _DEEPEST:
                    raise ValueError(f"its elements are nested more than {_DEEPEST} deep")
        parser.close()
    except (ET.ParseError, UnicodeError) as error:
        raise ValueError(f"it is not well-formed XML ({error})") from None
    if root is None or root.tag != f"{{{_SVG}}}svg":
        raise ValueError("it is no SVG document")
    return root


def _strip(root: ET.Element, change: Callable[[str], str]) -> None:
    """Take out all but shapes and text, attributes that load or run, and text where none is drawn."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag not in _TAGS:
                parent.remove(child)
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            local = name.rpartition("}")[2]
            if local.startswith("on") or _LOADS.search(value) or (local == "href" and not value.startswith("#")):
                del element.attrib[name]
            elif not _NUMBERS.fullmatch(value):
                element.set(name, change(value))


def _weight(element: ET.Element, known: dict[str, ET.Element], found: dict[ET.Element, int], depth: int = 0) -> int:
    """How many elements are drawn for this one: a handful that refer to each other can be drawn without end.

    Args:
        element: with what is below it.
        known: id -> element.
        found: weights so far.
        depth: of the elements and references that led here.

    Raises:
        ValueError: too many, or too deep, as references in a circle are.
    """
    if depth > _DEEPEST:
        raise ValueError(f"its elements refer to each other more than {_DEEPEST} deep")
    if element not in found:
        names = [name for value in element.attrib.values() for name in _REFERENCE.findall(value)]
        names += [value[1:] for name, value in element.attrib.items() if name.rpartition("}")[2] == "href"]
        drawn = [*element, *(known[name] for name in names if name in known)]
        total = 1 + sum(_weight(other, known, found, depth + 1) for other in drawn)
        if total > _MOST_DRAWN:
            raise ValueError(f"it draws more than {_MOST_DRAWN:,} elements")
        found[element] = total
    return found[element]


def _pieces(element: ET.Element) -> Iterator[tuple[ET.Element, str]]:
    """Where text stands below an element, in the order of the document."""
    if element.text:
        yield element, "text"
    for child in element:
        yield from _pieces(child)
        if child.tail:
            yield child, "tail"
