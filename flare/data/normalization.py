"""Normalizers: one shift and one scale per channel, fitted on the training split and stored with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flare.data.sample import INPUT_ROLES, Role, Schema
from flare.data.statistics import ChannelStatistics
from flare.utils.errors import ConfigError, suggest_name

CONSTANTS: dict[str, set[str]] = {"identity": set(), "gaussian": {"mean", "std"}, "minmax": {"low", "high"}}
"""Kind of a normalizer -> constants that are fitted unless they are given.

identity: physical values. gaussian: zero mean and unit standard deviation over all training points. minmax: smallest
training value to 0, largest to 1.
"""


class Affine(nn.Module):
    """Normalizer `encode(x) = (x - shift) / scale` per channel; `decode` is its inverse.

    Args:
        shift: One value per channel.
        scale: One nonzero value per channel.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Sequence[float] | np.ndarray, scale: Sequence[float] | np.ndarray) -> None:
        super().__init__()
        self.register_buffer("shift", torch.as_tensor(np.asarray(shift), dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(np.asarray(scale), dtype=torch.float32))

    def encode(self, physical: Tensor) -> Tensor:
        """Normalize physical values, shape (..., channels)."""
        return (physical - self.shift) / self.scale

    def decode(self, normalized: Tensor) -> Tensor:
        """Return physical values, shape (..., channels)."""
        return normalized * self.scale + self.shift


def fit_normalizer(
    schema: Schema,
    roles: Sequence[Role],
    statistics: ChannelStatistics,
    settings: Mapping[str, str | Mapping[str, Any]],
) -> Affine:
    """Create the normalizer of all channels with these roles.

    Args:
        schema: Schema of the dataset.
        roles: Roles of the channels.
        statistics: Statistics of these channels on the training split.
        settings: Field name -> kind, or a mapping with a kind and its constants, such as
            {kind: minmax, low: [...], high: [...]}, to use instead of fitted ones. The default kind is `gaussian`.

    Raises:
        ConfigError: A kind or constant is unknown or has a wrong shape.
    """
    shift, scale, column = [], [], 0
    for name in schema.named(*roles):
        columns = slice(column, column + len(schema.fields[name].components))
        column = columns.stop
        a, b = _shift_and_scale(name, settings.get(name, "gaussian"), statistics, columns)
        shift.append(a)
        scale.append(b)
    return Affine(np.concatenate(shift), np.concatenate(scale))


def unknown_statistics(channels: int) -> ChannelStatistics:
    """Return NaN statistics for `fit_normalizer`, for data that has not been read and settings that need none."""
    nothing = np.full(channels, np.nan)
    return ChannelStatistics(0, nothing, nothing, nothing, nothing)


def needs_statistics(schema: Schema, settings: Mapping[str, Any]) -> bool:
    """Return whether the normalizer of any input or target has constants to be fitted."""

    def has_constants(setting: Any) -> bool:
        setting = setting if isinstance(setting, Mapping) else {"kind": setting}
        return CONSTANTS.get(str(setting.get("kind")), set()) <= setting.keys()

    return any(not has_constants(settings.get(name, "gaussian")) for name in schema.named(*INPUT_ROLES, "target"))


def check_normalizer_names(settings: Mapping[str, Any], schema: Schema) -> None:
    """Check that normalizers are set only for fields that the dataset has.

    Raises:
        ConfigError: A field is unknown.
    """
    for name in settings:
        if name not in schema.fields:
            hint = suggest_name(name, schema.fields)
            raise ConfigError(f"data.normalize names {name!r}, but {schema.name!r} has no such field; {hint}")


def _shift_and_scale(
    name: str, setting: str | Mapping[str, Any], statistics: ChannelStatistics, columns: slice
) -> tuple[np.ndarray, np.ndarray]:
    setting = dict(setting) if isinstance(setting, Mapping) else {"kind": setting}
    kind = setting.pop("kind", None)
    mean, std, low, high = (getattr(statistics, key)[columns] for key in ("mean", "std", "low", "high"))
    if kind == "identity":
        shift, scale = np.zeros(len(mean)), np.ones(len(mean))
    elif kind == "gaussian":
        shift, scale = _constant(name, setting, "mean", mean), _constant(name, setting, "std", std)
    elif kind == "minmax":
        shift = _constant(name, setting, "low", low)
        scale = _constant(name, setting, "high", high) - shift
    else:
        raise ConfigError(f"data.normalize.{name} is {kind!r}; {suggest_name(str(kind), CONSTANTS)}")
    if setting:
        raise ConfigError(f"data.normalize.{name}: {kind} takes no {', '.join(setting)}")
    # A constant channel has no spread; dividing by zero would turn rounding into noise.
    return shift, np.where(scale == 0, 1.0, scale)


def _constant(name: str, setting: dict[str, Any], key: str, fitted: np.ndarray) -> np.ndarray:
    """Return the constant that is given (one number serves all channels), else the fitted one."""
    if key not in setting:
        return fitted
    value = setting.pop(key)
    try:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), fitted.shape)
    except (TypeError, ValueError):
        wanted = f"give one number, or one for each of {len(fitted)} components"
        raise ConfigError(f"data.normalize.{name}.{key} is {value!r}; {wanted}") from None
