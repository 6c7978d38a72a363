"""LPBF files in the published layout: read, export, download and upload."""

import csv
import json
import shutil
import subprocess
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from flare.cli import main
from flare.data.benchmarks.cards import card
from flare.data.benchmarks.download import download
from flare.data.benchmarks.export_lpbf import export_lpbf
from flare.data.benchmarks.hub import upload
from flare.data.benchmarks.published import read_published
from flare.data.benchmarks.published_lpbf import LPBFFiles
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.mesh.octree import edges_of, merged
from flare.mesh.voxels import Voxels
from flare.utils.errors import ConfigError, DataError
from tests.factory import content, elasticity_dataset
from tests.hub import Hub

SCHEMA, ARCHIVE = card("lpbf").schema(), card("lpbf").archive


def part(index, **more):
    """Return a bar of one to three cubes with shuffled nodes and unique values."""
    rng = np.random.default_rng(index)
    mesh = merged(Voxels(np.ones((1 + index % 3, 1, 1), dtype=bool), (0.5, 0.5, 0.6), (-1.0, 0.0, 0.0)), levels=0)
    count = len(mesh.points)
    place = rng.permutation(count)
    points = np.empty_like(mesh.points)
    points[place] = mesh.points
    values = {
        "points": points,
        "displacement": rng.normal(size=(count, 1)),
        "lateral_displacement": rng.normal(size=(count, 2)),
        "von_mises": rng.uniform(0, 900, (count, 1)),
    }
    values |= {name: rng.normal(size=(count, width)) for name, width in more.items()}
    return Sample(values, place[mesh.hexahedra], {"name": f"plate {index}/a", "family": "plate", "groups": 2})


RECREATED = {"kind": "recreated", "samples": 5, "test_samples": 2, "seed": 7, "versions": {"flare": "0.1.0"}}
RECREATED |= {"options": {"mode": "refined"}, "departures": {"mode": "refined", "history": True}}


def dataset_of(path, samples=5, test=2, schema=SCHEMA, provenance=RECREATED, **more):
    writer = DatasetWriter(path, schema, provenance)
    for index in range(samples):
        writer.append(part(index, **more))
    return writer.finish({"train": [(0, samples - test)], "test": [(samples - test, samples)]})


@pytest.fixture
def dataset(tmp_path):
    return dataset_of(tmp_path / "dataset")


@pytest.fixture
def exported(dataset, tmp_path):
    export_lpbf(dataset, tmp_path / "exported", quiet=True)
    return tmp_path / "exported"


def parts_of(folder):
    return sorted(folder.glob("*/*.npz"))


def rewrite(path, **changes):
    """Change arrays of an NPZ file; None removes one."""
    with np.load(path) as archive:
        arrays = {**archive, **changes}
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})


# Read


def test_exported_files_read_back_bit_for_bit(dataset, exported, tmp_path):
    read = read_published(LPBFFiles(folder=str(exported)), tmp_path / "read", quiet=True)
    assert read.about["splits"] == dataset.about["splits"]
    for index in range(len(dataset)):
        for name, values in dataset[index].values.items():
            np.testing.assert_array_equal(read[index].values[name], values)
        np.testing.assert_array_equal(read[index].cells, dataset[index].cells)
    assert {name: read.about["checksums"][name] for name in ("points.npy", "cells.npy", "displacement.npy")} == {
        name: dataset.about["checksums"][name] for name in ("points.npy", "cells.npy", "displacement.npy")
    }
    assert read.notes()[3] == {"published index": 3, "file": "test/case00003_plate_3_a.npz", "name": "plate_3_a"}


def test_files_written_as_the_published_ones_are_read_without_unpickling(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    sample, widest = part(1), part(2)
    for file, case in (("train/case00012_105762_19e04e0b_1", sample), ("test/case00003_9_a_1", widest)):
        (tmp_path / file).parent.mkdir()
        disp = np.concatenate([case.values["lateral_displacement"], case.values["displacement"]], axis=1)
        np.savez_compressed(
            tmp_path / f"{file}.npz",
            pos=case.values["points"].astype(np.float32),
            elems=case.cells.astype(np.int32),
            disp=disp.astype(np.float32),
            vmstr=case.values["von_mises"].astype(np.float32),
            temp=np.full((len(disp), 1), 25, dtype=np.float32),
            _metadata=np.array([Trap()], dtype=object),
        )
    (tmp_path / "train" / "._case00012.npz").write_bytes(b"left by some system")
    read = read_published(LPBFFiles(folder=str(tmp_path)), tmp_path / "read", quiet=True)
    assert read.sizes.tolist() == [12, 16]
    assert read.notes()[0]["name"] == "105762_19e04e0b_1"
    np.testing.assert_array_equal(read[0].values["displacement"], sample.values["displacement"].astype(np.float32))
    np.testing.assert_array_equal(read[1].cells, widest.cells)


def test_the_first_of_each_folder_can_be_taken_alone(exported, tmp_path):
    read = read_published(LPBFFiles(folder=str(exported), train=2, test=0), tmp_path / "read", quiet=True)
    assert [note["file"][:15] for note in read.notes()] == ["train/case00000", "train/case00001"]
    assert len(read.split("test")) == 0
    for files, match in (
        ({"train": 4}, "train has 3 .* 4"),
        ({"test": 3}, "test has 2 .* 3"),
    ):
        with pytest.raises(DataError, match=match):
            read_published(LPBFFiles(folder=str(exported), **files), tmp_path / "other", quiet=True)
    with pytest.raises(ConfigError, match="train=0"):
        LPBFFiles(folder=str(exported), train=0)


def test_the_provenance_names_the_files_by_what_sha256sum_prints(exported, tmp_path):
    read = read_published(LPBFFiles(folder=str(exported)), tmp_path / "read", quiet=True)
    printed = subprocess.run(
        "sha256sum train/*.npz | sha256sum", shell=True, cwd=exported, capture_output=True, text=True, check=True
    )
    assert read.about["provenance"]["files"]["train/*.npz"] == printed.stdout.split()[0]
    rewrite(parts_of(exported)[0], temp=None)
    with pytest.raises(DataError, match="read"):
        read_published(LPBFFiles(folder=str(exported)), tmp_path / "read", quiet=True)


def nan_at(array, row):
    array = array.copy()
    array[row] = np.nan
    return array


BAD = {
    "disp, elems": lambda a: {"disp": None, "elems": None},
    r"'pos'.*\(8, 2\).*\(8, 3\)": lambda a: {"pos": a["pos"][:, :2]},
    r"'pos'.*\(0, 3\)": lambda a: {"pos": a["pos"][:0]},
    r"'disp'.*\(8,\).*\(8, 3\)": lambda a: {"disp": a["disp"][:, 2]},
    r"'vmstr'.*\(7, 1\).*\(8, 1\)": lambda a: {"vmstr": a["vmstr"][1:]},
    "'vmstr'.*complex64": lambda a: {"vmstr": a["vmstr"] + 0j},
    r"'displacement'.* 1 of 8.*\[5, 0\]": lambda a: {"disp": nan_at(a["disp"], 5)},
    "'points'": lambda a: {"pos": a["pos"].astype(np.float64) + 1e300},
    "'elems' .*0 … 7$|'elems' .*0 … 7\\.": lambda a: {"elems": a["elems"] + 1},
    "'elems'.*0 … 7": lambda a: {"elems": a["elems"] - 1},
    r"'elems'.*\(1, 4\)": lambda a: {"elems": a["elems"][:, :4]},
    "'elems'.*float32": lambda a: {"elems": a["elems"].astype(np.float32)},
    "": lambda a: {"pos": np.array([{}])},
}


@pytest.mark.parametrize("match", BAD)
def test_a_part_of_another_layout_is_named(match, exported, tmp_path):
    path = parts_of(exported)[2]  # of one cube
    assert path.name == "case00000_plate_0_a.npz"
    with np.load(path) as archive:
        rewrite(path, **BAD[match](dict(archive)))
    with pytest.raises(DataError, match=f"train/case00000_plate_0_a.npz.*{match}"):
        read_published(LPBFFiles(folder=str(exported)), tmp_path / "read", quiet=True)
    assert not (tmp_path / "read").exists()


def test_a_damaged_file_is_named(exported, tmp_path):
    path = parts_of(exported)[2]
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        middle = archive.getinfo("pos.npy").header_offset + 60
    changed = whole[:middle] + bytes([byte ^ 255 for byte in whole[middle : middle + 20]]) + whole[middle + 20 :]
    for bad in (whole[: len(whole) // 2], b"no file of numbers at all", changed):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"case00000_plate_0_a.npz"):
            read_published(LPBFFiles(folder=str(exported)), tmp_path / "read", quiet=True)


# Export


def test_a_part_has_the_published_keys_shapes_and_types(exported):
    path = parts_of(exported)[3]  # of two cubes
    with np.load(path, allow_pickle=False) as archive:
        found = {key: (archive[key].shape, archive[key].dtype.str) for key in archive if key != "_metadata"}
        about = json.loads(archive["_metadata"].item())
        assert (archive["temp"] == 25).all()
        edges, elems = archive["edge_index"], archive["elems"]
    assert found == {
        "pos": ((12, 3), "<f4"),
        "elems": ((2, 8), "<i4"),
        "edge_index": ((2, 40), "<i8"),
        "disp": ((12, 3), "<f4"),
        "vmstr": ((12, 1), "<f4"),
        "temp": ((12, 1), "<f4"),
    }
    assert about["metadata"] == {"case_name": "case00001_plate_1_a", "zmax": None, "time_steps": 1}
    assert about["flare"]["family"] == "plate"
    np.testing.assert_array_equal(edges_of(elems, 12), edges)


def test_edges_do_not_depend_on_how_nodes_are_numbered():
    rng = np.random.default_rng(0)
    mesh = merged(Voxels(rng.random((5, 6, 4)) < 0.6, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)))
    place = rng.permutation(len(mesh.points))
    edges = edges_of(place[mesh.hexahedra], len(place))
    expected = place[mesh.edges()]
    np.testing.assert_array_equal(edges, expected[:, np.lexsort(expected[::-1])])


def test_the_index_has_a_line_per_part_and_the_card_its_facts(exported):
    for split, count in (("train", 3), ("test", 2)):
        with (exported / "data" / f"{split}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["case_id", "file", "num_nodes", "num_edges", "metadata"]
        assert len(rows) == count
        for row in rows:
            with np.load(exported / row["file"]) as archive:
                sizes = (str(len(archive["pos"])), str(archive["edge_index"].shape[1]))
                assert (row["num_nodes"], row["num_edges"]) == sizes
                assert row["metadata"] == archive["_metadata"].item()
    text = (exported / "README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header["license"] == "mit"
    assert [file["path"] for file in header["configs"][0]["data_files"]] == ["data/train.csv", "data/test.csv"]
    assert '"seed": 7' in text


def test_data_keep_their_origin_and_names_after_export_and_read(exported, tmp_path):
    folder = exported
    for turn in range(2):
        read = read_published(LPBFFiles(folder=str(folder)), tmp_path / f"read{turn}", quiet=True)
        provenance = read.about["provenance"]
        assert (provenance["kind"], provenance["departures"]) == ("recreated", RECREATED["departures"])
        assert provenance["exported"] == RECREATED
        folder = tmp_path / f"again{turn}"
        export_lpbf(read, folder, quiet=True)
        assert [path.name for path in parts_of(folder)] == [path.name for path in parts_of(exported)]
    (folder / "provenance.json").write_text("{}")
    with pytest.raises(DataError, match=r"provenance\.json"):
        read_published(LPBFFiles(folder=str(folder)), tmp_path / "other", quiet=True)
    (folder / "provenance.json").unlink()  # the published files have none
    read = read_published(LPBFFiles(folder=str(folder)), tmp_path / "published", quiet=True)
    assert read.about["provenance"]["kind"] == "published"


def test_further_fields_are_kept_under_their_own_names(tmp_path):
    more = Field(role="extra", components=("group_1", "released"), unit="mm")
    schema = Schema(name="lpbf", fields={**SCHEMA.fields, "displacement_history": more}, cell_type="hexahedron")
    dataset = dataset_of(tmp_path / "dataset", 3, 1, schema, displacement_history=2)
    export_lpbf(dataset, tmp_path / "out", quiet=True)
    with np.load(tmp_path / "out" / "train" / "case00001_plate_1_a.npz") as archive:
        np.testing.assert_array_equal(archive["displacement_history"], dataset[1].values["displacement_history"])


def test_an_export_is_complete_or_not_there(dataset, exported, tmp_path, monkeypatch):
    before = content(exported)
    with pytest.raises(DataError, match="exported"):
        export_lpbf(dataset, exported, quiet=True)
    assert content(exported) == before

    def full(path, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(DataError, match=r"out: No space left on device"):
        export_lpbf(dataset, tmp_path / "out", quiet=True)
    assert {path.name for path in tmp_path.iterdir()} == {"dataset", "exported"}


def test_datasets_of_another_layout_are_refused(tmp_path):
    metres = {**SCHEMA.fields, "displacement": Field(role="target", components=("z",), unit="m")}
    schema = Schema(name="lpbf", fields=metres, cell_type="hexahedron")
    writer = DatasetWriter(tmp_path / "c", SCHEMA, {"kind": "user"})
    writer.append(part(0))
    for other in (
        elasticity_dataset(tmp_path / "a", samples=2, test=1),
        dataset_of(tmp_path / "b", 2, 1, schema),
        writer.finish({"all": [(0, 1)]}),
        dataset_of(tmp_path / "d", 1, 1),
    ):
        with pytest.raises(DataError, match=str(other.path)):
            export_lpbf(other, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


# Download


@pytest.fixture
def repository(exported):
    return {str(path.relative_to(exported)): path.read_bytes() for path in exported.rglob("*") if path.is_file()}


@pytest.fixture
def fetch(use_hub, tmp_path):
    """Return a function that downloads the archive of the card from a `Hub`."""

    def download_from(hub):
        use_hub(hub)
        return download(ARCHIVE, tmp_path / "files", quiet=True)

    return download_from


def serve(files, repository=ARCHIVE.repository, **how):
    pytest.importorskip("huggingface_hub")
    return Hub(files, repository=repository, **how)


def test_files_are_downloaded_once_and_lost_ones_again(fetch, repository, tmp_path):
    folder = tmp_path / "files" / "LPBF_FLARE"
    with serve(repository) as hub:
        assert fetch(hub) == folder
        parts = [name for name in repository if name.endswith(".npz")]
        assert sorted(hub.sent) == sorted(parts), "only files that the reader needs"
        assert {name: (folder / name).read_bytes() for name in parts} == {name: repository[name] for name in parts}
        (folder / parts[1]).unlink()
        fetch(hub)
        assert hub.sent[len(parts) :] == [parts[1]]
    fetch(hub)  # complete files need no hub
    read = read_published(LPBFFiles(folder=str(folder)), tmp_path / "read", quiet=True)
    assert len(read) == 5


def test_the_command_downloads_and_reads_through_a_broken_transfer(dataset, repository, tmp_path, use_hub):
    places = ["--files", str(tmp_path / "files"), "--out", str(tmp_path / "read")]
    with serve(repository, breaks=True) as hub:
        use_hub(hub)
        assert main(["data", "download", "lpbf", *places]) == 0
    assert len(hub.sent) == 6, "one of five twice"
    assert Dataset(tmp_path / "read").about["checksums"]["points.npy"] == dataset.about["checksums"]["points.npy"]


@pytest.mark.parametrize(
    ("change", "how", "message"),
    [
        ({}, {"promised": b"something else"}, "5 of 5 files"),
        ({"../../evil.npz": b"boo"}, {}, "evil.npz"),
        (None, {}, "vedantpuri/LPBF_FLARE"),
    ],
)
def test_wrong_checksums_unsafe_paths_and_missing_files_are_refused(fetch, repository, tmp_path, change, how, message):
    files = {"README.md": b"moved"} if change is None else repository | change
    with serve(files, **how) as hub, pytest.raises(DataError, match=message):
        fetch(hub)
    assert not list((tmp_path / "files").rglob("*.npz"))
    assert not list(tmp_path.rglob("evil.npz"))


def test_files_of_a_broken_transfer_do_not_count_as_complete(fetch, exported, tmp_path):
    hub = serve({})
    hub.server.server_close()
    shutil.copytree(exported, tmp_path / "files" / "LPBF_FLARE")
    with pytest.raises(DataError, match=r"\*\.npz of vedantpuri/LPBF_FLARE"):
        fetch(hub)


# Upload


@pytest.fixture
def api(monkeypatch):
    """What would be sent to the hub; `api.there` is what it holds already, `api.private` whether that is private."""
    hub = pytest.importorskip("huggingface_hub")
    calls = SimpleNamespace(made=None, sent=None, there=[], private=None)

    def create_repo(self, repo_id, **how):
        calls.made = (repo_id, how)
        if calls.private is None:  # a repository that exists stays as public as it was
            calls.private = how["private"]
        return f"https://huggingface.co/datasets/{repo_id}"

    def repo_info(self, repo_id, **how):
        return SimpleNamespace(private=calls.private, siblings=[SimpleNamespace(rfilename=f) for f in calls.there])

    def upload_folder(self, **how):
        there = [str(path.relative_to(how["folder_path"])) for path in how["folder_path"].rglob("*") if path.is_file()]
        calls.sent = set(hub.utils.filter_repo_objects(there, allow_patterns=how["allow_patterns"]))
        calls.how = how

    monkeypatch.setattr(hub, "get_token", lambda: "hf_dummy")
    for method in (create_repo, repo_info, upload_folder):
        monkeypatch.setattr(hub.HfApi, method.__name__, method)
    return calls


def test_only_the_files_of_an_export_are_uploaded(api, exported, repository, capsys):
    (exported / "notes of mine.txt").write_text("private")
    assert main(["data", "upload", str(exported), "--to", "ada/parts", "--private"]) == 0
    assert api.made == ("ada/parts", {"repo_type": "dataset", "private": True, "exist_ok": True})
    assert api.sent == set(repository)
    assert api.how["repo_id"] == "ada/parts"
    assert api.how["repo_type"] == "dataset"
    assert "https://huggingface.co/datasets/ada/parts" in capsys.readouterr().out


def test_an_upload_resumes_but_does_not_touch_other_repositories(api, exported, repository):
    api.there = [".gitattributes", *sorted(repository)[:3]]
    upload(exported, "ada/parts", quiet=True)
    assert api.sent == set(repository)
    api.sent, api.there = None, ["model.safetensors"]
    with pytest.raises(DataError, match=r"ada/parts .* 1 .*model.safetensors"):
        upload(exported, "ada/parts", quiet=True)
    api.there = []
    with pytest.raises(DataError, match="public"):
        upload(exported, "ada/parts", private=True, quiet=True)
    assert api.sent is None


def test_only_an_export_is_uploaded(api, dataset, exported):
    with pytest.raises(ConfigError, match="to=parts"):
        upload(exported, "parts", quiet=True)
    with pytest.raises(DataError, match="flare data export"):
        upload(dataset.path, "ada/parts", quiet=True)
    assert api.made is None


def test_an_upload_without_token_network_or_permission_is_an_error(exported, use_hub):
    hub = serve({})
    hub.server.server_close()
    use_hub(hub)
    with pytest.raises(DataError, match="hf auth login"):
        upload(exported, "ada/parts", quiet=True)
    use_hub(hub, token="hf_dummy")
    with pytest.raises(DataError, match="ada/parts"):
        upload(exported, "ada/parts", quiet=True)
    with serve({}, refuses=403) as hub:
        use_hub(hub, token="hf_dummy")
        with pytest.raises(DataError, match="ada/parts"):
            upload(exported, "ada/parts", quiet=True)


@pytest.mark.slow
def test_the_preset_trains_on_parts_that_were_read(exported, tmp_path, capsys):
    data, sizes = str(tmp_path / "out"), {"channels": 8, "blocks": 2, "heads": 2, "latents": 2}
    assert main(["data", "read", "lpbf", "--folder", str(exported), "--out", data]) == 0
    small = [word for key, size in sizes.items() for word in (f"--model.{key}", str(size))]
    run = ["--epochs", "1", "--device", "cpu", "--out", str(tmp_path / "run"), *small]
    assert main(["train", "--preset", "lpbf", "--data.path", data, *run]) == 0
    assert f"{card('lpbf').paper:.4f}" not in capsys.readouterr().out
