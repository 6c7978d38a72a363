"""`flare data make`, `download` and `read`: make a dataset with a solver, or from published files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from flare.cli import make_parser, parse, run_verb
from flare.cli.data import show_dataset
from flare.utils.registry import import_attribute


def make_command(words: Sequence[str]) -> int:
    """Run `flare data make`."""
    from flare import physics, sequence

    return _run_named(words, "make", [*physics.GENERATORS, *sequence.GENERATORS], _make)


def download_command(words: Sequence[str]) -> int:
    """Run `flare data download`."""
    return _run_named(words, "download", _readers(), _download)


def read_command(words: Sequence[str]) -> int:
    """Run `flare data read`."""
    return _run_named(words, "read", _readers(), _read)


def _run_named(
    words: Sequence[str], verb: str, names: Iterable[str], action: Callable[[str, Sequence[str]], None]
) -> int:
    about = f"Every dataset has options of its own. See flare help data for what {verb} does."
    return run_verb(words, f"flare data {verb}", dict.fromkeys(names, ""), partial(partial, action), about)


def _readers() -> dict[str, str]:
    from flare import sequence
    from flare.data.benchmarks.published import READERS

    return {**READERS, **sequence.READERS}


def _make(name: str, words: Sequence[str]) -> None:
    from flare import physics, sequence
    from flare.data.generation.generate import generate
    from flare.sequence.store import generate_sequences

    is_sequence = name in sequence.GENERATORS
    generator: Any = import_attribute(sequence.GENERATORS[name]) if is_sequence else physics.generator_class(name)
    about = f"Generate the {name} dataset. Run the same command again to resume a stopped job."
    parser = make_parser(f"data make {name}", about)
    add, share = parser.add_argument, "as in the benchmark" if is_sequence else "a sixth"
    add("-o", "--out", default=f"data/{name}", help="folder to write")
    add("--samples", type=int, default=generator.samples if is_sequence else 1200, help="number of all samples")
    add("--test-samples", type=int, help=f"number of test samples, the last ones; default {share}")
    if is_sequence:
        add("--val-samples", type=int, help=f"number of validation samples; default {share}")
    add("--seed", type=int, default=0, help="random seed; sample i depends on (seed, i) alone")
    add("--workers", type=int, help="processes, which do not change the result; default all cores")
    add("--scheduler", help="address of a dask scheduler to use instead, such as tcp://10.0.0.1:8786")
    own = [action.dest for action in parser._actions if action.dest not in ("help", "out")]
    parser.add_class_arguments(generator, None)
    given = parse(parser, words).as_dict()
    out, job = given.pop("out"), {key: given.pop(key) for key in own}
    if job["workers"] is None:
        job["workers"] = os.cpu_count() or 1
    make: Any = generate_sequences if is_sequence else generate
    show_dataset(make(generator(**given), out, **job))


def _download(name: str, words: Sequence[str]) -> None:
    from flare import sequence
    from flare.data.benchmarks.download import download
    from flare.data.benchmarks.published import read_published, refuse_another
    from flare.sequence.files import read_sequences
    from flare.sequence.sources import SOURCES, download_source

    reader = import_attribute(_readers()[name])
    parser = make_parser(f"data download {name}", f"Download the published files of {name} and make a dataset of them.")
    add = parser.add_argument
    add("-o", "--out", default=f"data/{name}", help="folder of the dataset")
    add("--files", default="data/published", help="folder of the files; they can be removed afterwards")
    if name in sequence.READERS:
        help_text = "; ".join(f"{key}: {source.about}" for key, source in SOURCES[name].items())
        add("--source", choices=list(SOURCES[name]), default=next(iter(SOURCES[name])), help=help_text)
    parser.add_class_arguments(reader, None, skip={"folder"})
    given = parse(parser, words).as_dict()
    out, files = given.pop("out"), given.pop("files")
    if name in sequence.READERS:
        folder = download_source(SOURCES[name][given.pop("source")], files)
        show_dataset(read_sequences(reader(folder=str(folder), **given), out))
    else:
        refuse_another(reader, out)
        folder = download(reader.archive(given), files)
        show_dataset(read_published(reader(folder=str(folder), **given), out))


def _read(name: str, words: Sequence[str]) -> None:
    from flare import sequence
    from flare.data.benchmarks.published import read_published
    from flare.sequence.files import read_sequences

    parser = make_parser(f"data read {name}", f"Make the {name} dataset of its published files.")
    reader = import_attribute(_readers()[name])
    parser.add_argument("-o", "--out", default=f"data/{name}", help="folder to write")
    parser.add_class_arguments(reader, None)
    given = parse(parser, words).as_dict()
    out = given.pop("out")
    show_dataset((read_sequences if name in sequence.READERS else read_published)(reader(**given), out))
