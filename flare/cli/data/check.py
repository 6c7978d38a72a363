"""`flare data check`: check a dataset, or files before they are imported, and fix what can be fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flare.cli import make_parser, new_path, parse, with_options
from flare.cli.data import open_dataset
from flare.utils.errors import ConfigError, DataError
from flare.utils.terminal import print_status
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.data.checks.sample_checks import Finding
    from flare.data.dataset import Dataset

MOST_SHOWN = 20
"""Number of findings of a kind that are printed."""
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in ("fix", "exclude", "group", "on_nan", "cell_data")}
"""Argument -> option of `flare data check` and `flare data import` that remedies mention."""


def check_command(words: Sequence[str]) -> None:
    """Run `flare data check`."""
    from flare.data.checks.check import check_dataset, check_files
    from flare.data.checks.sample_checks import write_findings
    from flare.data.dataset import Dataset, looks_like_dataset
    from flare.sequence.checks import check_sequences

    parser = make_parser("data check", "Check a dataset, or files before they are imported.")
    add = parser.add_argument
    add("folder", help="dataset folder; or folder, file or 'pattern' of simulation files")
    add("--fix", type=new_path, metavar="FOLDER", help="write a copy without invalid points, cells and samples")
    add("--all", action="store_true", help=f"show all findings, not only the first {MOST_SHOWN}")
    add("--csv", type=new_path, metavar="FILE", help="write a table of all findings: where, what, count, first, fix")
    args = parse(parser, words)
    dataset = open_dataset(args.folder) if looks_like_dataset(args.folder) else None
    if args.fix and not isinstance(dataset, Dataset):
        raise ConfigError(f"--fix is for datasets of fields, which {args.folder} is not; import files first")
    if dataset is None:
        found = check_files(args.folder)
    else:
        found = check_dataset(dataset) if isinstance(dataset, Dataset) else check_sequences(dataset)
    if args.csv:
        write_findings(args.csv, found)
    most = len(found) if args.all else MOST_SHOWN
    serious = [finding for finding in found if finding.serious]
    notes = [finding for finding in found if not finding.serious]
    if notes:
        print_status(f"notes on {_list_findings(args.folder, notes, most)}")
    if serious and not args.fix:
        raise DataError(_list_findings(args.folder, serious, most))
    if serious:
        print_status(_list_findings(args.folder, serious, most))
    if args.fix and isinstance(dataset, Dataset):
        _fix(dataset, args.fix, most)
    else:
        print(f"{args.folder}: nothing serious; {counted(len(notes), 'note')}")


def _list_findings(folder: str, found: Sequence[Finding], most: int) -> str:
    shown = [with_options(str(finding), OPTIONS) for finding in found[:most]]
    more = [f"... and {len(found) - most} more; --all shows them, --csv FILE lists them"] if len(found) > most else []
    return "\n  ".join([f"{folder}: {len(found)} finding(s)", *shown, *more])


def _fix(dataset: Dataset, out: str, most: int) -> None:
    """Write a fixed copy. Serious findings in the copy, such as a field that is zero everywhere, are an error."""
    from flare.data.checks.check import check_dataset
    from flare.data.checks.fixes import fix_dataset

    fixed, dropped = fix_dataset(dataset, out)
    counts = ", ".join(counted(number, what.removesuffix("s")) for what, number in dropped.items() if number)
    print(f"{out}: {counted(len(fixed), 'sample')}; dropped: {counts or 'nothing'}")
    left = [finding for finding in check_dataset(fixed) if finding.serious]
    if left:
        raise DataError(f"some findings cannot be fixed. {_list_findings(out, left, most)}")
