"""The paper's times and memory stand beside ours, marked as its own; ours are in one unit, and say of what they are."""

import json

import pytest

from flare.cli import main
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.items import million, papers_layers
from flare.reproduce.items.layer_costs import layers, summary
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.pages import write_pages
from flare.reproduce.registry import item_named
from flare.utils.environment import gigabytes

CPU = BUDGETS["cpu"]


def page(ledger, name, folder):
    write_pages(ledger, folder)
    return (folder / f"{name}.md").read_text()


def scaling_record(points):
    rows = [
        {"layer": name, "points": n, "seconds": 1e-6 * n, "peak_mb": 1e-3 * n, "threads": 1, "precision": "32"}
        for name in layers()
        for n in points
    ]
    how = {"threads": 1, "precision": "32", "limit_seconds": 300.0, "limit_gb": 12.0}
    return {"rows": rows, **how, **summary(rows, names=layers(), largest=max(points))}


def test_the_papers_time_and_memory_of_a_layer_stand_beside_ours(tmp_path):
    cell = item_named("scaling").cells(CPU)[0]
    ledger = Ledger(tmp_path / "r")
    ledger.write(cell.job, Record("done", scaling_record((1_000, 100_000, 1_000_000)), made={"commit": "abc"}))
    text = page(ledger, "scaling", tmp_path / "pages")
    assert "| layer | points | ms | GB | paper, H100: ms | paper, H100: GB |" in text
    assert "| softmax | 1,000,000 | 1,000 | 1.05 | 18,500 | 5.45 |" in text
    assert "| flare 2048 | 500,000 |  |  | 63 | 4.46 |" in text
    assert "| physics 512 | 1,000,000 | 1,000 | 1.05 | out of memory (747 at 800,000) | out of memory (71.2" in text
    assert "128× (computed: 18,500 ms / 145 ms)" in text
    assert "read off its figure" in text


def test_factors_of_the_paper_are_those_of_its_times():
    softmax = papers_layers.PAPER["softmax"].milliseconds[-1]
    for layer, told in papers_layers.FACTORS.items():
        factor = softmax / papers_layers.PAPER[layer].milliseconds[-1]
        assert int(told.split("×")[0]) == pytest.approx(factor, rel=0.01)


def test_layers_of_other_sizes_have_no_number_of_the_paper(tmp_path):
    cell = item_named("scaling").cells(CPU)[0]
    ledger = Ledger(tmp_path / "r")
    ledger.write(cell.job, Record("done", scaling_record((1_000, 10_000)), made={"commit": "abc"}))
    assert "paper, H100" not in page(ledger, "scaling", tmp_path / "pages")


def row_of(latents=512, **more):
    row = {"blocks": 8, "latents": latents, "parameters": 5, "seconds": 2.0, "peak_mb": 9483.0}
    return row | {"rel_l2": 0.5, "mean_field": 0.6} | more


def million_page(row, folder):
    (cell,) = item_named("million").cells(CPU)
    about = {"data": "darcy", "points": 1_000_000, "fingerprint": None, "left_out": [], "limit_seconds": 3600.0}
    record = {**million.USUAL, **cell.job.settings, **about, "rows": [row]}
    ledger = Ledger(folder / "r")
    ledger.write(cell.job, Record("done", record, made={"commit": "abc", "peak_memory_mb": 9483, "seconds": None}))
    return page(ledger, "million", folder / "pages")


def test_a_million_points_stand_beside_the_papers_time_and_memory_in_one_unit(tmp_path):
    text = million_page(row_of(), tmp_path)
    assert f"{million.PAPERS_TIME} | {million.PAPERS_MEMORY} |" in text
    assert "| 8 | 512 | 5 | 2.00 | 9.94 | 0.5000 | 0.6000 | 0.56 (216 an epoch) | 33.7 |" in text
    assert "at most 9.9 GB" in text, "the unit of the table"
    assert gigabytes(9483) == pytest.approx(9.94, abs=0.01)


def test_an_older_row_does_not_say_its_data_and_a_new_one_does(tmp_path):
    assert "Data " not in million_page(row_of(), tmp_path / "old")
    made = {"data_fingerprint": "72dad29b16342f14", "training_seconds": 90.0, "environment": {"torch": "2"}}
    told = million_page(row_of(**made), tmp_path / "new")
    assert "Data 72dad29b16342f14; 1 of 1 rows trained in 1 min 30 s." in told


def test_a_new_row_keeps_its_data_time_and_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(million, "alone", lambda function, *arguments: function(*arguments))
    words = ["experiment", "million", "--out", str(tmp_path), "--points", "36", "--blocks", "1", "--latents", "4"]
    assert main([*words, "--steps", "8", "--workers", "1"]) == 0
    record = json.loads((tmp_path / "million.json").read_text())
    (row,) = record["rows"]
    assert row["data_fingerprint"] == million.Dataset(tmp_path / "data").fingerprint
    result = json.loads(next(tmp_path.rglob("result.json")).read_text())  # in tenths: so few steps may take none
    assert row["training_seconds"] == result["seconds"] >= 0
    assert row["environment"] == record["environment"]


def latent_blocks(folder, seconds, errors=(0.3, 0.1, 0.1), **made):
    """Its page, of records of the first cells: of each the seconds of its seeds, and an error."""
    ledger = Ledger(folder / "r")
    for cell, times, error in zip(item_named("latent-blocks").cells(CPU), seconds, errors, strict=False):
        result = {"rel_l2": error, "rel_l2_mean_field": 0.5, "parameters": 9, "epochs": 16, "curve": [(1, error)]}
        for seed, time in enumerate(times):
            record = Record("done", result, made={"commit": "abc", "seconds": time, **made})
            ledger.write(cell.job.with_seed(seed), record)
    return page(ledger, "latent-blocks", folder / "pages")


def test_latent_blocks_stand_beside_the_seconds_they_take_here_and_in_the_paper_on_what_machine(tmp_path):
    text = latent_blocks(tmp_path, [(160,), (32,), (64,)])
    assert "| s an epoch on our machine, least of the seeds | paper: s an epoch on its GPU, not comparable |" in text
    row = next(line for line in text.splitlines() if "| elasticity | 1 | 0 | 9 | 300 | 1 | 21.2 | 10.0 | 4.6 |" in line)
    assert row.endswith("; seconds of a CPU, not of the paper's GPU |")
    assert "ours of a CPU, and of the data and model that the departures name: compare them down a column" in text
    assert "Of one seed: by how much such times differ with nothing to cause it is not known." in text
    assert "as blocks/latent blocks: 1/0 by 2/0 (10.0 and 2.0 s an epoch, 300 and 100); 1/0 by 4/0 (" in text
    assert (
        "In the paper, beaten by none in both (s an epoch, error × 1e-3; one seed, one time): 1/0 (4.6, 21.2), "
        "1/1 (5.2, 13.9), 1/2 (5.6, 13.4), 2/0 (6.5, 10.5), 2/1 (7.6, 8.59), 2/2 (8.3, 7.71), 4/0 (9.9, 5.27), "
        "4/2 (15.8, 4.82), 8/0 (16.8, 3.73), 8/1 (21.9, 3.65)."
    ) in text


def test_a_gpu_of_ours_is_named_beside_its_seconds(tmp_path):
    text = latent_blocks(tmp_path, [(160,)], **{"cuda:0": "NVIDIA A40"})
    assert "; seconds of NVIDIA A40, not of the paper's GPU |" in text
    assert "ours of NVIDIA A40, and of the data" in text


def test_the_least_disturbed_seed_has_the_time_and_none_is_beaten_by_less_than_the_scatter(tmp_path):
    text = latent_blocks(tmp_path, [(160, 80, 144), (48, 48, 60)])
    assert "| elasticity | 1 | 0 | 9 | 300 ± 0 | 3 | 21.2 | 5.0 | 4.6 |" in text
    assert "their times differ by up to 2.0×: only of cells whose times differ by more" in text
    assert "beyond the scatter of both, as blocks/latent blocks: none." in text
    text = latent_blocks(tmp_path / "apart", [(160, 80, 144), (32, 32, 40)])
    assert "as blocks/latent blocks: 1/0 by 2/0 (5.0 and 2.0 s an epoch, 300 ± 0 and 100 ± 0). Seeds" in text
    text = latent_blocks(tmp_path / "equal", [(160, 80), (32, 32)], errors=(0.3, 0.3))
    assert "as blocks/latent blocks: none." in text


def test_seconds_of_the_cpu_are_taken_where_they_are_kept(tmp_path):
    text = latent_blocks(tmp_path, [(160,)], cpu_seconds=48.0)
    assert "| elasticity | 1 | 0 | 9 | 300 | 1 | 21.2 | 3.0 | 4.6 |" in text


def test_a_record_without_seconds_leaves_their_cell_empty(tmp_path):
    text = latent_blocks(tmp_path, [(0,)], errors=[0.1])
    assert "| elasticity | 1 | 0 | 9 | 100 | 1 | 21.2 |  | 4.6 |" in text
    assert "Beaten in both" not in text
    assert "seconds of" not in text
