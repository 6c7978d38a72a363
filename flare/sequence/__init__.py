"""Long Range Arena: tasks on sequences of tokens, one encoder, and the attentions that the paper compares.

The tables of this module refer to classes by `module:class`, so that tasks can be listed without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flare.sequence.classifier import load_classifier as load_classifier
    from flare.sequence.encoder import SequenceEncoder as SequenceEncoder

__all__ = ["GENERATORS", "READERS", "SequenceEncoder", "load_classifier"]

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


def __getattr__(name: str) -> Any:
    modules = {"SequenceEncoder": "flare.sequence.encoder", "load_classifier": "flare.sequence.classifier"}
    if name not in modules:
        raise AttributeError(f"module 'flare.sequence' has no attribute {name!r}")
    return getattr(import_module(modules[name]), name)
