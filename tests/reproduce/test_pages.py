"""Results pages from made-up records: every number of a record is in a table, in Markdown, CSV and LaTeX."""

import csv

import numpy as np
import pytest
import torch
import yaml

from flare.models.spectra import Spectra, effective_rank
from flare.reproduce import ITEMS, pages
from flare.reproduce.budgets import BUDGETS, budget_named
from flare.reproduce.items.spectra import rank_rows
from flare.reproduce.jobs import Training
from flare.reproduce.ledger import Ledger, Record, address
from flare.reproduce.pages import MARKER, write_pages, write_report
from flare.reproduce.registry import find_item
from flare.reproduce.study import outcomes, provenance, select_cells
from flare.utils.errors import DataError

CPU, PAPER = BUDGETS["cpu"], BUDGETS["paper"]


def cells(item, *only, budget=CPU):
    return select_cells(find_item(item).cells(budget), list(only) or None)


def records_for(cells, folder, errors):
    """Return a ledger with made-up errors, by parts of a cell and seed."""
    ledger = Ledger(folder / "records")
    for cell in cells:
        for seed, error in enumerate(errors(cell.parts)):
            result = {"rel_l2": error, "rel_l2_mean_field": 0.5, "parameters": 1234, "curve": [(1, error)]}
            ledger.write(cell.job.with_seed(seed), Record("done", result, made={"commit": "abc", "seconds": 60.0}))
    return ledger


def page(ledger, name, folder, *others):
    """Write the pages of some items, and return that of the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "ITEMS", [name, *others])
        write_pages(ledger, folder)
    return (folder / f"{name}.md").read_text()


def row(text, *start):
    """Return the cells of the first table row that begins with some cells."""
    begin = f"| {' | '.join(start)} |"
    line = next(line for line in text.splitlines() if line.startswith(begin))
    return [cell.strip() for cell in line.strip("|").split("|")]


FAILED = Record("failed", failure="TrainingDiverged: the loss is nan")


def test_a_row_has_mean_spread_mean_field_seeds_and_the_papers_number_and_failures_have_a_table(tmp_path):
    def errors(parts):
        return (0.010, 0.012, 0.014) if parts[1] == "flare" else (0.03, 0.031)

    ledger = records_for(cells("table1", "elasticity"), tmp_path, errors)
    (lno,) = cells("table1", "elasticity/lno")
    ledger.write(lno.job.with_seed(2), FAILED)
    text = page(ledger, "table1", tmp_path / "pages")
    assert row(text, "elasticity", "flare")[2:] == ["1,234", "12.0 ± 2.0", "500", "3", "3.38"]
    assert row(text, "elasticity", "lno")[2:] == ["1,234", "30.5 ± 0.7; failed", "500", "2 of 3", "9.25"]
    assert row(text, "elasticity/lno", "2") == ["elasticity/lno", "2", FAILED.failure]
    assert "; epochs 16 (500); " in text
    assert row(text, "flare", "**12.0 ± 2.0** (3.38)")
    latex = (tmp_path / "pages" / "tables" / "table1-cpu-1.tex").read_text()
    assert "Table 1: models × benchmarks, budget cpu" in latex.split("\\begin")[0]
    with (tmp_path / "pages" / "tables" / "table1-cpu-1.csv").open() as file:
        (flare,) = [line for line in csv.DictReader(file) if line["model"] == "flare"]
    assert (flare["elasticity, ours"], flare["elasticity, ours, spread"], flare["elasticity, paper"]) == (
        *("12.0", "2.0", "3.38"),
    )


def test_a_matrix_has_a_dash_where_there_is_no_cell_and_is_empty_without_a_record(tmp_path):
    ledger = records_for(cells("blocks-latents", "elasticity")[:-1], tmp_path, lambda parts: [0.1 / int(parts[1][7:])])
    text = page(ledger, "blocks-latents", tmp_path / "pages")
    assert row(text, "16", "100 (23.0)") == ["16", "100 (23.0)", "50.0 (9.94)", "25.0 (6.48)", "**12.5** (4.70)"]
    assert row(text, "64", "100 (22.0)")[-1] == ""
    both = [*cells("table1", "darcy/transformer"), *cells("table1", "darcy/flare")]
    text = page(records_for(both, tmp_path / "b", lambda parts: [0.1]), "table1", tmp_path / "b")
    assert row(text, "transformer", "", "**100** (4.38)")[3:] == ["", "–", "–", "–"]


def test_seeds_are_found_if_the_first_is_missing(tmp_path):
    (cell,) = cells("table1", "elasticity/flare")
    ledger = Ledger(tmp_path)
    for seed in (1, 2):
        ledger.write(cell.job.with_seed(seed), Record("done", {"rel_l2": 0.01 * seed}))
    (outcome,) = outcomes(ledger, [cell])
    assert (outcome.values(), outcome.seeds, outcome.first) == ([0.01, 0.02], "2", None)
    assert [job.seed for job in outcome.jobs] == [1, 2]


@pytest.mark.parametrize("item", ["blocks-latents", "head-dimension", "kv-depth", "ffn-depth", "latent-blocks"])
def test_a_figure_needs_two_points_of_ours(item, tmp_path):
    for count in (1, 2):
        ledger = records_for(cells(item)[:count], tmp_path / f"r{count}", lambda parts: [0.1])
        assert ("![" in page(ledger, item, tmp_path / f"p{count}")) == (count == 2)


def test_latent_blocks_have_the_seconds_of_an_epoch(tmp_path):
    (cell,) = cells("latent-blocks", "blocks=2/latent-blocks=1")
    ledger = Ledger(tmp_path / "records")
    for seed, seconds in enumerate((32.0, 48.0)):
        made = {"cpu_seconds": seconds, "seconds": 500.0}
        ledger.write(cell.job.with_seed(seed), Record("done", {"rel_l2": 0.1, "epochs": 16}, made=made))
    assert row(page(ledger, "latent-blocks", tmp_path / "p"), "elasticity", "2", "1")[-2:] == ["2.0", "7.6"]


def test_a_missing_count_is_empty_and_a_failed_one_is_marked(tmp_path):
    one, two, _ = cells("architectures", "flare")
    ledger = Ledger(tmp_path / "r")
    ledger.write(one.job, Record("done", {"parameters": 7, "flops": 2e9, "activations": 2**30}))
    ledger.write(two.job, Record("failed", failure="RuntimeError: no"))
    text = page(ledger, "architectures", tmp_path / "pages")
    assert row(text, "flare", "2BMN")[3:] == ["7", "2.0", "failed", "", "", ""]
    assert row(text, "flare", "yes")[1:] == ["yes", "yes", "yes", "no", "yes"]
    assert "RuntimeError: no" in text


@pytest.mark.parametrize("name", ITEMS)
def test_every_failure_of_an_item_is_listed(name, tmp_path):
    item, ledger = find_item(name), Ledger(tmp_path / "r")
    jobs = {address(job): job for cell in item.cells(CPU) for job in cell.jobs(1)}
    for where, job in jobs.items():
        ledger.write(job, Record("failed", failure=f"RuntimeError: no kernel for {where}"))
    text = write_report(item, ledger, CPU, tmp_path / "pages")
    assert not [job.label for where, job in jobs.items() if where not in text]


def test_records_of_published_files_have_a_section_of_their_own(tmp_path):
    found = cells("table1", "pipe/flare", budget=budget_named("paper", published=True))
    text = page(records_for(found, tmp_path, lambda parts: [0.003]), "table1", tmp_path / "pages")
    assert "flare reproduce table1 --budget paper --published\n" in text
    assert row(text, "pipe", "flare")[3:] == ["3.00", "500", "1", "2.85"]
    assert (tmp_path / "pages" / "tables" / "table1-paper-published-1.csv").exists()


def test_extra_cells_are_reproduced_by_name(tmp_path):
    found = [*cells("table1", "pipe/flare"), *cells("table1", "pipe/lno-8-blocks")]
    text = page(records_for(found, tmp_path, lambda parts: [0.1]), "table1", tmp_path / "pages")
    assert "```\nflare reproduce table1 --budget cpu\n" in text
    assert "flare reproduce table1 --budget cpu --only pipe/lno-8-blocks\n" in text
    assert row((tmp_path / "pages" / "README.md").read_text(), "[Table 1: models × benchmarks](table1.md)")[2:] == [
        *("`cpu`", "1 of 36", "1"),
    ]


def test_notes_and_claims_beside_the_records_are_included(tmp_path):
    ledger = records_for(cells("table1", "elasticity"), tmp_path, lambda parts: [0.01, 0.02])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "table1.md").write_text("We tried a larger rate as well.\n")
    (tmp_path / "notes" / "README.md").write_text("Read this first.\n")
    (tmp_path / "run.json").write_text('{"rel_l2": 0.002, "ranks": [[1, 3], [2, 2]]}')
    run = str((tmp_path / "run.json").relative_to(tmp_path.parent))
    claim = {"claim": "FLARE is best", "item": "table1", "holds": "✔ here"}
    numbers = {
        "flare": "elasticity/flare",
        "lno": {"cell": "elasticity/lno", "paper": "9", "key": "curve.0.1"},
        "run": {"file": run, "key": "rel_l2"},
        "ranks": {"file": run, "key": "ranks", "spread": True, "format": "{:.1f}"},
    }
    other = {"claim": "None", "item": "kv-depth", "numbers": {"a": "elasticity/depth=0/latents=64"}, "holds": "✔"}
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([claim | {"numbers": numbers}, other]))
    assert "\n\nWe tried a larger rate as well.\n\n```" in page(ledger, "table1", tmp_path / "pages")
    index = (tmp_path / "pages" / "README.md").read_text()
    assert row(index, "FLARE is best")[1:] == [
        "✔ here",
        "flare 15.0 ± 7.1 (3.38); lno 15.0 ± 7.1 (9); ranks 0.5; run 2.00",
        *("1, 2", "cpu", "[Table 1](table1.md)"),
    ]
    assert row(index, "None")[1:3] == ["", ""], "without a record no claim holds"
    assert "\n\nRead this first.\n\n" in index
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([claim | {"numbers": {"flare": "elasticity/flair"}}]))
    with pytest.raises(DataError, match="elasticity/flair"):
        page(ledger, "table1", tmp_path / "pages")


def test_an_unfinished_training_shows_its_last_epoch_and_its_curve(tmp_path):
    (cell,) = cells("table1", "elasticity/flare", budget=PAPER)
    ledger = Ledger(tmp_path / "r")
    curve = [(epoch, 1 / epoch) for epoch in range(10, 201, 10)]
    ledger.write(cell.job, Record("unfinished", {"curve": curve, "epochs": 500}))
    text = page(ledger, "table1", tmp_path / "pages")
    assert row(text, "elasticity", "flare")[3] == "5.00 at epoch 200 of 500"
    assert (tmp_path / "pages" / "images" / "table1-paper-learning-elasticity.png").exists()


def test_outdated_files_are_removed_and_files_of_others_stay(tmp_path):
    folder = tmp_path / "pages"
    pipe, kv = cells("table1", "pipe/flare"), cells("kv-depth", "depth=0", "depth=1")
    page(records_for([*pipe, *kv], tmp_path / "more", lambda parts: [0.01]), "table1", folder, "kv-depth")
    (folder / "an-old-item.md").write_text(f"{MARKER}\n")
    strangers = [folder / "mine.md", folder / "images" / "mine.png", folder / "tables" / "mine-1.csv"]
    for path in strangers:
        path.write_text("of a person")
    before = {path for path in folder.rglob("*") if path.is_file()}
    page(records_for(pipe, tmp_path / "fewer", lambda parts: [0.01]), "table1", folder, "kv-depth")
    after = {path for path in folder.rglob("*") if path.is_file()}
    assert {path.name for path in before - after if path.suffix != ".tex"} >= {
        *("kv-depth.md", "an-old-item.md", "kv-depth-cpu-kv-depth.png", "kv-depth-cpu-1.csv"),
    }
    assert all(path.name.startswith(("kv-depth", "an-old")) for path in before - after)
    assert after >= set(strangers)


def test_the_offset_of_the_authors_code_has_a_table_of_its_own(tmp_path):
    usual, offset = cells("table1", "lpbf/flare", "lpbf/flare-offset")
    ledger = Ledger(tmp_path / "r")
    common = {"parameters": 7, "curve": [(1, 0.4)]}
    plain = {"rel_l2": 0.4, "rel_l2_offset": 0.03, "offset": 0.0, "rel_l2_mean_field": 0.5}
    ledger.write(usual.job, Record("done", plain | common))
    ledger.write(offset.job, Record("done", {"rel_l2": 0.02, "offset": 1.318, "rel_l2_mean_field": 0.025, **common}))
    text = page(ledger, "table1", tmp_path / "pages")
    assert row(text, "lpbf", "flare-offset")[2:] == ["20.0", "25.0", "1", "18.5"]
    assert row(text, "lpbf", "flare", "7")[3:] == ["400", "500", "1"]
    assert row(text, "lpbf", "flare", "30.0")[3:] == ["", "1", "18.5"]
    assert "loss.offset default (code: 1.318; #12): flare" in text


def test_table_2_has_both_splits_the_trivial_baseline_and_the_models(tmp_path):
    found = cells("table2", "listops/flare", "listops/linear", budget=PAPER)
    ledger = Ledger(tmp_path / "r")
    for cell in found:
        result = {"accuracy": 0.3, "accuracies": {"val": 0.25, "test": 0.3}, "split": "test", "parameters": 5}
        result |= {"guesses": {"chance": {"test": 0.1}, "root operator": {"test": 0.36}}, "samples": {"test": 2000}}
        ledger.write(cell.job, Record("done", result | {"train_samples": 96_000, "steps": 10}))
    text = page(ledger, "table2", tmp_path / "pages")
    assert row(text, "listops", "flare", "own", "5")[4:] == ["25.0", "30.0", "36.0", "1", "36.15"]
    assert row(text, "listops", "", "96,000")[3:6] == ["", "2,000", "10"]
    assert "identity" in row(text, "listops", "linear", "own", "0.0005")


def test_attentions_with_numbers_of_all_five_tasks_have_an_average(tmp_path):
    found = [cell for cell in cells("table2", budget=PAPER) if cell.parts[1] in ("flare", "norm")]
    ledger = Ledger(tmp_path / "r")
    for cell in found[:-1]:
        result = {"accuracy": 0.3, "guesses": {"chance": {"test": 0.1}}, "split": "test", "parameters": 5}
        ledger.write(cell.job, Record("done", result | {"samples": {"test": 2000}}))
    text = page(ledger, "table2", tmp_path / "pages")
    assert row(text, "flare", "own") == ["flare", "own", "30.0", "58.06"]
    assert "\n| norm | own |" not in text


def spectra(*blocks):
    """Return spectra whose eigenvalues of each head decay as a power of the index."""
    powers = torch.tensor(blocks)
    values = powers[..., None] ** torch.arange(8.0)
    return Spectra(values, torch.zeros_like(values), 3)


def test_effective_ranks_and_spread_of_heads_are_tabulated(tmp_path):
    of = spectra((0.8, 0.9), (0.1, 0.9))
    ranks = effective_rank(of.eigenvalues)
    for block, text in enumerate(rank_rows(of)):
        want = (ranks[block].min(), ranks[block].mean(), ranks[block].max())
        assert text[:4] == (f"{block + 1}", *(f"{value:.1f}" for value in want))
        assert float(text[4]) == pytest.approx(float(abs(ranks[block, 0] - ranks[block, 1]) / 2), abs=0.01)
    ledger = Ledger(tmp_path / "r")
    for cell in cells("shared-latents", "spectra"):
        arrays = {"eigenvalues": of.eigenvalues.numpy(), "spread": of.spread.numpy()}
        ledger.write(cell.job, Record("done", {"rel_l2": 0.1, "samples": 3}), arrays)
    text = page(ledger, "shared-latents", tmp_path / "pages")
    assert text.count("![shared-latents-") == 2
    assert row(text, "independent", "2")[2:] == list(rank_rows(of)[1][1:])


def test_pictures_of_samples_are_shown_with_the_mean_errors(tmp_path):
    points = np.random.default_rng(0).random((30, 2), dtype=np.float32)
    arrays = {"points": points, "truth": points[:, :1], "prediction": points[:, 1:]}
    facts = {"index": 3, "of_samples": 5, "rel_l2": 0.3, "fields": ["stress"], "units": ["MPa"], "grid": None}
    elasticity, darcy, *_ = cells("qualitative")
    ledger = Ledger(tmp_path / "r")
    for cell in (elasticity, darcy):
        ledger.write(cell.job, Record("done", facts), arrays)
    ledger.write(elasticity.job.training, Record("done", {"rel_l2": 0.4, "rel_l2_mean_field": 0.5}))
    text = page(ledger, "qualitative", tmp_path / "pages")
    assert row(text, "elasticity", "300")[2:] == ["400", "500"]
    assert row(text, "darcy", "300")[2:] == ["", ""]
    assert text.count("![qualitative-") == 2


def test_provenance_adds_up_times_of_equal_versions_only_if_all_are_known(tmp_path):
    (cell,) = cells("table1", "elasticity/flare")
    ledger = Ledger(tmp_path)
    for seed, made in enumerate(
        (
            {"commit": "abc", "seconds": 60.0, "cpu_seconds": 50.0, "peak_memory_mb": 1000},
            {"commit": "abc", "seconds": 30.0, "cpu_seconds": None},
            {"commit": "abc+", "seconds": 10.0, "cpu_seconds": 5.0},
        )
    ):
        ledger.write(cell.job.with_seed(seed), Record("done", {"rel_l2": 0.1}, made={"processor": "an abacus", **made}))
    _, table = provenance(outcomes(ledger, [cell]))
    assert [(line[1], *line[4:]) for line in table.rows] == [
        ("abc", "2", "1 min 30 s", "", "1.0"),
        ("abc+", "1", "10 s", "5 s", ""),
    ]


def test_a_training_is_needed_for_seeds():
    assert all(len(cell.jobs(3)) == (3 if isinstance(cell.job, Training) else 1) for cell in cells("shared-latents"))
