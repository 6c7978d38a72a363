"""One clear message, exit code 2, nothing overwritten: for everything that can be wrong with a command."""

import importlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import flare
from flare.cli import main
from flare.data.writer import DatasetWriter
from tests.cli.conftest import TINY
from tests.factory import content, ragged_dataset, ragged_sample, ragged_schema


def fails(capsys, *words) -> str:
    """Run a command that must fail; return its one message."""
    assert main(list(map(str, words))) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    messages = [line for line in output.err.splitlines() if re.match(r"(\w+(Error|Diverged)|Unfit): ", line)]
    assert len(messages) == 1, output.err
    return output.err


def train(dataset, out, *more):
    return ["train", "--data.path", dataset, "--out", out, "--epochs", "1", *TINY, *more]


def test_a_missing_dataset(tmp_path, capsys):
    said = fails(capsys, *train(tmp_path / "none", tmp_path / "run"))
    assert "does not exist. Make it with `flare data make NAME" in said
    assert f"of your own files with `flare data import FILES --target FIELD --out {tmp_path / 'none'}`" in said
    assert "flare data import FILES" in fails(capsys, "view", tmp_path / "none")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("drivaerml-1m", "Fetch it with `flare data download drivaerml --size 1m --out"),
        ("drivaerml", "Fetch it with `flare data download drivaerml --out"),
        ("car-potential", "Make it with `flare data make car-potential --out"),
        ("darcy-small", "Make it with `flare data make darcy --out"),
    ],
)
def test_a_missing_benchmark_is_told_the_command_that_gives_it(tmp_path, capsys, folder, command):
    assert command in fails(capsys, *train(tmp_path / folder, tmp_path / "run"))


def test_a_folder_that_is_no_dataset_is_said_to_be_none(tmp_path, capsys):
    (tmp_path / "docs" / "tables").mkdir(parents=True)
    (tmp_path / "docs" / "tables" / "costs.csv").write_text("model,cost\nflare,some\n")
    assert "docs is not a dataset: it holds no dataset.json. Nor can it be" in fails(
        capsys, "data", "check", tmp_path / "docs"
    )


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
        (["--model", "5"], "unknown model 5"),
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
    assert "'optim' is a group of settings, such as optim.name; it cannot be 3" in message
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
    assert "drop --seed" in fails(capsys, "train", "--resume", run, "--epochs", "9", "--seed", "1")
    assert "cosine" in fails(capsys, "train", "--resume", run, "--epochs", "9")
    assert content(run) == before


def test_files_of_the_user_are_never_overwritten(run, darcy, tmp_path, capsys):
    np.savez(tmp_path / "in.npz", **{k: darcy[0].values[k] for k in ("points", "coefficient")})
    (tmp_path / "out.csv").write_text("mine")
    assert "exists already" in fails(capsys, "predict", run, tmp_path / "in.npz", "--out", tmp_path / "out.csv")
    assert "exists already" in fails(capsys, "evaluate", run, "--out", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("command", "work"),
    [
        ("predict {run} {input} --out {out}.csv", "flare.prediction.predict_into"),
        ("predict {run} {input} --out {out}.vtu", "flare.prediction.predict_into"),
        ("predict {run} {input} --out {tmp}/p.vtu --html {out}.html", "flare.prediction.predict_into"),
        ("predict {run} {input} --out {tmp}/p.vtu --png {out}.png", "flare.prediction.predict_into"),
        ("predict {run} {arrays} --out {out}", "flare.inference.predict_into"),
        ("evaluate {run} --out {out}.json", "flare.surrogate.load"),
        ("spectra {run} --samples 1 --vectors 1 --out {out}", "flare.surrogate.load"),
        ("encode {run} {input} --out {out}.code", "flare.surrogate.load"),
        ("sensitivity {run} {input} --of mean --field pressure --out {out}.npz", "flare.surrogate.load"),
        ("view {run} --samples 1 --out {out}.html", "flare.view.standalone.answer"),
        ("export {run} --format torch --trials 1 --out {out}.pt2", "torch.export.export"),
        ("data check {data} --csv {out}.csv", "flare.data.checks.check.check_dataset"),
        ("lpbf part --out {out}.stl", "flare.physics.lpbf.parts.draw_part"),
    ],
)
def test_nor_are_those_that_appear_during_the_work(run, darcy, tmp_path, capsys, monkeypatch, command, work):
    """As when one command is given in two windows: the first to end keeps its result, the other says so."""
    inputs = {k: darcy[0].values[k] for k in ("points", "coefficient")}
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "in.npz", **inputs)
    for name, values in inputs.items():
        np.save(tmp_path / "arrays" / f"{name}.npy", values)
    places = {"run": run, "data": darcy.path, "tmp": tmp_path, "input": tmp_path / "in.npz"}
    words = command.format(**places, arrays=tmp_path / "arrays", out=tmp_path / "out").split()
    out = Path(words[-1])
    module, name = work.rsplit(".", 1)
    does = getattr(importlib.import_module(module), name)

    def meanwhile(*args, **options):
        theirs = out if out.suffix else out / "theirs"
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("theirs")
        return does(*args, **options)

    monkeypatch.setattr(work, meanwhile)
    assert main(words) == 2
    assert f"{out} exists already; choose another name or remove it" in capsys.readouterr().err
    assert (out if out.suffix else out / "theirs").read_text() == "theirs"
    assert not list(tmp_path.glob(".*"))  # and leaves nothing behind


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


def test_the_same_fields_in_another_order_are_not_taken_for_the_same_channels(tmp_path, capsys):
    schema = ragged_schema(cells=False)
    other = replace(schema, fields={name: schema.fields[name] for name in reversed(schema.fields)})
    for name, layout in (("one", schema), ("two", other)):
        writer = DatasetWriter(tmp_path / name, layout, {"kind": "user"})
        for index in range(4):
            writer.append(ragged_sample(index, 9, cells=False))
        writer.finish({"train": [(0, 2)], "test": [(2, 4)]})
    assert main([*map(str, train(tmp_path / "one", tmp_path / "run")), "--report", "false"]) == 0
    capsys.readouterr()
    message = fails(capsys, "evaluate", tmp_path / "run", "--data", tmp_path / "two")
    assert "its channels are position.x, position.y, thickness, speed, heat, force.x, force.y, trained on" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"points": np.zeros((3, 2))}, "has no feature 'coefficient'"),
        ({"points": np.eye(3), "coefficient": np.zeros(3)}, "is not plane: z goes from 0 to 1"),
        (
            {"points": np.zeros((3, 2)), "coefficient": np.zeros(4)},
            "'coefficient' has shape (4,); expected a value at each",
        ),
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
        ("x,y\n0,0\n", "has no feature 'coefficient'"),
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


def test_debug_shows_the_traceback():
    with pytest.raises(flare.utils.errors.DataError):
        main(["data", "info", "nowhere", "--debug"])


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def greedy(words):
        np.empty(2**62, np.uint8)

    monkeypatch.setattr("flare.cli.info.run", greedy)
    assert "there is not enough memory for this; Unable to allocate" in fails(capsys, "info")


def test_a_picture_of_another_kind_is_refused_before_the_work(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("x,y\n0,0\n")
    words = ["predict", tmp_path / "run", tmp_path / "a.csv", "--out", tmp_path / "b.csv", "--png"]
    assert "b.jpg: the picture is a PNG" in fails(capsys, *words, tmp_path / "b.jpg")


def test_how_to_put_points_is_refused_where_there_is_no_bare_surface(darcy, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("x,y\n0,0\n")
    words = ["predict", tmp_path / "run", tmp_path / "a.csv", "--out", tmp_path / "b.csv"]
    assert "--points voxels is for bare surfaces" in fails(capsys, *words, "--points", "voxels")
    assert "--spacing -3: the distance" in fails(capsys, *words, "--spacing", "-3")
    words = ["predict", tmp_path / "run", darcy.path, "--out", tmp_path / "d", "--spacing", "0.1"]
    assert "--spacing 0.1 is for bare surfaces" in fails(capsys, *words)
