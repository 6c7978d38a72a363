"""`flare data read`: make a dataset of published files on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse
from flare.cli.data import chosen_name, show_dataset
from flare.utils.registry import class_named


def run(words: Sequence[str]) -> int:
    """Run `flare data read`."""
    from flare import sequence
    from flare.data.benchmarks.published import READERS, read_published
    from flare.sequence.files import read_sequences

    known = {**READERS, **sequence.READERS}
    name = chosen_name(words, list(known), "read NAME --folder FILES ...")
    if name is None:
        return 0
    reader = class_named(name, known, "reader of published files of")
    parser = make_parser(f"data read {name}", f"Make the {name} dataset of its published files.")
    parser.add_argument("-o", "--out", default=f"data/{name}", help="folder to write")
    parser.add_class_arguments(reader, None)
    given = parse(parser, words[1:]).as_dict()
    out = given.pop("out")
    return show_dataset((read_sequences if name in sequence.READERS else read_published)(reader(**given), out))
