"""`flare lpbf`: simulate distortion and stress of a part printed by laser powder bed fusion."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from flare.cli import count, make_parser, new_path, parse, run_verb
from flare.utils.errors import ConfigError
from flare.utils.text import counted

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from flare.physics.lpbf.results import FinishedBuild
    from flare.physics.lpbf.setup import Setup

VERBS = {
    "simulate": "simulate distortion and stress of a printed part",
    "part": "write a random CAD-like part",
    "processes": "show built-in machines and materials",
}
GROUPS = {
    "part": "part unit scale up",
    "process": "process plate_temperature mode",
    "mesh and machine": "voxel layers threads",
    "output": "out mesh series steps fields report plates exaggerate",
}
EXAMPLES = """examples:
  flare lpbf simulate bracket.stl --out bracket.vtu
  flare lpbf simulate bracket.step --out bracket.vtu --process in625 --up +y --mode refined
  flare lpbf simulate bracket.stl --out bracket.vtu --unit inch --voxel 1 --plates 150,300,450"""


def run(words: Sequence[str]) -> int:
    """Run `flare lpbf`."""
    actions = {"simulate": _simulate, "part": _part, "processes": _processes}
    about = "Simulate parts printed by laser powder bed fusion."
    return run_verb(words, "flare lpbf", VERBS, actions.__getitem__, about)


def _simulate(words: Sequence[str]) -> None:
    args = parse(_simulate_parser(), words)

    from flare.physics.lpbf import job, numba_threads
    from flare.physics.lpbf.process import find_process
    from flare.physics.lpbf.results import FIELDS
    from flare.physics.lpbf.setup import prepare
    from flare.utils.files import check_not_existing
    from flare.utils.terminal import print_status

    path, folder = job.output_paths(args.out)
    if not path.with_name(f"{path.name}.partial").exists():  # a resumed job may be about to move its files in place
        check_not_existing(path)
        check_not_existing(folder)
    process = find_process(args.process)
    if args.plate_temperature is not None:
        process = process.with_plate_temperature(args.plate_temperature)
    plates = _temperatures(args.plates) if args.report else []
    for temperature in plates:
        process.with_plate_temperature(temperature)  # fails early for an invalid temperature
    how = {name: args[name] for name in ("mode", "voxel", "layers", "unit", "up")}
    setup = prepare(args.part, process, **how, longest=60.0 if args.scale == "fit" else None)
    print_status(_describe(setup))
    for note in setup.notes:
        print_status(f"note: {note}")

    def report(build: FinishedBuild, folder: Path) -> None:
        from flare.physics.lpbf.plates import compare_plate_temperatures
        from flare.report.lpbf import write_build_page

        study = compare_plate_temperatures(setup, plates, save_folder=folder.parent / "plates") if plates else None
        write_build_page(build, folder, plates=study, exaggerate=args.exaggerate)

    with numba_threads(args.threads) if args.threads else nullcontext():
        summary = job.run(
            setup,
            path,
            **{name: args[name] for name in ("mesh", "series", "steps")},
            fields=FIELDS if args.fields == "all" else [word.strip() for word in args.fields.split(",")],
            post_process=report if args.report else None,
            post_process_settings={"report": args.report, "plates": plates, "exaggerate": args.exaggerate},
        )
    print(summary)
    for file, content in (
        (path, "displacement, strain and stress of the released part"),
        (folder / "groups.csv", "recoater interference and temperature of every layer group"),
        (folder / "build.pvd", "every layer group, for ParaView"),
        (folder / "report.html", "figures and tables of distortion, recoater interference and stress"),
    ):
        if file.exists():
            print(f"{file}: {content}")


def _simulate_parser() -> ArgumentParser:
    about = "Simulate a print: displacement and stress after every layer group. Run a stopped command again to resume."
    parser = make_parser("lpbf simulate", about, EXAMPLES, GROUPS)
    add = parser.add_argument
    add("part", help="STL, PLY, OBJ, OFF, GLB, 3MF, STEP, IGES or BREP file of one solid")
    add("-o", "--out", required=True, help="VTU file of the released part; the rest goes to NAME_build beside it")
    add("--process", default="ti64-am250", help="built-in name (flare lpbf processes) or a YAML file")
    add("--mode", default="benchmark", choices=["benchmark", "refined"], help="linear, or with plastic flow")
    add("--voxel", type=float, help="largest edge of a voxel, mm; default as in the benchmark")
    add("--layers", type=int, help="powder layers in the height of a voxel; default from --voxel or the process")
    add("--unit", default="mm", choices=["um", "mm", "cm", "m", "inch"], help="unit of the file's coordinates")
    add("--scale", default="keep", choices=["keep", "fit"], help="keep the size, or scale the longest edge to 60 mm")
    add("--up", default="+z", choices=["+x", "-x", "+y", "-y", "+z", "-z"], help="build direction, an axis of the file")
    add("--plate-temperature", type=float, help="temperature of a heated plate, °C; default no heater")
    add("--mesh", default="voxels", choices=["voxels", "octree"], help="mesh of the result; octree merges voxels")
    add("--series", type=bool, default=True, help="write a VTU file of every layer group, and a PVD file")
    add("--frames", dest="steps", type=count, help="most layer groups in the series, evenly spread; default all")
    add("--fields", default="all", help="fields in the series, such as displacement,von_mises; default all")
    add("--report", type=bool, default=True, help="write pictures and report.html")
    add("--plates", default="200,400", help="plate temperatures (°C) to compare in the report, or none")
    add("--exaggerate", type=float, help="scale of the deformation in pictures; default automatic")
    add("--threads", type=count, help="number of threads, which does not change the result; default all cores")
    return parser


def _temperatures(text: str) -> list[float]:
    if text.strip().lower() in ("", "none", "false"):
        return []
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"--plates {text}: must be temperatures in °C such as 200,400, or none") from None


def _describe(setup: Setup) -> str:
    size, edges = setup.part.extents, setup.voxels.size
    return (
        f"{setup.name}: {size[0]:.4g} × {size[1]:.4g} × {size[2]:.4g} mm, {setup.voxels.count:,} voxels of "
        f"{edges[0]:.3g} × {edges[1]:.3g} × {edges[2]:.3g} mm, {counted(setup.groups, 'layer group')} of "
        f"{setup.process.group_height:g} mm, {setup.process.material.name}"
    )


def _part(words: Sequence[str]) -> None:
    about = "Write a random part, 60 mm long: a plate, bracket, tube or block with holes, ribs and arms."
    from jsonargparse.typing import NonNegativeInt

    parser = make_parser("lpbf part", about)
    parser.add_argument("-o", "--out", type=new_path, required=True, help="STL, STEP or BREP file to write")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="random seed; the same seed gives the same part")
    args = parse(parser, words)

    import numpy as np

    from flare.mesh.io.cad import WRITTEN, triangulated, write_cad
    from flare.physics.lpbf.parts import draw_part
    from flare.utils.files import create_file

    kind = Path(args.out).suffix.lower()
    if kind not in (".stl", *WRITTEN):
        raise ConfigError(f"--out {args.out}: the format must be .stl, {', '.join(WRITTEN)}")
    part = draw_part(np.random.default_rng(args.seed)).part
    with create_file(args.out) as path:
        if kind == ".stl":
            triangulated(part.solid).save(path)
        else:
            write_cad(path, part.solid)
    print(f"{args.out}: {part.description}")


def _processes(words: Sequence[str]) -> None:
    about = "Show built-in machines and materials; with a name, print its file as a template for your own."
    parser = make_parser("lpbf processes", about)
    parser.add_argument("name", nargs="?", help="name of a process")
    name = parse(parser, words).name

    from flare.physics.lpbf.process import describe_process, process_file, process_names, process_preset

    if name:
        print(process_file(name).read_text(encoding="utf-8"), end="")
        return
    for each in process_names():
        process = process_preset(each)
        print(f"{each}: {process.material.name} on {process.machine.name}")
        for topic, numbers in describe_process(process).items():
            print(f"  {topic:<15} {numbers}")
