"""`flare data enrich`: add geometric features of each node of a solid."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def run(words: Sequence[str]) -> int:
    """Run `flare data enrich`."""
    from flare.data.dataset import Dataset
    from flare.data.enrich import add_surroundings
    from flare.data.surroundings import FIELDS

    parser = make_parser(
        "data enrich",
        "Copy a dataset of axis-aligned hexahedra, such as lpbf, with geometric features of each node as further "
        "inputs of a model. Run the same command again to resume a stopped job.",
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
