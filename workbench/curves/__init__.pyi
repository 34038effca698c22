# What `workbench.curves` gives, each name loaded when it is first used.
from .compare import another_seed
from .curve import Curve
from .documented import list_baselines, load_baseline
from .figures import show_curves
from .stats import crossed_interval, seed_interval, seeds_needed, share_interval

# fmt: off
__all__ = [
    "Curve", "another_seed", "crossed_interval", "list_baselines", "load_baseline",
    "seed_interval", "seeds_needed", "share_interval", "show_curves",
]
