"""Callbacks and checks that look at a running training and change nothing."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
