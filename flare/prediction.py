"""A prediction for a part in a file: the file's own mesh with the fields added, and how far to trust them.

surrogate = flare.load("runs/wings")
prediction = predict_file(surrogate, "part.vtu", calibration=load_calibration("runs/wings", surrogate))
prediction.save("part_pred.vtu")
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flare.data.importing.cases import Case
from flare.data.importing.fields import AXES, CENTRES, coordinates, fields_of, identifier
from flare.data.sample import INPUT_ROLES, Field, Sample, Schema
from flare.data.tables import FORMATS, append_columns, refuse_format, write_outputs
from flare.inference import MANY, Chunk, as_fields, empty_outputs, passes, predict_into
from flare.mesh.file import OF_POINTS, UNITS, MeshFile, mesh_of_points, refuse_suffix
from flare.mesh.readers import SURFACES
from flare.part import Points, other_unit, part_of
from flare.surrogate import Surrogate
from flare.trust.ranges import beyond
from flare.utils.errors import DataError
from flare.utils.files import refuse_existing
from flare.utils.progress import progress

if TYPE_CHECKING:
    from flare.trust.calibration import Calibration, Judgement

logger = logging.getLogger(__name__)

SCORE = "familiarity_score"
"""Its name in files."""


@dataclass(frozen=True)
class Prediction:
    name: str
    """Of the file."""
    mesh: MeshFile | None
    """None for a table of points."""
    schema: Schema
    sample: Sample
    """Inputs."""
    fields: dict[str, np.ndarray]
    """Target -> (N,) or (N, channels), physical."""
    judgement: Judgement | None
    errors: dict[str, float]
    """Target -> relative L2 error, of those the file holds itself."""
    kept: dict[str, np.ndarray]
    """What else the file has at these points and is no input: name -> (N,) or (N, channels)."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Of what is kept, where the file states them."""
    points: np.ndarray | None = None
    """(N, dimensions) at the precision of the file; None: those of the sample, in float32."""
    given: tuple[str, ...] = ()
    """Inputs that the file has not."""

    @property
    def added(self) -> dict[str, np.ndarray]:
        """What is written: `pressure_predicted`, and `pressure_bar` where there are error bars."""
        bars = self.judgement.bars if self.judgement else None
        named = {f"{name}_predicted": values for name, values in self.fields.items()}
        return named | {f"{name}_bar": values for name, values in (bars or {}).items()}

    def beside(self, held: Iterable[str]) -> dict[str, np.ndarray]:
        """What is written at the places of a mesh that has fields `held`: the features it lacks, and what is new."""
        own = {identifier(name) for name in held}
        lacking = [name for name in self.schema.named("feature") if name not in own]
        return {name: as_fields({name: self.sample.values[name]})[name] for name in lacking} | self.added

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """As they are written."""
        values, name = self.sample.values, self.schema.points
        if self.points is None:
            return dict(values)
        exact = self.points.astype(np.result_type(self.points, np.float32), copy=False)  # whole numbers, too
        return {**values, name: exact.reshape(values[name].shape)}

    @property
    def score(self) -> dict[str, np.ndarray]:
        """What is written beside the fields, where it is known: `familiarity_score`."""
        known = self.judgement is not None and self.judgement.score is not None
        return {SCORE: np.array([self.judgement.score])} if known and self.judgement else {}

    def of_whole(
        self, fields: Iterable[str], held: Iterable[str] = (), words: Iterable[str] = ()
    ) -> dict[str, np.ndarray]:
        """New field data of a mesh: the score, parameters that it lacks, and units behind those that it tells:
        of all inputs, wherever they are from, and of what is new.

        Args:
            fields: names of those `beside`.
            held: names of the field data that it has.
            words: what it has as `units`, such as `pressure=Pa`.
        """
        own = {identifier(name) for name in held}
        lacking = {name: self.sample.values[name] for name in self.schema.named("parameter") if name not in own}
        units = {name: self.schema.fields[name.rpartition("_")[0]].unit for name in self.added}
        units |= {name: self.schema.fields[name].unit for name in fields if name not in self.added}
        units |= {name: self.schema.fields[name].unit for name in lacking}
        return self.score | lacking | told_as(units | input_units(self.schema, words), words)

    @property
    def unit_words(self) -> list[str]:
        """Units of what is kept, as a mesh of the points alone tells them."""
        return [f"{name}={unit}" for name, unit in self.units.items()]

    @property
    def warning(self) -> str:
        """A sentence for pictures; empty where the part is like those of the training, or nobody knows."""
        if self.judgement is None or not self.judgement.unlike:
            return ""
        said = list(self.judgement.outside)
        if self.judgement.rank == 0:
            said.insert(0, f"unlike the training set (familiarity score {self.judgement.score:.2f})")
        return f"WARNING: {'; '.join(said)}; error bars do not hold"

    def save(self, path: str | os.PathLike[str]) -> None:
        """As VTK, with all that the file had, by the suffix; or points and fields only, as .csv or .npz."""
        own = {*self.mesh.point_fields, *self.mesh.cell_fields} if self.mesh else set()
        taken = [name for name in self.added if name in own | self.kept.keys()]
        fields = self.beside(own)
        held, words = (self.mesh.held, self.mesh.unit_words) if self.mesh else ([], self.unit_words)
        of_whole = self.of_whole(fields, held, words)
        if self.mesh is not None and Path(path).suffix not in FORMATS:
            taken += [name for name in of_whole if self.mesh.holds(name)]
        if taken:
            raise DataError(f"{self.name} has a field {taken[0]!r} already; rename it, so that it is not lost")
        if Path(path).suffix in FORMATS:
            known = dict(self.schema.fields)
            for name in self.fields:
                known |= dict.fromkeys((f"{name}_predicted", f"{name}_bar"), replace(known[name], role="extra"))
            known |= {name: self._of_file(name) for name in self.kept}
            if self.mesh is None and {Path(path).suffix.lower(), Path(self.name).suffix.lower()} == {".csv"}:
                given = {name: self.sample.values[name] for name in self.given}
                append_columns(self.name, path, known, {**self.added, **given})
                return
            # Corners are numbers of points, which cell centres are not.
            cells = self.mesh.cells if self.mesh and self.schema.points != CENTRES else {}
            old = {**self.inputs, **self.kept}
            more = {kind: corners for kind, corners in cells.items() if corners.size and kind not in old}
            write_outputs(path, known, old, self.added, {**more, **self.score})
            return
        if self.mesh is not None:
            place = "cell_fields" if self.schema.points == CENTRES else "point_fields"
            self.mesh.save(path, **{place: fields}, of_whole=of_whole)
            return
        cloud = mesh_of_points(self.inputs[self.schema.points], self.name)
        cloud.save(path, point_fields={**self.kept, **fields}, of_whole=of_whole)

    def _of_file(self, name: str) -> Field:
        """What is kept is in the unit that the file states, also where the model knows a field of that name."""
        values, model = self.kept[name], self.schema.fields.get(name)
        width = 1 if values.ndim == 1 else values.shape[1]
        components = tuple(AXES[:width]) if width <= 3 else tuple(map(str, range(width)))
        if model is not None and len(model.components) == width:
            components = model.components
        return Field(role="extra", components=components, unit=self.units.get(name, "1"))


def predict_file(
    surrogate: Surrogate,
    path: str | os.PathLike[str],
    *,
    given: Mapping[str, float | Sequence[float]] | None = None,
    calibration: Calibration | None = None,
    points: Points = "auto",
    spacing: float | None = None,
    out: str | os.PathLike[str] | None = None,
    chunk: Chunk = "auto",
    scratch: str | os.PathLike[str] | None = None,
    done: Callable[[int], None] | None = None,
) -> Prediction:
    """The target fields at the points (or cell centres) of a mesh or table, in physical units.

    Args:
        given: as for `part_of`, like `points` and `spacing`.
        calibration: for error bars and familiarity, and for the spacing of the training points.
        out: where it will be saved; refused here, before the work, where that cannot be.
        chunk: as for `Surrogate.predict`.
        scratch: as for `predict_into`.
        done: likewise; None shows how far a large prediction is.
    """
    schema = surrogate.schema
    if out is not None:
        refuse_existing(out)
    trained = calibration.spacing if calibration else None
    part = part_of(surrogate, path, given=given, points=points, spacing=spacing, trained=trained)
    sample, case = part.sample, part.case
    if out is not None:
        _refuse_out(Path(out), part.mesh, Path(path))
    count = len(sample.values[schema.points])
    outputs, quiet = empty_outputs(surrogate, count), done is not None or count < MANY
    with progress("predicting", count * passes(surrogate), unit="points x blocks", quiet=quiet) as update:
        latents = predict_into(surrogate, sample, outputs, chunk=chunk, scratch=scratch, done=done or update)
    fields = as_fields(outputs)
    judgement = calibration.judge(surrogate, sample, fields, latents) if calibration else None
    errors = _errors(case, schema, outputs) if case else {}
    told = (
        logger.info if out is None or Path(out).suffix in FORMATS else lambda text: None
    )  # a mesh has all that it had
    kept = kept_fields(case, schema, told=told) if case else {}
    units = kept_units(case, kept) if case else {}
    elsewhere = left_out(case, schema) if case and out is not None and Path(out).suffix in FORMATS else ""
    if elsewhere:
        logger.info(elsewhere)
    at = coordinates(case, schema) if case else None
    by_hand = tuple(given or ())
    return Prediction(str(path), part.mesh, schema, sample, fields, judgement, errors, kept, units, at, by_hand)


def input_units(schema: Schema, words: Iterable[str]) -> dict[str, str]:
    """Of points, features and parameters, but for those that a file's own `words` state."""
    stated = {identifier(word.partition("=")[0]) for word in words if "=" in word}
    titles = {name: "points" if name == schema.points else name for name in schema.named(*INPUT_ROLES)}
    return {title: schema.fields[name].unit for name, title in titles.items() if title not in stated}


def told_as(units: Mapping[str, str], words: Iterable[str]) -> dict[str, np.ndarray]:
    """Field data `units`: the words that a file has, but for those told anew, and ours; none where we have none."""
    told = [f"{name}={unit}" for name, unit in units.items() if unit != "1"]
    kept = [word for word in words if word.partition("=")[0] not in units]
    return {UNITS: np.array([*kept, *told])} if told else {}


def kept_fields(case: Case, schema: Schema, *, told: Callable[[str], None] = logger.info) -> dict[str, np.ndarray]:
    """Fields of the file where the model has its own, but for the inputs, which are written anyway.

    Names are as a schema spells them; two that it would spell alike stay as they are.

    Args:
        told: called with a sentence for whatever is left out because an input, which is another thing, has its name.
    """
    own = case.cell_fields if schema.points == CENTRES and case.neighbours else case.point_fields
    spelled = Counter(map(identifier, own))
    kept = {}
    for name, values in own.items():
        word = identifier(name) if spelled[identifier(name)] == 1 else name
        if word not in schema.named(*INPUT_ROLES):
            kept[word] = values
        elif word not in schema.named("feature") and _is_another(case, schema, word, values):
            told(f"{case.name}: {name!r} is left out of .csv and .npz files, where an input has its name; rename it")
    return kept


def left_out(case: Case, schema: Schema) -> str:
    """What .csv and .npz files have no rows for, in a sentence: data of the cells beside a model of points, or of the
    points beside one of cell centres."""
    others, place, rows = case.cell_fields, "cell", "points"
    if schema.points == CENTRES and case.neighbours:
        others, place, rows = case.point_fields, "point", "cells"
    names = [repr(name) for name in others if identifier(name) not in schema.named(*INPUT_ROLES)]
    if not names:
        return ""
    return f"{case.name}: {place} data is left out of .csv and .npz files, whose rows are {rows}: {', '.join(names)}"


def kept_units(case: Case, kept: Iterable[str]) -> dict[str, str]:
    """Of `kept_fields`, where the file states them: under the field's own name, or one that a schema spells so."""
    spelled = Counter(map(identifier, {*case.point_fields, *case.cell_fields}))
    told = {identifier(name): unit for name, unit in case.units.items() if spelled[identifier(name)] == 1}
    told |= case.units
    return {name: told[name].strip() for name in kept if told.get(name, "").strip() not in ("", "1")}


def _is_another(case: Case, schema: Schema, name: str, values: np.ndarray) -> bool:
    """Whether a field is not the points or the parameter of its name, which every row of a table may repeat."""
    return name == schema.points or name in map(identifier, case.parameters) or bool((values != values[:1]).any())


def _refuse_out(out: Path, mesh: MeshFile | None, source: Path) -> None:
    if mesh is not None and out.suffix == ".vtp" and source.suffix.lower() in SURFACES and mesh.dimension == 3:
        raise DataError(f"{out}: {source} is filled with voxels here, and .vtp holds surfaces only; write .vtu instead")
    if mesh is not None and out.suffix not in FORMATS:
        refuse_suffix(out, mesh.root, more=FORMATS)
    else:
        refuse_format(out, more=OF_POINTS)


def _errors(case: Case, schema: Schema, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Relative L2 errors where the file knows the truth, in the model's unit."""
    errors = {}
    for name, predicted in outputs.items():
        if other_unit(case, schema, name):
            continue
        try:
            truth = fields_of(case, schema, [name], told=lambda text: None)[name]
        except DataError:
            continue
        size = float(np.linalg.norm(truth))
        if np.isfinite(size) and size > 0:
            errors[name] = float(np.linalg.norm(predicted - truth)) / size
    return errors


def describe(prediction: Prediction, calibration: Calibration | None) -> list[str]:
    """What was predicted and how far to trust it, a sentence each."""
    lines, judgement = [], prediction.judgement
    # A table of points has the centres themselves.
    places = "cells" if prediction.schema.points == CENTRES and prediction.mesh is not None else "points"
    for name, values in prediction.fields.items():
        unit = prediction.schema.fields[name].unit
        bars = judgement.bars if judgement else None
        bar = f", ± {np.median(bars[name]):.3g} at the median {places[:-1]}" if bars else ""
        bar += " (does not hold here)" if bars and prediction.warning else ""
        known = f"; error {prediction.errors[name]:.2%} against the file's own" if name in prediction.errors else ""
        span = f"{values.min():.6g} to {values.max():.6g}{'' if unit == '1' else f' {unit}'}"
        lines.append(f"{name}, {len(values):,} {places}, {span}{bar}{known}")
    if calibration is None or judgement is None:
        return lines
    if "coverage" in calibration.report and not prediction.warning:
        shares = calibration.report["coverage"].values()
        low, high = f"{min(shares):.1%}", f"{max(shares):.1%}"
        lines.append(
            f"error bars are for {calibration.report['level']:.0%} of the {places}; on test samples they covered "
            f"{low if low == high else f'{low} to {high}'}"
        )
    if judgement.score is not None and calibration.familiar is not None:
        lines.append(calibration.familiar.sentence(judgement.rank or 0, judgement.score))
    return lines + [beyond(clause) for clause in judgement.outside]
