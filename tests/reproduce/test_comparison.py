"""Models side by side: all are trained, checkpoints load, and the table has the numbers of the records."""

import json
import statistics

import numpy as np
import pytest
import yaml

import flare
from flare.cli import main
from flare.models import MODELS, model_options
from flare.reproduce.comparison import compare_models, model_cells
from flare.reproduce.jobs import Workspace
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import outcomes
from flare.train.presets import preset_folder, read_mapping
from flare.train.recipes import recipe_names
from flare.train.run_folder import RunFolder
from flare.utils.errors import TrainingDiverged
from tests.factory import content, darcy_dataset, ragged_dataset

SIZES = {
    "channels": 16,
    "blocks": 2,
    "heads": 2,
    "latents": 8,
    "kv_depth": 1,
    "ffn_depth": 1,
    "slices": 8,
    "modes": 8,
}


LIVELY = {
    "lno": {"channels": 32, "modes": 16, "mlp_depth": 1, "blocks": 1},
    "perceiver": {"channels": 64, "heads": 4, "latents": 32, "io_depth": 0, "blocks": 1},
}
"""Models that pass everything through their latents take longer to begin; these sizes begin within the epoch."""


FAST = [("model.channels", 16), ("model.blocks", 1), ("model.heads", 2)]


@pytest.fixture(scope="module")
def darcy(tmp_path_factory):
    return darcy_dataset(tmp_path_factory.mktemp("darcy") / "d", samples=204, test=4, resolution=12)


@pytest.fixture(scope="module")
def preset(darcy, tmp_path_factory):
    path = tmp_path_factory.mktemp("presets") / "mine.yaml"
    settings = {
        "data": {"path": str(darcy.path), "batch_size": 4},
        "model": {"name": "flare"},
        "optim": {"lr": 3e-3},
        "epochs": 1,
        "log_every": 1,
        "device": "cpu",
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def small(model):
    """Overrides that make a model small, where it has such a size."""
    name = (
        "flare"
        if model == "flare"
        else read_mapping(preset_folder() / "models" / f"{model}.yaml")["all"]["model"]["name"]
    )
    options = model_options(name)
    chosen = {key: value for key, value in SIZES.items() if key in options} | LIVELY.get(name, {})
    return [(f"model.{key}", value) for key, value in chosen.items()]


@pytest.mark.parametrize("model", recipe_names())
def test_every_model_trains_an_epoch_and_its_checkpoint_loads(model, preset, darcy, tmp_path):
    rate, share = (3e-3, 0.95) if model == "perceiver" else (1e-2, 0.9)  # PerceiverIO starts from a plateau
    overrides = [*small(model), ("data.batch_size", 1), ("optim.lr", rate)]
    (cell,) = cells = model_cells(str(preset), [model], 1, None, overrides)
    text = compare_models(cells, tmp_path, seeds=1)
    folder = Workspace(tmp_path).run(cell.job)
    losses = [r["loss"] for r in RunFolder(folder).records() if r["kind"] == "train"]
    assert len(losses) == 200
    assert np.mean(losses[-40:]) < share * np.mean(losses[:20])
    surrogate, sample = flare.load(folder), darcy[201]
    predicted, truth = surrogate.predict_sample(sample)["pressure"], sample.values["pressure"][:, 0]
    assert predicted.shape == truth.shape
    errors = json.loads((folder / "test_errors.json").read_text())
    again = np.linalg.norm(predicted - truth) / np.linalg.norm(truth)
    assert again == pytest.approx(errors["rel_l2"][errors["samples"].index(201)], rel=1e-4)
    assert f"| {model} | {json.loads((folder / 'result.json').read_text())['parameters']:,} | " in text


def test_every_model_has_a_recipe():
    assert set(MODELS) <= set(recipe_names())


def test_the_table_has_mean_and_spread_with_the_best_model_first(preset, tmp_path, monkeypatch):
    cells = model_cells(str(preset), ["lno", "flare"], 2, "flare", [*FAST, ("data.train_samples", 8)])
    text = compare_models(cells, tmp_path, seeds=2)
    found = sorted(outcomes(Ledger(tmp_path / "records"), cells), key=lambda outcome: outcome.mean)
    rows = [line.split(" | ") for line in text.split("\n\n")[1].splitlines()[2:]]
    assert [row[0].strip("| ") for row in rows] == [outcome.cell.name for outcome in found]
    for row, outcome in zip(rows, found, strict=True):
        assert len(set(outcome.values())) == 2
        mean, spread = (float(number) for number in row[2].split(" ± "))
        assert mean == pytest.approx(1e3 * statistics.mean(outcome.values()), rel=0.01)
        assert spread == pytest.approx(1e3 * statistics.stdev(outcome.values()), rel=0.5, abs=1)
    before = content(tmp_path)
    monkeypatch.setattr("flare.train.run.start_or_resume", None)
    assert compare_models(cells, tmp_path, seeds=2) == text
    assert content(tmp_path) == before
    moved = [cell.job.definition() for cell in cells]
    assert not [each for each in moved if "path" in json.dumps(each)], "a record is of the data, wherever they are"


def test_a_model_that_diverges_does_not_stop_the_others(preset, tmp_path, monkeypatch):
    real = flare.train.run.start_or_resume

    def fail(config, *more):
        if config.model["name"] == "lno" and config.seed == 1:
            raise TrainingDiverged("the loss is nan")
        return real(config, *more)

    monkeypatch.setattr("flare.train.run.start_or_resume", fail)
    cells = model_cells(str(preset), ["lno", "flare"], 2, None, [*FAST, ("data.train_samples", 8)])
    text = compare_models(cells, tmp_path, seeds=2)
    assert "; failed | " in next(line for line in text.splitlines() if line.startswith("| lno | "))
    assert "| lno | 1 | TrainingDiverged: the loss is nan |" in text


def test_models_on_grids_need_a_grid(preset, tmp_path, capsys):
    cloud = ragged_dataset(tmp_path / "cloud", sizes=(20, 30, 25, 22), test=1)
    words = ["compare", "--preset", str(preset), "--data.path", str(cloud.path), "--out", str(tmp_path / "out")]
    assert main([*words, "--models", "transolver-conv"]) == 2
    assert "grid" in capsys.readouterr().err
    sizes = ["--model.channels", "40", "--model.blocks", "1", "--data.batch_size", "1"]
    assert main([*words, "--seeds", "1", "--workers", "1", *sizes]) == 0
    printed = capsys.readouterr()
    assert "transolver-conv" in printed.err
    assert "transolver-conv" not in printed.out
    assert "| gnot |" in printed.out
    assert (tmp_path / "out" / "compare.md").read_text() == printed.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "flair"], "flair"),
        (["--seeds", "0"], "--seeds 0"),
        (["--seeds", "11"], "--seeds 11"),
        (["--seed", "3"], "--seeds"),
        (["--recipe", "lmo"], "lmo"),
        (["--model.latent", "4", "--models", "flare,lno"], "latent"),
        (["--model", "lno"], "--models"),
        (["--model.heads", "3"], "heads=3"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(words, message, preset, tmp_path, capsys):
    assert main(["compare", "--preset", str(preset), "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
