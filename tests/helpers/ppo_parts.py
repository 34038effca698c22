"""PPO of TRL and of the workbench, None where the installed TRL has none: from 1.13 on."""

import functools

import pytest
from trl_version import HAS_PPO

PPOConfig = PPOTrainer = StockPPO = ppo_config = ppo_trainer = train_ppo = None
if HAS_PPO:
    from workbench.lab.late_vllm import import_vllm_late

    import_vllm_late()  # as conftest does in its own process: this TRL cannot import a vLLM after 0.27.1
    from trl.experimental.ppo import PPOConfig, ppo_trainer
    from trl.experimental.ppo import PPOTrainer as StockPPO

    from workbench.experiments.train import ppo_config, train
    from workbench.training.ppo import PPOTrainer

    train_ppo = functools.partial(train, trainer=PPOTrainer, reward_funcs="random weights")

needs_ppo = pytest.mark.skipif(not HAS_PPO, reason="this TRL has no PPOTrainer; it left TRL with 1.13")
__all__ = ["HAS_PPO", "PPOConfig", "PPOTrainer", "StockPPO", "needs_ppo", "ppo_config", "ppo_trainer", "train_ppo"]
