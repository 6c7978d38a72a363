"""`flare sensitivity`: the gradient of a peak, mean, integral or force, as a vector field on the points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import add_sampling, add_set, make_parser, settings
from flare.cli.words import with_unit
from flare.utils.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from flare.data.importing.cases import Case
    from flare.data.sample import Schema
    from flare.mesh.file import MeshFile
    from flare.sensitivity import Scalar
    from flare.surrogate import Surrogate

EPILOG = """examples:
  flare sensitivity runs/demo points.csv --of peak --field stress --softness 0.3 --out slopes.npz
  flare sensitivity runs/car car.vtu --of force --field pressure --direction 1,0,0 --out drag.vtu
  flare sensitivity runs/wings part.vtp --set speed=30 --of mean --field pressure --out slopes.vtp
  flare sensitivity runs/plate plate.vtu --of mean --field heat_flux.z --out slopes.vtu"""

OF = "which scalar; a mean is over the length, area or volume of the cells, or over points or cell centres, each alike"
GAUSSIAN = ("gaussian", {"kind": "gaussian"})
"""Ways to wish for a normaliser that is fitted."""
SIZES = {1: "length", 2: "area", 3: "volume"}
"""Of cells, by their dimension."""


def run(words: Sequence[str]) -> int:
    parser = make_parser(
        "sensitivity", "How a scalar of the predicted field changes as the points and parameters do.", EPILOG
    )
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="a mesh (.vtu, .vtp, ...), or points and input fields (.npz, .csv)")
    add_set(parser, "inputs that are not in the file")
    add_sampling(parser)
    parser.add_argument("--of", required=True, choices=["peak", "mean", "integral", "force"], help=OF)
    parser.add_argument("--field", required=True, help="of which predicted field; heat_flux.z is one component of it")
    parser.add_argument("--component", help="of a field of several: its name, or its number from 0")
    parser.add_argument("--softness", type=float, default=0.0, help="of a peak: 0 is the largest value itself")
    parser.add_argument("--direction", help="of a force, such as 1,0,0")
    parser.add_argument("--out", required=True, help="file to write (.vtu, ... for a mesh, or .npz); must not exist")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    out = Path(args.out)

    import numpy as np

    from flare.data.importing.fields import CENTRES
    from flare.data.sample import INPUT_ROLES
    from flare.mesh.file import LEGACY, OWN_SUFFIX, refuse_suffix
    from flare.part import part_of
    from flare.prediction import SCORE, input_units, told_as
    from flare.sensitivity import sensitivity
    from flare.surrogate import load
    from flare.trust.calibration import how_to_calibrate, load_calibration
    from flare.utils.files import refuse_existing
    from flare.utils.terminal import say

    if out.suffix not in (".npz", LEGACY, *OWN_SUFFIX.values()):
        raise ConfigError(f"--out {out}: the name should end in .vtu or .npz, or in another suffix of VTK's")
    refuse_existing(out)
    surrogate = load(args.run, checkpoint=args.checkpoint, device=args.device)
    schema = surrogate.schema
    field, component = chosen(args.field, args.component, schema)
    calibration = load_calibration(args.run, surrogate)
    part = part_of(
        surrogate,
        args.input,
        given=settings(args.set),
        points=args.points,
        spacing=args.spacing,
        trained=calibration.spacing if calibration else None,
    )
    case, mesh, inputs = part.case, part.mesh, dict(part.sample.values)
    if out.suffix != ".npz":
        if mesh is None:
            raise ConfigError(f"{args.input} is no mesh to write back with fields; let --out end in .npz")
        refuse_suffix(out, mesh.root, more=[".npz"])
    points = inputs.pop(schema.points)
    found = sensitivity(surrogate, points, _scalar(args, field, component, schema, case), **inputs)

    prefix, channel = f"d_{args.of}_d_", schema.channels_of(field)[component]
    slopes = {f"{prefix}{name}": slope for name, slope in {schema.points: found.points, **found.features}.items()}
    by_parameters = {f"{prefix}{name}": slope for name, slope in found.parameters.items()}
    unit = _unit(args.of, schema, field, case)
    judgement = calibration.judge(surrogate, part.sample) if calibration else None
    scalar = f"{args.of}_of_{channel}"
    whole = {scalar: np.array([found.value]), **by_parameters}
    held = mesh is not None and mesh.holds(SCORE)  # a prediction of before, which keeps its own
    if judgement is not None and judgement.score is not None and not held:
        whole[SCORE] = np.array([judgement.score])
    if mesh is None or out.suffix == ".npz":
        _write_arrays(out, {schema.points: points, **inputs, **slopes, **whole})
    else:
        units = {scalar: unit} | {
            f"{prefix}{name}": _per(unit, schema.fields[name].unit) for name in schema.named(*INPUT_ROLES)
        }
        told = told_as(units | input_units(schema, mesh.unit_words), mesh.unit_words)
        _write_mesh(out, mesh, slopes, whole | told, at_cells=schema.points == CENTRES)
    over = _over(schema, case, len(points)) if args.of == "mean" else ""
    print(with_unit(f"{args.of} of {channel}{over}: {found.value:.6g}", unit))
    still = _constant_parameters(args.run, surrogate)
    for name, slope in found.parameters.items():
        numbers = ", ".join(f"{number:.6g}" for number in slope)
        remark = " (did not vary in training: means nothing)" if name in still else ""
        print(with_unit(f"  by {name}: {numbers}", _per(unit, schema.fields[name].unit)) + remark)
    print(f"{out}: {', '.join([*slopes, *by_parameters])}")
    if calibration is None or judgement is None:
        how = how_to_calibrate(args.run, args.checkpoint)
        say(f"no warning of strange parts: these weights are not calibrated ({how})")
        return 0
    for warning in calibration.warnings(judgement):  # as `flare predict` does
        say(f"{args.input}: {warning}")
    return 0


def chosen(field: str, component: str | None, schema: Schema) -> tuple[str, int]:
    """A predicted field and the number of its component; of several none is taken unless it is named."""
    targets = schema.named("target")
    name, _, part = (field, "", "") if field in targets else field.partition(".")
    if name not in targets:
        raise ConfigError(f"this model predicts no field {name!r}; {nearest(name, targets)}")
    if part and component is not None:
        raise ConfigError(f"--field {field} names a component already; leave out --component {component}")
    components, wish = schema.fields[name].components, part or component
    if wish in components:
        return name, components.index(wish)
    if wish is None:
        if len(components) == 1:
            return name, 0
        first = components[0]
        raise ConfigError(
            f"{name!r} has {len(components)} components, {', '.join(components)}; say which, with --field "
            f"{name}.{first} or --component {first}"
        )
    if wish.isdecimal() and int(wish) < len(components):
        return name, int(wish)
    raise ConfigError(f"{name!r} has no component {wish!r}; {nearest(wish, components)}")


def _constant_parameters(run: str, surrogate: Surrogate) -> set[str]:
    """Parameters of one value in all training samples, as far as the run tells: a scale of 1 stands for none."""
    from flare.data.sample import INPUT_ROLES
    from flare.train.run_folder import RunFolder

    folder, schema = RunFolder(run), surrogate.schema
    if not folder.exists:  # weights alone, without what they were trained by
        return set()
    wishes = folder.config().data.normalise
    names, widths = schema.named(*INPUT_ROLES), schema.widths(*INPUT_ROLES)
    scales = dict(zip(names, surrogate.input_norm.scale.split(widths), strict=True))
    # Other kinds have a scale of 1 for other reasons.
    fitted = [name for name in schema.named("parameter") if wishes.get(name, "gaussian") in GAUSSIAN]
    return {name for name in fitted if bool((scales[name] == 1).all())}


def _unit(of: str, schema: Schema, field: str, case: Case | None) -> str:
    """Of the scalar: that of the field, times lengths where it is a sum over cells."""
    unit, length = schema.fields[field].unit, schema.fields[schema.points].unit
    lengths = case.dimension if case and of in ("integral", "force") else None
    if not lengths or length == "1":
        return unit
    power = length if lengths == 1 else f"{length}^{lengths}"
    return power if unit == "1" else f"{unit} {power}"


def _over(schema: Schema, case: Case | None, count: int) -> str:
    """What a mean is taken over: `_scalar` weighs points by their cells, where there are any."""
    from flare.data.importing.fields import CENTRES
    from flare.data.importing.meshed import highest
    from flare.data.sample import DIMENSION

    if schema.points == CENTRES:
        return f" over {count:,} cell centres, each alike"
    cells = highest(case.cells) if case else {}
    if not cells:
        return f" over {count:,} points"
    return f" over the {SIZES[DIMENSION[next(iter(cells))]]} of {sum(map(len, cells.values())):,} cells"


def _per(unit: str, other: str) -> str:
    """`Pa / (m/s)`."""
    return unit if other == "1" else f"{unit} / ({other})"


def _scalar(args: Any, field: str, component: int, schema: Schema, case: Case | None) -> Scalar:
    from flare.data.importing.fields import CENTRES
    from flare.data.importing.meshed import highest
    from flare.data.sample import DIMENSION
    from flare.sensitivity import force, integral, mean, peak

    if args.direction and args.of != "force":
        raise ConfigError(f"--direction is for --of force, not for {args.of}")
    if args.of == "peak":
        return peak(field, component=component, softness=args.softness)
    if schema.points == CENTRES:
        if args.of != "mean":
            raise ConfigError(f"--of {args.of} is a sum over cells by their corners; this model has the cells' centres")
        return mean(field, component=component)
    if case and "other" in case.cells:
        raise DataError(f"{args.input} has cells of other types than {', '.join(DIMENSION)}; cut them into those")
    cells = highest(case.cells) if case else {}
    if args.of == "mean":
        return mean(field, component=component, cells=cells or None)
    if not cells:
        raise DataError(f"--of {args.of} is a sum over cells, and {args.input} has none; give a mesh (.vtu)")
    if args.of == "integral":
        return integral(field, cells, component=component)
    if not args.direction:
        raise ConfigError("--of force needs its direction, one number for each axis: --direction 1,0,0")
    try:
        direction = [float(number) for number in args.direction.split(",")]
    except ValueError:
        raise ConfigError(f"--direction {args.direction}: give one number for each axis, such as 1,0,0") from None
    return force(field, cells, direction, component=component)


def _write_arrays(out: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from flare.utils.files import making

    with making(out) as path:
        np.savez(path, **arrays)


def _write_mesh(out: Path, mesh: MeshFile, slopes: dict[str, Any], whole: dict[str, Any], *, at_cells: bool) -> None:
    """The mesh as it was, with slopes at its points or cells, and what is of the whole as field data."""
    from flare.utils.files import making

    for name in {*slopes, *whole}:
        if name in mesh.point_fields or name in mesh.cell_fields or mesh.holds(name):
            raise DataError(f"{mesh.name} has a field {name!r} already; rename it, so that it is not lost")
    fields = {name: _in_space(slope) for name, slope in slopes.items()}
    with making(out) as path:
        mesh.save(path, **{"cell_fields" if at_cells else "point_fields": fields}, of_whole=whole)


def _in_space(slope: Any) -> Any:
    """Vectors of the plane get a third number, so that ParaView takes them for vectors."""
    import numpy as np

    return np.pad(slope, [(0, 0), (0, 1)]) if slope.shape[1] == 2 else slope
