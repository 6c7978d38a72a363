"""`flare data download`: download the published files of a benchmark and make a dataset of them."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse
from flare.cli.data import chosen_name, show_dataset
from flare.utils.registry import class_named


def run(words: Sequence[str]) -> int:
    """Run `flare data download`."""
    from flare import sequence
    from flare.data.benchmarks.download import download
    from flare.data.benchmarks.published import READERS, read_published, refuse_another
    from flare.sequence.files import read_sequences
    from flare.sequence.sources import SOURCES, download_source

    known = {**READERS, **sequence.READERS}
    name = chosen_name(words, list(known), "download NAME ...")
    if name is None:
        return 0
    reader = class_named(name, known, "reader of published files of")
    parser = make_parser(f"data download {name}", f"Download the published files of {name} and make a dataset of them.")
    parser.add_argument("-o", "--out", default=f"data/{name}", help="folder of the dataset")
    parser.add_argument("--files", default="data/published", help="folder of the files; they can be removed afterwards")
    if name in sequence.READERS:
        sources = SOURCES[name]
        help_text = "; ".join(f"{key}: {source.about}" for key, source in sources.items())
        parser.add_argument("--source", choices=list(sources), default=next(iter(sources)), help=help_text)
    parser.add_class_arguments(reader, None, skip={"folder"})
    given = parse(parser, words[1:]).as_dict()
    out, files = given.pop("out"), given.pop("files")
    if name in sequence.READERS:
        folder = download_source(SOURCES[name][given.pop("source")], files)
        return show_dataset(read_sequences(reader(folder=str(folder), **given), out))
    refuse_another(reader, out)
    folder = download(reader.archive(given), files)
    return show_dataset(read_published(reader(folder=str(folder), **given), out))
