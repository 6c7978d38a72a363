"""`flare data enrich` and `join`: make a dataset from other datasets."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse

RESUMES = "Run the same command again to resume a stopped job."


def enrich_command(words: Sequence[str]) -> None:
    """Run `flare data enrich`."""
    from flare.data.dataset import Dataset
    from flare.data.enrich import add_surroundings
    from flare.data.surroundings import FIELDS

    about = "Copy a dataset of axis-aligned hexahedra, such as lpbf, and add geometric features of the nodes."
    parser = make_parser("data enrich", f"{about}\n{RESUMES}")
    parser.add_argument("dataset", help="dataset folder; it is not changed")
    parser.add_argument("-o", "--out", required=True, help="folder to write")
    parser.add_argument("--targets", default="", help="extra fields to predict as well, such as von_mises,temperature")
    args = parse(parser, words)
    made = add_surroundings(Dataset(args.dataset), args.out, targets=[t for t in args.targets.split(",") if t])
    for name, field in FIELDS.items():
        print(f"{name:10} {field.unit:3} {field.description}")
    print(f"{made.path}: {len(made)} samples")


def join_command(words: Sequence[str]) -> None:
    """Run `flare data join`."""
    from flare.data.dataset import Dataset
    from flare.data.enrich import join_datasets

    about = "Join datasets with the same fields and splits. The parameter `source` says which one a sample comes from."
    parser = make_parser("data join", f"{about}\n{RESUMES}")
    parser.add_argument("datasets", nargs="+", help="dataset folders; they are not changed")
    parser.add_argument("-o", "--out", required=True, help="folder to write")
    args = parse(parser, words)
    made = join_datasets([Dataset(folder) for folder in args.datasets], args.out)
    for name in made.splits:
        print(f"{name:6} {len(made.split(name))} samples")
