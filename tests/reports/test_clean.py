import pytest

from workbench.reports.clean import attribute, clean_html, shortened, visible
from workbench.runs.tokens import hide_tokens

IMAGE = "data:image/png;base64,AAAA"


def test_text_in_other_scripts_stays_as_it_is():
    text = "שלום 你好 नमस्ते ‌ می‌خواهم 👩‍🔬 é"
    assert visible(text) == text
    assert visible("a\x00\x00\x00b\r\n") == 'a<span class="unseen" title="control character">U+0000 x3</span>b\n'
    assert "+996 accents" in visible("z" + "\u0301" * 1000)


def test_a_secret_on_the_cut_is_not_shown_in_part():
    for place in range(700, 900, 7):
        text = "x " * (place // 2) + "hf_" + "S3cret" * 6 + " y" * 50_000
        assert "S3cret" not in shortened(text, 1000, change=hide_tokens)
        assert "S3cret" not in shortened(
            text[::-1].replace("terc3S", "S3cret"), 1000, change=lambda t: t.replace("S3cret" * 6, "")
        )


@pytest.mark.parametrize(
    "source, cleaned",
    [('<b class="x" onclick="y">t</b>', '<b class="x">t</b>'), ("a</td></main>b", "ab"), ("<p><b>t", "<p><b>t</b></p>"),
     ("<script>x</script>t<style>y</style>", "t"), ('<a href="javascript:x">t</a>', "<a rel=\"noreferrer\">t</a>"),
     ('<a href="#x">t</a>', '<a href="#x" rel="noreferrer">t</a>'), ("1 < 2 &amp; &lt;b&gt;", "1 &lt; 2 &amp; &lt;b&gt;"),
     ('<i style="color: red; position: fixed; background: url(x)">t</i>', '<i style="color: red">t</i>'),
     ('<img src="https://example.org/x.png" alt="a">', '<span class="note">[image that is not embedded: a]</span>'),
     ("<svg><path/></svg>t", "t"), ("<b title='\"><script>'>t</b>", '<b title="&quot;&gt;&lt;script&gt;">t</b>'),
     ("<table><tr><td>1</table>t", '<div class="scroll"><table><tbody><tr><td>1</td></tr></tbody></table></div>t')]
)  # fmt: skip
def test_html_of_an_output_is_rebuilt_from_harmless_parts(source, cleaned):
    assert clean_html(source) == cleaned


def test_an_attribute_cannot_end_before_its_quote_and_shows_what_cannot_be_seen():
    assert attribute('a"b\u202e<') == "a&quot;b[U+202E]&lt;"


def test_a_long_text_shows_its_beginning_and_end():
    assert shortened("abcdefgh", 4) == "abc\n[... 4 of 8 characters left out ...]\nh"
    assert shortened("abcd", 4) == "abcd"


def test_every_text_and_attribute_is_changed_before_it_is_escaped():
    source = f'<b title="a &lt;">a &amp; b</b><img alt="a" src="{IMAGE}">'
    assert clean_html(source, lambda text: text.replace("a", "<c>")) == (
        f'<b title="&lt;c&gt; &lt;">&lt;c&gt; &amp; b</b><img alt="&lt;c&gt;" src="{IMAGE}">'
    )


def test_an_embedded_image_is_kept_or_replaced_by_the_note_that_it_gets():
    source = f'<img src="{IMAGE}"><img src="data:text/html;base64,AAAA" alt="x"><img src="{IMAGE}" alt="second">'
    notes = iter(["", "no room <here>"])
    assert clean_html(source, image=lambda data: next(notes) if data == IMAGE else pytest.fail(data)) == (
        f'<img alt="no description" src="{IMAGE}"><span class="note">[image that is not embedded: x]</span>'
        '<span class="note">[no room &lt;here&gt;: second]</span>'
    )


def test_rows_beyond_200_are_counted_whatever_is_in_them():
    inner = "<table><tr><td>inner</table>"
    page = clean_html(f"<table>{f'<tr><td>{inner}' * 203}</table>after")
    assert page.count("inner") == 200
    assert page.count("<table>") == page.count("</table></div>") == 201
    assert page.endswith('<p class="note">3 of 203 rows left out.</p>after')


def test_characters_that_cannot_be_seen_are_labelled_in_html_too():
    page = clean_html("<b title='\u202ea'>\u202eb&#x200b;</b>\ud800")
    assert 'title="[U+202E]a"' in page
    assert ">U+202E</span>b" in page
    assert ">U+200B</span>" in page
    assert page.endswith("\\ud800")  # half of a character cannot be written


@pytest.mark.parametrize(
    "href", ["javascript:x", "data:text/html,x", " https://example.org", "//example.org", "x.html"]
)
def test_a_link_leads_to_a_web_page_or_within_the_page(href):
    assert "href" not in clean_html(f'<a href="{href}">t</a>')
    assert 'href="https://example.org/x"' in clean_html('<a href="https://example.org/x">t</a>')
