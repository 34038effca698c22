"""Controls above a result that follows them, with the state in words; what the explorers have in common."""

from collections.abc import Callable, Mapping

import ipywidgets

from ..errors import WorkbenchError
from .markup import framed, said

WIDE = ipywidgets.Layout(width="min(46em, 98%)")
_NARROW = ipywidgets.Layout(width="22em")


def control(kind: type, description: str, tooltip: str, value=None, **options):
    """One control with its label and tooltip; text counts once Enter is pressed or the control is left."""
    options = {"layout": _NARROW, "style": {"description_width": "9em"}} | options
    if "continuous_update" in kind.class_trait_names():
        options["continuous_update"] = False
    if value is not None:
        options["value"] = value
    return kind(description=description, tooltip=tooltip, **options)


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
