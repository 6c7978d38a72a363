"""`flare data import`: meshes and tables of simulations as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flare.cli import make_parser, parse, with_options
from flare.utils.errors import ConfigError
from flare.utils.files import check_not_existing
from flare.utils.terminal import print_status
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.data.importing.importer import ImportPlan
    from flare.data.importing.survey import Survey

EPILOG = """examples:
  flare data import results --dry-run                                       list the content of these files
  flare data import results --target pressure --out data/wings
  flare data import 'results/*.vtu' --target p U --input roughness --parameters runs.csv --group design \\
      --unit points=m p=Pa U=m/s --cell-data centres --test 0.2 --out data/wings

Files are VTK (vtu, vtp, vtk, vti, vtr, vts, vtm), CGNS, Exodus, OpenFOAM cases, Abaqus, Nastran, Ansys, Gmsh, Salome
and SU2 meshes, STL, PLY, OBJ, and NPZ, HDF5, Zarr, CSV and Parquet with points and fields."""


def import_command(words: Sequence[str]) -> int:
    parser = make_parser("data import", "Make a dataset of simulation files.", EPILOG)
    parser.add_argument("source", nargs="+", help="folder, file or 'pattern'; several are joined")
    parser.add_argument("-o", "--out", help="dataset folder to write; must not exist")
    parser.add_argument("--dry-run", action="store_true", help="show what would be written; write nothing")
    several: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "NAME"}
    parser.add_argument("--target", dest="targets", help="fields to predict", **several)
    parser.add_argument("--input", dest="inputs", help="fields or parameters that the model gets", **several)
    unit = several | {"metavar": "NAME=UNIT"}
    parser.add_argument("--unit", dest="units", help="units; points=m is the unit of length", **unit)
    help_text = "one row per file: a column 'file', and a parameter in each other column"
    parser.add_argument("--parameters", metavar="CSV", help=help_text)
    help_text = "keep fields at cell centers, or average them to the points"
    parser.add_argument("--cell-data", choices=["centres", "points"], help=help_text)
    parser.add_argument("--dimensions", type=Literal[1, 2, 3], help="default: z is dropped if all files are planar")
    parser.add_argument("--test", default="0.2", help="share of the files, a 'pattern' of names, or a .txt with names")
    parser.add_argument("--calibration", type=float, default=0.15, help="share of the files held out for error bars")
    parser.add_argument("--group", help="column of --parameters, or 'folder': files of a group stay in one split")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random split")
    help_text = "points with NaN or infinite values"
    parser.add_argument("--on-nan", default="refuse", choices=["refuse", "drop"], help=help_text)
    parser.add_argument(
        "--coordinates", dest="points", metavar="NAME", help="name of the coordinates in files of arrays"
    )
    parser.add_argument("--exclude", action="extend", help="files or 'patterns' to skip; repeatable", **several)
    args = parse(parser, words)
    if not args.dry_run:
        if not args.out:
            raise ConfigError("name the dataset folder with --out, or preview the import with --dry-run")
        check_not_existing(args.out)
    _import(args)
    return 0


def _import(args: Any) -> None:
    from flare.data.importing.cases import find_cases
    from flare.data.importing.importer import check_values, plan_import, write_import
    from flare.data.importing.schema import unused_parameters
    from flare.data.importing.survey import survey

    found = survey(find_cases(args.source, points=args.points, exclude=args.exclude), points=args.points)
    if args.dry_run:
        _show(found)
        if not args.targets:
            _print_notes([*found.notes, *unused_parameters(found, args.inputs)])
            print("choose targets with --target NAME and model inputs with --input NAME; then add --out FOLDER")
            return
    names = ("parameters", "cell_data", "dimensions", "test", "calibration", "group", "seed", "on_nan", "points")
    wrong = [pair for pair in args.units if "=" not in pair]
    if wrong:
        raise ConfigError(f"--unit {wrong[0]}: write NAME=UNIT, such as pressure=Pa")
    plan = plan_import(
        args.source,
        targets=args.targets,
        inputs=args.inputs,
        units=dict(pair.split("=", 1) for pair in args.units),
        exclude=args.exclude,
        found=found,
        name=Path(args.out).name if args.out else "imported",
        **{name: getattr(args, name) for name in names},
    )
    _describe(plan)
    if args.dry_run:
        check_values(plan)
        return
    dataset = write_import(plan, args.out)
    print(f"{args.out}: {len(dataset):,} samples, {int(dataset.offsets[-1]):,} points")
    print_status(f"check it with:  flare data check {args.out}")


def _show(found: Survey) -> None:
    """Print the fields of the files as a table."""
    from rich.console import Console
    from rich.table import Table

    points = [case.points for case in found.cases]
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.cell_kinds.items()) or "none"
    print(
        f"{counted(len(found.cases), 'case')} of {min(points):,} to {max(points):,} points in {' '.join(found.axes)}; "
        f"cells: {kinds}"
    )
    table = Table("field", "at", "components", "cases", "from", "to", "NaN, inf")
    for (where, name), field in found.fields.items():
        table.add_row(
            name,
            where,
            " or ".join(map(str, sorted(field.widths))),
            "all" if len(field.cases) == len(found.cases) else f"{len(field.cases)} of {len(found.cases)}",
            f"{field.low:.4g}",
            f"{field.high:.4g}",
            f"{field.bad:,}" if field.bad else "",
        )
    Console().print(table)


def _describe(plan: ImportPlan) -> None:
    """Print the fields and splits of the dataset, and the notes."""
    for name, field in plan.schema.fields.items():
        unit = "" if field.unit == "1" else f" [{field.unit}]"
        print(f"  {field.role:<10} {name}{unit}: {', '.join(field.components)}")
    sizes = [f"{name} {stop - start:,}" for name, (start, stop) in plan.splits.items()]
    print(f"  splits     {', '.join(sizes)}")
    _print_notes(plan.notes)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print_status(f"note: {with_options(note)}")
