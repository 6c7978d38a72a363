"""`flare data info`: describe a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flare.cli import make_parser, parse
from flare.cli.data import open_dataset

if TYPE_CHECKING:
    from flare.data.dataset import Dataset


def run(words: Sequence[str]) -> int:
    """Run `flare data info`."""
    from flare.data.dataset import Dataset
    from flare.sequence.checks import describe_sequences
    from flare.utils.text import format_record

    parser = make_parser("data info", "Describe a dataset.")
    parser.add_argument("folder", help="dataset folder")
    dataset = open_dataset(parse(parser, words).folder)
    if isinstance(dataset, Dataset):
        _describe_fields(dataset)
    else:
        print(*describe_sequences(dataset), sep="\n")
    for key, value in dataset.about["provenance"].items():
        print(f"{key}: {format_record(value)}")
    print(f"fingerprint: {dataset.fingerprint}")
    return 0


def _describe_fields(dataset: Dataset) -> None:
    from rich.console import Console
    from rich.table import Table

    sizes, schema = dataset.sizes, dataset.schema
    points = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
    grid = f", a grid of {schema.grid[0]} x {schema.grid[1]}" if schema.grid else ""
    print(f"{schema.name}: {len(dataset):,} samples of {points} points{grid}")
    print("splits: " + ", ".join(f"{name} {len(dataset.split(name)):,}" for name in dataset.splits))
    table = Table("field", "role", "components", "unit", "description")
    for name, field in schema.fields.items():
        table.add_row(name, field.role, ", ".join(field.components), field.unit, field.description)
    Console().print(table)
