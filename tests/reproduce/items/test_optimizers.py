"""The comparison of optimizers: equal settings, learning rates chosen by the records, and tables of what they say."""

import re
from pathlib import Path

import pytest

from flare.cli import main
from flare.data.batching import Subsample
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.items.optimizers import (
    CHOSEN,
    DATASETS,
    FACTORS,
    GROWTH,
    ITEM,
    OPTIMIZERS,
    best_factors,
    cells,
    chosen_factor,
    earliest,
    equal_steps,
)
from flare.reproduce.ledger import Ledger, Record, address
from flare.reproduce.registry import find_item, planned
from flare.reproduce.study import outcomes, select_cells
from flare.reproduce.tables import Table
from flare.train.presets import build_config

SMOKE, CPU, PAPER = (BUDGETS[name] for name in ("smoke", "cpu", "paper"))
RECORDS = Path(__file__).parents[3] / "results" / "records"


def settings_of(name):
    (cell,) = [cell for cell in cells(CPU) if "/".join(cell.parts) == name]
    return cell.job.settings()


def test_the_chosen_rates_are_those_with_the_lowest_recorded_validation_error():
    best = best_factors(o for o in outcomes(Ledger(RECORDS), cells(CPU)) if o.cell.parts[0] == "search")
    assert {key: chosen_factor(key) for key in best} == best


def test_every_chosen_rate_belongs_to_a_search():
    searched = {cell.parts[1:4] for cell in cells(CPU) if cell.parts[0] == "search"}
    assert set(CHOSEN) <= searched
    assert set(CHOSEN.values()) <= set(FACTORS.values())


def test_models_are_those_of_table_1_without_variants():
    table1 = {c.parts for c in find_item("table1").cells(CPU) if not c.extra and c.parts[1] != "transolver-conv"}
    assert {c.parts[:2] for c in cells(CPU) if not c.extra} == {parts for parts in table1 if parts[0] in DATASETS}


@pytest.mark.parametrize("model", ["flare", "gnot", "lno"])
def test_optimizers_differ_in_their_own_settings_alone(model):
    own = {"name", "lr", "rest_lr", "betas", "weight_decay"}
    runs = [settings_of(f"elasticity/{model}/{optimizer}/length=1") for optimizer in OPTIMIZERS]
    assert [run["optim"]["name"] for run in runs] == list(OPTIMIZERS)
    for run in runs:
        assert (run["optim"]["schedule"], run["optim"]["warmup"], run["optim"]["clip"]) == ("cosine", 0.1, 1.0)
        assert run["data"]["holdout"] == 40
        run["optim"] = {name: value for name, value in run["optim"].items() if name not in own}
    assert runs[0] == runs[1] == runs[2]


def test_a_search_scales_both_rates_and_has_a_quarter_of_the_epochs():
    rates = [settings_of(f"search/elasticity/lno/muon/lr={factor}") for factor in FACTORS]
    assert [run["optim"]["lr"] for run in rates] == [1e-3, 3e-3, 9e-3, 3e-2]
    assert [run["optim"]["rest_lr"] for run in rates] == [3.33e-4, 1e-3, 3e-3, 1e-2]
    assert {run["epochs"] for run in rates} == {2}
    assert settings_of("elasticity/lno/muon/length=1")["epochs"] == 8


def test_flare_has_shorter_runs_of_all_but_adamw_and_all_models_all_seeds_on_elasticity():
    lengths = ("1", "1-2", "1-3", "1-4")
    assert [settings_of(f"elasticity/flare/muon/length={n}")["epochs"] for n in lengths] == [32, 16, 11, 8]
    assert len(planned(ITEM, CPU, ["elasticity/flare"], None)) == 9 * 3
    assert len(planned(ITEM, CPU, ["darcy/flare"], None)) == 9
    assert len(planned(ITEM, CPU, ["elasticity/lno"], None)) == 3 * 3


@pytest.mark.parametrize(
    ("only", "first", "count"),
    [
        (None, set(DATASETS), 114),
        (["search"], {"search"}, 120),
        (["search/elasticity"], {"search"}, 72),
        (["elasticity/flare"], {"elasticity"}, 9),
        (["elasticity/flare/muon/length=1-3"], {"elasticity"}, 1),
        (["subsample/darcy"], {"subsample"}, 5),
        (["darcy"], {"darcy"}, 24),
    ],
)
def test_search_and_subsampling_are_done_when_named(only, first, count):
    found = select_cells(cells(CPU), only)
    assert {cell.parts[0] for cell in found} == first
    assert len(found) == count


def test_cells_of_one_group_have_names_and_jobs_of_their_own():
    found = cells(CPU)
    assert len({cell.parts for cell in found}) == len(found)
    for group in ("search", "inputs", "recipe", "subsample", *DATASETS):
        jobs = [address(cell.job) for cell in found if cell.parts[0] == group]
        assert len(jobs) == len(set(jobs)) > 0


@pytest.mark.parametrize("budget", [SMOKE, CPU, PAPER])
def test_settings_exist_and_agree(budget):
    for cell in select_cells(cells(budget), ["flare/adamw", "lno/muon/length=1", "subsample"]):
        assert build_config(cell.job.settings(), "/".join(cell.parts)).epochs == cell.job.settings()["epochs"]


@pytest.mark.parametrize("full", [7225, 11271, 16641])
@pytest.mark.parametrize(("drawn", "start"), [(1024, None), (4096, None), (None, None), (None, 1024)])
def test_runs_on_large_grids_process_equally_many_points(full, drawn, start):
    steps = equal_steps(20_480, 125, full, drawn, start)
    points = Subsample(drawn, start, GROWTH * steps / 125)
    processed = sum(points.of(full, step // 125) for step in range(steps))
    assert processed == pytest.approx(20_480 * 125, rel=0.01)


def test_an_error_is_reached_at_the_first_evaluation_of_any_run_that_has_it():
    goals = {0: (100.0, 0.2), 1: (100.0, 0.1)}
    runs = {0: [[(30.0, 0.3), (60.0, 0.2)], [(20.0, 0.25), (40.0, 0.15)]], 1: [[(50.0, 0.11)]]}
    assert earliest(goals, runs) == {0: 40.0}


def write(ledger, name, curves, test=0.5):
    """Record made-up runs of a cell, one curve of CPU seconds and validation errors for each seed."""
    (cell,) = [cell for cell in cells(CPU) if "/".join(cell.parts) == name]
    for seed, curve in enumerate(curves):
        result = {"rel_l2": test, "rel_l2_validation": curve[-1][1], "curve": [], "epochs": 3}
        ledger.write(cell.job.with_seed(seed), Record("done", result, made={"cpu_curve": curve}))


def rows(ledger):
    """All rows of all tables of the report."""
    return [
        tuple(row)
        for block in ITEM.report(outcomes(ledger, cells(CPU)), CPU)
        if isinstance(block, Table)
        for row in block.rows
    ]


def test_the_report_has_the_minutes_to_the_error_of_adamw_over_seeds(tmp_path):
    ledger = Ledger(tmp_path)
    write(ledger, "elasticity/flare/adamw/length=1", [[(60, 0.4), (120, 0.2)], [(60, 0.4), (180, 0.3)]])
    write(ledger, "elasticity/flare/muon/length=1", [[(90, 0.2), (120, 0.1)], [(90, 0.35), (120, 0.1)]])
    write(ledger, "elasticity/flare/muon/length=1-2", [[(60, 0.2)], [(60, 0.3)]])
    write(ledger, "elasticity/flare/soap/length=1", [[(60, 0.2)], [(60, 0.4)]])
    write(ledger, "pipe/lno/adamw/length=1", [[(60, 0.4)]])
    found = rows(ledger)
    rate = settings_of("elasticity/flare/adamw/length=1")["optim"]["lr"]
    assert ("flare", "AdamW", "32", f"{rate:g}", "500 ± 0", "250 ± 71", "2", "2.50 ± 0.71") in found
    reached = ("1.00; 1 of 2 seeds", "2.00×", "1.00 ± 0.00", "2.50 ± 0.71×")
    assert ("elasticity", "flare", "2.50 ± 0.71", *reached) in found
    assert ("pipe", "lno", "1.00", "", "", "", "") in found


def test_the_report_has_the_minutes_of_the_fastest_recipe_to_the_error_of_the_longest_run_with_adamw(tmp_path):
    ledger = Ledger(tmp_path)
    write(ledger, "recipe/elasticity/fourier=4+epochs=10", [[(30, 0.3), (60, 0.2)], [(30, 0.3), (60, 0.1)]])
    assert not any("× " in cell or cell.endswith("×") for row in rows(ledger) for cell in row)
    write(ledger, "recipe/elasticity/adamw+lr=3e-3+epochs=36", [[(120, 0.3), (240, 0.2)], [(90, 0.4), (180, 0.3)]])
    found = rows(ledger)
    assert ("adamw+lr=3e-3+epochs=36", "3.50 ± 0.71", "") in found
    assert ("fourier=4+epochs=10", "0.750 ± 0.354", "5.00 ± 1.41×") in found


def test_the_search_table_has_the_lowest_of_a_complete_search_in_bold(tmp_path):
    ledger = Ledger(tmp_path)
    searched = select_cells(cells(CPU), ["search/elasticity/lno/soap"])
    for factor, error in (("1-3", 0.3), ("1", 0.2), ("3", 0.4)):
        write(ledger, f"search/elasticity/lno/soap/lr={factor}", [[(60, error)]], test=1 - error)
    assert best_factors(outcomes(ledger, searched)) == {}
    assert ("elasticity", "lno", "SOAP", "0.003", "300", "200", "400", "") in rows(ledger)
    (last,) = select_cells(cells(CPU), ["search/elasticity/lno/soap/lr=10"])
    ledger.write(last.job, Record("failed", failure="TrainingDiverged: the loss is nan"))
    assert best_factors(outcomes(ledger, searched)) == {("elasticity", "lno", "soap"): 1.0}
    assert ("elasticity", "lno", "SOAP", "0.003", "300", "**200**", "400", "failed") in rows(ledger)


def test_search_and_subsampling_run_and_are_reported(tmp_path, capsys):
    only = "search/elasticity/flare/muon,subsample/darcy"
    words = ["--budget", "smoke", "--workers", "1", "--only", only, "--work", str(tmp_path)]
    assert main(["reproduce", "optimizers", *words]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\| elasticity \| flare \| Muon \| 0.003 \| .*\*\*\d+\*\*", printed)
    for points in ("16", "32", "all", "grow"):
        assert f"| darcy | points={points} | " in printed
    assert "optimizers-smoke-subsample-darcy.png" in printed
