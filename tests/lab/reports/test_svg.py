import io

import pytest
from matplotlib.figure import Figure

from workbench.lab.reports.clean import hide_in_svg
from workbench.lab.reports.redact import Redactor
from workbench.runs.secrets import hide_tokens


def drawing(inner: str) -> str:
    links = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"<svg {links}>{inner}</svg>"


@pytest.mark.parametrize(
    "inner",
    ["<text>HF_TOKEN=s3cr3tz9</text>", "<text>api_key<tspan>=s3cr</tspan>3tz9</text>", "<title>api_key=s3cr3tz9</title>",
     "<text><tspan>api_key=</tspan>\n<tspan>s3cr3tz9</tspan></text>", "<g id='hf_AbCdEfGhIjKl1234s3cr3tz9'/>",
     "<g>HF_TOKEN=s3cr3tz9<rect/>HF_TOKEN=s3cr3tz9</g>", "<metadata><x>HF_TOKEN=s3cr3tz9</x></metadata>"]
)  # fmt: skip
def test_a_secret_in_a_drawing_is_hidden_wherever_it_stands(inner):
    hidden = hide_in_svg(drawing(inner), hide_tokens)
    assert "[token]" in hidden and "tz9" not in hidden


def test_a_drawing_loses_comments_and_hides_paths_and_users():
    source = drawing("<!-- by zoe --><text>/home/zoe/x</text><g>of zoe</g><rect width='1 2'/>")
    hidden = hide_in_svg(source, Redactor(users=["zoe"]).text)
    assert "zoe" not in hidden and "<text>[path]</text><g>of [user]</g>" in hidden


def test_a_plot_of_matplotlib_stays_whole():
    figure = Figure()
    axes = figure.subplots()
    axes.scatter(range(1000), range(1000))
    axes.imshow([[1, 2]])
    file = io.StringIO()
    figure.savefig(file, format="svg")
    source = file.getvalue()
    hidden = hide_in_svg(source, Redactor(["host"], ["user"]).text)
    for shape in ("<use", "<path", ' d="M', "data:image/png;base64", "url(#"):
        assert hidden.count(shape) == source.count(shape), shape


@pytest.mark.parametrize(
    "source, reason", [(drawing("<g>"), "not well-formed"), (drawing("<g>" * 5000 + "</g>" * 5000), "nested too deep")]
)
def test_no_drawing_or_too_deep_a_one_is_refused_with_the_reason(source, reason):
    with pytest.raises(ValueError, match=reason):
        hide_in_svg(source, str)
