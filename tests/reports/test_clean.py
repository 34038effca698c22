import pytest

from workbench.reports.clean import MOST_MARKUP, attribute, clean_html, shortened, visible
from workbench.runs.tokens import hide_tokens

IMAGE = "data:image/png;base64,AAAA"


def cleaned_html(*arguments, **named) -> str:
    """What stands within the frame."""
    page = clean_html(*arguments, **named)
    assert page.startswith('<div class="foreign">')
    return page.removeprefix('<div class="foreign">').removesuffix("</div>")


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
    [('<p class="good" id="verdicts" role="alert" onclick="y">t</p>', "<p>t</p>"), ("a</td></main>b", "ab"), ("<p><b>t",
     "<p><b>t</b></p>"),
     ("<h1>a</h1><h3>b</h3><h5>c</h5>", "<h4>a</h4><h4>b</h4><h5>c</h5>"), ("<script>x</script>t<style>y</style>", "t"),
     ('<a href="javascript:x">t</a>', "<a rel=\"noreferrer\">t</a>"),
     ('<a href="#x">t</a>', '<a href="#x" rel="noreferrer">t</a>'), ("1 < 2 &amp; &lt;b&gt;", "1 &lt; 2 &amp; &lt;b&gt;"),
     ('<q style="color: red; position: fixed; background: url(x)">t</q>', '<q style="color: red">t</q>'),
     ('<img src="https://example.org/x.png" alt="a">', '<span class="note">[image that is not embedded: a]</span>'),
     ("<svg><path/></svg>t", "t"), ("<q title='\"><script>'>t</q>", '<q title="&quot;&gt;&lt;script&gt;">t</q>'),
     ("<table><tr><td>1</table>t", '<div class="scroll"><table><tbody><tr><td>1</td></tr></tbody></table></div>t')]
)  # fmt: skip
def test_html_of_an_output_is_rebuilt_from_harmless_parts(source, cleaned):
    assert cleaned_html(source) == cleaned


def test_an_attribute_cannot_end_before_its_quote_and_shows_what_cannot_be_seen():
    assert attribute('a"b\u202e<') == "a&quot;b[U+202E]&lt;"


def test_a_long_text_shows_its_beginning_and_end():
    assert shortened("abcdefgh", 4) == "abc\n[... 4 of 8 characters left out ...]\nh"
    assert shortened("abcd", 4) == "abcd"


def test_every_text_and_attribute_is_changed_before_it_is_escaped():
    source = f'<q title="a &lt;">a &amp; b</q><img alt="a" src="{IMAGE}">'
    assert cleaned_html(source, lambda text: text.replace("a", "<c>")) == (
        f'<q title="&lt;c&gt; &lt;">&lt;c&gt; &amp; b</q><img alt="&lt;c&gt;" src="{IMAGE}">'
    )


def test_an_embedded_image_is_kept_or_replaced_by_the_note_that_it_gets():
    source = f'<img src="{IMAGE}"><img src="data:text/html;base64,AAAA" alt="x"><img src="{IMAGE}" alt="second">'
    notes = iter(["", "no room <here>"])
    assert cleaned_html(source, image=lambda data: next(notes) if data == IMAGE else pytest.fail(data)) == (
        f'<img alt="no description" src="{IMAGE}"><span class="note">[image that is not embedded: x]</span>'
        '<span class="note">[no room &lt;here&gt;: second]</span>'
    )


def test_rows_beyond_200_are_counted_whatever_is_in_them():
    inner = "<table><tr><td>inner</table>"
    page = cleaned_html(f"<table>{f'<tr><td>{inner}' * 203}</table>after")
    assert page.count("inner") == 200
    assert page.count("<table>") == page.count("</table></div>") == 201
    assert page.endswith('<p class="note">3 of 203 rows left out.</p>after')


def test_characters_that_cannot_be_seen_are_labelled_in_html_too():
    page = cleaned_html("<q title='\u202ea'>\u202eb&#x200b;</q>\ud800")
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


# --- what would take long ------------------------------------------------------------------------------------------


def many(piece: str, characters: int = 100_000) -> str:
    """The piece again and again, each with a number of its own."""
    return "".join(piece.replace("#", str(n)) for n in range(characters // len(piece)))


@pytest.mark.parametrize(
    "piece",
    [
        "<b x=#><p>",
        "<B/x=#><p>",
        "<i\nx=#></p>",
        "<table>x<b x=#>",
        "<p><b x=#></p>",
        "<code x=#><div>",
        "<font x=#><p>",
    ],
)
def test_markup_does_not_grow_however_many_elements_are_left_open(piece):
    """A parser that opens them all again in each block makes gigabytes of 100 kB."""
    assert len(clean_html(many(piece))) < 20 * MOST_MARKUP


def test_markup_is_cut_before_it_is_parsed_and_what_was_left_out_is_told():
    page = clean_html("<p>" + "x" * 100_000 + "<script>")
    assert '<p class="note">40,011 of 100,011 characters left out.</p>' in page
    assert len(page) < MOST_MARKUP + 200
    assert "At least" in clean_html("<table>" + "<tr><td>1" * 30_000)


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
def test_a_secret_in_several_elements_is_one_to_a_reader_and_hidden_as_one(source):
    text = "".join(part.partition(">")[2] for part in f">{clean_html(source, hide_tokens)}".split("<"))
    assert "[token]" in text
    assert "tz9" not in text


def test_text_without_a_secret_keeps_its_elements():
    source = "<p>a <b>b</b> c <i>d</i></p><ul><li>key</li><li>value</li></ul>"
    assert cleaned_html(source, hide_tokens) == source
