"""TRL's trainers with what runs need to be trustworthy. Each private part of TRL or vLLM has a test against the library."""

from ..trl_release import check_trl

check_trl()
