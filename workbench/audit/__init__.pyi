# What `workbench.audit` gives, each name loaded when it is first used.
from .finding import absent, found, unknown
from .report import audit_run
from .rule import rule

# fmt: off
__all__ = ["absent", "audit_run", "found", "rule", "unknown"]
