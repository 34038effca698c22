"""Views over the library for JupyterLab.

Each call returns something that shows itself as the last line of a cell: controls over a result with `interactive=True`, and
with `interactive=False`, as in a batch, the same result for the defaults, made by the same function, and no widget at all.
"""

from .. import need_lab

need_lab("a view for JupyterLab", "ipywidgets", "IPython")

from .padding_explorer import padding_explorer  # noqa: E402
from .run_comparer import run_comparer  # noqa: E402
from .stop_explorer import stop_explorer  # noqa: E402
from .training_view import train_live, watch  # noqa: E402

__all__ = ["padding_explorer", "run_comparer", "stop_explorer", "train_live", "watch"]
