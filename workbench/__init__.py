"""Workbench: trustworthy RL fine-tuning runs of language models, in notebooks.

The names of `__init__.pyi` are all that most users need; `docs/api.md` says what each is for. A name is imported when it is
first used, so that importing this package loads no heavy library.
"""

from importlib.util import find_spec
from pathlib import Path

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# `import *` loads every name of `__all__`: without PPO in TRL its two are left out; asked for by name, they say why.
if (_trl := find_spec("trl")) and not (Path(_trl.origin).parent / "experimental" / "ppo").is_dir():
    __all__ = [name for name in __all__ if name not in ("PPOTrainer", "train_ppo")]
