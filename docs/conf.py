"""The site: `make docs`. The source is the checkout, so that a link is the same here and in a viewer of the repository."""

import re
from pathlib import Path
from urllib.parse import unquote

from bs4 import BeautifulSoup, Tag

ROOT = Path(__file__).parents[1]
project = "Workbench"
author = copyright = "the authors of Workbench"
(release,) = re.findall(r'^__version__ = "(.+)"', (ROOT / "workbench" / "__init__.py").read_text(), re.M)

extensions = ["myst_nb"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "CHANGELOG.md", "CONTRIBUTING.md", "data/README.md", "data/rl_faults/README.md"]
# A notebook of your own in notebooks/ is no page: those of the site are in the toctree of docs/start/notebooks.md.
_listed = re.findall(
    r"^\.\./\.\./(notebooks/\w+)$", (ROOT / "docs/start/notebooks.md").read_text(encoding="utf-8"), re.M
)
include_patterns += [f"{name}.ipynb" for name in _listed]
exclude_patterns = [".*", "build", "reports", "runs", "workbench", "tests", "benchmarks", "repros", "requirements"]

nb_execution_mode = "off"  # the stored outputs are what is shown
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
nb_merge_streams = True
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type"]

html_theme = "furo"
html_title = "Workbench"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]
html_copy_source = html_show_sphinx = False
html_theme_options = {"footer_icons": []}

# A link to one of these sources is right on a hosting page. On the site it leads to the page that is made of the source.
BUILT = {
    r"repros/notes\.md": "/docs/evidence/defects.md",
    r"workbench/audit/(?:rules_\w+|check)\.py": "/docs/reference/rules.md",
    r"workbench/(?:\w+/)?__init__\.pyi": "/docs/reference/api.md",
}
TEXT = 12  # characters a cell, in the mean; a table of less is one of numbers, and scrolls


def _link_to_built_pages(app, page, source) -> None:
    for place, built in BUILT.items():
        source[0] = re.sub(rf"\]\((?:\.\./)*{place}(#[\w-]+)?\)", rf"]({built}\1)", source[0])


def _front_page(app, error) -> None:
    """`index.html` at the top of the site leads to the front page."""
    if not error and app.builder.name == "html":
        page = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html">'
        link = '<title>Workbench</title><a href="docs/index.html">Workbench</a>'
        (Path(app.outdir) / "index.html").write_text(page + link, encoding="utf-8")


def _label_cells(app, page, template, context, doctree) -> None:
    """Give each cell of a table of texts its column's name: on a phone `site.css` makes the table a list of its rows."""
    if "<table" not in context.get("body", ""):
        return
    soup = BeautifulSoup(context["body"], "html.parser")
    for table in soup.select("table.docutils"):
        for cell in table.select("tbody td"):
            _link_addresses(soup, cell)
        names = [cell.get_text(" ", strip=True) for cell in table.select("thead th")]
        cells = [cell.get_text(" ", strip=True) for cell in table.select("tbody td")]
        if len(names) > 2 and sum(map(len, cells)) > TEXT * len(cells):
            table["class"] += ["cards"]
            for row in table.select("tbody tr"):
                for name, cell in zip(names, row.select("td"), strict=True):
                    if cell.get_text(strip=True):
                        cell["data-label"] = name
    context["body"] = str(soup)


def _link_addresses(soup: BeautifulSoup, cell: Tag) -> None:
    """Make links of the addresses in a cell of nothing else, as a CSV has them, or of `write-up of ADDRESS`."""
    lead, of, listed = cell.get_text(" ", strip=True).rpartition("write-up of ")
    addresses = listed.split()
    if lead or not addresses or cell.find("a") or not all(one.startswith("https://") for one in addresses):
        return
    cell.clear()
    cell.append(of)
    for address in addresses:
        link = soup.new_tag("a", href=address, attrs={"class": "reference external"})
        link.string = unquote(address.rpartition("/")[2])
        cell.extend([link, " "])


def setup(app) -> None:
    app.connect("source-read", _link_to_built_pages)
    app.connect("html-page-context", _label_cells)
    app.connect("build-finished", _front_page)
