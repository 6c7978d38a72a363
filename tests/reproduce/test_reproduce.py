"""`flare reproduce` from end to end in the smallest budget."""

import os
import re

import pytest

from flare.cli import main
from flare.cli.reproduce import _only
from flare.reproduce import ITEMS
from flare.reproduce import sweep as sweeping
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.items import layer_costs, million, scaling
from flare.reproduce.jobs import Training
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.registry import find_item, planned
from flare.reproduce.study import digits, outcomes, select_cells, thousandths
from tests.factory import content

SMOKE, CPU, PAPER = (BUDGETS[name] for name in ("smoke", "cpu", "paper"))


LONG = {
    "table1": ["elasticity", "flare"],
    "printed-parts": ["baselines", "coordinates"],
    "optimizers": ["elasticity/lno"],
    "blocks-latents": ["darcy"],
}
"""Item -> cells that show that it runs."""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Every item in budget smoke, in one folder. A process for each measurement would only take time."""
    work = tmp_path_factory.mktemp("reproduce")
    with pytest.MonkeyPatch.context() as patch:
        for module in (scaling, million):
            patch.setattr(module, "run_isolated", lambda function, *arguments: function(*arguments))
        # The peak of so small a step cannot be measured in a process that has run the other items.
        patch.setattr(layer_costs, "peak_above", lambda step: step() or 1.0)
        only = ",".join(f"{name}/{cell}".rstrip("/") for name in ITEMS for cell in LONG.get(name, [""]))
        words = ["--only", only, "--workers", "1", "--work", str(work)]
        assert main(["reproduce", "all", "--budget", "smoke", *words]) == 0
    return work


def ledger_of(work):
    return Ledger(work / "smoke" / "records")


def test_everything_runs_and_nothing_fails(done):
    for name in ITEMS:
        cells = select_cells(find_item(name).cells(SMOKE), LONG.get(name))
        found = outcomes(ledger_of(done), cells)
        assert len(found) == len(cells), name
        assert all(record.outcome == "done" for outcome in found for record in outcome.records), name


def test_every_table_is_there_in_all_forms_and_every_picture(done):
    tables = {path.stem for path in (done / "smoke" / "tables").glob("*.csv")}
    assert {path.stem for path in (done / "smoke" / "tables").glob("*.tex")} == tables
    assert {re.sub(r"-smoke-\d+", "", name) for name in tables} == set(ITEMS)
    pictures = {path.stem.split("-smoke-")[1] for path in (done / "smoke" / "images").glob("*.png")}
    assert pictures == {
        *("blocks-latents-darcy", "head-dimension", "kv-depth", "ffn-depth", "learning", "latent-blocks", "spectra"),
        *("shared-latents", "shared-latents-independent", "shared-latents-shared", "blocks-latents", "precision-32"),
        *("qualitative-elasticity", "qualitative-darcy", "qualitative-pipe", "qualitative-lpbf"),
        *("lpbf-histograms", "lpbf-gallery", "curves-elasticity-lno"),
    }


def test_a_repeated_command_changes_nothing_and_the_table_equals_the_records(done, capsys):
    words = ["reproduce", "table1", "--only", ",".join(LONG["table1"]), "--budget", "smoke"]
    words += ["--workers", "1", "--work", str(done)]
    assert main(words) == 0  # its page mentions other items, which were not done when it was written
    before = content(done / "smoke")
    capsys.readouterr()
    assert main(words) == 0
    printed = capsys.readouterr()
    assert content(done / "smoke") == before
    assert "11 jobs, 11 already recorded" in printed.err
    for cell in select_cells(find_item("table1").cells(SMOKE), LONG["table1"]):
        result = ledger_of(done).find(cell.job).result
        error, field = (thousandths(result[key]) for key in ("rel_l2", "rel_l2_mean_field"))
        assert (
            f"| {cell.parts[0]} | {cell.parts[1]} | {result['parameters']:,} | {error} | {field} | 1 |" in printed.out
        )
    page = done / "smoke" / "table1-smoke.md"
    assert printed.out == page.read_text(encoding="utf-8")


def test_all_does_the_named_items_in_order(done, capsys):
    only = ["spectra", "kv-depth/depth=0"]
    words = ["--only", ",".join(only), "--workers", "1", "--work", str(done)]
    assert main(["reproduce", "all", "--budget", "smoke", *words]) == 0
    printed = capsys.readouterr()
    assert printed.out.index("spectra-smoke-spectra.png") < printed.out.index("K/V depth")
    assert [line for line in printed.err.splitlines() if "already recorded" in line] == [
        "2 jobs, 2 already recorded",
        "1 job, 1 already recorded",
    ]


def test_lpbf_also_has_the_authors_measure(done):
    cell = next(c for c in find_item("table1").cells(SMOKE) if c.parts == ("lpbf", "flare"))
    result = ledger_of(done).find(cell.job).result
    assert result["offset"] == 0
    assert 0 < result["rel_l2_offset"] < result["rel_l2"], "an offset of millimetres hides errors of tenths"


def test_verify_is_bit_equal_here_and_rejects_a_false_record(done, tmp_path, capsys):
    words = ["reproduce", "kv-depth", "--budget", "smoke", "--only", "depth=0", "--workers", "1", "--work", str(done)]
    before = content(done / "smoke" / "records")
    assert main([*words, "--verify"]) == 0
    printed = capsys.readouterr().err
    assert "(bit-equal)" in printed
    assert re.search(r"^1/1  elasticity/depth=0/latents=\d+, seed 0: rel-L2 ", printed, re.MULTILINE)
    assert content(done / "smoke" / "records") == before
    (cell,) = select_cells(find_item("kv-depth").cells(SMOKE), ["depth=0"])
    record = ledger_of(done).find(cell.job)
    false = Ledger(tmp_path / "false")
    false.write(cell.job, Record("done", {**record.result, "rel_l2": 0.5 * record.result["rel_l2"]}))
    assert main([*words, "--verify", "--records", str(false.folder)]) == 1
    assert "OUTSIDE" in capsys.readouterr().err


def test_verify_repeats_analyses_with_their_model_and_skips_times(done, tmp_path, capsys):
    words = ["--budget", "smoke", "--verify", "--workers", "1", "--work", str(done)]
    before = content(done / "smoke" / "records")
    assert main(["reproduce", "all", "--only", "scaling,spectra,lpbf", *words]) == 0
    printed = capsys.readouterr().err
    assert "elasticity/flare: equal" in printed
    assert "lpbf: equal" in printed
    assert "precision=32: skipped" in printed
    assert main(["reproduce", "scaling", *words]) == 2
    assert content(done / "smoke" / "records") == before


def test_failed_jobs_set_the_exit_code_and_tables_are_written(done, tmp_path, capsys, monkeypatch):
    real = Training.perform

    def fail(self, place):
        if self.settings()["model"]["kv_depth"]:
            raise RuntimeError("no such kernel")
        return real(self, place)

    records, out = tmp_path / "records", tmp_path / "out"
    words = ["reproduce", "kv-depth", "--budget", "smoke", "--workers", "1", "--work", str(done)]
    words += ["--records", str(records), "--out", str(out)]
    cells = select_cells(find_item("kv-depth").cells(SMOKE), None)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "perform", fail)
        assert main(words) == 1
    printed = capsys.readouterr()
    assert "1/2  elasticity/depth=0/latents=4, seed 0: rel-L2 " in printed.err
    assert "2/2  elasticity/depth=1/latents=4, seed 0: RuntimeError: no such kernel" in printed.err
    last = printed.err.splitlines()[-1]
    assert f"1 of {len(cells)} jobs" in last
    assert "RuntimeError: no such kernel |" in printed.out
    assert list(out.glob("tables/*.csv"))
    assert main(words) == 1, "as long as it has not come to its end"
    assert capsys.readouterr().err.splitlines()[-1] == last
    assert main([*words, "--retry"]) == 0
    assert "have failed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("only", "count"),
    [(["elasticity"], 6), (["flare"], 6), (["elasticity/flare", "darcy/lno"], 2), (["darcy/gnot-published"], 1)],
)
def test_cells_are_selected_by_their_parts(only, count):
    assert len(select_cells(find_item("table1").cells(CPU), only)) == count


@pytest.mark.parametrize("only", ["elasticity/flare,", ",elasticity/flare", "elasticity/flare/, ,darcy/lno"])
def test_extra_commas_select_nothing_more(only):
    assert len(select_cells(find_item("table1").cells(CPU), _only(only))) == 1 + only.count("darcy")


def test_an_analysis_of_a_model_plans_its_training():
    training, spectra = planned(find_item("spectra"), CPU, None, None)
    assert spectra.training == training


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabel1", "--budget", "smoke"], "'table1'"),
        (["table1"], "--budget"),
        (["table1", "--budget", "smoke", "--only", "elasticty"], "'elasticity'"),
        (["table1", "--budget", "smoke", "--only", "pipe/flar"], "'flare'"),
        (["table1", "--budget", "smoke", "--only", "lpbf/transformer"], "perceiver, gnot, lno, transolver, flare"),
        (["all", "--budget", "smoke", "--only", "spectra,pipe"], "'pipe'"),
        (["table1", "--budget", "smoke", "--only", ","], "--only ','"),
        (["pages", "--only", "table1"], "--only"),
        (["list", "--only", "table1"], "--only"),
        (["list", "--workers", "3", "--budget", "smoke", "--seeds", "1"], "--budget, --seeds"),
        (["table1", "--budget", "smoke", "--workers", "2", "--scheduler", "tcp://here:8786"], "--workers"),
        (["cars", "--budget", "paper"], "paper"),
        (["pages"], "results/records"),
        (["pages", "--records", "mistyped"], "mistyped"),
        (["list", "--records", "mistyped"], "mistyped"),
        (["kv-depth", "--budget", "cpu", "--verify", "--records", "mistyped"], "mistyped"),
        (["table1", "--budget", "cpu", "--published"], "'paper'"),
        (["table1", "--budget", "smoke", "--seeds", "0"], "--seeds 0"),
        (["table1", "--budget", "huge"], "--budget"),
        (["table1", "--budget", "smoke", "--worker", "2"], "'--workers'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_done(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["pages"], "--out"),
        (["kv-depth", "--budget", "cpu", "--verify"], "--work"),
        (["kv-depth", "--budget", "smoke"], "--out"),
        (["kv-depth", "--budget", "smoke"], "--work"),
    ],
)
@pytest.mark.parametrize("place", ["/proc/flare", "file"])
def test_an_unwritable_folder_is_reported_before_anything_is_done(words, option, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records").mkdir()
    (tmp_path / "file").touch()
    assert main(["reproduce", *words, "--records", "records", option, place]) == 2
    assert f"{option} {place}" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "file"]


@pytest.mark.parametrize(
    ("words", "found", "workers", "generators"),
    [([], [], 5, 5), ([], ["0", "1"], 2, 5), (["--workers", "3"], ["0", "1"], 3, 3), (["--workers", "3"], [], 3, 3)],
)
def test_default_workers_are_gpus_for_training_and_cores_for_data(
    words, found, workers, generators, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    monkeypatch.setattr(sweeping, "gpus", lambda: found)
    monkeypatch.setattr(sweeping, "sweep", lambda *_, **how: asked.append((how["workers"], how["generators"])) or 1)
    assert main(["reproduce", "kv-depth", "--budget", "smoke", "--work", str(tmp_path), *words]) == 0
    assert asked == [(workers, generators)]


def test_pages_without_records_remove_nothing(tmp_path, capsys):
    folder, records = tmp_path / "pages", tmp_path / "records"
    (kv,) = select_cells(find_item("kv-depth").cells(CPU), ["depth=0"])
    Ledger(records).write(kv.job, Record("done", {"rel_l2": 0.1, "parameters": 5, "curve": [(1, 0.1)]}))
    assert main(["reproduce", "pages", "--records", str(records), "--out", str(folder)]) == 0
    before = content(folder)
    assert "kv-depth.md" in {path.name for path in folder.iterdir()}
    smoke = tmp_path / "smoke"
    Ledger(smoke).write(select_cells(find_item("kv-depth").cells(SMOKE), None)[0].job, Record("failed", failure="x"))
    capsys.readouterr()
    assert main(["reproduce", "pages", "--records", str(smoke), "--out", str(folder)]) == 2
    printed = capsys.readouterr().err
    assert str(smoke) in printed
    assert content(folder) == before


def test_the_list_finds_the_records_of_smoke(done, capsys):
    assert main(["reproduce", "list", "--work", str(done)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kv-depth ")]
    assert "(all recorded)" in line.split("job", 2)[1]


def test_the_list_counts_unfinished_jobs_separately(tmp_path, capsys):
    ledger, ended = Ledger(tmp_path), {"rel_l2": 0.1}
    first, second, third, fourth = planned(find_item("blocks-latents"), SMOKE, ["darcy"], None)
    half = Record("unfinished", {"curve": [(1, 0.5)], "epochs": 2})
    for job, record in ((first, Record("done", ended)), (second, Record("failed", failure="x")), (third, half)):
        ledger.write(job, record)
    words = ["reproduce", "list", "--workers", "2", "--records", str(tmp_path)]

    def printed():
        assert main(words) == 0
        return capsys.readouterr().out

    assert re.search(r"blocks-latents/darcy +smoke: 4 jobs, \d+ s \(2 of 4 recorded, 1 unfinished\);", printed())
    assert re.search(r"kv-depth +smoke: 2 jobs, \d+ s;", printed())
    for job in (first, second, fourth):
        ledger.write(job, half)
    assert re.search(r"blocks-latents/darcy +smoke: 4 jobs, \d+ s \(4 unfinished\);", printed())
    assert "with 2 workers of one core each" in printed()


def test_the_list_has_every_item_with_a_time_for_every_budget(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "list", "--workers", "2"]) == 0
    printed = capsys.readouterr().out
    for name in ITEMS:
        line = next(line for line in printed.splitlines() if line.startswith(f"{name} "))
        assert len(re.findall(r"\d+ jobs?, [\d,]+ (s|min|h|days)", line)) == 3, line


def test_table_2_has_trivial_baselines_and_two_protocols(done, tmp_path, capsys):
    words = ["--budget", "smoke", "--workers", "1", "--work", str(done)]
    assert main(["reproduce", "table2", *words]) == 0
    printed = capsys.readouterr().out
    for cell in select_cells(find_item("table2").cells(SMOKE), None):
        result = ledger_of(done).find(cell.job).result
        share = digits(result["accuracy"], None, 1e-2)
        dev = digits(result["accuracies"]["val"], None, 1e-2)
        baseline = f"{100 * max(of['test'] for of in result['guesses'].values()):.1f}"
        line = (
            f"| {cell.parts[0]} | {cell.parts[1]} | own | {result['parameters']:,} | {dev} | {share} | {baseline} | 1 |"
        )
        assert line in printed
        assert result["accuracy"] == result["accuracies"]["test"]
    dev = select_cells(find_item("table2").cells(PAPER), ["listops/flare/dev-split"])
    assert [cell.job.settings()["data"]["protocol"] for cell in dev] == ["dev-split-no-mask"]
    assert len(select_cells(find_item("table2").cells(PAPER), None)) == 30
    assert len(select_cells(find_item("table2").cells(CPU), None)) == 6, "pictures are fetched when asked for"


def test_measured_studies_are_shown_from_their_records(done, capsys):
    words = ["--budget", "smoke", "--workers", "1", "--work", str(done)]
    assert main(["reproduce", "all", "--only", "scaling,million", *words]) == 0
    printed = capsys.readouterr().out
    (cell,) = select_cells(find_item("scaling").cells(SMOKE), None)
    record = ledger_of(done).find(cell.job).result
    assert {(row["layer"], row["points"]) for row in record["rows"]} == {
        (layer, points) for layer in ("softmax", "flare 4", "physics 4") for points in (64, 128)
    }
    for row in scaling.scaling_table(record).rows:
        assert f"| {' | '.join(row)} |" in printed
    (cell,) = find_item("million").cells(SMOKE)
    record = ledger_of(done).find(cell.job).result
    assert [(row["blocks"], row["latents"]) for row in record["rows"]] == [(1, 4), (2, 4)]
    for row in million.million_table(record).rows:
        assert f"| {' | '.join(row)} |" in printed
    assert "| samples (train + test) | 8 + 2 | 387 + 97 |" in printed
    made = ledger_of(done).find(cell.job).made
    assert made["peak_memory_mb"] == round(max(row["peak_mb"] for row in record["rows"]))
    assert made["seconds"] > 0
