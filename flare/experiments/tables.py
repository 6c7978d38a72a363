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
        "–": "--",
    }
)

NUMBER = re.compile(r"([\d,]*\.?\d+(?:e[+-]?\d+)?)(?: ± ([\d.]+))?×?(?:; (.+)| (of .+)| \((.+)\))?")
"""A number as people read it: `1,234 ± 5; failed: …`, `2 of 3`, `3.38 (3.38 to 3.85 in …)`, `255×`."""
PARTS = ("", ", spread", ", besides")
"""What the columns of such numbers add to their head."""
LONG = 40
"""Letters of a cell from which LaTeX has to break its lines."""
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

    def latex(self) -> str:
        """A `tabular` with the rules of booktabs; what is too long for a line is broken in a column of some width."""
        columns = "".join(self._column(i) for i in range(len(self.head)))
        lines = [" & ".join(map(_latex, line)) + r" \\" for line in (self.head, *self.rows)]
        body = "\n".join([lines[0], r"\midrule", *lines[1:]])
        return f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"

    def _column(self, i: int) -> str:
        """`l`, `r`, or `p` where a cell is long."""
        long = max(len(row[i]) for row in (self.head, *self.rows)) > LONG
        if self._is_text(i):
            return "p{6cm}" if long else "l"
        return "p{3cm}" if long else "r"


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
