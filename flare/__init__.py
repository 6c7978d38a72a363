"""FLARE: neural surrogates on meshes of up to millions of points. The public names, loaded when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flare.data.dataset import Dataset as Dataset
    from flare.data.importing.importer import import_data as import_data
    from flare.mixer import mix as mix
    from flare.models import build_model as build_model
    from flare.models import use_backend as use_backend
    from flare.models.flare import FLARE as FLARE
    from flare.models.flare import FLAREBlock as FLAREBlock
    from flare.models.flare import FLAREModel as FLAREModel
    from flare.models.flare import ResMLP as ResMLP
    from flare.surrogate import Surrogate as Surrogate
    from flare.surrogate import load as load

# torch takes over a second to import: whoever only asks for --help should not wait for it.
_HOMES = {
    "load": "flare.surrogate",
    "Surrogate": "flare.surrogate",
    "Dataset": "flare.data.dataset",
    "import_data": "flare.data.importing.importer",
    "mix": "flare.mixer",
    "build_model": "flare.models",
    "use_backend": "flare.models",
    "FLARE": "flare.models.flare",
    "FLAREBlock": "flare.models.flare",
    "FLAREModel": "flare.models.flare",
    "ResMLP": "flare.models.flare",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flare' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
