"""Embedded models and data, made on this machine: toy scale, for mechanisms and tests."""
