"""The text of a drawing (SVG), hidden before the drawing is embedded: as an image no browser runs or loads anything of it."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

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
