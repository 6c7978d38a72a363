"""Helpers for every package: errors, atomic files, progress, environment record, registries, numba cache."""

__version__ = "0.1.0"
