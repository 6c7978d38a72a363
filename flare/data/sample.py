"""Samples and the schema that gives each of their arrays a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from flare.mesh.mesh import CORNERS as CORNERS
from flare.mesh.mesh import DIMENSION as DIMENSION
from flare.utils.errors import DataError, suggest_name

Role = Literal["points", "feature", "parameter", "target", "extra"]
ROLES: tuple[Role, ...] = ("points", "feature", "parameter", "target", "extra")
INPUT_ROLES: tuple[Role, ...] = ("points", "feature", "parameter")
"""Roles of the input channels of a model, in channel order."""
RESERVED = ("offsets", "cells", "cell_offsets")
"""Array names of the dataset format, which no field may have."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Role, components and unit of one named array of a sample.

    Raises:
        DataError: The role is unknown, or `components` is not a sequence of names.

    Example:
        >>> from flare import Field
        >>> velocity = Field(role="target", components=("x", "y"), unit="m/s")
        >>> len(velocity.components)
        2
    """

    role: Role
    """`points`: coordinates. `feature`: input given at every point. `parameter`: input with one value per sample.
    `target`: field to predict. `extra`: values at every point that no model reads or predicts."""
    components: tuple[str, ...]
    """Name of each channel, such as ("x", "y")."""
    unit: str = "1"
    """Physical unit; "1" is dimensionless."""
    description: str = ""
    """Short explanation for reports."""

    @property
    def unit_text(self) -> str:
        """Unit as it is printed; empty for dimensionless fields."""
        return "" if self.unit == "1" else self.unit

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise DataError(f"unknown role {self.role!r} of a field; {suggest_name(self.role, ROLES)}")
        if isinstance(self.components, str) or not self.components:
            raise DataError(f"components={self.components!r}: give one name per channel, such as ('x', 'y')")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The fields of a dataset and the layout of its points.

    Exactly one field has the role `points`; at least one is a `target`.

    Raises:
        DataError: A field name or cell type is not allowed, or points or targets are missing.

    Example:
        >>> from flare import Field, Schema
        >>> schema = Schema(
        ...     name="wing",
        ...     fields={
        ...         "points": Field(role="points", components=("x", "y", "z"), unit="m"),
        ...         "speed": Field(role="parameter", components=("speed",), unit="m/s"),
        ...         "pressure": Field(role="target", components=("pressure",), unit="Pa"),
        ...     },
        ... )
        >>> schema.in_dim, schema.out_dim
        (4, 1)
        >>> schema.channels("points", "parameter")
        ['points.x', 'points.y', 'points.z', 'speed']
    """

    name: str
    """Name of the dataset."""
    fields: Mapping[str, Field]
    """Fields by name. Their order is the channel order within a role."""
    grid: tuple[int, int] | None = None
    """(rows, columns) if the points of every sample form such a grid, row by row; None for unstructured points."""
    cell_type: str | None = None
    """Type of the cells that samples hold, such as `triangle` or `hexahedron`; None for point clouds."""
    cell_dimension: int | None = None
    """Dimension of the mesh if the cells themselves are not stored: 2 for surfaces, 3 for volumes; None if unknown."""

    def __post_init__(self) -> None:
        for name in self.fields:
            if name in RESERVED:
                raise DataError(f"schema {self.name!r}: {name!r} is an array of the dataset format; rename the field")
            if not name.isidentifier():
                raise DataError(f"schema {self.name!r}: {name!r} cannot name a field; use letters, digits and _")
        if self.cell_type is not None and self.cell_type not in CORNERS:
            hint = suggest_name(self.cell_type, CORNERS)
            raise DataError(f"schema {self.name!r}: unknown cell_type {self.cell_type!r}; {hint}")
        roles = [f.role for f in self.fields.values()]
        if roles.count("points") != 1 or "target" not in roles:
            raise DataError(f"schema {self.name!r} needs exactly one field of points and at least one target: {roles}")

    @property
    def mesh_dimension(self) -> int | None:
        """2 if the points lie on surfaces, 3 if they fill volumes, None if unknown."""
        return DIMENSION[self.cell_type] if self.cell_type else self.cell_dimension

    @property
    def points(self) -> str:
        """Name of the field of coordinates."""
        return self.named("points")[0]

    @property
    def in_dim(self) -> int:
        """Number of input channels of a model."""
        return len(self.channels(*INPUT_ROLES))

    @property
    def out_dim(self) -> int:
        """Number of target channels."""
        return len(self.channels("target"))

    def named(self, *roles: Role) -> list[str]:
        """Return the names of the fields with these roles, role by role."""
        return [name for role in roles for name, f in self.fields.items() if f.role == role]

    def channels(self, *roles: Role) -> list[str]:
        """Return one name per channel of the fields with these roles."""
        return [channel for name in self.named(*roles) for channel in self.channels_of(name)]

    def channels_of(self, name: str) -> list[str]:
        """Return the channel names of a field: `pressure`, or `velocity.x` etc. if it has several components."""
        components = self.fields[name].components
        return [name] if len(components) == 1 else [f"{name}.{c}" for c in components]

    def widths(self, *roles: Role) -> list[int]:
        """Return the number of channels of each field with these roles."""
        return [len(self.fields[name].components) for name in self.named(*roles)]

    def to_json(self) -> dict[str, Any]:
        """Return the schema as it is stored in dataset.json and in checkpoints."""
        record = asdict(self)
        if self.cell_dimension is None:  # keeps the bytes of datasets from before this setting
            del record["cell_dimension"]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Schema:
        """Create the schema that `to_json` has stored."""
        return cls(
            name=record["name"],
            fields={name: Field(**{**f, "components": tuple(f["components"])}) for name, f in record["fields"].items()},
            grid=tuple(record["grid"]) if record["grid"] else None,
            cell_type=record["cell_type"],
            cell_dimension=record.get("cell_dimension"),
        )


@dataclass(frozen=True)
class Sample:
    """The arrays of one simulation, in physical units.

    Example:
        >>> import numpy as np
        >>> from flare import Sample
        >>> points = np.random.default_rng(0).random((100, 2))
        >>> sample = Sample({"points": points, "speed": np.array([30.0]), "pressure": points[:, :1] ** 2})
        >>> sample.values["pressure"].shape
        (100, 1)
    """

    values: Mapping[str, np.ndarray]
    """Field name -> array of shape (N, channels), or (channels,) for a parameter."""
    cells: np.ndarray | None = None
    """Point indices of the cells, shape (cells, corners), if the schema has a cell type."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that describe the sample, such as a file name or a residual. Models do not read them."""


def input_array(schema: Schema, sample: Sample) -> np.ndarray:
    """Return the model inputs, shape (N, in_dim), float32: points, features, parameters repeated at every point."""
    return _concatenate(schema, sample, schema.named(*INPUT_ROLES))


def target_array(schema: Schema, sample: Sample) -> np.ndarray:
    """Return the targets, shape (N, out_dim), float32."""
    return _concatenate(schema, sample, schema.named("target"))


def _concatenate(schema: Schema, sample: Sample, names: list[str]) -> np.ndarray:
    count = len(sample.values[schema.points])
    columns = [
        np.broadcast_to(sample.values[name], (count, len(schema.fields[name].components)))
        if schema.fields[name].role == "parameter"
        else sample.values[name]
        for name in names
    ]
    return np.concatenate(columns, axis=1, dtype=np.float32, casting="same_kind")
