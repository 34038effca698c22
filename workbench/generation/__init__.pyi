# What `workbench.generation` gives, each name loaded when it is first used.
from .preflight import save_policy
from .stops import StopRule, StopSpec
from .template import TemplateReport, check_template

# fmt: off
__all__ = ["StopRule", "StopSpec", "TemplateReport", "check_template", "save_policy"]
