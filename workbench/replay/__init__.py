"""One training step computed again, from numbers alone: no torch, no TRL."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
