"""Requests of the page, the standalone HTML file, the local server and the command line."""

import base64
import gzip
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from safetensors.numpy import load

from flare.cli import main
from flare.utils.errors import ConfigError, DataError
from flare.view.answers import answer
from flare.view.server import HOST, PAGE, ViewServer, page_file
from flare.view.source import NotThere
from flare.view.standalone import choose_samples, find_recorded, record_answers, write_standalone


@contextmanager
def served(source):
    with ViewServer(source) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def asked(server, path, host=None, method="GET"):
    """Status, content type and body."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers["Content-Type"], body


def test_arrays_are_transferred_exactly(plate):
    shown = load(answer(plate, "samples/3")[1])
    np.testing.assert_array_equal(shown["points"], plate.dataset[3].values["position"])
    assert shown["triangles"].dtype == np.uint32
    field = load(answer(plate, "samples/3/fields/velocity.x")[1])
    np.testing.assert_array_equal(field["truth"], plate.dataset[3].values["velocity"][:, 0])
    assert set(field) == {"truth", "prediction"}
    assert load(answer(plate, "samples/3/spectra")[1])["eigenvalues"].shape == (2, 4, 6)
    assert load(answer(plate, "samples/3/modes/1/3")[1])["eigenvectors"].shape[1] == 63
    assert json.loads(answer(plate, "catalogue")[1])["version"] == 1


@pytest.mark.parametrize(
    "path",
    [
        *("", "samples", "samples/", "samples/x", "samples/-1", "samples/0/", "catalogue/", "../catalogue"),
        *("samples/0/modes/0", "samples/0/modes/0/0/0", "samples/0/fields/", "samples/0/fields/../../etc"),
        "samples/99999999999999999999",
    ],
)
def test_unknown_requests_raise_not_there(plate, path):
    with pytest.raises(NotThere):
        answer(plate, path)


def test_the_server_returns_page_data_and_errors(plate):
    with served(plate) as server:
        assert asked(server, "/")[:2] == (200, "text/html; charset=utf-8")
        assert asked(server, "/main.js")[:2] == (200, "text/javascript; charset=utf-8")
        status, _, body = asked(server, "/api/samples/2/fields/velocity%2Ex")
        assert (status, set(load(body))) == (200, {"truth", "prediction"})
        status, kind, body = asked(server, "/api/samples/2/fields/heat")
        assert (status, kind) == (404, "application/json")
        assert "'heat'" in json.loads(body)["error"]
        assert asked(server, "/", method="POST")[0] == 501
        with pytest.raises(ConfigError, match=str(server.server_port)):
            ViewServer(plate, port=server.server_port)


def test_only_files_of_the_page_are_returned_and_only_to_this_machine(plate):
    with served(plate) as server:
        for path in ("/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "//etc/passwd", "/page/main.js"):
            assert asked(server, path)[0] == 404
        assert asked(server, "/api/catalogue", host=f"localhost:{server.server_port}")[0] == 200
        status, _, body = asked(server, "/api/catalogue", host=f"evil.example:{server.server_port}")
        assert status == 403
        assert b"plate" not in body


def test_a_closed_connection_is_not_reported(plate, capsys):
    with served(plate) as server:
        failed = threading.Event()
        handle, server.handle_error = server.handle_error, lambda *given: (handle(*given), failed.set())
        with socket.create_connection((HOST, server.server_port)) as visitor:
            visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
            visitor.sendall(b"GET /api/catalogue HTTP/1.1\r\nHost: localhost\r\n")
        assert failed.wait(30)
        assert asked(server, "/api/catalogue")[0] == 200
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_stops_the_command_cleanly(plate):
    command = [sys.executable, "-m", "flare", "view", str(plate.dataset.path), "--no-open"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A background shell ignores SIGINT, and its children inherit that.
    with subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        address = re.match(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert address
        connection = HTTPConnection("127.0.0.1", int(address[1]), timeout=30)
        connection.request("GET", "/api/catalogue")
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (200, True)
        connection.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_the_file_contains_every_answer_that_the_page_may_request(plate, tmp_path):
    catalogue = write_standalone(plate, tmp_path / "page.html", [4, 2])
    text = (tmp_path / "page.html").read_text()
    packed = dict(re.findall(r'<script type="text/plain" data-path="([^"]+)">([^<]+)</script>', text))
    assert [s["id"] for s in catalogue["samples"]] == [4, 2]
    assert len(packed) == 1 + 2 * (1 + 3 + 1 + 2 * 4)  # catalogue; geometry, channels, spectra, heads
    for path, body in packed.items():
        found = gzip.decompress(base64.b64decode(body))
        assert found == (json.dumps(catalogue).encode() if path == "catalogue" else answer(plate, path)[1])


def test_the_file_refers_to_no_other_file(plate, tmp_path):
    write_standalone(plate, tmp_path / "page.html", [4])
    text = re.sub(r"base64,[A-Za-z0-9+/=]+", "", (tmp_path / "page.html").read_text())
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "Content-Security-Policy" in text
    imports = json.loads(re.search(r'<script type="importmap">(.+?)</script>', (tmp_path / "page.html").read_text())[1])
    needed = {name for file in PAGE.glob("*.js") for name in re.findall(r'from "([^"]+)"', page_text(file.name))}
    assert needed - {"three"} <= {f"flare/{file.name}" for file in PAGE.glob("*.js")}
    assert needed <= set(imports["imports"])


def test_recorded_answers_are_found_by_path_and_nothing_else_is(plate, tmp_path):
    record_answers(Recorded(plate), tmp_path / "recorded")
    for path in ("samples/3", "samples/3/fields/velocity.x"):
        assert find_recorded(tmp_path / "recorded", path).read_bytes() == answer(plate, path)[1]
    assert json.loads(find_recorded(tmp_path / "recorded", "catalogue").read_bytes())["version"] == 1
    for path in ("", ".", "..", "../recorded", "samples/99", "catalogue/"):
        assert find_recorded(tmp_path / "recorded", path) is None


class Recorded:
    """One sample of a source, without spectra."""

    def __init__(self, source):
        self.geometry, self.field, self._catalogue = source.geometry, source.field, source.catalogue()

    def catalogue(self):
        samples = [sample for sample in self._catalogue["samples"] if sample["id"] == 3]
        return {**self._catalogue, "samples": samples, "spectra": None}


def page_text(name):
    return "" if name == "three.min.js" else page_file(name)[1].decode()


def test_large_eigenvectors_are_left_out_of_the_file(plate, tmp_path, monkeypatch):
    monkeypatch.setattr("flare.view.standalone.MODES_BYTES", 100)
    catalogue = write_standalone(plate, tmp_path / "page.html", [4])
    assert catalogue["spectra"]["painted"] is False
    assert "/modes/" not in (tmp_path / "page.html").read_text()


def test_median_best_and_worst_samples_are_chosen():
    samples = [{"id": i, "split": "test", "points": 1, "error": float(e)} for i, e in enumerate([3, 0, 4, 1, 2])]
    assert choose_samples({"samples": samples}, 3) == [4, 1, 2]
    assert set(choose_samples({"samples": samples}, 9)) == set(range(5))
    assert choose_samples({"samples": samples}, 1) == [4]
    for sample in samples:
        del sample["error"]
    assert choose_samples({"samples": samples}, 2) == [0, 1]


def test_an_unknown_sample_writes_no_file(plate, tmp_path):
    with pytest.raises(DataError, match="77"):
        write_standalone(plate, tmp_path / "page.html", [4, 77])
    assert not list(tmp_path.iterdir())


def test_the_command_does_not_overwrite_a_file(plate, tmp_path, capsys):
    words = ["view", str(plate.run), "--device", "cpu", "--modes", "2", "--out", str(tmp_path / "page.html")]
    assert main([*words, "--ids", "3,4"]) == 0
    assert "2 samples" in capsys.readouterr().out
    before = (tmp_path / "page.html").read_bytes()
    assert main(words) == 2
    assert "page.html" in capsys.readouterr().err
    assert (tmp_path / "page.html").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["nowhere"], "nowhere"),
        (["nowhere.vtu"], "nowhere.vtu"),
        (["nowhere", "--data", "x"], "--data"),
        (["nowhere.csv", "--split", "test"], "--split"),
        (["nowhere", "--ids", "1"], "--ids"),
        (["nowhere", "--out", "p.html", "--ids", "1,b"], "--ids 1,b"),
        (["nowhere", "--modes", "0"], "--modes 0"),
        (["nowhere", "--opne"], "--opne"),
    ],
)
def test_bad_input_is_reported_with_exit_code_2(words, fact, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["view", *words]) == 2
    assert fact in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_color_maps_equal_those_of_matplotlib():
    stops = dict(re.findall(r'(\w+):\s+"([0-9a-f]+)",', page_text("colors.js")))
    assert set(stops) == {"viridis", "magma", "cividis", "turbo", "coolwarm", "RdBu_r"}
    for name, hexes in stops.items():
        ours = np.frombuffer(bytes.fromhex(hexes), np.uint8).reshape(33, 3)
        theirs = 255 * matplotlib.colormaps[name](np.linspace(0, 1, 256))[:, :3]
        between = [np.interp(np.linspace(0, 32, 256), np.arange(33), ours[:, channel]) for channel in range(3)]
        assert np.abs(np.stack(between, 1) - theirs).max() < 6, name


def test_the_bundled_library_states_its_version_and_license():
    text = page_file("three.min.js")[1].decode()
    assert "SPDX-License-Identifier: MIT" in text[:400]
    assert re.search(r"three@\d+\.\d+\.\d+", text[:400])
    assert "MIT License" in page_file("three.LICENSE")[1].decode()
    assert Path(str(PAGE / "three.entry.js")).exists()
