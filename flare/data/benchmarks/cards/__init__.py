"""Dataset cards: what a benchmark is, where it comes from, what its published files hold, and what to beware of.

A card is a YAML file of this folder. `docs/datasets.md` is made of them:  python -m flare.data.benchmarks.cards
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
from flare.sequence.making import HOW_TO_MAKE
from flare.utils.errors import DataError, nearest

KINDS = ("published", "recreated", "stand-in", "user")
"""Where a dataset may come from, in its provenance: files of the benchmark; our solver of the same problem; another
problem in its place; a user."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Where the published files are: a dataset repository of the hub, a packed file of it, and a folder in that."""

    repository: str
    file: str
    """Or a pattern, such as `*.npz`, where the repository holds the files themselves."""
    folder: str
    """Of a pattern: where the files go, in the folders that they have in the repository."""
    only: tuple[str, ...] = ()
    """Some of the files that match the pattern; empty for all."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A statistic of the published files, to compare ours with."""

    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """All that is to be known of a benchmark before it is used."""

    name: str
    title: str
    summary: str
    equation: str
    boundary: str
    random: str
    """What differs between samples, and its distribution."""
    fields: Mapping[str, Field]
    paper: float | None = None
    """Test error of FLARE in the paper, relative L2; None of a stand-in."""
    paper_offset: float = 0.0
    """What the authors' code adds to truth and prediction before it compares them."""
    points: int | str
    """Of a sample; in words where they differ."""
    grid: tuple[int, int] | None = None
    cell_type: str | None = None
    samples: Mapping[str, int]
    rule: str = ""
    """How the published files are split."""
    archive: Archive | None = None
    """None where nothing is published."""
    stands_in_for: str | None = None
    """Benchmark that this one takes the place of, where that cannot be had."""
    licence: str
    differs: tuple[str, ...]
    pitfalls: tuple[str, ...]
    published: Mapping[str, Published]
    kept: Mapping[str, str] = field(default_factory=dict)
    """How the note on a draw that was filtered out begins -> which draws are kept, and why."""
    note_units: Mapping[str, str] = field(default_factory=dict)
    """Of numbers that the generator notes of a sample."""
    window: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Part of the domain to show in pictures; empty for all."""

    def schema(self, *, grid: tuple[int, int] | None = None) -> Schema:
        """Of a dataset of this benchmark, whether from files or from a solver; `grid` of another resolution."""
        return Schema(name=self.name, fields=self.fields, grid=grid or self.grid, cell_type=self.cell_type)


def card_names() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.yaml"))


@cache
def card(name: str) -> Card:
    """The card of a benchmark."""
    if name not in card_names():
        raise DataError(f"there is no dataset card {name!r}; {nearest(name, card_names())}")
    record: dict[str, Any] = yaml.safe_load((_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
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
    """The command that gives a dataset in a folder of such a name: `darcy`, or `drivaerml-1m` of a certain size."""
    if folder.name in HOW_TO_MAKE:
        return f"{HOW_TO_MAKE[folder.name]} --out {folder}"
    names = [name for name in card_names() if folder.name == name or folder.name.startswith(f"{name}-")]
    if not names:
        return f"flare data make NAME --out {folder}"
    name = max(names, key=len)
    if name not in {card(other).stands_in_for for other in card_names()}:
        return f"flare data make {name} --out {folder}"
    # Another stands in for it because no solver here makes it.
    size = re.fullmatch(r"-(\d+[km])", folder.name.removeprefix(name))
    return f"flare data download {name}{f' --size {size[1]}' if size else ''} --out {folder}"


def is_benchmark(schema: Schema) -> bool:
    """Whether a dataset is of a benchmark: by its fields, not its name alone, which a user may have chosen, too.

    It may have more fields than its card, such as the history of a build.
    """
    if schema.name not in card_names():
        return False
    known = card(schema.name)
    return known.fields.items() <= schema.fields.items() and (schema.grid is None) == (known.grid is None)


def papers_number(name: str, provenance: Mapping[str, Any], offset: float = 0.0) -> tuple[float | None, str]:
    """The paper's error of FLARE to show beside ours, or None; and in words what to think of it.

    `offset` is what ours was measured with, see `LossConfig`.

    A stand-in is another problem under the same name, and so is another form of it, such as a coarser mesh: no number
    of the paper may stand beside them.
    """
    kind = provenance.get("kind")
    if name not in card_names() or kind == "user":
        return None, ""
    if kind not in ("published", "recreated"):
        return None, "the paper's numbers do not apply: these data are a stand-in"
    theirs = card(name).paper_offset
    if abs(offset - theirs) > 2e-3:
        return None, (
            f"its number is not comparable: the authors' code adds {theirs:g} to truth and prediction before it "
            f"measures the error, which makes it smaller; --loss.offset {theirs:g} measures as they do"
        )
    if provenance.get("departures"):
        others = ", ".join(f"{key}={value}" for key, value in provenance["departures"].items())
        return None, f"the paper's numbers do not apply: these data are of another form ({others})"
    effort = _papers_effort(name)
    if kind == "published":
        return card(name).paper, f"FLARE in the paper, on these files with {effort}"
    return card(name).paper, f"FLARE in the paper, on the published files with {effort}; these data are recreated"


def _papers_effort(name: str) -> str:
    return f"{card(name).samples['train']:,} samples, 500 epochs, its own sizes"


def beside_the_paper(result: Mapping[str, Any]) -> str:
    """One line on the paper's number for the record of a run, with what this run had; empty where there is none."""
    made = {"kind": result["provenance"], "departures": result.get("departures")}
    number, words = papers_number(result["dataset"], made, result.get("offset", 0.0))
    if number is None:
        return words
    ours = f"{result['train_samples']:,} samples, {result['epochs']:,} epochs, {result['parameters']:,} parameters"
    return f"{number:.4f}   {words}. This run: {ours}"


def as_markdown(card: Card) -> str:
    """The card as a section of a page."""
    count = f"{card.points:,}" if isinstance(card.points, int) else card.points
    shape = f"{count} points" + (f", a grid of {card.grid[0]} × {card.grid[1]}" if card.grid else "")
    lines = [
        f"## {card.title} · `{card.name}`",
        "",
        card.summary,
        "",
        f"* **Equation**: {card.equation}",
        f"* **Boundary conditions**: {card.boundary}",
        f"* **Random**: {card.random}",
        f"* **Size**: {shape} a sample; {card.samples['train']:,} samples to train, {card.samples['test']:,} to test",
        *_source(card),
        f"* **Licence**: {card.licence}",
        "",
        "| field | role | components | unit | |",
        "|---|---|---|---|---|",
        *(
            f"| `{name}` | {f.role} | {', '.join(f.components)} | {f.unit} | {f.description} |"
            for name, f in card.fields.items()
        ),
        "",
        "How it differs from what it stands in for:"
        if card.stands_in_for
        else "How ours differs from the published one:",
        "",
        *(f"* {line}" for line in card.differs),
        "",
        "Beware:",
        "",
        *(f"* {line}" for line in card.pitfalls),
    ]
    return "\n".join(lines) + "\n"


def _source(card: Card) -> list[str]:
    if card.archive is None:
        return [f"* **Stands in for** `{card.stands_in_for}`: never shown beside numbers of the paper"]
    return [
        f"* **Split** of the published files: {card.rule}",
        f"* **Files**: `{card.archive.file}` of `{card.archive.repository}`, folder `{card.archive.folder}`",
    ]


def _folder() -> Path:
    return Path(__file__).parent
