"""The planner: its laws are fitted exactly, its answers are those of the laws, what cannot fit is refused."""

import json
import os
from dataclasses import replace

import pytest
import torch

from flare import plan
from flare.cli import main
from flare.measure import alone
from flare.mixer.native import block_ops
from flare.models import build_model, count_parameters
from flare.models.streaming import Stream
from flare.plan import Planner, calibrate, fits_into, surely_fits
from flare.train import fit, rehearsal
from flare.train.config import DataConfig, TrainConfig
from flare.train.distributed.fabric import lone_fabric
from flare.train.field_task import FieldTask
from flare.train.run_folder import RunFolder
from flare.trial import CHUNK, KINDS, Need, Setting, prediction
from flare.utils import environment
from flare.utils.errors import ConfigError, DataError
from tests.factory import ragged_dataset

MODEL = {"name": "flare", "channels": 16, "heads": 2, "kv_depth": 0, "ffn_depth": 0, "blocks": 4, "latents": 8}
SETTING = Setting(model=MODEL, points=1000)
LARGE = 600_000
"""Points whose arrays are handed back."""


def law(setting):
    """A machine that keeps the laws to the letter, another one for arrays that are kept when freed."""
    w, b, m = (0 if setting.streams else setting.work), setting.blocks, setting.latents
    memory = 300 + (1 if setting.hands_back else 1.5) * (2e-3 * w + 1e-3 * w * b) + setting.known_mb
    w = setting.work
    return Need(memory, 0.01 + 1e-6 * w + 3e-6 * w * b + 1e-8 * w * b * m)


@pytest.fixture
def lawful(monkeypatch):
    seen = []

    def measure(setting):
        seen.append(setting)
        return law(setting)

    monkeypatch.setattr(plan, "measure", measure)
    return seen


def assert_foretold(setting, found):
    truth = law(setting)
    assert found.memory_mb == pytest.approx(truth.memory_mb, rel=1e-6)
    assert found.seconds == pytest.approx(truth.seconds, rel=1e-6)


def test_a_lawful_machine_is_predicted_exactly_where_it_was_not_measured(lawful):
    planner = Planner()
    for points, batch, blocks, latents in [(1_000_000, 1, 8, 2048), (50_000, 4, 2, 16), (10, 1, 12, 512)]:
        for kind in KINDS:
            model = MODEL | {"blocks": blocks, "latents": latents}
            setting = replace(SETTING, points=points, batch=batch, model=model, kind=kind)
            assert setting not in lawful
            assert_foretold(setting, planner.need(setting))


def test_steps_are_calibrated_with_steps_of_their_kind(lawful):
    for points in (1000, LARGE):
        lawful.clear()
        setting = replace(SETTING, points=points, shared="points")
        calibrate(setting)
        assert {tried.hands_back for tried in lawful} == {setting.hands_back} == {points == LARGE}
        assert {tried.shared for tried in lawful} == {"points"}


def test_a_calibration_takes_no_more_points_than_the_plan_where_that_is_enough(lawful):
    told = []
    calibrate(replace(SETTING, points=100_000), told.append)
    assert max(tried.work for tried in lawful) == 100_000
    assert len(told) == len(lawful) == 5
    assert told[1].startswith("calibrating training, step 2 of 5: 100,000 points, 1 block(s)")
    lawful.clear()
    calibrate(replace(SETTING, model=MODEL | {"latents": 100_000}))
    assert max(tried.latents for tried in lawful) == 4 * plan.MOST_LATENTS


@pytest.mark.usefixtures("lawful")
@pytest.mark.parametrize(("points", "memory"), [(1000, 400), (1000, 2000), (1000, 20_000), (LARGE, 400), (LARGE, 9000)])
def test_the_largest_that_fits_is_the_largest_by_the_law_of_its_own_kind(points, memory):
    setting = replace(SETTING, points=points)
    for what, most in Planner().largest(setting, memory).items():
        if most is None:
            assert not fits_into(law(_with(setting, what, 1)).memory_mb, memory)
            continue
        count = {"points": most.points, "latents": most.latents}.get(what, most.batch)
        more = _with(setting, what, count + 1)
        assert 1.15 * law(most).memory_mb <= memory
        # Where freed arrays begin to be handed back, a step may need less than a smaller one: stopping there is right.
        capped = what == "latents" and count == points
        assert capped or 1.15 * law(more).memory_mb > memory or more.hands_back != most.hands_back, what


def _with(setting, what, count):
    if what == "latents":
        return replace(setting, model={**setting.model, "latents": count})
    return replace(setting, **{"points" if what == "points" else "batch": count})


@pytest.mark.usefixtures("lawful")
def test_nothing_fits_where_the_first_point_does_not():
    assert Planner().largest(SETTING, 100) == dict.fromkeys(["points", "samples at a time", "latents"])


@pytest.mark.usefixtures("lawful")
def test_latents_are_at_most_as_many_as_points():
    most = Planner().largest(SETTING, 1e6)["latents"]
    assert most is not None
    assert most.latents == SETTING.points


def test_parameters_are_counted_for_any_number_of_latents():
    for change in ({}, {"shared_latents": True}, {"latent_blocks": 1}):
        model = MODEL | {"latents": 57} | change
        sizes = {key: value for key, value in model.items() if key != "name"}
        assert Setting(model=model, points=1).parameters == count_parameters(build_model("flare", 3, 1, **sizes))


def test_many_latents_and_shared_gradients_count():
    many = replace(SETTING, model=MODEL | {"latents": 10_000}, points=LARGE)
    # Weights, gradients, two averages; then the latents that each of 4 blocks keeps, and those in use.
    arrays = 4 * 10_000 * 16 * 4 * 4 + 4 * 10_000 * (16 + 2) * (4 + 6 + 2 * torch.get_num_threads())
    assert many.known_mb == pytest.approx(arrays / 2**20, rel=0.01)
    for shared in ("samples", "points"):
        both = replace(many, shared=shared)
        assert both.known_mb - many.known_mb == pytest.approx(4 * many.parameters / 2**20)


@pytest.mark.kernels
@pytest.mark.parametrize("change", [{}, {"qk_norm": True}, {"kv_depth": 2, "ffn_depth": 1, "io_depth": 0}])
def test_activations_that_the_kernels_keep_are_known(change):
    setting = replace(SETTING, model=MODEL | change, batch=2)
    sizes = {key: value for key, value in setting.sizes.items() if key != "name"}
    before = set(block_ops._lent)
    y = build_model("flare", 3, 1, **sizes)(torch.randn(2, 1000, 3))
    kept = [reference() for number, (reference, _) in block_ops._lent.items() if number not in before]
    assert y.requires_grad
    assert setting.activations_mb == pytest.approx(sum(array.nbytes for array in kept) / 2**20)
    assert setting.known_mb > setting.activations_mb > 0
    for other in ({"points": LARGE}, {"recompute": True}, {"kind": "evaluation"}, {"precision": "bf16"}):
        assert replace(setting, **other).activations_mb == 0


def test_predictions_are_streams_whose_memory_does_not_grow(lawful):
    assert prediction(SETTING, CHUNK).kind == prediction(SETTING, 10**9, chunk=None).kind == "whole"
    assert prediction(SETTING, CHUNK + 1).kind == prediction(SETTING, CHUNK, chunk=CHUNK - 1).kind == "stream"
    training = replace(SETTING, points=5, batch=7, precision="bf16", recompute=True, shared="points")
    endless = prediction(training, 10**9)
    assert endless == Setting(model=MODEL, points=10**9, kind="scratch")
    planner = Planner()
    first, second = (planner.need(replace(endless, points=n)) for n in (10**8, 10**9))
    assert first.memory_mb == second.memory_mb < 320
    assert second.seconds / first.seconds == pytest.approx(10, rel=1e-3)
    assert {tried.kind for tried in lawful} == {"scratch"}
    lawful.clear()
    planner.need(prediction(training, 10**9, chunk=5000))
    assert {(tried.chunk, tried.points) for tried in lawful} == {(5000, 10_000), (5000, 15_000)}


@pytest.mark.usefixtures("lawful")
def test_a_calibration_for_one_block_and_many_latents_serves_other_models():
    planner = Planner()
    planner.need(replace(SETTING, model=MODEL | {"blocks": 1, "latents": 5000}))
    other = replace(SETTING, points=3000, model=MODEL | {"blocks": 12, "latents": 16})
    assert_foretold(other, planner.need(other))
    assert len(planner.calibrations) == 1


def test_calibrations_are_kept_for_their_model_and_machine(lawful, tmp_path, monkeypatch):
    path, told = tmp_path / "c.json", []
    first = Planner(path).need(SETTING)
    assert Planner(path, pytest.fail).need(SETTING) == first
    assert Planner(path, told.append).need(replace(SETTING, precision="bf16")).memory_mb > 0
    assert len(told) == 5
    assert len(lawful) == 10
    assert Planner(path, pytest.fail).need(SETTING) == first  # and the first is still there

    monkeypatch.setattr(plan, "processor", lambda: "an abacus")
    told.clear()
    Planner(path, told.append).need(SETTING)
    assert len(lawful) == 15
    assert "another machine" in told[0]
    assert "here an abacus" in told[0]
    assert Planner(path, pytest.fail).need(SETTING) == first


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "no JSON", '{"calibrations": [{"about": {}, "seconds": [], "memory": []}]}', '{"calibrations": [3]}'],
)
def test_a_file_that_holds_no_calibrations_is_refused_and_left(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(DataError, match="is no file of calibrations"):
        Planner(path)
    assert path.read_text() == text


@pytest.fixture
def rehearsed(monkeypatch):
    """What the runs of trials in this process were: (fabric's strategy, place, configuration, records, result)."""
    seen, honest = [], rehearsal.work_on

    def work_on(fabric, ranks, config, run):
        result = honest(fabric, ranks, config, run)
        seen.append((type(fabric.strategy).__name__, ranks, config, run.records(), result))
        return result

    monkeypatch.setattr(rehearsal, "work_on", work_on)
    monkeypatch.setattr("flare.trial.alone", lambda function, *arguments: function(*arguments))
    monkeypatch.setenv("LOCAL_RANK", "0")  # or Fabric would start ranks, and leave its mark on the environment
    return seen


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"recompute": True, "precision": "bf16"},
        {"shared": "samples"},
        {"shared": "points"},
        {"kind": "evaluation", "shared": "points"},
    ],
    ids=str,
)
def test_a_trial_of_a_step_is_a_training_of_several(rehearsed, change, capsys):
    setting = replace(SETTING, points=100, batch=2, in_dim=4, out_dim=2, **change)
    need = plan.measure(setting)
    ((strategy, ranks, config, records, result),) = rehearsed
    assert not torch.distributed.is_initialized()
    assert capsys.readouterr() == ("", ""), "a trial is silent"
    assert (strategy == "DDPStrategy") == bool(setting.shared)
    assert (ranks.group is not None) == (setting.shared == "points")
    assert (config.precision, config.recompute) == (setting.precision, setting.recompute)
    assert result["parameters"] == setting.parameters
    assert need.memory_mb == result["peak_memory_mb"]
    steps, evaluations = ([r for r in records if r["kind"] == kind] for kind in ("train", "evaluate"))
    assert {r["points"] for r in steps} == {200 if setting.training else rehearsal.FEW}
    assert (len(steps), len(evaluations)) == ((4, 1) if setting.training else (4, 4))
    times = sorted(r["seconds"] for r in records)
    assert 0 < need.seconds < times[-1]


def test_a_rank_of_several_has_one_thread_as_torchrun_gives_it(monkeypatch):
    ranks = replace(SETTING, shared="points")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert (SETTING.threads, ranks.threads) == (5, 5)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert (SETTING.threads, ranks.threads) == (5, 1)
    assert plan.about(ranks)["machine"]["threads"] == 1


def test_a_lone_rank_keeps_its_threads(tmp_path):
    assert alone(threads_of_a_lone_rank, tmp_path) == (3, 3)


def threads_of_a_lone_rank(folder):
    os.environ.pop("OMP_NUM_THREADS", None)  # Lightning heeds it
    torch.set_num_threads(3)
    config = rehearsal.rehearsal(replace(SETTING, points=10, shared="points"), folder / "data")
    with lone_fabric(config, RunFolder(folder / "run"), shares=True):
        within = torch.get_num_threads()
    return within, torch.get_num_threads()


def test_ranks_of_a_rehearsal_have_what_the_setting_says(tmp_path):
    for shared, points, samples in [("points", 30, 2), ("samples", 10, 6)]:
        setting = replace(SETTING, points=10, batch=2, shared=shared)
        config = rehearsal.rehearsal(setting, tmp_path / shared, ranks=3, batches=2)
        task = FieldTask(config.data, config.loss)
        assert set(task.dataset.sizes) == {points}
        assert len(task.train) == 2 * samples
        assert replace(setting, recompute=False) == replace(fit.largest_step(config, task, 3), in_dim=3)


def test_the_first_step_does_not_count_and_evaluations_are_no_steps(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(TrainConfig())
    (run.path / "result.json").write_text('{"peak_memory_mb": 321}')
    seconds = [("train", 9), ("train", 10), ("evaluate", 15), ("train", 18), ("evaluate", 25), ("train", 27)]
    for step, (kind, second) in enumerate(seconds):
        run.log({"kind": kind, "step": step, "seconds": float(second)})
    run.close()
    assert rehearsal.need_of(run, SETTING) == Need(321, 2.0)  # of 1, 3 and 2
    assert rehearsal.need_of(run, replace(SETTING, kind="evaluation")) == Need(321, 7.0)  # of 5 and 7


@pytest.mark.parametrize("kind", ["whole", "stream", "scratch"])
def test_a_trial_of_a_prediction_answers_at_all_points(monkeypatch, kind):
    from flare.models.flare import FLAREBlock

    seen, honest = [], FLAREBlock.forward if kind == "whole" else None
    if honest is None:
        honest = Stream.forward
        monkeypatch.setattr(Stream, "forward", lambda stream, write: seen.append(stream) or honest(stream, write))
    else:
        monkeypatch.setattr(FLAREBlock, "forward", lambda block, x, *rest: seen.append(x) or honest(block, x, *rest))
    monkeypatch.setattr("flare.trial.alone", lambda function, *arguments: function(*arguments))
    need = plan.measure(replace(SETTING, points=200, kind=kind, chunk=50))
    assert need.memory_mb > 0
    if kind == "whole":
        assert {tuple(x.shape) for x in seen} == {(1, 64, 16), (1, 200, 16)}
    else:
        assert {(stream.points, stream.chunk) for stream in seen} == {(64, 50), (200, 50)}
        assert {stream.in_memory for stream in seen} == ({0} if kind == "scratch" else {None})


def test_settings_that_cannot_be_are_refused():
    for change, said in [
        ({"points": 0}, "points=0"),
        ({"precision": "8"}, "precision '8'"),
        ({"kind": "guess"}, "kind 'guess'"),
        ({"shared": "everything"}, "shared 'everything'"),
        ({"model": {"name": "lno"}}, "only FLARE models are planned"),
        ({"model": MODEL | {"heads": 7}}, "heads"),
        ({"model": MODEL | {"latents": 0}}, "latents"),
        ({"model": MODEL | {"width": 7}}, "width"),
        ({"device": "tpu"}, "plans are made for cpu and cuda"),
    ]:
        with pytest.raises(ConfigError, match=said):
            replace(SETTING, **change)


@pytest.mark.usefixtures("lawful")
def test_plan_at_the_command_line(tmp_path, capsys):
    words = ["plan", "--points", "1e6", "--blocks", "4", "--memory", "2", "--calibration", str(tmp_path / "c.json")]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "1 x 1,000,000 points on each of 1 rank" in told.out
    assert "does NOT fit" in told.out
    assert "in chunks of 65,536 points" in told.out
    assert "points with " in told.out
    assert "latents" not in told.out  # no number of them would make a million points fit
    assert "step 1 of 5" in told.err
    assert main([*words, "--ranks", "8", "--steps", "1000"]) == 0
    told = capsys.readouterr().out
    assert "1 x 125,000 points on each of 8 ranks" in told
    assert "NOT" not in told
    assert "1,000 steps take" in told
    assert "latents with " in told
    kept = json.loads((tmp_path / "c.json").read_text())["calibrations"]
    assert {"training", "stream"} <= {known["about"]["kind"] for known in kept}
    assert {"", "points"} == {known["about"]["shared"] for known in kept}
    assert main([*words, "--ranks", "2", "--split", "samples", "--batch", "6"]) == 0
    assert "3 x 1,000,000 points on each of 2 ranks" in capsys.readouterr().out
    assert main([*words, "--chunk", "whole"]) == 0
    assert "chunks" not in capsys.readouterr().out


def test_bad_plans_are_refused_before_anything_is_measured(lawful, capsys):
    for words, said in [
        (["--points", "100", "--heads", "7", "--channels", "16"], "heads=7"),
        (["--points", "1.5"], "--points"),
        (["--points", "many"], "--points"),
        ([], "required: --points"),
        (["--points", "100", "--ranks", "0"], "ranks=0"),
        (["--points", "100", "--memory", "-1"], "memory=-1"),
        (["--points", "100", "--batch", "0"], "batch=0"),
        (["--points", "100", "--device", "cuda"], "torch sees no CUDA device here"),
    ]:
        if "cuda" in words and torch.cuda.is_available():
            continue
        assert main(["plan", *words]) == 2, words
        assert said in capsys.readouterr().err, words
    assert lawful == []


def test_a_preset_gives_precision_batch_and_recompute(lawful, tmp_path, capsys):
    preset = tmp_path / "own.yaml"
    preset.write_text(
        f"model: {json.dumps(MODEL)}\nprecision: bf16\nrecompute: true\n"
        "data: {batch_size: 12}\noptim: {accumulate: 4}\n"
    )
    words = ["plan", "--preset", str(preset), "--points", "1000"]
    assert main(words) == 0
    assert "3 x 1,000 points on each of 1 rank, precision bf16" in capsys.readouterr().out
    tried = [setting for setting in lawful if setting.training]
    assert {(setting.precision, setting.recompute) for setting in tried} == {("bf16", True)}
    assert {setting.precision for setting in lawful if not setting.training} == {"32"}
    lawful.clear()
    assert main([*words, "--precision", "32", "--recompute", "false", "--batch", "1"]) == 0
    assert "1 x 1,000 points on each of 1 rank, precision 32" in capsys.readouterr().out
    assert not any(setting.recompute for setting in lawful)
    assert main(["plan", "--preset", "drivaer-1m", "--points", "1000"]) == 0
    assert "precision 16 needs a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [{}, {"channels": 128, "latents": 512}, {"kv_depth": 9, "ffn_depth": 9}, {"ffn_ratio": 5}, {"latent_blocks": 2}],
    ids=str,
)
def test_the_bound_without_calibration_is_well_above_what_a_model_keeps(change):
    from flare.models.cost import cost_of

    model = {"name": "flare", "blocks": 2, "latents": 32} | change
    kept = cost_of(model, 3, 1, 5000).activations / 2**20
    setting = Setting(model=model, points=5000)
    assert not surely_fits(setting, 1024 + 1.9 * kept)
    assert surely_fits(setting, 1024 + 10 * kept)


@pytest.mark.usefixtures("lawful")
def test_a_run_that_cannot_fit_is_refused_before_it_begins(tmp_path, monkeypatch, capsys):
    data = ragged_dataset(tmp_path / "d", [20] * 6)
    words = ["train", "--data.path", str(data.path), "--out", str(tmp_path / "r"), "--epochs", "1", "--device", "cpu"]
    words += ["--model", json.dumps(MODEL), "--report", "false"]
    monkeypatch.setattr(fit, "memory_of", lambda device, ranks=1: 200.0)  # the lawful machine wants 300
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "0.29 GiB" in told
    assert "--fit ignore" in told
    assert not (tmp_path / "r").exists()
    assert main([*words, "--fit", "ignore"]) == 0

    # Nor is it resumed, but read where it is finished.
    resumed = ["train", "--resume", str(tmp_path / "r"), "--report", "false"]
    assert main(resumed) == 0
    (tmp_path / "r" / "result.json").unlink()
    capsys.readouterr()
    for again in (resumed, [*words, "--if-exists", "resume"]):
        assert main(again) == 2
        assert "0.29 GiB" in capsys.readouterr().err
        assert not (tmp_path / "r" / "result.json").exists()
    assert main([*resumed, "--fit", "ignore"]) == 0
    assert (tmp_path / "r" / "result.json").exists()


@pytest.mark.usefixtures("lawful")
def test_plan_calls_fitting_what_train_begins(tmp_path, monkeypatch, capsys):
    data = ragged_dataset(tmp_path / "d", [1000] * 3, test=1)
    schema = data.schema
    setting = replace(SETTING, points=1000, in_dim=schema.in_dim, out_dim=schema.out_dim)
    need = law(setting).memory_mb
    config, _ = run_of(data.path, data={"batch_size": 1, "eval_batch_size": 1})
    words = ["plan", "--points", "1000", "--in-dim", str(setting.in_dim), "--out-dim", str(setting.out_dim)]
    words += ["--preset", str(tmp_path / "own.yaml")]
    (tmp_path / "own.yaml").write_text(json.dumps({"model": MODEL, "data": {"batch_size": 1}}))
    for free, fits in [(1.16 * need, True), (1.14 * need, False)]:
        for module in (environment, fit):
            monkeypatch.setattr(module, "memory_of", lambda device, ranks=1, free=free: free)
        assert main(words) == 0
        training = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("training"))
        assert ("does NOT fit" not in training) == fits
        if fits:
            fit.refuse_too_big(config)
        else:
            with pytest.raises(ConfigError, match="a step of 1 x 1,000 points"):
                fit.refuse_too_big(config)


def test_ranks_share_the_memory_of_a_machine_but_not_of_gpus(monkeypatch):
    assert environment.memory_of("cpu", 4) == pytest.approx(environment.memory_of("cpu") / 4, rel=0.2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**31))
    assert environment.memory_of("cuda", 4) == 1024


@pytest.mark.usefixtures("lawful")
def test_a_plan_takes_the_chunks_a_prediction_would(monkeypatch, capsys):
    monkeypatch.setattr(environment, "memory_of", lambda device, ranks=1: 512.0 / ranks)
    assert main(["plan", "--points", "100000", "--ranks", "2"]) == 0
    told = capsys.readouterr().out
    assert "0.2 GiB each, of this machine all together" in told
    assert "in chunks of 32,768 points" in told  # of one process, which has the machine for itself


def run_of(folder, data=None, **changes):
    settings = {"batch_size": 4, "eval_batch_size": 3} | (data or {})
    config = TrainConfig(data=DataConfig(path=str(folder), **settings), model=MODEL, device="cpu", **changes)
    return config, FieldTask(config.data, config.loss)


def test_the_largest_step_and_evaluation_of_a_rank(tmp_path):
    data = ragged_dataset(tmp_path / "d", [20, 30, 25, 10, 40, 50], test=2)
    for changes, ranks, step, evaluation in [
        ({}, 1, (4, 30), (2, 50)),
        ({"data": {"subsample": 8, "eval_batch_size": 1}}, 1, (4, 8), (1, 50)),
        ({}, 2, (2, 30), (1, 50)),
        ({"split": "points"}, 4, (4, 8), (2, 13)),
        ({"split": "points", "point_ranks": 2}, 4, (2, 15), (1, 25)),
    ]:
        config, task = run_of(data.path, **changes)
        found = fit.largest_step(config, task, ranks)
        judged = fit.largest_evaluation(config, task, ranks)
        assert (found.batch, found.points) == step
        assert (judged.batch, judged.points) == evaluation
        assert found.shared == judged.shared == ("" if ranks == 1 else config.split)
        assert (found.kind, judged.kind) == ("training", "evaluation")


@pytest.mark.usefixtures("lawful")
def test_a_run_whose_evaluation_alone_cannot_fit_is_refused(tmp_path, monkeypatch, capsys):
    data = ragged_dataset(tmp_path / "d", [20, 20, 20, 4000], test=1)
    words = ["train", "--data.path", str(data.path), "--out", str(tmp_path / "r"), "--epochs", "1", "--device", "cpu"]
    words += ["--model", json.dumps(MODEL), "--report", "false"]
    free = 1.15 * law(replace(SETTING, points=20, batch=2)).memory_mb + 1  # enough for the step
    monkeypatch.setattr(fit, "memory_of", lambda device, ranks=1: free)
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "an evaluation of 1 x 4,000 points" in told
    assert "--data.eval_batch_size 1" in told
    assert not (tmp_path / "r").exists()
