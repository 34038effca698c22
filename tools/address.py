"""The address of the repository, which stands in one place: `Homepage` in `[project.urls]` of pyproject.toml.

    python -m tools.address https://github.com/ME/workbench    # writes it, and what follows from it
    python -m tools.address --readme v0.2.0 > README.md        # README for an index: each link absolute, at that tag
    python -m tools.address --notebooks v0.2.0 FOLDER          # the notebooks with an install cell, for Colab or Kaggle

What follows from it: the other lines of `[project.urls]`, `repository-code` of CITATION.cff, the install cells of notebooks.
A relative link leads nowhere on an index, on Colab and on Kaggle, so what is shown there is rendered with absolute ones.
"""

import argparse
import posixpath
import re
import tomllib
from pathlib import Path

import nbformat

from tools.write_outputs import code_hash

ROOT = Path(__file__).parents[1]
INSTALL = "install"  # tag of the cell that installs the workbench where it is absent
URLS = {
    "Homepage": "",
    "Documentation": "/blob/main/docs/index.md",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}


def address(root: Path = ROOT) -> str:
    """The address as pyproject.toml has it."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]


def write_address(new: str, root: Path = ROOT) -> None:
    """Write an address, without a slash at its end, to pyproject.toml and CITATION.cff."""
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", new):
        raise SystemExit(f"{new}: expected an address such as https://github.com/ME/workbench")
    pyproject, citation = root / "pyproject.toml", root / "CITATION.cff"
    text = pyproject.read_text(encoding="utf-8")
    for name, place in URLS.items():
        text = re.sub(rf'^{name} = "[^"]*"', f'{name} = "{new}{place}"', text, flags=re.M)
    pyproject.write_text(text, encoding="utf-8")
    text = re.sub(r"^repository-code: .*$", f"repository-code: {new}", citation.read_text(encoding="utf-8"), flags=re.M)
    citation.write_text(text, encoding="utf-8")
    for path in notebooks_with_install_cell(root):
        notebook = nbformat.read(path, as_version=4)
        cell = install_cell(notebook)
        cell.source = re.sub(r'^address = "[^"]*"', f'address = "{new}"', cell.source, flags=re.M)
        notebook.metadata["workbench"]["outputs_of"] = code_hash(notebook)  # in a checkout the cell does nothing
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def install_cell(notebook):
    """The cell of a notebook that installs the workbench, or None."""
    return next((cell for cell in notebook.cells if INSTALL in cell.metadata.get("tags", [])), None)


def notebooks_with_install_cell(root: Path = ROOT) -> list[Path]:
    """The notebooks that can be opened where there is no checkout."""
    paths = sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    return [path for path in paths if install_cell(nbformat.read(path, as_version=4))]


def write_notebooks(tag: str, folder: Path, root: Path = ROOT) -> None:
    """Write copies of the notebooks with an install cell, whose links are absolute, to a new folder."""
    folder.mkdir(parents=True)
    for path in notebooks_with_install_cell(root):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = with_absolute_links(cell.source, address(root), tag, "notebooks")
        (folder / path.name).write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def with_absolute_links(text: str, place: str, tag: str, folder: str = "") -> str:
    """A page in a folder of the repository with its relative links and pictures made absolute, at a tag.

    Example:
        >>> with_absolute_links("[a](../docs/b.md), [c](d.ipynb)", "https://h.org/i", "v1", "notebooks")
        '[a](https://h.org/i/blob/v1/docs/b.md), [c](https://h.org/i/blob/v1/notebooks/d.ipynb)'
        >>> with_absolute_links("![a](b.svg), [c](d.md#e), [f](https://g.org)", "https://h.org/i", "v1")
        '![a](https://h.org/i/raw/v1/b.svg), [c](https://h.org/i/blob/v1/d.md#e), [f](https://g.org)'
    """

    def absolute(match: re.Match) -> str:
        kind = "raw" if match["picture"] else "blob"
        path = posixpath.normpath(posixpath.join(folder, match["path"]))
        return f"{match['before']}{place}/{kind}/{tag}/{path})"

    link = r"(?P<before>(?P<picture>!)?\[[^\]]*\]\()(?!https?:|#)(?P<path>[^)\s]+)\)"
    return re.sub(link, absolute, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("address", nargs="?", help="address to write")
    what.add_argument("--readme", metavar="TAG", help="print README with absolute links at this tag")
    what.add_argument("--notebooks", nargs=2, metavar=("TAG", "FOLDER"), help="write notebooks with absolute links")
    args = parser.parse_args()
    if args.address:
        write_address(args.address)
    elif args.notebooks:
        write_notebooks(args.notebooks[0], Path(args.notebooks[1]))
    else:
        print(with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), address(), args.readme), end="")


if __name__ == "__main__":
    main()
