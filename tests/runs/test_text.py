import re

from widget_samples import HOSTILE

from workbench.runs.text import code_point, labelled, printable, visible


def test_characters_that_hide_text_are_named_and_joiners_stay():
    assert code_point("\x00\x00\x00") == "U+0000 x3"
    assert labelled("a\u202eb\ud800") == "a[U+202E]b[U+D800]"
    assert labelled("\U0001f468\u200d\U0001f33e\n") == "\U0001f468\u200d\U0001f33e\n"


def test_text_cannot_command_a_terminal():
    assert printable("a\r\nb\rc\td é \x1b[1;32mgreen\x1b[0m \x1b]0;title\x07 \u202e") == (
        "a\nb\nc\td é green \\x1b]0;title\\x07 \\u202e"
    )


def test_text_is_inert_and_cut_with_unseen_characters_named():
    shown = visible(HOSTILE)
    assert "<" not in re.sub("</?mark[^>]*>", "", shown) and "'" not in shown
    assert all(code in shown for code in ("U+202E", "U+001B", "U+D800"))
    assert visible("x" * 500, most=10) == "x" * 10 + " ... (500 characters)"
