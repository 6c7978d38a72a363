"""Prediction on a mesh: the same mesh with predicted fields and error bars.

mesh = predict(surrogate, "part.vtu", parameters={"speed": 30.0}, calibration=calibration).mesh
mesh.point_data["pressure_predicted"], mesh.point_data["pressure_bar"]
mesh.save("part_predicted.vtu")
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flare.data.importing.fields import CENTRES, find_field, identifier, uses_cells
from flare.data.sample import INPUT_ROLES, Role, Sample, Schema
from flare.inference.chunked import Chunk, as_fields, empty_outputs, predict_into, prediction_progress
from flare.inference.mesh_inputs import ModelInputs, Points, Values, mesh_inputs, other_unit
from flare.inference.surrogate import Surrogate
from flare.mesh.io import POINT_FORMATS, ROW_FORMATS, vtk_suffixes
from flare.mesh.io.arrays import write_npz
from flare.mesh.io.tables import TableSource, write_csv
from flare.mesh.mesh import Mesh
from flare.utils.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from flare.inference.calibration.calibrate import Assessment, Calibration


@dataclass(frozen=True)
class Prediction:
    """Predicted fields at the points of a mesh, and how far to trust them."""

    inputs: ModelInputs
    schema: Schema
    fields: dict[str, np.ndarray]
    """Target -> (N,) or (N, components), in physical units."""
    assessment: Assessment | None
    """Error bars and OOD score; None without a calibration."""
    errors: dict[str, float]
    """Target -> relative L2 error, for targets that the file holds."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.inputs.name

    @property
    def sample(self) -> Sample:
        """Inputs of the model."""
        return self.inputs.sample

    @property
    def at_cells(self) -> bool:
        """Whether the fields are at the cells of the mesh."""
        return self.inputs.mesh is not None and uses_cells(self.inputs.mesh, self.schema)

    @property
    def added(self) -> dict[str, np.ndarray]:
        """New fields of a file: `pressure_predicted`, and `pressure_bar` if there are error bars."""
        bars = (self.assessment and self.assessment.error_bars) or {}
        named = {f"{name}_predicted": values for name, values in self.fields.items()}
        return named | {f"{name}_bar": values for name, values in bars.items()}

    @property
    def score(self) -> dict[str, np.ndarray]:
        """New field data of a file: `familiarity_score`, if it is known."""
        score = self.assessment.score if self.assessment else None
        return {} if score is None else {"familiarity_score": np.array([score])}

    @property
    def warning(self) -> str:
        """A warning for pictures; empty if the sample is like the training data, or if that is unknown."""
        if self.assessment is None or not self.assessment.is_ood:
            return ""
        reasons = list(self.assessment.outside)
        if self.assessment.rank == 0:
            reasons.insert(0, f"unlike the training set (OOD score {self.assessment.score:.2f})")
        return f"WARNING: {'; '.join(reasons)}; error bars do not hold"

    @cached_property
    def kept(self) -> dict[str, np.ndarray]:
        """Fields of the file at the predicted places that are not inputs: name -> (N,) or (N, components)."""
        return other_fields(self.inputs.mesh, self.schema) if self.inputs.mesh is not None else {}

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh with predicted fields, error bars, OOD score, and inputs that it lacked.

        Raises:
            DataError: The file already has a field of one of the new names.
        """
        own = self.inputs.mesh
        base = own if own is not None and own.has_cells else self._points_mesh()
        names = [*base.point_data, *base.cell_data]
        for name in self.added:
            if name in names:
                raise _taken(self.name, name)
        features = self._lacking("feature", names if base is own else ())
        parameters = self._lacking("parameter", base.field_data)
        units = {name: self.schema.fields[name.rpartition("_")[0]].unit for name in self.added}
        units |= {name: self.schema.fields[name].unit for name in (*features, *parameters)}
        units |= input_units(self.schema, base)
        new = {**features, **self.added}
        return base.with_data(
            point_data=None if self.at_cells else new,
            cell_data=new if self.at_cells else None,
            field_data={**self.score, **parameters},
            units={name: unit for name, unit in units.items() if unit != "1"},
        )

    def _lacking(self, role: Role, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return the inputs of a role that are not among the names of a file, as they are written."""
        own = {identifier(name) for name in names}
        values = {name: np.asarray(self.sample.values[name]) for name in self.schema.named(role) if name not in own}
        return as_fields(values) if role == "feature" else values

    def _points_mesh(self) -> Mesh:
        """Return a mesh of vertices with the other fields of a table or of arrays without cells."""
        points = self._exact_points()
        number, units = np.arange(len(points), dtype=np.int64), _units_of(self.inputs.mesh, self.kept)
        types = np.ones(len(points), np.uint8)
        return Mesh(points, number, number + 1, types, point_data=self.kept, units=units, name=self.name)

    def _exact_points(self) -> np.ndarray:
        """Return the points at the precision of the file, in a floating-point type."""
        values = self.sample.values[self.schema.points]
        if self.inputs.points is None:
            return np.asarray(values)
        exact = self.inputs.points
        return exact.astype(np.result_type(exact, np.float32), copy=False).reshape(values.shape)

    @property
    def input_values(self) -> dict[str, np.ndarray]:
        """Inputs as they are written: points at the precision of the file."""
        return {**self.sample.values, self.schema.points: self._exact_points()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mesh with its new fields, by the suffix; .csv and .npz hold one row per predicted place.

        A CSV file that is saved as CSV keeps its titles and numbers as they were typed, with columns added.
        """
        suffix, own = Path(path).suffix.lower(), self.inputs.mesh
        if suffix not in ROW_FORMATS:
            self.mesh.save(path)
            return
        for name in self.added:
            if name in self.kept:
                raise _taken(self.name, name)
        if suffix == ".npz":
            write_npz(path, self._rows(), points=self.schema.points)
        elif own is not None and isinstance(own._source, TableSource):
            given = {name: self._at_points(name) for name in self.inputs.given}
            table = own.with_data(point_data={**self.added, **given})
            write_csv(path, replace(table, **self._titles()), points=self.schema.points)
        else:
            rows = self._rows()
            inputs = {name: self._at_points(name) for name in self.schema.named("feature", "parameter")}
            rows = replace(rows, point_data={**inputs, **rows.point_data}, field_data={})
            write_csv(path, rows, points=self.schema.points)

    def _at_points(self, name: str) -> np.ndarray:
        """Return an input at every point; a parameter is repeated."""
        values = np.asarray(self.sample.values[name])
        return np.broadcast_to(values, (len(self.sample.values[self.schema.points]), values.shape[-1]))

    def _rows(self) -> Mesh:
        """Return the predicted places as points, with inputs, other fields of the file and new fields."""
        schema, own = self.schema, self.inputs.mesh
        features, parameters = (
            {name: np.asarray(self.sample.values[name]) for name in schema.named(role)}
            for role in ("feature", "parameter")
        )
        # Corners are indices of points, not of cell centers.
        cells = {} if own is None or schema.points == CENTRES else own.cells
        old = {schema.points, *features, *parameters, *self.kept}
        return Mesh.from_cells(
            self._exact_points(),
            {kind: corners for kind, corners in cells.items() if corners.size and kind not in old},
            point_data={**features, **self.kept, **self.added},
            field_data={**parameters, **self.score},
            name=self.name,
            **self._titles(),
        )

    def _titles(self) -> dict[str, Any]:
        """Return component names and units: of inputs and new fields by the model, of other fields by the file."""
        schema = self.schema
        components = {name: field.components for name, field in schema.fields.items()}
        units = {name: schema.fields[name].unit for name in schema.named(*INPUT_ROLES)}
        units["points"] = units.pop(schema.points)
        for name in self.added:
            target = name.rpartition("_")[0]
            components[name], units[name] = schema.fields[target].components, schema.fields[target].unit
        widths = {name: 1 if values.ndim == 1 else values.shape[1] for name, values in self.kept.items()}
        components = {name: c for name, c in components.items() if len(c) == widths.get(name, len(c))}
        return {"components": components, "units": units | _units_of(self.inputs.mesh, self.kept)}


def predict(
    surrogate: Surrogate,
    source: Mesh | str | os.PathLike[str] | ModelInputs,
    *,
    features: Values | None = None,
    parameters: Values | None = None,
    points: Points = "auto",
    spacing: float | None = None,
    calibration: Calibration | None = None,
    chunk: Chunk = "auto",
    scratch: str | os.PathLike[str] | None = None,
    done: Callable[[int], None] | None = None,
) -> Prediction:
    """Predict the target fields at the points, or cell centers, of a mesh.

    Args:
        surrogate: Trained model.
        source: Mesh or file, see `flare.mesh.read_mesh`; or the result of `mesh_inputs`, for which the next four
            arguments are ignored.
        features: Features that the file lacks, the same at every point.
        parameters: Parameters that the file lacks.
        points: Points of a surface without fields: `vertices`, `surface`, `voxels`, or `auto` as in the training data.
        spacing: Distance between those points; None uses that of the training data.
        calibration: Adds error bars and the OOD score.
        chunk: Points at a time; see `Surrogate.predict`.
        scratch: Folder for what does not fit into memory.
        done: Called with the number of points of each chunk, once per block; None shows a progress bar.

    Returns:
        The prediction with its inputs, error bars and known errors. Its `mesh` has `<field>_predicted`, `<field>_bar`
        if there is a calibration, and inputs that the file lacked.

    Raises:
        DataError: The file does not fit the model.
    """
    if isinstance(source, ModelInputs):
        inputs = source
    else:
        trained = calibration.spacing if calibration else None
        given: dict[str, Any] = {"features": features, "parameters": parameters, "points": points, "spacing": spacing}
        inputs = mesh_inputs(surrogate, source, training_spacing=trained, **given)
    count = len(inputs.sample.values[surrogate.schema.points])
    outputs = empty_outputs(surrogate, count)
    with prediction_progress(surrogate, count, quiet=done is not None) as update:
        latents = predict_into(surrogate, inputs.sample, outputs, chunk=chunk, scratch=scratch, done=done or update)
    return assess(surrogate, inputs, as_fields(outputs), calibration, latents)


def assess(
    surrogate: Surrogate,
    inputs: ModelInputs,
    fields: dict[str, np.ndarray],
    calibration: Calibration | None = None,
    latents: list[Tensor] | None = None,
) -> Prediction:
    """Add error bars, OOD score and known errors to predicted fields.

    Args:
        surrogate: Model that predicted them.
        inputs: Inputs of the model.
        fields: Target -> (N,) or (N, components).
        calibration: Calibration of the model, if there is one.
        latents: Latents of the sample; None encodes it again if they are needed.
    """
    assessment = calibration.assess(surrogate, inputs.sample, fields, latents) if calibration else None
    errors = _known_errors(inputs.mesh, surrogate.schema, fields) if inputs.mesh is not None else {}
    return Prediction(inputs, surrogate.schema, fields, assessment, errors)


def input_units(schema: Schema, mesh: Mesh) -> dict[str, str]:
    """Return the units of points, features and parameters that the mesh does not state."""
    stated = {identifier(name) for name in mesh.units}
    titles = {name: "points" if name == schema.points else name for name in schema.named(*INPUT_ROLES)}
    return {title: schema.fields[name].unit for name, title in titles.items() if identifier(title) not in stated}


def other_fields(mesh: Mesh, schema: Schema) -> dict[str, np.ndarray]:
    """Return the fields of a mesh at the places of the model that are not inputs.

    Names have the schema's spelling; two names of the same spelling stay as they are.
    """
    own = mesh.cell_data if uses_cells(mesh, schema) else mesh.point_data
    spelled = Counter(map(identifier, own))
    words = {name: identifier(name) if spelled[identifier(name)] == 1 else name for name in own}
    return {word: own[name] for name, word in words.items() if word not in schema.named(*INPUT_ROLES)}


def fields_without_rows(mesh: Mesh, schema: Schema) -> list[str]:
    """Return a message about the data at the other place, cells or points, that .csv and .npz files do not hold."""
    at_cells = uses_cells(mesh, schema)
    others, place = (mesh.point_data, "point") if at_cells else (mesh.cell_data, "cell")
    names = ", ".join(repr(name) for name in others if identifier(name) not in schema.named(*INPUT_ROLES))
    return [f"{mesh.name}: {place} data is not written to .csv and .npz files: {names}"] if names else []


def _taken(where: str, name: str) -> DataError:
    return DataError(f"{where} already has a field {name!r}; rename it in the file to keep it")


def _units_of(mesh: Mesh | None, names: Iterable[str]) -> dict[str, str]:
    """Return the stated units of fields, under their own name or in the schema's spelling."""
    if mesh is None:
        return {}
    spelled = Counter(map(identifier, {*mesh.point_data, *mesh.cell_data}))
    stated = {identifier(name): unit for name, unit in mesh.units.items() if spelled[identifier(name)] == 1}
    stated |= dict(mesh.units)
    return {name: stated[name].strip() for name in names if stated.get(name, "").strip() not in ("", "1")}


def check_output(path: str | os.PathLike[str], inputs: ModelInputs) -> None:
    """Raise DataError if a prediction for these inputs cannot be saved under this name."""
    mesh = inputs.mesh
    ways = [*vtk_suffixes(mesh), *ROW_FORMATS] if mesh and mesh.has_cells else [*ROW_FORMATS, *POINT_FORMATS]
    if Path(path).suffix.lower() not in ways:
        raise DataError(f"{path}: a prediction for {inputs.name} can be written as {', '.join(ways)}")


def _known_errors(mesh: Mesh, schema: Schema, fields: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return relative L2 errors of targets that the file holds in the model's unit."""
    errors = {}
    for name, predicted in fields.items():
        try:
            truth = None if other_unit(mesh, schema, name) else find_field(mesh, schema, name)
        except DataError:
            continue
        if truth is not None and truth.size == predicted.size:
            size = float(np.linalg.norm(truth))
            if np.isfinite(size) and size > 0:
                errors[name] = float(np.linalg.norm(predicted - truth.reshape(predicted.shape))) / size
    return errors


def describe(prediction: Prediction, calibration: Calibration | None) -> list[str]:
    """Return lines about the range, error bars, known errors and OOD score of a prediction."""
    lines, assessment = [], prediction.assessment
    places = "cells" if prediction.at_cells else "points"
    bars = assessment.error_bars if assessment and not prediction.warning else None
    for name, values in prediction.fields.items():
        unit = prediction.schema.fields[name].unit
        bar = f", ± {np.median(bars[name]):.3g} at the median {places[:-1]}" if bars else ""
        known = f"; error {prediction.errors[name]:.2%} against the file's own" if name in prediction.errors else ""
        span = f"{values.min():.6g} to {values.max():.6g}{'' if unit == '1' else f' {unit}'}"
        lines.append(f"{name}, {len(values):,} {places}, {span}{bar}{known}")
    if calibration is None or assessment is None:
        return lines
    if bars and "coverage" in calibration.report:
        level, shares = calibration.report["level"], calibration.report["coverage"].values()
        lines.append(f"error bars are for {level:.0%} of the {places}; on test samples they covered {min(shares):.1%}")
    if assessment.score is not None and calibration.ood is not None:
        lines.append(calibration.ood.describe(assessment.rank or 0, assessment.score))
    return lines + assessment.range_warnings
