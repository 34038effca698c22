"""Any loss of GRPO or RLOO, asked what the reference of this package answers: same, other by choice, or wrong."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
