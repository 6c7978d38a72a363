"""`flare data`: import, make, download, inspect and check datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from flare.cli import run_verb

if TYPE_CHECKING:
    from flare.data.dataset import Dataset
    from flare.sequence.store import SequenceDataset

VERBS = {
    "import": "make a dataset of your own meshes and tables",
    "make": "generate a dataset with a solver, or sequences",
    "download": "download the published files of a benchmark and make a dataset of them",
    "read": "make a dataset of published files on this machine",
    "card": "describe a benchmark and its pitfalls",
    "info": "describe a dataset",
    "report": "write gallery.png and statistics.html of a dataset again",
    "check": "check a dataset, or files to be imported, and fix a dataset",
    "enrich": "add geometric features of each node of a solid",
    "join": "join datasets with the same fields",
    "export": "export lpbf in the layout of the published files",
    "upload": "upload exported files to the hub",
}
MODULES = {"import": "import_data", "check": "check"}
MODULES |= dict.fromkeys(("make", "download", "read"), "make") | dict.fromkeys(("card", "info", "report"), "info")
MODULES |= dict.fromkeys(("enrich", "join"), "derive") | dict.fromkeys(("export", "upload"), "share")
"""Verb -> module of this package, whose function `<verb>_command` runs it."""


def run(words: Sequence[str]) -> int:
    """Run a verb of `flare data`."""

    def find(verb: str) -> Callable[[Sequence[str]], None]:
        return getattr(import_module(f"flare.cli.data.{MODULES[verb]}"), f"{verb}_command")

    return run_verb(words, "flare data", VERBS, find, "Import, make, download, inspect and check datasets.")


def open_dataset(folder: str) -> Dataset | SequenceDataset:
    """Open a dataset of fields or of sequences."""
    from flare.data.dataset import Dataset, held_by, read_about
    from flare.sequence.store import SequenceDataset

    return (SequenceDataset if held_by(read_about(Path(folder))) == SequenceDataset.holds else Dataset)(folder)


def show_dataset(dataset: Dataset | SequenceDataset) -> None:
    """Print one line about a new dataset and write its report."""
    from flare.data.dataset import Dataset
    from flare.report.dataset import write_dataset_page
    from flare.sequence.checks import describe_sequences

    if isinstance(dataset, Dataset):
        print(f"{dataset.path}: {len(dataset):,} samples, {int(dataset.offsets[-1]):,} points")
        print(f"statistics: {write_dataset_page(dataset)}")
    else:
        print(f"{dataset.path}: {len(dataset):,} samples", *describe_sequences(dataset), sep="\n")
