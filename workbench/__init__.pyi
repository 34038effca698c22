# The public face: the list that `__init__.py` loads from, and what type checkers and tab completion see.
from .audit.live import watch_training
from .audit.report import audit_run
from .consistency.padding import pad_batch, token_logprobs
from .consistency.positions import position_ids, with_position_ids
from .consistency.ratios import ratio_report
from .curves.compare import another_seed
from .curves.curve import Curve
from .curves.documented import load_baseline
from .curves.figures import show_curves
from .curves.stats import seed_interval
from .diagnostics.attribution import attribute_mismatch
from .diagnostics.duplicate_report import duplicate_report
from .diagnostics.mismatch import mismatch_report
from .diagnostics.padding_monitor import monitor_padding
from .diagnostics.padding_report import padding_report
from .diagnostics.sampler_probe import probe_sampler
from .diagnostics.stop_report import stop_report
from .generation.preflight import save_policy
from .generation.sampling import Sampling, ServerSampler, TransformersSampler, VLLMSampler, generate
from .generation.stops import StopRule, StopSpec
from .recipes.ppo import PPOTrainer, train_ppo
from .recipes.recipes import load_prompts, make_recipe, resolve_model
from .recipes.train import train_grpo, train_online_dpo, train_rloo
from .runs.results import Result, save_result, show_results
from .runs.run import list_runs, load_run, open_run
from .training.groups import check_groups
from .training.grpo import GRPOTrainer, RLOOTrainer
from .training.online_dpo import OnlineDPOTrainer
from .training.rewards import exact_match_reward, length_reward
from .trl_release import use_trl

__version__: str
# fmt: off
__all__ = [
    "another_seed", "attribute_mismatch", "audit_run", "check_groups", "Curve", "duplicate_report", "exact_match_reward",
    "generate", "GRPOTrainer", "length_reward", "list_runs", "load_baseline", "load_prompts", "load_run", "make_recipe",
    "mismatch_report", "monitor_padding", "OnlineDPOTrainer", "open_run", "pad_batch", "padding_report", "position_ids",
    "PPOTrainer", "probe_sampler", "ratio_report", "resolve_model", "Result", "RLOOTrainer", "Sampling", "save_policy",
    "save_result", "seed_interval", "ServerSampler", "show_curves", "show_results", "stop_report", "StopRule", "StopSpec",
    "token_logprobs", "train_grpo", "train_online_dpo", "train_ppo", "train_rloo", "TransformersSampler", "use_trl",
    "VLLMSampler", "watch_training", "with_position_ids",
]
