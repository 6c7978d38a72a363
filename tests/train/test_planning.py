"""The planner's laws are fitted exactly, and a run that cannot fit into memory is refused."""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from flare.cli import main
from flare.models.cost import cost_of
from flare.train import planning
from flare.train.config import DataConfig, TrainConfig
from flare.train.field_task import FieldTask
from flare.train.planning import Planner, check_fits, fits, largest_workloads, measure_costs, surely_fits
from flare.train.profiling import Usage
from flare.train.workload import KINDS, Workload, prediction_workload
from flare.utils import environment
from flare.utils.errors import ConfigError, DataError
from tests.factory import ragged_dataset
from tests.train.test_workload import LARGE, MODEL, STEP


def law(workload):
    """A machine that follows the laws exactly, with another one for arrays that are cached when freed."""
    w, b, m = workload.total_points, workload.size("blocks"), workload.size("latents")
    growth = 0 if workload.is_streamed else (1 if workload.returns_memory else 1.5) * (2e-3 * w + 1e-3 * w * b)
    return Usage(300 + growth + workload.known_mb, 0.01 + 1e-6 * w + 3e-6 * w * b + 1e-8 * w * b * m)


@pytest.fixture
def measured(monkeypatch):
    """Workloads that were measured, on a machine that follows the laws."""
    seen = []
    monkeypatch.setattr(planning, "measure", lambda workload: seen.append(workload) or law(workload))
    return seen


def assert_predicted(planner, workload):
    found, truth = planner.predict(workload), law(workload)
    assert found.memory_mb == pytest.approx(truth.memory_mb, rel=1e-6)
    assert found.seconds == pytest.approx(truth.seconds, rel=1e-6)


def test_a_machine_that_follows_the_laws_is_predicted_exactly_where_it_was_not_measured(measured):
    planner = Planner()
    for points, batch, blocks, latents in [(1_000_000, 1, 8, 2048), (50_000, 4, 2, 16), (10, 1, 12, 512)]:
        for kind in KINDS:
            model = MODEL | {"blocks": blocks, "latents": latents}
            workload = replace(STEP, points=points, batch=batch, model=model, kind=kind)
            assert workload not in measured
            assert_predicted(planner, workload)


def test_calibrations_use_workloads_of_the_same_kind_and_few_points(measured):
    for points in (1000, LARGE):
        measured.clear()
        workload = replace(STEP, points=points, shared="points", model=MODEL | {"latents": 100_000})
        measure_costs(workload)
        assert {tried.returns_memory for tried in measured} == {workload.returns_memory} == {points == LARGE}
        assert {tried.shared for tried in measured} == {"points"}
        assert max(tried.size("latents") for tried in measured) == 4 * planning.MOST_LATENTS
        assert len(measured) == 5


def test_streams_are_calibrated_with_their_chunks_and_their_memory_does_not_grow(measured):
    endless, planner = prediction_workload(STEP, 10**9, chunk=5000), Planner()
    first, second = (planner.predict(replace(endless, points=n)) for n in (10**8, 10**9))
    assert first.memory_mb == second.memory_mb < 320
    assert second.seconds / first.seconds == pytest.approx(10, rel=1e-3)
    assert {(tried.kind, tried.chunk, tried.points) for tried in measured} == {
        ("scratch", 5000, 10_000),
        ("scratch", 5000, 15_000),
    }


def with_count(workload, what, count):
    if what == "latents":
        return replace(workload, model={**workload.model, "latents": count})
    return replace(workload, **{"points" if what == "points" else "batch": count})


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(("points", "free"), [(1000, 100), (1000, 2000), (1000, 20_000), (LARGE, 400), (LARGE, 9000)])
def test_the_largest_workload_fits_and_one_more_does_not(points, free):
    workload = replace(STEP, points=points)
    for what, most in Planner().largest(workload, free).items():
        if most is None:
            assert not fits(law(with_count(workload, what, 1)).memory_mb, free)
            continue
        count = {"points": most.points, "latents": most.size("latents")}.get(what, most.batch)
        more = with_count(workload, what, count + 1)
        assert fits(law(most).memory_mb, free)
        # Where freed arrays begin to be returned, a step may need less than a smaller one: stopping there is right.
        capped = what == "latents" and count == points
        assert capped or not fits(law(more).memory_mb, free) or more.returns_memory != most.returns_memory, what


def test_calibrations_are_kept_for_their_model_and_machine(measured, tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    Planner(path).predict(replace(STEP, model=MODEL | {"blocks": 1, "latents": 5000}))
    other = replace(STEP, points=3000, model=MODEL | {"blocks": 12, "latents": 16})
    assert_predicted(Planner(path), other)
    assert len(measured) == 5, "other blocks and latents need no other calibration"
    Planner(path).predict(replace(STEP, precision="bf16"))
    assert len(measured) == 10
    monkeypatch.setattr(planning, "processor", lambda: "an abacus")
    for _ in range(2):
        assert_predicted(Planner(path), STEP)
        assert len(measured) == 15


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"calibrations": [3]}'])
def test_a_file_without_calibrations_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(DataError, match=str(path)):
        Planner(path)


@pytest.mark.usefixtures("measured")
def test_plan_on_the_command_line(tmp_path, capsys):
    words = ["plan", "--points", "1e6", "--blocks", "4", "--memory", "2", "--cache", str(tmp_path / "c.json")]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "1 x 1,000,000 points on each of 1 rank" in printed.out
    assert "NOT fit" in printed.out
    assert "65,536 points" in printed.out
    assert "latents" not in printed.out, "no number of latents makes a million points fit"
    assert main([*words, "--ranks", "8", "--steps", "1000"]) == 0
    printed = capsys.readouterr().out
    assert "1 x 125,000 points on each of 8 ranks" in printed
    assert "NOT" not in printed
    assert "1,000 steps" in printed
    assert "latents" in printed
    assert main([*words, "--ranks", "2", "--ranks-share", "samples", "--batch", "6", "--chunk", "whole"]) == 0
    printed = capsys.readouterr().out
    assert "3 x 1,000,000 points on each of 2 ranks" in printed
    assert "chunks" not in printed


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["--points", "100", "--heads", "7", "--channels", "16"], "--heads 7"),
        (["--points", "many"], "--points"),
        (["--blocks", "4"], "--points"),
        (["--points", "100", "--ranks", "0"], "--ranks"),
        (["--points", "100", "--batch", "0"], "batch"),
        (["--points", "100", "--device", "cuda"], "device"),
    ],
)
def test_bad_plans_are_refused_before_anything_is_measured(measured, capsys, monkeypatch, words, fact):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["plan", *words]) == 2
    assert fact in capsys.readouterr().err
    assert measured == []


def test_a_preset_gives_precision_batch_and_recompute(measured, tmp_path, capsys):
    preset = tmp_path / "own.yaml"
    preset.write_text(
        f"model: {json.dumps(MODEL)}\nprecision: bf16\nrecompute: true\n"
        "data: {batch_size: 12}\noptim: {accumulate: 4}\n"
    )
    words = ["plan", "--preset", str(preset), "--points", "1000"]
    assert main(words) == 0
    assert "3 x 1,000 points on each of 1 rank, precision bf16" in capsys.readouterr().out
    assert {(w.precision, w.recompute) for w in measured if w.is_training} == {("bf16", True)}
    assert {w.precision for w in measured if not w.is_training} == {"32"}
    measured.clear()
    assert main([*words, "--precision", "16", "--no-recompute", "--batch", "1"]) == 0
    assert "1 x 1,000 points on each of 1 rank, precision 32" in capsys.readouterr().out, "on a CPU"
    assert not any(w.recompute for w in measured)


# -- does it fit? ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"channels": 128, "latents": 512}, {"kv_depth": 9, "ffn_depth": 9}, {"ffn_ratio": 5}], ids=str
)
def test_the_bound_without_calibration_is_well_above_what_a_model_keeps(change):
    model = {"name": "flare", "blocks": 2, "latents": 32} | change
    kept = cost_of(model, 3, 1, 5000).activations / 2**20
    workload = Workload(model=model, points=5000)
    assert not surely_fits(workload, 1024 + 1.9 * kept)
    assert surely_fits(workload, 1024 + 10 * kept)


def run_of(folder, data=None, **changes):
    settings = {"batch_size": 4, "eval_batch_size": 3} | (data or {})
    return TrainConfig(data=DataConfig(path=str(folder), **settings), model=MODEL, device="cpu", **changes)


@pytest.mark.usefixtures("measured")
def test_a_run_that_cannot_fit_is_neither_started_nor_resumed(tmp_path, monkeypatch, capsys):
    data, out = ragged_dataset(tmp_path / "d", [20] * 6), tmp_path / "r"
    words = ["train", str(data.path), "--out", str(out), "--epochs", "1", "--device", "cpu", "--no-report"]
    words += ["--model", json.dumps(MODEL)]
    monkeypatch.setattr(planning, "available_memory_mb", lambda *_: 200.0)  # the machine of the laws needs 300
    assert main(words) == 2
    assert "0.29 GiB" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "--no-memory-check"]) == 0
    resumed = ["train", "--resume", str(out), "--no-report"]
    assert main(resumed) == 0, "a finished run is only read"
    (out / "result.json").unlink()
    for again in (resumed, [*words, "--if-exists", "resume"]):
        assert main(again) == 2
        assert not (out / "result.json").exists()


def check(config):
    check_fits(config, FieldTask(config.data, config.loss))


@pytest.mark.usefixtures("measured")
def test_a_run_whose_evaluation_alone_cannot_fit_is_refused(tmp_path, monkeypatch):
    data = ragged_dataset(tmp_path / "d", [20, 20, 20, 4000], test=1)
    enough = 1.15 * law(replace(STEP, points=20, batch=2)).memory_mb + 1
    monkeypatch.setattr(planning, "available_memory_mb", lambda *_: enough)
    with pytest.raises(ConfigError, match=r"evaluation with 1 x 4,000 points .*data.eval_batch_size"):
        check(run_of(data.path, data={"batch_size": 2}))


@pytest.mark.usefixtures("measured")
def test_plan_and_train_agree_on_what_fits(tmp_path, monkeypatch, capsys):
    data = ragged_dataset(tmp_path / "d", [1000] * 3, test=1)
    workload = replace(STEP, points=1000, in_dim=data.schema.in_dim, out_dim=data.schema.out_dim)
    need = law(workload).memory_mb
    words = ["plan", "--points", "1000", "--in-dim", str(workload.in_dim), "--out-dim", str(workload.out_dim)]
    words += ["--preset", str(tmp_path / "own.yaml")]
    (tmp_path / "own.yaml").write_text(json.dumps({"model": MODEL, "data": {"batch_size": 1}}))
    for free, is_enough in [(1.16 * need, True), (1.14 * need, False)]:
        for module in (environment, planning):
            monkeypatch.setattr(module, "available_memory_mb", lambda device, ranks=1, free=free: free)
        assert main(words) == 0
        training = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("training"))
        assert ("NOT fit" not in training) == is_enough
        with nullcontext() if is_enough else pytest.raises(ConfigError, match="1 x 1,000 points"):
            check(run_of(data.path, data={"batch_size": 1, "eval_batch_size": 1}))


def test_ranks_share_the_memory_of_a_machine_but_not_of_gpus(monkeypatch):
    free = environment.available_memory_mb("cpu")
    assert environment.available_memory_mb("cpu", 4) == pytest.approx(free / 4, rel=0.2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**31))
    assert environment.available_memory_mb("cuda", 4) == 1024


def test_the_largest_step_and_evaluation_of_a_rank(tmp_path):
    data = ragged_dataset(tmp_path / "d", [20, 30, 25, 10, 40, 50], test=2)
    for changes, ranks, step, evaluation in [
        ({}, 1, (4, 30), (2, 50)),
        ({"data": {"subsample": 8, "eval_batch_size": 1}}, 1, (4, 8), (1, 50)),
        ({}, 2, (2, 30), (1, 50)),
        ({"ranks_share": "points"}, 4, (4, 8), (2, 13)),
        ({"ranks_share": "points", "point_ranks": 2}, 4, (2, 15), (1, 25)),
    ]:
        config = run_of(data.path, **changes)
        found, evaluated = largest_workloads(config, FieldTask(config.data, config.loss), ranks)
        assert (found.batch, found.points) == step
        assert (evaluated.batch, evaluated.points) == evaluation
        assert found.shared == evaluated.shared == ("" if ranks == 1 else config.ranks_share)
        assert (found.kind, evaluated.kind) == ("training", "evaluation")
