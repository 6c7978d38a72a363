"""`flare data import|make|read|download|info|report|check|card|export|upload`: datasets brought, made, shared."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flare.cli import import_data, parse
from flare.cli.options import make_parser
from flare.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from flare.data.store import Dataset

HELP = """usage: flare data import FILES --out FOLDER ...     make a dataset of your own meshes and tables
       flare data make NAME --out FOLDER ...       make a dataset from physics
       flare data download NAME --out FOLDER ...   fetch the published files of a benchmark and read them
       flare data read NAME --folder FILES ...     make a dataset of published files that are here
       flare data card [NAME]                      what a benchmark is, and what to beware of
       flare data info FOLDER                      what a dataset holds
       flare data report FOLDER                    its gallery.png and statistics.html, made anew
       flare data check FOLDER                     verify checksums, splits and values
       flare data export DATASET --out FOLDER      lpbf as the files that are published of it
       flare data upload FOLDER --to user/name     share exported files on the hub

Each has its own help, such as:  flare data make darcy --help"""


def run(words: Sequence[str]) -> int:
    actions: dict[str, Callable[[Sequence[str]], int]] = {
        "import": import_data.run,
        "make": _make,
        "download": _download,
        "read": _read,
        "card": _card,
        "info": _info,
        "report": _report,
        "check": _check,
        "export": _export,
        "upload": _upload,
    }
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if words[0] not in actions:
        raise ConfigError(f"flare data has no verb {words[0]!r}; {nearest(words[0], actions)}")
    return actions[words[0]](words[1:])


def _make(words: Sequence[str]) -> int:
    from flare.data.generate import generate
    from flare.physics import GENERATORS, generator_class

    if not words or words[0] in ("-h", "--help"):
        print(f"usage: flare data make NAME ...\n\nNAME is one of: {', '.join(GENERATORS)}")
        return 0
    name = words[0]
    generator = generator_class(name)
    parser = make_parser(f"data make {name}", f"Make the {name} dataset. A stopped job goes on when called again.")
    parser.add_argument("--out", default=f"data/{name}", help="folder to write")
    parser.add_argument("--samples", type=int, default=1200, help="samples to make")
    parser.add_argument("--test-samples", type=int, help="the last ones, for testing; default a sixth")
    parser.add_argument("--seed", type=int, default=0, help="sample i depends on (seed, i) alone")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes; the bytes do not depend on it"
    )
    parser.add_argument("--scheduler", help="address of a dask scheduler to use instead, such as tcp://10.0.0.1:8786")
    parser.add_class_arguments(generator, None)
    given = parse(parser, words[1:]).as_dict()
    names = ("out", "samples", "test_samples", "seed", "workers", "scheduler")
    job = {key: given.pop(key) for key in names}
    return _show(generate(generator(**given), job.pop("out"), **job))


def _show(dataset: Dataset) -> int:
    """What was made, in a line and a page."""
    from flare.report.dataset import write_dataset_page

    print(f"{dataset.path}: {len(dataset):,} samples, {int(dataset.offsets[-1]):,} points")
    print(f"statistics: {write_dataset_page(dataset)}")
    return 0


def _read(words: Sequence[str]) -> int:
    from flare.data.published import READERS, read_published, reader_class

    if not words or words[0] in ("-h", "--help"):
        print(f"usage: flare data read NAME --folder FILES ...\n\nNAME is one of: {', '.join(READERS)}")
        return 0
    name = words[0]
    reader = reader_class(name)
    parser = make_parser(f"data read {name}", f"Make the {name} dataset of its published files.")
    parser.add_argument("--out", default=f"data/{name}", help="folder to write")
    parser.add_class_arguments(reader, None)
    given = parse(parser, words[1:]).as_dict()
    out = given.pop("out")
    return _show(read_published(reader(**given), out))


def _download(words: Sequence[str]) -> int:
    from flare.data.cards import card
    from flare.data.download import download
    from flare.data.published import READERS, read_published, reader_class, refuse_another

    if not words or words[0] in ("-h", "--help"):
        print(f"usage: flare data download NAME ...\n\nNAME is one of: {', '.join(READERS)}")
        return 0
    name = words[0]
    reader = reader_class(name)
    parser = make_parser(f"data download {name}", f"Fetch the published files of {name} and make a dataset of them.")
    parser.add_argument("--out", default=f"data/{name}", help="folder of the dataset")
    parser.add_argument("--files", default="data/published", help="folder of the files; they can be removed afterwards")
    parser.add_class_arguments(reader, None, skip={"folder"})
    given = parse(parser, words[1:]).as_dict()
    out, files = given.pop("out"), given.pop("files")
    refuse_another(reader, out)
    folder = download(card(name).archive, files)
    return _show(read_published(reader(folder=str(folder), **given), out))


def _card(words: Sequence[str]) -> int:
    from flare.data.cards import as_markdown, card, card_names

    parser = make_parser("data card", "What a benchmark is, and what to beware of.")
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(card_names())}; default a list of them")
    name = parse(parser, words).name
    if name is None:
        for known in card_names():
            print(f"{known:<12}{card(known).summary}")
        return 0
    print(as_markdown(card(name)), end="")
    return 0


def _report(words: Sequence[str]) -> int:
    from flare.data.store import Dataset

    parser = make_parser("data report", "Write gallery.png and statistics.html into a dataset's folder.")
    parser.add_argument("folder", help="dataset folder")
    return _show(Dataset(parse(parser, words).folder))


def _info(words: Sequence[str]) -> int:
    from rich.console import Console
    from rich.table import Table

    from flare.data.store import Dataset
    from flare.terminal import plainly

    parser = make_parser("data info", "Show what a dataset holds.")
    parser.add_argument("folder", help="dataset folder")
    dataset = Dataset(parse(parser, words).folder)
    sizes, schema = dataset.sizes, dataset.schema
    points = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
    grid = f", a grid of {schema.grid[0]} x {schema.grid[1]}" if schema.grid else ""
    print(f"{schema.name}: {len(dataset):,} samples of {points} points{grid}")
    print("splits: " + ", ".join(f"{name} {len(dataset.split(name)):,}" for name in dataset.splits))
    table = Table("field", "role", "components", "unit", "description")
    for name, field in schema.fields.items():
        table.add_row(name, field.role, ", ".join(field.components), field.unit, field.description)
    Console().print(table)
    for key, value in dataset.about["provenance"].items():
        if value != {}:
            print(f"{key}: {plainly(value)}")
    print(f"fingerprint: {dataset.fingerprint}")
    return 0


def _check(words: Sequence[str]) -> int:
    from flare.data.check import check_dataset
    from flare.data.store import Dataset
    from flare.terminal import say

    parser = make_parser("data check", "Verify checksums, splits and values; exit code 2 where something is wrong.")
    parser.add_argument("folder", help="dataset folder")
    dataset = Dataset(parse(parser, words).folder)
    findings, remarks = check_dataset(dataset)
    for remark in remarks:
        say(f"note: {remark}")
    if findings:
        shown = "\n  ".join(findings[:20])
        more = f"\n  ... and {len(findings) - 20} more" if len(findings) > 20 else ""
        raise DataError(f"{dataset.path}: {len(findings)} finding(s)\n  {shown}{more}")
    print(f"{dataset.path}: {len(dataset):,} samples, checksums, splits and values are sound")
    return 0


def _export(words: Sequence[str]) -> int:
    from flare.data.export_lpbf import export_lpbf
    from flare.data.store import Dataset

    parser = make_parser("data export", "Write an lpbf dataset in the layout of the published files, to share it.")
    parser.add_argument("dataset", help="dataset folder")
    parser.add_argument("--out", required=True, help="folder to write; it must not exist")
    parser.add_argument("--licence", default="mit", help="of the data, as the hub abbreviates it")
    given = parse(parser, words)
    rows = export_lpbf(Dataset(given.dataset), given.out, licence=given.licence)
    print(f"{given.out}: {len(rows):,} parts, {sum(row['num_nodes'] for row in rows):,} nodes; its card is README.md")
    return 0


def _upload(words: Sequence[str]) -> int:
    from flare.data.upload import upload

    parser = make_parser("data upload", "Send exported files to the hub. A broken transfer goes on when called again.")
    parser.add_argument("folder", help="what flare data export has written")
    parser.add_argument("--to", required=True, help="repository, user/name; made if need be")
    parser.add_argument("--private", type=bool, default=False, help="only you can see it")
    given = parse(parser, words)
    print(upload(given.folder, given.to, private=given.private))
    return 0
