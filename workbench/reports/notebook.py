"""An executed notebook as the parts of a report: sections with their outputs, the figures, the parameters' meaning."""

import base64
import contextlib
import dataclasses
import itertools
import json
import re
from collections.abc import Callable

from markupsafe import Markup

from ..errors import ParameterError
from ..runs.parameters import Parameter, parse_parameters
from ..runs.run import Run
from .clean import attribute, clean_html, shortened, visible
from .facts import shown

PAGE_LIMIT = 5_000_000  # bytes
_MOST_TEXT = 20_000  # characters of one output
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/svg+xml": "svg+xml"}
_ERROR_BANNER = "papermill-error-cell-tag"


@dataclasses.dataclass
class Budget:
    """What a page may still hold, and what it had no room for."""

    images: int = 3_700_000  # characters, as base64
    text: int = 800_000
    left_out: int = 0

    def image(self, data: str) -> str:
        """A note when there is no room for an image, else "" and the room is taken."""
        if len(data) > self.images:
            self.left_out += 1
            return "figure left out, the page would pass 5 MB; it is in executed.ipynb"
        self.images -= len(data)
        return ""

    def markup(self, html: Markup) -> Markup:
        """The same, or a note in its place when there is no room; embedded images are not counted here."""
        size = len(re.sub(r'src="data:[^"]*"', "", html))
        if size > self.text:
            self.left_out += 1
            return Markup('<p class="note">Output left out, the page would pass 5 MB; it is in executed.ipynb.</p>')
        self.text -= size
        return html


@dataclasses.dataclass
class Section:
    """What stands under one `## ` heading."""

    title: str
    blocks: list[Markup] = dataclasses.field(default_factory=list)


def read_notebook(run: Run) -> dict | None:
    """`executed.ipynb`, or while the run goes on `executing.ipynb`; None when there is neither or it is damaged."""
    for name in ("executed.ipynb", "executing.ipynb"):
        try:
            notebook = json.loads((run.path / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            continue
        if isinstance(notebook, dict) and isinstance(notebook.get("cells"), list):
            return notebook
    return None


@dataclasses.dataclass
class Notebook:
    """What a report takes from a notebook (nbformat 4, as JSON).

    Args:
        hide: takes out of each text what is not to be shown.
        budget: of the page, used up on the way.

    `failure` is the code and traceback of the cell that failed, `cells` counts the code cells, `executed` those of them
    that ran, `controls` the interactive controls that a page cannot show.
    """

    hide: Callable[[str], str]
    budget: Budget
    title: str = ""
    sections: list[Section] = dataclasses.field(default_factory=list)
    figures: list[Markup] = dataclasses.field(default_factory=list)
    parameters: dict[str, Parameter] = dataclasses.field(default_factory=dict)
    failure: Markup | None = None
    cells: int = 0
    executed: int = 0
    controls: int = 0

    def read(self, notebook: dict) -> None:
        """Take in the cells of a notebook, `read_notebook`'s."""
        self.sections.append(Section(""))
        for cell in notebook["cells"]:
            tags = cell.get("metadata", {}).get("tags", [])
            if _ERROR_BANNER in tags:  # papermill's; the report has its own
                continue
            if cell.get("cell_type") == "markdown":
                self._markdown(_text(cell.get("source")))
            elif cell.get("cell_type") == "code":
                self._code(cell, tags)
        self.sections = [s for s in self.sections if s.blocks]

    def _markdown(self, source: str) -> None:
        for part in re.split(r"^(?=#{1,2} )", source, flags=re.M):
            if heading := re.match(r"(#{1,2}) (.*)\n?", part):
                if heading[1] == "#" and not self.title:
                    self.title = self.hide(heading[2].strip())
                else:
                    self.sections.append(Section(self.hide(heading[2].strip())))
                part = part[heading.end() :]
            if part.strip():
                from nbconvert.filters import markdown2html_mistune

                html = clean_html(markdown2html_mistune(part), self.hide, self.budget.image)
                self.sections[-1].blocks.append(self.budget.markup(html))

    def _code(self, cell: dict, tags: list) -> None:
        source, outputs = _text(cell.get("source")), _joined(cell.get("outputs", []))
        self.cells += 1
        self.executed += cell.get("execution_count") is not None
        if "parameters" in tags:
            with contextlib.suppress(ParameterError):
                known = shown({k: dataclasses.asdict(p) for k, p in parse_parameters(source).items()}, self.hide)
                self.parameters = {name: Parameter(**fields) for name, fields in known.items()}
        if {"parameters", "injected-parameters"} & set(tags) and not outputs:
            return  # the report has a table of them
        errors = [o for o in outputs if o.get("output_type") == "error"]
        code = self._pre(source)
        self.sections[-1].blocks.append(
            Markup('<details class="code"><summary>Code</summary>{}</details>').format(code)
        )
        if errors and self.failure is None:
            self.failure = code + self._traceback(errors[-1])
        for output in outputs:
            self.sections[-1].blocks.append(self.budget.markup(self._output(output)))

    def _output(self, output: dict) -> Markup:
        kind, data = output.get("output_type"), output.get("data", {})
        if kind == "stream":
            return self._pre(_terminal(_text(output.get("text"))), output.get("name", ""))
        if kind == "error":
            return self._traceback(output)
        if "application/vnd.jupyter.widget-view+json" in data:
            self.controls += 1
            return Markup('<p class="note">An interactive control stood here; it works in JupyterLab only.</p>')
        if "text/html" in data:
            html = clean_html(_text(data["text/html"]), self.hide, self.budget.image)
            return self._placed(html) if "<img " in html else Markup('<div class="output">{}</div>').format(html)
        for mime, short in _IMAGES.items():
            if mime in data:
                return self._image(mime, short, _text(data[mime]), output)
        if "text/markdown" in data or "text/plain" in data:
            return self._pre(_terminal(_text(data.get("text/markdown") or data.get("text/plain"))))
        kinds = ", ".join(map(str, data)) or str(kind)
        return Markup('<p class="note">An output of type {} is not shown.</p>').format(visible(self.hide(kinds)))

    def _image(self, mime: str, short: str, data: str, output: dict) -> Markup:
        if short == "svg+xml":
            data = base64.b64encode(data.encode("utf-8", "replace")).decode()
        metadata = output.get("metadata", {}).get(mime)
        alt = metadata.get("alt") if isinstance(metadata, dict) else None
        alt = alt or f"Figure of section {self.sections[-1].title or self.title}; the notebook does not describe it."
        source = (
            f'<figure><img alt="{attribute(alt)}" src="data:image/{short};base64,{"".join(data.split())}"></figure>'
        )
        return self._placed(clean_html(source, self.hide, self.budget.image))

    def _placed(self, html: Markup) -> Markup:
        """Keeps a figure for the head of the report and leaves a link to it where it stood."""
        self.figures.append(html)
        link = '<p class="note"><a href="#figure-{0}">Figure {0}</a> belongs here.</p>'
        return Markup(link).format(len(self.figures))

    def _traceback(self, output: dict) -> Markup:
        name, value = _text(output.get("ename")), _text(output.get("evalue"))
        lines = "\n".join(map(_text, output.get("traceback", []))) or f"{name}: {value}"
        return self._pre(_terminal(lines), "traceback")

    def _pre(self, text: str, kind: str = "") -> Markup:
        text = shortened(text.rstrip("\n"), _MOST_TEXT, "; all of it is in executed.ipynb", self.hide)
        return Markup('<pre class="{}" dir="ltr">{}</pre>').format(attribute(kind), visible(text))


def _text(value) -> str:
    """A multi-line value of nbformat: text, or a list of lines."""
    return "".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _joined(outputs: list) -> list[dict]:
    """Neighbouring pieces of one stream as one output."""
    joined: list[dict] = []
    for stream, neighbours in itertools.groupby(outputs, lambda o: o.get("output_type") == "stream" and o.get("name")):
        pieces = list(neighbours)
        text = "".join(_text(piece.get("text")) for piece in pieces)
        joined += [pieces[0] | {"text": text}] if stream else pieces
    return joined


def _terminal(text: str) -> str:
    """What a terminal would show in the end: no escape sequences, and of a line that was overwritten its last state."""
    text = re.sub(r"\x1b\][^\x07\x1b]{0,2000}(?:\x07|\x1b\\)|\x1b\[[0-?]{0,40}[ -/]{0,9}[@-~]", "", text)
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
