"""An executed notebook as the parts of a report: sections with their outputs, the figures, the parameters' meaning."""

import base64
import contextlib
import dataclasses
import json
import re
import struct
import textwrap
from collections.abc import Callable

import mistune
from markupsafe import Markup

from ..errors import ParameterError, RunError
from ..runs.files import read_text
from ..runs.parameters import Parameter, parse_parameters
from ..runs.run import Run
from .clean import MOST_MARKUP, attribute, clean_html, element_span, shortened, visible
from .facts import shown
from .outputs import WIDGET, readable, stream_lines, terminal_text, text_of

PAGE_LIMIT = 5_000_000  # bytes
_MOST_TITLE = 200
_MOST_READ = 100_000_000  # bytes of a notebook
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/svg+xml": "svg+xml"}
_ERROR_BANNER = "papermill-error-cell-tag"
_MAIN = "main"  # tag of the cell whose figure opens the report; without one it is the first figure
_MOST_LINES = 12  # of a stream that is not folded


@dataclasses.dataclass
class Budget:
    """What a page may still hold and parse, and what it had no room for."""

    images: int = 3_700_000  # characters, as base64
    text: int = 800_000
    work: int = 3_000_000  # characters looked at: what becomes little text may take long to parse
    left_out: int = 0
    source: str = "executed.ipynb"  # where all of it is

    def image(self, data: str) -> str:
        """A note when there is no room for an image, else "" and the room is taken."""
        if len(data) > self.images:
            self.left_out += 1
            return f"figure left out, the page would pass 5 MB; it is in {self.source}"
        self.images -= len(data)
        return ""

    def spend(self, text: str) -> bool:
        """Whether a text is worth the work of cleaning it: there is time, and room for some of it."""
        self.work -= min(len(text), MOST_MARKUP)
        worth = self.work >= 0 and self.text >= 200
        self.left_out += not worth
        return worth

    def markup(self, html: Markup) -> Markup | None:
        """The same, or None when there is no room for it; embedded images are not counted here."""
        size = len(re.sub(r'src="data:[^"]*"', "", html))
        if size > self.text:
            self.left_out += 1
            return None
        self.text -= size
        return html


@dataclasses.dataclass
class Section:
    """What stands under one `## ` heading."""

    title: str
    blocks: list[Markup] = dataclasses.field(default_factory=list)
    left_out: int = 0


def read_notebook(run: Run) -> dict | None:
    """`executed.ipynb`, or while the run goes on `executing.ipynb`; None when neither is there, whole and below 100 MB."""
    for name in ("executed.ipynb", "executing.ipynb"):
        try:
            notebook = json.loads(read_text(run.path / name, _MOST_READ))
        except (FileNotFoundError, ValueError, RecursionError, RunError):
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
        most: characters shown of one text.

    `figure` is the one that opens the report, `wide` whether it may be shrunk to the first screen; `failure` is the code and
    traceback of the cell that failed, `cells` counts the code cells, `executed` those of them that ran, `controls` the
    interactive controls that a page cannot show.
    """

    hide: Callable[[str], str]
    budget: Budget
    most: int = 20_000
    title: str = ""
    sections: list[Section] = dataclasses.field(default_factory=list)
    figure: Markup | None = None
    wide: bool = True
    parameters: dict[str, Parameter] = dataclasses.field(default_factory=dict)
    failure: Markup | None = None
    cells: int = 0
    executed: int = 0
    controls: int = 0
    _in_main: bool = True

    def read(self, notebook: dict) -> None:
        """Take in the cells of a notebook, `read_notebook`'s."""
        self.sections.append(Section(""))
        any_main = any(_MAIN in _tags(cell) for cell in notebook["cells"])
        for cell in notebook["cells"]:
            try:
                self._in_main = not any_main or _MAIN in _tags(cell)
                self._cell(cell)
            except (AttributeError, TypeError):  # not as nbformat has it: somebody else wrote this notebook
                self.budget.left_out += 1
        self.sections = [s for s in self.sections if s.blocks]

    def _cell(self, cell: dict) -> None:
        tags = cell.get("metadata", {}).get("tags", [])
        if _ERROR_BANNER in tags:  # papermill's; the report has its own
            return
        if cell.get("cell_type") == "markdown":
            self._markdown(text_of(cell.get("source")))
        elif cell.get("cell_type") == "code":
            self._code(cell, tags)

    def _add(self, block: Markup | None) -> None:
        """Put a part into the current section, if the page has room for it; None: it had none before."""
        section = self.sections[-1]
        if block is None or (kept := self.budget.markup(block)) is None:
            section.left_out += 1
            return
        if not section.blocks:
            self.budget.text -= len(visible(section.title))
        section.blocks.append(kept)

    def _markdown(self, source: str) -> None:
        for part in re.split(r"^(?=#{1,2} )", source, flags=re.M):
            if heading := re.match(r"(#{1,2}) (.*)\n?", part):
                title = shortened(heading[2].strip(), _MOST_TITLE, change=self.hide)
                if heading[1] == "#" and not self.title:
                    self.title = title
                else:
                    self.sections.append(Section(title))
                part = part[heading.end() :]
            if part.strip():
                self._add(self._as_markdown(part))

    def _as_markdown(self, source: str) -> Markup | None:
        text = shortened(source, self.most, self._where)
        return self._foreign(_as_html(text)) if self.budget.spend(text) else None

    def _foreign(self, html: str) -> Markup | None:
        """HTML that is not ours, cleaned; None when there is no time to parse it."""
        return clean_html(html, self.hide, self.budget.image) if self.budget.spend(html) else None

    def _code(self, cell: dict, tags: list) -> None:
        source, outputs = text_of(cell.get("source")), readable(cell.get("outputs", []), tags)
        self.cells += 1
        self.executed += cell.get("execution_count") is not None
        if "parameters" in tags and len(source) <= self.most:
            with contextlib.suppress(ParameterError, RecursionError, MemoryError):
                known = shown({k: dataclasses.asdict(p) for k, p in parse_parameters(source).items()}, self.hide)
                self.parameters = {name: Parameter(**fields) for name, fields in known.items()}
        if {"parameters", "injected-parameters"} & set(tags) and not outputs:
            return  # the report has a table of them
        errors = [o for o in outputs if o.get("output_type") == "error"]
        if errors and self.failure is None:
            self.failure = self._pre(source) + self._traceback(errors[-1])
        if self.budget.spend(source):
            self._add(Markup('<details class="code"><summary>Code</summary>{}</details>').format(self._pre(source)))
        else:
            self.sections[-1].left_out += 1
        for output in outputs:
            self._add(self._output(output))

    def _output(self, output: dict) -> Markup | None:
        kind, data = output.get("output_type"), output.get("data", {})
        if kind == "stream":
            text = text_of(output.get("text"))
            return self._stream(text, output.get("name", "")) if self.budget.spend(text) else None
        if kind == "error":
            return self._traceback(output) if self.budget.spend(text_of(output.get("traceback"))) else None
        if WIDGET in data:
            self.controls += 1
            return Markup('<p class="note">An interactive control stood here; it works in JupyterLab only.</p>')
        if "text/html" in data:
            html = self._foreign(text_of(data["text/html"]))
            return self._placed(html) if html and "<img " in html else html
        for mime, short in _IMAGES.items():
            if mime in data:
                return self._image(mime, short, text_of(data[mime]), output)
        if "text/markdown" in data:
            return self._as_markdown(text_of(data["text/markdown"]))
        if "text/plain" in data:
            text = text_of(data["text/plain"])
            return self._pre(terminal_text(text)) if self.budget.spend(text) else None
        kinds = shortened(", ".join(map(str, data)) or str(kind), _MOST_TITLE, change=self.hide)
        return Markup('<p class="note">An output of type {} is not shown.</p>').format(visible(kinds))

    def _stream(self, text: str, name: str) -> Markup:
        """A short text as it is; a long one, and what libraries say on stderr, folded under its number of lines."""
        lines = stream_lines(text)
        if not any(map(str.strip, lines)):
            return Markup("")
        shown = self._pre("\n".join(lines), name)
        if len(lines) <= _MOST_LINES and name != "stderr":
            return shown
        summary = Markup(
            f"{len(lines):,} line{'s' * (len(lines) > 1)} {'on stderr' if name == 'stderr' else 'of output'}"
        )
        if name != "stderr":
            last = self.hide(next(line for line in reversed(lines) if line.strip())[:_MOST_TITLE])
            summary += Markup(", the last: {}").format(visible(textwrap.shorten(last, 80, placeholder=" …")))
        return Markup('<details class="log"><summary>{}</summary>{}</details>').format(summary, shown)

    def _image(self, mime: str, short: str, data: str, output: dict) -> Markup | None:
        if short == "svg+xml":
            data = base64.b64encode(data.encode("utf-8", "replace")).decode()
        metadata = output.get("metadata", {}).get(mime)
        alt = metadata.get("alt") if isinstance(metadata, dict) else None
        alt = alt or f"Figure of section {self.sections[-1].title or self.title}; the notebook does not describe it."
        alt = attribute(shortened(str(alt), self.most))
        source = f'<figure><img alt="{alt}" src="data:image/{short};base64,{"".join(data.split())}"></figure>'
        return self._placed(clean_html(source, self.hide, self.budget.image))

    def _placed(self, html: Markup) -> Markup | None:
        """Keeps the main figure for the head of the report and leaves a link where it stood; None: no room."""
        if self.figure is not None or not self._in_main:
            return html
        if self.budget.markup(html) is None:
            return None
        start, end = element_span(html, "figure") or (0, len(html))
        alone = end - start < len(html)
        self.figure = Markup('<div class="foreign">{}</div>').format(html[start:end]) if alone else html
        self.wide = _is_wide(html)
        link = Markup('<p class="note">The <a href="#figure">figure at the top</a> of this page belongs here.</p>')
        return link + html[:start] + html[end:] if alone else link

    def _traceback(self, output: dict) -> Markup:
        name, value = text_of(output.get("ename")), text_of(output.get("evalue"))
        lines = "\n".join(map(text_of, output.get("traceback", []))) or f"{name}: {value}"
        return self._pre(terminal_text(lines), "traceback")

    def _pre(self, text: str, kind: str = "") -> Markup:
        text = shortened(text.rstrip("\n"), self.most, self._where, self.hide)
        kind = kind if kind in ("stderr", "traceback") else ""  # a class of the page, not the notebook's choice
        return Markup('<pre class="{}" dir="ltr">{}</pre>').format(kind, visible(text))

    @property
    def _where(self) -> str:
        return f"; all of it is in {self.budget.source}"


def _tags(cell) -> list:
    metadata = cell.get("metadata") if isinstance(cell, dict) else None
    return metadata.get("tags", []) if isinstance(metadata, dict) else []


def _is_wide(html: str) -> bool:
    """Whether the first PNG is at least 1.5 times as wide as high; True of what is no PNG."""
    if not (found := re.search(r"base64,(iVBOR[A-Za-z0-9+/]{35})", html)):
        return True
    width, height = struct.unpack(">II", base64.b64decode(found[1])[16:24])
    return width >= 1.5 * height


_as_html = mistune.create_markdown(escape=False, plugins=["strikethrough", "table", "url", "task_lists", "math"])
