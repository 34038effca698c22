"""Anybody's log, read: canonical names of metrics, completions, settings, and what is damaged."""
