"""`flare sensitivity`: the gradient of a peak, mean, integral or force, as a vector field on the points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.errors import ConfigError, DataError

if TYPE_CHECKING:
    from flare.mesh.unstructured import Grid
    from flare.sensitivity import Scalar

EPILOG = """examples:
  flare sensitivity runs/demo points.csv --of peak --field stress --softness 0.3 --out slopes.npz
  flare sensitivity runs/car car.vtu --of force --field pressure --direction 1,0,0 --out drag.vtu"""


def run(words: Sequence[str]) -> int:
    parser = make_parser(
        "sensitivity", "How a scalar of the predicted field changes as the points and parameters do.", EPILOG
    )
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="a mesh (.vtu), or points and input fields (.npz, .csv)")
    parser.add_argument("--of", required=True, choices=["peak", "mean", "integral", "force"], help="which scalar")
    parser.add_argument("--field", required=True, help="of which predicted field")
    parser.add_argument("--component", type=int, default=0, help="of a field of several, counted from 0")
    parser.add_argument("--softness", type=float, default=0.0, help="of a peak: 0 is the largest value itself")
    parser.add_argument("--direction", help="of a force, such as 1,0,0")
    parser.add_argument("--out", required=True, help="file to write (.vtu for a mesh, or .npz); must not exist")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    out = Path(args.out)
    if out.suffix not in (".vtu", ".npz"):
        raise ConfigError(f"--out {out}: the name should end in .vtu or .npz")

    from flare.data.meshed import grid_inputs
    from flare.data.tables import read_inputs
    from flare.files import refuse_existing
    from flare.mesh.unstructured import read_grid
    from flare.sensitivity import sensitivity
    from flare.surrogate import load

    refuse_existing(out)
    surrogate = load(args.run, checkpoint=args.checkpoint, device=args.device)
    schema = surrogate.schema
    grid = read_grid(args.input) if args.input.endswith(".vtu") else None
    if grid is None and out.suffix == ".vtu":
        raise ConfigError(f"{args.input} is no mesh to write back with fields; let --out end in .npz")
    inputs = grid_inputs(grid, schema, args.input) if grid else read_inputs(args.input, schema)
    points = inputs.pop(schema.points)
    found = sensitivity(surrogate, points, _scalar(args, grid), **inputs)

    slopes = {f"d_{args.of}_d_{schema.points}": found.points}
    slopes |= {f"d_{args.of}_d_{name}": slope for name, slope in (found.features | found.parameters).items()}
    _write(out, grid, {schema.points: points, **inputs}, slopes, list(found.parameters))
    print(f"{args.of} of {args.field}: {found.value:.6g}")
    for name, slope in found.parameters.items():
        print(f"  by {name}: {', '.join(f'{number:.6g}' for number in slope)}")
    print(f"{out}: {', '.join(slopes)}")
    return 0


def _scalar(args: Any, grid: Grid | None) -> Scalar:
    from flare.data.meshed import grid_cells
    from flare.sensitivity import force, integral, mean, peak

    if args.direction and args.of != "force":
        raise ConfigError(f"--direction is for --of force, not for {args.of}")
    if args.of == "peak":
        return peak(args.field, component=args.component, softness=args.softness)
    cells = grid_cells(grid) if grid else None
    if args.of == "mean":
        return mean(args.field, component=args.component, cells=cells or None)
    if not cells:
        raise DataError(f"--of {args.of} is a sum over cells, and {args.input} has none; give a mesh (.vtu)")
    if args.of == "integral":
        return integral(args.field, cells, component=args.component)
    try:
        direction = [float(number) for number in (args.direction or "").split(",")]
    except ValueError:
        raise ConfigError(f"--direction {args.direction}: give one number for each axis, such as 1,0,0") from None
    return force(args.field, cells, direction)


def _write(out: Path, grid: Grid | None, inputs: dict[str, Any], slopes: dict[str, Any], parameters: list[str]) -> None:
    import numpy as np

    from flare.files import replacing
    from flare.mesh.unstructured import write_grid

    if out.suffix == ".npz":
        with replacing(out) as temporary:
            np.savez(temporary, **inputs, **slopes)
        return
    assert grid is not None
    whole = {name: slope for name, slope in slopes.items() if any(name.endswith(f"_d_{p}") for p in parameters)}
    fields = {name: _in_space(slope) for name, slope in slopes.items() if name not in whole}
    grid.values.update(whole)
    write_grid(out, grid.with_fields(fields))


def _in_space(slope: Any) -> Any:
    """Vectors of the plane get a third number, so that ParaView takes them for vectors."""
    import numpy as np

    return np.pad(slope, [(0, 0), (0, 1)]) if slope.shape[1] == 2 else slope
