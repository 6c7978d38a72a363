"""A table once, in three tongues: Markdown for pages, CSV for programs, LaTeX for papers."""

from __future__ import annotations

import csv
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
        file = StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.head, *self.rows])
        return file.getvalue()

    def latex(self) -> str:
        """A `tabular` with the rules of booktabs."""
        columns = "".join("l" if self._is_text(i) else "r" for i in range(len(self.head)))
        lines = [" & ".join(cell.translate(LATEX) for cell in line) + r" \\" for line in (self.head, *self.rows)]
        body = "\n".join([lines[0], r"\midrule", *lines[1:]])
        return f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"
