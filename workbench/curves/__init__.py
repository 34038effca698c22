"""What a reward curve is, how sure one can be of it, and when two agree."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
