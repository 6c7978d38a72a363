"""`flare data card`: describe a benchmark and its pitfalls."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def run(words: Sequence[str]) -> int:
    """Run `flare data card`."""
    from flare.data.benchmarks.cards import as_markdown, card, card_names, datasets_page

    parser = make_parser("data card", "Describe a benchmark and its pitfalls.")
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(card_names())}; default a list of them")
    parser.add_argument("--all", action="store_true", help="print all cards, as in docs/benchmarks/datasets.md")
    args = parse(parser, words)
    if args.all:
        print(datasets_page(), end="")
    elif args.name is None:
        for known in card_names():
            print(f"{known:<14}{card(known).summary}")
    else:
        print(as_markdown(card(args.name)), end="")
    return 0
