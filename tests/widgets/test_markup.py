import re

from widget_samples import HOSTILE

from workbench.runs.text import visible
from workbench.widgets.markup import as_jupyter_output, status_line, table


def test_text_is_shown_inert_cut_and_with_its_unseen_characters_named():
    shown = visible(HOSTILE)
    assert "<" not in re.sub("</?mark[^>]*>", "", shown) and "'" not in shown
    assert all(code in shown for code in ("U+202E", "U+001B", "U+D800"))
    assert visible("x" * 500, most=10) == "x" * 10 + " ... (500 characters)"


def test_a_state_is_a_sign_and_a_word_and_read_out_and_its_text_is_inert():
    line = status_line("failed", "<b>no</b>")
    assert 'role="status"' in line and "\u2717 failed: &lt;b&gt;no&lt;/b&gt;" in line and "bold" in line
    assert "\u2022 queued: " in status_line("queued", "waits") and "bold" not in status_line("queued", "waits")


def test_a_table_has_a_caption_and_a_header_cell_a_column():
    page = as_jupyter_output(table([["1", "<i>2</i>"]], ["a", "b"], "Two"))
    assert page.startswith('<div class="jp-RenderedHTMLCommon"')
    assert page.count('<th scope="col"') == 2 and ">Two</caption>" in page
    assert page.count("<td") == 2 and "<i>2</i>" in page
