"""`flare sensitivity`: the gradient of a maximum, mean, integral or force as a vector field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import make_parser, parse, with_unit
from flare.cli.messages import option_names
from flare.cli.predict import OPTIONS, add_sampling, add_set, settings
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

OF = "scalar; a mean is over the length, area or volume of the cells, or over points or cell centers of equal weight"
GAUSSIAN = ("gaussian", {"kind": "gaussian"})
"""Settings of a normalizer that is fitted to the data."""
SIZES = {1: "length", 2: "area", 3: "volume"}
"""Measure of cells by their dimension."""


def run(words: Sequence[str]) -> int:
    parser = make_parser(
        "sensitivity", "Compute the gradient of a scalar of the predicted fields with respect to all inputs.", EPILOG
    )
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="a mesh (.vtu, .vtp, ...), or points and input fields (.npz, .csv)")
    add_set(parser, "inputs that are not in the file")
    add_sampling(parser)
    parser.add_argument("--of", required=True, choices=["peak", "mean", "integral", "force"], help=OF)
    parser.add_argument("--field", required=True, help="predicted field; heat_flux.z is one component of it")
    parser.add_argument("--component", help="component of the field: its name, or its number from 0")
    parser.add_argument("--softness", type=float, default=0.0, help="for a peak: 0 is the maximum itself")
    parser.add_argument("--direction", help="for a force, such as 1,0,0")
    parser.add_argument("--out", required=True, help="file to write (.vtu, ... for a mesh, or .npz); must not exist")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    out = Path(args.out)

    from flare.inference.surrogate import load
    from flare.mesh.io.vtk_library import LEGACY, SUFFIX_OF_TYPE
    from flare.utils.files import check_not_existing

    if out.suffix not in (".npz", LEGACY, *SUFFIX_OF_TYPE.values()):
        raise ConfigError(f"--out {out}: the name must end in .vtu, .npz or another suffix of VTK")
    check_not_existing(out)
    surrogate = load(args.run, checkpoint=args.checkpoint, device=args.device)
    with option_names(OPTIONS):
        _compute(args, surrogate, out)
    return 0


def _compute(args: Any, surrogate: Surrogate, out: Path) -> None:
    import numpy as np

    from flare.data.sample import INPUT_ROLES
    from flare.inference.calibration.calibrate import calibrate_command, load_calibration
    from flare.inference.mesh_inputs import mesh_inputs, split_settings
    from flare.inference.prediction import SCORE, input_units
    from flare.inference.sensitivity import sensitivity
    from flare.mesh.io import check_suffix
    from flare.utils.files import create_file
    from flare.utils.terminal import print_status

    schema = surrogate.schema
    field, component = chosen(args.field, args.component, schema)
    calibration = load_calibration(args.run, surrogate)
    inputs = mesh_inputs(
        surrogate,
        args.input,
        **split_settings(schema, settings(args.set)),
        points=args.points,
        spacing=args.spacing,
        training_spacing=calibration.spacing if calibration else None,
    )
    mesh, values = inputs.mesh, inputs.sample.values
    on_mesh = mesh is not None and mesh.has_cells
    if out.suffix != ".npz":
        if mesh is None or not on_mesh:
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
    unit = _unit(args.of, schema, field, mesh)
    judgement = calibration.assess(surrogate, inputs.sample) if calibration else None
    scalar = f"{args.of}_of_{channel}"
    whole = {scalar: np.array([found.value]), **by_parameters}
    held = mesh is not None and SCORE in mesh.field_data  # an earlier prediction, which keeps its score
    if judgement is not None and judgement.score is not None and not (held and on_mesh):
        whole[SCORE] = np.array([judgement.score])
    with create_file(out) as path:
        if out.suffix == ".npz" or mesh is None:
            np.savez(path, **{**values, **gradients, **whole})  # type: ignore[arg-type]
        else:
            units = {scalar: unit} | {
                f"{prefix}{name}": _per(unit, schema.fields[name].unit) for name in schema.named(*INPUT_ROLES)
            }
            _with_gradients(mesh, schema, gradients, whole, units | input_units(schema, mesh)).save(path)
    over = _over(schema, mesh, len(found.points)) if args.of == "mean" else ""
    print(with_unit(f"{args.of} of {channel}{over}: {found.value:.6g}", unit))
    constant = _constant_parameters(args.run, surrogate)
    for name, gradient in found.parameters.items():
        numbers = ", ".join(f"{number:.6g}" for number in gradient)
        remark = " (constant in the training data: meaningless)" if name in constant else ""
        print(with_unit(f"  by {name}: {numbers}", _per(unit, schema.fields[name].unit)) + remark)
    print(f"{out}: {', '.join([*gradients, *by_parameters])}")
    if calibration is None or judgement is None:
        how = calibrate_command(args.run, args.checkpoint)
        print_status(f"no OOD score: these weights are not calibrated ({how})")
        return
    for warning in calibration.warnings(judgement):
        print_status(f"{args.input}: {warning}")


def chosen(field: str, component: str | None, schema: Schema) -> tuple[str, int]:
    """Return a predicted field and the index of its component, which must be named if there are several."""
    targets = schema.named("target")
    name, _, part = (field, "", "") if field in targets else field.partition(".")
    if name not in targets:
        raise ConfigError(f"this model predicts no field {name!r}; {suggest_name(name, targets)}")
    if part and component is not None:
        raise ConfigError(f"--field {field} already names a component; omit --component {component}")
    components, requested = schema.fields[name].components, part or component
    if requested in components:
        return name, components.index(requested)
    if requested is None:
        if len(components) == 1:
            return name, 0
        first = components[0]
        raise ConfigError(
            f"{name!r} has {len(components)} components, {', '.join(components)}; choose one with --field "
            f"{name}.{first} or --component {first}"
        )
    if requested.isdecimal() and int(requested) < len(components):
        return name, int(requested)
    raise ConfigError(f"{name!r} has no component {requested!r}; {suggest_name(requested, components)}")


def _constant_parameters(run: str, surrogate: Surrogate) -> set[str]:
    """Return parameters that were constant over the training samples, which have a normalizer scale of 1."""
    from flare.data.sample import INPUT_ROLES
    from flare.train.run_folder import RunFolder

    folder, schema = RunFolder(run), surrogate.schema
    if not folder.exists:  # weights without a run
        return set()
    choices = folder.config().data.normalise
    names, widths = schema.named(*INPUT_ROLES), schema.widths(*INPUT_ROLES)
    scales = dict(zip(names, surrogate.input_norm.scale.split(widths), strict=True))
    # Other normalizers have a scale of 1 for other reasons.
    fitted = [name for name in schema.named("parameter") if choices.get(name, "gaussian") in GAUSSIAN]
    return {name for name in fitted if bool((scales[name] == 1).all())}


def _unit(of: str, schema: Schema, field: str, mesh: Mesh | None) -> str:
    """Return the unit of the scalar: that of the field, times lengths if it is an integral over cells."""
    unit, length = schema.fields[field].unit, schema.fields[schema.points].unit
    lengths = mesh.dimension if mesh and of in ("integral", "force") else None
    if not lengths or length == "1":
        return unit
    power = length if lengths == 1 else f"{length}^{lengths}"
    return power if unit == "1" else f"{unit} {power}"


def _over(schema: Schema, mesh: Mesh | None, count: int) -> str:
    """Describe what a mean is taken over; `_scalar` weights points by their cells if there are any."""
    from flare.data.importing.fields import CENTRES
    from flare.mesh.mesh import DIMENSION
    from flare.mesh.topology import highest_cells

    if schema.points == CENTRES:
        return f" over {count:,} cell centers of equal weight"
    cells = highest_cells(mesh.cells) if mesh else {}
    if not cells:
        return f" over {count:,} points"
    return f" over the {SIZES[DIMENSION[next(iter(cells))]]} of {sum(map(len, cells.values())):,} cells"


def _per(unit: str, other: str) -> str:
    """Return a quotient of units such as `Pa / (m/s)`."""
    return unit if other == "1" else f"{unit} / ({other})"


def _scalar(args: Any, field: str, component: int, schema: Schema, mesh: Mesh | None) -> Scalar:
    from flare.data.importing.fields import CENTRES
    from flare.inference.sensitivity import force, integral, mean, peak
    from flare.mesh.mesh import DIMENSION, OTHER
    from flare.mesh.topology import highest_cells

    if args.direction and args.of != "force":
        raise ConfigError(f"--direction applies to --of force, not to {args.of}")
    if args.of == "peak":
        return peak(field, component=component, softness=args.softness)
    if schema.points == CENTRES:
        if args.of != "mean":
            raise ConfigError(
                f"--of {args.of} needs fields at the corners of cells; this model has them at cell centers"
            )
        return mean(field, component=component)
    if mesh and OTHER in mesh.cells:
        raise DataError(f"{args.input} has cells of other types than {', '.join(DIMENSION)}; split them into those")
    cells = highest_cells(mesh.cells) if mesh else {}
    if args.of == "mean":
        return mean(field, component=component, cells=cells or None)
    if not cells:
        raise DataError(f"--of {args.of} needs cells, and {args.input} has none; use a mesh (.vtu)")
    if args.of == "integral":
        return integral(field, cells, component=component)
    if not args.direction:
        raise ConfigError("--of force needs a direction, one number per axis: --direction 1,0,0")
    try:
        direction = [float(number) for number in args.direction.split(",")]
    except ValueError:
        raise ConfigError(f"--direction {args.direction}: use one number per axis, such as 1,0,0") from None
    return force(field, cells, direction, component=component)


def _with_gradients(
    mesh: Mesh, schema: Schema, gradients: dict[str, Any], whole: dict[str, Any], units: dict[str, str]
) -> Mesh:
    """Add gradients at points or cells, and values of the whole as field data."""
    from flare.data.importing.fields import uses_cells

    for name in (*gradients, *whole):
        if name in mesh.point_data or name in mesh.cell_data:
            raise DataError(f"{mesh.name} already has a field {name!r}; rename it in the file to keep it")
    fields = {name: _in_space(array) for name, array in gradients.items()}
    at_cells = uses_cells(mesh, schema)
    return mesh.with_data(
        point_data=None if at_cells else fields,
        cell_data=fields if at_cells else None,
        field_data=whole,
        units={name: unit for name, unit in units.items() if unit != "1"},
    )


def _in_space(gradient: Any) -> Any:
    """Pad vectors of the plane with a zero, so that ParaView takes them for vectors."""
    import numpy as np

    return np.pad(gradient, [(0, 0), (0, 1)]) if gradient.shape[1] == 2 else gradient
