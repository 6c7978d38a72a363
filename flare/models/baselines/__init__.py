"""Baselines: the models that FLARE is compared with, one file each."""
