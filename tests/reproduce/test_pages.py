"""What the pages of results say of the records: made-up errors, so that every sentence can be wrong."""

import numpy as np
import pytest

from flare.reproduce.budgets import BUDGETS, budget_named
from flare.reproduce.items import lpbf_statistics, million
from flare.reproduce.jobs import Training
from flare.reproduce.ledger import Ledger, Record, address
from flare.reproduce.names import ITEMS
from flare.reproduce.pages import write_pages, write_report
from flare.reproduce.registry import item_named
from flare.reproduce.study import READ_OFF, _times, chosen, outcomes

CPU, PAPER = BUDGETS["cpu"], BUDGETS["paper"]


def records_for(cells, folder, errors, failed=()):
    """A ledger with made-up errors, by parts of a cell and seed."""
    ledger = Ledger(folder)
    for cell in cells:
        for seed, error in enumerate(errors(cell.parts)):
            result = {"rel_l2": error, "rel_l2_mean_field": 0.5, "parameters": 1234, "curve": [(1, error)]}
            ledger.write(cell.job.with_seed(seed), Record("done", result, made={"commit": "abc", "seconds": 60.0}))
        if cell.parts in failed:
            ledger.write(cell.job.with_seed(seed + 1), Record("failed", failure="TrainingDiverged: the loss is nan"))
    return ledger


def elasticity():
    return [c for c in chosen(item_named("table1").cells(CPU), None) if c.parts[0] == "elasticity"]


def test_a_page_has_mean_spread_paper_and_departures_in_one_row_and_a_failure_says_so(tmp_path):
    def errors(parts):
        return (0.010, 0.012, 0.014) if parts[1] == "flare" else (0.03, 0.031)

    ledger = records_for(elasticity(), tmp_path / "r", errors, failed=[("elasticity", "lno")])
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table1.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| elasticity | flare |"))
    assert "| 1,234 | 12.0 ± 2.0 | 3 | 3.38 (3.38 to 3.85 for this setting and seed in the authors' material) | " in row
    assert "| data of our solver; 400+100 of 1000+200 samples; " in row
    assert "16 epochs with a schedule of their own, not 500; blocks 4, not 8; channels 32, not 64" in row
    assert "normalise.points gaussian, not identity" in row
    row = next(line for line in text.splitlines() if line.startswith("| elasticity | lno |"))
    assert "failed: TrainingDiverged: the loss is nan | 2 of 3 | 9.25 |" in row
    assert "FLARE is the lowest. Seeds that failed: lno 1 of 3." in text
    assert "No difference beyond" not in text


def test_the_sentence_on_the_lowest_names_failed_and_missing_models_and_spreads_that_overlap(tmp_path):
    cells = [cell for cell in elasticity() if cell.parts[1] not in ("gnot", "lno")]
    near = {"flare": (0.010, 0.014), "transolver": (0.012, 0.016)}
    ledger = records_for(cells, tmp_path / "r", lambda parts: near.get(parts[1], (0.03, 0.031)))
    (lno,) = [cell for cell in elasticity() if cell.parts[1] == "lno"]
    ledger.write(lno.job, Record("failed", failure="TrainingDiverged: the loss is nan"))
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table1.md").read_text()
    assert (
        "FLARE is the lowest of those with numbers by its mean. No difference beyond the spread from transolver "
        "(14.0 ± 2.8)." in text
    )
    assert " Failed: lno. No record yet: gnot." in text


def test_what_no_record_gives_any_more_is_removed_and_what_others_put_there_stays(tmp_path):
    folder = tmp_path / "pages"
    pipe = chosen(item_named("table1").cells(CPU), ["pipe/flare"])
    kv = chosen(item_named("kv-depth").cells(CPU), ["depth=0", "depth=1"])
    write_pages(records_for([*pipe, *kv], tmp_path / "more", lambda parts: [0.01]), folder)
    (folder / "an-item-of-old.md").write_text((folder / "kv-depth.md").read_text())
    strangers = [folder / "mine.md", folder / "images" / "mine.png", folder / "tables" / "mine-1.csv"]
    for path in strangers:
        path.write_text("of a person")
    before = {path for path in folder.rglob("*") if path.is_file()}
    write_pages(records_for(pipe, tmp_path / "fewer", lambda parts: [0.01]), folder)
    gone = before - {path for path in folder.rglob("*") if path.is_file()}
    assert {str(path.relative_to(folder)) for path in gone} == {
        *("kv-depth.md", "an-item-of-old.md", "images/kv-depth-cpu-kv-depth.png"),
        *("tables/kv-depth-cpu-1.csv", "tables/kv-depth-cpu-1.tex"),
    }


def test_seeds_are_found_wherever_one_is_missing(tmp_path):
    (cell,) = [cell for cell in elasticity() if cell.parts[1] == "flare"]
    ledger = Ledger(tmp_path)
    for seed in (1, 2):
        ledger.write(cell.job.with_seed(seed), Record("done", {"rel_l2": 0.01 * seed}))
    (outcome,) = outcomes(ledger, [cell])
    assert (outcome.values(), outcome.seeds, outcome.first) == ([0.01, 0.02], "2", None)
    assert [job.seed for job in outcome.jobs] == [1, 2]


def test_the_page_says_plainly_when_flare_is_not_the_lowest(tmp_path):
    ledger = records_for(elasticity(), tmp_path / "r", lambda parts: [0.01 if parts[1] == "lno" else 0.6])
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table1.md").read_text()
    assert "FLARE is **not** the lowest: lno is." in text
    assert "No better than that field: transformer, perceiver, gnot, transolver, flare." in text


def test_the_page_says_whether_error_falls_with_blocks_and_whose_latents_are_better(tmp_path):
    blocks = [c for c in item_named("blocks-latents").cells(CPU) if c.parts[0] == "elasticity"]
    falling = records_for(blocks, tmp_path / "a", lambda parts: [0.1 / int(parts[1].split("=")[1])])
    write_pages(falling, tmp_path / "falling")
    assert "the error falls with every step" in (tmp_path / "falling" / "blocks-latents.md").read_text()
    rising = records_for(blocks, tmp_path / "b", lambda parts: [0.1 * int(parts[1].split("=")[1])])
    write_pages(rising, tmp_path / "rising")
    told = (tmp_path / "rising" / "blocks-latents.md").read_text()
    assert "does **not** fall" in told
    assert ", 400 to 800). Of one seed, so without a spread: all." in told
    lone = records_for(blocks[:1], tmp_path / "d", lambda parts: [0.1])
    write_pages(lone, tmp_path / "lone")
    told = (tmp_path / "lone" / "blocks-latents.md").read_text()
    assert "too few cells have numbers to say whether the error falls" in told
    assert "falls with every step" not in told
    falling.write(blocks[1].job, Record("failed", failure="TrainingDiverged: the loss is nan"))
    write_pages(falling, tmp_path / "gap")
    told = (tmp_path / "gap" / "blocks-latents.md").read_text()
    assert "falls with every step to more blocks, of the 4 of 6 steps that have both numbers." in told
    assert "Failed: blocks=2/latents=16." in told
    falling.write(blocks[0].job.with_seed(1), Record("failed", failure="TrainingDiverged: the loss is nan"))
    write_pages(falling, tmp_path / "lost")
    told = (tmp_path / "lost" / "blocks-latents.md").read_text()
    assert "Seeds that failed: blocks=1/latents=16 1 of 2. Failed: blocks=2/latents=16." in told
    trainings = [c for c in item_named("shared-latents").cells(CPU) if isinstance(c.job, Training)]
    ledger = records_for(trainings, tmp_path / "c", lambda parts: [0.02 if parts[2] == "shared" else 0.01])
    write_pages(ledger, tmp_path / "shared")
    told = (tmp_path / "shared" / "shared-latents.md").read_text()
    better = "blocks=8: independent latents are better (independent 10.0, shared 20.0)."
    assert f"{better} Of one seed, so without a spread: all." in told
    near = {"independent": (0.298 - 0.016, 0.298 + 0.016), "shared": (0.2985 - 0.014, 0.2985 + 0.014)}
    write_pages(records_for(trainings, tmp_path / "e", lambda parts: near[parts[2]]), tmp_path / "near")
    told = (tmp_path / "near" / "shared-latents.md").read_text()
    assert "Blocks=1: no difference beyond the spread (independent 298 ± 23, shared 298 ± 20); blocks=2: no" in told
    assert "are better" not in told


def test_the_page_says_whether_error_falls_with_latents_here_and_in_the_paper(tmp_path):
    blocks = [c for c in item_named("blocks-latents").cells(CPU) if c.parts[0] == "elasticity"]
    errors = {1: {16: (0.29, 0.31), 64: (0.28, 0.31)}, 2: {16: (0.2, 0.21), 64: (0.1, 0.11)}}
    errors |= {4: {16: (0.1,), 64: (0.2,)}, 8: {16: (0.1,), 64: ()}}

    def made_up(parts):
        depth, latents = (int(part.split("=")[1]) for part in parts[1:])
        return errors[depth][latents]

    write_pages(records_for(blocks, tmp_path / "a", made_up), tmp_path / "pages")
    told = (tmp_path / "pages" / "blocks-latents.md").read_text()
    assert (
        "elasticity, more latents at a fixed number of blocks: "
        "no difference beyond the spread from 16 to 64 latents at 1 (300 ± 14 to 295 ± 21) blocks; "
        "the error falls from 16 to 64 latents at 2 (205 ± 7 to 105 ± 7) blocks; "
        "the error does **not** fall from 16 to 64 latents at 4 (100 to 200) blocks. "
        "Of one seed, so without a spread: blocks=4/latents=16, blocks=4/latents=64. "
        "In the paper, of one seed: the error falls from 16 to 64 latents at 1 (23.0 to 22.0), 4 (6.48 to 5.23) "
        "blocks; the error does **not** fall from 16 to 64 latents at 2 (9.94 to 9.99) blocks.\n"
    ) in told
    write_pages(records_for(blocks[:2], tmp_path / "b", lambda parts: [0.1]), tmp_path / "few")
    told = (tmp_path / "few" / "blocks-latents.md").read_text()
    assert "elasticity: no number of blocks has numbers of two numbers of latents yet." in told


@pytest.mark.parametrize("item", ["blocks-latents", "head-dimension", "kv-depth", "ffn-depth", "latent-blocks"])
def test_a_picture_takes_two_points_of_ours(item, tmp_path):
    cells = item_named(item).cells(CPU)
    for count in (1, 2):
        write_pages(records_for(cells[:count], tmp_path / f"r{count}", lambda parts: [0.1]), tmp_path / f"p{count}")
        text = (tmp_path / f"p{count}" / f"{item}.md").read_text()
        assert ("![" in text) == (count == 2)


def test_no_number_of_latent_blocks_wins_where_there_is_nothing_to_beat(tmp_path):
    cells = item_named("latent-blocks").cells(CPU)
    ledger = records_for(cells[:1], tmp_path / "r", lambda parts: [0.1])
    for cell in cells[1:]:
        ledger.write(cell.job, Record("failed", failure="TrainingDiverged: the loss is nan"))
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "latent-blocks.md").read_text()
    assert "Lowest" not in text
    assert "No number of blocks has two cells with numbers yet. Failed: " in text


def test_a_count_that_is_missing_is_an_empty_cell_and_only_a_failed_one_says_so(tmp_path):
    cells = [cell for cell in item_named("architectures").cells(CPU) if cell.parts[0] == "flare"]
    ledger = Ledger(tmp_path / "r")
    ledger.write(cells[0].job, Record("done", {"parameters": 7, "flops": 2e9, "activations": 2**30}))
    ledger.write(cells[1].job, Record("failed", failure="RuntimeError: no"))
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "architectures.md").read_text()
    assert "| flare | 2BMN | 2BMN | 7 | 2.0 | failed |  |  |  |" in text
    assert "| flare | yes | yes | yes | no | yes |" in text
    assert "Failed: flare/points=10000: RuntimeError: no." in text


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_of_which_everything_has_failed_says_so_of_every_job(name, tmp_path):
    item, ledger = item_named(name), Ledger(tmp_path / "r")
    jobs = {address(job): job for cell in item.cells(CPU) for job in cell.jobs(1)}
    for where, job in jobs.items():
        ledger.write(job, Record("failed", failure=f"RuntimeError: no kernel for {where}"))
    text = write_report(item, ledger, CPU, tmp_path / "pages")
    assert not [job.label for where, job in jobs.items() if where not in text]


def test_records_of_published_files_have_a_section_of_their_own(tmp_path):
    published = budget_named("paper", published=True)
    (cell,) = chosen(item_named("table1").cells(published), ["pipe/flare"])
    ledger = records_for([cell], tmp_path / "r", lambda parts: [0.003])
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table1.md").read_text()
    assert "Done again by `flare reproduce table1 --budget paper --published`." in text
    assert "## Budget `paper`, published files: " in text
    assert "| pipe | flare | 1,234 | 3.00 | 1 | 2.85 | norms without weight decay (#15) |" in text
    assert "Numbers such as (#15) are those of [discrepancies](../discrepancies.md)" in text
    assert (tmp_path / "pages" / "tables" / "table1-paper-published-1.csv").exists()


def test_what_people_say_of_an_item_ends_its_page_and_is_marked_as_theirs(tmp_path):
    ledger = records_for(elasticity(), tmp_path / "records", lambda parts: [0.01])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "table1.md").write_text("We tried a larger rate as well.\n")
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table1.md").read_text()
    assert text.endswith("\n## Remarks, written by hand\n\nWe tried a larger rate as well.\n")


def test_an_unfinished_training_is_a_row_that_says_how_far_it_is(tmp_path):
    (cell,) = chosen(item_named("table1").cells(PAPER), ["elasticity/flare"])
    ledger = Ledger(tmp_path / "r")
    curve = [(epoch, 1 / epoch) for epoch in range(10, 201, 10)]
    ledger.write(cell.job, Record("unfinished", {"curve": curve, "epochs": 500}))
    write_pages(ledger, tmp_path / "pages")
    assert "5.00 at epoch 200 of 500, unfinished" in (tmp_path / "pages" / "table1.md").read_text()
    assert (tmp_path / "pages" / "images" / "table1-paper-learning-elasticity.png").exists()


def million_record(cell, data):
    """As the study of a cell would leave it, with one row."""
    row = {"blocks": 8, "latents": 512, "parameters": 5, "seconds": 1.0, "peak_mb": 1.0}
    row |= {"rel_l2": 0.5, "mean_field": 0.4}
    about = {"data": data, "points": 1_000_000, "subsample": None, "left_out": [], "rows": [row]}
    return {**million.USUAL, **cell.job.settings, **about}


def test_a_million_points_say_that_their_steps_are_of_one_seed():
    (cell,) = item_named("million").cells(PAPER)
    record = million_record(cell, "drivaerml")
    assert "one seed" not in million._verdict(record), "there is no step to judge"
    record["rows"].append(record["rows"][0] | {"blocks": 4, "rel_l2": 0.6})
    falls = "512 latents, 4, 8 blocks: the error falls with every step to more blocks. Of one seed, so"
    assert falls in million._verdict(record)
    record["rows"][1]["rel_l2"] = 0.45
    told = million._verdict(record)
    assert "the error does **not** fall at every step to more blocks (4 to 8 blocks, 0.4500 to 0.5000). Of" in told


def test_a_million_points_say_how_many_samples_they_have_and_what_of_the_papers_grid_is_missing():
    (cell,) = item_named("million").cells(CPU)
    record = million_record(cell, "darcy")
    assert "8 training samples, 20 times each: 160 steps of one sample each" in million._how(record)
    assert "judged on all points of 2 test samples" in million._how(record)
    (row,) = million._with_paper(record, {}).rows
    assert "darcy, not DrivAerML; 8+2 of 387+97 samples; 160 steps with a schedule of their own, not 193,500" in row[-1]
    assert "and latents M not done here: M = 128, 1024, 2048; B = 1, 2, 4." in million._verdict(record)
    whole = [record["rows"][0] | {"blocks": b, "latents": m} for b in million.BLOCKS for m in million.LATENTS]
    assert "not done here" not in million._verdict(record | {"rows": whole})
    cars = million_record(cell, "drivaerml") | {"samples": [387, 97]}
    assert "+97 samples" not in "; ".join(million._departures(cars))


def test_the_papers_study_of_a_million_points_is_in_its_precision_with_its_constants():
    (cell,) = item_named("million").cells(budget_named("paper", published=True))
    assert cell.job.settings == {"steps": 193_500, "limit_seconds": 1e9, "precision": "16", "constants": True}
    record = million_record(cell, "drivaerml")
    table = million._with_paper(record, {"cuda:0": "an H100"})
    assert table.rows[0][-2:] == ["0.0060", ""]
    assert "No better than the mean field, blocks × latents: 8 × 512." in million._verdict(record)


def test_no_number_of_the_paper_stands_beside_the_stand_in_for_its_cars():
    assert all(cell.paper is None for cell in item_named("table1").cells(PAPER) if cell.parts[0] == "cars")
    published = item_named("table1").cells(budget_named("paper", published=True))
    (cell,) = chosen(published, ["cars/flare"])
    assert (cell.job.on.name, cell.paper) == ("drivaerml", pytest.approx(0.0608))
    (cell,) = item_named("million").cells(PAPER)
    ours = million_record(cell, "car-potential")
    table = million._with_paper(ours, {"cuda:0": "an H100"})
    assert READ_OFF not in table.head
    assert "none of its errors stands beside" in million._verdict(ours)
    assert table.rows[0][-1] == "car-potential, not DrivAerML; normalised by the training samples"


def test_the_page_of_table_2_says_who_is_best_and_shows_the_papers_accuracy_under_its_own_budget(tmp_path):
    cells = [cell for cell in chosen(item_named("table2").cells(PAPER), None) if cell.parts[0] == "listops"]
    ledger = Ledger(tmp_path / "r")
    for number, cell in enumerate(cells):
        guesses = {"majority class": {"test": 0.17}}
        result = {"accuracy": 0.3 + 0.01 * number, "guesses": guesses, "split": "test", "samples": {"test": 2000}}
        ledger.write(cell.job, Record("done", result | {"parameters": 5, "curve": []}, made={"commit": "abc"}))
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table2.md").read_text()
    above = "test: 13.0 points above the majority class"
    departs = "samples of our generator; judged on test with masks, not on dev without (#20); "
    departs += "latents without weight decay (#15)"
    assert f"| listops | flare | own | 5 |  | 30.0 | 1 | 36.15 | {above} | {departs} |" in text
    assert "FLARE is **not** the best: performer is." in text
    assert "Averages" not in text


def test_attentions_with_numbers_of_all_five_tasks_have_an_average(tmp_path):
    cells = [cell for cell in chosen(item_named("table2").cells(PAPER), None) if cell.parts[1] in ("flare", "norm")]
    ledger = Ledger(tmp_path / "r")
    for cell in cells[:-1]:
        guesses = {"majority class": {"test": 0.17}}
        result = {"accuracy": 0.4, "accuracies": {"val": 0.3, "test": 0.4}, "guesses": guesses, "split": "test"}
        ledger.write(cell.job, Record("done", result | {"parameters": 5, "curve": [], "samples": {"test": 2000}}))
    assert cells[-1].parts[1] == "norm"
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table2.md").read_text()
    assert "| flare | own | 40.0 | 58.06 |" in text
    assert "| norm | own | 40.0 |" not in text
    assert "| listops | flare | own | 5 | 30.0 | 40.0 |" in text


def test_a_page_says_what_a_spread_is_where_it_has_one(tmp_path):
    for name, errors, there in (("a", (0.01, 0.012), True), ("b", (0.01,), False)):
        ledger = records_for(elasticity(), tmp_path / name, lambda parts, errors=errors: errors)
        write_pages(ledger, tmp_path / f"pages-{name}")
        text = (tmp_path / f"pages-{name}" / "table1.md").read_text()
        assert (text.count("mean ± sample standard deviation (n − 1) over the seeds") == 1) == there
        assert ("Two spreads overlap when the means differ by no more than both deviations together" in text) == there


@pytest.mark.parametrize(
    ("item", "axis", "papers"), [("head-dimension", "width", 4), ("kv-depth", "depth", 5), ("ffn-depth", "depth", 5)]
)
def test_an_ablation_says_which_is_lowest_beside_the_papers_and_what_is_missing(item, axis, papers, tmp_path):
    cells = item_named(item).cells(CPU)
    value = [cell.parts[1].split("=")[1] for cell in cells]
    errors = {cells[1].parts: (0.10, 0.12), cells[2].parts: (0.11, 0.13), cells[3].parts: (0.2, 0.21)}
    ledger = records_for(cells[1:4], tmp_path / "r", lambda parts: errors[parts])
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / f"{item}.md").read_text()
    axes = item_axis(item)
    start = f"\n3 of the {len(cells)} {axes}s only. Lowest with 64 latents: {axes} {value[1]}, 110 ± 14. "
    assert f"{start}No difference beyond the spread from {value[2]} (120 ± 14)." in text
    assert f"The paper's lowest of {', '.join(value)}: {papers}." in text
    assert f"No record yet: {axis}={value[0]}/latents=64, {axis}={value[4]}/latents=64" in text
    readme = (tmp_path / "pages" / "README.md").read_text()
    assert f"({item}.md): `cpu`, 3 of {len(cells)} cells\n" in readme
    alone = records_for(cells[:1], tmp_path / "alone", lambda parts: [0.1])
    write_pages(alone, tmp_path / "one")
    assert "Too few cells have numbers to say which" in (tmp_path / "one" / f"{item}.md").read_text()
    assert (tmp_path / "pages" / "images" / f"{item}-cpu-{item}.png").exists()
    assert not (tmp_path / "one" / "images").exists(), "a point is no curve"


def item_axis(item):
    return {"head-dimension": "head width", "kv-depth": "K/V depth", "ffn-depth": "FFN depth"}[item]


def test_histograms_of_an_older_record_of_parts_have_the_units_that_it_lacks(tmp_path, monkeypatch):
    (cell,) = item_named("lpbf").cells(CPU)
    arrays = {"height": np.ones(2), "largest von_mises": np.ones(2), "gallery.png": np.zeros(1, np.uint8)}
    ledger, drawn = Ledger(tmp_path / "r"), {}
    result = {"landmarks": {}, "units": {"height": "", "largest von_mises": "MPa"}, "samples": 2}
    ledger.write(cell.job, Record("done", result), arrays)
    monkeypatch.setattr(lpbf_statistics, "number_histograms", lambda numbers: drawn.update(numbers))
    monkeypatch.setattr(lpbf_statistics, "png", lambda figure: b"")
    *_, older, _ = item_named("lpbf").report(ledger, CPU)
    assert older.caption.endswith(" Colours from the least to the largest value.")
    ledger.write(cell.job, Record("done", result | {"gallery": "Colours by percentiles."}), arrays)
    *_, newer, _ = item_named("lpbf").report(ledger, CPU)
    assert newer.caption.endswith(" Colours by percentiles.")
    assert {title: unit for title, (unit, _) in drawn.items()} == {"height": "mm", "largest von_mises": "MPa"}


def test_benchmarks_without_records_are_named(tmp_path):
    ledger = records_for(elasticity(), tmp_path / "r", lambda parts: [0.01])
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table1.md").read_text()
    assert "No record yet of any model: darcy, airfoil, pipe, cars, lpbf." in text
    assert "darcy: none of its 8 cells has a number yet." in (tmp_path / "pages" / "blocks-latents.md").read_text()


def test_a_page_has_all_commands_that_it_takes_and_the_sizes_of_its_tasks(tmp_path):
    cells = [cell for cell in item_named("table2").cells(CPU) if len(cell.parts) == 2]
    ledger = Ledger(tmp_path / "r")
    for cell in cells:
        result = {"accuracy": 0.3, "guesses": {"chance": {"test": 0.1}}, "split": "test", "samples": {"test": 2000}}
        result |= {"parameters": 5, "curve": [], "train_samples": 50_000, "steps": 1500}
        ledger.write(cell.job, Record("done", result))
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table2.md").read_text()
    usual = "`flare reproduce table2 --budget cpu`"
    assert f"Done again by {usual}; {usual[:-1]} --only image-small` (which fetches files)." in text
    assert "image-small (side 8, levels 16): 50,000 samples to train, to judge 2,000 of test; 1,500 steps of 64" in text


def test_the_last_line_explains_times_of_a_busy_machine_and_commits_with_a_plus(tmp_path):
    cells, told = elasticity(), {}
    for name, made in (
        ("old", {"commit": "abc+", "seconds": 60.0, "processor": "an abacus, 1 threads for torch"}),
        ("new", {"commit": "abc", "seconds": 60.0, "processor": "an abacus, 1 thread for torch", "cpu_seconds": 50.0}),
        (
            "calls",
            {"commit": "abc", "seconds": None, "cpu_seconds": 948.0, "processor": "an abacus, 1 thread for torch"},
        ),
    ):
        ledger = Ledger(tmp_path / name)
        result = {"rel_l2": 0.1, "rel_l2_mean_field": 0.5, "parameters": 7, "curve": [(1, 0.1)]}
        ledger.write(cells[0].job, Record("done", result, made=made))
        write_pages(ledger, tmp_path / f"pages-{name}")
        told[name] = (tmp_path / f"pages-{name}" / "table1.md").read_text()
    assert "1 min 00 s in all by the clock of a machine that did other work, too" in told["old"]
    assert all("an abacus, 1 thread for torch;" in text for text in told.values())
    assert "A + behind a commit: some files were not as it has them." in told["old"]
    assert "1 min 00 s in all, 50 s of CPU.*" in told["new"]
    assert "; 15 min 48 s of CPU, by the clock not kept.*" in told["calls"]
    timed, untimed = {"seconds": 60.0, "cpu_seconds": 50.0}, {"seconds": None, "cpu_seconds": 948.0}
    assert _times([timed, untimed]) == "1 min 00 s for 1 of the 2 (the others kept no time), 50 s of CPU"
    assert "other work" not in told["new"]
    assert " GB" not in told["new"], "no record has its memory"
    assert "A + behind" not in told["new"]


def test_an_order_on_small_tasks_comes_with_what_it_does_not_show(tmp_path):
    cells = chosen(item_named("table2").cells(CPU), ["listops-small"]) + chosen(
        item_named("table2").cells(CPU), ["image-small"]
    )
    ledger = Ledger(tmp_path / "r")
    for cell in cells:
        result = {"accuracy": 0.3, "guesses": {"chance": {"test": 0.1}}, "split": "test", "samples": {"test": 2000}}
        ledger.write(cell.job, Record("done", result | {"parameters": 5, "curve": []}))
    write_pages(ledger, tmp_path / "pages")
    text, readme = ((tmp_path / "pages" / name).read_text() for name in ("table2.md", "README.md"))
    kernel = "linear (kernel elu + 1; there kernel identity)"
    features = "performer (32 orthogonal random features; there 256 simple random features)"
    for rate in ("0.002", "0.001"):
        told = f"One rate for all, {rate}, tried out with FLARE alone: another attention might do better with its own."
        told += f" Not what the published runs have: {kernel}, {features}."
        assert told in text
        assert told in readme
    assert "*listops-small: all 64 channels, 3 blocks, 8 heads, rate 0.002. Of their own: flare 32 latents; " in text
    row = next(line for line in text.splitlines() if line.startswith("| image-small | linear |"))
    assert "(64 channels, 2 blocks, 8 heads, rate 0.001; kernel elu + 1), no setting of the paper |" in row
    part = "small versions of 1 of the paper's 5 tasks (listops), and beside of image"
    assert f"(table2.md): `cpu`, 6 of 6 cells and 6 extra: {part}\n" in readme


def test_the_papers_tasks_have_its_kernels_and_no_caveat_of_small_ones(tmp_path):
    (cell,) = chosen(item_named("table2").cells(PAPER), ["listops/linear"])
    ledger = Ledger(tmp_path / "r")
    result = {"accuracy": 0.3, "guesses": {"chance": {"test": 0.1}}, "split": "test", "samples": {"test": 2000}}
    ledger.write(cell.job, Record("done", result | {"parameters": 5, "curve": []}))
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table2.md").read_text()
    assert "linear kernel identity" in text
    assert "tried out" not in text
    assert "1 of 30 cells: 1 of the paper's 5 tasks\n" in (tmp_path / "pages" / "README.md").read_text()


def test_table_1_is_seen_at_a_glance_before_its_rows(tmp_path):
    cells = [c for c in chosen(item_named("table1").cells(CPU), None) if c.parts[0] in ("elasticity", "darcy", "lpbf")]
    errors = {"flare": (0.10, 0.12), "lno": (0.2, 0.22)}
    shown = [c for c in cells if c.parts[1] in errors or c.parts == ("darcy", "transformer")]
    ledger = records_for(shown, tmp_path / "r", lambda parts: errors.get(parts[1], (0.05, 0.06)))
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "table1.md").read_text()
    head = "| model | elasticity | darcy | airfoil | pipe | cars | lpbf |"
    assert text.index(head) < text.index("| dataset | model |")
    assert "| flare | **110 ± 14** (3.38) | 110 ± 14 (5.10) |  |  |  | **110 ± 14** |" in text
    assert "| transformer |  | **55.0 ± 7.1** (4.38) |  | – | – | – |" in text
    assert "| lno | 210 ± 14 (9.25) | 210 ± 14 (7.64) |  |  |  | 210 ± 14 |" in text
    (line,) = (tmp_path / "pages" / "tables" / "table1-cpu-1.csv").read_text().splitlines()[:1]
    assert line.startswith('model,"elasticity, ours","elasticity, ours, spread","elasticity, paper",')
    latex = (tmp_path / "pages" / "tables" / "table1-cpu-1.tex").read_text()
    comments = " ".join(line.lstrip("% ") for line in latex.split("\\begin")[0].splitlines())
    assert "Table 1: models × benchmarks, budget cpu: " in comments
    assert "rel-L2 × 1e-3: ours, and in brackets the paper's" in comments
    assert "in bold the lowest mean of ours in a column. Numbers with ±: mean ± sample" in comments
    latex = (tmp_path / "pages" / "tables" / "table1-cpu-2.tex").read_text()
    assert "docs/discrepancies.md" in latex.split("\\begin")[0]
    assert "in bold" not in latex


def test_blocks_by_latents_are_seen_at_a_glance(tmp_path):
    cells = [c for c in item_named("blocks-latents").cells(CPU) if c.parts[0] == "elasticity"]
    ledger = records_for(cells[:-1], tmp_path / "r", lambda parts: [0.1 / int(parts[1].split("=")[1])])
    write_pages(ledger, tmp_path / "pages")
    text = (tmp_path / "pages" / "blocks-latents.md").read_text()
    assert "| latents | 1 | 2 | 4 | 8 |" in text
    assert "| 16 | 100 (23.0) | 50.0 (9.94) | 25.0 (6.48) | **12.5** (4.70) |" in text
    assert "| 64 | 100 (22.0) | 50.0 (9.99) | 25.0 (5.23) |  |" in text
