# What `workbench.consistency` gives, each name loaded when it is first used.
from .mismatch import mismatch_report
from .padding import pad_batch, token_logprobs
from .padding_report import padding_report
from .positions import position_ids, with_position_ids
from .ratios import ratio_report

# fmt: off
__all__ = [
    "mismatch_report", "pad_batch", "padding_report", "position_ids", "ratio_report", "token_logprobs", "with_position_ids",
]
