"""`flare data export` and `upload`: share an lpbf dataset in the layout of the published files."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, new_path, parse


def export_command(words: Sequence[str]) -> None:
    """Run `flare data export`."""
    from flare.data.benchmarks.export_lpbf import export_lpbf
    from flare.data.dataset import Dataset

    parser = make_parser("data export", "Export an lpbf dataset in the layout of the published files, to share it.")
    parser.add_argument("dataset", help="dataset folder")
    parser.add_argument("-o", "--out", type=new_path, required=True, help="folder to write")
    parser.add_argument("--licence", default="mit", help="license of the data, as the hub abbreviates it")
    args = parse(parser, words)
    rows = export_lpbf(Dataset(args.dataset), args.out, licence=args.licence)
    print(f"{args.out}: {len(rows):,} parts, {sum(row['num_nodes'] for row in rows):,} nodes; dataset card: README.md")


def upload_command(words: Sequence[str]) -> None:
    """Run `flare data upload`."""
    from flare.data.benchmarks.hub import upload

    about = "Upload exported files to the hub. Run the same command again to resume a broken upload."
    parser = make_parser("data upload", about)
    parser.add_argument("folder", help="folder that flare data export has written")
    parser.add_argument("--to", required=True, help="repository, user/name; it is created if it does not exist")
    parser.add_argument("--private", type=bool, default=False, help="create a repository that only you can see")
    args = parse(parser, words)
    print(upload(args.folder, args.to, private=args.private))
