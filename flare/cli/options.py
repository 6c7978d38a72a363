"""The argument parser all verbs use: jsonargparse, with the docstring of each setting as its help."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

from flare.utils.errors import ConfigError

set_parsing_settings(docstring_parse_attribute_docstrings=True)


class _Formatter(DefaultHelpFormatter):
    """Keeps the line breaks of descriptions and examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text


def make_parser(verb: str, description: str, examples: str | None = None) -> ArgumentParser:
    return ArgumentParser(
        prog=f"flare {verb}",
        description=description,
        epilog=examples,
        formatter_class=_Formatter,
        exit_on_error=False,
        allow_abbrev=False,
    )


def add_set(parser: ArgumentParser, help: str) -> None:
    """`--set NAME=VALUE ...`, as often as one likes: all are joined, where argparse would keep the last."""
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=help)


def add_sampling(parser: ArgumentParser) -> None:
    """Where the points of a bare surface shall be: for all verbs that read a part from a file."""
    parser.add_argument(
        "--points",
        default="auto",
        choices=["auto", "vertices", "surface", "voxels"],
        help="of a bare surface such as STL; auto: as the training data was",
    )
    parser.add_argument("--spacing", type=float, help="of those points; default that of the training points")


def settings(words: Sequence[str]) -> dict[str, list[float]]:
    """What `--set` gave, by name."""
    found: dict[str, list[float]] = {}
    for name, values in map(_setting, words):
        if name in found:
            raise ConfigError(f"--set {name} is given twice; give every name once")
        found[name] = values
    return found


def _setting(text: str) -> tuple[str, list[float]]:
    """A name and its numbers, from `speed=30` or `force=0,0,-9.81`."""
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError:
        raise ConfigError(f"--set {text}: write NAME=NUMBER, such as speed=30, or force=0,0,-9.81") from None
