"""When completions end, and what is checked and saved so that trainer and sampler agree on it."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
