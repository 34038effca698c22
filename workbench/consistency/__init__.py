"""Same tokens, same numbers: padding, positions, and sampler against scorer."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
