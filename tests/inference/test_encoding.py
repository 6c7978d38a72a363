"""Prediction in chunks and from disk, and encodings."""

import re
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flare.cli import main
from flare.data.normalization import Affine
from flare.data.sample import Sample
from flare.inference import chunked
from flare.inference.encoding import load_encoding
from flare.inference.mesh_inputs import mesh_inputs
from flare.inference.probes import grids, line, plane
from flare.inference.surrogate import Surrogate, save_model
from flare.models import streaming as stream
from flare.utils.errors import ConfigError, DataError
from tests.factory import ragged_sample, ragged_schema

MODEL = {"name": "flare", "channels": 16, "blocks": 2, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0}
COUNT = 130


def untrained(**sizes):
    """Return a surrogate whose prediction varies between points."""
    torch.manual_seed(0)
    norms = Affine([0.1, 0.0, 1.0, 2.0], [1.0, 2.0, 0.5, 0.7]), Affine([20.0, 0.0, 1e-3], [50.0, 60.0, 2e-3])
    surrogate = Surrogate(MODEL | sizes, ragged_schema(), *norms).eval()
    with torch.no_grad():
        for parameter in surrogate.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return surrogate


@pytest.fixture(scope="module")
def surrogate():
    return untrained()


@pytest.fixture(scope="module")
def inputs():
    values = ragged_sample(0, COUNT).values
    return {name: values[name].astype(np.float32) for name in ("position", "thickness", "speed")}


@pytest.fixture
def run(surrogate, tmp_path):
    folder = tmp_path / "run" / "checkpoints" / "last"
    folder.mkdir(parents=True)
    save_model(surrogate.state_dict(), surrogate.about, folder)
    return tmp_path / "run"


def ask(surrogate, inputs, **how):
    return surrogate.predict(inputs["position"], **named(inputs), **how)


def named(inputs):
    return {"features": {"thickness": inputs["thickness"]}, "parameters": {"speed": inputs["speed"]}}


def encoded(surrogate, inputs, **how):
    return surrogate.encode(inputs["position"], **named(inputs), **how)


def assert_same(found, truth, limit=1e-6):
    assert found.keys() == truth.keys()
    for name, values in truth.items():
        assert found[name].shape == values.shape
        assert np.linalg.norm(found[name] - values) < limit * np.linalg.norm(values), name


@pytest.mark.parametrize("chunk", [7, 1000])
def test_chunks_predict_what_the_whole_predicts(surrogate, inputs, chunk):
    whole = ask(surrogate, inputs, chunk="whole")
    assert np.ptp(whole["heat"]) > 0.01 * np.abs(whole["heat"]).max()
    assert_same(ask(surrogate, inputs, chunk=chunk), whole)


def test_many_points_are_streamed_by_default(surrogate, inputs, monkeypatch):
    whole = ask(surrogate, inputs, chunk="whole")
    monkeypatch.setattr(chunked, "CHUNK", 50)
    monkeypatch.setattr(type(surrogate.network), "forward", None)
    assert_same(ask(surrogate, inputs), whole)


@pytest.mark.parametrize(
    ("channels", "free_mb", "points"),
    [(64, 20_000, 65_536), (64, 1024, 65_536), (256, 1024, 16_384), (64, 512, 32_768), (64, 1, 1024)],
)
def test_a_chunk_is_smaller_for_more_channels_and_less_memory(channels, free_mb, points, monkeypatch):
    monkeypatch.setattr(chunked, "available_memory_mb", lambda device: float(free_mb))
    surrogate = Surrogate(MODEL | {"channels": channels}, ragged_schema())
    assert chunked.auto_chunk(surrogate) == points
    surrogate = Surrogate(MODEL | {"channels": channels, "shared_latents": True}, ragged_schema())
    assert chunked.auto_chunk(surrogate) == points


def test_a_baseline_predicts_all_points_at_once_and_refuses_chunks(inputs, monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK", 50)
    baseline = Surrogate({"name": "transolver", "channels": 16, "blocks": 1, "heads": 2}, ragged_schema())
    assert ask(baseline, inputs)["heat"].shape == (COUNT,)
    with pytest.raises(ConfigError, match="chunks"):
        ask(baseline, inputs, chunk=10)


def test_an_encoding_gives_the_prediction_at_the_encoded_points(surrogate, inputs, tmp_path):
    whole = ask(surrogate, inputs, chunk="whole")
    code = encoded(surrogate, inputs, chunk=17)
    assert_same(code.query(inputs["position"], {"thickness": inputs["thickness"]}), whole)
    code.save(tmp_path / "part.code")
    read = load_encoding(tmp_path / "part.code", surrogate)
    assert_same(read.query(inputs["position"], {"thickness": inputs["thickness"]}), whole)
    with pytest.raises(DataError, match="'speed'"):
        read.query(inputs["position"], {"thickness": inputs["thickness"], "speed": 3.0})
    some = read.query(inputs["position"][5:9], {"thickness": inputs["thickness"][5:9]})
    assert_same(some, {name: values[5:9] for name, values in whole.items()})
    assert (read.box == [inputs["position"].min(0), inputs["position"].max(0)]).all()
    assert read.points == COUNT


def test_an_encoding_belongs_to_one_model(surrogate, inputs, tmp_path):
    encoded(surrogate, inputs).save(tmp_path / "part.code")
    with pytest.raises(DataError, match=r"part\.code"):
        load_encoding(tmp_path / "part.code", untrained(latents=8))
    whole = (tmp_path / "part.code").read_bytes()
    (tmp_path / "part.code").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"part\.code"):
        load_encoding(tmp_path / "part.code", surrogate)
    with pytest.raises(DataError, match=r"none\.code"):
        load_encoding(tmp_path / "none.code", surrogate)


def test_predict_reads_and_writes_folders_of_arrays(surrogate, run, inputs, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for name, values in inputs.items():
        np.save(tmp_path / "in" / f"{name}.npy", values)
    for chunk in ("auto", "16"):
        out = tmp_path / f"out-{chunk}"
        assert main(["predict", str(run), str(tmp_path / "in"), "--out", str(out), "--chunk", chunk]) == 0
        found = {name: np.load(out / f"{name}.npy") for name in ("force", "heat")}
        assert_same(found, ask(surrogate, inputs, chunk="whole"))
    assert f"heat, {COUNT} points" in capsys.readouterr().out
    assert main(["predict", str(run), str(tmp_path / "in"), "--out", str(tmp_path / "out-16")]) == 2
    assert "out-16" in capsys.readouterr().err
    (tmp_path / "in" / "thickness.npy").unlink()
    assert main(["predict", str(run), str(tmp_path / "in"), "--out", str(tmp_path / "new")]) == 2
    assert "thickness" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_of_arrays_is_checked_and_read_in_chunks(surrogate, inputs, tmp_path):
    rng, many = np.random.default_rng(0), 400_000
    arrays = {"position": rng.random((many, 2)), "thickness": rng.integers(1, 3, many), "speed": inputs["speed"]}
    source = folder_of(tmp_path / "in", arrays)
    tracemalloc.start()
    sample = mesh_inputs(surrogate, source).sample
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.3 * arrays["position"].nbytes, "neither copied nor checked at once"
    few = {name: values[:300] if name != "speed" else values for name, values in arrays.items()}
    outputs = chunked.empty_outputs(surrogate, 300)
    some = {name: values[:300] if name != "speed" else values for name, values in sample.values.items()}
    chunked.predict_into(surrogate, Sample(some), outputs, chunk=100)
    plain = {name: values.astype(np.float32) for name, values in few.items()}
    assert_same(chunked.as_fields(outputs), ask(surrogate, plain, chunk=100), limit=1e-12)
    spoiled = np.load(source / "position.npy", mmap_mode="r+")
    spoiled[[70_000, 399_999], 1] = np.nan, 1e300  # beyond float32
    with pytest.raises(DataError, match=r"'position'.*\[70000, 1\]"):
        mesh_inputs(surrogate, source)


@pytest.mark.parametrize("chunk", ["0", "-3", "some"])
def test_an_impossible_chunk_is_refused(tmp_path, capsys, chunk):
    assert main(["predict", "run", "in", "--out", str(tmp_path / "out"), f"--chunk={chunk}"]) == 2
    assert "--chunk" in capsys.readouterr().err


def test_encode_and_probe_at_the_command_line(surrogate, run, inputs, tmp_path, capsys):
    np.savez(tmp_path / "part.npz", **inputs)
    code = tmp_path / "part.code"
    assert main(["encode", str(run), str(tmp_path / "part.npz"), "--out", str(code), "--chunk", "30"]) == 0
    assert "130 points as 2 blocks" in capsys.readouterr().out
    probe = ["probe", str(run), str(code), "--set", "thickness=1.2"]
    assert main([*probe, "--line", "-1,0:1,0.5", "--count", "11", "--out", str(tmp_path / "line.npz")]) == 0
    found = np.load(tmp_path / "line.npz")
    assert found["thickness"].shape == found["heat"].shape == (11,)
    truth = encoded(surrogate, inputs).query(found["position"], {"thickness": np.full(11, 1.2)})
    assert_same({name: found[name] for name in truth}, truth)
    np.testing.assert_allclose(found["position"][[0, -1]], [[-1, 0], [1, 0.5]])
    assert "outside" not in capsys.readouterr().err
    assert main([*probe, "--line", "0,0:100,0", "--count", "11", "--out", str(tmp_path / "far.npz")]) == 0
    assert re.search(r"WARNING: .*far\.npz.* 10 of 11 points", capsys.readouterr().err)
    assert main([*probe, "--grid", "--cells", "3", "--levels", "2", "--out", str(tmp_path / "g.csv")]) == 0
    assert [len((tmp_path / f"g-{i}.csv").read_text().splitlines()) for i in (0, 1)] == [1 + 4 * 2, 1 + 7 * 3]
    assert main([*probe, "--plane", "0,0:1,0:0,2", "--count", "5", "--out", str(tmp_path / "p.npz")]) == 0
    sheet = np.load(tmp_path / "p.npz")
    assert sheet["position"].reshape(*sheet["probe.shape"], 2)[-1, -1].tolist() == [1, 2]
    assert main([*probe, "--grid", "--cells", "3", "--levels", "2", "--out", str(tmp_path / "g.npz")]) == 0
    for level in (0, 1):
        grid = np.load(tmp_path / f"g-{level}.npz")
        assert grid["probe.level"] == level
        assert grid["heat"].reshape(grid["probe.shape"]).shape == [(4, 2), (7, 3)][level]
    for wrong in (
        "--line 0,0",
        "--line 0,0,0:1,1,1",
        "--line 0,0:1,x",
        "--line 0,0:1,1 --box 0,0:1,1",
        "",
        "--grid --line 0,0:1,1",
        "--grid --levels 0",
        "--grid --levels 16",
        "--plane 0,0:1,0:0,1 --count 20000",
    ):
        assert main([*probe, *wrong.split(), "--out", str(tmp_path / "wrong.npz")]) == 2, wrong
    capsys.readouterr()
    assert main([*probe[:3], "--line", "0,0:1,1", "--out", str(tmp_path / "wrong.npz")]) == 2
    assert "'thickness'" in capsys.readouterr().err
    not_encoded = [*probe[:2], str(tmp_path / "part.npz"), *probe[3:], "--line", "0,0:1,1", "--out"]
    assert main([*not_encoded, str(tmp_path / "wrong.npz")]) == 2
    assert "part.npz" in capsys.readouterr().err
    assert not (tmp_path / "wrong.npz").exists()


def test_an_encoding_of_averaged_weights_is_queried_with_them(surrogate, run, inputs, tmp_path, capsys):
    averaged = {name: 1.05 * tensor for name, tensor in surrogate.state_dict().items()}
    save_file(averaged, run / "checkpoints" / "last" / "ema.safetensors")
    np.savez(tmp_path / "part.npz", **inputs)
    assert main(["encode", str(run), str(tmp_path / "part.npz"), "--ema", "--out", str(tmp_path / "c")]) == 0
    probe = ["probe", str(run), str(tmp_path / "c"), "--set", "thickness=1", "--line", "0,0:1,1", "--out"]
    assert main([*probe, str(tmp_path / "line.npz"), "--ema"]) == 0
    assert main([*probe, str(tmp_path / "other.npz")]) == 2
    assert str(tmp_path / "c") in capsys.readouterr().err


def test_scratch_files_are_beside_the_output_or_in_the_given_folder(run, inputs, tmp_path, capsys, monkeypatch):
    used = []
    monkeypatch.setattr(stream, "MOST_IN_MEMORY", 0)
    real = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: (used.append(Path(how["dir"])), real(**how))[1])
    np.savez(tmp_path / "part.npz", **inputs)
    (tmp_path / "big").mkdir()
    for verb in ("predict", "encode"):
        words = [verb, str(run), str(tmp_path / "part.npz"), "--chunk", "16", "--out"]
        assert main([*words, str(tmp_path / verb / "new" / "out.npz")]) == 0
        assert set(used) == {tmp_path}, "an existing folder, not the system's"
        used.clear()
        assert main([*words, str(tmp_path / f"{verb}.npz"), "--scratch", str(tmp_path / "big")]) == 0
        assert set(used) == {tmp_path / "big"}
        used.clear()
    assert list((tmp_path / "big").iterdir()) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    assert main([*words, str(tmp_path / "no")]) == 2, "features are 8320 bytes"
    assert "8.32e-06 GB" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def folder_of(path, arrays):
    path.mkdir()
    for name, values in arrays.items():
        np.save(path / f"{name}.npy", values)
    return path


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("position", {"position": np.zeros((0, 2)), "thickness": np.zeros(0)}),
        ("thickness", {"thickness": np.ones(10)}),
        ("thickness", {"thickness": np.where(np.arange(COUNT) == 5, np.nan, 1)}),
        ("thickness", {"thickness": np.full(COUNT, "1.0")}),
    ],
    ids=["empty", "short", "holes", "words"],
)
def test_a_bad_field_is_named_with_its_file(surrogate, inputs, tmp_path, field, change):
    np.savez(tmp_path / "a.npz", **inputs | change)
    for source in (folder_of(tmp_path / "a", inputs | change), tmp_path / "a.npz"):
        with pytest.raises(DataError, match=f"{re.escape(str(source))}: '{field}'"):
            mesh_inputs(surrogate, source)


def test_bad_arguments_are_refused_without_importing_torch(inputs, tmp_path):
    folder_of(tmp_path / "in", inputs)
    (tmp_path / "old.npz").touch()
    commands = [
        "predict run in --out old.npz",
        "predict run in --out new --split test",
        "predict run in --out new --scratch none",
        "encode run in --out old.npz",
        "probe run code --grid --out old.npz",
        "probe run code --grid --out new",
        "probe run code --plain --out new.npz",
    ]
    program = f"""
import os, sys
sys.modules["torch"] = None  # importing it fails
from flare.cli import main
os.chdir({str(tmp_path)!r})
sys.exit(any(main(command.split()) != 2 for command in {commands}))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_probes_have_the_given_corners():
    assert line([0, 0], [1, 2], 3).points.tolist() == [[0, 0], [0.5, 1], [1, 2]]
    sheet = plane([0, 0, 1], [2, 0, 1], [0, 1, 1], 5)
    assert sheet.shape == (5, 3)
    np.testing.assert_allclose(sheet.points.reshape(5, 3, 3)[4, 2], [2, 1, 1])
    coarse, fine = list(grids([0, 0, 0], [2, 1, 0], 4, 2))
    assert (coarse.shape, fine.shape) == ((5, 3, 1), (9, 5, 1))
    seen = {tuple(p) for p in fine.points.tolist()}
    assert all(tuple(p) in seen for p in coarse.points.tolist()), "grids are nested"
