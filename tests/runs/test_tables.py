"""One rule for the tables of notebooks: text stands left, numbers stand right."""

import re

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from workbench.runs.run import open_run
from workbench.runs.tables import frame_html, show_text_left

SENTENCES = pd.DataFrame({"share": [0.5, 1.0], "what to do": ["Train more steps.", "Log each step."]})


def cells(page: str, tag: str) -> list[tuple[bool, str]]:
    """Of each cell: if it is aligned left, and its text."""
    return [("text-align:left" in style, text) for style, text in re.findall(rf"<{tag}([^>]*)>(.*?)</{tag}>", page)]


def test_sentences_stand_left_and_numbers_right():
    page = frame_html(SENTENCES)
    assert cells(page, "td") == [(False, "0.5"), (True, "Train more steps."), (False, "1.0"), (True, "Log each step.")]
    assert cells(page, "th")[:3] == [(True, ""), (False, "share"), (True, "what to do")]


def test_a_turned_table_of_numbers_stays_right():
    page = frame_html(pd.DataFrame({"a": {"n": 1, "share": 0.5}}).T.astype(object))
    assert [left for left, _ in cells(page, "td")] == [False, False]


def test_several_levels_and_left_out_columns_are_shown():
    wide = pd.DataFrame([["a sentence"] * 30], index=pd.MultiIndex.from_tuples([("x", "y")], names=["one", "two"]))
    assert "a sentence" in frame_html(wide, max_cols=4)
    by_two = SENTENCES.set_index(["share"], append=True)
    assert (True, "Train more steps.") in cells(frame_html(by_two), "td")


@pytest.fixture
def shell(monkeypatch):
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    return shell


def test_a_notebook_that_opens_a_run_shows_text_left(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = shell.display_formatter.formatters["text/html"]
    assert "text-align:left" not in shown(SENTENCES)
    open_run("mine", str(tmp_path / "run"), {})
    assert (True, "Train more steps.") in cells(shown(SENTENCES), "td")


def test_as_many_rows_are_shown_as_pandas_shows(shell):
    show_text_left()
    page = shell.display_formatter.formatters["text/html"](pd.DataFrame({"n": range(500)}))
    assert page.count("<tr") == pd.get_option("display.min_rows") + 2  # the head, and dots for the others


def test_outside_of_a_kernel_nothing_changes(monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    show_text_left()
