"""A table once, in three tongues: Markdown for pages, CSV for programs, LaTeX for papers."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import wrap

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
"""A number as people read it: `1,234 ± 5; failed: …`, `2 of 3`, `3.38 (3.38 to 3.85 in …)`, `255×`."""
PARTS = ("", ", spread", ", besides")
"""What the columns of such numbers add to their head."""
LONG = 40
"""Letters of a cell from which LaTeX has to break its lines."""
LETTERS = 6
"""Of a column with a width, in a centimetre."""
PAGE = 40
"""Lines of a table that fit on a page."""
EMPHASIS = {r"\*\*(.+?)\*\*": "textbf", r"\*(.+?)\*": "emph"}
"""Of Markdown, in LaTeX."""


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1
    """So many columns at the left are text."""
    notes: int = 0
    """And so many at the right; numbers, in between, are set to the right."""
    pair: tuple[str, str] | None = None
    """What the two numbers of a cell such as `126 (3.38)` are, to head columns of their own in CSV."""

    def _is_text(self, column: int) -> bool:
        return column < self.text or column >= len(self.head) - self.notes

    def markdown(self) -> str:
        marks = "|".join("---" if self._is_text(i) else "---:" for i in range(len(self.head)))
        lines = [
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in (self.head, *self.rows)
        ]
        return "\n".join([lines[0], f"|{marks}|", *lines[1:]]) + "\n"

    def csv(self) -> str:
        """Plain numbers; spreads, and what else stands beside a number, have columns of their own if there are any."""
        columns: list[Sequence[str]] = []
        for i, head in enumerate(self.head):
            cells = [row[i] for row in self.rows]
            if self._is_text(i):
                columns.append([head, *cells])
                continue
            parts = [_parted(cell) for cell in cells]
            ours, besides = (f", {name}" for name in self.pair) if self.pair else (PARTS[0], PARTS[2])
            for k, name in enumerate((ours, ours + PARTS[1], besides)):
                column = [part[k] for part in parts]
                if any(column) or k == 0:
                    columns.append([head + name, *column])
        file = StringIO()
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
        return file.getvalue()

    def latex(self, about: Sequence[str] = ()) -> str:
        """A `tabular` with the rules of booktabs, or a `longtable` of what does not fit on a page; what is too long for
        a line is broken in a column of some width.

        Args:
            about: paragraphs that head the file as comments, after the packages it needs.
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
        for words in about:
            comments += wrap(words, 100, initial_indent="% ", subsequent_indent="%   ")
        return "\n".join([*comments, f"\\begin{{{kind}}}{{{columns}}}", *lines, f"\\end{{{kind}}}\n"])

    def _column(self, i: int) -> str:
        """`l`, `r`, or `p` where a cell is long."""
        width = self._width(i)
        if width is None:
            return "l" if self._is_text(i) else "r"
        return f"p{{{width}cm}}"

    def _width(self, i: int) -> int | None:
        """Centimetres; None: as wide as what stands in it."""
        if max(len(row[i]) for row in (self.head, *self.rows)) <= LONG:
            return None
        return 6 if self._is_text(i) else 3

    def _lines(self, row: Sequence[str]) -> int:
        """How many a row takes in print."""
        widths = [self._width(i) for i in range(len(row))]
        return max(
            1 if width is None else max(1, math.ceil(len(cell) / (LETTERS * width)))
            for cell, width in zip(row, widths, strict=True)
        )


def _latex(cell: str) -> str:
    text = cell.translate(LATEX)
    for markdown, command in EMPHASIS.items():
        text = re.sub(markdown, rf"\\{command}{{\1}}", text)
    return text


def _parted(cell: str) -> tuple[str, str, str]:
    """A number, its spread, what stands besides; a cell of anything else, as of what is unfinished, is all besides."""
    found = NUMBER.fullmatch(cell.replace("*", ""))  # without the emphasis of Markdown
    if found is None:
        return "", "", "" if cell == "–" else cell
    value, spread, *besides = found.groups(default="")
    return _plain(value), spread, _plain("".join(besides))


def _plain(text: str) -> str:
    """`1234` for `1,234`; words as they are."""
    return text.replace(",", "") if re.fullmatch(r"[\d,]+\.?\d*", text) else text
