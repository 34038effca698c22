import pytest

from workbench.lab.reports.clean import MOST_IMAGE, MOST_MARKUP, attribute, clean_html, shortened
from workbench.runs.secrets import hide_tokens
from workbench.runs.text import visible

IMAGE = "data:image/png;base64,AAAA"


def cleaned_html(*arguments, **named) -> str:
    """What stands within the frame."""
    page = clean_html(*arguments, **named)
    assert page.startswith('<div class="foreign">')
    return page.removeprefix('<div class="foreign">').removesuffix("</div>")


def test_text_in_other_scripts_stays_as_it_is():
    text = "שלום 你好 नमस्ते ‌ می‌خواهم 👩‍🔬 é"
    assert visible(text) == text
    assert visible("a\x00\x00\x00b\r\n") == 'a<mark class="unseen" title="control character">U+0000 x3</mark>b\n'


def test_a_secret_on_the_cut_is_not_shown_in_part():
    for place in range(700, 900, 7):
        text = "x " * (place // 2) + "hf_" + "S3cret" * 6 + " y" * 50_000
        assert "S3cret" not in shortened(text, 1000, change=hide_tokens)
        backwards = text[::-1].replace("terc3S", "S3cret")
        assert "S3cret" not in shortened(backwards, 1000, change=lambda t: t.replace("S3cret" * 6, ""))


@pytest.mark.parametrize(
    "source, cleaned",
    [('<p class="good" id="verdicts" role="alert" onclick="y">t</p>', "<p>t</p>"), ("a</td></main>b", "ab"), ("<p><b>t",
     "<p><b>t</b></p>"),
     ("<h1>a</h1><h3>b</h3><h5>c</h5>", "<h4>a</h4><h4>b</h4><h5>c</h5>"), ("<script>x</script>t<style>y</style>", "t"),
     ('<a href="javascript:x">t</a>', "<a rel=\"noreferrer\">t</a>"),
     ('<a href="#x">t</a>', '<a href="#x" rel="noreferrer">t</a>'), ("1 < 2 &amp; &lt;b&gt;", "1 &lt; 2 &amp; &lt;b&gt;"),
     ('<q style="color: red; position: fixed; background: url(x)">t</q>', '<q style="color:red">t</q>'),
     ('<img src="https://example.org/x.png" alt="a">', '<span class="note">[image that is not embedded: a]</span>'),
     ("<svg><path/></svg>t", "t"), ("<q title='\"><script>'>t</q>", '<q title="&quot;&gt;&lt;script&gt;">t</q>'),
     ("<table><tr><td>1</table>t", '<div class="scroll"><table><tbody><tr><td>1</td></tr></tbody></table></div>t')]
)  # fmt: skip
def test_html_of_an_output_is_rebuilt_from_harmless_parts(source, cleaned):
    assert cleaned_html(source) == cleaned


def test_an_attribute_ends_at_its_quote_and_shows_unseen_text():
    assert attribute('a"b\u202e<') == "a&quot;b[U+202E]&lt;"


def test_a_long_text_shows_its_beginning_and_end():
    assert shortened("abcdefgh", 4) == "abc\n[... 4 of 8 characters left out ...]\nh"
    assert shortened("abcd", 4) == "abcd"


def test_every_text_and_attribute_is_changed_before_escaping():
    source = f'<q title="a &lt;">a &amp; b</q><img alt="a" src="{IMAGE}">'
    assert cleaned_html(source, lambda text: text.replace("a", "<c>")) == (
        f'<q title="&lt;c&gt; &lt;">&lt;c&gt; &amp; b</q><img alt="&lt;c&gt;" src="{IMAGE}">'
    )


def test_an_image_is_kept_and_a_false_or_too_large_one_is_a_note():
    large = f"data:image/png;base64,{'A' * MOST_IMAGE}"
    source = f'<img src="{IMAGE}"><img src="data:text/html;base64,AAAA" alt="x"><img src="{large}" alt="second">'
    assert cleaned_html(source, where="; it is in <here>") == (
        f'<img alt="no description" src="{IMAGE}"><span class="note">[image that is not embedded: x]</span>'
        '<span class="note">[image of 2,000,022 characters left out; it is in &lt;here&gt;: second]</span>'
    )


@pytest.mark.parametrize(
    "style",
    ["position: fixed", "margin-top: -900px", "transform: scale(99)", "outline: 9px solid", "box-shadow: 0 0 9px", "opacity: 0",
     "border-image: linear-gradient(red, red) 30", "z-index: 9", "inset: 0", "float: left",
     "filter: invert(1)", "background: url(x)", "font-size: 900px", "letter-spacing: -9px", "--x: red", "content: 'x'"]
)  # fmt: skip
def test_a_style_that_moves_a_box_or_loads_goes_and_others_stay(style):
    page = cleaned_html(f'<q style="{style}; color: red; padding: 2px">t</q>')
    assert page == '<q style="color:red;padding:2px">t</q>'


def test_characters_that_cannot_be_seen_are_labelled_in_html_too():
    page = cleaned_html("<q title='\u202ea'>\u202eb&#x200b;</q>\ud800")
    assert 'title="[U+202E]a"' in page
    assert ">U+202E</mark>b" in page
    assert ">U+200B</mark>" in page
    assert page.endswith("\\ud800")  # half of a character cannot be written


@pytest.mark.parametrize(
    "href", ["javascript:x", "data:text/html,x", " https://example.org", "//example.org", "x.html"]
)
def test_a_link_leads_to_a_web_page_or_within_the_page(href):
    assert "href" not in clean_html(f'<a href="{href}">t</a>')
    assert 'href="https://example.org/x"' in clean_html('<a href="https://example.org/x">t</a>')


# --- what is long ---------------------------------------------------------------------------------------------------


def test_markup_that_grows_when_it_is_read_is_left_out():
    """A parser opens each `<b>` again in every block: 20 kB would become 14 MB of page."""
    source = "".join(f"<b x={n}><p>" for n in range(600))
    assert clean_html(source).startswith('<p class="note">Left out: the markup of this output grows')


def test_markup_is_cut_before_parsing_and_says_what_was_left_out():
    page = clean_html("<p>" + "x" * 100_000 + "<script>")
    assert '<p class="note">40,011 of 100,011 characters left out.</p>' in page
    assert len(page) < MOST_MARKUP + 200


def test_a_large_embedded_image_is_no_markup():
    data = "data:image/png;base64," + "A" * 1_000_000
    assert f'src="{data}"></div>' in clean_html(f'<img src="{data}">')
    assert "not embedded" in clean_html('<img src="data:image/png;base64,">')


# --- secrets in pieces ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    ["<b>api_key</b>=<i>s3cr3tz9</i>", "api_key<span>=</span>s3cr3tz9", "<p>HF_TOKEN=s3cr<wbr>3tz9",
     "hf_<b>AbCdEfGh1234</b>s3cr3tz9",
     "<table><tr><td>password<td>s3cr3tz9</table>", "<tr><th>api_key:</th><td><b>s3cr3tz9</b>",
     "<dl><dt>api_key<dd>s3cr3tz9</dl>",
     "api_key=<span title='a'>s3c<i>r3</i></span>tz9", "hf_<i></i>Ab12Ab12Ab12Ab12<b>Ab12Ab12Ab12s3cr3tz9</b>"]
)  # fmt: skip
def test_a_secret_in_several_elements_is_hidden_as_one(source):
    text = "".join(part.partition(">")[2] for part in f">{clean_html(source, hide_tokens)}".split("<"))
    assert "[token]" in text
    assert "tz9" not in text


def test_text_without_a_secret_keeps_its_elements():
    source = "<p>a <b>b</b> c <i>d</i></p><ul><li>key</li><li>value</li></ul>"
    assert cleaned_html(source, hide_tokens) == source
