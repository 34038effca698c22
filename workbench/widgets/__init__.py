"""Views over the library for JupyterLab.

Each call returns something that shows itself as the last line of a cell: controls over a result with `interactive=True`, and
with `interactive=False`, as in a batch, the same result for the defaults, made by the same function, and no widget at all.
"""

from .padding_explorer import padding_explorer
from .run_comparer import run_comparer
from .stop_explorer import stop_explorer
from .training_view import train_live, watch

__all__ = ["padding_explorer", "run_comparer", "stop_explorer", "train_live", "watch"]
