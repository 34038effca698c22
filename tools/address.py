"""The address of the repository, which stands in one place: `Homepage` in `[project.urls]` of pyproject.toml.

    python -m tools.address https://github.com/ME/workbench    # writes it, and what follows from it
    python -m tools.address --readme v0.2.0 > README.md        # README for an index: each link absolute, at that tag

What follows from it: the other lines of `[project.urls]`, and `repository-code` of CITATION.cff. A relative link leads nowhere
on an index, so README is rendered before a release is built.
"""

import argparse
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


def with_absolute_links(text: str, place: str, tag: str) -> str:
    """A page at the top of the repository with its relative links and pictures made absolute, at a tag.

    Example:
        >>> with_absolute_links("![a](b.svg), [c](d.md#e), [f](https://g.org)", "https://h.org/i", "v1")
        '![a](https://h.org/i/raw/v1/b.svg), [c](https://h.org/i/blob/v1/d.md#e), [f](https://g.org)'
    """

    def absolute(match: re.Match) -> str:
        kind = "raw" if match["picture"] else "blob"
        return f"{match['before']}{place}/{kind}/{tag}/{match['path']})"

    link = r"(?P<before>(?P<picture>!)?\[[^\]]*\]\()(?!https?:|#)(?P<path>[^)\s]+)\)"
    return re.sub(link, absolute, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("address", nargs="?", help="address to write")
    what.add_argument("--readme", metavar="TAG", help="print README with absolute links at this tag")
    args = parser.parse_args()
    if args.address:
        write_address(args.address)
    else:
        print(with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), address(), args.readme), end="")


if __name__ == "__main__":
    main()
