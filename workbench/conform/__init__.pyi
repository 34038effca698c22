# What `workbench.conform` gives, each name loaded when it is first used.
from .case import Case, NotOffered, with_torch

__all__ = ["Case", "NotOffered", "with_torch"]
