# What `workbench.conform` gives, each name loaded when it is first used.
from .case import Case, NotOffered, with_torch
from .report import ConformReport, Verdict, conform_report

__all__ = ["Case", "NotOffered", "with_torch", "conform_report", "ConformReport", "Verdict"]
