"""DrivAerML: published point sets and original surfaces are read, downloaded and split; bad files are refused."""

import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from flare.cli import main
from flare.data.benchmarks import published_cars
from flare.data.benchmarks.cards import card, paper_error
from flare.data.benchmarks.download import download
from flare.data.benchmarks.landmarks import landmarks
from flare.data.benchmarks.published import read_published, reader_class
from flare.data.benchmarks.published_cars import (
    BOUNDARY,
    MISSING,
    RUNS,
    DrivAerMLBoundary,
    DrivAerMLFiles,
    chosen_runs,
    own_split,
)
from flare.data.dataset import Dataset
from flare.train.presets import load_config, preset_path
from flare.utils.errors import ConfigError, DataError
from tests.hub import Hub
from tests.mesh.io.vtp_files import vtp

COUNT = 50


def arrays(run, count=COUNT):
    numbers = np.arange(count * 7, dtype=np.float32) + 1000 * run
    return {
        "surface_mesh_centers": numbers[: 3 * count].reshape(count, 3) / 1000,
        "surface_fields": numbers[3 * count :].reshape(count, 4),
    }


def points_of(folder, train=(10, 2), test=(3,), count=COUNT):
    for split, runs in (("train", train), ("test", test)):
        (folder / split).mkdir(parents=True)
        for run in runs:
            np.savez_compressed(folder / split / f"run_{run}.npz", **arrays(run, count))
    return folder


def surface(run, cells=30):
    """Squares in a row, each with its own field values."""
    x = np.arange(cells + 1, dtype=np.float32)
    points = np.concatenate([np.stack([x, 0 * x, 0 * x + run], 1), np.stack([x, 0 * x + 1, 0 * x + run], 1)])
    squares = [[i, i + 1, cells + 2 + i, cells + 1 + i] for i in range(cells)]
    values = {"CpMeanTrim": x[:-1], "pMeanTrim": x[:-1] + 100 * run}
    values["wallShearStressMeanTrim"] = np.stack([x[:-1], x[:-1] + 0.5, 0 * x[:-1]], axis=1)
    return vtp(points, squares, values, packer="vtkZLibDataCompressor")


def surfaces_of(folder, runs):
    for run in runs:
        (folder / f"run_{run}").mkdir(parents=True)
        (folder / f"run_{run}" / f"boundary_{run}.vtp").write_bytes(surface(run))
    return folder


# Point sets of the authors


def test_runs_are_in_order_split_by_folder_with_pressure_as_the_target(tmp_path):
    read = read_published(DrivAerMLFiles(folder=str(points_of(tmp_path / "f"))), tmp_path / "d", quiet=True)
    assert [note["published index"] for note in read.notes()] == [2, 10, 3]
    assert read.split("train").tolist() == [0, 1]
    assert read.split("test").tolist() == [2]
    for index, run in enumerate((2, 10, 3)):
        values, theirs = read[index].values, arrays(run)
        np.testing.assert_array_equal(values["points"], theirs["surface_mesh_centers"])
        np.testing.assert_array_equal(values["pressure"], theirs["surface_fields"][:, :1])
        np.testing.assert_array_equal(values["wall_shear"], theirs["surface_fields"][:, 1:])
        assert values["points"].dtype == np.float32
    assert read.schema == card("drivaerml").schema()
    assert read.schema.in_dim == 3
    assert read.schema.out_dim == 1
    cp = np.concatenate([arrays(run)["surface_fields"][:, 0] for run in (2, 10, 3)]) / (38.889**2 / 2)
    assert landmarks(read)["mean of Cp"] == pytest.approx(cp.mean(), rel=1e-5)
    assert landmarks(read)["spread of Cp"] == pytest.approx(cp.std(), rel=1e-5)


def test_the_normalization_is_the_published_one():
    from flare.data.normalization import fit_normalizer
    from flare.data.statistics import channel_statistics

    settings, schema = load_config(preset_path("drivaerml")).data.normalize, card("drivaerml").schema()
    rows = np.random.default_rng(0).normal(size=(10, 3))
    points = fit_normalizer(schema, ["points"], channel_statistics([rows]), settings)
    low, high = np.array([-0.9425, -1.1314, -0.3176]), np.array([4.1325, 1.1317, 1.2445])
    np.testing.assert_allclose(points.shift, low, rtol=1e-6)
    np.testing.assert_allclose(points.scale, high - low, rtol=1e-6)
    pressure = fit_normalizer(schema, ["target"], channel_statistics([rows[:, :1]]), settings)
    np.testing.assert_allclose([pressure.shift[0], pressure.scale[0]], [-229.845718, 269.598572], rtol=1e-6)


def test_the_error_in_the_paper_is_for_the_complete_set_of_40k(tmp_path):
    part = DrivAerMLFiles(folder=str(points_of(tmp_path / "f", count=40_000)))
    assert part.origin() == {"kind": "published", "departures": {"runs": "2, 1"}}
    assert paper_error("drivaerml", part.origin())[0] is None
    assert paper_error("drivaerml", {"kind": "published", "departures": {}})[0] == 6.08e-2
    ten = DrivAerMLFiles(folder=str(points_of(tmp_path / "g", count=10_000)), size="10k").origin()
    assert ten["departures"] == {"size": "10k", "runs": "2, 1"}


def test_points_are_counted_in_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(published_cars, "_departures", lambda train, test: {})  # as if all 387 and 97 runs were there
    few = points_of(tmp_path / "f")
    for size, expected in (("40k", {}), ("1m", {"size": "1m"})):
        departures = DrivAerMLFiles(folder=str(few), size=size).origin()["departures"]
        assert departures == expected | {"points": COUNT}
    np.savez(few / "test" / "run_3.npz", **arrays(3, 40_000))
    uneven = DrivAerMLFiles(folder=str(few)).origin()
    assert uneven["departures"] == {"points": "50 to 40000"}
    assert paper_error("drivaerml", uneven)[0] is None


def test_some_runs_of_each_folder(tmp_path):
    files = points_of(tmp_path / "f", train=(1, 2, 4), test=(3, 5))
    some = DrivAerMLFiles(folder=str(files), train=2, test=1).files()
    assert some == ["train/run_1.npz", "train/run_2.npz", "test/run_3.npz"]
    with pytest.raises(DataError, match="flare data download drivaerml --size 40k"):
        DrivAerMLFiles(folder=str(tmp_path / "g")).files()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surface_fields": None}, "surface_fields"),
        ({"surface_fields": np.zeros((COUNT, 3))}, r"surface_fields \(50, 3\)"),
        ({"surface_fields": np.full((COUNT, 4), "x")}, "<U1"),
        ({"surface_fields": np.full((COUNT, 4), np.nan)}, r"train/run_2\.npz: 'pressure'.* 50"),
        ({"surface_mesh_centers": None}, "surface_mesh_centers"),
    ],
)
def test_files_of_another_layout_leave_no_dataset(change, message, tmp_path):
    folder = points_of(tmp_path / "f")
    kept = {key: value for key, value in (arrays(2) | change).items() if value is not None}
    np.savez(folder / "train" / "run_2.npz", **kept)
    with pytest.raises(DataError, match=message):
        read_published(DrivAerMLFiles(folder=str(folder)), tmp_path / "d", quiet=True)
    assert not (tmp_path / "d").exists()


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    folder = points_of(tmp_path / "f")
    np.savez(folder / "train" / "run_2.npz", **arrays(2) | {"surface_fields": np.array([Trap()])})
    with pytest.raises(DataError, match=r"run_2\.npz"):
        read_published(DrivAerMLFiles(folder=str(folder)), tmp_path / "d", quiet=True)
    (folder / "train" / "run_2.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match=r"run_2\.npz"):
        read_published(DrivAerMLFiles(folder=str(folder)), tmp_path / "d", quiet=True)


# Original surfaces


def test_cells_are_drawn_once_by_the_run_alone_with_their_fields_and_areas(tmp_path):
    folder = surfaces_of(tmp_path / "f", own_split()[0][:2] + own_split()[1][:1])
    read = read_published(DrivAerMLBoundary(folder=str(folder), points=20), tmp_path / "d", quiet=True)
    runs = [note["published index"] for note in read.notes()]
    assert runs == own_split()[0][:2] + own_split()[1][:1]
    for index, run in enumerate(runs):
        values = read[index].values
        cells = (values["pressure"][:, 0] - 100 * run).astype(int)
        assert len(set(cells)) == 20
        np.testing.assert_array_equal(cells, np.random.RandomState(run).choice(30, 20, replace=False))
        np.testing.assert_array_equal(values["points"], np.stack([cells + 0.5, 0 * cells + 0.5, 0 * cells + run], 1))
        np.testing.assert_array_equal(values["wall_shear"][:, 1], cells + 0.5)
        np.testing.assert_allclose(values["area"], [[0, 0, 1]] * 20)
    assert read.about["provenance"]["departures"] == {"points": 20, "split": "ours", "runs": "2, 1"}
    assert landmarks(read), "the fields of the benchmark, and one more"
    every = DrivAerMLBoundary(folder=str(folder), points=0).sample(0)
    np.testing.assert_array_equal(every.values["pressure"][:, 0], np.arange(30) + 100 * runs[0])


def test_our_split_is_fixed_and_of_the_runs_that_exist():
    train, test = own_split()
    assert (len(train), len(test)) == (387, 97)
    assert sorted(train + test) == list(RUNS)
    assert len(RUNS) == 484
    assert not set(RUNS) & set(MISSING)
    assert (sum(train), test[:4]) == (95218, [10, 26, 29, 32])


def test_surfaces_may_be_split_as_the_papers_authors_did(tmp_path):
    drawn, folder = points_of(tmp_path / "p", train=(7, 5), test=(6,)), surfaces_of(tmp_path / "f", (5, 6, 7, 8))
    files = DrivAerMLBoundary(folder=str(folder), points=10, split_like=str(drawn))
    assert files.files() == ["run_5/boundary_5.vtp", "run_7/boundary_7.vtp", "run_6/boundary_6.vtp"]
    assert "split" not in files.origin()["departures"]


def test_runs_are_chosen_by_number():
    assert chosen_runs("1-3,10") == [1, 2, 3, 10]
    assert chosen_runs("166-168") == [166, 168], "167 does not exist"
    assert len(chosen_runs("all")) == 484
    assert chosen_runs("") == []
    for words in ("1-x", "0", "167", "501", "1-3,167", "5;6"):
        with pytest.raises(ConfigError, match="runs="):
            chosen_runs(words)


def test_missing_cells_and_runs_are_named(tmp_path):
    first = own_split()[0][0]
    folder = surfaces_of(tmp_path / "f", [first])
    with pytest.raises(DataError, match=r"30 cells.*points=40000"):
        read_published(DrivAerMLBoundary(folder=str(folder)), tmp_path / "d", quiet=True)
    with pytest.raises(DataError, match=r"run_\d+/boundary_\d+.vtp .* drivaerml-boundary --runs 1-9$"):
        read_published(DrivAerMLBoundary(folder=str(folder), runs="1-9", points=10), tmp_path / "e", quiet=True)
    with pytest.raises(DataError, match=r"run_\*/boundary_\*.vtp"):
        DrivAerMLBoundary(folder=str(tmp_path)).files()
    with pytest.raises(DataError, match="no training run"):
        DrivAerMLBoundary(folder=str(folder), runs=str(own_split()[1][0])).files()
    (folder / f"run_{first}" / f"boundary_{first}.vtp").write_bytes(surface(first)[:900])
    with pytest.raises(DataError, match="boundary_"):
        read_published(DrivAerMLBoundary(folder=str(folder), points=10), tmp_path / "g", quiet=True)
    assert not (tmp_path / "d").exists()


# Download


def packed(size):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, run in (("train", 10), ("train", 2), ("test", 3)):
            file = io.BytesIO()
            np.savez(file, **arrays(run))
            member = tarfile.TarInfo(f"drivaerml_surface_presampled_{size}/{name}/run_{run}.npz")
            member.size = len(file.getvalue())
            archive.addfile(member, io.BytesIO(file.getvalue()))
    return buffer.getvalue()


def test_the_set_of_a_size_is_downloaded_and_read(tmp_path, use_hub):
    content = {f"drivaerml_surface_presampled_{size}.tar.gz": packed(size) for size in ("10k", "40k")}
    places = ["--out", str(tmp_path / "d"), "--files", str(tmp_path / "files")]
    with Hub(content) as hub:
        use_hub(hub)
        assert main(["data", "download", "drivaerml", "--size", "10k", *places]) == 0
    assert hub.sent == ["drivaerml_surface_presampled_10k.tar.gz"]
    data = Dataset(tmp_path / "d")
    assert len(data) == 3
    assert data.about["provenance"]["departures"]["size"] == "10k"


def test_surfaces_of_some_runs_are_downloaded_and_more_are_added(tmp_path, use_hub):
    runs = own_split()[0][:3]
    content = {f"run_{run}/boundary_{run}.vtp": surface(run) for run in runs}
    content |= {f"run_{run}/drivaer_{run}.stl": b"large" for run in runs}

    def fetch(*wanted):
        only = tuple(f"run_{run}/boundary_{run}.vtp" for run in wanted)
        download(replace(BOUNDARY, only=only), tmp_path / "files", quiet=True)

    with Hub(content, repository="neashton/drivaerml") as hub:
        use_hub(hub)
        words = ["drivaerml-boundary", "--runs", f"{runs[0]}", "--files", str(tmp_path / "files"), "--points", "10"]
        assert main(["data", "download", *words, "--out", str(tmp_path / "d")]) == 0
        assert hub.sent == [f"run_{runs[0]}/boundary_{runs[0]}.vtp"]
        fetch(runs[0], runs[2])
        assert hub.sent[1:] == [f"run_{runs[2]}/boundary_{runs[2]}.vtp"]
        with pytest.raises(DataError, match=r"run_499/boundary_499\.vtp"):
            fetch(runs[0], 499)
    assert [note["published index"] for note in Dataset(tmp_path / "d").notes()] == [runs[0]]
    fetch(runs[2])  # complete files need no hub
    with pytest.raises(DataError, match="drivaerml"):
        fetch(runs[1])


def test_all_runs_are_downloaded_only_on_request(tmp_path, capsys):
    assert main(["data", "download", "drivaerml-boundary", "--files", str(tmp_path)]) == 2
    assert "--runs all" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert reader_class("drivaerml-boundary").archive({"runs": "all"}).only == ()
