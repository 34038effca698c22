# The names at the top: the list that `__init__.py` loads from, and what type checkers and tab completion see.
from . import conform as conform
from . import consistency as consistency
from . import curves as curves
from . import generation as generation
from . import logs as logs
from . import replay as replay
from . import reward as reward
from . import runs as runs
from . import watch as watch
from .audit.report import audit_run
from .consistency.padding_report import padding_report
from .consistency.positions import with_position_ids
from .curves.figures import show_curves
from .experiments.recipes import load_prompts, make_recipe, resolve_model
from .generation.stops import StopSpec
from .replay.file import replay_step
from .runs.results import Result, save_result, show_results
from .runs.run import open_run
from .training.grpo import GRPOTrainer, RLOOTrainer
from .training.ppo import PPOTrainer
from .training.rewards import exact_match_reward, length_reward
from .trl_release import use_trl
from .watch.assert_step import assert_step
from .watch.attach import attach_watch
from .watch.check_step import check_step

__version__: str
# fmt: off
__all__ = [
    "audit_run", "attach_watch", "check_step", "assert_step", "replay_step", "GRPOTrainer", "RLOOTrainer", "PPOTrainer",
    "StopSpec", "exact_match_reward", "length_reward", "padding_report", "with_position_ids", "load_prompts", "make_recipe",
    "resolve_model", "open_run", "Result", "save_result", "show_results", "show_curves", "use_trl",
]
