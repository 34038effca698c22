# What `workbench.logs` gives, each name loaded when it is first used.
from .read import read_logs
from .reader import reader

# fmt: off
__all__ = ["read_logs", "reader"]
