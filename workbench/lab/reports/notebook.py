"""An executed notebook as the parts of a report: sections with their outputs, the figures, the parameters' meaning."""

import base64
import contextlib
import dataclasses
import json
import re
import textwrap
from collections.abc import Callable

import mistune
from markupsafe import Markup

from ...errors import ParameterError, RunError
from ...runs.files import read_text
from ...runs.parameters import Parameter, parse_parameters
from ...runs.run import Run
from ...runs.text import visible
from .clean import attribute, bare_png, clean_html, shortened
from .facts import shown
from .outputs import WIDGET, readable, stream_lines, terminal_text, text_of

_MOST_TEXT = 20_000  # characters of an output, a cell's code or text
_MOST_TITLE = 200
_MOST_READ = 100_000_000  # bytes of a notebook
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/svg+xml": "svg+xml"}
_ERROR_BANNER = "papermill-error-cell-tag"
_MOST_LINES = 12  # of a stream that is not folded


_ACTIVE = re.compile(r"<(?:script|iframe|video|audio|object|embed)\b", re.I)  # what a page does not run or load


@dataclasses.dataclass
class Section:
    """What stands under one `## ` heading."""

    title: str
    blocks: list[Markup] = dataclasses.field(default_factory=list)


def _by_heading(source: str) -> list[str]:
    """Markdown, cut before each heading of the first two levels; a `#` within a block of code is none."""
    parts, fence = [""], ""
    for line in source.splitlines(keepends=True):
        if mark := re.match(r" {0,3}(`{3,}|~{3,})(.*)", line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        if not fence and re.match(r"#{1,2} ", line):
            parts.append("")
        parts[-1] += line
    return parts


def read_notebook(run: Run, damaged: list[str] | None = None) -> dict | None:
    """`executing.ipynb` while the run goes on or where it was cut off, else `executed.ipynb`; None without one below 100 MB.

    `damaged` gets a sentence for each that is there and cannot be shown.
    """
    for name in ("executing.ipynb", "executed.ipynb"):
        try:
            notebook = json.loads(read_text(run.path / name, _MOST_READ))
            if isinstance(notebook, dict) and isinstance(notebook.get("cells"), list):
                return notebook
            problem = "it has no list of cells"
        except FileNotFoundError:
            continue
        except RunError as error:
            problem = str(error).removeprefix(f"{run.path / name}: ")
        except (OSError, ValueError, RecursionError) as error:
            problem = f"not JSON ({error})" if isinstance(error, ValueError) else str(error)
        if damaged is not None:
            damaged.append(f"{name} was left out: {problem}.")
    return None


@dataclasses.dataclass
class Notebook:
    """What a report takes from a notebook (nbformat 4, as JSON), each text without what `hide` takes out.

    `source` is the file that has whole what is cut here, empty for none. `figure` is the first picture, as a data URL, for a
    card; `failure` is the code and traceback of the cell that failed, `cells` counts the code cells, `executed` those of
    them that ran, `controls` the interactive controls that a page cannot show, `unknown` the cells that are not as nbformat has
    them.
    """

    hide: Callable[[str], str]
    source: str = ""
    title: str = ""
    sections: list[Section] = dataclasses.field(default_factory=list)
    figure: str = ""
    parameters: dict[str, Parameter] = dataclasses.field(default_factory=dict)
    failure: Markup | None = None
    cells: int = 0
    executed: int = 0
    controls: int = 0
    unknown: int = 0

    def read(self, notebook: dict) -> None:
        """Take in the cells of a notebook, `read_notebook`'s."""
        self.sections.append(Section(""))
        for cell in notebook["cells"]:
            try:
                self._cell(cell)
            except (AttributeError, TypeError):
                self.unknown += 1
        self.sections = [s for s in self.sections if s.blocks]

    def _cell(self, cell: dict) -> None:
        tags = cell.get("metadata", {}).get("tags", [])
        if _ERROR_BANNER in tags:  # papermill's; the report has its own
            return
        if cell.get("cell_type") == "markdown":
            self._markdown(text_of(cell.get("source")))
        elif cell.get("cell_type") == "code":
            self._code(cell, tags)

    def _markdown(self, source: str) -> None:
        for part in _by_heading(source):
            if heading := re.match(r"(#{1,2}) (.*)\n?", part):
                title = shortened(heading[2].strip(), _MOST_TITLE, change=self.hide)
                if heading[1] == "#" and not self.title:
                    self.title = title
                else:
                    self.sections.append(Section(title))
                part = part[heading.end() :]
            if part.strip():
                self.sections[-1].blocks.append(self._as_markdown(part))

    def _as_markdown(self, source: str) -> Markup:
        return self._foreign(_as_html(shortened(source, _MOST_TEXT, self._where)))

    def _foreign(self, html: str) -> Markup:
        return clean_html(html, self.hide, self._where)

    def _code(self, cell: dict, tags: list) -> None:
        source, outputs = text_of(cell.get("source")), readable(cell.get("outputs", []))
        self.cells += 1
        self.executed += cell.get("execution_count") is not None
        if "parameters" in tags and len(source) <= _MOST_TEXT:
            with contextlib.suppress(ParameterError, RecursionError, MemoryError):
                known = shown({k: dataclasses.asdict(p) for k, p in parse_parameters(source).items()}, self.hide)
                self.parameters = {name: Parameter(**fields) for name, fields in known.items()}
        if {"parameters", "injected-parameters"} & set(tags) and not outputs:
            return  # the report has a table of them
        errors = [o for o in outputs if o.get("output_type") == "error"]
        if errors and self.failure is None:
            self.failure = self._pre(source) + self._traceback(errors[-1])
        code = Markup('<details class="code"><summary>Code</summary>{}</details>').format(self._pre(source))
        self.sections[-1].blocks += [code, *map(self._output, outputs)]

    def _output(self, output: dict) -> Markup:
        kind, data = output.get("output_type"), output.get("data", {})
        if kind == "stream":
            return self._stream(text_of(output.get("text")), output.get("name", ""))
        if kind == "error":
            return self._traceback(output)
        if WIDGET in data:
            return self._interactive()
        if "text/html" in data:
            source = text_of(data["text/html"])
            html = self._foreign(source)
            if _ACTIVE.search(source) and not re.sub(r"<(?!img\b)[^>]*>", "", html).strip():
                return self._interactive()
            if not self.figure and (found := re.search(r'src="(data:image/png;base64,[A-Za-z0-9+/=]+)"', html)):
                self.figure = found[1]
            return html
        for mime, short in _IMAGES.items():
            if mime in data:
                return self._image(mime, short, text_of(data[mime]), output)
        if "text/markdown" in data:
            return self._as_markdown(text_of(data["text/markdown"]))
        if "text/latex" in data:
            return self._as_markdown(text_of(data["text/latex"]))
        if "application/json" in data:
            return self._pre(json.dumps(data["application/json"], indent=1, ensure_ascii=False))
        if "text/plain" in data:
            return self._pre(terminal_text(text_of(data["text/plain"])))
        kinds = shortened(", ".join(map(str, data)) or str(kind), _MOST_TITLE, change=self.hide)
        return Markup('<p class="note">An output of type {} is not shown.</p>').format(visible(kinds))

    def _interactive(self) -> Markup:
        self.controls += 1
        return Markup('<p class="note">An interactive control stood here; it works in JupyterLab only.</p>')

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

    def _image(self, mime: str, short: str, data: str, output: dict) -> Markup:
        if short == "svg+xml":
            data = base64.b64encode(data.encode("utf-8", "replace")).decode()
        metadata = output.get("metadata", {}).get(mime)
        alt = metadata.get("alt") if isinstance(metadata, dict) else None
        alt = alt or f"Figure of section {self.sections[-1].title or self.title}; the notebook does not describe it."
        alt = attribute(shortened(str(alt), _MOST_TEXT))
        source = f'<figure><img alt="{alt}" src="data:image/{short};base64,{"".join(data.split())}"></figure>'
        if not self.figure and short == "png":
            self.figure = f"data:image/png;base64,{bare_png(''.join(data.split()))}"
        return self._foreign(source)

    def _traceback(self, output: dict) -> Markup:
        name, value = text_of(output.get("ename")), text_of(output.get("evalue"))
        lines = "\n".join(map(text_of, output.get("traceback", []))) or f"{name}: {value}"
        return self._pre(terminal_text(lines), "traceback")

    def _pre(self, text: str, kind: str = "") -> Markup:
        text = shortened(text.rstrip("\n"), _MOST_TEXT, self._where, self.hide)
        kind = kind if kind in ("stderr", "traceback") else ""  # a class of the page, not the notebook's choice
        return Markup('<pre class="{}" dir="ltr">{}</pre>').format(kind, visible(text))

    @property
    def _where(self) -> str:
        return f"; all of it is in {self.source}" if self.source else ""


_as_html = mistune.create_markdown(escape=False, plugins=["strikethrough", "table", "url", "task_lists", "math"])
