"""`flare data export`: export an lpbf dataset in the layout of the published files."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def run(words: Sequence[str]) -> int:
    """Run `flare data export`."""
    from flare.data.benchmarks.export_lpbf import export_lpbf
    from flare.data.dataset import Dataset

    parser = make_parser("data export", "Export an lpbf dataset in the layout of the published files, to share it.")
    parser.add_argument("dataset", help="dataset folder")
    parser.add_argument("-o", "--out", required=True, help="folder to write; it must not exist")
    parser.add_argument("--licence", default="mit", help="license of the data, as the hub abbreviates it")
    args = parse(parser, words)
    rows = export_lpbf(Dataset(args.dataset), args.out, licence=args.licence)
    print(f"{args.out}: {len(rows):,} parts, {sum(row['num_nodes'] for row in rows):,} nodes; dataset card: README.md")
    return 0
