"""The data set that a planned run names, opened before anything starts."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ...extras import install
from ...runs.parameters import notebook_cells
from ...runs.run import EMBEDDED_MODELS


def describe_data(notebook: Path, params: Mapping[str, object]) -> str:
    """Say what the parameter `dataset` of a run holds; empty where the notebook loads none by it, or one that is embedded.

    Raises:
        ParameterError: a file or folder that cannot be read, has no rows or no column `prompt`.
    """
    name = str(params.get("dataset") or "")
    if not name or name in EMBEDDED_MODELS or not _loads_prompts(notebook, params):
        return ""
    if find_spec("datasets") is None:  # another Python may execute the run, as on the nodes of Slurm
        return f"{name}: not opened, which needs {install('train')}"
    from datasets import disable_progress_bars

    from ...experiments.recipes import is_path, load_prompts
    from ...experiments.tasks import TASKS

    if name in TASKS:
        return ""
    if not is_path(name):
        return f"{name}, on the hub: not opened"
    disable_progress_bars()
    data = load_prompts(name)
    return f"{name}: {len(data)} rows; columns {', '.join(data.column_names)}"


def _loads_prompts(notebook: Path, params: Mapping[str, object]) -> bool:
    """Say whether the notebook reads the column `prompt` of `dataset`; another column it reads by itself."""
    cells = [cell for cell in notebook_cells(notebook) if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    return "load_prompts(" in code and params.get("column", "prompt") == "prompt"
