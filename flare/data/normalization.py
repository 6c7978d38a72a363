"""Normalisers: one shift and one scale per channel, fitted on the training split, part of a model's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flare.data.sample import INPUT_ROLES, Role, Schema
from flare.data.statistics import ChannelStatistics
from flare.utils.errors import ConfigError, nearest

KINDS = {
    "identity": "physical values as they are",
    "gaussian": "zero mean, unit standard deviation over all training samples and points",
    "minmax": "smallest training value to 0, largest to 1",
}


CONSTANTS: dict[str, set[str]] = {"gaussian": {"mean", "std"}, "minmax": {"low", "high"}}
"""What a kind takes from the data, unless it is given."""


class Affine(nn.Module):
    """encode(x) = (x − shift) / scale per channel; decode inverts it. Identity, Gaussian and min-max are all this."""

    shift: Tensor
    scale: Tensor

    def __init__(self, shift: Sequence[float] | np.ndarray, scale: Sequence[float] | np.ndarray) -> None:
        super().__init__()
        self.register_buffer("shift", torch.as_tensor(np.asarray(shift), dtype=torch.float32))
        self.register_buffer("scale", torch.as_tensor(np.asarray(scale), dtype=torch.float32))

    def encode(self, physical: Tensor) -> Tensor:
        return (physical - self.shift) / self.scale

    def decode(self, normalised: Tensor) -> Tensor:
        return normalised * self.scale + self.shift


def fit(
    schema: Schema, roles: Sequence[Role], statistics: ChannelStatistics, wishes: Mapping[str, str | Mapping[str, Any]]
) -> Affine:
    """The normaliser of all channels with these roles.

    Args:
        statistics: of those channels, on the training split.
        wishes: field name -> kind, or {kind: minmax, low: [...], high: [...]} / {kind: gaussian, mean: [...],
            std: [...]} to use published constants instead of our statistics. Fields not named are `gaussian`.
    """
    shift, scale, column = [], [], 0
    for name in schema.named(*roles):
        columns = slice(column, column + len(schema.fields[name].components))
        column = columns.stop
        a, b = _shift_and_scale(name, wishes.get(name, "gaussian"), statistics, columns)
        shift.append(a)
        scale.append(b)
    return Affine(np.concatenate(shift), np.concatenate(scale))


def unknown(channels: int) -> ChannelStatistics:
    """Statistics for `fit` of data nobody has read, where no field is to be fitted."""
    nothing = np.full(channels, np.nan)
    return ChannelStatistics(0, nothing, nothing, nothing, nothing)


def needs_statistics(schema: Schema, wishes: Mapping[str, Any]) -> bool:
    """Whether any input or target is normalised by something that only its data tell."""
    return any(not _constants(wishes.get(name, "gaussian")) for name in schema.named(*INPUT_ROLES, "target"))


def _constants(wish: Any) -> bool:
    """Whether a wish brings all its constants itself."""
    wish = wish if isinstance(wish, Mapping) else {"kind": wish}
    return CONSTANTS.get(str(wish.get("kind")), set()) <= wish.keys()


def check_wishes(wishes: Mapping[str, Any], schema: Schema) -> None:
    """Refuse a normaliser for a field the dataset does not have."""
    for name in wishes:
        if name not in schema.fields:
            raise ConfigError(
                f"data.normalise names {name!r}, which {schema.name!r} lacks; {nearest(name, schema.fields)}. A preset "
                f"is for one dataset: is this one for {schema.name!r}?"
            )


def _shift_and_scale(
    name: str, wish: str | Mapping[str, Any], statistics: ChannelStatistics, columns: slice
) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(wish, (str, Mapping)):
        raise ConfigError(
            f"data.normalise.{name} is {wish!r}; give one of {', '.join(KINDS)}, or a mapping with a kind"
        )
    wish = {"kind": wish} if isinstance(wish, str) else dict(wish)
    kind = wish.pop("kind", None)
    mean, std, low, high = (getattr(statistics, key)[columns] for key in ("mean", "std", "low", "high"))
    width = len(mean)
    if kind == "identity":
        shift, scale = np.zeros(width), np.ones(width)
    elif kind == "gaussian":
        shift, scale = _constant(name, wish, "mean", mean), _constant(name, wish, "std", std)
    elif kind == "minmax":
        shift = _constant(name, wish, "low", low)
        scale = _constant(name, wish, "high", high) - shift
    else:
        raise ConfigError(f"data.normalise.{name}: unknown kind {kind!r}; {nearest(str(kind), KINDS)}")
    if wish:
        raise ConfigError(f"data.normalise.{name}: {kind} takes no {', '.join(wish)}")
    # A channel that never varies carries nothing; dividing by its zero spread would only make noise of it.
    return shift, np.where(scale == 0, 1.0, scale)


def _constant(name: str, wish: dict[str, Any], key: str, fitted: np.ndarray) -> np.ndarray:
    """The published constant where one was given (a number serves all channels), else the fitted one."""
    if key not in wish:
        return fitted
    value = wish.pop(key)
    try:
        given = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"data.normalise.{name}.{key} is {value!r}; it must be a number or a list of numbers"
        ) from None
    if given.shape not in ((), fitted.shape):
        raise ConfigError(
            f"data.normalise.{name}.{key} has {given.size} numbers, the field has {len(fitted)} components"
        )
    return np.broadcast_to(given, fitted.shape)
