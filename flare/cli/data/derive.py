"""`flare data enrich` and `join`: make a dataset from other datasets."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def enrich_command(words: Sequence[str]) -> int:
    """Run `flare data enrich`."""
    from flare.data.dataset import Dataset
    from flare.data.enrich import add_surroundings
    from flare.data.surroundings import FIELDS

    parser = make_parser(
        "data enrich",
        "Copy a dataset of axis-aligned hexahedra, such as lpbf, and add geometric features of each node as inputs.\n"
        "Run the same command again to resume a stopped job.",
    )
    parser.add_argument("dataset", help="dataset folder; it is not changed")
    parser.add_argument("-o", "--out", required=True, help="folder to write")
    parser.add_argument("--targets", default="", help="extra fields to predict as well, such as von_mises,temperature")
    args = parse(parser, words)
    made = add_surroundings(Dataset(args.dataset), args.out, targets=[t for t in args.targets.split(",") if t])
    for name, field in FIELDS.items():
        print(f"{name:10} {field.unit:3} {field.description}")
    print(f"{made.path}: {len(made)} samples")
    return 0


def join_command(words: Sequence[str]) -> int:
    """Run `flare data join`."""
    from flare.data.dataset import Dataset
    from flare.data.enrich import join_datasets

    parser = make_parser(
        "data join",
        "Join datasets with the same fields. Splits of the same name are merged.\n"
        "The new parameter `source` (0, 1, ...) states which dataset a sample comes from.\n"
        "Run the same command again to resume a stopped job.",
    )
    parser.add_argument("datasets", nargs="+", help="dataset folders; they are not changed")
    parser.add_argument("-o", "--out", required=True, help="folder to write")
    args = parse(parser, words)
    made = join_datasets([Dataset(folder) for folder in args.datasets], args.out)
    for name in made.splits:
        print(f"{name:6} {len(made.split(name))} samples")
    return 0
