"""`flare data check`: check a dataset, or files before they are imported, and fix what can be fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flare.cli import make_parser, parse, with_options
from flare.cli.data import open_dataset
from flare.utils.errors import ConfigError, DataError
from flare.utils.terminal import print_status
from flare.utils.text import counted

if TYPE_CHECKING:
    from flare.data.checks.sample_checks import Finding
    from flare.data.dataset import Dataset

MOST_SHOWN = 20
"""Number of findings of a kind that are printed."""
OPTIONS = ("--fix", "--exclude", "--group", "--on-nan", "--cell-data")
"""Options of `flare data check` and `flare data import` that remedies mention."""


def run(words: Sequence[str]) -> int:
    """Run `flare data check`."""
    from flare.data.checks.check import check_dataset
    from flare.data.checks.sample_checks import write_findings
    from flare.data.dataset import Dataset, looks_like_dataset
    from flare.data.importing.cases import find_cases
    from flare.sequence.checks import check_sequences
    from flare.utils.files import check_not_existing

    parser = make_parser("data check", "Check a dataset, or files before they are imported.")
    parser.add_argument("folder", help="dataset folder; or folder, file or 'pattern' of simulation files")
    parser.add_argument("--fix", metavar="FOLDER", help="write a copy of the dataset without what cannot be right")
    parser.add_argument("--all", action="store_true", help=f"show all findings, not only the first {MOST_SHOWN}")
    parser.add_argument("--csv", metavar="FILE", help="write all findings to a table: where, what, count, first, fix")
    args = parse(parser, words)
    for path in filter(None, (args.fix, args.csv)):
        check_not_existing(path)
    dataset = open_dataset(args.folder) if looks_like_dataset(args.folder) else None
    if args.fix and dataset is None:
        find_cases(args.folder)  # raises an error if there are no files
        raise ConfigError("--fix is for datasets; import the files first, with --on-nan drop if they hold NaN")
    if args.fix and not isinstance(dataset, Dataset):
        raise ConfigError(f"--fix is for datasets of fields; {args.folder} holds sequences: make or read it again")
    if dataset is None:
        found = _check_files(args.folder)
    else:
        found = check_dataset(dataset) if isinstance(dataset, Dataset) else check_sequences(dataset)
    found = [replace(finding, fix=with_options(finding.fix, OPTIONS)) for finding in found]
    if args.csv:
        write_findings(args.csv, found)
    serious = [finding for finding in found if finding.serious]
    notes = [finding for finding in found if not finding.serious]
    most = len(found) if args.all else MOST_SHOWN
    for finding in notes[:most]:
        print_status(f"note: {finding}")
    if len(notes) > most:
        print_status(f"note: ... and {len(notes) - most} more; --all shows them, --csv FILE lists them")
    if args.fix and isinstance(dataset, Dataset):
        if serious:
            print_status(_list_findings(args.folder, serious, most))
        return _fix(dataset, args.fix, args.all)
    if serious:
        raise DataError(_list_findings(args.folder, serious, most))
    samples = f"{len(dataset):,} samples, " if dataset is not None else ""
    result = f"nothing serious; {counted(len(notes), 'note')}" if notes or dataset is None else "no findings"
    print(f"{args.folder}: {samples}{result}")
    return 0


def _list_findings(folder: str, serious: Sequence[Finding], most: int) -> str:
    shown = "\n  ".join(map(str, serious[:most]))
    rest = f"\n  ... and {len(serious) - most} more; --all shows them, --csv FILE lists them"
    return f"{folder}: {len(serious)} finding(s)\n  {shown}{rest if len(serious) > most else ''}"


def _fix(dataset: Dataset, out: str, show_all: bool) -> int:
    """Write a fixed copy. Serious findings in the copy, such as a field that is zero everywhere, are an error."""
    from flare.data.checks.check import check_dataset
    from flare.data.checks.fixes import find_emptied_splits, fix_dataset

    fixed, dropped = fix_dataset(dataset, out)
    counts = ", ".join(counted(number, what.removesuffix("s")) for what, number in dropped.items() if number)
    print(f"{out}: {counted(len(fixed), 'sample')}; dropped: {counts or 'nothing'}")
    left = [*find_emptied_splits(dataset, fixed), *(finding for finding in check_dataset(fixed) if finding.serious)]
    if left:
        findings = [replace(finding, fix=with_options(finding.fix, OPTIONS)) for finding in left]
        listed = _list_findings(out, findings, len(left) if show_all else MOST_SHOWN)
        raise DataError(f"some findings cannot be fixed. {listed}")
    return 0


def _check_files(source: str) -> list[Finding]:
    from flare.data.checks.check import check_files

    try:
        return check_files(source)
    except DataError as error:
        if not Path(source).is_dir():
            raise
        raise DataError(
            f"{source} is not a dataset: it has no dataset.json. Nor can it be checked as files to import: {error}"
        ) from None
