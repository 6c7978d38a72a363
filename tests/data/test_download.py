"""Fetching published files, from a small server that answers as the hub does."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from flare.data.store import Dataset
from tests.factory import elasticity_dataset

pytest.importorskip("huggingface_hub")

PATH = "/datasets/vedantpuri/PDESurrogates/resolve/main/Geo-FNO.tar.gz"


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


class Hub:
    """Serves one file; may break off the first answer, or send other bytes than it has promised."""

    def __init__(self, content, *, breaks=False, promised=None):
        self.ranges = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.answer(content, send=False)

            def do_GET(self):
                asked = self.headers.get("Range")
                hub.ranges.append(asked)
                start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
                self.answer(content, start=start, cut=breaks and len(hub.ranges) == 1)

            def answer(self, content, start=0, cut=False, send=True):
                if self.path.split("?")[0] != PATH:
                    self.send_error(404)
                    return
                self.send_response(206 if start else 200)
                digest = hashlib.sha256(promised or content).hexdigest()
                self.send_header("ETag", f'"{digest}"')
                self.send_header("X-Linked-Etag", f'"{digest}"')
                self.send_header("X-Linked-Size", str(len(content)))
                self.send_header("X-Repo-Commit", "0" * 40)
                self.send_header("Accept-Ranges", "bytes")
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                if send:
                    self.wfile.write(content[start : len(content) // 2 if cut else None])
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def download(self, folder, name="elasticity"):
        environment = os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}",
            "HF_HOME": str(folder / "home"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "no_proxy": "127.0.0.1",
        }
        command = [sys.executable, "-m", "flare", "data", "download", name, "--train", "8", "--test", "3"]
        places = ["--out", str(folder / "dataset"), "--files", str(folder / "files")]
        return subprocess.run([*command, *places], env=environment, capture_output=True, text=True)


def test_fetched_unpacked_and_read(tmp_path):
    with Hub(packed()) as hub:
        done = hub.download(tmp_path)
        assert done.returncode == 0, done.stderr
        dataset = Dataset(tmp_path / "dataset")
        assert len(dataset) == 11
        assert dataset.about["provenance"]["kind"] == "published"
        assert hub.download(tmp_path).returncode == 0
        assert len(hub.ranges) == 1, "what is there is not fetched again"


def test_a_broken_connection_goes_on_where_it_was(tmp_path):
    # the hub's library keeps what arrived in pieces of 10 MB
    content = packed(("Geo-FNO/noise.bin", os.urandom(24_000_000)))
    with Hub(content, breaks=True) as hub:
        done = hub.download(tmp_path)
        assert done.returncode == 0, done.stderr
    assert hub.ranges[0] is None
    assert int(hub.ranges[1].removeprefix("bytes=").split("-")[0]) > 0
    assert (tmp_path / "files" / "Geo-FNO.tar.gz").read_bytes() == content


def test_other_bytes_than_promised_are_refused_and_removed(tmp_path):
    with Hub(packed(), promised=b"something else") as hub:
        done = hub.download(tmp_path)
    assert done.returncode == 2
    assert "does not have the checksum" in done.stderr
    assert not (tmp_path / "files" / "Geo-FNO.tar.gz").exists()
    assert not (tmp_path / "dataset").exists()


def test_an_archive_that_leaves_its_folder_is_refused(tmp_path):
    with Hub(packed(("../../evil.txt", b"boo"))) as hub:
        done = hub.download(tmp_path)
    assert done.returncode == 2
    assert "not to be trusted" in done.stderr
    assert not (tmp_path.parent / "evil.txt").exists()
    assert not (tmp_path / "evil.txt").exists()


def test_a_hub_that_does_not_answer_is_named_and_a_file_that_is_there_is_taken(tmp_path):
    hub = Hub(packed())
    hub.server.server_close()
    done = hub.download(tmp_path)
    assert done.returncode == 2
    assert "cannot fetch Geo-FNO.tar.gz of vedantpuri/PDESurrogates" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "files").mkdir(exist_ok=True)
    (tmp_path / "files" / "Geo-FNO.tar.gz").write_bytes(packed())
    done = hub.download(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "checksum unverified" in done.stderr
    assert len(Dataset(tmp_path / "dataset")) == 11


def test_a_folder_with_other_data_is_found_before_anything_is_fetched(tmp_path):
    elasticity_dataset(tmp_path / "dataset", samples=2, test=1)
    with Hub(packed()) as hub:
        done = hub.download(tmp_path)
    assert done.returncode == 2
    assert "holds another dataset already" in done.stderr
    assert hub.ranges == []


def test_a_hub_without_the_file_is_named(tmp_path):
    with Hub(packed()) as hub:
        done = hub.download(tmp_path, "darcy")
    assert done.returncode == 2
    assert "cannot fetch FNO.tar.gz of vedantpuri/PDESurrogates" in done.stderr
    assert "Traceback" not in done.stderr
