"""`flare data import`: make a dataset of simulation files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flare.cli import make_parser, new_path, parse, with_options
from flare.utils.errors import ConfigError
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
GROUPS = {
    "files": "source parameters exclude points",
    "fields": "targets inputs units cell_data dimensions on_nan",
    "splits": "test calibration group seed",
    "output": "out dry_run",
}


def import_command(words: Sequence[str]) -> None:
    """Run `flare data import`."""
    parser = make_parser("data import", "Make a dataset of simulation files.", EPILOG, GROUPS)
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "default": []}
    add("source", nargs="+", help="folder, file or 'pattern'; several are joined")
    add("-o", "--out", type=new_path, help="dataset folder to write")
    add("--dry-run", action="store_true", help="show what would be written; write nothing")
    add("--target", dest="targets", metavar="NAME", help="fields to predict", **several)
    add("--input", dest="inputs", metavar="NAME", help="fields or parameters that the model gets", **several)
    add("--unit", dest="units", metavar="NAME=UNIT", help="units; points=m is the unit of length", **several)
    add("--parameters", metavar="CSV", help="table with a row per file: a column 'file', and one per parameter")
    add("--cell-data", choices=["centres", "points"], help="keep fields at cell centers, or average them to the points")
    add("--dimensions", type=Literal[1, 2, 3], help="number of coordinates; default drops z if all files are planar")
    add("--test", default="0.2", help="share of the files, a 'pattern' of names, or a .txt with names")
    add("--calibration", type=float, default=0.15, help="share of the files held out for error bars")
    add("--group", help="column of --parameters, or 'folder': files of a group stay in one split")
    add("--seed", type=int, default=0, help="seed of the random split")
    add("--on-nan", default="refuse", choices=["refuse", "drop"], help="what to do with points that have NaN or inf")
    add("--coordinates", dest="points", metavar="NAME", help="name of the coordinates in files of arrays")
    add("--exclude", metavar="NAME", action="extend", help="files or 'patterns' to skip; repeatable", **several)
    args = parse(parser, words)
    if not args.dry_run and not args.out:
        raise ConfigError("name the dataset folder with --out, or preview the import with --dry-run")

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
    if wrong := [pair for pair in args.units if "=" not in pair]:
        raise ConfigError(f"--unit {wrong[0]}: write NAME=UNIT, such as pressure=Pa")
    how = args.as_dict()
    how |= {"units": dict(pair.split("=", 1) for pair in args.units), "found": found}
    out, dry_run = how.pop("out"), how.pop("dry_run")
    plan = plan_import(**how, name=Path(out).name if out else "imported")
    _describe(plan)
    if dry_run:
        check_values(plan)
        return
    dataset = write_import(plan, out)
    print(f"{out}: {len(dataset):,} samples, {int(dataset.offsets[-1]):,} points")
    print_status(f"check it with:  flare data check {out}")


def _show(found: Survey) -> None:
    """Print the fields of the files as a table."""
    from rich.console import Console
    from rich.table import Table

    points = [case.points for case in found.cases]
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.cell_kinds.items()) or "none"
    cases, axes = counted(len(found.cases), "case"), " ".join(found.axes)
    print(f"{cases} of {min(points):,} to {max(points):,} points in {axes}; cells: {kinds}")
    table = Table("field", "at", "components", "cases", "from", "to", "NaN, inf")
    for (where, name), field in found.fields.items():
        widths = " or ".join(map(str, sorted(field.widths)))
        having = "all" if len(field.cases) == len(found.cases) else f"{len(field.cases)} of {len(found.cases)}"
        bad = f"{field.bad:,}" if field.bad else ""
        table.add_row(name, where, widths, having, f"{field.low:.4g}", f"{field.high:.4g}", bad)
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
