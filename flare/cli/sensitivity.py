"""`flare sensitivity`: compute the gradient of a maximum, mean, integral or force as a vector field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import make_parser, new_path, parse, with_unit
from flare.cli.surrogates import add_inputs, add_weights, print_ood_warnings, read_inputs, weights
from flare.utils.errors import ConfigError, DataError, suggest_name

if TYPE_CHECKING:
    from flare.data.sample import Schema
    from flare.inference.sensitivity import Scalar
    from flare.inference.surrogate import Surrogate
    from flare.mesh import Mesh

EPILOG = """examples:
  flare sensitivity runs/demo points.csv --of peak --field stress --softness 0.3 --out slopes.npz
  flare sensitivity runs/car car.vtu --of force --field pressure --direction 1,0,0 --out drag.vtu
  flare sensitivity runs/wings part.vtp --set speed=30 --of mean --field pressure --out slopes.vtp
  flare sensitivity runs/plate plate.vtu --of mean --field heat_flux.z --out slopes.vtu"""

OF = "scalar to differentiate; a mean is weighted by the size of the cells, if there are any"


def run(words: Sequence[str]) -> None:
    """Run the command."""
    about = "Compute the gradient of a scalar of the predicted fields with respect to all inputs."
    parser = make_parser("sensitivity", about, EPILOG)
    add_weights(parser, ema=False)
    add_inputs(parser)
    parser.add_argument("--of", required=True, choices=["peak", "mean", "integral", "force"], help=OF)
    parser.add_argument("--field", required=True, help="predicted field; heat_flux.z is one component of it")
    parser.add_argument("--softness", type=float, default=0.0, help="of a peak: 0 is the maximum, 0.3 a smooth one")
    parser.add_argument("--direction", help="direction of a force, such as 1,0,0")
    parser.add_argument("-o", "--out", type=new_path, required=True, help="file to write (.npz, or as a mesh .vtu)")
    args = parse(parser, words)
    if bool(args.direction) != (args.of == "force"):
        raise ConfigError("--of force needs a direction, one number per axis, such as --direction 1,0,0; no other does")

    from flare.inference.surrogate import load

    _compute(load(args.run, **weights(args)), args)


def _compute(surrogate: Surrogate, args: Any) -> None:
    import numpy as np

    from flare.data.sample import INPUT_ROLES
    from flare.inference.calibration.calibrate import load_calibration
    from flare.inference.prediction import input_units
    from flare.inference.sensitivity import sensitivity
    from flare.mesh.io import check_suffix
    from flare.utils.files import create_file, save_arrays

    schema, out = surrogate.schema, Path(args.out)
    field, component = _chosen(args.field, schema)
    calibration = load_calibration(args.run, surrogate)
    inputs = read_inputs(surrogate, args, calibration)
    mesh, values = inputs.mesh, inputs.sample.values
    if out.suffix != ".npz":
        if mesh is None or not mesh.has_cells:
            raise ConfigError(f"{args.input} has no cells to write fields on; use a name that ends in .npz for --out")
        check_suffix(mesh, out)
    found = sensitivity(
        surrogate,
        values[schema.points],
        _scalar(args, field, component, schema, mesh),
        features={name: values[name] for name in schema.named("feature")},
        parameters={name: values[name] for name in schema.named("parameter")},
    )
    prefix, channel = f"d_{args.of}_d_", schema.channels_of(field)[component]
    gradients = {f"{prefix}{name}": array for name, array in {schema.points: found.points, **found.features}.items()}
    by_parameters = {f"{prefix}{name}": array for name, array in found.parameters.items()}
    unit, scalar = _unit(args.of, schema, field, mesh), f"{args.of}_of_{channel}"
    whole = {scalar: np.array([found.value]), **by_parameters}
    units = {name: _per(unit, schema.fields[name].unit) for name in schema.named(*INPUT_ROLES)}
    with create_file(out) as path:
        if out.suffix == ".npz" or mesh is None:
            save_arrays(path, {**values, **gradients, **whole})
        else:
            named = {scalar: unit} | {f"{prefix}{name}": per for name, per in units.items()} | input_units(schema, mesh)
            _with_gradients(mesh, schema, gradients, whole, named).save(path)
    print(with_unit(f"{args.of} of {channel}: {found.value:.6g}", unit))
    for name, gradient in found.parameters.items():
        print(with_unit(f"  by {name}: {', '.join(f'{number:.6g}' for number in gradient)}", units[name]))
    print(f"{out}: {', '.join([*gradients, *by_parameters])}")
    print_ood_warnings(surrogate, args, inputs.sample, calibration)


def _chosen(field: str, schema: Schema) -> tuple[str, int]:
    """Return a predicted field and the index of its component, which must be named if there are several."""
    targets = {name: (name, 0) for name in schema.named("target") if len(schema.fields[name].components) == 1}
    for name in schema.named("target"):
        targets |= {f"{name}.{part}": (name, index) for index, part in enumerate(schema.fields[name].components)}
    if field not in targets:
        raise ConfigError(f"this model predicts no field --field {field}; {suggest_name(field, targets)}")
    return targets[field]


def _unit(of: str, schema: Schema, field: str, mesh: Mesh | None) -> str:
    """Return the unit of the scalar: that of the field, times lengths if it is an integral over cells."""
    unit, length = schema.fields[field].unit, schema.fields[schema.points].unit
    lengths = mesh.dimension if mesh and of in ("integral", "force") else None
    if not lengths or length == "1":
        return unit
    power = length if lengths == 1 else f"{length}^{lengths}"
    return power if unit == "1" else f"{unit} {power}"


def _per(unit: str, other: str) -> str:
    """Return a quotient of units such as `Pa / (m/s)`."""
    return unit if other == "1" else f"{unit} / ({other})"


def _scalar(args: Any, field: str, component: int, schema: Schema, mesh: Mesh | None) -> Scalar:
    from flare.data.importing.fields import CENTRES
    from flare.inference.sensitivity import force, integral, mean, peak
    from flare.mesh.mesh import DIMENSION, OTHER
    from flare.mesh.topology import highest_cells

    if args.of == "peak":
        return peak(field, component=component, softness=args.softness)
    if mesh and OTHER in mesh.cells:
        raise DataError(f"{args.input} has cells of other types than {', '.join(DIMENSION)}; split them into those")
    cells = highest_cells(mesh.cells) if mesh and schema.points != CENTRES else {}
    if args.of == "mean":
        return mean(field, component=component, cells=cells or None)
    if not cells:
        raise DataError(f"--of {args.of} needs a mesh with cells and a model of fields at their corners")
    if args.of == "integral":
        return integral(field, cells, component=component)
    try:
        direction = [float(number) for number in args.direction.split(",")]
    except ValueError:
        raise ConfigError(f"--direction {args.direction}: use one number per axis, such as 1,0,0") from None
    return force(field, cells, direction, component=component)


def _with_gradients(
    mesh: Mesh, schema: Schema, gradients: dict[str, Any], whole: dict[str, Any], units: dict[str, str]
) -> Mesh:
    """Add gradients at points or cells, and values of the whole as field data."""
    import numpy as np

    from flare.data.importing.fields import uses_cells

    for name in (*gradients, *whole):
        if name in mesh.point_data or name in mesh.cell_data:
            raise DataError(f"{mesh.name} already has a field {name!r}; rename it in the file to keep it")
    # Vectors of the plane are padded with a zero, so that ParaView takes them for vectors.
    fields = {name: np.pad(a, [(0, 0), (0, 1)]) if a.shape[1] == 2 else a for name, a in gradients.items()}
    at_cells = uses_cells(mesh, schema)
    return mesh.with_data(
        point_data=None if at_cells else fields,
        cell_data=fields if at_cells else None,
        field_data=whole,
        units={name: unit for name, unit in units.items() if unit != "1"},
    )
