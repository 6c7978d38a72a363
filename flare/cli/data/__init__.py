"""`flare data`: import, make, download, inspect and check datasets. One file per sub-verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from flare.cli import run_verb

if TYPE_CHECKING:
    from flare.data.dataset import Dataset
    from flare.sequence.store import SequenceDataset

HELP = """usage: flare data import FILES --out FOLDER ...     make a dataset of your own meshes and tables
       flare data make NAME --out FOLDER ...       generate a dataset with a solver, or sequences
       flare data download NAME --out FOLDER ...   download the published files of a benchmark and read them
       flare data read NAME --folder FILES ...     make a dataset of published files on this machine
       flare data card [NAME]                      describe a benchmark and its pitfalls
       flare data info FOLDER                      describe a dataset
       flare data report FOLDER                    write its gallery.png and statistics.html again
       flare data check FOLDER [--fix NEW]         check a dataset, or files to be imported
       flare data enrich DATASET --out FOLDER      add geometric features of each node of a solid
       flare data join DATASET DATASET ...         join datasets with the same fields
       flare data export DATASET --out FOLDER      export lpbf in the layout of the published files
       flare data upload FOLDER --to user/name     upload exported files to the hub

Each has its own help, such as:  flare data make darcy --help"""
MODULES = {
    "import": "import_data",
    "make": "make",
    "download": "make",
    "read": "make",
    "card": "info",
    "info": "info",
    "report": "info",
    "check": "check",
    "enrich": "derive",
    "join": "derive",
    "export": "share",
    "upload": "share",
}
"""Sub-verb -> module of this package, whose function `<sub-verb>_command` runs it."""


def run(words: Sequence[str]) -> int:
    """Run a sub-verb."""

    def find(verb: str) -> Callable[[Sequence[str]], int]:
        return getattr(import_module(f"flare.cli.data.{MODULES[verb]}"), f"{verb}_command")

    return run_verb(words, "flare data", MODULES, lambda: HELP, find)


def open_dataset(folder: str) -> Dataset | SequenceDataset:
    """Open a dataset of fields or of sequences."""
    from flare.data.dataset import Dataset, held_by, read_about
    from flare.sequence.store import SequenceDataset

    return (SequenceDataset if held_by(read_about(Path(folder))) == SequenceDataset.holds else Dataset)(folder)


def show_dataset(dataset: Dataset | SequenceDataset) -> int:
    """Print one line about a new dataset and write its report."""
    from flare.data.dataset import Dataset
    from flare.report.dataset import write_dataset_page
    from flare.sequence.checks import describe_sequences

    if isinstance(dataset, Dataset):
        print(f"{dataset.path}: {len(dataset):,} samples, {int(dataset.offsets[-1]):,} points")
        print(f"statistics: {write_dataset_page(dataset)}")
    else:
        print(f"{dataset.path}: {len(dataset):,} samples", *describe_sequences(dataset), sep="\n")
    return 0
