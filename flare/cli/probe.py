"""`flare probe`: evaluate the fields of an encoded sample along a line, on a plane or on grids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import count, make_parser, parse, with_unit
from flare.cli.surrogates import add_set, add_weights, settings, weights
from flare.utils.errors import ConfigError
from flare.utils.terminal import print_status

if TYPE_CHECKING:
    from flare.inference.encoding import Encoding
    from flare.inference.probes import Probe

EPILOG = """examples:
  flare probe runs/demo part.code --line 0,0:1,1 --count 200 --out diagonal.csv
  flare probe runs/car car.code --plane 0,-1,0:4,-1,0:0,1,0 --count 400 --out floor.npz
  flare probe runs/car car.code --grid --cells 16 --levels 3 --out car.npz       car-0.npz, car-1.npz, car-2.npz"""


def run(words: Sequence[str]) -> None:
    """Run the command."""
    parser = make_parser("probe", "Evaluate the fields of an encoded sample anywhere.", EPILOG)
    add_weights(parser)
    add = parser.add_argument
    add("encoding", help="file written by `flare encode` with the same weights")
    add("-o", "--out", required=True, help="file to write (.npz, .csv); must not exist")
    add("--line", metavar="A:B", help="points from A to B, such as -1,0,0:1,0,0")
    add("--plane", metavar="A:B:C", help="points in a parallelogram with the corner A and its neighbors B and C")
    add("--grid", action="store_true", help="points of grids over the encoded points, or over --box")
    add("--box", metavar="A:B", help="lowest and highest corner of the grids")
    add("--count", type=count, default=200, help="points along a line, or along the longer side of a plane")
    add("--cells", type=count, default=16, help="cells of the coarsest grid along its longest side")
    add("--levels", type=count, default=1, help="number of grids, each twice as fine as the one before")
    add_set(parser)
    args = parse(parser, words)

    from flare.mesh.io import ROW_FORMATS
    from flare.utils.files import check_not_existing

    if sum(map(bool, (args.line, args.plane, args.grid))) != 1 or (args.box and not args.grid):
        raise ConfigError("use one of --line, --plane, --grid, and --grid --box A:B")
    out = Path(args.out)
    if out.suffix.lower() not in ROW_FORMATS:
        raise ConfigError(f"--out {out}: the name must end in {' or '.join(ROW_FORMATS)}")
    names = [out]
    if args.grid and args.levels > 1:
        names = [out.with_name(f"{out.stem}-{level}{out.suffix}") for level in range(args.levels)]
    for name in names:
        check_not_existing(name)
    features = settings(args.set)

    from flare.inference.encoding import load_encoding
    from flare.inference.surrogate import load

    encoding = load_encoding(args.encoding, load(args.run, **weights(args)))
    for name, probe in zip(names, _probes(args, encoding), strict=True):
        _write(encoding, probe, features, name)


def _probes(args: Any, encoding: Encoding) -> Iterable[Probe]:
    from flare.inference.probes import grids, line, plane

    schema = encoding.surrogate.schema
    width = len(schema.fields[schema.points].components)
    if args.line:
        start, end = _corners(args.line, 2, width)
        return [line(start, end, args.count)]
    if args.plane:
        corner, first, second = _corners(args.plane, 3, width)
        return [plane(corner, first, second, args.count)]
    low, high = _corners(args.box, 2, width) if args.box else encoding.box.tolist()
    return grids(low, high, args.cells, args.levels)


def _corners(text: str, count: int, width: int) -> list[list[float]]:
    try:
        corners = [[float(number) for number in corner.split(",")] for corner in text.split(":")]
    except ValueError:
        corners = []
    if [len(corner) for corner in corners] != [width] * count:
        raise ConfigError(f"{text}: use {count} points of {width} coordinates, separated by colons, such as 0,0:1,1")
    return corners


def _write(encoding: Encoding, probe: Probe, features: dict[str, list[float]], out: Path) -> None:
    import numpy as np

    from flare.mesh.io.arrays import write_npz
    from flare.mesh.io.tables import write_csv
    from flare.mesh.mesh import Mesh
    from flare.utils.files import create_file

    schema, count = encoding.surrogate.schema, len(probe.points)
    everywhere = {name: np.tile(np.asarray(value, np.float32), (count, 1)) for name, value in features.items()}
    fields = encoding.query(probe.points, everywhere)
    if outside := encoding.outside(probe.points):
        print_status(f"WARNING: {out}: {outside}")
    units = {"points" if name == schema.points else name: field.unit for name, field in schema.fields.items()}
    components = {name: field.components for name, field in schema.fields.items()}
    mesh = Mesh(probe.points, point_data={**everywhere, **fields}, units=units, components=components)
    # Names with a dot, which no field has.
    layout = {"probe.shape": np.array(probe.shape), "probe.level": np.array(probe.level)}
    with create_file(out) as path:
        if out.suffix.lower() == ".csv":
            write_csv(path, mesh, points=schema.points)
        else:
            write_npz(path, mesh.with_data(field_data=layout), points=schema.points)
    shape = " x ".join(f"{n:,}" for n in probe.shape)
    for name, values in fields.items():
        span = with_unit(f"{values.min():.6g} to {values.max():.6g}", encoding.surrogate.units[name])
        print(f"{out}: {name}, {shape} points, {span}")
