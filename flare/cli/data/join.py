"""`flare data join`: join datasets with the same fields."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def run(words: Sequence[str]) -> int:
    """Run `flare data join`."""
    from flare.data.dataset import Dataset
    from flare.data.enrich import join_datasets

    parser = make_parser(
        "data join",
        "Join datasets with the same fields. Splits of the same name are merged. The new parameter `source` (0, 1, "
        "...) states which dataset a sample comes from. Run the same command again to resume a stopped job.",
    )
    parser.add_argument("datasets", nargs="+", help="dataset folders; they are not changed")
    parser.add_argument("-o", "--out", required=True, help="folder to write")
    args = parse(parser, words)
    made = join_datasets([Dataset(folder) for folder in args.datasets], args.out)
    for name in made.splits:
        print(f"{name:6} {len(made.split(name))} samples")
    return 0
