"""`flare data report`: write the report of a dataset again."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse
from flare.cli.data import show_dataset


def run(words: Sequence[str]) -> int:
    """Run `flare data report`."""
    from flare.data.dataset import Dataset

    parser = make_parser("data report", "Write gallery.png and statistics.html into the folder of a dataset.")
    parser.add_argument("folder", help="dataset folder")
    return show_dataset(Dataset(parse(parser, words).folder))
