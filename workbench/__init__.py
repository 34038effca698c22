"""Workbench: trustworthy RL fine-tuning runs of language models, in notebooks.

The names of `__init__.pyi` are what most scripts need; `docs/api.md` has each with its arguments. The rest is in
`workbench.curves`, `runs`, `diagnostics`, `generation`, `consistency` and `experiments`. A name is imported when it is first
used, so importing this package loads no heavy library.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lazy_loader

__version__ = "0.2.0"
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Names of version 0.1, found for one release more, and the part that has them now.
_MOVED = {
    "curves": "Curve another_seed load_baseline seed_interval",
    "runs": "list_runs load_run",
    "diagnostics": "attribute_mismatch duplicate_report mismatch_report",
    "generation": "Sampling StopRule TransformersSampler VLLMSampler generate save_policy",
    "consistency": "pad_batch position_ids ratio_report token_logprobs",
    "experiments.train": "train_grpo train_online_dpo train_ppo train_rloo",
    "training.groups": "check_groups",
}


def __getattr__(name: str) -> Any:
    for part, names in _MOVED.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{part}"), name)
    return _load(name)


# `import *` gives no modules and, without PPO in TRL, not its trainer; asked for by name, that says why.
__all__ = [name for name in __all__ if not find_spec(f"{__name__}.{name}")]
if (_trl := find_spec("trl")) and not (Path(_trl.origin).parent / "experimental" / "ppo").is_dir():
    __all__.remove("PPOTrainer")
