"""What a sample is: named arrays in physical units, and the schema that says what each one means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from flare.utils.errors import DataError, nearest

Role = Literal["points", "feature", "parameter", "target", "extra"]
ROLES: tuple[Role, ...] = ("points", "feature", "parameter", "target", "extra")
INPUT_ROLES: tuple[Role, ...] = ("points", "feature", "parameter")
"""In this order they become the input channels of a model."""
CORNERS = {"line": 2, "triangle": 3, "quad": 4, "tetra": 4, "pyramid": 5, "wedge": 6, "hexahedron": 8}
"""Points of a cell of each type."""
DIMENSION = {"line": 1, "triangle": 2, "quad": 2, "tetra": 3, "pyramid": 3, "wedge": 3, "hexahedron": 3}
"""Of a cell of each type."""
RESERVED = ("offsets", "cells", "cell_offsets")
"""Names of a dataset's own arrays."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One named array of a sample."""

    role: Role
    """`points`: coordinates; `feature`: known at every point; `parameter`: one value a sample; `target`: to predict;
    `extra`: at every point, kept for people, never fed to a model nor predicted."""
    components: tuple[str, ...]
    """A name for each channel, such as ("x", "y")."""
    unit: str = "1"
    """Physical unit; "1" is dimensionless."""
    description: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise DataError(f"unknown role {self.role!r} of a field; {nearest(self.role, ROLES)}")
        if isinstance(self.components, str) or not self.components:
            raise DataError(f"components is {self.components!r}; give a name for each channel, such as ('x', 'y')")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The fields of a dataset, in the order of a model's channels. Exactly one has the role `points`."""

    name: str
    fields: Mapping[str, Field]
    grid: tuple[int, int] | None = None
    """(rows, columns) where every sample's points are such a grid, row by row; None for unstructured points."""
    cell_type: str | None = None
    """`triangle`, `quad`, `tetra`, `hexahedron` … where samples carry cells; None for point clouds."""
    cell_dimension: int | None = None
    """Of the mesh the points come from, where its cells are not kept: 2 is a surface, 3 a volume; None: unknown."""

    def __post_init__(self) -> None:
        for name in self.fields:
            if not name.isidentifier() or name in RESERVED:
                raise DataError(f"schema {self.name!r}: {name!r} cannot name a field; use letters, digits and _")
        if self.cell_type is not None and self.cell_type not in CORNERS:
            raise DataError(
                f"schema {self.name!r}: unknown cell_type {self.cell_type!r}; {nearest(self.cell_type, CORNERS)}"
            )
        roles = [f.role for f in self.fields.values()]
        if roles.count("points") != 1 or "target" not in roles:
            raise DataError(f"schema {self.name!r} needs exactly one field of points and at least one target: {roles}")

    @property
    def mesh_dimension(self) -> int | None:
        """2 where the points lie on surfaces, 3 where they fill volumes; None where nothing tells."""
        return DIMENSION[self.cell_type] if self.cell_type else self.cell_dimension

    def named(self, *roles: Role) -> list[str]:
        """Names of the fields with one of the roles, ordered as the roles are asked for."""
        return [name for role in roles for name, f in self.fields.items() if f.role == role]

    @property
    def points(self) -> str:
        return self.named("points")[0]

    def channels(self, *roles: Role) -> list[str]:
        """One name per channel of all fields of these roles."""
        return [channel for name in self.named(*roles) for channel in self.channels_of(name)]

    def channels_of(self, name: str) -> list[str]:
        """`pressure`, or `velocity.x` and so on where a field has several components."""
        components = self.fields[name].components
        return [name] if len(components) == 1 else [f"{name}.{c}" for c in components]

    @property
    def in_dim(self) -> int:
        return len(self.channels(*INPUT_ROLES))

    @property
    def out_dim(self) -> int:
        return len(self.channels("target"))

    def widths(self, *roles: Role) -> list[int]:
        """Channels of each field with these roles."""
        return [len(self.fields[name].components) for name in self.named(*roles)]

    def to_json(self) -> dict[str, Any]:
        record = asdict(self)
        if self.cell_dimension is None:  # files that were written before it was known stay the same
            del record["cell_dimension"]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Schema:
        fields = {name: Field(**{**f, "components": tuple(f["components"])}) for name, f in record["fields"].items()}
        grid = tuple(record["grid"]) if record["grid"] else None
        dimension = record.get("cell_dimension")
        return cls(
            name=record["name"], fields=fields, grid=grid, cell_type=record["cell_type"], cell_dimension=dimension
        )


@dataclass(frozen=True)
class Sample:
    """One simulation in physical units."""

    values: Mapping[str, np.ndarray]
    """Field name -> (N, channels), or (channels,) for a parameter."""
    cells: np.ndarray | None = None
    """(cells, nodes) point indices, where the schema has a cell type."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What a generator says of this sample (residual, redraws): kept beside it, never fed to a model."""


def input_array(schema: Schema, sample: Sample) -> np.ndarray:
    """(N, in_dim) float32: points, features, then parameters repeated at every point."""
    count = len(sample.values[schema.points])
    return _side_by_side(schema, sample, schema.named(*INPUT_ROLES), count)


def target_array(schema: Schema, sample: Sample) -> np.ndarray:
    """(N, out_dim) float32."""
    return _side_by_side(schema, sample, schema.named("target"), len(sample.values[schema.points]))


def _side_by_side(schema: Schema, sample: Sample, names: list[str], count: int) -> np.ndarray:
    columns = [
        np.broadcast_to(sample.values[name], (count, len(schema.fields[name].components)))
        if schema.fields[name].role == "parameter"
        else sample.values[name]
        for name in names
    ]
    return np.concatenate(columns, axis=1, dtype=np.float32, casting="same_kind")
