"""Readers of published files, on tiny files of the same layout in which every number is unique."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy.io import savemat

from flare.cli import main
from flare.data.benchmarks.cards import card
from flare.data.benchmarks.published import AirfoilFiles, DarcyFiles, ElasticityFiles, PipeFiles, read_published
from flare.data.dataset import Dataset
from flare.data.generation.generate import generate
from flare.data.sample import input_array, target_array
from flare.physics import generator_class
from flare.physics.elasticity import Elasticity
from flare.utils.errors import ConfigError, DataError
from tests.factory import content


def numbers(*shape):
    return 1.0 + np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


@pytest.fixture
def elasticity(tmp_path):
    points, stress = numbers(18, 2, 12), numbers(18, 12)
    np.save(tmp_path / "Random_UnitCell_XY_10.npy", points)
    np.save(tmp_path / "Random_UnitCell_sigma_10.npy", stress)
    return ElasticityFiles(folder=str(tmp_path), train=8, test=3), points, stress


@pytest.fixture
def darcy(tmp_path):
    halves = []
    for i in (1, 2):
        coefficient, pressure = (numbers(6, 21, 21) + 10_000 * i + 5_000 * k for k in (0, 1))
        halves.append((coefficient.astype(np.float32), pressure.astype(np.float32)))
        record = {"coeff": halves[-1][0], "sol": halves[-1][1], "Kcoeff": numbers(2, 2)}
        savemat(tmp_path / f"piececonst_r421_N1024_smooth{i}.mat", record)
    return DarcyFiles(folder=str(tmp_path), train=5, test=2), *halves


@pytest.fixture
def airfoil(tmp_path):
    arrays = numbers(9, 11, 5), 9_000 + numbers(9, 11, 5), numbers(9, 5, 11, 5)
    for axis, array in zip("XYQ", arrays, strict=True):
        np.save(tmp_path / f"NACA_Cylinder_{axis}.npy", array)
    return AirfoilFiles(folder=str(tmp_path), train=6, test=2), *arrays


@pytest.fixture
def pipe(tmp_path):
    arrays = numbers(9, 9, 9), 9_000 + numbers(9, 9, 9), numbers(9, 3, 9, 9)
    for axis, array in zip("XYQ", arrays, strict=True):
        np.save(tmp_path / f"Pipe_{axis}.npy", array)
    return PipeFiles(folder=str(tmp_path), train=5, test=2, total=8), *arrays


def both(dataset, split):
    """Inputs and targets of a split as a model gets them before normalization."""
    samples = [dataset[i] for i in dataset.split(split)]
    arrays = [np.stack([read(dataset.schema, sample) for sample in samples]) for read in (input_array, target_array)]
    assert all(array.dtype == np.float32 for array in arrays)
    return arrays


def test_elasticity(elasticity, tmp_path):
    files, points, stress = elasticity
    dataset = read_published(files, tmp_path / "out", quiet=True)
    x, y = both(dataset, "train")
    np.testing.assert_array_equal(x, points.transpose(2, 0, 1)[:8])
    np.testing.assert_array_equal(y[..., 0], stress.T[:8])
    x, y = both(dataset, "test")
    np.testing.assert_array_equal(x, points.transpose(2, 0, 1)[9:])
    np.testing.assert_array_equal(y[..., 0], stress.T[9:])


def test_darcy(darcy, tmp_path):
    files, train, test = darcy
    dataset = read_published(files, tmp_path / "out", quiet=True)
    assert dataset.schema.grid == (5, 5)
    for split, (coefficient, pressure), count in (("train", train, 5), ("test", test, 2)):
        x, y = both(dataset, split)
        assert x.shape == (count, 25, 3)
        np.testing.assert_array_equal(x[..., 2], coefficient[:count, ::5, ::5].reshape(count, 25))
        np.testing.assert_array_equal(y[..., 0], pressure[:count, ::5, ::5].reshape(count, 25))
        np.testing.assert_allclose(x[0, :5, 0], [0, 0.25, 0.5, 0.75, 1])
        assert (x[0, :5, 1] == 0).all(), "y follows the row"


def test_airfoil(airfoil, tmp_path):
    files, a, b, q = airfoil
    dataset = read_published(files, tmp_path / "out", quiet=True)
    for split, kept in (("train", slice(6)), ("test", slice(6, 8))):
        x, y = both(dataset, split)
        np.testing.assert_array_equal(x, np.stack([a[kept], b[kept]], -1).reshape(-1, 55, 2))
        np.testing.assert_array_equal(y[..., 0], q[kept, 4].reshape(-1, 55))
    np.testing.assert_array_equal(dataset[7].values["velocity"], q[7, 1:3].reshape(2, 55).T)
    np.testing.assert_array_equal(dataset[7].values["pressure"][:, 0], q[7, 3].ravel())


def test_pipe(pipe, tmp_path):
    files, a, b, q = pipe
    dataset = read_published(files, tmp_path / "out", quiet=True)
    for split, kept in (("train", slice(5)), ("test", slice(6, 8))):
        x, y = both(dataset, split)
        np.testing.assert_array_equal(x, np.stack([a[kept], b[kept]], -1).reshape(-1, 81, 2))
        np.testing.assert_array_equal(y[..., 0], q[kept, 0].reshape(-1, 81))
    np.testing.assert_array_equal(dataset[0].values["cross_velocity"][:, 0], q[0, 1].ravel())


@pytest.mark.parametrize("name", ["elasticity", "darcy", "airfoil", "pipe"])
def test_files_and_solver_give_the_same_fields(name, request, tmp_path):
    read = read_published(request.getfixturevalue(name)[0], tmp_path / "read", quiet=True)
    assert read.schema.fields == generator_class(name)().schema().fields


def test_a_killed_job_resumes_and_a_second_call_opens_the_result(elasticity, tmp_path, monkeypatch):
    files, *_ = elasticity
    whole = read_published(files, tmp_path / "whole", quiet=True)
    sample = ElasticityFiles.sample

    def fail(self, index):
        if index == 6:
            raise KeyboardInterrupt
        return sample(self, index)

    monkeypatch.setattr(ElasticityFiles, "sample", fail)
    with pytest.raises(KeyboardInterrupt):
        read_published(files, tmp_path / "out", quiet=True)
    monkeypatch.undo()
    read_published(files, tmp_path / "out", quiet=True)
    assert content(tmp_path / "out") == content(whole.path)
    read_published(files, tmp_path / "out", quiet=True)
    assert content(tmp_path / "out") == content(whole.path)


def test_the_provenance_has_kind_and_checksums(elasticity, tmp_path):
    provenance = read_published(elasticity[0], tmp_path / "out", quiet=True).about["provenance"]
    assert provenance["kind"] == "published"
    assert all(len(digest) == 64 for digest in provenance["files"].values())
    assert str(tmp_path) not in str(provenance)


def refused(tmp_path, files, match, error=DataError):
    with pytest.raises(error, match=match):
        read_published(replace(files), tmp_path / "refused", quiet=True)  # a copy: a reader keeps the arrays it opened
    assert not (tmp_path / "refused").exists()
    shutil.rmtree(tmp_path / "refused.partial", ignore_errors=True)


def test_bad_files_are_named(elasticity, darcy, airfoil, pipe, tmp_path):
    refused(tmp_path, replace(elasticity[0], train=10), "sigma_10.npy has 12 .* 13")
    refused(tmp_path, replace(darcy[0], test=7), "smooth2.mat has 6 .* 7")
    refused(tmp_path, replace(pipe[0], train=7), "total=8")
    (tmp_path / "empty").mkdir()
    refused(
        tmp_path, replace(elasticity[0], folder=str(tmp_path / "empty")), "XY_10.npy.* flare data download elasticity"
    )
    np.save(tmp_path / "NACA_Cylinder_Y.npy", numbers(9, 11, 6))
    refused(tmp_path, airfoil[0], r"Y.npy \(9, 11, 6\)")
    np.save(tmp_path / "Pipe_Q.npy", numbers(9, 3, 81))
    refused(tmp_path, pipe[0], "Pipe_Q.npy.* 4 dimensions")
    (tmp_path / "Pipe_X.npy").write_bytes(b"nonsense")
    refused(tmp_path, pipe[0], "Pipe_X.npy")
    np.save(tmp_path / "Pipe_X.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(tmp_path, pipe[0], "Pipe_X.npy")


def test_values_that_are_not_finite_numbers_are_refused(elasticity, tmp_path):
    files, _, stress = elasticity
    for value, match in ((np.nan, r"sample 2: 'stress'.* 1 .*\[3, 0\]"), (1e300, "sample 2: 'stress'")):
        stress[3, 2] = value
        np.save(tmp_path / files.stress_file, stress)
        refused(tmp_path, files, match)
    np.save(tmp_path / files.stress_file, stress.astype(complex))
    refused(tmp_path, files, "complex128")
    np.save(tmp_path / files.stress_file, stress[:0])
    refused(tmp_path, files, r"\(0, 12\)")


def test_bad_darcy_files_are_refused(darcy, tmp_path):
    with pytest.raises(ConfigError, match="stride=0"):
        DarcyFiles(folder=str(tmp_path), stride=0)
    refused(tmp_path, DarcyFiles(folder=str(tmp_path), train=5, test=2, stride=100), "stride=100")
    savemat(tmp_path / "piececonst_r421_N1024_smooth2.mat", {"coeff": numbers(6, 11, 11), "sol": numbers(6, 11, 11)})
    refused(tmp_path, darcy[0], "11, 11.* 21, 21")
    (tmp_path / "piececonst_r421_N1024_smooth2.mat").write_bytes(b"")
    refused(tmp_path, DarcyFiles(folder=str(tmp_path), train=5, test=2), "smooth2.mat")


def test_another_dataset_is_refused_before_anything_is_read(elasticity, tmp_path):
    generate(Elasticity(), tmp_path / "ours", samples=1, quiet=True)
    with pytest.raises(DataError, match="ours"):
        read_published(ElasticityFiles(folder=str(tmp_path / "nowhere")), tmp_path / "ours", quiet=True)


def test_the_command(elasticity, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["data", "read", "elasticity", "--folder", str(tmp_path), "--train", "8", "--test", "3", "--out", str(out)]
    assert main(words) == 0
    assert len(Dataset(out)) == 11
    assert (out / "gallery.png").exists()
    page = (out / "statistics.html").read_text()
    assert "published 880" in page
    assert "median of the samples" in page
    assert main([*words[:-1], str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_preset_trains_on_published_files(elasticity, tmp_path, capsys):
    dataset = read_published(elasticity[0], tmp_path / "out", quiet=True)
    sizes = ["--model.channels=4", "--model.blocks=1", "--model.heads=1", "--model.latents=2", "--no-report"]
    command = ["train", "--preset", "elasticity", "--data.path", str(dataset.path), "--out", str(tmp_path / "run")]
    assert main([*command, "--epochs=1", "--device=cpu", *sizes]) == 0
    assert f"{card('elasticity').paper:.4f}   FLARE in the paper" in capsys.readouterr().out
    assert 0 < json.loads((tmp_path / "run" / "result.json").read_text())["rel_l2"] < 100
