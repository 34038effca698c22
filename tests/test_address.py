"""The address of the repository is one constant; links are absolute where README or a notebook has no checkout around it."""

import re
import shutil
import tomllib

import nbformat
import pytest
import yaml
from conftest import ROOT

from tools.address import (
    URLS,
    address,
    install_cell,
    notebooks_with_install_cell,
    with_absolute_links,
    write_address,
    write_notebooks,
)
from tools.write_outputs import code_hash

WITH_INSTALL_CELL = notebooks_with_install_cell()
FILES = ("pyproject.toml", "CITATION.cff", *(f"notebooks/{path.name}" for path in WITH_INSTALL_CELL))


def places(root) -> list[str]:
    """Every place that has the address."""
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    assert urls.keys() == URLS.keys()
    cells = [install_cell(nbformat.read(path, as_version=4)).source for path in notebooks_with_install_cell(root)]
    installed = [re.search(r'^address = "(.*)"', cell, re.M)[1] for cell in cells]
    return [*urls.values(), yaml.safe_load((root / "CITATION.cff").read_text())["repository-code"], *installed]


def test_every_place_has_the_one_address():
    others = 1 + len(WITH_INSTALL_CELL)
    assert places(ROOT) == [*(address() + place for place in URLS.values()), *[address()] * others]


def test_no_other_file_repeats_the_address():
    """A file that has it would not be changed with it."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*"), *ROOT.glob("workbench/**/*.py")]
    assert [str(path) for path in files if path.is_file() and address() in path.read_text(encoding="utf-8")] == []


def test_a_new_address_is_written_everywhere(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name in FILES:
        shutil.copyfile(ROOT / name, tmp_path / name)
    write_address("https://github.com/me/work.bench", tmp_path)
    assert all(place.startswith("https://github.com/me/work.bench") for place in places(tmp_path))
    for name in FILES:
        before, after = ((root / name).read_text().splitlines() for root in (ROOT, tmp_path))
        assert len(before) == len(after)
    for path in notebooks_with_install_cell(tmp_path):
        notebook = nbformat.read(path, as_version=4)
        assert notebook.metadata["workbench"]["outputs_of"] == code_hash(notebook)


def test_a_readme_for_an_index_has_absolute_links_to_real_files():
    shown = with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), "https://git.test/w", "v1")
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert links and all(link.startswith("https://") for link in links)
    own = [link.partition("/v1/")[2] for link in links if link.startswith("https://git.test/w/")]
    assert len(own) > 10 and all((ROOT / path.partition("#")[0]).exists() for path in own)
    assert "https://git.test/w/raw/v1/docs/images/real_weights.svg" in links


@pytest.mark.parametrize("name", [path.name for path in WITH_INSTALL_CELL])
def test_a_copy_for_colab_has_absolute_links_to_files(tmp_path, name):
    write_notebooks("v1", tmp_path / "copies")
    texts = [cell.source for cell in nbformat.read(tmp_path / "copies" / name, as_version=4).cells]
    assert all(
        copy == original.source or original.cell_type == "markdown"
        for copy, original in zip(texts, nbformat.read(ROOT / "notebooks" / name, as_version=4).cells, strict=True)
    )
    links = [link for text in texts for link in re.findall(r"\]\(([^)\s]+)\)", text) if "/blob/v1/" in link]
    assert links and all((ROOT / link.partition("/v1/")[2].partition("#")[0]).is_file() for link in links)
    assert not re.findall(r"\]\((?!https://|#)[^)\s]+\.(?:md|ipynb|py)\b", "\n".join(texts))
