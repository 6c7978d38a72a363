"""Download of published files from a small server that imitates the hub."""

import io
import os
import tarfile

import numpy as np
import pytest

from flare.data.dataset import Dataset
from tests.factory import elasticity_dataset
from tests.hub import Hub

pytest.importorskip("huggingface_hub")

NAME = "Geo-FNO.tar.gz"


def packed(*extra):
    """Elasticity in small, packed as the published archive is."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        arrays = {"XY": np.random.default_rng(0).random((18, 2, 12)), "sigma": 1 + np.arange(216.0).reshape(18, 12)}
        for name, array in arrays.items():
            file = io.BytesIO()
            np.save(file, array)
            add(archive, f"Geo-FNO/elasticity/Meshes/Random_UnitCell_{name}_10.npy", file.getvalue())
        for name, content in extra:
            add(archive, name, content)
    return buffer.getvalue()


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def download(hub, folder, name="elasticity"):
    places = ["--out", str(folder / "dataset"), "--files", str(folder / "files")]
    return hub.run(folder, "-m", "flare", "data", "download", name, "--train", "8", "--test", "3", *places)


def test_files_are_downloaded_once_unpacked_and_read(tmp_path):
    with Hub({NAME: packed()}) as hub:
        done = download(hub, tmp_path)
        assert done.returncode == 0, done.stderr
        dataset = Dataset(tmp_path / "dataset")
        assert len(dataset) == 11
        assert dataset.about["provenance"]["kind"] == "published"
        assert download(hub, tmp_path).returncode == 0
        assert len(hub.ranges) == 1


def test_a_broken_connection_is_resumed(tmp_path):
    # the hub's library keeps what arrived in pieces of 10 MB
    content = packed(("Geo-FNO/noise.bin", os.urandom(24_000_000)))
    with Hub({NAME: content}, breaks=True) as hub:
        done = download(hub, tmp_path)
        assert done.returncode == 0, done.stderr
    assert hub.ranges[0] is None
    assert int(hub.ranges[1].removeprefix("bytes=").split("-")[0]) > 0
    assert (tmp_path / "files" / "Geo-FNO.tar.gz").read_bytes() == content


def test_a_file_with_a_wrong_checksum_is_removed(tmp_path):
    with Hub({NAME: packed()}, promised=b"something else") as hub:
        done = download(hub, tmp_path)
    assert done.returncode == 2
    assert "Geo-FNO.tar.gz" in done.stderr
    assert not (tmp_path / "files" / "Geo-FNO.tar.gz").exists()
    assert not (tmp_path / "dataset").exists()


def test_an_archive_that_leaves_its_folder_is_refused(tmp_path):
    with Hub({NAME: packed(("../../evil.txt", b"boo"))}) as hub:
        done = download(hub, tmp_path)
    assert done.returncode == 2
    assert "evil.txt" in done.stderr
    assert not (tmp_path.parent / "evil.txt").exists()
    assert not (tmp_path / "evil.txt").exists()


def test_without_a_hub_the_file_can_be_copied_by_hand(tmp_path):
    hub = Hub({NAME: packed()})
    hub.server.server_close()
    done = download(hub, tmp_path)
    assert done.returncode == 2
    assert "datasets/vedantpuri/PDESurrogates/resolve/main/Geo-FNO.tar.gz" in done.stderr
    assert str(tmp_path / "files" / "Geo-FNO.tar.gz") in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "files").mkdir(exist_ok=True)
    (tmp_path / "files" / "Geo-FNO.tar.gz").write_bytes(packed())
    done = download(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(Dataset(tmp_path / "dataset")) == 11


def test_a_folder_with_another_dataset_is_refused_before_the_download(tmp_path):
    elasticity_dataset(tmp_path / "dataset", samples=2, test=1)
    with Hub({NAME: packed()}) as hub:
        done = download(hub, tmp_path)
    assert done.returncode == 2
    assert str(tmp_path / "dataset") in done.stderr
    assert hub.ranges == []


def test_a_missing_file_is_named(tmp_path):
    with Hub({NAME: packed()}) as hub:
        done = download(hub, tmp_path, "darcy")
    assert done.returncode == 2
    assert "datasets/vedantpuri/PDESurrogates/resolve/main/FNO.tar.gz" in done.stderr
    assert "Traceback" not in done.stderr
