"""Which command gives the data of each preset of sequences."""

from __future__ import annotations

SHORT_LISTOPS = {"min_length": 10, "max_length": 80, "max_depth": 3}
"""Options of the expressions of `listops-small`."""
SHORT_SIZES = {"samples": 54_000, "val_samples": 2_000, "test_samples": 2_000}

HOW_TO_MAKE = {
    "image": "flare data download image",
    "image-small": "flare data download image --side 8 --levels 16",
    "listops": "flare data make listops",
    "listops-small": " ".join(
        [
            "flare data make listops",
            *(f"--{option} {value}" for option, value in SHORT_LISTOPS.items()),
            *(f"--{size.replace('_', '-')} {count}" for size, count in SHORT_SIZES.items()),
        ]
    ),
    "pathfinder": "flare data make pathfinder",
    "retrieval": "flare data read retrieval --folder FILES",
    "text": "flare data download text",
}
"""Preset, which is also the name of its folder -> the command, without --out."""
