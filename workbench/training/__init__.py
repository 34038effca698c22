"""TRL's trainers with what runs need to be trustworthy. The only folder that touches private parts of TRL and vLLM.

Each private part is exercised by a test against the real library, so a new TRL or vLLM fails there first.
"""

import os

from ..generation.preflight import check_trl
from .late_vllm import import_vllm_late

# PPO and OnlineDPO live in trl.experimental; the versions are known.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
check_trl()
import_vllm_late()
