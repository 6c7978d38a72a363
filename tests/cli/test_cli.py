"""The command line: a whole session, and one clear message for everything that can be wrong with it."""

import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import flare
from flare.cli import VERBS, main
from flare.data.sample import Field, Sample, Schema
from flare.data.store import Dataset
from flare.data.writer import DatasetWriter
from flare.models import build_model, count_parameters
from flare.train.presets import load_config, preset_folder, preset_names, preset_path
from tests.factory import content, darcy_dataset, ragged_dataset

ROOT = Path(__file__).parents[2]
TINY = ["--model.channels", "16", "--model.blocks", "2", "--model.heads", "4", "--model.latents", "4"]
TINY += ["--model.kv_depth", "0", "--model.ffn_depth", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def darcy(tmp_path_factory):
    return darcy_dataset(tmp_path_factory.mktemp("darcy") / "d", samples=14, test=4, resolution=9)


@pytest.fixture(scope="module")
def run(darcy, tmp_path_factory):
    """A finished run with its report."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--data.path", str(darcy.path), "--epochs", "3", "--out", str(out), *TINY]) == 0
    return out


def fails(capsys, *words) -> str:
    """Run a command that must fail; return its one message."""
    assert main(list(map(str, words))) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    messages = [line for line in output.err.splitlines() if re.match(r"\w+(Error|Diverged): ", line)]
    assert len(messages) == 1, output.err
    return output.err


# -- a session ---------------------------------------------------------------------------------------------------------


def test_make_info_and_check(tmp_path, capsys):
    words = ["data", "make", "darcy", "--samples", "6", "--resolution", "8", "--stride", "1", "--workers", "1"]
    assert main([*words, "--out", str(tmp_path / "d")]) == 0
    assert "6 samples, 384 points" in capsys.readouterr().out
    assert main(["data", "info", str(tmp_path / "d")]) == 0
    told = capsys.readouterr().out
    assert "train 5, test 1" in told
    assert "pressure" in told
    assert main(["data", "check", str(tmp_path / "d")]) == 0
    assert "are sound" in capsys.readouterr().out


def test_training_ends_with_error_baseline_and_report(darcy, tmp_path, capsys):
    words = ["train", "--data.path", str(darcy.path), "--epochs", "2", "--out", str(tmp_path / "run"), *TINY]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"test rel-L2 +0\.\d+", lines[0])
    assert re.match(r"training-mean field +0\.\d+", lines[1])
    assert lines[-1].split() == ["report", str(tmp_path / "run" / "report.html")]
    assert main([*words, "--if-exists", "resume"]) == 0
    assert capsys.readouterr().out.splitlines() == lines, "a finished run is shown, not trained again"


def test_the_report_is_one_file_with_everything_in_it(run):
    html = (run / "report.html").read_text()
    names = {"loss", "errors", "median", "best", "worst", "spectra", "eigenvectors"}
    assert {p.stem for p in (run / "pictures").glob("*.png")} == names
    assert html.count("data:image/png;base64,") == len(names)
    assert not re.search(r'(src|href)="https?://', html)
    for text in ("kv_depth: 0", "torch", "training-mean field", "data fingerprint"):
        assert text in html


def test_evaluate_tells_the_same_error_as_training(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--out", str(tmp_path / "errors.json")]) == 0
    told = capsys.readouterr().out
    result = json.loads((run / "result.json").read_text())
    assert f"rel-L2 mean           {result['rel_l2']:.4f}" in told
    assert np.mean(json.loads((tmp_path / "errors.json").read_text())["rel_l2"]) == pytest.approx(result["rel_l2"])


def test_predict_for_a_dataset_a_table_and_an_archive_agree(run, darcy, tmp_path, capsys):
    assert main(["predict", str(run), str(darcy.path), "--split", "test", "--out", str(tmp_path / "predicted")]) == 0
    index = int(darcy.split("test")[0])
    values = darcy[index].values
    want = Dataset(tmp_path / "predicted")[0].values["pressure"][:, 0]

    np.savez(tmp_path / "in.npz", points=values["points"], coefficient=values["coefficient"], other=np.ones(3))
    assert main(["predict", str(run), str(tmp_path / "in.npz"), "--out", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_allclose(out["pressure"], want, rtol=1e-5, atol=1e-8)

    with (tmp_path / "in.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "coefficient", "y", "x"])
        for i, ((x, y), (a,)) in enumerate(zip(values["points"], values["coefficient"], strict=True)):
            writer.writerow([i, a, y, x])
    assert main(["predict", str(run), str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]) == 0
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose([float(row["pressure"]) for row in rows], want, rtol=1e-4, atol=1e-7)
    assert set(rows[0]) == {"points.x", "points.y", "coefficient", "pressure"}


def test_spectra_are_written_with_pictures(run, tmp_path, capsys):
    assert main(["spectra", str(run), "--samples", "2", "--vectors", "3", "--out", str(tmp_path / "s")]) == 0
    assert "mean of 2 samples; M = 4 latents per head" in capsys.readouterr().out
    names = {"spectra.npz", "spectra.png", "eigenvectors.npz", "eigenvectors_block_1.png", "eigenvectors_block_2.png"}
    assert {p.name for p in (tmp_path / "s").iterdir()} == names
    with np.load(tmp_path / "s" / "spectra.npz") as spectra:
        assert spectra["eigenvalues"].shape == (2, 4, 4)
        np.testing.assert_allclose(spectra["eigenvalues"][..., 0], 1.0, atol=1e-12)
    with np.load(tmp_path / "s" / "eigenvectors.npz") as vectors:
        assert vectors["block_1"].shape == (4, 81, 3)


def test_info_says_which_mixer_and_why(capsys):
    assert main(["info"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"mixer +sdpa: two fused attention calls", told)
    assert "torch" in told


# -- help and speed of start -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [[], ["--help"], *([verb, "--help"] for verb in VERBS), ["data", "make", "darcy", "-h"]]
)
def test_every_verb_has_help(words, capsys):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    assert "usage: flare" in capsys.readouterr().out


def test_help_explains_every_setting(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Decoupled decay; biases, norms and latents are left out of it." in text
    assert "such as --model.channels 64" in text


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["data", "--help"]])
def test_help_and_import_do_not_load_torch(words):
    code = (
        "import sys, flare; from flare.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'lightning_fabric', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == flare.__version__


# -- bad input ---------------------------------------------------------------------------------------------------------


def train(dataset, out, *more):
    return ["train", "--data.path", dataset, "--out", out, "--epochs", "1", *TINY, *more]


def test_a_missing_dataset(tmp_path, capsys):
    assert "does not exist. Make one with" in fails(capsys, *train(tmp_path / "none", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_truncated_array(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d")
    path = dataset.path / "heat.npy"
    path.write_bytes(path.read_bytes()[:-8])
    assert "heat.npy is damaged or truncated" in fails(capsys, *train(dataset.path, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_nan_in_a_target(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d")
    array = np.load(dataset.path / "heat.npy", mmap_mode="r+")
    array[3] = np.nan
    array.flush()
    message = fails(capsys, *train(dataset.path, tmp_path / "run"))
    assert "sample 0: 'heat' has NaN or infinity at 1 of 5 points (first: 3)" in message
    assert "flare data check" in message
    assert not (tmp_path / "run").exists()
    assert "2 finding(s)" in fails(capsys, "data", "check", dataset.path)


def test_heads_that_do_not_divide_channels(darcy, tmp_path, capsys):
    message = fails(capsys, *train(darcy.path, tmp_path / "run", "--model.heads", "5"))
    assert "heads=5 does not divide channels=16; use one of [1, 2, 4, 8, 16]" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--optim.lrr", "1"], "unknown option --optim.lrr; did you mean '--optim.lr'?"),
        (["--epoch", "1"], "unknown option --epoch; did you mean '--epochs'?"),
        (["--model.latent", "8"], "no option 'latent'; did you mean 'latents'?"),
        (["--model.name", "flar"], "unknown model 'flar'; did you mean 'flare'?"),
        (["--data.normalise.presure", "identity"], "did you mean 'pressure'?"),
        (["--optim.lr", "fast"], "optim.lr"),
        (["--precision", "8"], "precision"),
        (["--data.batch_size", "0"], "data.batch_size=0; it must be at least 1"),
        (["--data.batch_size", "99"], "more than the 10 training samples"),
        (["--data.train_samples", "99"], "99 samples of split 'train' are asked for"),
        (["--data.test_split", "tset"], "no split 'tset'; did you mean 'test'?"),
        (["--data.workers", "-1"], "data.workers=-1; it must be 0 or more"),
        (["--seed", "-1"], "seed=-1; it must be 0 or more"),
        (["--optim.lr", "-1"], "optim.lr=-1.0; it must be above 0"),
        (["--optim.betas", "[0.9, 1.0]"], "optim.betas[1]=1.0; it must be at least 0 and below 1"),
        (["--model.blocks", "0"], "blocks=0; a model needs at least 1"),
        (["--model.latent_gelu", "foo"], "unknown latent_gelu 'foo'"),
        (["--data.normalise.pressure", "5"], "data.normalise.pressure is 5"),
        (["--model", "flare"], "model"),
        (["--device", "banana"], "device='banana' cannot be used"),
        (["--preset", "drcy"], "there is no preset 'drcy'; did you mean 'darcy'?"),
        (["--preset", "none.yaml"], "there is no configuration file none.yaml"),
    ],
)
def test_settings_that_cannot_be(darcy, tmp_path, capsys, option, message):
    assert message in fails(capsys, *train(darcy.path, tmp_path / "run", *option))
    assert not (tmp_path / "run").exists()


def test_an_unknown_key_in_a_file_names_file_and_nearest(darcy, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("optim: {learning_rat: 1.0e-3}\n")
    message = fails(capsys, "train", "--preset", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert f"{tmp_path / 'mine.yaml'}: unknown setting 'optim.learning_rat'; " in message
    (tmp_path / "mine.yaml").write_text("epoch: 3\n")
    message = fails(capsys, "train", "--preset", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert "unknown setting 'epoch'; did you mean 'epochs'?" in message
    (tmp_path / "mine.yaml").write_text("optim: 3\n")
    message = fails(capsys, "train", "--preset", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert "'optim' is a group of settings, such as optim.lr; it cannot be 3" in message
    (tmp_path / "mine.yaml").write_text("epochs: many\n")
    message = fails(capsys, "train", "--preset", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert 'mine.yaml: setting "epochs"' in message
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not valid YAML" in fails(capsys, "train", "--preset", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    (tmp_path / "mine.yaml").write_text("epochs: [1\n")
    assert "not valid YAML" in fails(capsys, "train", "--preset", tmp_path / "mine.yaml", "--out", tmp_path / "run")


def test_a_run_is_never_overwritten(run, darcy, capsys):
    before = content(run)
    assert "holds a run already" in fails(capsys, *train(darcy.path, run))
    assert "--resume keeps the settings of the run; drop --epochs" in fails(
        capsys, "train", "--resume", run, "--epochs", "9"
    )
    assert content(run) == before


def test_files_of_the_user_are_never_overwritten(run, darcy, tmp_path, capsys):
    np.savez(tmp_path / "in.npz", **{k: darcy[0].values[k] for k in ("points", "coefficient")})
    (tmp_path / "out.csv").write_text("mine")
    assert "exists already" in fails(capsys, "predict", run, tmp_path / "in.npz", "--out", tmp_path / "out.csv")
    assert "exists already" in fails(capsys, "evaluate", run, "--out", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_a_checkpoint_of_another_model(run, darcy, tmp_path, capsys):
    other = [
        "train",
        "--data.path",
        darcy.path,
        "--out",
        tmp_path / "b",
        "--epochs",
        "1",
        *TINY,
        "--model.latents",
        "8",
    ]
    assert main([*map(str, other), "--report", "false"]) == 0
    assert not (tmp_path / "b" / "report.html").exists()
    capsys.readouterr()
    stolen = (run / "checkpoints" / "last" / "model.safetensors").read_bytes()
    (tmp_path / "b" / "checkpoints" / "last" / "model.safetensors").write_bytes(stolen)
    assert "is of another model" in fails(capsys, "evaluate", tmp_path / "b")


def test_a_dataset_of_other_fields(run, tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d")
    for verb in ("evaluate", "spectra"):
        assert "fit this model" in fails(capsys, verb, run, "--data", dataset.path)
    assert "fit this model" in fails(capsys, "predict", run, dataset.path, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"points": np.zeros((3, 2))}, "no array 'coefficient'"),
        ({"points": np.zeros((3, 3)), "coefficient": np.zeros(3)}, "'points' has shape (3, 3), expected (N, 2): x, y"),
        ({"points": np.zeros((3, 2)), "coefficient": np.zeros(4)}, "'coefficient' has shape (4,), expected (3, 1)"),
        ({"points": np.full((3, 2), np.nan), "coefficient": np.zeros(3)}, "'points' has NaN or infinity at 6 places"),
    ],
)
def test_points_that_do_not_fit(run, tmp_path, capsys, content, message):
    np.savez(tmp_path / "in.npz", **content)
    assert message in fails(capsys, "predict", run, tmp_path / "in.npz", "--out", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "flare has no verb 'trian'; did you mean 'train'?"),
        (["data", "mke"], "did you mean 'make'?"),
        (["data", "make", "dracy"], "there is no generator 'dracy'; did you mean 'darcy'?"),
        (["data", "make", "darcy", "--resolution", "2"], "resolution=2"),
        (["data", "make", "darcy", "--sample", "2"], "did you mean '--samples'?"),
        (["data", "info", "nowhere"], "does not exist"),
        (["evaluate", "nowhere"], "run nowhere does not exist"),
        (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["train"], "say where the run goes with --out"),
    ],
)
def test_words_that_make_no_sense(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *words)
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_be_written(darcy, run, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "file" in fails(capsys, *train(darcy.path, tmp_path / "file" / "run"))
    assert "is a file" in fails(capsys, "data", "make", "darcy", "--samples", "1", "--out", tmp_path / "file")
    assert "file" in fails(capsys, "data", "make", "darcy", "--samples", "1", "--out", tmp_path / "file" / "d")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_table_and_an_unknown_device(run, tmp_path, capsys):
    (tmp_path / "in.csv").write_text("x,y,coefficient\n")
    message = fails(capsys, "predict", run, tmp_path / "in.csv", "--out", tmp_path / "out.csv")
    assert "has a header but no rows" in message
    assert "device 'banana' cannot be used here" in fails(capsys, "evaluate", run, "--device", "banana")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no header of columns separated by commas"),
        ("x;y;coefficient\n0;0;3\n", "its first line is 'x;y;coefficient'"),
        ("x,y\n0,0\n", "has no column coefficient.a or coefficient or a; it has x, y"),
        ("x,y,a\n0,0,3\n0,many,3\n", "line 3 holds something that is not a number: 0,many,3"),
        ("x,y,a\n0,0,3\n0,0\n", "line 3 has 2 columns, the header has 3"),
    ],
)
def test_tables_that_cannot_be_read(run, tmp_path, capsys, text, message):
    (tmp_path / "in.csv").write_text(text)
    assert message in fails(capsys, "predict", run, tmp_path / "in.csv", "--out", tmp_path / "out.csv")


def test_a_dataset_is_not_a_run_and_a_folder_is_not_a_group(darcy, capsys):
    assert "is a dataset, not a run folder" in fails(capsys, "evaluate", darcy.path)
    assert "a dataset folder is --data.path" in fails(capsys, "train", "--data", darcy.path, "--out", "x")


def test_dashes_and_underscores_are_the_same(darcy, tmp_path, capsys):
    words = ["data", "make", "darcy", "--samples", "2", "--resolution", "6", "--stride=1", "--workers", "1"]
    assert (
        main([*words, "--grid=node", "--face-mean=harmonic", "--test_samples", "1", "--out", str(tmp_path / "d")]) == 0
    )
    assert Dataset(tmp_path / "d").about["provenance"]["options"]["face_mean"] == "harmonic"


def test_examples_in_the_help_keep_their_lines(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "\n  flare train --resume runs/darcy\n" in capsys.readouterr().out


def test_several_fields_are_judged_one_by_one(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d", [20] * 6, test=2)
    words = ["train", "--data.path", str(dataset.path), "--out", str(tmp_path / "r"), "--epochs", "2", *TINY]
    assert main([*words, "--report", "false"]) == 0
    told = capsys.readouterr().out
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert set(result["fields"]) == {"force", "heat"}
    assert result["rel_l2"] == pytest.approx(np.mean([of["rel_l2"] for of in result["fields"].values()]))
    assert re.search(r"\n  force +\d\.\d{4}   training-mean field \d\.\d{4}; ours is", told)
    assert main(["evaluate", str(tmp_path / "r")]) == 0
    assert f"  heat                {result['fields']['heat']['rel_l2']:.4f}" in capsys.readouterr().out


def test_a_model_worse_than_the_mean_is_called_so(run, capsys):
    assert main(["evaluate", str(run)]) == 0
    assert re.search(r"ours is WORSE, \d\.\d times its error", capsys.readouterr().out)


def test_a_reader_that_leaves_early_is_no_error(darcy):
    command = f"{sys.executable} -m flare data info {darcy.path} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert "darcy: 14 samples" in done.stdout


def test_evaluation_of_a_set_without_a_training_split(run, darcy, tmp_path, capsys):
    assert main(["predict", str(run), str(darcy.path), "--split", "test", "--out", str(tmp_path / "p")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(tmp_path / "p")]) == 0
    told = capsys.readouterr().out
    assert "rel-L2 mean           0.0000" in told, "a model agrees with its own predictions"
    assert "training-mean field" in told


def test_points_on_a_line_train_and_report(tmp_path, capsys):
    schema = Schema(
        name="line",
        fields={
            "s": Field(role="points", components=("s",)),
            "u": Field(role="target", components=("u",)),
        },
    )
    writer = DatasetWriter(tmp_path / "d", schema, {"kind": "user"})
    for i in range(6):
        s = np.linspace(0, 1, 20 + i)[:, None]
        writer.append(Sample({"s": s, "u": 1 + s * i}))
    writer.finish({"train": [(0, 4)], "test": [(4, 6)]})
    assert (
        main(["train", "--data.path", str(tmp_path / "d"), "--out", str(tmp_path / "r"), "--epochs", "1", *TINY]) == 0
    )
    assert capsys.readouterr().out.splitlines()[-1].endswith("report.html")
    assert {p.stem for p in (tmp_path / "r" / "pictures").glob("*.png")} == {"loss", "errors", "spectra"}


def test_a_picture_that_cannot_be_drawn_does_not_cost_the_result(darcy, tmp_path, capsys, monkeypatch):
    from flare.report import run as report

    def fail(*_):
        raise flare.errors.DataError("no ink")

    monkeypatch.setattr(report, "loss_curves", fail)
    assert main([*map(str, train(darcy.path, tmp_path / "r"))]) == 0
    told = capsys.readouterr()
    assert "test rel-L2" in told.out
    assert "no report: no ink" in told.err
    monkeypatch.undo()
    assert main(["train", "--resume", str(tmp_path / "r")]) == 0
    assert (tmp_path / "r" / "report.html").exists(), "it is written when the run is asked for again"


def test_debug_shows_the_traceback():
    with pytest.raises(flare.errors.DataError):
        main(["data", "info", "nowhere", "--debug"])


# -- presets and README ------------------------------------------------------------------------------------------------

PAPER = {
    "elasticity": (2, 592_641, 2, 1e-5, 500),
    "darcy": (3, 691_009, 2, 1e-5, 500),
    "airfoil": (2, 690_945, 2, 1e-5, 500),
    "pipe": (2, 625_409, 2, 1e-5, 500),
    "drivaerml": (3, 691_009, 1, 1e-4, 500),
    "lpbf": (3, 625_473, 1, 1e-4, 250),
}
"""in_dim, parameters, batch, weight decay, epochs of the paper's recipe."""


def test_there_is_a_preset_for_each_dataset_of_the_paper():
    assert set(PAPER) <= set(preset_names())


@pytest.mark.parametrize("name", sorted(p.stem for p in preset_folder().glob("*.yaml")))
def test_every_preset_loads_and_builds(name):
    config = load_config(preset_path(name))
    sizes = {key: value for key, value in config.model.items() if key != "name"}
    in_dim, parameters, batch, decay, epochs = PAPER.get(name, (3, None, None, None, None))
    model = build_model(config.model["name"], in_dim, 1, **sizes)
    if name in PAPER:
        assert count_parameters(model) == parameters
        recipe = (config.data.batch_size, config.optim.weight_decay, config.epochs)
        assert recipe == (batch, decay, epochs)
        optim = config.optim
        assert (optim.lr, optim.warmup, optim.div, optim.final_div, optim.clip) == (1e-3, 0.1, 1e4, 1e4, 1.0)
        assert config.loss.gradient_weight == (0.1 if name == "darcy" else 0.0)


def test_the_resolved_configuration_is_kept_and_reads_back(run):
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert kept["optim"]["warmup"] == 0.1
    assert kept["model"]["channels"] == 16
    assert load_config(run / "config.yaml").to_dict() == kept


def documented_commands():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    lines = [line.strip() for page in pages for line in page.read_text().splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("flare ")]


@pytest.mark.parametrize("line", documented_commands())
def test_documented_commands_use_options_that_exist(line, capsys):
    words = shlex.split(line, comments=True)[1:]
    depth = 3 if words[:2] == ["data", "make"] else 2 if words[0] == "data" else 1
    if words[0].startswith("--"):
        assert main(words) == 0
        return
    with pytest.raises(SystemExit):
        main([*words[:depth], "--help"])
    known = capsys.readouterr().out
    for option in (word for word in words if word.startswith("--")):
        name = "--model" if option.startswith("--model.") else option
        assert name in known, f"{line}: {option}"
