"""What the views share: controls above a result that follows them, the state as text."""

from collections.abc import Callable, Collection, Iterable, Mapping

import ipywidgets
import traitlets

from ...errors import WorkbenchError
from ...runs.text import visible

_WIDE = ipywidgets.Layout(width="min(46em, 98%)")
_NARROW = ipywidgets.Layout(width="22em")
_SEARCH, _BUTTON = ipywidgets.Layout(width="14em"), ipywidgets.Layout(width="4.5em")

_MARKS = dict.fromkeys(("ready", "trained", "done"), "\u2713")
_MARKS |= {"refused": "!", "failed": "\u2717", "interrupted": "\u2016"}


def status_line(state: str, text: str, *, problem: bool = False) -> str:
    """A state as a sign, a word and a sentence; a screen reader reads it out when it changes. With a problem no tick."""
    weight = "font-weight:bold" if problem or state in ("refused", "failed") else ""
    mark = _MARKS["failed"] if problem else _MARKS.get(state, "\u2022")
    return f'<p role="status" aria-live="polite" style="{weight}">{mark} {state}: {visible(text, 1000)}</p>'


def as_jupyter_output(inner: str) -> str:
    """HTML marked as a cell's output; without the mark JupyterLab draws tables inside a widget without its style."""
    return f'<div class="jp-RenderedHTMLCommon" style="padding-right:0">{inner}</div>'


def control(kind: type, description: str, tooltip: str, **options):
    """One control with its label and tooltip; text counts once Enter is pressed or the control is left."""
    layout = _WIDE if kind is ipywidgets.Textarea else _NARROW
    if kind is ipywidgets.Dropdown:
        tooltip += "; Space opens the list"  # JupyterLab takes the arrow keys of a closed list for itself
    if "continuous_update" in kind.class_trait_names():
        options["continuous_update"] = False
    return kind(description=description, tooltip=tooltip, layout=layout, style={"description_width": "9em"}, **options)


class Choices(ipywidgets.VBox):
    """Several of many, each with a box to tick: in a list of several selected, JupyterLab would take the arrow keys.

    `options` are (label, value) pairs, of which those with a value in `chosen` begin ticked (None: all); `value` holds those
    that are ticked. A search shows the boxes with its words; `all` and `none` tick and clear the boxes that are shown.
    `empty` is shown where there are no options.
    """

    value = traitlets.Tuple()

    def __init__(
        self,
        description: str,
        tooltip: str,
        options: Iterable[tuple[str, object]],
        *,
        chosen: Collection | None = None,
        empty: str = "none",
    ):
        self.description, self._options, self._together = description, list(options), False
        self.boxes = [self._box(label, tooltip, chosen is None or value in chosen) for label, value in self._options]
        words = f"shows the {description} with all of these words"
        self.head = ipywidgets.Label(layout=ipywidgets.Layout(margin="2px 1.5em 2px 2px"))
        self.search = ipywidgets.Text(
            description="search", tooltip=words, layout=_SEARCH, style={"description_width": "initial"}
        )
        self.all, self.none = (
            ipywidgets.Button(description=word, tooltip=f"{word} of the {description} shown here", layout=_BUTTON)
            for word in ("all", "none")
        )
        self.all.on_click(lambda _: self._tick(True))
        self.none.on_click(lambda _: self._tick(False))
        self.search.observe(self._filter, names="value")
        scrolled = ipywidgets.VBox(self.boxes, layout=ipywidgets.Layout(max_height="15em", overflow="auto"))
        tools = ipywidgets.HBox(
            [self.head, self.search, self.all, self.none], layout=ipywidgets.Layout(flex_flow="row wrap")
        )
        parts = [tools, scrolled] if self.boxes else [ipywidgets.Label(f"{description}: {empty}")]
        super().__init__(parts, layout=ipywidgets.Layout(width="min(42em, 98%)"))
        self._count()
        for box in self.boxes:
            box.observe(self._count, names="value")

    @staticmethod
    def _box(label: str, tooltip: str, ticked: bool) -> ipywidgets.Checkbox:
        layout = ipywidgets.Layout(width="97%", flex="0 0 auto")  # its own, as a search hides single boxes
        return ipywidgets.Checkbox(ticked, description=label, tooltip=tooltip, indent=False, layout=layout)

    def _count(self, _=None) -> None:
        if self._together:  # one change and not one for each box, as each draws the result anew
            return
        self.value = tuple(value for box, (_, value) in zip(self.boxes, self._options, strict=True) if box.value)
        self.head.value = f"{self.description}: {len(self.value)} of {len(self.boxes)}"

    def _tick(self, ticked: bool) -> None:
        self._together = True
        for box in self.boxes:
            if box.layout.display != "none":
                box.value = ticked
        self._together = False
        self._count()

    def _filter(self, _=None) -> None:
        words = self.search.value.lower().split()
        for box in self.boxes:
            shown = all(word in box.description.lower() for word in words)
            box.layout.display = "" if shown else "none"


class Explorer(ipywidgets.VBox):
    """Controls, a line that says ready, busy, refused or failed, and what `show` returns for the controls' values.

    ipywidgets' own `interactive_output` would clear the last good result when a value is refused, show a traceback for a
    word, and show nothing outside a kernel.
    """

    def __init__(self, show: Callable, controls: Mapping[str, ipywidgets.Widget]):
        self.show, self.controls = show, dict(controls)
        self.state, self.result = ipywidgets.HTML(), ipywidgets.HTML()
        for one in self.controls.values():
            one.observe(self.refresh, names="value")
        panel = ipywidgets.HBox(list(self.controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        super().__init__([panel, self.state, self.result])
        self.refresh()

    def refresh(self, _=None) -> None:
        """Show the result for the controls' values; a refusal of the library is shown as it words it."""
        self.state.value = status_line("busy", "computing ...")
        try:
            result = self.show(**{name: one.value for name, one in self.controls.items()})
            self.result.value = as_jupyter_output(result._repr_html_())
            self.state.value = status_line("ready", "the result below belongs to the controls above")
        except WorkbenchError as error:
            self.state.value = status_line("refused", str(error))
        except Exception as error:  # a traceback of a callback would end up in a log that nobody has open
            self.state.value = status_line("failed", f"{type(error).__name__}: {error}")
