"""`flare data info`, `card` and `report`: describe a dataset or a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flare.cli import make_parser, parse
from flare.cli.data import open_dataset, show_dataset

if TYPE_CHECKING:
    from flare.data.dataset import Dataset


def info_command(words: Sequence[str]) -> None:
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


def card_command(words: Sequence[str]) -> None:
    """Run `flare data card`."""
    from flare.data.benchmarks.cards import as_markdown, card, card_names, datasets_page

    parser = make_parser("data card", "Describe a benchmark and its pitfalls.")
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(card_names())}; default a list of them")
    parser.add_argument("--all", action="store_true", help="print all cards, as in docs/benchmarks/datasets.md")
    args = parse(parser, words)
    if args.all:
        print(datasets_page(), end="")
    elif args.name is None:
        width = max(map(len, card_names()))
        for known in card_names():
            print(f"{known:<{width}}  {card(known).summary}")
    else:
        print(as_markdown(card(args.name)), end="")


def report_command(words: Sequence[str]) -> None:
    """Run `flare data report`."""
    from flare.data.dataset import Dataset

    parser = make_parser("data report", "Write gallery.png and statistics.html into the folder of a dataset.")
    parser.add_argument("folder", help="dataset folder")
    show_dataset(Dataset(parse(parser, words).folder))
