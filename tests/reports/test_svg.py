import base64
import io

import pytest
from matplotlib.figure import Figure

from workbench.reports.clean import clean_html
from workbench.reports.svg import clean_svg
from workbench.runs.tokens import hide_tokens


def drawing(inner: str) -> str:
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"<svg {links}>{inner}</svg>"


def nested(kind: str) -> str:
    """A few hundred bytes that draw 10^12 shapes."""
    refer = {"use": '<use xlink:href="#g{}"/>', "href": '<use href="#g{}"/>', "clip": '<g clip-path="url(#g{})"/>'}[
        kind
    ]
    tag = "clipPath" if kind == "clip" else "g"
    steps = "".join(f'<{tag} id="g{n + 1}">{refer.format(n) * 10}</{tag}>' for n in range(12))
    return drawing(f'<{tag} id="g0"><rect width="9" height="9"/></{tag}>{steps}{refer.format(12)}')


@pytest.mark.parametrize(
    "source, reason",
    [(nested("use"), "draws more than"), (nested("href"), "draws more than"), (nested("clip"), "draws more than"),
     (drawing('<g id="a"><use href="#a"/></g>'), "more than 100 deep"), (drawing("<g>" * 500 + "</g>" * 500),
     "more than 100 deep"),
     ("<!DOCTYPE svg [<!ENTITY a 'b'>]>" + drawing("&a;"), "entities"), (drawing("<g>"), "not well-formed"),
     ("<html/>", "no SVG"), (drawing("x" * 2_000_000), "more than 2,000,000"), (drawing("<path/>" * 100_001),
     "draws more than")]
)  # fmt: skip
def test_a_drawing_that_would_be_drawn_without_end_is_refused_with_the_reason(source, reason):
    with pytest.raises(ValueError, match=reason):
        clean_svg(source)
    data = base64.b64encode(source.encode()).decode()
    assert "drawing that is not shown" in clean_html(f'<img src="data:image/svg+xml;base64,{data}">')


def test_only_shapes_and_text_of_a_drawing_stay():
    inner = (
        "<script>x</script><style>*{}</style><foreignObject><p>x</p></foreignObject><image href='x.png'/><filter id='f'/>"
        "<animate/><pattern id='p'/><a href='javascript:x'><text>link</text></a>"
        "<rect onclick='x' width='1' fill='url(https://example.org/x)'/><use href='https://example.org/x'/><!-- note -->"
    )
    assert clean_svg(drawing(inner + "<text>a</text>")) == (
        '<svg xmlns="http://www.w3.org/2000/svg"><rect width="1" /><use /><text>a</text></svg>'
    )


def test_a_plot_of_matplotlib_stays_whole():
    figure = Figure()
    axes = figure.subplots()
    axes.scatter(range(1000), range(1000))
    file = io.StringIO()
    figure.savefig(file, format="svg")
    told = clean_svg(file.getvalue(), hide_tokens)
    assert told.count("<use") == file.getvalue().count("<use")
    assert told.count("<path") == file.getvalue().count("<path")


@pytest.mark.parametrize(
    "inner",
    ["<text>HF_TOKEN=s3cr3tz9</text>", "<text>api_key<tspan>=s3cr</tspan>3tz9</text>", "<title>api_key=s3cr3tz9</title>",
     "<text><tspan>api_key=</tspan>\n<tspan>s3cr3tz9</tspan></text>", "<g id='hf_AbCdEfGhIjKl1234s3cr3tz9'/>"]
)  # fmt: skip
def test_a_secret_in_the_text_of_a_drawing_is_hidden(inner):
    told = clean_svg(drawing(inner), hide_tokens)
    assert "[token]" in told
    assert "tz9" not in told


def test_a_drawing_whose_separate_texts_spell_a_secret_is_not_shown():
    letters = "".join(f"<text x='{n}'>{letter}</text>" for n, letter in enumerate("hf_AbCdEfGhIjKlMnOp1234"))
    with pytest.raises(ValueError, match="read one after the other"):
        clean_svg(drawing(letters))
