"""A table says the same in Markdown, CSV and LaTeX."""

import csv

from flare.experiments.tables import Table

TABLE = Table(("model", "rel-L2 × 1e-3", "note"), [("a_b", "5.2 ± 0.1", "50 % | {x}"), ("c", "", "1,200")])


def test_markdown_has_a_line_for_every_row_and_bars_only_between_cells():
    assert TABLE.markdown() == (
        "| model | rel-L2 × 1e-3 | note |\n|---|---:|---:|\n| a_b | 5.2 ± 0.1 | 50 % \\| {x} |\n| c |  | 1,200 |\n"
    )


def test_csv_reads_back_as_it_was():
    assert list(csv.reader(TABLE.csv().splitlines())) == [list(TABLE.head), *map(list, TABLE.rows)]


def test_latex_escapes_what_it_would_stumble_over():
    text = TABLE.latex()
    assert r"a\_b & 5.2 $\pm$ 0.1 & 50 \% | \{x\} \\" in text
    assert text.startswith("\\begin{tabular}{lrr}\n\\toprule\nmodel & rel-L2 $\\times$ 1e-3 & note \\\\\n\\midrule\n")
