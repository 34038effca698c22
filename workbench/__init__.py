"""Workbench: trustworthy RL fine-tuning runs of language models, in notebooks.

The names of `__init__.pyi` are what most scripts need; the site (`make docs`) has each with its arguments. The rest is in
`workbench.audit`, `logs`, `replay`, `watch`, `curves`, `runs`, `generation`, `consistency` and `experiments`. A name is
imported when it is first used, so importing this package loads no heavy library.
"""

from importlib.util import find_spec
from pathlib import Path

from .extras import attach_names

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = attach_names(__name__, __file__)


# `import *` gives no modules and, without PPO in TRL, not its trainer; asked for by name, that says why.
__all__ = [name for name in __all__ if not find_spec(f"{__name__}.{name}")]
if (_trl := find_spec("trl")) and not (Path(_trl.origin).parent / "experimental" / "ppo").is_dir():
    __all__.remove("PPOTrainer")
