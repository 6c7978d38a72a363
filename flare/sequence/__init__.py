"""Long Range Arena: tasks on sequences of tokens, one encoder, and the attentions that the paper compares.

The tables of this module refer to classes by `module:class`, so that tasks can be listed without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flare.sequence.classifier import load_classifier as load_classifier
    from flare.sequence.encoder import SequenceEncoder as SequenceEncoder

__all__ = ["COMMANDS", "GENERATORS", "READERS", "SequenceEncoder", "load_classifier"]

GENERATORS: dict[str, str] = {
    "listops": "flare.sequence.listops:ListOps",
    "pathfinder": "flare.sequence.pathfinder:Pathfinder",
}
"""Task -> class of its generator."""
READERS: dict[str, str] = {
    "image": "flare.sequence.image:ImageFiles",
    "listops": "flare.sequence.listops:ListOpsFiles",
    "pathfinder": "flare.sequence.pathfinder:PathfinderFiles",
    "retrieval": "flare.sequence.retrieval:RetrievalFiles",
    "text": "flare.sequence.text:TextFiles",
}
"""Task -> class of the reader of its published files."""
SHORT_LISTOPS = {"min_length": 10, "max_length": 80, "max_depth": 3}
"""Options of the generator for the dataset of preset `listops-small`."""
SHORT_SIZES = {"samples": 54_000, "val_samples": 2_000, "test_samples": 2_000}
COMMANDS: dict[str, str] = {
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
"""Dataset folder of a preset -> command that makes it, without --out."""


def __getattr__(name: str) -> Any:
    modules = {"SequenceEncoder": "flare.sequence.encoder", "load_classifier": "flare.sequence.classifier"}
    if name not in modules:
        raise AttributeError(f"module 'flare.sequence' has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)
