"""`flare probe`: fields of an encoded sample along a line, on a plane or on grids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import make_parser, parse, with_unit
from flare.cli.predict import add_set, settings
from flare.utils.errors import ConfigError
from flare.utils.terminal import print_status
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.data.sample import Schema
    from flare.inference.encoding import Encoding
    from flare.inference.probes import Probe

PLACES = ("--line", "--plane", "--box")
"""Options whose values are coordinates, which may be negative."""

EPILOG = """examples:
  flare probe runs/demo part.code --line 0,0:1,1 --count 200 --out diagonal.csv
  flare probe runs/car car.code --plane 0,-1,0:4,-1,0:0,1,0 --count 400 --out floor.npz
  flare probe runs/car car.code --grid --cells 16 --levels 3 --out car.npz       car-0.npz, car-1.npz, car-2.npz"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("probe", "Evaluate the fields of an encoded sample anywhere.", EPILOG)
    parser.add_argument("run", help="run folder of the model that made the encoding")
    parser.add_argument("code", help="file written by `flare encode`")
    parser.add_argument("--out", required=True, help="file to write (.npz, .csv); must not exist")
    parser.add_argument("--line", metavar="A:B", help="two ends, such as -1,0,0:1,0,0")
    parser.add_argument("--plane", metavar="A:B:C", help="a corner of a parallelogram and its two neighbors")
    parser.add_argument("--grid", action="store_true", help="grids over the encoded points, or over --box")
    parser.add_argument("--box", metavar="A:B", help="lowest and highest corner of the grids")
    parser.add_argument(
        "--count", type=int, default=200, help="points along a line, or along the longer side of a plane"
    )
    parser.add_argument("--cells", type=int, default=16, help="cells of the coarsest grid along its longest side")
    parser.add_argument("--levels", type=int, default=1, help="number of grids, each twice as fine as the one before")
    add_set(parser, "features, the same everywhere")
    parser.add_argument(
        "--checkpoint", default="last", choices=["last", "best"], help="which weights, as for the encoding"
    )
    parser.add_argument("--ema", action="store_true", help="use the averaged weights, as for the encoding")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, _with_minus(words))
    names = _names(args)

    from flare.inference.encoding import load_encoding
    from flare.inference.surrogate import load

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    code = load_encoding(args.code, surrogate)
    features = _features(args.set, surrogate.schema)
    for name, probe in zip(names, _probes(args, code), strict=True):
        _write(code, probe, features, name)
    return 0


def _names(args: Any) -> list[Path]:
    """Return the files to write; impossible requests are rejected before torch is loaded."""
    from flare.mesh.io import ROW_FORMATS
    from flare.utils.files import check_not_existing

    given = [f"--{how}" for how in ("line", "plane", "grid") if getattr(args, how)]
    if len(given) != 1:
        raise ConfigError(f"use one of --line, --plane and --grid; given: {' and '.join(given) or 'none'}")
    if args.box and not args.grid:
        raise ConfigError(f"--box applies to --grid, not to {given[0]}")
    out = Path(args.out)
    if out.suffix.lower() not in ROW_FORMATS:
        raise ConfigError(f"--out {out}: the name must end in {' or '.join(ROW_FORMATS)}")
    names = [_numbered(out, level) for level in range(args.levels)] if args.grid and args.levels > 1 else [out]
    for name in names:
        check_not_existing(name)
    return names


def _with_minus(words: Sequence[str]) -> list[str]:
    """Turn `--line -1,0:1,0` into `--line=-1,0:1,0`; a value that starts with a minus would be taken for an option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in PLACES and re.match(r"-[\d.]", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _features(given: Sequence[str], schema: Schema) -> dict[str, list[float]]:
    features = settings(given)
    for name in schema.named("feature"):
        if name not in features:
            raise ConfigError(
                f"the model wants the feature {name!r} at every point: --set {name}=VALUE if it is alike everywhere, "
                f"else encoding.query(points, {{{name!r}: ...}}) in Python"
            )
    return features


def _probes(args: Any, code: Encoding) -> Iterable[Probe]:
    from flare.inference.probes import grids, line, plane

    axes = code.surrogate.schema.fields[code.surrogate.schema.points].components
    if args.line:
        start, end = _corners(args.line, 2, "--line", axes)
        return [line(start, end, args.count)]
    if args.plane:
        corner, first, second = _corners(args.plane, 3, "--plane", axes)
        return [plane(corner, first, second, args.count)]
    low, high = _corners(args.box, 2, "--box", axes) if args.box else code.box.tolist()
    return grids(low, high, args.cells, args.levels)


def _write(code: Encoding, probe: Probe, features: dict[str, list[float]], out: Path) -> None:
    import numpy as np

    from flare.mesh.io.arrays import write_npz
    from flare.mesh.io.tables import write_csv
    from flare.mesh.mesh import Mesh
    from flare.utils.files import create_file

    schema = code.surrogate.schema
    everywhere = {
        name: np.tile(np.asarray(value, np.float32), (len(probe.points), 1)) for name, value in features.items()
    }
    fields = code.query(probe.points, everywhere)
    outside = code.outside(probe.points)
    if outside:
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
        span = with_unit(f"{values.min():.6g} to {values.max():.6g}", code.surrogate.units[name])
        print(f"{out}: {name}, {shape} points, {span}")


def _numbered(path: Path, level: int) -> Path:
    return path.with_name(f"{path.stem}-{level}{path.suffix}")


def _corners(text: str, count: int, option: str, axes: Sequence[str]) -> list[list[float]]:
    try:
        corners = [[float(number) for number in corner.split(",")] for corner in text.split(":")]
    except ValueError:
        corners = []
    if len(corners) != count:
        raise ConfigError(f"{option} {text}: use {count} points such as 0,0,0, separated by colons")
    for corner in corners:
        if len(corner) != len(axes):
            raise ConfigError(
                f"{option} {text}: a point has {counted(len(corner), 'coordinate')}; this model has {len(axes)}: "
                f"{', '.join(axes)}"
            )
    return corners
