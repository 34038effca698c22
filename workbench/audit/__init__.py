"""Audit of anybody's run: read its log, check the logged numbers against each other, and say what is wrong and why."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
