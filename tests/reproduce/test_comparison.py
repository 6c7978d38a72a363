"""Models and attentions side by side: all are trained, checkpoints load, and tables have the measured numbers."""

import json
import statistics

import numpy as np
import pytest
import yaml

import flare
from flare.cli import main
from flare.models import MODELS
from flare.reproduce import comparison
from flare.reproduce.comparison import attention_table, compare_models, model_configs
from flare.reproduce.sequences import VARIANTS
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
    rate, share = (3e-3, 0.95) if model == "perceiver" else (1e-2, 0.9)  # PerceiverIO starts from a plateau
    wanted = model_configs(str(preset), [model], 1, None, [*small(model), ("data.batch_size", 1), ("optim.lr", rate)])
    (row,) = compare_models(wanted, tmp_path)
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
    assert row["parameters"] == json.loads((folder / "result.json").read_text())["parameters"]


def test_every_model_has_a_recipe():
    assert set(MODELS) <= set(recipe_names())


def test_the_table_has_the_mean_and_the_spread_of_the_seeds_and_nothing_is_trained_twice(preset, tmp_path):
    wanted = model_configs(str(preset), ["flare", "lno"], 3, "flare", [*small("flare")[:3]])
    rows = compare_models(wanted, tmp_path)
    assert [statistics.mean(row["errors"]) for row in rows] == sorted(statistics.mean(row["errors"]) for row in rows)
    for row in rows:
        errors = [
            json.loads((tmp_path / row["model"] / f"seed-{seed}" / "result.json").read_text())["rel_l2"]
            for seed in range(3)
        ]
        assert row["errors"] == errors
        assert len(set(errors)) == 3
        text = (tmp_path / "table.md").read_text()
        assert (
            f"| {row['model']} | {row['parameters']:,} | 4 | {row['steps']} | "
            f"{statistics.mean(errors):.4f} ± {statistics.stdev(errors):.4f}" in text
        )
    before = content(tmp_path)
    compare_models(wanted, tmp_path)
    after = content(tmp_path)
    assert {name for name in after if after[name] != before.get(name)} <= {"table.json", "table.md"}


def test_a_model_that_diverges_does_not_stop_the_others(preset, tmp_path, monkeypatch):
    real = comparison.start_or_resume

    def fail(config, folder):
        if config.model["name"] == "lno" and config.seed == 1:
            raise TrainingDiverged("the loss is nan")
        return real(config, folder)

    monkeypatch.setattr(comparison, "start_or_resume", fail)
    sizes = [("model.channels", 16), ("model.blocks", 1), ("model.heads", 2), ("data.train_samples", 8)]
    rows = compare_models(model_configs(str(preset), ["lno", "flare"], 2, None, sizes), tmp_path)
    assert {(row["model"], len(row["errors"]), row["diverged"]) for row in rows} == {("lno", 1, 1), ("flare", 2, 0)}
    assert "| 1 | 1 |\n" in (tmp_path / "table.md").read_text()


def test_models_on_grids_are_left_out_where_there_is_none(preset, tmp_path, capsys):
    cloud = ragged_dataset(tmp_path / "cloud", sizes=(20, 30, 25, 22), test=1)
    words = ["compare", "--preset", str(preset), "--data.path", str(cloud.path), "--out", str(tmp_path / "out")]
    assert main([*words, "--models", "transolver-conv"]) == 2
    assert "grid" in capsys.readouterr().err
    assert (
        main([*words, "--seeds", "1", "--model.channels", "40", "--model.blocks", "1", "--data.batch_size", "1"]) == 0
    )
    told = capsys.readouterr()
    assert "transolver-conv" in told.err
    assert "transolver-conv" not in told.out
    assert "| gnot |" in told.out


def test_the_command(preset, tmp_path, capsys):
    sizes = [f"--model.{name}={value}" for name, value in SIZES.items() if name in ("channels", "blocks", "heads")]
    words = ["compare", "--preset", str(preset), "--models", "flare,transformer", "--seeds", "1", *sizes]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "| flare |" in told
    assert "| transformer |" in told
    assert "±" not in told, "one seed has no spread"
    assert (tmp_path / "out" / "table.md").read_text() == told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "flair"], "flair"),
        (["--seeds", "0"], "--seeds 0"),
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


@pytest.fixture
def command(tmp_path):
    words = [
        "experiment",
        "lra",
        "--tasks",
        "listops-small",
        "--out",
        str(tmp_path / "o"),
        "--data",
        str(tmp_path / "d"),
    ]
    return [*words, "--steps", "2", "--samples", "1000", "--workers", "1"]


def test_every_contender_is_trained_judged_and_kept(tmp_path, command, capsys):
    assert main([*command, "--contenders", "all", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "o" / "listops-small"
    record = json.loads((out / "table.json").read_text())
    assert {row["contender"] for row in record["rows"]} == set(VARIANTS)
    assert (out / "table.md").read_text() == printed
    assert record["samples"] == {"val": 37, "test": 37}
    few = "963 of 98,000 to train and validate, 37 of 2,000 to test"
    assert record["departures"] == {"min_length": 10, "max_length": 80, "max_depth": 3, "samples": few}
    for row in record["rows"]:
        result = json.loads((out / row["contender"] / "seed-0" / "result.json").read_text())
        assert row["accuracy"] == {split: [share] for split, share in result["accuracy"].items()}
        assert result["steps"] == 2
        assert f"| {row['contender']} | {row['parameters']:,} | {100 * row['accuracy']['val'][0]:.1f} |" in printed
    for kind in ("chance", "majority class", "root operator"):
        share = record["guesses"][kind]["test"]
        assert f"| {kind} |  | " in printed
        assert f" | {100 * share:.1f} |" in printed
    configs = {name: (out / name / "seed-0" / "config.yaml").read_text() for name in VARIANTS}
    assert "rotate_latents: true" in configs["flare-rotary-latents"]
    assert "qk_norm: true" in configs["flare-qk-norm"]
    written = (out / "norm" / "seed-0" / "checkpoints" / "last").stat().st_mtime_ns
    assert main([*command, "--contenders", "norm", "--seeds", "2"]) == 0
    assert (out / "norm" / "seed-0" / "checkpoints" / "last").stat().st_mtime_ns == written, "not trained again"
    again = json.loads((out / "table.json").read_text())["rows"]
    assert len(again[0]["accuracy"]["test"]) == 2
    assert main([*command, "--contenders", "norm", "--seeds", "1", "--samples", "900"]) == 2
    error = capsys.readouterr().err
    assert "1000" in error
    assert "900" in error
    assert main([*command, "--contenders", "norm", "--steps", "3"]) == 2
    assert "steps" in capsys.readouterr().err


def test_the_table_of_attentions_has_spread_baselines_divergence_and_the_paper():
    guessed = {"chance": 0.1, "majority class": 0.17, "root operator": 0.363}
    record = {
        "task": "listops",
        "dataset": "listops",
        "provenance": "recreated",
        "departures": {},
        "train_samples": 96_000,
        "samples": {"val": 2000, "test": 2000},
        "steps": 10_000,
        "guesses": {kind: {"val": share, "test": share} for kind, share in guessed.items()},
        "protocol": "own",
        "commits": ["abc"],
        "environment": {"flare": "0", "torch": "2", "processor": "some"},
        "rows": [
            {
                "contender": "vanilla",
                "parameters": 1_000,
                "accuracy": {"val": [0.5, 0.54], "test": [0.6, 0.64]},
                "seconds": [60.0, 62.0],
                "diverged": 1,
            },
            {"contender": "norm", "parameters": 0, "accuracy": {}, "seconds": [], "diverged": 2},
        ],
    }
    text = attention_table(record)
    spread = 100 * np.std([0.6, 0.64], ddof=1)
    assert f"| vanilla | 1,000 | 52.0 ± {spread:.1f} | 62.0 ± {spread:.1f} | 1 min 01 s | 2 | 1 | 36.70 |" in text
    assert "| norm | 0 |  |  |  | 0 | 2 | 17.10 |" in text
    assert "| root operator |  | 36.3 | 36.3 |  |  |  |  |" in text
    assert "| train_samples | 96,000 |" in text
    other = attention_table(record | {"departures": {"max_length": 80}})
    assert "paper" not in other, "another form of the task has no number of the paper"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "listop-small"], "listops-small"),
        (["--contenders", "flare,vanila"], "vanilla"),
        (["--seeds", "0"], "--seeds 0"),
        (["--samples", "99"], "--samples 99"),
        (["--page", "nope.md"], "nope.md"),
        (["--steps", "0"], "steps=0"),
        (["--tasks", "image-small"], "flare data download image --side 8 --levels 16 --out"),
    ],
)
def test_bad_options_of_attentions_are_refused_before_anything_is_trained(tmp_path, command, capsys, words, message):
    assert main([*command, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_contender_that_diverges_does_not_stop_the_others(tmp_path, command, capsys, monkeypatch):
    honest = comparison.start_or_resume

    def start(config, folder):
        if config.model["attention"] == "linear":
            raise TrainingDiverged("the loss is nan")
        return honest(config, folder)

    monkeypatch.setattr(comparison, "start_or_resume", start)
    assert main([*command, "--contenders", "linear,norm", "--seeds", "1"]) == 0
    assert "| linear | 0 |  |  |  | 0 | 1 |" in capsys.readouterr().out
