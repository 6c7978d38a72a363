"""Models side by side: every one of them learns, its checkpoint loads back, and the table says what was measured."""

import json
import statistics

import numpy as np
import pytest
import yaml

import flare
from flare.cli import main
from flare.models import MODELS
from flare.reproduce import runs
from flare.reproduce.items.compare import compare, configurations
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
    from flare.models import model_options
    from flare.train.presets import preset_folder, read_mapping

    name = (
        "flare"
        if model == "flare"
        else read_mapping(preset_folder() / "models" / f"{model}.yaml")["all"]["model"]["name"]
    )
    options = model_options(name)
    chosen = {key: value for key, value in SIZES.items() if key in options} | LIVELY.get(name, {})
    return [(f"model.{key}", value) for key, value in chosen.items()]


@pytest.mark.parametrize("model", recipe_names())
def test_one_epoch_of_every_model_runs_the_loss_falls_and_the_checkpoint_loads_back(model, preset, darcy, tmp_path):
    rate, share = (3e-3, 0.95) if model == "perceiver" else (1e-2, 0.8)  # PerceiverIO starts from a plateau
    wanted = configurations(str(preset), [model], 1, None, [*small(model), ("data.batch_size", 1), ("optim.lr", rate)])
    (row,) = compare(wanted, tmp_path, lambda line: None)
    folder = tmp_path / model / "seed-0"
    losses = [r["loss"] for r in RunFolder(folder).records() if r["kind"] == "train"]
    assert len(losses) == 200
    assert np.mean(losses[-40:]) < share * np.mean(losses[:20])
    surrogate, sample = flare.load(folder), darcy[201]
    predicted, truth = surrogate.predict_sample(sample)["pressure"], sample.values["pressure"][:, 0]
    assert predicted.shape == truth.shape
    errors = json.loads((folder / "test_errors.json").read_text())
    again = np.linalg.norm(predicted - truth) / np.linalg.norm(truth)
    assert again == pytest.approx(errors["rel_l2"][errors["samples"].index(201)], rel=1e-4)
    assert row.parameters == json.loads((folder / "result.json").read_text())["parameters"]


def test_every_model_has_a_recipe():
    assert set(MODELS) <= set(recipe_names())


def test_the_table_has_the_mean_and_the_spread_of_the_seeds_and_nothing_is_trained_twice(preset, tmp_path):
    wanted = configurations(str(preset), ["flare", "lno"], 3, "flare", [*small("flare")[:3]])
    rows = compare(wanted, tmp_path, lambda line: None)
    assert [row.mean for row in rows] == sorted(row.mean for row in rows)
    for row in rows:
        errors = [
            json.loads((tmp_path / row.model / f"seed-{seed}" / "result.json").read_text())["rel_l2"]
            for seed in range(3)
        ]
        assert row.errors == errors
        assert len(set(errors)) == 3
        text = (tmp_path / "table.md").read_text()
        assert (
            f"| {row.model} | {row.parameters:,} | 4 | {row.steps} | "
            f"{statistics.mean(errors):.4f} ± {statistics.stdev(errors):.4f}" in text
        )
    before = content(tmp_path)
    compare(wanted, tmp_path, lambda line: None)
    after = content(tmp_path)
    assert {name for name in after if after[name] != before.get(name)} <= {"table.json", "table.md"}


def test_a_model_that_diverges_does_not_stop_the_others(preset, tmp_path, monkeypatch):
    real = runs.start_or_resume

    def fail(config, folder):
        if config.model["name"] == "lno" and config.seed == 1:
            raise TrainingDiverged("the loss is nan")
        return real(config, folder)

    monkeypatch.setattr(runs, "start_or_resume", fail)
    sizes = [("model.channels", 16), ("model.blocks", 1), ("model.heads", 2), ("data.train_samples", 8)]
    told = []
    rows = compare(configurations(str(preset), ["lno", "flare"], 2, None, sizes), tmp_path, told.append)
    assert {(row.model, len(row.errors), row.diverged) for row in rows} == {("lno", 1, 1), ("flare", 2, 0)}
    assert "lno, seed 1: the loss is nan" in told
    assert "| 1, 1 diverged |" in (tmp_path / "table.md").read_text()


def test_models_on_grids_are_left_out_where_there_is_none(preset, tmp_path, capsys):
    cloud = ragged_dataset(tmp_path / "cloud", sizes=(20, 30, 25, 22), test=1)
    words = ["compare", "--preset", str(preset), "--data.path", str(cloud.path), "--out", str(tmp_path / "out")]
    assert main([*words, "--models", "transolver-conv"]) == 2
    assert "reads points on a grid" in capsys.readouterr().err
    assert (
        main([*words, "--seeds", "1", "--model.channels", "40", "--model.blocks", "1", "--data.batch_size", "1"]) == 0
    )
    told = capsys.readouterr()
    assert "without transolver-conv" in told.err
    assert "transolver-conv" not in told.out
    assert "| gnot |" in told.out


def test_the_command(preset, tmp_path, capsys):
    sizes = [f"--model.{name}={value}" for name, value in SIZES.items() if name in ("channels", "blocks", "heads")]
    words = ["compare", "--preset", str(preset), "--models", "flare,transformer", "--seeds", "1", *sizes]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "| flare |" in told
    assert "| transformer |" in told
    assert "±" not in told.split("\n\n")[0], "one seed has no spread"
    assert (tmp_path / "out" / "table.md").read_text() == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "flair"], "there is no model 'flair'; did you mean 'flare'"),
        (["--seeds", "0"], "at least 1"),
        (["--seed", "3"], "unknown option --seed; did you mean '--seeds'?"),
        (["--recipe", "lmo"], "unknown model 'lmo'"),
        (["--model.latent", "4", "--models", "flare,lno"], "none of flare, lno has an option 'latent'"),
        (["--model", "lno"], "say which models with --models"),
        (["--model.heads", "3"], "heads=3 does not divide"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(words, message, preset, tmp_path, capsys):
    assert main(["compare", "--preset", str(preset), "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
