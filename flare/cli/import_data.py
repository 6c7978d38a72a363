"""`flare data import`: your own meshes and tables as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flare.cli import parse
from flare.cli.options import make_parser
from flare.utils.errors import ConfigError
from flare.utils.terminal import say
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.data.importing.importer import ImportPlan
    from flare.data.importing.survey import Survey

EPILOG = """examples:
  flare data import results --dry-run                                       what is in these files
  flare data import results --target pressure --out data/wings
  flare data import 'results/*.vtu' --target p U --input roughness --parameters runs.csv --group design \\
      --unit points=m p=Pa U=m/s --cell-data centres --test 0.2 --out data/wings

Files are VTK (vtu, vtp, vtk, vti, vtr, vts, vtm), CGNS, Exodus, OpenFOAM cases, Abaqus, Nastran, Ansys, Gmsh, Salome
and SU2 meshes, STL, PLY, OBJ, and NPZ, HDF5, Zarr, CSV and Parquet with points and fields."""


def run(words: Sequence[str]) -> int:
    parser = make_parser("data import", "Make a dataset of your own simulation files.", EPILOG)
    parser.add_argument("source", nargs="+", help="folder, file or 'pattern'; several are taken together")
    parser.add_argument("--out", help="dataset folder to write; must not exist")
    parser.add_argument("--dry-run", action="store_true", help="show what was found and would be done; write nothing")
    parser.add_argument("--target", nargs="+", default=[], metavar="NAME", help="fields to predict")
    parser.add_argument("--input", nargs="+", default=[], metavar="NAME", help="fields or parameters a model is given")
    parser.add_argument("--unit", nargs="+", default=[], metavar="NAME=UNIT", help="units; points=m is that of length")
    parser.add_argument("--parameters", metavar="CSV", help="a row a file: a column 'file', parameters in the others")
    parser.add_argument(
        "--cell-data", choices=["centres", "points"], help="live at cell centres, or are averaged to the points"
    )
    parser.add_argument("--dimensions", type=Literal[1, 2, 3], help="default: z is left out where all is plane")
    parser.add_argument("--test", default="0.2", help="share of the files, a 'pattern' of names, or a .txt with names")
    parser.add_argument("--calibration", type=float, default=0.15, help="share of the files held out for error bars")
    parser.add_argument("--group", help="column of --parameters, or 'folder': kept together in one split")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of the splits")
    parser.add_argument("--on-nan", default="refuse", choices=["refuse", "drop"], help="points that are no numbers")
    parser.add_argument("--points", metavar="NAME", help="coordinates in files of arrays, where called unusually")
    several = {"nargs": "+", "action": "extend", "default": []}
    parser.add_argument("--exclude", metavar="NAME", help="files to leave out, or 'patterns'; repeatable", **several)
    args = parse(parser, words)
    if not args.dry_run and not args.out:
        raise ConfigError("say where the dataset goes with --out, or look first with --dry-run")

    from flare.data.importing.importer import find_places, plan_import, refuse_bad_values, warn_of_leaks, write_import
    from flare.data.importing.schema import unused_parameters
    from flare.data.importing.survey import survey
    from flare.utils.files import refuse_existing

    if args.out and not args.dry_run:
        refuse_existing(args.out)
    found = survey(find_places(args.source, points=args.points, exclude=args.exclude), points=args.points)
    if args.dry_run:
        _show(found)
        if not args.target:
            for remark in [*found.remarks, *unused_parameters(found, args.input)]:
                say(f"note: {remark}")
            print("choose with --target NAME, and --input NAME for what a model is given; then add --out FOLDER")
            return 0
    names = (
        "parameters",
        "cell_data",
        "dimensions",
        "test",
        "calibration",
        "group",
        "seed",
        "on_nan",
        "points",
        "exclude",
    )
    plan = plan_import(
        args.source,
        targets=args.target,
        inputs=args.input,
        units=_units(args.unit),
        found=found,
        name=Path(args.out).name if args.out else "imported",
        **{name: getattr(args, name) for name in names},
    )
    _describe(plan)
    if args.dry_run:
        warn_of_leaks(plan, [place.name for place in plan.places])
        refuse_bad_values(plan)
    else:
        dataset = write_import(plan, args.out)
        print(f"{args.out}: {len(dataset):,} samples, {int(dataset.offsets[-1]):,} points")
        say(f"look for other mistakes with:  flare data check {args.out}")
    return 0


def _units(pairs: Sequence[str]) -> dict[str, str]:
    units: dict[str, str] = {}
    for pair in pairs:
        name, sign, unit = pair.partition("=")
        if not sign:
            raise ConfigError(f"--unit {pair}: write NAME=UNIT, such as pressure=Pa")
        if units.setdefault(name, unit) != unit:
            raise ConfigError(f"--unit: {name!r} is given several, {units[name]} and {unit}; give one")
    return units


def _show(found: Survey) -> None:
    """What is in the files, field by field."""
    from rich.console import Console
    from rich.table import Table

    points = [case.points for case in found.cases]
    size = f"{min(points):,}" if min(points) == max(points) else f"{min(points):,} to {max(points):,}"
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in found.cell_kinds.items()) or "none"
    print(f"{counted(len(found.cases), 'case')} of {size} points in {' '.join(found.axes)}; cells: {kinds}")
    table = Table("field", "at", "components", "cases", "from", "to", "NaN, inf")
    for (where, name), field in found.fields.items():
        table.add_row(
            name,
            where,
            " or ".join(map(str, sorted(field.widths))),
            "all" if len(field.cases) == len(found.cases) else f"{len(field.cases)} of {len(found.cases)}",
            f"{field.low:.4g}",
            f"{field.high:.4g}",
            _bad(field, found),
        )
    Console().print(table)


def _bad(field: Any, found: Survey) -> str:
    if field.first_bad is None:
        return ""
    case, place = field.first_bad
    return f"{field.bad:,} (first: {found.cases[case].name}, {place})"


def _describe(plan: ImportPlan) -> None:
    """What becomes of it, in sentences."""
    for name, field in plan.schema.fields.items():
        unit = "" if field.unit == "1" else f" [{field.unit}]"
        print(f"  {field.role:<10} {name}{unit}: {', '.join(field.components)}")
    sizes = [f"{name} {stop - start:,}" for name, (start, stop) in plan.splits.items()]
    print(f"  splits     {', '.join(sizes)}")
    for remark in plan.remarks:
        say(f"note: {remark}")
