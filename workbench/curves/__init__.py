"""What a reward curve is, how sure one can be of it, and when two agree."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
