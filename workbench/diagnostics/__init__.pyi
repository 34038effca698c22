# What `workbench.diagnostics` gives, each name loaded when it is first used.
from .attribution import attribute_mismatch
from .check_step import check_step
from .duplicate_report import duplicate_report
from .mismatch import mismatch_report
from .padding_monitor import attach_padding_monitor
from .padding_report import padding_report
from .sampler_probe import attach_sampler_probe
from .step_file import replay_step
from .update_share import UpdateShare

# fmt: off
__all__ = [
    "attribute_mismatch", "check_step", "duplicate_report", "mismatch_report",
    "attach_padding_monitor", "padding_report", "attach_sampler_probe", "replay_step", "UpdateShare",
]
