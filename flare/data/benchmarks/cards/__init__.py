"""Dataset cards: definition of each benchmark, its published files, and known pitfalls.

A card is a YAML file in this folder. docs/benchmarks/datasets.md is generated from them:  flare data card --all
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from flare.data.sample import Field, Schema
from flare.utils.errors import DataError, suggest_name

FOLDER = Path(__file__).parent
KINDS = ("published", "recreated", "stand-in", "user")
"""Kinds of data in the provenance of a dataset: files of the benchmark, our solver of the same problem, another problem
in its place, data of a user."""


INTRODUCTION = """# Datasets

Each benchmark has two sources with the same fields, so presets work with either: the published files, and data
made by our [solver](solvers.md) of the same equations. Only DrivAerML has no solver; `car-potential` is its
stand-in. This page is generated from the cards in `flare/data/benchmarks/cards` by `flare data card --all`.

## Generate

```bash
flare data make darcy --samples 1200 --seed 0 --workers 2 --out data/darcy
flare data make darcy --resolution 25 --stride 4 --grid node --samples 1000 --out data/small
flare data info data/darcy
flare data check data/darcy
```

Sample i depends on (seed, i) alone, so the files have the same bytes for any number of workers and on a dask
cluster (`--scheduler tcp://host:8786`, with the extra `flare-engine[dask]`). A job that was stopped resumes with
the same command. The folder also gets `gallery.png`, a picture of some samples, and `statistics.html`: ranges,
histograms, residuals, samples that were drawn again, and statistics beside those of the published files.

| | points | options |
|---|---|---|
| `darcy` | 85 × 85 | `--grid canonical` (as published) or `node` (zero at the border); `--resolution`; `--stride` |
| `elasticity` | 972 | `--material linear` or `rubber` (finite strain); `--fine`, 16 times as many elements |
| `airfoil` | 221 × 51 | `--resolution full` or `half`, several times faster; `--stride`; `--residual` |
| `pipe` | 129 × 129 | `--nodes 65`, several times faster; `--stride`; `--viscosity` |
| `lpbf` | 736 to 47,542 | see [metal printing](../applications/metal-printing.md) |
| `car-potential` | 40,000 | `--points`, up to 10 million; `--refinement`; see [cars](../applications/cars.md) |

## Published files

```bash
flare data download elasticity --out data/elasticity
flare data read elasticity --folder Geo-FNO/elasticity/Meshes --out data/elasticity
flare data download lpbf --out data/lpbf
flare data read lpbf --folder LPBF_FLARE --train 100 --test 20 --out data/lpbf-small
```

`download` gets the archive from the hub (with the extra `flare-engine[hub]`), verifies its checksum and reads it;
an interrupted download resumes. `read` uses files on your machine. File names, sizes and splits are options with
the published values as defaults. Nothing is unpickled.
"""


COMMANDS = {
    "image": "flare data download image",
    "image-small": "flare data download image --side 8 --levels 16",
    "listops": "flare data make listops",
    "listops-small": "flare data make listops --min_length 10 --max_length 80 --max_depth 3 "
    "--samples 54000 --val-samples 2000 --test-samples 2000",
    "pathfinder": "flare data make pathfinder",
    "retrieval": "flare data read retrieval --folder FILES",
    "text": "flare data download text",
}
"""Folder of a dataset without a card -> command that makes it, without --out."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Location of published files: a dataset repository of the hub, an archive in it, and a folder in the archive."""

    repository: str
    file: str
    """Name of the archive, or a pattern such as `*.npz` if the repository holds the files themselves."""
    folder: str
    """Folder of the files in the archive; for a pattern, the folder to download them to."""
    only: tuple[str, ...] = ()
    """Files to download, of those that match the pattern; empty for all."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A statistic of the published files."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """Definition of a benchmark and what to know before using it."""

    name: str
    title: str
    summary: str
    equation: str
    boundary: str
    random: str
    """Distribution of what differs between samples."""
    fields: Mapping[str, Field]
    paper: float | None = None
    """Test error of FLARE in the paper, relative L2; None for a stand-in."""
    paper_offset: float = 0.0
    """Constant that the authors' code adds to truth and prediction before computing the error."""
    points: int | str
    """Number of points of a sample; a range as text if it varies."""
    grid: tuple[int, int] | None = None
    cell_type: str | None = None
    mesher: str | None = None
    """Function `module:name` that meshes a geometry like the samples; None if points are sampled."""
    samples: Mapping[str, int]
    rule: str = ""
    """Split of the published files."""
    archive: Archive | None = None
    """Location of the published files; None if there are none."""
    stands_in_for: str | None = None
    """Benchmark that this one replaces where it is not available."""
    licence: str
    differs: tuple[str, ...]
    pitfalls: tuple[str, ...]
    published: Mapping[str, Published]
    """Landmark -> statistic of the published files."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Start of the note on a draw that was filtered out -> which draws are kept, and why."""
    note_units: Mapping[str, str] = field(default_factory=dict)
    """Units of numbers in the notes of a sample."""
    window: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Part of the domain to show in plots; empty for all."""

    def schema(self, *, grid: tuple[int, int] | None = None) -> Schema:
        """Return the schema of a dataset of this benchmark, with another resolution if `grid` is given."""
        return Schema(name=self.name, fields=self.fields, grid=grid or self.grid, cell_type=self.cell_type)


def card_names() -> list[str]:
    """Return the names of all cards."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def card(name: str) -> Card:
    """Load the card of a benchmark. Raises DataError if there is none."""
    if name not in card_names():
        raise DataError(f"there is no dataset card {name!r}; {suggest_name(name, card_names())}")
    record: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    fields = {key: Field(**{**f, "components": tuple(f["components"])}) for key, f in record.pop("fields").items()}
    return Card(
        name=name,
        fields=fields,
        grid=tuple(record.pop("grid")) if "grid" in record else None,
        archive=Archive(**record.pop("archive")) if "archive" in record else None,
        differs=tuple(record.pop("differs")),
        pitfalls=tuple(record.pop("pitfalls")),
        published={key: Published(**value) for key, value in record.pop("published").items()},
        window={axis: tuple(ends) for axis, ends in record.pop("window", {}).items()},
        **record,
    )


def command_for(folder: Path) -> str:
    """Return the command that makes the dataset of a folder name such as `darcy`, or `drivaerml-1m` with its size."""
    if folder.name in COMMANDS:
        return f"{COMMANDS[folder.name]} --out {folder}"
    names = [name for name in card_names() if folder.name == name or folder.name.startswith(f"{name}-")]
    if not names:
        return f"flare data make NAME --out {folder}"
    name = max(names, key=len)
    if name not in {card(other).stands_in_for for other in card_names()}:
        return f"flare data make {name} --out {folder}"
    # It has a stand-in because no solver makes it.
    size = re.fullmatch(r"-(\d+[km])", folder.name.removeprefix(name))
    return f"flare data download {name}{f' --size {size[1]}' if size else ''} --out {folder}"


def is_benchmark(schema: Schema) -> bool:
    """Return whether a dataset is of a benchmark: its name and fields match a card. It may have more fields."""
    if schema.name not in card_names():
        return False
    known = card(schema.name)
    return known.fields.items() <= schema.fields.items() and (schema.grid is None) == (known.grid is None)


def paper_error(name: str, provenance: Mapping[str, Any], offset: float = 0.0) -> tuple[float | None, str]:
    """Return the error of FLARE in the paper if it is comparable, and a note.

    The error of a stand-in, or of another form of the benchmark such as a coarser mesh, is not comparable.

    Args:
        name: Name of the dataset.
        provenance: Provenance of the dataset.
        offset: Setting `loss.offset` with which our error was computed.

    Returns:
        The error, or None; and a note on how it compares, empty if the paper has no such benchmark.
    """
    kind = provenance.get("kind")
    if name not in card_names() or kind == "user":
        return None, ""
    if kind not in ("published", "recreated"):
        return None, "the error in the paper is not comparable: this dataset is a stand-in"
    theirs, departures = card(name).paper_offset, provenance.get("departures")
    if abs(offset - theirs) > 2e-3:
        return None, (
            f"the error in the paper is not comparable: the authors' code adds {theirs:g} to truth and prediction, "
            f"which makes the error smaller; the setting loss.offset={theirs:g} does the same"
        )
    if departures:
        others = ", ".join(f"{key}={value}" for key, value in departures.items())
        return None, f"the error in the paper is not comparable: this dataset differs from the benchmark ({others})"
    files = "these files" if kind == "published" else "the published files, of which this dataset is a recreation,"
    protocol = f"{card(name).samples['train']:,} samples, 500 epochs and the model sizes of the paper"
    return card(name).paper, f"FLARE in the paper, on {files} with {protocol}"


def compare_with_paper(result: Mapping[str, Any]) -> str:
    """Return one line on the error in the paper for the result of a run; empty if the paper has no such benchmark."""
    made = {"kind": result["provenance"], "departures": result.get("departures")}
    error, note = paper_error(result["dataset"], made, result.get("offset", 0.0))
    if error is None:
        return note
    ours = f"{result['train_samples']:,} samples, {result['epochs']:,} epochs, {result['parameters']:,} parameters"
    return f"{error:.4f}   {note}. This run: {ours}"


def datasets_page() -> str:
    """Return docs/benchmarks/datasets.md."""
    return "\n".join([INTRODUCTION, *(as_markdown(card(name)) for name in card_names())])


def as_markdown(card: Card) -> str:
    """Return a card as a section of a Markdown page."""
    count = f"{card.points:,}" if isinstance(card.points, int) else card.points
    shape = f"{count} points" + (f", a grid of {card.grid[0]} × {card.grid[1]}" if card.grid else "")
    if card.archive is None:
        source = [f"* **Stand-in for** `{card.stands_in_for}`: its errors are not comparable with the paper"]
    else:
        files = f"`{card.archive.file}` of `{card.archive.repository}`, folder `{card.archive.folder}`"
        source = [f"* **Split** of the published files: {card.rule}", f"* **Files**: {files}"]
    lines = [
        f"## {card.title} · `{card.name}`",
        "",
        card.summary,
        "",
        f"* **Equation**: {card.equation}",
        f"* **Boundary conditions**: {card.boundary}",
        f"* **Random inputs**: {card.random}",
        f"* **Size**: {shape} per sample; {card.samples['train']:,} training and {card.samples['test']:,} test samples",
        *source,
        f"* **License**: {card.licence}",
        "",
        "| field | role | components | unit | |",
        "|---|---|---|---|---|",
        *(
            f"| `{name}` | {f.role} | {', '.join(f.components)} | {f.unit} | {f.description} |"
            for name, f in card.fields.items()
        ),
        "",
        f"Differences from {f'`{card.stands_in_for}`' if card.stands_in_for else 'the published data'}:",
        "",
        *(f"* {line}" for line in card.differs),
        "",
        "Pitfalls:",
        "",
        *(f"* {line}" for line in card.pitfalls),
    ]
    return "\n".join(lines) + "\n"
