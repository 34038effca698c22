"""The inline styles that foreign HTML may keep: colours, alignment, and lengths that fit into a page."""

import re

_COLOR = r"#[0-9a-f]{3,8}|[a-z]{3,20}|(?:rgb|hsl)a?\([\d.,%/ ]{5,40}\)"
_WORD = r"[a-z-]{1,20}"
_SHORT = r"0|\d{1,2}(?:\.\d{1,3})?(?:px|pt)|\d(?:\.\d{1,3})?r?em|\d?\.\d{1,3}r?em"
_LONG = rf"{_SHORT}|1?\d{{1,3}}(?:\.\d{{1,3}})?px|\d{{1,2}}r?em|(?:100|\d{{1,2}}(?:\.\d{{1,3}})?)%|auto|{_WORD}-content"
# What paints outside of its own box (outline, shadows, border images), moves a box (position, margin, transform) or makes
# it see-through is missing here on purpose.
_ALLOWED = {
    r"color|background(?:-color)?": _COLOR,
    r"text-align|text-decoration|font-style|white-space|vertical-align|overflow-x|flex-(?:direction|wrap)": _WORD,
    r"display": r"block|inline|inline-block|flex|inline-flex|none|table|table-row|table-cell",
    r"font-weight": rf"{_WORD}|[1-9]00",
    r"(?:max-|min-)?(?:width|height)": _LONG,
    r"(?:padding|border-radius)(?:-[a-z]{3,6})*|gap": rf"(?:{_SHORT})(?: (?:{_SHORT})){{0,3}}",
    r"border(?:-(?:top|right|bottom|left))?(?:-(?:width|style|color))?": (
        rf"(?:{_SHORT}|{_COLOR})(?: (?:{_SHORT}|{_COLOR})){{0,3}}"
    ),
    r"border-(?:spacing|collapse)": rf"{_SHORT}|{_WORD}",
}
_RULES = [(re.compile(names), re.compile(values)) for names, values in _ALLOWED.items()]


def harmless_style(style: str) -> str:
    """The rules of a `style` attribute that only change how an element looks within its own box.

    Example:
        >>> harmless_style("color: red; outline: 900px solid white; padding: 2px; height: 90000px")
        'color: red; padding: 2px'
    """
    return "; ".join(rule for rule in map(str.strip, style.split(";")) if _harmless(rule))


def _harmless(rule: str) -> bool:
    name, _, value = rule.lower().partition(":")
    name, value = name.strip(), value.strip()
    return any(names.fullmatch(name) and values.fullmatch(value) for names, values in _RULES)
