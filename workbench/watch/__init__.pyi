# What `workbench.watch` gives, each name loaded when it is first used.
from .assert_step import assert_step
from .attach import attach_watch
from .check_step import check_step
from .padding_monitor import attach_padding_monitor
from .sampler_probe import attach_sampler_probe
from .update_share import UpdateShare

__all__ = ["UpdateShare", "assert_step", "attach_padding_monitor", "attach_sampler_probe", "attach_watch", "check_step"]
