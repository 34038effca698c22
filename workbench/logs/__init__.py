"""Anybody's log, read: canonical names of metrics, completions, settings, and what is damaged."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
