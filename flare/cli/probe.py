"""`flare probe`: fields along a line, over a plane or on grids, from an encoded sample."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import add_set, make_parser, settings
from flare.cli.words import with_unit
from flare.utils.errors import ConfigError
from flare.utils.terminal import say
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.code import Code
    from flare.data.sample import Schema
    from flare.probes import Probe

PLACES = ("--line", "--plane", "--box")
"""Options that take coordinates, which may be negative."""

EPILOG = """examples:
  flare probe runs/demo part.code --line 0,0:1,1 --count 200 --out diagonal.csv
  flare probe runs/car car.code --plane 0,-1,0:4,-1,0:0,1,0 --count 400 --out floor.npz
  flare probe runs/car car.code --grid --cells 16 --levels 3 --out car.npz       car-0.npz, car-1.npz, car-2.npz"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("probe", "Ask an encoded sample for its fields anywhere.", EPILOG)
    parser.add_argument("run", help="run folder of the model that encoded it")
    parser.add_argument("code", help="what `flare encode` wrote")
    parser.add_argument("--out", required=True, help="file to write (.npz, .csv); must not exist")
    parser.add_argument("--line", metavar="A:B", help="its two ends, such as -1,0,0:1,0,0")
    parser.add_argument("--plane", metavar="A:B:C", help="a corner of a parallelogram and the two beside it")
    parser.add_argument("--grid", action="store_true", help="grids over the encoded points, or over --box")
    parser.add_argument("--box", metavar="A:B", help="lowest and highest corner of the grids")
    parser.add_argument("--count", type=int, default=200, help="points of a line, or of the longer side of a plane")
    parser.add_argument("--cells", type=int, default=16, help="of the coarsest grid, along its longest side")
    parser.add_argument("--levels", type=int, default=1, help="grids, each twice as fine as the one before")
    add_set(parser, "features, alike everywhere")
    parser.add_argument(
        "--checkpoint", default="last", choices=["last", "best"], help="which weights, as it was encoded"
    )
    parser.add_argument("--ema", action="store_true", help="the averaged weights, if they encoded it")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, _with_minus(words))
    names = _names(args)

    from flare.code import load_code
    from flare.surrogate import load

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    code = load_code(args.code, surrogate)
    features = _features(args.set, surrogate.schema)
    for name, probe in zip(names, _probes(args, code), strict=True):
        _write(code, probe, features, name)
    return 0


def _names(args: Any) -> list[Path]:
    """Of the files to write. What cannot be is said here, before torch is loaded."""
    from flare.data.tables import refuse_format
    from flare.utils.files import refuse_existing

    given = [f"--{how}" for how in ("line", "plane", "grid") if getattr(args, how)]
    if len(given) != 1:
        raise ConfigError(f"say where by one of --line, --plane and --grid; given: {' and '.join(given) or 'none'}")
    if args.box and not args.grid:
        raise ConfigError(f"--box is for --grid; {given[0]} says itself where it is")
    out = Path(args.out)
    refuse_format(out)
    names = [_numbered(out, level) for level in range(args.levels)] if args.grid and args.levels > 1 else [out]
    for name in names:
        refuse_existing(name)
    return names


def _with_minus(words: Sequence[str]) -> list[str]:
    """`--line -1,0:1,0` as `--line=-1,0:1,0`: what begins with a minus would be taken for another option."""
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
                f"else code.query(points, {name}=...) in Python"
            )
    return features


def _probes(args: Any, code: Code) -> Iterable[Probe]:
    from flare.probes import grids, line, plane

    axes = code.surrogate.schema.fields[code.surrogate.schema.points].components
    if args.line:
        start, end = _corners(args.line, 2, "--line", axes)
        return [line(start, end, args.count)]
    if args.plane:
        corner, first, second = _corners(args.plane, 3, "--plane", axes)
        return [plane(corner, first, second, args.count)]
    low, high = _corners(args.box, 2, "--box", axes) if args.box else code.box.tolist()
    return grids(low, high, args.cells, args.levels)


def _write(code: Code, probe: Probe, features: dict[str, list[float]], out: Path) -> None:
    import numpy as np

    from flare.data.tables import write_outputs
    from flare.utils.files import making

    schema = code.surrogate.schema
    everywhere = {
        name: np.tile(np.asarray(value, np.float32), (len(probe.points), 1)) for name, value in features.items()
    }
    fields = code.query(probe.points, **everywhere)
    outside = code.outside(probe.points)
    if outside:
        say(f"WARNING: {out}: {outside}")
    # Names with a dot, which no field has.
    layout = {"probe.shape": np.array(probe.shape), "probe.level": np.array(probe.level)}
    with making(out) as path:
        write_outputs(path, schema.fields, {schema.points: probe.points, **everywhere}, fields, layout)
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
        raise ConfigError(f"{option} {text}: give {count} points such as 0,0,0, with a colon between them")
    for corner in corners:
        if len(corner) != len(axes):
            raise ConfigError(
                f"{option} {text}: {counted(len(corner), 'coordinate')} in a point; this model has {len(axes)}: "
                f"{', '.join(axes)}"
            )
    return corners
