"""FLARE and its peers behind one door: `build_model(name, in_dim, out_dim, **sizes)`.

Every model maps `[B, N, in_dim]` to `[B, N, out_dim]` with `forward(x, mask=None)`, mask `[B, N]`, True at real points.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module

from torch import nn

from flare.mixer import check_backend
from flare.utils.errors import ConfigError, nearest

MODELS: dict[str, str] = {
    "flare": "flare.models.flare:FLAREModel",
    "transformer": "flare.models.baselines.transformer:Transformer",
    "perceiver": "flare.models.baselines.perceiver:PerceiverIO",
    "transolver": "flare.models.baselines.transolver:Transolver",
    "transolver++": "flare.models.baselines.transolver_pp:TransolverPP",
    "lno": "flare.models.baselines.lno:LNO",
    "gnot": "flare.models.baselines.gnot:GNOT",
}
"""Name -> where the class lives. A new model is one file and one line here; see CONTRIBUTING.md."""


def model_class(name: str) -> type[nn.Module]:
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}; {nearest(name, MODELS)}")
    module, attribute = MODELS[name].split(":")
    return getattr(import_module(module), attribute)


def model_options(name: str) -> dict[str, object]:
    """The keyword arguments of a model beyond in_dim and out_dim, with their defaults."""
    parameters = inspect.signature(model_class(name).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def build_model(name: str, in_dim: int, out_dim: int, **sizes: object) -> nn.Module:
    """A model by name, with plain keyword arguments; the paper's values are the defaults.

    Raises:
        ConfigError: an unknown name or argument (with the nearest known one), or sizes that do not fit together.
    """
    check_options(name, sizes)
    return model_class(name)(in_dim, out_dim, **sizes)


def check_options(name: str, sizes: Mapping[str, object]) -> None:
    """Refuse what the model does not know, or of another type than it expects."""
    options = model_options(name)
    for key, value in sizes.items():
        if key not in options:
            raise ConfigError(f"model {name!r} has no option {key!r}; {nearest(key, options)}")
        _check_type(name, key, value, options[key])


def _check_type(name: str, key: str, value: object, default: object) -> None:
    """A model option has the type of its default; whole numbers pass for real ones, None is for the model to judge."""
    if default is None or value is None or type(value) is type(default):
        return
    if isinstance(default, float) and type(value) is int:
        return
    raise ConfigError(
        f"model {name!r}: {key}={value!r} should be {type(default).__name__}, like its default {default!r}"
    )


def use_backend(model: nn.Module, backend: str) -> nn.Module:
    """Let a model that is built compute by another backend of `flare.mixer` from now on. Weights stay as they are."""
    check_backend(backend)
    for part in model.modules():
        if isinstance(getattr(part, "backend", None), str):
            part.backend = backend  # type: ignore[assignment]
    return model


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
