"""FLARE and the baselines behind one interface: `build_model(name, in_dim, out_dim, **options)`.

Every model maps `[B, N, in_dim]` to `[B, N, out_dim]` with `forward(x, mask=None)`; the mask is a boolean `[B, N]`,
True at real points. `register_model` adds models from outside this package.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from flare.utils.errors import ConfigError, suggest_name
from flare.utils.registry import Registry

if TYPE_CHECKING:
    from torch import nn

Model = TypeVar("Model", bound="Callable[..., nn.Module]")

MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model",
    {
        "flare": "flare.models.flare:FLAREModel",
        "transformer": "flare.models.baselines.transformer:Transformer",
        "perceiver": "flare.models.baselines.perceiver:PerceiverIO",
        "transolver": "flare.models.baselines.transolver:Transolver",
        "transolver++": "flare.models.baselines.transolver_pp:TransolverPP",
        "lno": "flare.models.baselines.lno:LNO",
        "gnot": "flare.models.baselines.gnot:GNOT",
    },
)
"""All models by name. The classes are imported on first use."""


def register_model(name: str) -> Callable[[Model], Model]:
    """Register a model class, so that `build_model` and `flare train --model` find it by name.

    The class takes `in_dim` and `out_dim` first. Every further argument needs a default and becomes a setting of the
    model. `forward(x, mask=None)` maps [B, N, in_dim] to [B, N, out_dim].

    Args:
        name: Name of the model, such as `my-net`.

    Returns:
        A decorator that registers the class and returns it unchanged.

    Raises:
        ConfigError: Another model has this name.

    Example:
        >>> import torch
        >>> from flare import build_model, register_model
        >>> @register_model("pointwise")
        ... class Pointwise(torch.nn.Module):
        ...     def __init__(self, in_dim, out_dim, *, width=32):
        ...         super().__init__()
        ...         self.layers = torch.nn.Sequential(
        ...             torch.nn.Linear(in_dim, width), torch.nn.GELU(), torch.nn.Linear(width, out_dim)
        ...         )
        ...
        ...     def forward(self, x, mask=None):
        ...         return self.layers(x)
        >>> build_model("pointwise", 3, 1, width=64)(torch.randn(2, 100, 3)).shape
        torch.Size([2, 100, 1])
    """
    return MODELS.register(name)


def build_model(name: str, in_dim: int, out_dim: int, **options: object) -> nn.Module:
    """Build a model by name.

    Args:
        name: Name of a built-in or registered model; `flare info` lists them.
        in_dim: Number of input features per point, coordinates first.
        out_dim: Number of fields to predict per point.
        **options: Settings of the model. Defaults are those of its paper; see `model_options`.

    Returns:
        The model, with fresh weights.

    Raises:
        ConfigError: The name or an option is unknown, an option has the wrong type, or sizes do not fit together.

    Example:
        >>> import torch
        >>> from flare import build_model
        >>> model = build_model("flare", in_dim=3, out_dim=1, channels=32, blocks=2, heads=4, latents=16)
        >>> model(torch.randn(2, 500, 3)).shape
        torch.Size([2, 500, 1])
    """
    check_options(name, options)
    return MODELS.get(name)(in_dim, out_dim, **options)


def model_options(name: str) -> dict[str, object]:
    """Return the settings of a model, which are its arguments after in_dim and out_dim, with their defaults."""
    _, _, *options = inspect.signature(MODELS.get(name)).parameters.values()
    return {p.name: p.default for p in options if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def check_options(name: str, options: Mapping[str, object]) -> None:
    """Raise ConfigError for an option that the model does not have, or whose type differs from its default's.

    An integer is accepted for a float. None, and an option whose default is None, are left to the model.
    """
    defaults = model_options(name)
    for key, value in options.items():
        if key not in defaults:
            raise ConfigError(f"model {name!r} has no option {key!r}; {suggest_name(key, defaults)}")
        default = defaults[key]
        if default in (None, inspect.Parameter.empty) or value is None or type(value) is type(default):
            continue
        if not (isinstance(default, float) and type(value) is int):
            kind = type(default).__name__
            raise ConfigError(f"model {name!r}: {key}={value!r} must be of type {kind}, like the default {default!r}")


def use_backend(model: nn.Module, backend: str) -> nn.Module:
    """Switch a model to another backend of `flare.mixer`, in place; the weights stay the same.

    Args:
        model: Any module. All modules inside it that have a `backend` are switched.
        backend: `auto`, `native`, `sdpa` or `reference`.

    Returns:
        The same model.

    Raises:
        ConfigError: The backend is unknown.

    Example:
        >>> from flare import FLARE, use_backend
        >>> use_backend(FLARE(channels=64), "reference").backend
        'reference'
    """
    from flare.mixer import check_backend

    check_backend(backend)
    for module in model.modules():
        if isinstance(getattr(module, "backend", None), str):
            module.backend = backend  # type: ignore[assignment]
    return model


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, trainable or not."""
    return sum(p.numel() for p in model.parameters())
