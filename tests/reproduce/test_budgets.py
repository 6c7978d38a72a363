"""Budgets: sizes of datasets, models and trainings, and their estimated time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flare.data.benchmarks.cards import card
from flare.reproduce.budgets import BENCHMARKS, BUDGETS, budget_named
from flare.reproduce.estimate import making_seconds, points
from flare.reproduce.items.layer_costs import make_layer
from flare.reproduce.items.table1 import VARIANTS
from flare.reproduce.jobs import Data, recipe
from flare.reproduce.ledger import Ledger, Record, address
from flare.reproduce.registry import find_item, list_items, planned, select_items
from flare.reproduce.study import select_cells
from flare.train.presets import build_config
from flare.utils.errors import ConfigError

CPU, PAPER = BUDGETS["cpu"], BUDGETS["paper"]


def test_the_paper_budget_has_the_papers_samples():
    for name in BENCHMARKS:
        data = PAPER.scales[name].data
        sizes = card(data.name).samples
        assert (data.samples - data.test, data.test, dict(data.options)) == (sizes["train"], sizes["test"], {})


def test_every_variant_is_a_setting_that_exists_and_differs():
    usual = {c.parts: c for c in find_item("table1").cells(PAPER) if not c.extra}
    extra = [c for c in find_item("table1").cells(PAPER) if c.extra]
    assert len(extra) > 20
    for cell in {c.parts[1]: c for c in extra}.values():
        build_config(cell.job.settings(), "/".join(cell.parts))
        assert cell.job.definition() != usual[cell.parts[0], cell.job.model].job.definition()
        assert set(cell.discrepancies.values()) == {VARIANTS[cell.parts[1]].number}


def test_the_papers_two_studies_of_scaling_have_its_layers():
    single, mixed = (cell.job.settings for cell in find_item("scaling").cells(PAPER))
    assert (single["points"][0], single["points"][-1], len(single["points"])) == (1_000, 50_000, 11)
    assert (single["latents"], mixed["points"][-1], "sizes" in mixed) == ((64, 128, 256), 1_000_000, False)
    softmax, flare, physics = (make_layer(name, single["sizes"]) for name in ("softmax", "flare 64", "physics 64"))
    assert (softmax.qkv.in_features, softmax.heads, flare.out.in_features) == (96, 6, 64)
    assert (physics.value.in_features, physics.value.out_features, physics.slice.in_features) == (128, 64, 8)


def test_a_halved_model_has_no_heads_narrower_than_four_channels_and_its_variants_are_halved_too():
    assert (CPU.model("darcy")["heads"], PAPER.model("darcy")["heads"]) == (8, 16)
    for dataset in BENCHMARKS:
        for model in ("flare", "gnot", "lno", "perceiver", "transformer", "transolver"):
            sizes = CPU.model(dataset, model)
            assert sizes["channels"] // sizes["heads"] >= 4
            narrow = (dataset, model) == ("darcy", "flare")
            assert (sizes["heads"] != PAPER.model(dataset, model)["heads"]) == narrow
    usual, variant = select_cells(find_item("table1").cells(CPU), ["pipe/lno", "pipe/lno-8-blocks"])
    assert [cell.job.settings()["model"]["blocks"] for cell in (usual, variant)] == [2, 4]
    for cell in find_item("table1").cells(CPU):
        sizes = cell.job.settings()["model"]
        assert sizes["channels"] // sizes["heads"] >= 4, cell.parts


def test_the_list_counts_recorded_jobs_and_the_whole_time(tmp_path):
    ledger = Ledger(tmp_path)

    def cost():
        return list_items(dict.fromkeys(BUDGETS, ledger), workers=2)["kv-depth"]["cpu"]

    before = cost()
    for job in planned(find_item("kv-depth"), CPU, ["depth=3"], None):
        ledger.write(job, Record("done", {"rel_l2": 0.1}))
    after = cost()
    assert (before.recorded, after.recorded, after.jobs) == (0, 3, 18)
    assert after.seconds == before.seconds > 60


def test_baselines_use_their_drivaerml_settings_on_the_stand_in():
    for model in ("gnot", "lno", "perceiver", "transolver"):
        ours, theirs = recipe("car-potential", model), recipe("drivaerml", model)
        for group in ("optim", "model", "epochs"):
            assert ours[group] == theirs[group], model
        assert ours["data"]["batch_size"] == theirs["data"]["batch_size"]


HOUR = 3600.0
ALLOWED = {
    **{f"table1/{name}": HOUR for name in ("elasticity", "lpbf")},
    **{f"table1/{name}": HOUR / 3 for name in ("darcy", "airfoil", "pipe", "cars")},
    **dict.fromkeys(("blocks-latents", "head-dimension", "shared-latents", "latent-blocks"), HOUR / 3),
    **dict.fromkeys(("kv-depth", "ffn-depth", "spectra"), HOUR / 3),
}


def test_the_cpu_budget_is_estimated_at_minutes_on_two_cores(tmp_path):
    lines = list_items(dict.fromkeys(BUDGETS, Ledger(tmp_path)), workers=2)
    costs = {name: costs["cpu"].seconds for name, costs in lines.items()}
    assert {name: seconds for name, seconds in costs.items() if seconds > ALLOWED.get(name, 5 * HOUR)} == {}
    assert set(ALLOWED) <= set(costs)


def test_points_of_printed_parts_are_those_of_the_records():
    (cell,) = find_item("lpbf").cells(CPU)
    record = Ledger(Path(__file__).parents[2] / "results" / "records").find(cell.job)
    assert points(cell.job.of) == pytest.approx(record.result["landmarks"]["mean of nodes"], rel=0.05)
    usual = Data("lpbf", 10, 2)
    assert points(usual) == 20_000
    assert making_seconds(replace(usual, options={"layers": 30})) == making_seconds(usual) / 8


def test_the_papers_elasticity_run_is_that_of_table_1():
    (run,) = find_item("elasticity-run").cells(PAPER)
    (row,) = select_cells(find_item("table1").cells(PAPER), ["elasticity/flare"])
    assert run.job == row.job
    (short,) = find_item("elasticity-run").cells(CPU)
    assert short.job.settings() | {"epochs": 500} == run.job.settings() | {"evaluate_every": 5}
    assert len(planned(find_item("elasticity-run"), CPU, None, None)) == 1


def test_ablations_share_the_run_they_have_in_common():
    cells = [
        "head-dimension/width=4",
        "kv-depth/depth=3",
        "ffn-depth/depth=3",
        "latent-blocks/blocks=4/latent-blocks=0",
    ]
    cells += ["blocks-latents/elasticity/blocks=4/latents=64", "shared-latents/blocks=4/independent"]
    jobs = [planned(item, CPU, only, None) for item, only in select_items("all", ["table1/elasticity/flare", *cells])]
    assert all(address(job) == address(jobs[0][0]) for (job, *_) in jobs)


def test_only_the_paper_budget_reads_published_files():
    with pytest.raises(ConfigError, match="smoke"):
        budget_named("smoke", published=True)
    assert (
        json.dumps(budget_named("paper", published=True).training("pipe").definition()["data"])
        == '{"published": "pipe"}'
    )
