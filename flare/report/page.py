"""Self-contained HTML pages: pictures and style inside, nothing fetched, whole or not written at all."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from flare.utils.files import replacing

DPI = 150
FOLD = 24
"""Rows of a grid; a longer one is shown when asked for."""


@dataclass(frozen=True)
class Grid:
    """A table with a line of column names. Numbers are set right, all but the first `words` columns."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


def write_page(
    path: str | Path,
    *,
    title: str,
    summary: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    figures: Sequence[tuple[str, str, Figure]] = (),
    tables: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
    grids: Sequence[Grid] = (),
    texts: Sequence[tuple[str, str]] = (),
    footer: str = "",
) -> None:
    """Write a report as one HTML file that opens anywhere, offline, on a phone, in the dark and on paper.

    Args:
        path: of the file.
        title: of the page.
        summary: (what, value), the few numbers a reader came for, shown large.
        notes: sentences below the summary, on how far to trust it.
        figures: (heading, caption, figure).
        tables: (heading, rows of (name, value)).
        grids: tables of many columns.
        texts: (heading, text), shown as typed, such as a configuration file.
        footer: where the page comes from.
    """
    pictures = [(heading, caption, _embedded(figure)) for heading, caption, figure in figures]
    rooms = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    html = rooms.get_template("page.html").render(
        title=title,
        summary=summary,
        notes=notes,
        pictures=pictures,
        tables=[t for t in tables if t[1]],
        grids=[grid for grid in grids if grid.rows],
        fold=FOLD,
        texts=texts,
        footer=footer,
    )
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def save_png(figure: Figure, path: str | Path) -> None:
    """Write a picture, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(png(figure))


def _embedded(figure: Figure) -> dict[str, object]:
    """Picture and size in CSS pixels, 96 to the inch, so that text has the same size in every figure of a page."""
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return {"png": b64encode(png(figure)).decode(), "width": width, "height": height}


def png(figure: Figure) -> bytes:
    """The picture as the bytes of a file, the same for the same figure."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
