# What `workbench.runs` gives, each name loaded when it is first used.
from .results import Result, save_result, show_results
from .run import list_runs, load_run, open_run

# fmt: off
__all__ = ["Result", "list_runs", "load_run", "open_run", "save_result", "show_results"]
