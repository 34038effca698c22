import pytest

from workbench.reports.styles import harmless_style


@pytest.mark.parametrize(
    "style",
    ["color: red", "background-color: #ffee00", "background: rgb(1, 2, 3)", "text-align: right", "font-weight: 700",
     "border: 1px solid #ccc", "padding: 2px 4px", "max-width: 100%", "height: auto", "width: 10em", "display: flex"]
)  # fmt: skip
def test_a_style_that_only_changes_how_an_element_looks_stays(style):
    assert harmless_style(style) == style


@pytest.mark.parametrize(
    "style",
    ["outline: 9000px solid white", "border-image: linear-gradient(red, red) 30", "border-image-outset: 9999px", "opacity: 0",
     "box-shadow: 0 0 0 9999px white", "position: fixed", "transform: scale(99)", "margin-top: -900px", "margin: 5px",
     "float: left",
     "z-index: 9", "inset: 0", "background: url(x)", "color: var(--good)", "width: 99999px", "height: 100vh", "padding: 900px",
     "border: 3000px solid red", "text-decoration: underline 900px", "vertical-align: -900px", "filter: invert(1)",
     "width: calc(9px)",
     "display: contents", "font-size: 900px", "line-height: 0", "letter-spacing: -9px", "clip-path: inset(0)", "content: 'x'",
     "background: \\75rl(x)", "color", ": red", "--x: red", "order: -1", "flex: 1 1 9999px", "text-indent: -999px"]
)  # fmt: skip
def test_a_style_that_covers_moves_or_hides_goes(style):
    assert harmless_style(style) == ""


def test_the_harmless_rules_of_a_style_stay():
    assert harmless_style(" COLOR:Red ;; outline:1px;padding : 1px") == "COLOR:Red; padding : 1px"
