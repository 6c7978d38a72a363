"""Tables of experiments in the documentation are those of the kept records."""

import json
from pathlib import Path

import pytest

from flare.cli import main
from flare.reproduce import comparison
from flare.reproduce.items import cars, million, printed_parts, scaling, small_sets

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "results"
PAGES = {
    "small-sets": ("solvers.md", small_sets),
    "printed-parts": ("lpbf.md", printed_parts),
    "cars": ("cars.md", cars),
    "scaling": ("million.md", scaling),
    "million": ("million.md", million),
    "lra-listops-small": ("lra.md", comparison),
    "lra-image-small": ("lra.md", comparison),
}


def table_of(experiment, record):
    return comparison.attention_table(record) if experiment is comparison else experiment.table(record)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_record_gives(name):
    page, experiment = PAGES[name]
    shown = (ROOT / "docs" / page).read_text().split(experiment.BEGIN)[1].split(experiment.END)[0].strip()
    path = KEPT / f"experiment-{name}.json"
    if not path.exists():
        assert shown.startswith("Not measured yet")
        return
    assert table_of(experiment, json.loads(path.read_text())).strip() in shown


def test_a_record_is_kept_where_it_is_asked_for(tmp_path, capsys):
    out, kept = tmp_path / "out", tmp_path / "kept"
    out.mkdir()
    (out / "scaling.json").write_bytes((KEPT / "experiment-scaling.json").read_bytes())
    points = "1000,3162"
    words = ["--points", points, "--latents", "128", "--out", str(out), "--record", str(kept)]
    assert main(["experiment", "scaling", *words]) == 0
    record = json.loads((kept / "experiment-scaling.json").read_text())
    assert scaling.table(record) == capsys.readouterr().out
    assert record["largest"] == 3162
