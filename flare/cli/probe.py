"""`flare probe`: fields along a line, over a plane or on grids, from an encoded sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.words import with_unit
from flare.errors import ConfigError

if TYPE_CHECKING:
    from flare.code import Code
    from flare.probes import Probe

EPILOG = """examples:
  flare probe runs/demo part.code --line 0,0:1,1 --count 200 --out diagonal.csv
  flare probe runs/car car.code --plane 0,-1,0:4,-1,0:0,1,0 --count 400 --out floor.npz
  flare probe runs/car car.code --grid --cells 16 --levels 3 --out car.npz       car-0.npz, car-1.npz, car-2.npz"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("probe", "Ask an encoded sample for its fields anywhere.", EPILOG)
    parser.add_argument("run", help="run folder of the model that encoded it")
    parser.add_argument("code", help="what `flare encode` wrote")
    parser.add_argument("--out", required=True, help="file to write (.npz, .csv); must not exist")
    parser.add_argument(
        "--line",
        metavar="A:B",
        help="its two ends, such as 0,0,0:1,0,0; --line=-1,0,0:1,0,0 where it begins with a minus",
    )
    parser.add_argument("--plane", metavar="A:B:C", help="a corner of a parallelogram and the two beside it")
    parser.add_argument("--grid", action="store_true", help="grids over the encoded points, or over --box")
    parser.add_argument("--box", metavar="A:B", help="lowest and highest corner of the grids")
    parser.add_argument("--count", type=int, default=200, help="points of a line, or of the longer side of a plane")
    parser.add_argument("--cells", type=int, default=16, help="of the coarsest grid, along its longest side")
    parser.add_argument("--levels", type=int, default=1, help="grids, each twice as fine as the one before")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a feature, alike everywhere")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    if sum(map(bool, (args.line, args.plane, args.grid))) != 1:
        raise ConfigError("say where: one of --line, --plane and --grid")

    from flare.code import load_code
    from flare.files import refuse_existing
    from flare.surrogate import load

    code = load_code(args.code, load(args.run, checkpoint=args.checkpoint, device=args.device))
    probes = _probes(args, code)
    names = [Path(args.out)] if len(probes) == 1 else [_numbered(Path(args.out), i) for i in range(len(probes))]
    for name in names:
        refuse_existing(name)
    features = dict(_setting(text) for text in args.set)
    for name, probe in zip(names, probes, strict=True):
        _write(code, probe, features, name)
    return 0


def _probes(args: Any, code: Code) -> list[Probe]:
    from flare.probes import grids, line, plane

    if args.line:
        start, end = _corners(args.line, 2, "--line")
        return [line(start, end, args.count)]
    if args.plane:
        corner, first, second = _corners(args.plane, 3, "--plane")
        return [plane(corner, first, second, args.count)]
    low, high = _corners(args.box, 2, "--box") if args.box else code.box.tolist()
    return grids(low, high, args.cells, args.levels)


def _write(code: Code, probe: Probe, features: dict[str, list[float]], out: Path) -> None:
    import numpy as np

    from flare.data.tables import write_outputs

    schema = code.surrogate.schema
    everywhere = {
        name: np.tile(np.asarray(value, np.float32), (len(probe.points), 1)) for name, value in features.items()
    }
    fields = code.query(probe.points, **everywhere)
    write_outputs(out, schema, {schema.points: probe.points, **everywhere}, fields)
    shape = " x ".join(f"{n:,}" for n in probe.shape)
    for name, values in fields.items():
        span = with_unit(f"{values.min():.6g} to {values.max():.6g}", code.surrogate.units[name])
        print(f"{out}: {name}, {shape} points, {span}")


def _numbered(path: Path, level: int) -> Path:
    return path.with_name(f"{path.stem}-{level}{path.suffix}")


def _corners(text: str, count: int, option: str) -> list[list[float]]:
    try:
        corners = [[float(number) for number in corner.split(",")] for corner in text.split(":")]
    except ValueError:
        corners = []
    if len(corners) != count:
        raise ConfigError(f"{option} {text}: give {count} points such as 0,0,0, with a colon between them")
    return corners


def _setting(text: str) -> tuple[str, list[float]]:
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError:
        raise ConfigError(f"--set {text}: give a name and its numbers, such as thickness=1.5") from None
