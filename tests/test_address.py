"""The address of the repository is one constant; README's links are absolute where an index shows it."""

import re
import shutil
import tomllib

import yaml
from conftest import ROOT

from tools.address import URLS, address, with_absolute_links, write_address

FILES = ("pyproject.toml", "CITATION.cff")


def places(root) -> list[str]:
    """Every place that has the address."""
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    assert urls.keys() == URLS.keys()
    return [*urls.values(), yaml.safe_load((root / "CITATION.cff").read_text())["repository-code"]]


def test_every_place_has_the_one_address():
    assert places(ROOT) == [*(address() + place for place in URLS.values()), address()]


def test_no_other_file_repeats_the_address():
    """A file that has it would not be changed with it."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*"), *ROOT.glob("workbench/**/*.py")]
    assert [str(path) for path in files if path.is_file() and address() in path.read_text(encoding="utf-8")] == []


def test_a_new_address_is_written_everywhere(tmp_path):
    for name in FILES:
        shutil.copyfile(ROOT / name, tmp_path / name)
    write_address("https://github.com/me/work.bench", tmp_path)
    assert all(place.startswith("https://github.com/me/work.bench") for place in places(tmp_path))
    for name in FILES:
        before, after = ((root / name).read_text().splitlines() for root in (ROOT, tmp_path))
        assert len(before) == len(after)


def test_readme_for_an_index_has_absolute_links_to_files_that_exist():
    shown = with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), "https://git.test/w", "v1")
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert links and all(link.startswith("https://") for link in links)
    own = [link.partition("/v1/")[2] for link in links if link.startswith("https://git.test/w/")]
    assert len(own) > 10 and all((ROOT / path.partition("#")[0]).exists() for path in own)
    assert "https://git.test/w/raw/v1/docs/images/real_weights.svg" in links
