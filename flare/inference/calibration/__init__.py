"""Calibration: conformal error bars, OOD score, ranges of the parameters."""
