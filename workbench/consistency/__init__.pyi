# What `workbench.consistency` gives, each name loaded when it is first used.
from .padding import pad_batch, token_logprobs
from .positions import position_ids, with_position_ids
from .ratios import ratio_report

# fmt: off
__all__ = ["pad_batch", "position_ids", "ratio_report", "token_logprobs", "with_position_ids"]
