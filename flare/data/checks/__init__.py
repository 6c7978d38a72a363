"""Checks of datasets and user files, and fixes."""
