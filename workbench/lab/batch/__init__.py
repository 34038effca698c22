"""Notebooks in batch: parameter checks, execution through papermill, executors. Knows runs and nothing of RL."""
