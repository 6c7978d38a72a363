"""Helpers that every package may use: errors, whole files, progress, environment record, class lookup, numba cache."""
