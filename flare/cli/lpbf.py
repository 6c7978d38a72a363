"""`flare lpbf simulate|part|processes`: distortion and stress of a part printed by laser powder bed fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from flare.cli import parse
from flare.cli.options import make_parser
from flare.utils.errors import ConfigError, nearest
from flare.utils.text import counted

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from flare.physics.lpbf.outcome import Outcome
    from flare.physics.lpbf.setup import Setup

HELP = """usage: flare lpbf simulate PART --out FILE ...     distortion and stress of a printed part, from its CAD file
       flare lpbf part --out FILE ...              a random part as a CAD user might draw it, to try with
       flare lpbf processes [NAME]                 machines and materials that are built in, with their numbers

Each has its own help, such as:  flare lpbf simulate --help"""

EXAMPLES = """examples:
  flare lpbf simulate bracket.stl --out bracket.vtu
  flare lpbf simulate bracket.step --out bracket.vtu --process in625 --up +y --mode refined
  flare lpbf simulate bracket.stl --out bracket.vtu --unit inch --voxel 1 --plates 150,300,450"""


def run(words: Sequence[str]) -> int:
    actions: dict[str, Callable[[Sequence[str]], int]] = {
        "simulate": _simulate,
        "part": _part,
        "processes": _processes,
    }
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if words[0] not in actions:
        raise ConfigError(f"flare lpbf has no verb {words[0]!r}; {nearest(words[0], actions)}")
    return actions[words[0]](words[1:])


def _simulate(words: Sequence[str]) -> int:
    args = parse(_simulate_parser(), _tied(words))

    from flare.physics.lpbf import job, threads
    from flare.physics.lpbf.output import FIELDS
    from flare.physics.lpbf.process import named_process
    from flare.physics.lpbf.setup import prepare
    from flare.utils.files import refuse_existing
    from flare.utils.terminal import say

    path, folder = job.outputs(args.out)
    if not path.with_name(f"{path.name}.partial").exists():  # what goes on may be about to move its files in place
        refuse_existing(path)
        refuse_existing(folder)
    if args.threads is not None and args.threads < 1:
        raise ConfigError(f"--threads {args.threads}: at least 1, please")
    process = named_process(args.process)
    if args.plate_temperature is not None:
        process = process.with_plate_temperature(args.plate_temperature)
    plates = _temperatures(args.plates) if args.report else []
    for temperature in plates:
        process.with_plate_temperature(temperature)  # refuses what is colder than the room, before the work
    setup = prepare(
        args.part,
        process,
        mode=args.mode,
        voxel=args.voxel,
        layers=args.layers,
        unit=args.unit,
        longest=60.0 if args.scale == "fit" else None,
        up=args.up,
    )
    say(_described(setup))
    for note in setup.notes:
        say(f"note: {note}")
    with threads(args.threads) if args.threads else nullcontext():
        result = job.run(
            setup,
            path,
            mesh=args.mesh,
            series=args.series,
            steps=args.steps,
            fields=FIELDS if args.fields == "all" else [word.strip() for word in args.fields.split(",")],
            more=_reporter(plates, args.exaggerate) if args.report else None,
            more_record={"report": args.report, "plates": plates, "exaggerate": args.exaggerate},
        )
    print(result)
    print(f"{path}: displacement, strain and stress of the released part")
    if args.series or args.report:
        print(f"{folder / 'groups.csv'}: recoater interference and temperature of every layer group")
    if args.series:
        print(f"{folder / 'build.pvd'}: every layer group, for ParaView")
    if args.report:
        print(f"{folder / 'report.html'}: where it distorts, where the recoater would hit")
    return 0


def _simulate_parser() -> ArgumentParser:
    about = (
        "Print a part: displacement and stress, layer group by layer group. A stopped job goes on when called again."
    )
    parser = make_parser("lpbf simulate", about, EXAMPLES)
    parser.add_argument("part", help="STL, PLY, OBJ, OFF, GLB, 3MF, STEP, IGES or BREP file of one solid")
    parser.add_argument(
        "--out", required=True, help="VTU file of the released part; its neighbour folder gets the rest"
    )
    parser.add_argument("--process", default="ti64-am250", help="built-in name (flare lpbf processes) or a YAML file")
    parser.add_argument(
        "--mode",
        default="benchmark",
        choices=["benchmark", "refined"],
        help="linear with an inherent strain; or with plastic flow and properties that depend on temperature",
    )
    parser.add_argument("--voxel", type=float, help="largest edge of a voxel, mm; default the benchmark's rule")
    parser.add_argument(
        "--layers", type=int, help="powder layers in the height of a voxel; default by voxel or process"
    )
    parser.add_argument(
        "--unit", default="mm", choices=["um", "mm", "cm", "m", "inch"], help="of the file's coordinates"
    )
    parser.add_argument(
        "--scale", default="keep", choices=["keep", "fit"], help="keep the size, or make the longest edge 60 mm"
    )
    parser.add_argument(
        "--up", default="+z", choices=["+x", "-x", "+y", "-y", "+z", "-z"], help="axis of the file that points up"
    )
    parser.add_argument("--plate-temperature", type=float, help="a heater holds the plate at so many °C; default none")
    parser.add_argument(
        "--mesh",
        default="voxels",
        choices=["voxels", "octree"],
        help="of the released part: all voxels, or merged ones inside, as in the dataset",
    )
    parser.add_argument(
        "--series", type=bool, default=True, help="write a VTU file of every layer group, and a PVD file"
    )
    parser.add_argument("--steps", type=int, help="layer groups in the series at most, evenly spread; default all")
    parser.add_argument("--fields", default="all", help="in the series, such as displacement,von_mises; default all")
    parser.add_argument("--report", type=bool, default=True, help="write pictures and report.html")
    parser.add_argument(
        "--plates",
        default="200,400",
        help="plate temperatures (°C) the report compares, refined on coarser voxels: half as long again; "
        "none leaves it out",
    )
    parser.add_argument(
        "--exaggerate", type=float, help="deformation in pictures, times so much; default so that it shows"
    )
    parser.add_argument("--threads", type=int, help="default every core; the bytes do not depend on it")
    return parser


def _tied(words: Sequence[str]) -> list[str]:
    """`--up -z` as `--up=-z`, for a parser that would take -z for an option."""
    tied: list[str] = []
    for word in words:
        if tied and tied[-1] == "--up":
            tied[-1] += f"={word}"
        else:
            tied.append(word)
    return tied


def _reporter(plates: list[float], exaggerate: float | None) -> Callable[[Outcome, Path], None]:
    def report(outcome: Outcome, folder: Path) -> None:
        from flare.physics.lpbf.plates import hotter_plates
        from flare.report.lpbf import write_build_page

        compared = hotter_plates(outcome.setup, plates, keep=folder.parent / "plates") if plates else None
        write_build_page(outcome, folder, plates=compared, exaggerate=exaggerate)

    return report


def _temperatures(text: str) -> list[float]:
    if text.strip().lower() in ("", "none", "false"):
        return []
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        message = f"--plates {text}: give temperatures in °C with commas between, such as 200,400, or none"
        raise ConfigError(message) from None


def _described(setup: Setup) -> str:
    size, edges = setup.part.extents, setup.voxels.size
    return (
        f"{setup.name}: {size[0]:.4g} × {size[1]:.4g} × {size[2]:.4g} mm, {setup.voxels.count:,} voxels of "
        f"{edges[0]:.3g} × {edges[1]:.3g} × {edges[2]:.3g} mm, {counted(setup.groups, 'layer group')} of "
        f"{setup.process.group_height:g} mm, {setup.process.material.name}"
    )


def _part(words: Sequence[str]) -> int:
    about = "Draw a random part, 60 mm long: a plate, bracket, tube or block with holes, ribs and arms."
    parser = make_parser("lpbf part", about)
    parser.add_argument("--out", required=True, help="STL, STEP or BREP file to write; must not exist")
    parser.add_argument("--seed", type=int, default=0, help="which part; the same seed gives the same one")
    args = parse(parser, words)
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: 0 or more, please")

    import numpy as np

    from flare.mesh.cad import WRITTEN, triangulated, write_cad
    from flare.mesh.stl import write_stl
    from flare.physics.lpbf.parts import draw_part
    from flare.utils.files import making, refuse_existing

    kind = Path(args.out).suffix.lower()
    if kind not in (".stl", *WRITTEN):
        raise ConfigError(f"--out {args.out}: a part is written as .stl, {', '.join(WRITTEN)}; end its name so")
    refuse_existing(args.out)
    part = draw_part(np.random.default_rng(args.seed)).part
    with making(args.out) as path:
        if kind == ".stl":
            write_stl(path, triangulated(part.solid))
        else:
            write_cad(path, part.solid)
    print(f"{args.out}: {part.description}")
    return 0


def _processes(words: Sequence[str]) -> int:
    about = "Machines and materials that are built in. With a name: its file, to make your own of."
    parser = make_parser("lpbf processes", about)
    parser.add_argument("name", nargs="?", help="one of them")
    name = parse(parser, words).name

    from flare.physics.lpbf.process import in_words, process_file, process_names, process_preset

    if name:
        print(process_file(name).read_text(encoding="utf-8"), end="")
        return 0
    for each in process_names():
        process = process_preset(each)
        print(f"{each}: {process.material.name} on {process.machine.name}")
        for topic, numbers in in_words(process).items():
            print(f"  {topic:<15} {numbers}")
    return 0
