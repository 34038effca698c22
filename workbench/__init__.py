"""Workbench: trustworthy RL fine-tuning runs of language models, in notebooks.

Importing this package loads no heavy library; each module imports what it needs when it is used.
"""

__version__ = "0.1.0"
