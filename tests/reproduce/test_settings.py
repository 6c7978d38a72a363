"""Differences between our settings and the paper's, and the decisions of docs/paper/discrepancies.md."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from flare.models import build_model
from flare.reproduce.budgets import BENCHMARKS, BUDGETS, budget_named
from flare.reproduce.items.table1 import VARIANTS
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.registry import find_item
from flare.reproduce.sequences import PAPER
from flare.reproduce.settings import DECISIONS, differences_of, settings_table
from flare.reproduce.study import Cell, Outcome, select_cells

CPU, PAPER_BUDGET, PUBLISHED = BUDGETS["cpu"], BUDGETS["paper"], budget_named("paper", published=True)
ROOT = Path(__file__).parents[2]
NORMS = ("optim.undecayed", "default", "code: biases, latents", "#15")


def cells(item, budget, *only):
    return select_cells(find_item(item).cells(budget), list(only) or None)


def differences(cell):
    return {each.setting: tuple(each[1:]) for each in differences_of(cell)}


def test_every_decision_is_a_row_of_the_discrepancies():
    text = (ROOT / "docs" / "paper" / "discrepancies.md").read_text(encoding="utf-8")
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert {each.number for each in DECISIONS} | {each.number for each in VARIANTS.values()} <= rows


def test_the_paper_budget_differs_from_the_paper_in_data_and_decisions_only():
    for cell in cells("table1", PAPER_BUDGET):
        others = [each for each in differences_of(cell) if not each.discrepancy]
        assert [each.setting for each in others] == ["data"], cell.name
        assert others[0].paper == ("drivaerml" if cell.parts[0] == "cars" else "published files")
    for name in BENCHMARKS:
        assert PAPER_BUDGET.training(name).overrides == ()
    for name in ("pipe", "cars"):
        (cell,) = cells("table1", PUBLISHED, f"{name}/flare")
        assert [tuple(each) for each in differences_of(cell)] == [NORMS]


def test_a_variant_as_in_the_authors_code_has_the_papers_number_and_no_decision():
    for dataset, value in (("darcy", 0.0169), ("airfoil", 0.103), ("pipe", 0.00589)):
        ours, theirs = cells("table1", PUBLISHED, f"{dataset}/gnot", f"{dataset}/gnot-published")
        assert differences(ours)["model.published"] == ("default", "code: True", "#10")
        assert [tuple(each) for each in differences_of(theirs)] == [NORMS]
        assert ours.paper == theirs.paper == pytest.approx(value)
    for model in ("transformer", "perceiver", "gnot", "lno", "transolver"):
        (theirs,) = cells("table1", PUBLISHED, f"elasticity/{model}-decay-norms")
        assert "optim.undecayed" not in differences(theirs)
    (conv,) = cells("table1", PUBLISHED, "darcy/transolver-conv")
    assert differences(conv)["coefficient as input"] == ("yes", "code: no", "#9")
    ours, theirs = cells("table1", PUBLISHED, "pipe/lno", "pipe/lno-8-blocks")
    assert differences(ours)["model.blocks"] == ("4", "code: 8", "#7")
    assert ("model.blocks" in differences(theirs), theirs.paper) == (False, pytest.approx(0.0081))


def test_other_variants_list_their_settings_and_have_no_number_of_the_paper():
    names = "elasticity/perceiver-1024", "elasticity/flare-decay-latents", "lpbf/flare-as-printed"
    latents, decay, printed = found = cells("table1", PUBLISHED, *names)
    assert differences(latents)["model.latents"] == ("1,024", "512", "#3")
    assert differences(decay)["optim.undecayed"][0::2] == ("biases, norms", "#15")
    assert differences(printed)["model.heads"] == ("16", "8", "#1")
    assert [cell.paper for cell in found] == [None] * 3


def test_the_variant_of_gnot_has_the_parameters_of_the_papers_table():
    counts = []
    for cell in cells("table1", PUBLISHED, "darcy/gnot", "darcy/gnot-published"):
        sizes = {**cell.job.settings()["model"], "grid": (85, 85)}
        model = build_model(sizes.pop("name"), 3, 1, **sizes)
        counts.append(sum(p.numel() for p in model.parameters()))
    assert counts == [4_902_553, 4_904_345]


def test_table_2_differs_in_protocol_rate_kernel_and_decay():
    found = {cell.parts: cell for cell in find_item("table2").cells(PAPER_BUDGET)}
    rate = ("1e-05", "5e-07", "#20")
    assert differences(found["text", "flare", "dev-split"])["optim.lr"] == rate
    assert differences(found["text", "linformer", "dev-split"]) == {}
    norm = differences(found["text", "norm"])
    assert (norm["optim.lr"], norm["data.protocol"]) == (rate, ("default", "dev-split-no-mask", "#20"))
    kernel = found["listops", "linear", "elu-kernel"]
    assert differences(kernel)["model.kernel"] == ("elu", "identity", "#20")
    assert kernel.paper is None
    for attention in ("flare", "norm", "performer"):
        cell = found["text", attention, "script-rate"]
        assert {"optim.lr", "data.protocol"}.isdisjoint(differences(cell))
        assert cell.paper == PAPER["text"][attention] / 100
    flare = found["image", "flare", "dev-split"]
    assert list(differences(flare)) == ["optim.undecayed"]
    theirs = ("optim.undecayed", ["biases", "norms", "embeddings"])
    same = replace(flare, job=flare.job.with_settings(theirs), exact=flare.exact.with_settings(theirs))
    assert differences(same) == {}


@pytest.mark.parametrize(
    ("name", "setting", "here", "paper"),
    [
        ("elasticity/flare", "data.subsample", "486", "default"),
        ("elasticity/flare", "samples (train + test)", "400 + 100", "1000 + 200"),
        ("darcy/flare", "grid", "22×22", "85×85"),
        ("airfoil/flare", "grid", "45×11", "221×51"),
        ("pipe/flare", "data option nodes", "49", "129"),
        ("cars/flare", "data option refinement", "0.5", "1"),
        ("lpbf/flare", "data option layers", "30", "15"),
        ("pipe/lno-8-blocks", "model.blocks", "4", "8"),
        ("lpbf/flare-as-printed", "model.latents", "256", "128"),
    ],
)
def test_data_and_sizes_of_the_cpu_budget_are_listed(name, setting, here, paper):
    (cell,) = cells("table1", CPU, name)
    assert differences(cell)[setting][:2] == (here, paper)


def test_raw_points_are_those_of_the_paper_and_run_only_when_selected():
    models = ("transformer", "perceiver", "gnot", "lno", "transolver", "flare")
    found = cells("table1", CPU, *(f"elasticity/{model}-raw-points" for model in models))
    assert [CPU.seeds(cell.job) for cell in found] == [3] * 6
    assert all("data.normalize.points" not in differences(cell) for cell in found)
    assert "data.normalize.points" in differences(*cells("table1", CPU, "elasticity/flare"))
    assert not [cell for cell in cells("table1", CPU) if "raw" in cell.parts[1]]


def test_a_dataset_has_one_row_with_the_settings_of_all_and_of_some_cells():
    found = [Outcome(cell, [Record("done", {"rel_l2": 0.1})], [cell.job], Ledger(".")) for cell in cells("table1", CPU)]
    _, table = settings_table(found)
    rows = {dataset: (shared.split("; "), own) for dataset, shared, own in table.rows}
    assert list(rows) == ["elasticity", "darcy", "airfoil", "pipe", "car-potential", "lpbf"]
    assert "epochs 12 (500)" in rows["darcy"][0]
    assert "model.blocks 4 (8) or 2 (4)" in rows["darcy"][0]
    assert rows["darcy"][1].startswith("coefficient as input yes (code: no; #9): transolver-conv; ")
    assert settings_table([]) == []


def test_a_cell_without_a_training_of_the_paper_has_no_differences():
    assert differences_of(Cell(("x",), CPU.training("pipe"))) == []
