"""The interface between the page and the data it shows; docs/reference/viewer.md describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from flare.data.sample import Role, Schema
from flare.utils.errors import DataError

Arrays = Mapping[str, np.ndarray]
"""Name -> array of float32, float64 or uint32."""

VERSION = 1
"""Version of the interface, in the catalogue."""


class Source(Protocol):
    """Samples with fields, by number."""

    def catalogue(self) -> dict[str, Any]:
        """Return title, fields with units and samples as JSON."""
        ...

    def geometry(self, sample: int) -> Arrays:
        """Return `points` [N, 2 or 3], `triangles` [T, 3] if there are cells, and `parameter/<name>` [components].

        A file may lack parameters of the catalogue. The page warns if `parameter/familiarity_score` is above 1.
        """
        ...

    def field(self, sample: int, name: str) -> Arrays:
        """Return `truth` [N], `prediction` [N], or both."""
        ...

    def spectra(self, sample: int) -> Arrays:
        """Return `eigenvalues` [blocks, heads, latents] and `effective_rank` [blocks, heads]."""
        raise NotThere("only trained models have spectra; view a run")

    def modes(self, sample: int, block: int, head: int) -> Arrays:
        """Return `eigenvalues` [R] and `eigenvectors` [R, N] of one head; blocks and heads count from 0."""
        raise NotThere("only trained models have spectra; view a run")


class NotThere(DataError):
    """A requested sample, field or mode that does not exist."""


def describe_schema(
    schema: Schema, roles: Sequence[Role], *, title: str, facts: list[list[str]], samples: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the catalogue of samples of a schema; every channel of the fields of these roles is shown."""
    units = {name: unit_of(field.unit) for name, field in schema.fields.items()}
    return {
        "version": VERSION,
        "title": title,
        "facts": facts,
        "dimension": len(schema.fields[schema.points].components),
        "length_unit": units[schema.points],
        "fields": [
            {"name": channel, "unit": units[name], "role": schema.fields[name].role}
            for name in schema.named(*roles)
            for channel in schema.channels_of(name)
        ],
        "parameters": [{"name": name, "unit": units[name]} for name in schema.named("parameter")],
        "samples": samples,
        "spectra": None,
    }


def find_channel(schema: Schema, roles: Sequence[Role], channel: str) -> tuple[str, int]:
    """Return the field of a channel and its column."""
    for field in schema.named(*roles):
        if channel in (channels := schema.channels_of(field)):
            return field, channels.index(channel)
    raise NotThere(f"there is no field {channel!r}")


def unit_of(unit: str) -> str:
    """Return the unit as the page shows it: empty for dimensionless numbers."""
    return "" if unit == "1" else unit
