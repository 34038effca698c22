"""Embedded models and data, shipped with the package: toy scale, for mechanisms and tests."""
