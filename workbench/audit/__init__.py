"""Audit of anybody's run: read its log, check the logged numbers against each other, and say what is wrong and why."""
