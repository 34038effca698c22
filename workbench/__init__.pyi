# The public face: the list that `__init__.py` loads from, and what type checkers and tab completion see.
from .audit.live import watch_training
from .audit.report import audit_run
from .consistency.attribution import attribute_mismatch
from .consistency.mismatch import mismatch_report
from .consistency.padding import pad_batch, token_logprobs
from .consistency.padding_report import padding_report
from .consistency.positions import position_ids, with_position_ids
from .consistency.ratios import ratio_report
from .curves.agreement import agreement
from .curves.baselines import load_baseline
from .curves.beside import show_beside
from .curves.curve import Curve
from .curves.stats import seed_interval
from .generation.backends import save_policy
from .generation.rollouts import Sampling, ServerSampler, TransformersSampler, VLLMSampler, generate
from .generation.stop_audit import stop_report
from .generation.stops import StopRule, StopSpec
from .runs.run import list_runs, load_run, open_run, save_result
from .studies.duplicate_report import duplicate_report
from .training.groups import check_groups
from .training.grpo import GRPOTrainer, RLOOTrainer, train_grpo, train_rloo
from .training.monitoring import monitor_padding
from .training.online_dpo import OnlineDPOTrainer, train_online_dpo
from .training.ppo import PPOTrainer, train_ppo
from .training.recipes import load_prompts, make_recipe, resolve_model
from .training.rewards import exact_match_reward, length_reward
from .training.sampler_probe import probe_sampler

__version__: str
# fmt: off
__all__ = [
    "agreement", "attribute_mismatch", "audit_run", "check_groups", "Curve", "duplicate_report", "exact_match_reward",
    "generate", "GRPOTrainer", "length_reward", "list_runs", "load_baseline", "load_prompts", "load_run", "make_recipe",
    "mismatch_report", "monitor_padding", "OnlineDPOTrainer", "open_run", "pad_batch", "padding_report", "position_ids",
    "PPOTrainer", "probe_sampler", "ratio_report", "resolve_model", "RLOOTrainer", "Sampling", "save_policy", "save_result",
    "seed_interval", "ServerSampler", "show_beside", "stop_report", "StopRule", "StopSpec", "token_logprobs", "train_grpo",
    "train_online_dpo", "train_ppo", "train_rloo", "TransformersSampler", "VLLMSampler", "watch_training", "with_position_ids",
]
