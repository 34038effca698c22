"""What a reward pays for: from recorded completions, against placebos, and before a training on answers made to fool it."""

from ..extras import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
