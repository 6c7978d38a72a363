"""Tables have the same content in Markdown, CSV and LaTeX."""

import csv
import math

import pytest

from flare.reproduce.items.lpbf_statistics import statistics_table
from flare.reproduce.tables import Table

TABLE = Table(("model", "rel-L2 × 1e-3", "note"), [("a_b", "5.2 ± 0.1", "50 % | {x}"), ("c", "", "1,200")])


def test_markdown_has_a_line_per_row_and_escapes_bars():
    assert TABLE.markdown() == (
        "| model | rel-L2 × 1e-3 | note |\n|---|---:|---:|\n| a_b | 5.2 ± 0.1 | 50 % \\| {x} |\n| c |  | 1,200 |\n"
    )


def read(table):
    return list(csv.DictReader(table.csv().splitlines()))


def test_csv_has_plain_numbers_and_separate_columns_for_spreads():
    assert [float(row["rel-L2 × 1e-3"] or "nan") for row in read(TABLE)] == pytest.approx([5.2, math.nan], nan_ok=True)
    assert [row["rel-L2 × 1e-3, spread"] for row in read(TABLE)] == ["0.1", ""]
    assert [(row["note"], row["note, note"]) for row in read(TABLE)] == [("", "50 % | {x}"), ("1200", "")]
    assert list(read(Table(("a", "b"), [("1,0", "2"), ("x", "3")]))[0].items()) == [("a", "1,0"), ("b", "2")]
    assert Table(("a", "b"), []).csv() == "a,b\n"


@pytest.mark.parametrize(
    ("cell", "number", "spread", "besides"),
    [
        ("82,817", "82817", "", ""),
        ("26,977.3", "26977.3", "", ""),
        ("126 ± 5; failed", "126", "5", "failed"),
        ("2 of 3", "2", "", "of 3"),
        ("3.38 (3.38 to 3.85 there)", "3.38", "", "3.38 to 3.85 there"),
        ("8,628 (20,972)", "8628", "", "20972"),
        ("*1.85e+04*", "1.85e+04", "", ""),
        ("128× (computed)", "128", "", "computed"),
        ("5.00 at epoch 200 of 500", "", "", "5.00 at epoch 200 of 500"),
        ("failed", "", "", "failed"),
    ],
)
def test_csv_splits_number_spread_and_note(cell, number, spread, besides):
    (row,) = read(Table(("model", "error"), [("a", cell)]))
    assert row["error"] == number
    assert (row.get("error, spread", ""), row.get("error, note", "")) == (spread, besides)


def test_csv_names_the_columns_of_a_pair():
    table = Table(("model", "elasticity"), [("flare", "**126 ± 5** (3.38)"), ("lno", "–")], pair=("ours", "paper"))
    first, second = read(table)
    expected = {"elasticity, ours": "126", "elasticity, ours, spread": "5", "elasticity, paper": "3.38"}
    assert first == {"model": "flare", **expected}
    assert second == {"model": "lno", **dict.fromkeys(expected, "")}
    landmarks = {f"mean of {quantity}": 1.0 for quantity in ("nodes", "edges")}
    assert list(read(statistics_table(landmarks))[0])[1:] == ["mean, ours", "mean, published"]


def test_latex_has_emphasis_and_breaks_long_cells():
    long = "data of our solver; 400+100 of 1000+200 samples; batch size 1, not 2"
    text = Table(
        ("layer", "seconds", "departures"), [("softmax", "*3.8e+04*", long), ("a", "**2**", "")], notes=1
    ).latex()
    assert text.startswith("% needs \\usepackage{booktabs}\n\\begin{tabular}{lrp{6cm}}\n")
    assert r"softmax & \emph{3.8e+04} & data" in text
    assert r"a & \textbf{2} &" in text
    assert "*" not in text


def test_latex_escapes_special_characters():
    text = TABLE.latex()
    assert r"a\_b & 5.2 $\pm$ 0.1 & 50 \% | \{x\} \\" in text
    assert "\\begin{tabular}{lrr}\n\\toprule\nmodel & rel-L2 $\\times$ 1e-3 & note \\\\\n\\midrule\n" in text


def test_latex_starts_with_comments():
    about = ["Table 1, budget cpu", f"In bold the lowest: {'word ' * 30}"]
    lines = TABLE.latex(about).splitlines()
    comments = lines[: lines.index(r"\begin{tabular}{lrr}")]
    assert comments[:2] == [r"% needs \usepackage{booktabs}", "% Table 1, budget cpu"]
    assert len(comments) == 4, "broken into lines"
    assert all(line.startswith("% ") for line in comments)


@pytest.mark.parametrize("row", [("a", "1", "short"), ("a", "1", 200 * "x")])
def test_a_long_table_is_a_longtable(row):
    short, long = (Table(("model", "error", "note"), [row] * count, notes=1).latex() for count in (5, 50))
    assert "longtable" not in short
    assert long.startswith("% needs \\usepackage{booktabs,longtable}\n\\begin{longtable}{lr")
    assert "\\midrule\n\\endhead\n\\bottomrule\n\\endfoot\na & 1 & " in long
    assert long.endswith(" \\\\\n\\end{longtable}\n")


def test_a_table_of_long_cells_is_a_longtable():
    assert "longtable" in Table(("model", "note"), [("a", 200 * "x")] * 12, notes=1).latex()
