import ast

import pytest
from conftest import ROOT

from tools import screenshots


def test_the_run_comparer_of_the_screenshots_draws(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    *before, last = ast.parse(screenshots.COMPARER).body
    names: dict = {}
    exec(compile(ast.Module(before, []), "comparer", "exec"), names)
    explorer = eval(compile(ast.Expression(last.value), "comparer", "eval"), names)
    assert "ready" in explorer.state.value, explorer.state.value


def test_each_picture_is_shown_by_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert {*screenshots.EXPLORERS, *screenshots.OF_RUNS} == {p.stem for p in (ROOT / "docs" / "images").glob("*.png")}
    assert [p.name for p in (ROOT / "docs" / "images").glob("*.png") if f"images/{p.name})" not in pages] == []


def test_a_picture_that_there_is_not_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["screenshots", "run_compare"])
    with pytest.raises(SystemExit):
        screenshots.main()
    assert "run_compare: expected names of stop_explorer, padding_explorer, " in capsys.readouterr().err
