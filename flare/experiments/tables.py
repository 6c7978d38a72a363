"""A table once, in three tongues: Markdown for pages, CSV for programs, LaTeX for papers."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

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
    }
)

NUMBER = re.compile(r"([\d,]*\.?\d+(?:e[+-]?\d+)?)(?: ± ([\d.]+))?×?(?:; (.+)| (of .+)| \((.+)\))?")
"""A number as people read it: `1,234 ± 5; failed: …`, `2 of 3`, `3.38 (3.38 to 3.85 in …)`, `255×`."""
PARTS = ("", ", spread", ", besides")
"""What the columns of such numbers add to their head."""


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1
    """So many columns at the left are text."""
    notes: int = 0
    """And so many at the right; numbers, in between, are set to the right."""

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
            for k, name in enumerate(PARTS):
                column = [part[k] for part in parts]
                if any(column) or not name:
                    columns.append([head + name, *column])
        file = StringIO()
        csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
        return file.getvalue()

    def latex(self) -> str:
        """A `tabular` with the rules of booktabs."""
        columns = "".join("l" if self._is_text(i) else "r" for i in range(len(self.head)))
        lines = [" & ".join(cell.translate(LATEX) for cell in line) + r" \\" for line in (self.head, *self.rows)]
        body = "\n".join([lines[0], r"\midrule", *lines[1:]])
        return f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def _parted(cell: str) -> tuple[str, str, str]:
    """A number, its spread, what stands besides; a cell of anything else, as of what is unfinished, is all besides."""
    found = NUMBER.fullmatch(cell.strip("*"))  # the italics of Markdown
    if found is None:
        return "", "", cell
    value, spread, *besides = found.groups(default="")
    return _plain(value), spread, _plain("".join(besides))


def _plain(text: str) -> str:
    """`1234` for `1,234`; words as they are."""
    return text.replace(",", "") if re.fullmatch(r"[\d,]+\.?\d*", text) else text
