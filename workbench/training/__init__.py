"""TRL's trainers with what runs need to be trustworthy. Each private part of TRL or vLLM has a test against the library."""

import os

from ..generation.preflight import check_trl
from .late_vllm import import_vllm_late

# PPO and OnlineDPO live in trl.experimental; the versions are known.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
check_trl()
import_vllm_late()
