"""Audit of anybody's run: read its log, check the logged numbers against each other, and say what is wrong and why."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
