"""`flare data import|make|read|download|info|report|check|card|enrich|join|export|upload`: datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import import_data, parse
from flare.cli.options import make_parser
from flare.utils.errors import ConfigError, DataError, nearest
from flare.utils.registry import class_named

if TYPE_CHECKING:
    from flare.data.checks.sample_checks import Finding
    from flare.data.dataset import Dataset
    from flare.sequence.store import SequenceDataset

HELP = """usage: flare data import FILES --out FOLDER ...     make a dataset of your own meshes and tables
       flare data make NAME --out FOLDER ...       make a dataset from physics, or sequences
       flare data download NAME --out FOLDER ...   fetch the published files of a benchmark and read them
       flare data read NAME --folder FILES ...     make a dataset of published files that are here
       flare data card [NAME]                      what a benchmark is, and what to beware of
       flare data info FOLDER                      what a dataset holds
       flare data report FOLDER                    its gallery.png and statistics.html, made anew
       flare data check FOLDER [--fix NEW]         look for mistakes in a dataset, or in files to be imported
       flare data enrich DATASET --out FOLDER      with what each node of a solid has around it as further inputs
       flare data join DATASET DATASET ...         several datasets of the same fields as one
       flare data export DATASET --out FOLDER      lpbf as the files that are published of it
       flare data upload FOLDER --to user/name     share exported files on the hub

Each has its own help, such as:  flare data make darcy --help"""


MOST_SHOWN = 20
"""Findings of a kind; the rest is counted."""


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
        "enrich": _enrich,
        "join": _join,
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
    from flare import physics, sequence
    from flare.data.generation.generate import generate
    from flare.sequence.store import generate_sequences

    known = {**physics.GENERATORS, **sequence.GENERATORS}
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: flare data make NAME ...\n\nNAME is one of: {', '.join(known)}")
        return 0
    name = words[0]
    generator = class_named(name, known, "generator")
    parser = make_parser(f"data make {name}", f"Make the {name} dataset. A stopped job goes on when called again.")
    names = ["out", "samples", "test_samples", "seed", "workers", "scheduler"]
    parser.add_argument("--out", default=f"data/{name}", help="folder to write")
    if name in sequence.GENERATORS:
        parser.add_argument("--samples", type=int, default=generator.samples, help="examples to make in all")
        share = "; default as great a part as in the benchmark"
        parser.add_argument("--test-samples", type=int, help=f"of them the last, for testing{share}")
        parser.add_argument("--val-samples", type=int, help=f"those before them, for validation{share}")
        names.append("val_samples")
    else:
        parser.add_argument("--samples", type=int, default=1200, help="samples to make in all")
        parser.add_argument("--test-samples", type=int, help="of them the last, for testing; default a sixth")
    parser.add_argument("--seed", type=int, default=0, help="sample i depends on (seed, i) alone")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes; the bytes do not depend on it"
    )
    parser.add_argument("--scheduler", help="address of a dask scheduler to use instead, such as tcp://10.0.0.1:8786")
    parser.add_class_arguments(generator, None)
    given = parse(parser, words[1:]).as_dict()
    job = {key: given.pop(key) for key in names}
    if name in sequence.GENERATORS:
        for key in ("val_samples", "test_samples"):
            if job[key] is None:
                job[key] = _share(generator, key, job["samples"])
        return _show(generate_sequences(generator(**given), job.pop("out"), **job))
    return _show(generate(generator(**given), job.pop("out"), **job))


def _share(generator: Any, key: str, samples: int) -> int:
    """Of the samples to make, as great a part as in the benchmark; never none, which nobody would notice."""
    of_all: int = getattr(generator, key)
    found = samples * of_all // generator.samples
    if found == 0 and samples > 0:
        enough = -(-generator.samples // of_all)
        raise ConfigError(
            f"--samples {samples} leaves none of them for --{key.replace('_', '-')}: make at least {enough}, or say "
            f"how many with that option (0 for none)"
        )
    return found


def _show(dataset: Dataset | SequenceDataset) -> int:
    """What was made, in a line and a page."""
    from flare.data.dataset import Dataset
    from flare.report.dataset import write_dataset_page
    from flare.sequence.check import describe

    if isinstance(dataset, Dataset):
        print(f"{dataset.path}: {len(dataset):,} samples, {int(dataset.offsets[-1]):,} points")
        print(f"statistics: {write_dataset_page(dataset)}")
    else:
        print(f"{dataset.path}: {len(dataset):,} samples", *describe(dataset), sep="\n")
    return 0


def _open(folder: str) -> Dataset | SequenceDataset:
    from flare.data.dataset import Dataset, held_by, read_about
    from flare.sequence.store import SequenceDataset

    return (SequenceDataset if held_by(read_about(Path(folder))) == "sequences" else Dataset)(folder)


def _read(words: Sequence[str]) -> int:
    from flare import sequence
    from flare.data.benchmarks.published import READERS, read_published
    from flare.sequence.files import read_sequences

    known = {**READERS, **sequence.READERS}
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: flare data read NAME --folder FILES ...\n\nNAME is one of: {', '.join(known)}")
        return 0
    name = words[0]
    reader = class_named(name, known, "reader of published files of")
    parser = make_parser(f"data read {name}", f"Make the {name} dataset of its published files.")
    parser.add_argument("--out", default=f"data/{name}", help="folder to write")
    parser.add_class_arguments(reader, None)
    given = parse(parser, words[1:]).as_dict()
    out = given.pop("out")
    return _show((read_sequences if name in sequence.READERS else read_published)(reader(**given), out))


def _download(words: Sequence[str]) -> int:
    from flare import sequence
    from flare.data.benchmarks.download import download
    from flare.data.benchmarks.published import READERS, read_published, refuse_another
    from flare.sequence.files import read_sequences
    from flare.sequence.sources import SOURCES, fetch

    known = {**READERS, **sequence.READERS}
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: flare data download NAME ...\n\nNAME is one of: {', '.join(known)}")
        return 0
    name = words[0]
    reader = class_named(name, known, "reader of published files of")
    parser = make_parser(f"data download {name}", f"Fetch the published files of {name} and make a dataset of them.")
    parser.add_argument("--out", default=f"data/{name}", help="folder of the dataset")
    parser.add_argument("--files", default="data/published", help="folder of the files; they can be removed afterwards")
    if name in sequence.READERS:
        sources = SOURCES[name]
        help_text = "; ".join(f"{key}: {source.about}" for key, source in sources.items())
        parser.add_argument("--source", choices=list(sources), default=next(iter(sources)), help=help_text)
    parser.add_class_arguments(reader, None, skip={"folder"})
    given = parse(parser, words[1:]).as_dict()
    out, files = given.pop("out"), given.pop("files")
    if name in sequence.READERS:
        folder = fetch(SOURCES[name][given.pop("source")], files)
        return _show(read_sequences(reader(folder=str(folder), **given), out))
    refuse_another(reader, out)
    folder = download(reader.archive(given), files)
    return _show(read_published(reader(folder=str(folder), **given), out))


def _card(words: Sequence[str]) -> int:
    from flare.data.benchmarks.cards import as_markdown, card, card_names

    parser = make_parser("data card", "What a benchmark is, and what to beware of.")
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(card_names())}; default a list of them")
    name = parse(parser, words).name
    if name is None:
        for known in card_names():
            print(f"{known:<12}{card(known).summary}")
        return 0
    print(as_markdown(card(name)), end="")
    return 0


def _enrich(words: Sequence[str]) -> int:
    from flare.data.dataset import Dataset
    from flare.data.enrich import with_surroundings
    from flare.mesh.surroundings import FIELDS

    parser = make_parser(
        "data enrich",
        "Write a dataset of axis-aligned hexahedra, such as lpbf, again with what each node has around it as further "
        "inputs of a model. A stopped job goes on when called again.",
    )
    parser.add_argument("dataset", help="dataset folder; it stays as it is")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--targets", default="", help="kept fields to predict as well, such as von_mises,temperature")
    options = parse(parser, words)
    made = with_surroundings(
        Dataset(options.dataset), options.out, targets=[t for t in options.targets.split(",") if t]
    )
    for name, field in FIELDS.items():
        print(f"{name:10} {field.unit:3} {field.description}")
    print(f"{made.path}: {len(made)} samples")
    return 0


def _join(words: Sequence[str]) -> int:
    from flare.data.dataset import Dataset
    from flare.data.enrich import joined

    parser = make_parser(
        "data join",
        "Write several datasets of the same fields as one. Splits of the same name become one; the parameter `source` "
        "tells a model which a sample comes from: 0, 1, ... A stopped job goes on when called again.",
    )
    parser.add_argument("datasets", nargs="+", help="dataset folders; they stay as they are")
    parser.add_argument("--out", required=True, help="folder to write")
    options = parse(parser, words)
    made = joined([Dataset(folder) for folder in options.datasets], options.out)
    for name in made.splits:
        print(f"{name:6} {len(made.split(name))} samples")
    return 0


def _report(words: Sequence[str]) -> int:
    from flare.data.dataset import Dataset

    parser = make_parser("data report", "Write gallery.png and statistics.html into a dataset's folder.")
    parser.add_argument("folder", help="dataset folder")
    return _show(Dataset(parse(parser, words).folder))


def _info(words: Sequence[str]) -> int:
    from flare.data.dataset import Dataset
    from flare.sequence.check import describe
    from flare.utils.text import plainly

    parser = make_parser("data info", "Show what a dataset holds.")
    parser.add_argument("folder", help="dataset folder")
    dataset = _open(parse(parser, words).folder)
    if isinstance(dataset, Dataset):
        _describe_fields(dataset)
    else:
        print(*describe(dataset), sep="\n")
    for key, value in dataset.about["provenance"].items():
        deep = isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values())
        for name, item in {f"{key}.{inner}": value[inner] for inner in value}.items() if deep else [(key, value)]:
            if item != {}:
                print(f"{name}: {plainly(item)}")
    print(f"fingerprint: {dataset.fingerprint}")
    return 0


def _describe_fields(dataset: Dataset) -> None:
    from rich.console import Console
    from rich.table import Table

    sizes, schema = dataset.sizes, dataset.schema
    points = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
    grid = f", a grid of {schema.grid[0]} x {schema.grid[1]}" if schema.grid else ""
    print(f"{schema.name}: {len(dataset):,} samples of {points} points{grid}")
    print("splits: " + ", ".join(f"{name} {len(dataset.split(name)):,}" for name in dataset.splits))
    table = Table("field", "role", "components", "unit", "description")
    for name, field in schema.fields.items():
        table.add_row(name, field.role, ", ".join(field.components), field.unit, field.description)
    Console().print(table)


def _check(words: Sequence[str]) -> int:
    from flare.data.checks.check import check_dataset
    from flare.data.checks.sample_checks import write_findings
    from flare.data.dataset import Dataset, looks_like_dataset
    from flare.data.importing.cases import find_cases
    from flare.sequence.check import check_sequences
    from flare.utils.files import refuse_existing
    from flare.utils.terminal import say
    from flare.utils.text import counted

    parser = make_parser("data check", "Look for mistakes in a dataset, or in files before they are imported.")
    parser.add_argument("folder", help="dataset folder; or folder, file or 'pattern' of simulation files")
    parser.add_argument("--fix", metavar="FOLDER", help="write a dataset without what cannot be right")
    parser.add_argument("--all", action="store_true", help="show every finding, not only the first of many")
    parser.add_argument("--csv", metavar="FILE", help="also write all findings here: where, what, count, first, fix")
    args = parse(parser, words)
    for path in filter(None, (args.fix, args.csv)):
        refuse_existing(path)
    dataset = _open(args.folder) if looks_like_dataset(args.folder) else None
    if args.fix and dataset is None:
        find_cases(args.folder)  # refuses what does not exist
        raise ConfigError("--fix mends a dataset; import the files first, with --on-nan drop where they hold NaN")
    if args.fix and not isinstance(dataset, Dataset):
        raise ConfigError(f"--fix mends datasets of fields; {args.folder} holds sequences: make or read it again")
    if dataset is None:
        found = _check_files(args.folder)
    else:
        found = check_dataset(dataset) if isinstance(dataset, Dataset) else check_sequences(dataset)
    if args.csv:
        write_findings(args.csv, found)
    serious = [finding for finding in found if finding.serious]
    most = len(found) if args.all else MOST_SHOWN
    for finding in found[len(serious) :][:most]:
        say(f"note: {finding}")
    if len(found) - len(serious) > most:
        say(f"note: ... and {len(found) - len(serious) - most} more; --all shows them, --csv FILE lists them")
    if args.fix and isinstance(dataset, Dataset):
        if serious:
            say(_listed(args.folder, serious, most))
        return _mend(dataset, args.fix, args.all)
    if serious:
        raise DataError(_listed(args.folder, serious, most))
    if dataset is not None and not found:
        print(f"{dataset.path}: {len(dataset):,} samples, checksums, splits and values are sound")
    else:  # beside a note of 1e30, values are not sound
        samples = f"{len(dataset):,} samples, " if dataset is not None else ""
        print(f"{args.folder}: {samples}nothing serious; {counted(len(found), 'note')}")
    return 0


def _listed(folder: str, serious: Sequence[Finding], most: int) -> str:
    shown = "\n  ".join(map(str, serious[:most]))
    rest = f"\n  ... and {len(serious) - most} more; --all shows them, --csv FILE lists them"
    return f"{folder}: {len(serious)} finding(s)\n  {shown}{rest if len(serious) > most else ''}"


def _mend(dataset: Dataset, out: str, every: bool) -> int:
    """A mended copy; what is serious in it still, such as a field that is zero everywhere, is an error."""
    from flare.data.checks.check import check_dataset
    from flare.data.checks.fixes import emptied, repair
    from flare.utils.text import counted

    mended, left_out = repair(dataset, out)
    gone = ", ".join(counted(number, what.removesuffix("s")) for what, number in left_out.items() if number)
    print(f"{out}: {counted(len(mended), 'sample')}; left out: {gone or 'nothing'}")
    left = [*emptied(dataset, mended), *(finding for finding in check_dataset(mended) if finding.serious)]
    if left:
        raise DataError("not all can be mended. " + _listed(out, left, len(left) if every else MOST_SHOWN))
    return 0


def _check_files(source: str) -> list[Finding]:
    from flare.data.checks.check import check_files

    try:
        return check_files(source)
    except DataError as error:
        if not Path(source).is_dir():
            raise
        raise DataError(
            f"{source} is not a dataset: it holds no dataset.json. Nor can it be checked as files to import: {error}"
        ) from None


def _export(words: Sequence[str]) -> int:
    from flare.data.benchmarks.export_lpbf import export_lpbf
    from flare.data.dataset import Dataset

    parser = make_parser("data export", "Write an lpbf dataset in the layout of the published files, to share it.")
    parser.add_argument("dataset", help="dataset folder")
    parser.add_argument("--out", required=True, help="folder to write; it must not exist")
    parser.add_argument("--licence", default="mit", help="of the data, as the hub abbreviates it")
    given = parse(parser, words)
    rows = export_lpbf(Dataset(given.dataset), given.out, licence=given.licence)
    print(f"{given.out}: {len(rows):,} parts, {sum(row['num_nodes'] for row in rows):,} nodes; its card is README.md")
    return 0


def _upload(words: Sequence[str]) -> int:
    from flare.data.benchmarks.upload import upload

    parser = make_parser("data upload", "Send exported files to the hub. A broken transfer goes on when called again.")
    parser.add_argument("folder", help="what flare data export has written")
    parser.add_argument("--to", required=True, help="repository, user/name; made if need be")
    parser.add_argument("--private", type=bool, default=False, help="only you can see it")
    given = parse(parser, words)
    print(upload(given.folder, given.to, private=given.private))
    return 0
