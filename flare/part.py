"""A part in a file as the inputs of a model: predictions, codes and sensitivities read files this one way.

    part = part_of(surrogate, "part.stl", given={"speed": 30.0}, trained=calibration.spacing)
    part.sample.values["points"], part.mesh

A bare surface (STL, PLY, OBJ) gets points like those of the training. What a file calls its units must be the model's.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from flare.data.benchmarks.cards import is_benchmark
from flare.data.importing.cases import Case, case_of, only_case
from flare.data.importing.fields import BY_HAND, CENTRES, fields_of, identifier, spread
from flare.data.sample import INPUT_ROLES, Sample, Schema
from flare.data.tables import is_folder_of_arrays, map_inputs
from flare.mesh.file import MeshFile, is_mesh, mesh_of_arrays, read_mesh
from flare.mesh.readers import SURFACES
from flare.mesh.sampling import (
    centre_spacing,
    filled,
    median_edge,
    of_hexahedra,
    on_surface,
    refuse_spacing,
    surface_of,
)
from flare.utils.errors import ConfigError, DataError, MissingInputError, way_out

if TYPE_CHECKING:
    from flare.mesh.octree import HexMesh
    from flare.mesh.surface import Surface
    from flare.surrogate import Surrogate

logger = logging.getLogger(__name__)

Points = Literal["auto", "vertices", "surface", "voxels"]
SPARSE = 2.0
"""Vertices that are farther apart than this many training points are no basis for a prediction."""
PRINTED = "placed on the build plate, 60 mm long, and meshed as the benchmark was"
ALL_OVER = (
    "points are put all over its surface, none on its edges; a mesh as fine as the training's may be more familiar"
)
UNKNOWN_KIND = (
    "the model was trained on points without cells, so whether they lay on surfaces or filled volumes is not known"
)


@dataclass(frozen=True)
class Part:
    sample: Sample
    """Inputs, checked."""
    case: Case | None = None
    """All that the file holds; None for a folder of arrays."""
    mesh: MeshFile | None = None
    """What fields are written onto; None for a table of points."""


def part_of(
    surrogate: Surrogate,
    path: str | os.PathLike[str],
    *,
    given: Mapping[str, float | Sequence[float]] | None = None,
    points: Points = "auto",
    spacing: float | None = None,
    trained: float | None = None,
) -> Part:
    """A mesh, a table, a file of arrays or a folder of them, as one sample; what is wrong is said with its name.

    Arrays of a folder stay on disk, of whatever kind their numbers are: a chunk at a time becomes float32.

    Args:
        given: features and parameters that are not in the file, a number or one for each component; a feature is then
            alike everywhere. One that is in the file, too, is refused.
        points: of a bare surface: its `vertices`, points all over the `surface`, or `voxels` that fill it. `auto`: as
            the training data was.
        spacing: of those points; None: `trained`.
        trained: spacing of the training points, where that is known.
    """
    path, schema, case, mesh = Path(path), surrogate.schema, None, None
    refuse_sampling(path, points, spacing)
    if is_folder_of_arrays(path) or (path / "dataset.json").exists():  # the latter is refused there
        if given:
            raise ConfigError(f"{path} is a folder of arrays, in which {', '.join(given)} is one")
        values = map_inputs(path, schema)
    else:
        case = _case(schema, path, points, spacing, trained)
        mesh = _mesh(case, path)
        if schema.points == CENTRES:
            case = replace(case, mesh=mesh)
        inputs = schema.named(*INPUT_ROLES)
        by_hand = spread(given or {}, schema, case)
        refuse_twice(case, schema, by_hand)
        refuse_units(case, schema, [name for name in inputs if name not in by_hand])
        with way_out(BY_HAND):
            values = fields_of(case, schema, inputs, by_hand)
        for remark in case.remarks:
            logger.info(f"{path}: {remark}")
    try:
        return Part(surrogate.sample(values.pop(schema.points), values), case, mesh)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def refuse_sampling(path: str | os.PathLike[str], points: Points, spacing: float | None) -> None:
    """Where `points` or `spacing` would change nothing, or mean nothing."""
    if spacing is not None and not 0 < spacing < math.inf:
        raise ConfigError(f"--spacing {spacing:g}: the distance between points is a number above 0")
    if Path(path).suffix.lower() not in SURFACES and (points != "auto" or spacing is not None):
        option = f"--points {points}" if points != "auto" else f"--spacing {spacing:g}"
        raise ConfigError(f"{option} is for bare surfaces ({', '.join(SURFACES)}); {path} has its own points")
    if points == "vertices" and spacing is not None:
        raise ConfigError(f"--spacing {spacing:g} is for --points surface or voxels; vertices are where they are")


def refuse_twice(case: Case, schema: Schema, given: Mapping[str, np.ndarray]) -> None:
    """Where the file has an input that is given, too: nobody knows which of the two is meant."""
    for name, value in given.items():
        try:
            own = fields_of(case, schema, [name], told=lambda text: None)[name]
        except MissingInputError:
            continue
        raise twice(name, case.name, own, value)


def twice(name: str, where: str, own: np.ndarray, given: np.ndarray) -> DataError:
    return DataError(
        f"{name!r} is given twice: {_numbers(own)} in {where}, and {_numbers(given)} beside it; remove one"
    )


def _numbers(values: np.ndarray) -> str:
    """Of a parameter, or of a feature at all points, as one would type them."""
    if not np.size(values):
        return "nothing"
    rows = np.asarray(values, np.float64).reshape(-1, np.shape(values)[-1] if np.ndim(values) else 1)
    low, high = (",".join(f"{number:g}" for number in row) for row in (rows.min(0), rows.max(0)))
    return low if low == high else f"{low} to {high}"


def refuse_units(case: Case, schema: Schema, names: Sequence[str]) -> None:
    """Where the file states another unit than the model has: nothing is converted, so the numbers would be wrong."""
    for name in names:
        other = other_unit(case, schema, name)
        if other:
            raise DataError(
                f"{case.name}: {name!r} is in {other} there, and the model has it in {schema.fields[name].unit}; "
                f"nothing is converted here: give it in {schema.fields[name].unit}"
            )


def other_unit(case: Case, schema: Schema, name: str) -> str | None:
    """What the file says of a field's unit, where the model says otherwise."""
    own = "points" if name == schema.points else name  # which is what cases call coordinates
    told = next((unit for title, unit in case.units.items() if identifier(title) == own), "1")
    return told if told != schema.fields[name].unit and "1" not in (told, schema.fields[name].unit) else None


def _case(schema: Schema, path: Path, points: Points, spacing: float | None, trained: float | None) -> Case:
    if path.suffix.lower() not in SURFACES or not path.exists():
        return only_case(path, schema)
    if points == "auto" and training_kind(schema) == "printed":
        if spacing is not None:
            raise ConfigError(
                f"--spacing {spacing:g}: parts of the LPBF benchmark have its own mesh; say --points, too"
            )
        mesh, what = of_hexahedra(printed(path, str(path)), str(path)), PRINTED
    else:
        mesh, what = surface_points(schema, path, points, spacing, trained)
    count = mesh.cell_count if schema.points == CENTRES and mesh.dimension else len(mesh.points)
    logger.info(f"{path}: {what}: {count:,} points")
    return case_of(mesh, str(path))


def _mesh(case: Case, path: Path) -> MeshFile | None:
    """What the fields are written onto: the file's own mesh, or that of the cells which an NPZ or HDF5 file has."""
    if not case.cells or is_mesh(path):
        return case.mesh
    return mesh_of_arrays(
        case.name,
        case.points,
        case.cells,
        point_fields=case.point_fields,
        cell_fields=case.cell_fields,
        parameters=case.parameters,
    )


def surface_points(
    schema: Schema, path: Path, points: Points, spacing: float | None, trained: float | None
) -> tuple[MeshFile, str]:
    """A bare surface with points like those of the training, and in words what they are."""
    alike = "" if spacing else ", as in the training"
    spacing = spacing or trained
    if points == "auto" and training_kind(schema) is None:
        raise ConfigError(f"{path}: {UNKNOWN_KIND}; say it with --points surface, voxels or vertices")
    if points == "voxels" or (points == "auto" and training_kind(schema) == "voxels"):
        spacing = refuse_spacing(spacing)
        return filled(path, spacing), f"voxels of {spacing:.3g} fill the surface{alike}"
    mesh = read_mesh(path)
    if points == "auto":
        sparse = too_sparse(schema, surface_of(mesh), spacing)
        points = "surface" if sparse else "vertices"
        if sparse:
            logger.info(f"{path}: {sparse}; {ALL_OVER} (--points vertices takes the mesh as it is)")
    if points == "surface":
        spacing = refuse_spacing(spacing)
        return on_surface(mesh, spacing), f"points {spacing:.3g} apart are all over the surface"
    return mesh, own_points(schema)


def training_kind(schema: Schema) -> Literal["printed", "voxels", "surface"] | None:
    """What the training's points were of their parts: printed and meshed as LPBF's, inside, or on the surface.

    None where the training had points without cells, which tell neither.
    """
    if schema.name == "lpbf" and is_benchmark(schema):
        return "printed"
    if schema.mesh_dimension == 3:
        return "voxels"
    solid = len(schema.fields[schema.points].components) == 3
    return None if schema.mesh_dimension is None and solid else "surface"


def too_sparse(schema: Schema, surface: Surface, spacing: float | None) -> str | None:
    """Why the surface's own points are no basis for a prediction; None where they are, or where nobody knows."""
    if not spacing:
        return None
    at_cells = schema.points == CENTRES
    apart = centre_spacing(surface) if at_cells else median_edge(surface)
    if apart <= SPARSE * spacing:
        return None
    own = "triangle centres" if at_cells else "vertices"
    return f"its {own} are {apart:.3g} apart, training points {spacing:.3g}"


def own_points(schema: Schema) -> str:
    at_cells = schema.points == CENTRES
    return "the fields are at the centres of its triangles" if at_cells else "its vertices are the points"


def printed(part: str | os.PathLike[str] | Surface, name: str) -> HexMesh:
    """The part on the build plate, 60 mm long, meshed by the rules of the LPBF benchmark."""
    from flare.mesh.read import read_part
    from flare.mesh.surface import placed
    from flare.physics.lpbf.parts import meshed

    return meshed(placed(read_part(part, unit=None), longest=60.0), name=name)[1]
