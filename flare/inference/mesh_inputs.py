"""Inputs of a model from a mesh: prediction, encoding, sensitivity and the server all use `mesh_inputs`.

    inputs = mesh_inputs(surrogate, "part.stl", parameters={"speed": 30.0}, training_spacing=calibration.spacing)
    inputs.sample.values["points"], inputs.mesh

A surface without fields (STL, PLY, OBJ) gets points like those of the training data. Units that a file states must be
those of the model.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flare.data.benchmarks.cards import card, is_benchmark
from flare.data.importing.cases import read_single_case
from flare.data.importing.fields import CENTRES, extract_fields, find_field, identifier, uses_cells
from flare.data.sample import INPUT_ROLES, Sample, Schema
from flare.inference.array_folder import is_array_folder, map_inputs
from flare.mesh.io import SURFACES, ReadLimits
from flare.mesh.mesh import Mesh
from flare.mesh.sampling import MAX_POINTS, center_spacing, fill_with_voxels, median_edge, points_on_surface
from flare.utils.errors import ConfigError, DataError, TooLarge, suggest_name
from flare.utils.registry import import_attribute

if TYPE_CHECKING:
    from flare.inference.surrogate import Surrogate
    from flare.mesh.octree import HexMesh

logger = logging.getLogger(__name__)

Points = Literal["auto", "vertices", "surface", "voxels"]
Values = Mapping[str, float | Sequence[float]]
SPARSE = 2.0
"""Vertices further apart than this many training spacings are too sparse for a prediction."""


@dataclass(frozen=True)
class ModelInputs:
    """A mesh and the checked inputs of a model on it."""

    sample: Sample
    mesh: Mesh | None = None
    """Mesh that predicted fields are added to; None for a folder of arrays."""
    points: np.ndarray | None = None
    """(N, dimensions) points or cell centers at the precision of the file; None for a folder of arrays."""
    given: tuple[str, ...] = ()
    """Inputs that were passed as arguments."""
    notes: list[str] = field(default_factory=list)
    """What was decided: averaged fields, points made for a surface."""
    name: str = ""
    """File name, or the name of the mesh."""


def mesh_inputs(
    surrogate: Surrogate,
    source: Mesh | str | os.PathLike[str],
    *,
    features: Values | None = None,
    parameters: Values | None = None,
    points: Points = "auto",
    spacing: float | None = None,
    training_spacing: float | None = None,
    known: Mapping[str, np.ndarray] | None = None,
    limits: ReadLimits | None = None,
) -> ModelInputs:
    """Read the inputs of a model from a mesh, a table, a file of arrays or a folder of arrays.

    Arrays of a folder stay on disk.

    Args:
        surrogate: Trained model.
        source: Mesh or file.
        features: Features that the file lacks: a number, or one per component, the same at every point.
        parameters: Parameters that the file lacks: a number, or one per component.
        points: Points of a surface without fields: its `vertices`, points on the `surface`, or `voxels` that fill it;
            `auto` follows the training data.
        spacing: Distance between those points; None uses `training_spacing`.
        training_spacing: Distance between the training points, if it is known.
        known: Parameters of an encoded sample that is queried; the file may repeat them, but not change them.
        limits: For untrusted files: safe readers only, and no more points than this.

    Raises:
        DataError: An input is missing, given twice, in another unit, or not finite.
        ConfigError: An argument does not apply to the file or to the model.
        TooLarge: The limits are exceeded.
    """
    schema, given = surrogate.schema, {**(features or {}), **(parameters or {})}
    check_names(schema, features or {}, parameters or {})
    name = source.name if isinstance(source, Mesh) else str(source)
    check_sampling(name, points, spacing)
    if not isinstance(source, Mesh) and (is_array_folder(source) or (Path(source) / "dataset.json").exists()):
        if given:
            raise ConfigError(f"{name} is a folder of arrays; add {', '.join(given)} to it as .npy files")
        values = map_inputs(Path(source), schema)
        return _checked(surrogate, values, ModelInputs(Sample({}), name=name))
    notes: list[str] = []

    def note(message: str) -> None:
        notes.append(message)
        logger.info(message)

    mesh = source if isinstance(source, Mesh) else read_single_case(Path(source), schema, limits)
    for message in mesh.notes:
        note(f"{name}: {message}")
    if is_bare_surface(name):
        if points == "auto" and spacing is not None and benchmark_mesher(schema):
            raise ConfigError(f"spacing={spacing:g}: the benchmark has its own mesh; choose points as well")
        mesh = sample_surface(schema, mesh, points, spacing or training_spacing, limits=limits, log=note)
    count = mesh.cell_count if uses_cells(mesh, schema) else len(mesh.points)
    if limits is not None and count > limits.points:
        raise TooLarge(f"{name} has {count:,} points; the limit is {limits.points:,}")
    named = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in given.items()}
    features_of_model, inputs = schema.named("feature"), schema.named(*INPUT_ROLES)
    passed = {n: np.tile(value, (count, 1)) if n in features_of_model else value for n, value in named.items()}
    known = {**(known or {}), **passed}
    for key, value in known.items():
        own = find_field(mesh, schema, key)
        if own is not None and (key in passed or not _equal(own, value)):
            raise DataError(f"{key!r} is given twice: in {mesh.name} and as an argument; remove one")
    for key in inputs:
        if key not in passed and (other := other_unit(mesh, schema, key)):
            unit = schema.fields[key].unit
            raise DataError(f"{mesh.name}: {key!r} is in {other}, but the model expects {unit}; convert it to {unit}")
    values = extract_fields(mesh, schema, inputs, known, log=note)
    found = ModelInputs(Sample({}), mesh, values[schema.points], tuple(given), notes, name)
    return _checked(surrogate, values, found)


def _checked(surrogate: Surrogate, values: dict[str, np.ndarray], inputs: ModelInputs) -> ModelInputs:
    try:
        return replace(inputs, sample=surrogate.sample(values.pop(surrogate.schema.points), values))
    except DataError as error:
        raise DataError(f"{inputs.name}: {error}") from None


def check_names(schema: Schema, features: Values, parameters: Values) -> None:
    """Raise ConfigError for names that are not inputs of the model."""
    for role, values in (("feature", features), ("parameter", parameters)):
        for name in values:
            if name not in schema.named(role):  # type: ignore[arg-type]
                known = schema.named("feature", "parameter")
                raise ConfigError(f"the model has no {role} {name!r}; {suggest_name(name, known)}")


def split_settings(schema: Schema, settings: Values) -> dict[str, Any]:
    """Return values by name as the arguments `features` and `parameters` of `mesh_inputs`."""
    features = {name: value for name, value in settings.items() if name in schema.named("feature")}
    return {"features": features, "parameters": {n: value for n, value in settings.items() if n not in features}}


def check_sampling(name: str, points: Points, spacing: float | None) -> None:
    """Raise ConfigError if `points` or `spacing` have no effect on a file, or no meaning."""
    argument = f"spacing={spacing:g}" if spacing is not None else f'points="{points}"'
    if spacing is not None and not 0 < spacing < math.inf:
        raise ConfigError(f"{argument} is not a positive number")
    if not is_bare_surface(name) and (points != "auto" or spacing is not None):
        raise ConfigError(f"{argument} applies to surface files ({', '.join(SURFACES)}); {name} has its own points")
    if points == "vertices" and spacing is not None:
        raise ConfigError(f"{argument} has no effect on vertices")


def is_bare_surface(name: str) -> bool:
    """Return whether a file holds a surface without fields, by its suffix."""
    return Path(name).suffix.lower() in SURFACES


def _equal(own: np.ndarray, known: np.ndarray) -> bool:
    """Return whether two values are equal in single precision."""
    return np.array_equal(np.asarray(own, np.float32).reshape(-1), np.asarray(known, np.float32).reshape(-1))


def other_unit(mesh: Mesh, schema: Schema, name: str) -> str | None:
    """Return the unit that the file states for a field, if the model has another one."""
    title = identifier("points") if name == schema.points else name
    stated = next((unit for own, unit in mesh.units.items() if identifier(own) == title), "1")
    unit = schema.fields[name].unit
    return stated if stated != unit and "1" not in (stated, unit) else None


# ---- surfaces without fields -----------------------------------------------------------------------------------------


def sample_surface(
    schema: Schema,
    mesh: Mesh,
    points: Points,
    spacing: float | None,
    *,
    limits: ReadLimits | None = None,
    log: Callable[[str], None] = logger.info,
) -> Mesh:
    """Give a surface points like those of the training data.

    Args:
        schema: Schema of the model.
        mesh: Triangles.
        points: As in `mesh_inputs`.
        spacing: Distance between points.
        limits: Limits for untrusted files.
        log: Called with a description of the points.
    """
    surface, most = mesh.surface(), limits.points if limits else None
    if not np.isfinite(surface.vertices).all():
        raise DataError(f"{mesh.name} has NaN or infinite coordinates")
    where = "triangle centers" if schema.points == CENTRES else "vertices"
    mesher = benchmark_mesher(schema) if points == "auto" else None
    kind = _training_points(schema, mesh, spacing) if points == "auto" else points
    if mesher is not None:
        sampled, how = mesher(surface, mesh.name).to_mesh(mesh.name), "placed and meshed as in the benchmark"
    elif kind is None:
        raise ConfigError(
            f"{mesh.name}: the training data had no cells, so it is unknown whether its points were on surfaces or "
            f'inside volumes; choose points="surface", points="voxels" or points="vertices", or use a mesh'
        )
    elif kind == "vertices":
        sampled, how = mesh, f"fields are at its {where}"
    elif spacing is None or not 0 < spacing < math.inf:
        raise ConfigError("the spacing of the training points is unknown; pass spacing=NUMBER, or calibrate the run")
    elif kind == "surface":
        sampled = points_on_surface(mesh, spacing, max_points=most or MAX_POINTS)
        how = f'spread over the surface at a spacing of {spacing:.3g}, not at its {where} (points="vertices")'
    else:
        sampled, how = fill_with_voxels(mesh, spacing, max_points=most), f"filled with voxels of {spacing:.3g}"
    count = sampled.cell_count if schema.points == CENTRES and sampled.dimension else len(sampled.points)
    log(f"{mesh.name}: {how}: {count:,} points")
    return sampled


def benchmark_mesher(schema: Schema) -> Callable[..., HexMesh] | None:
    """Return the function that meshes a geometry as the samples of a benchmark are meshed, if the benchmark has one."""
    mesher = card(schema.name).mesher if is_benchmark(schema) else None
    return import_attribute(mesher) if mesher else None


def _training_points(schema: Schema, mesh: Mesh, spacing: float | None) -> Points | None:
    """Return the points of a surface that are like those of the training data; None if those had no cells."""
    if schema.mesh_dimension == 3:
        return "voxels"
    if schema.mesh_dimension is None and len(schema.fields[schema.points].components) == 3:
        return None
    apart = center_spacing(mesh.surface()) if schema.points == CENTRES else median_edge(mesh.surface())
    return "surface" if spacing and apart > SPARSE * spacing else "vertices"
