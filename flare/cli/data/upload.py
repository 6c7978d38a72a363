"""`flare data upload`: upload exported files to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def run(words: Sequence[str]) -> int:
    """Run `flare data upload`."""
    from flare.data.benchmarks.hub import upload

    parser = make_parser(
        "data upload", "Upload exported files to the hub. Run the same command again to resume a broken upload."
    )
    parser.add_argument("folder", help="folder that flare data export has written")
    parser.add_argument("--to", required=True, help="repository, user/name; it is created if it does not exist")
    parser.add_argument("--private", type=bool, default=False, help="whether only you can see it")
    args = parse(parser, words)
    print(upload(args.folder, args.to, private=args.private))
    return 0
