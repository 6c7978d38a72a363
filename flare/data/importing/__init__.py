"""User files as a dataset."""
