"""FLARE: neural surrogates on meshes of up to millions of points.

The public names are imported on first use, so that `import flare` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flare.utils import __version__

if TYPE_CHECKING:
    from flare.data.dataset import Dataset as Dataset
    from flare.data.importing.importer import import_data as import_data
    from flare.data.sample import Field as Field
    from flare.data.sample import Sample as Sample
    from flare.data.sample import Schema as Schema
    from flare.data.writer import DatasetWriter as DatasetWriter
    from flare.inference.surrogate import Surrogate as Surrogate
    from flare.inference.surrogate import load as load
    from flare.mesh import Mesh as Mesh
    from flare.mesh import read_mesh as read_mesh
    from flare.mixer import mix as mix
    from flare.models import build_model as build_model
    from flare.models import register_model as register_model
    from flare.models import use_backend as use_backend
    from flare.models.flare import FLARE as FLARE
    from flare.models.flare import FLAREBlock as FLAREBlock
    from flare.models.flare import FLAREModel as FLAREModel
    from flare.models.flare import ResMLP as ResMLP
    from flare.physics import register_dataset as register_dataset
    from flare.train import train as train
    from flare.train.config import register_loss as register_loss
    from flare.train.config import register_optimizer as register_optimizer

_HOMES = {
    "flare.data.dataset": ["Dataset"],
    "flare.data.importing.importer": ["import_data"],
    "flare.data.sample": ["Field", "Sample", "Schema"],
    "flare.data.writer": ["DatasetWriter"],
    "flare.inference.surrogate": ["Surrogate", "load"],
    "flare.mesh": ["Mesh", "read_mesh"],
    "flare.mixer": ["mix"],
    "flare.models": ["build_model", "register_model", "use_backend"],
    "flare.models.flare": ["FLARE", "FLAREBlock", "FLAREModel", "ResMLP"],
    "flare.physics": ["register_dataset"],
    "flare.train.config": ["register_loss", "register_optimizer"],
}
"""Module -> public names in it. `flare.train` is the package of that name, which can be called."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["__version__", "train", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "train":
        return import_module("flare.train")
    if name not in _MODULES:
        raise AttributeError(f"module 'flare' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
