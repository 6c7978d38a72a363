"""Bad input: one message, exit code 2, nothing overwritten."""

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
    messages = [line for line in output.err.splitlines() if re.match(r"(\w+(Error|Diverged)): ", line)]
    assert len(messages) == 1, output.err
    return output.err


def train(dataset, out, *more):
    return ["train", "--data.path", dataset, "--out", out, "--epochs", "1", "--no-report", *TINY, *more]


def test_a_missing_dataset(tmp_path, capsys):
    for words in (train(tmp_path / "none", tmp_path / "run"), ["view", tmp_path / "none"]):
        message = fails(capsys, *words)
        assert "flare data make NAME" in message
        assert f"flare data import FILES --target FIELD --out {tmp_path / 'none'}" in message
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_dataset(tmp_path, capsys):
    (tmp_path / "docs" / "tables").mkdir(parents=True)
    (tmp_path / "docs" / "tables" / "costs.csv").write_text("model,cost\nflare,some\n")
    assert f"{tmp_path / 'docs'}" in fails(capsys, "data", "check", tmp_path / "docs")


def test_a_truncated_array(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d")
    path = dataset.path / "heat.npy"
    path.write_bytes(path.read_bytes()[:-8])
    assert "heat.npy" in fails(capsys, *train(dataset.path, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_nan_in_a_target(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d")
    array = np.load(dataset.path / "heat.npy", mmap_mode="r+")
    array[3] = np.nan
    array.flush()
    message = fails(capsys, *train(dataset.path, tmp_path / "run"))
    assert re.search(r"sample 0.*'heat'.*1 of 5.*\(first: 3\).*flare data check", message)
    assert not (tmp_path / "run").exists()
    assert "2 finding(s)" in fails(capsys, "data", "check", dataset.path)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--optim.lrr", "1"], "--optim.lrr.*'--optim.lr'"),
        (["--epoch", "1"], "--epoch.*'--epochs'"),
        (["--model.latent", "8"], "'latent'.*'latents'"),
        (["--model.name", "flar"], "'flar'.*'flare'"),
        (["--data.normalize.presure", "identity"], "'presure'.*'pressure'"),
        (["--optim.lr", "fast"], "optim.lr"),
        (["--precision", "8"], "precision"),
        (["--data.batch_size", "0"], "--data.batch_size 0"),
        (["--data.batch_size", "99"], "99.* 10 "),
        (["--data.test_split", "tset"], "'tset'.*'test'"),
        (["--data.workers", "-1"], "--data.workers -1"),
        (["--seed", "-1"], "--seed -1"),
        (["--optim.lr", "-1"], "--optim.lr -1"),
        (["--optim.betas", "[0.9, 1.0]"], "--optim.betas 1"),
        (["--model.latent_gelu", "foo"], "latent_gelu.*'foo'"),
        (["--data.normalize.pressure", "5"], "data.normalize.pressure"),
        (["--model", "5"], "model.* 5"),
        (["--model.heads", "5"], "channels=16.*heads=5|heads=5.*channels=16"),
        (["--device", "banana"], "banana"),
        (["--preset", "drcy"], "'drcy'.*'darcy'"),
        (["--preset", "none.yaml"], "none.yaml"),
    ],
)
def test_impossible_settings(darcy, tmp_path, capsys, option, message):
    assert re.search(message, fails(capsys, *train(darcy.path, tmp_path / "run", *option)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"optim: {learning_rat: 1.0e-3}\n", "'optim.learning_rat'"),
        (b"epoch: 3\n", "'epoch'.*'epochs'"),
        (b"optim: 3\n", "'optim'"),
        (b"epochs: many\n", "epochs"),
        (b"\xff\xfe\x00", ""),
        (b"epochs: [1\n", ""),
    ],
)
def test_bad_configuration_files_are_named(tmp_path, capsys, text, message):
    (tmp_path / "mine.yaml").write_bytes(text)
    words = ["train", "--preset", tmp_path / "mine.yaml", "--out", tmp_path / "run"]
    assert re.search(f"mine.yaml.*{message}", fails(capsys, *words))


def test_a_run_is_never_overwritten(run, darcy, capsys):
    before = content(run)
    assert str(run) in fails(capsys, *train(darcy.path, run))
    assert "seed" in fails(capsys, "train", "--resume", run, "--epochs", "9", "--seed", "1")
    assert "cosine" in fails(capsys, "train", "--resume", run, "--epochs", "9")
    assert content(run) == before


@pytest.mark.parametrize(
    ("command", "work"),
    [
        ("predict {run} {input} --out {out}.csv", "flare.inference.prediction.predict_into"),
        ("predict {run} {input} --out {out}.vtu", "flare.inference.prediction.predict_into"),
        ("predict {run} {input} --out {tmp}/p.vtu --png {out}.png", "flare.inference.prediction.predict_into"),
        ("predict {run} {arrays} --out {out}", "flare.inference.chunked.predict_into"),
        ("evaluate {run} --out {out}.json", "flare.train.field_task.load"),
        ("spectra {run} --samples 1 --vectors 1 --out {out}", "flare.inference.surrogate.load"),
        ("encode {run} {input} --out {out}.code", "flare.inference.surrogate.load"),
        ("sensitivity {run} {input} --of mean --field pressure --out {out}.npz", "flare.inference.surrogate.load"),
        ("view {run} --samples 1 --out {out}.html", "flare.view.standalone.answer"),
        ("export {run} --format torch --trials 1 --out {out}.pt2", "torch.export.export"),
        ("data check {data} --csv {out}.csv", "flare.data.checks.check.check_dataset"),
        ("lpbf part --out {out}.stl", "flare.physics.lpbf.parts.draw_part"),
    ],
)
def test_files_that_appear_meanwhile_are_not_overwritten(run, darcy, tmp_path, capsys, monkeypatch, command, work):
    """If one command runs twice, the first to finish keeps its result and the other fails."""
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
    assert str(out) in capsys.readouterr().err
    assert (out if out.suffix else out / "theirs").read_text() == "theirs"
    assert not list(tmp_path.glob(".*"))


def test_a_dataset_of_other_fields(run, tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "d")
    for verb in ("evaluate", "spectra"):
        assert str(dataset.path) in fails(capsys, verb, run, "--data", dataset.path)
    assert str(dataset.path) in fails(capsys, "predict", run, dataset.path, "--out", tmp_path / "out")


def test_fields_in_another_order_are_other_channels(tmp_path, capsys):
    schema = ragged_schema(cells=False)
    other = replace(schema, fields={name: schema.fields[name] for name in reversed(schema.fields)})
    for name, layout in (("one", schema), ("two", other)):
        writer = DatasetWriter(tmp_path / name, layout, {"kind": "user"})
        for index in range(4):
            writer.append(ragged_sample(index, 9, cells=False))
        writer.finish({"train": [(0, 2)], "test": [(2, 4)]})
    assert main([*map(str, train(tmp_path / "one", tmp_path / "run"))]) == 0
    capsys.readouterr()
    assert str(tmp_path / "two") in fails(capsys, "evaluate", tmp_path / "run", "--data", tmp_path / "two")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"points": np.zeros((3, 2)), "coefficient": np.zeros(4)}, "'coefficient' has shape (4,)"),
        ({"points": np.full((3, 2), np.nan), "coefficient": np.zeros(3)}, "'points'"),
    ],
)
def test_points_of_another_layout(run, tmp_path, capsys, content, message):
    np.savez(tmp_path / "in.npz", **content)
    assert message in fails(capsys, "predict", run, tmp_path / "in.npz", "--out", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "'trian'.*'train'"),
        (["data", "mke"], "'mke'.*'make'"),
        (["data", "make", "dracy"], "'dracy'.*'darcy'"),
        (["data", "make", "darcy", "--resolution", "2"], "resolution[= ]2"),
        (["data", "make", "darcy", "--samples", "0"], "--samples 0"),
        (["data", "make", "darcy", "--sample", "2"], "--sample.*'--samples'"),
        (["data", "info", "nowhere"], "nowhere"),
        (["evaluate", "nowhere"], "nowhere"),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["help", "hlep"], "'hlep'"),
        (["train", "--fit", "ignore"], "'--memory-check'"),
        (["train", "--split", "points"], "'--ranks-share'"),
        (["plan", "--points", "9", "--calibration", "c.json"], "'--cache'"),
        (["predict", "r", "m.stl", "--out", "o.vtu", "--points", "voxels"], "'--place-points'"),
        (["data", "import", "r", "--points", "xyz"], "'--coordinates'"),
        (["lpbf", "simulate", "p.stl", "--out", "o.vtu", "--steps", "2"], "'--frames'"),
    ],
)
def test_impossible_commands(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.search(message, fails(capsys, *words))
    assert not list(tmp_path.iterdir())


def test_folders_that_cannot_be_written(darcy, run, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert "file" in fails(capsys, *train(darcy.path, tmp_path / "file" / "run"))
    for out in (tmp_path / "file", tmp_path / "file" / "d"):
        assert "file" in fails(capsys, "data", "make", "darcy", "--samples", "1", "--out", out)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "in.csv"),
        ("x,y,coefficient\n", "in.csv"),
        ("x;y;coefficient\n0;0;3\n", "x;y;coefficient"),
        ("x,y\n0,0\n", "'coefficient'"),
        ("x,y,a\n0,0,3\n0,many,3\n", "line 3"),
    ],
)
def test_tables_that_cannot_be_read(run, tmp_path, capsys, text, message):
    (tmp_path / "in.csv").write_text(text)
    assert message in fails(capsys, "predict", run, tmp_path / "in.csv", "--out", tmp_path / "out.csv")


def test_a_dataset_is_not_a_run_and_a_folder_is_not_a_group(darcy, capsys):
    assert str(darcy.path) in fails(capsys, "evaluate", darcy.path)
    assert "--data.path" in fails(capsys, "train", "--data", darcy.path, "--out", "x")


def test_debug_shows_the_traceback():
    with pytest.raises(flare.utils.errors.DataError):
        main(["data", "info", "nowhere", "--debug"])


def test_too_little_memory_is_one_line(monkeypatch, capsys):
    def greedy(words):
        np.empty(2**62, np.uint8)

    monkeypatch.setattr("flare.cli.info.run", greedy)
    assert "MemoryError" in fails(capsys, "info")


def test_sampling_options_are_for_bare_surfaces(run, darcy, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("x,y,coefficient\n0,0,1\n")
    words = ["predict", run, tmp_path / "a.csv", "--out", tmp_path / "b.csv"]
    assert "--place-points voxels" in fails(capsys, *words, "--place-points", "voxels")
    assert "--spacing -3" in fails(capsys, *words, "--spacing", "-3")
    assert "--spacing" in fails(capsys, "predict", run, darcy.path, "--out", tmp_path / "d", "--spacing", "0.1")
