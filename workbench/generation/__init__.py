"""When completions end, and completions from every back end in one form."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
