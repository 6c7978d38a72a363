"""Self-contained HTML pages with embedded pictures and style, written atomically."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from flare.utils.files import replace_atomically

DPI = 150
FOLD = 24
"""Rows of a table beyond which it is folded."""


@dataclass(frozen=True)
class Grid:
    """A table with column titles. All columns but the first `words` are aligned right."""

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
    """Write a report as one HTML file that opens offline.

    Args:
        path: File to write.
        title: Title of the page.
        summary: (name, value) of the main numbers, shown large.
        notes: Sentences below the summary.
        figures: (heading, caption, figure).
        tables: (heading, rows of (name, value)).
        grids: Tables with several columns.
        texts: (heading, preformatted text), such as a configuration file.
        footer: Origin of the page.
    """
    pictures = [(heading, caption, _embedded(figure)) for heading, caption, figure in figures]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    html = environment.get_template("page.html").render(
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
    with replace_atomically(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def save_png(figure: Figure, path: str | Path) -> None:
    """Write a figure as a PNG file, atomically."""
    with replace_atomically(path) as temporary:
        temporary.write_bytes(png(figure))


def _embedded(figure: Figure) -> dict[str, object]:
    """Return a figure and its size in CSS pixels, 96 per inch, so that text has the same size in every figure."""
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return {"png": b64encode(png(figure)).decode(), "width": width, "height": height}


def png(figure: Figure) -> bytes:
    """Return a figure as the bytes of a PNG file, equal for equal figures."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
