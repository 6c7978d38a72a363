"""Render a table as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import wrap
from typing import Any

LATEX = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "²": r"$^2$",
        "†": r"$^\dagger$",
        "→": r"$\to$",
        "−": r"$-$",
        "–": "--",
    }
)

NUMBER = re.compile(r"([\d,]*\.?\d+(?:e[+-]?\d+)?)(?: ± ([\d.]+))?×?(?:; (.+)| (of .+)| \((.+)\))?")
"""A number with its spread and further text: `1,234 ± 5; failed`, `2 of 3`, `126 (3.38)`, `255×`."""
PARTS = ("", ", spread", ", note")
"""Suffixes of the titles of the CSV columns that a column of such numbers is split into."""
LONG = 40
"""Characters of a cell beyond which LaTeX breaks its lines."""
LETTERS = 6
"""Characters per centimeter of a column."""
PAGE = 40
"""Lines of a table that fit on a page in LaTeX."""
EMPHASIS = {r"\*\*(.+?)\*\*": "textbf", r"\*(.+?)\*": "emph"}
"""Pattern of Markdown -> command of LaTeX."""


@dataclass(frozen=True)
class Table:
    """A table of text and numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1
    """Number of text columns on the left."""
    notes: int = 0
    """Number of text columns on the right. Columns in between are numbers and aligned right."""
    pair: tuple[str, str] | None = None
    """Names of the two numbers of cells such as `126 (3.38)`, which have separate columns in CSV."""

    def _is_text(self, column: int) -> bool:
        return column < self.text or column >= len(self.head) - self.notes

    def markdown(self) -> str:
        """Render the table as Markdown."""
        marks = "|".join("---" if self._is_text(i) else "---:" for i in range(len(self.head)))
        lines = [
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in (self.head, *self.rows)
        ]
        return "\n".join([lines[0], f"|{marks}|", *lines[1:]]) + "\n"

    def csv(self) -> str:
        """Render the table as CSV with plain numbers. Spreads and text beside a number get columns of their own."""
        columns: list[Sequence[str]] = []
        for i, head in enumerate(self.head):
            cells = [row[i] for row in self.rows]
            if self._is_text(i):
                columns.append([head, *cells])
                continue
            parts = [_split(cell) for cell in cells]
            ours, rest = (f", {name}" for name in self.pair) if self.pair else (PARTS[0], PARTS[2])
            for k, name in enumerate((ours, ours + PARTS[1], rest)):
                column = [part[k] for part in parts]
                if any(column) or k == 0:
                    columns.append([head + name, *column])
        file = StringIO()
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
        return file.getvalue()

    def latex(self, about: Sequence[str] = ()) -> str:
        """Render the table as a LaTeX `tabular` with booktabs, or as a `longtable` if it does not fit on a page.

        Args:
            about: Paragraphs that are written as comments before the table.
        """
        columns = "".join(self._column(i) for i in range(len(self.head)))
        head, *body = [" & ".join(map(_latex, line)) + r" \\" for line in (self.head, *self.rows)]
        if sum(map(self._lines, self.rows)) > PAGE:
            kind, packages = "longtable", "booktabs,longtable"
            lines = [r"\toprule", head, r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot", *body]
        else:
            kind, packages = "tabular", "booktabs"
            lines = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        comments = [f"% needs \\usepackage{{{packages}}}"]
        for paragraph in about:
            comments += wrap(paragraph, 100, initial_indent="% ", subsequent_indent="%   ")
        return "\n".join([*comments, f"\\begin{{{kind}}}{{{columns}}}", *lines, f"\\end{{{kind}}}\n"])

    def _column(self, i: int) -> str:
        """Return the column type: `l`, `r`, or `p` if a cell is long."""
        width = self._width(i)
        if width is None:
            return "l" if self._is_text(i) else "r"
        return f"p{{{width}cm}}"

    def _width(self, i: int) -> int | None:
        """Return the width in centimeters, None for a column as wide as its content."""
        if max(len(row[i]) for row in (self.head, *self.rows)) <= LONG:
            return None
        return 6 if self._is_text(i) else 3

    def _lines(self, row: Sequence[str]) -> int:
        """Return the number of printed lines of a row."""
        widths = [self._width(i) for i in range(len(row))]
        return max(
            1 if width is None else max(1, math.ceil(len(cell) / (LETTERS * width)))
            for cell, width in zip(row, widths, strict=True)
        )


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Build a table of two columns from names and values."""
    rows = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in facts.items()]
    return Table(("setting", "value"), rows, text=2)


def _latex(cell: str) -> str:
    text = cell.translate(LATEX)
    for markdown, command in EMPHASIS.items():
        text = re.sub(markdown, rf"\\{command}{{\1}}", text)
    return text


def _split(cell: str) -> tuple[str, str, str]:
    """Split a cell into number, spread and further text. A cell without a number is all text."""
    found = NUMBER.fullmatch(cell.replace("*", ""))  # emphasis of Markdown
    if found is None:
        return "", "", "" if cell == "–" else cell
    value, spread, *rest = found.groups(default="")
    return _plain(value), spread, _plain("".join(rest))


def _plain(text: str) -> str:
    """Remove the commas of a number; return other text unchanged."""
    return text.replace(",", "") if re.fullmatch(r"[\d,]+\.?\d*", text) else text
