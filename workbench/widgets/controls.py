"""Controls above a result that follows them, with the state in words; what the explorers have in common."""

from collections.abc import Callable, Iterable, Mapping

import ipywidgets
import traitlets

from ..errors import WorkbenchError
from .markup import framed, said

WIDE = ipywidgets.Layout(width="min(46em, 98%)")
OPENS = "Space opens the list"  # JupyterLab takes the arrow keys of a closed list for itself
_NARROW = ipywidgets.Layout(width="22em")


def control(kind: type, description: str, tooltip: str, value=None, **options):
    """One control with its label and tooltip; text counts once Enter is pressed or the control is left."""
    options = {"layout": _NARROW, "style": {"description_width": "9em"}} | options
    if "continuous_update" in kind.class_trait_names():
        options["continuous_update"] = False
    if value is not None:
        options["value"] = value
    return kind(description=description, tooltip=tooltip, **options)


class Choices(ipywidgets.VBox):
    """Several of many, each with a box to tick: of a list with several selected JupyterLab would take the arrow keys.

    Args:
        description: above the boxes.
        tooltip: of each.
        options: (label, value) pairs; all are chosen at first.
    """

    value = traitlets.Tuple()
    description = traitlets.Unicode()

    def __init__(self, description: str, tooltip: str, options: Iterable[tuple[str, object]]):
        options, told = list(options), {"tooltip": tooltip, "indent": False, "layout": ipywidgets.Layout(width="97%")}
        self._boxes = [(ipywidgets.Checkbox(True, description=label, **told), one) for label, one in options]
        self._setting = False
        for box, _ in self._boxes:
            box.observe(self._ticked, names="value")
        ticks = ipywidgets.VBox(
            [box for box, _ in self._boxes], layout=ipywidgets.Layout(max_height="15em", overflow="auto")
        )
        super().__init__(
            [ipywidgets.Label(description), ticks],
            value=tuple(one for _, one in options),
            description=description,
            layout=ipywidgets.Layout(width="min(42em, 98%)"),
        )

    def _ticked(self, _) -> None:
        if not self._setting:
            self.value = tuple(one for box, one in self._boxes if box.value)

    @traitlets.observe("value")
    def _tick(self, change) -> None:
        self._setting = True
        for box, one in self._boxes:
            box.value = one in change["new"]
        self._setting = False


class Explorer(ipywidgets.VBox):
    """Controls, a line that says ready, busy, refused or failed, and the result.

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
        if first is None:
            self.refresh()
        else:
            self._ready(first)

    def refresh(self, _=None) -> None:
        """Show the result for the controls as they stand; a refusal of the library is shown in its own words."""
        self.state.value = said("busy", "computing ...")
        try:
            self._ready(self.show(**{name: one.value for name, one in self.controls.items()}))
        except WorkbenchError as error:
            self.state.value = said("refused", str(error))
        except Exception as error:  # a traceback of a callback would end up in a log that nobody has open
            self.state.value = said("failed", f"{type(error).__name__}: {error}")

    def _ready(self, result) -> None:
        self.result.value = framed(result._repr_html_())
        self.state.value = said("ready", "the result below belongs to the controls above")
