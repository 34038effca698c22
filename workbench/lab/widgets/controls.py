"""What the views share: controls above a result that follows them, the state as text."""

from collections.abc import Callable, Iterable, Mapping

import ipywidgets
import traitlets

from ...errors import WorkbenchError
from ...runs.text import visible

_WIDE = ipywidgets.Layout(width="min(46em, 98%)")
_NARROW = ipywidgets.Layout(width="22em")

_MARKS = dict.fromkeys(("ready", "trained", "done"), "\u2713")
_MARKS |= {"refused": "!", "failed": "\u2717", "interrupted": "\u2016"}


def status_line(state: str, text: str) -> str:
    """A state as a sign, a word and a sentence; a screen reader reads it out when it changes."""
    weight = "font-weight:bold" if state in ("refused", "failed") else ""
    mark = _MARKS.get(state, "\u2022")
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

    `options` are (label, value) pairs, all chosen at first; `value` holds those that are ticked.
    """

    value = traitlets.Tuple()

    def __init__(self, description: str, tooltip: str, options: Iterable[tuple[str, object]]):
        options = list(options)
        look = {"tooltip": tooltip, "indent": False, "layout": ipywidgets.Layout(width="97%")}
        self.boxes = [ipywidgets.Checkbox(True, description=label, **look) for label, _ in options]
        scrolled = ipywidgets.VBox(self.boxes, layout=ipywidgets.Layout(max_height="15em", overflow="auto"))
        super().__init__([ipywidgets.Label(description), scrolled], layout=ipywidgets.Layout(width="min(42em, 98%)"))
        self.description = description

        def count(_=None):
            self.value = tuple(value for box, (_, value) in zip(self.boxes, options, strict=True) if box.value)

        count()
        for box in self.boxes:
            box.observe(count, names="value")


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
