"""Workbench: trustworthy RL fine-tuning runs of language models, in notebooks.

The names of `__init__.pyi` are all that most users need; `docs/api.md` says what each is for. A name is imported when it is
first used, so that importing this package loads no heavy library.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
