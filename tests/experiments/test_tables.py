"""A table says the same in Markdown, CSV and LaTeX, to people and to programs."""

import csv
import math

import pytest

from flare.experiments.tables import Table

TABLE = Table(("model", "rel-L2 × 1e-3", "note"), [("a_b", "5.2 ± 0.1", "50 % | {x}"), ("c", "", "1,200")])


def test_markdown_has_a_line_for_every_row_and_bars_only_between_cells():
    assert TABLE.markdown() == (
        "| model | rel-L2 × 1e-3 | note |\n|---|---:|---:|\n| a_b | 5.2 ± 0.1 | 50 % \\| {x} |\n| c |  | 1,200 |\n"
    )


def read(table):
    return list(csv.DictReader(table.csv().splitlines()))


def test_csv_has_plain_numbers_and_spreads_in_columns_of_their_own():
    assert [float(row["rel-L2 × 1e-3"] or "nan") for row in read(TABLE)] == pytest.approx([5.2, math.nan], nan_ok=True)
    assert [row["rel-L2 × 1e-3, spread"] for row in read(TABLE)] == ["0.1", ""]
    assert [(row["note"], row["note, besides"]) for row in read(TABLE)] == [("", "50 % | {x}"), ("1200", "")]
    assert list(read(Table(("a", "b"), [("1,0", "2"), ("x", "3")]))[0].items()) == [("a", "1,0"), ("b", "2")]
    assert Table(("a", "b"), []).csv() == "a,b\n"


@pytest.mark.parametrize(
    ("cell", "number", "spread", "besides"),
    [
        ("82,817", "82817", "", ""),
        ("26,977.3", "26977.3", "", ""),
        ("126 ± 5; failed: TrainingDiverged: nan", "126", "5", "failed: TrainingDiverged: nan"),
        ("2 of 3", "2", "", "of 3"),
        ("3.38 (3.38 to 3.85 there)", "3.38", "", "3.38 to 3.85 there"),
        ("8,628 (20,972)", "8628", "", "20972"),
        ("*1.85e+04*", "1.85e+04", "", ""),
        ("128× (computed)", "128", "", "computed"),
        ("5.00 at epoch 200 of 500, unfinished", "", "", "5.00 at epoch 200 of 500, unfinished"),
        ("failed: TrainingDiverged: nan", "", "", "failed: TrainingDiverged: nan"),
    ],
)
def test_whatever_people_read_in_a_cell_of_numbers_a_program_finds_apart(cell, number, spread, besides):
    (row,) = read(Table(("model", "error"), [("a", cell)]))
    assert row["error"] == number
    assert (row.get("error, spread", ""), row.get("error, besides", "")) == (spread, besides)


def test_latex_escapes_what_it_would_stumble_over():
    text = TABLE.latex()
    assert r"a\_b & 5.2 $\pm$ 0.1 & 50 \% | \{x\} \\" in text
    assert text.startswith("\\begin{tabular}{lrr}\n\\toprule\nmodel & rel-L2 $\\times$ 1e-3 & note \\\\\n\\midrule\n")
