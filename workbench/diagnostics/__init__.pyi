# What `workbench.diagnostics` gives, each name loaded when it is first used.
from .attribution import attribute_mismatch
from .duplicate_report import duplicate_report
from .mismatch import mismatch_report
from .padding_monitor import monitor_padding
from .padding_report import padding_report
from .sampler_probe import probe_sampler

# fmt: off
__all__ = [
    "attribute_mismatch", "duplicate_report", "mismatch_report",
    "monitor_padding", "padding_report", "probe_sampler",
]
