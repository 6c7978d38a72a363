"""Download of published files from a small server that imitates the hub."""

import io
import os
import tarfile

import numpy as np
import pytest

from flare.cli import main
from flare.data.benchmarks.cards import card
from flare.data.benchmarks.download import download
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


def command(folder, name="elasticity"):
    places = ["--out", str(folder / "dataset"), "--files", str(folder / "files")]
    return ["data", "download", name, "--train", "8", "--test", "3", *places]


def test_files_are_downloaded_once_unpacked_and_read(use_hub, tmp_path):
    with Hub({NAME: packed()}) as hub:
        use_hub(hub)
        assert main(command(tmp_path)) == 0
        dataset = Dataset(tmp_path / "dataset")
        assert len(dataset) == 11
        assert dataset.about["provenance"]["kind"] == "published"
    download(card("elasticity").archive, tmp_path / "files", quiet=True)
    assert len(hub.ranges) == 1


def test_a_broken_connection_is_resumed(use_hub, tmp_path):
    # the hub's library keeps what arrived in pieces of 10 MB
    content = packed(("Geo-FNO/noise.bin", os.urandom(24_000_000)))
    with Hub({NAME: content}, breaks=True) as hub:
        use_hub(hub)
        download(card("elasticity").archive, tmp_path / "files", quiet=True)
    assert hub.ranges[0] is None
    assert int(hub.ranges[1].removeprefix("bytes=").split("-")[0]) > 0
    assert (tmp_path / "files" / "Geo-FNO.tar.gz").read_bytes() == content


@pytest.mark.parametrize(
    ("name", "extra", "promised", "message"),
    [
        ("elasticity", (), b"something else", "Geo-FNO.tar.gz"),
        ("elasticity", [("../../evil.txt", b"boo")], None, "evil.txt"),
        ("darcy", (), None, "FNO.tar.gz of vedantpuri/PDESurrogates"),
    ],
    ids=["wrong checksum", "unsafe archive", "missing file"],
)
def test_bad_archives_are_refused_and_leave_nothing(name, extra, promised, message, use_hub, tmp_path, capsys):
    with Hub({NAME: packed(*extra)}, promised=promised) as hub:
        use_hub(hub)
        assert main(command(tmp_path, name)) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "files" / NAME).exists() == (promised is None and name == "elasticity")
    assert not (tmp_path / "dataset").exists()
    assert not list(tmp_path.parent.rglob("evil.txt"))


def test_without_a_hub_the_file_can_be_copied_by_hand(use_hub, tmp_path, capsys):
    hub = Hub({NAME: packed()})
    hub.server.server_close()
    use_hub(hub)
    assert main(command(tmp_path)) == 2
    errors = capsys.readouterr().err
    assert "Geo-FNO.tar.gz of vedantpuri/PDESurrogates" in errors
    assert str(tmp_path / "files" / "Geo-FNO.tar.gz") in errors
    (tmp_path / "files").mkdir(exist_ok=True)
    (tmp_path / "files" / "Geo-FNO.tar.gz").write_bytes(packed())
    assert any(download(card("elasticity").archive, tmp_path / "files", quiet=True).iterdir())


def test_a_folder_with_another_dataset_is_refused_before_the_download(use_hub, tmp_path, capsys):
    elasticity_dataset(tmp_path / "dataset", samples=2, test=1)
    with Hub({NAME: packed()}) as hub:
        use_hub(hub)
        assert main(command(tmp_path)) == 2
    assert str(tmp_path / "dataset") in capsys.readouterr().err
    assert hub.ranges == []
