from workbench.runs.text import code_point, labelled, printable


def test_characters_that_reorder_or_hide_text_are_named_by_their_code_and_joiners_stay():
    assert code_point("\x00\x00\x00") == "U+0000 x3"
    assert labelled("a\u202eb\ud800") == "a[U+202E]b[U+D800]"
    assert labelled("\U0001f468\u200d\U0001f33e\n") == "\U0001f468\u200d\U0001f33e\n"


def test_text_cannot_command_a_terminal():
    assert printable("a\r\nb\rc\td é \x1b[1;32mgreen\x1b[0m \x1b]0;title\x07 \u202e") == (
        "a\nb\nc\td é green \\x1b]0;title\\x07 \\u202e"
    )
