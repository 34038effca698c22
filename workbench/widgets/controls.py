"""Controls above a result that follows them, with the state as text; what the explorers have in common."""

from collections.abc import Callable, Iterable, Mapping

import ipywidgets
import traitlets

from ..errors import WorkbenchError
from .markup import as_jupyter_output, status_line

_WIDE = ipywidgets.Layout(width="min(46em, 98%)")
_NARROW = ipywidgets.Layout(width="22em")


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

    Args:
        description: above the boxes.
        tooltip: of each.
        options: (label, value) pairs; all are chosen at first.

    Attributes:
        boxes: one an option.
        value: of the options that are ticked, a tuple.
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
    """Controls, a line that says ready, busy, refused or failed, and the result.

    ipywidgets' own `interactive_output` would clear the last good result when a value is refused, show a traceback for a
    word, and show nothing outside a kernel.

    Args:
        show: takes the controls' values by name and returns something with `_repr_html_`.
        controls: name -> control.
        first: the result for the values the controls start with, where it is known.

    Attributes:
        controls: name -> control.
        state: the line, an HTML widget.
        result: what is shown, an HTML widget; the last good result stays while the state says what is wrong.
    """

    def __init__(self, show: Callable, controls: Mapping[str, ipywidgets.Widget], first=None):
        self.show, self.controls = show, dict(controls)
        self.state, self.result = ipywidgets.HTML(), ipywidgets.HTML()
        for one in self.controls.values():
            one.observe(self.refresh, names="value")
        panel = ipywidgets.HBox(list(self.controls.values()), layout=ipywidgets.Layout(flex_flow="row wrap"))
        super().__init__([panel, self.state, self.result])
        self.refresh(first=first)

    def refresh(self, _=None, *, first=None) -> None:
        """Show the result for the controls' values, or `first`; a refusal of the library is shown as it words it."""
        self.state.value = status_line("busy", "computing ...")
        try:
            values = {name: one.value for name, one in self.controls.items()}
            result = self.show(**values) if first is None else first
            self.result.value = as_jupyter_output(result._repr_html_())
            self.state.value = status_line("ready", "the result below belongs to the controls above")
        except WorkbenchError as error:
            self.state.value = status_line("refused", str(error))
        except Exception as error:  # a traceback of a callback would end up in a log that nobody has open
            self.state.value = status_line("failed", f"{type(error).__name__}: {error}")
