"""The HTTP side with fake workers: slow and numerous clients, foreign pages, the API description."""

import asyncio
import errno
import re
import socket
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from flare.serve import pool as pools
from flare.serve.limits import ServerLimits
from flare.serve.pool import WorkerPool
from flare.serve.server import listen, make_server, run_server
from tests.serve.conftest import TOKEN, settled
from tests.serve.fake_worker import RUNS, fake_work


@contextmanager
def running(folder, token=None, **limits):
    """Serve a pool of fake workers from a thread; yields the pool and the address."""
    ready, pool = threading.Event(), WorkerPool(RUNS, folder, ServerLimits(**limits))
    server = make_server(pool, token)
    with pytest.MonkeyPatch.context() as patch, listen("127.0.0.1", 0) as listener:
        patch.setattr(pools, "work", fake_work)
        thread = threading.Thread(target=lambda: asyncio.run(run_server(server, pool, listener, ready.set)))
        thread.start()
        assert ready.wait(600)
        try:
            yield pool, listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A server with impatient time limits."""
    with running(tmp_path_factory.mktemp("impatient"), header_seconds=1, receive_seconds=1, connections=6) as found:
        yield found


def client(address, **options):
    return httpx.Client(base_url="http://{}:{}".format(*address), timeout=600, trust_env=False, **options)


def receive_all(connection):
    """Return everything that arrives until the server closes the connection."""
    connection.settimeout(600)
    received = b""
    while block := connection.recv(65536):
        received += block
    return received


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_without_a_complete_request_is_closed(begun, impatient):
    _, address = impatient
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(begun)
        assert receive_all(connection) == b""


def test_slow_headers_do_not_extend_their_time(impatient):
    _, address = impatient
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(ConnectionError):
            send_slowly(connection)


def send_slowly(connection):
    for _ in range(1000):
        time.sleep(0.1)
        connection.sendall(b"X")


def test_the_time_limit_of_headers_starts_again_after_a_response_and_not_during_a_job(impatient):
    _, address = impatient
    with client(address) as patient:
        for _ in range(4):
            assert patient.get("/health").status_code == 200
            time.sleep(0.4)  # in total longer than the limit
        with pytest.raises(httpx.ReadTimeout):  # the connection stays open although the job takes longer
            patient.post("/models/sleep/predict?kind=json", content=b"{}", timeout=3)


def test_a_slow_upload_is_rejected_in_time(impatient):
    pool, address = impatient

    def slowly():
        yield b"{"
        for _ in range(600):
            time.sleep(0.1)
            yield b" "

    with client(address) as slow:
        response = slow.post("/models/work/predict?kind=json", content=slowly())
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "too_slow"
    assert settled(lambda: pool.open_jobs == 0)
    assert not list(pool.folder.iterdir())


def test_the_number_of_connections_is_limited(impatient):
    _, address = impatient
    assert settled(lambda: is_healthy(address))
    idle = [socket.create_connection(address) for _ in range(6)]
    try:
        time.sleep(0.2)
        with closing(socket.create_connection(address)) as seventh:
            received = receive_all(seventh)
        assert received.startswith(b"HTTP/1.1 503 ")
        assert b'"crowded"' in received
        assert b"retry-after: 2" in received
    finally:
        for connection in idle:
            connection.close()
    assert settled(lambda: is_healthy(address))


def is_healthy(address):
    with client(address) as one:
        return one.get("/health").status_code == 200


def test_the_job_of_a_client_that_disconnects_is_cancelled(impatient):
    pool, address = impatient
    restarts = pool.restarts
    with client(address) as hasty, pytest.raises(httpx.ReadTimeout):
        hasty.post("/models/sleep/predict?kind=json", content=b"{}", timeout=0.5)
    assert settled(lambda: pool.open_jobs == 0 and not list(pool.folder.iterdir()))
    assert settled(lambda: pool.restarts > restarts and pool.ready)


def test_a_page_of_another_site_cannot_use_a_server_without_a_token(impatient):
    _, address = impatient
    own = "http://{}:{}".format(*address)
    for origin, status in (("https://evil.example", 403), ("null", 403), ("http://127.0.0.1:1", 403), (own, 200)):
        with client(address, headers={"Origin": origin}) as page:
            response = page.post("/models/work/predict?kind=json", content=b"{}")
            assert response.status_code == status, origin
            assert status == 200 or response.json()["error"]["code"] == "wrong_origin"


# ---- the description -------------------------------------------------------------------------------------------------


MEDIA = ("application/json", "application/xml", "application/x-npz", "text/csv", "model/stl")
"""Media types of uploads; the first three are also those of results."""


@pytest.fixture(scope="module")
def description(tmp_path_factory):
    with running(tmp_path_factory.mktemp("described"), token=TOKEN) as (_, address), client(address) as one:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        yield one.get("/openapi.json", headers=headers).json()


def test_the_description_lists_uploads_results_and_errors(description):
    paths = description["paths"]
    for path, status in {"predict": "200", "jobs": "202", "codes": "201", "codes/{code}/query": "200"}.items():
        post = paths[f"/models/{{name}}/{path}"]["post"]
        assert post["requestBody"]["required"]
        assert set(MEDIA) <= set(post["requestBody"]["content"])
        assert {status, "4XX", "5XX"} <= set(post["responses"])
        assert {"kind", "set"} <= {parameter["name"] for parameter in post["parameters"]}
    assert set(paths["/models/{name}/predict"]["post"]["responses"]["200"]["content"]) == set(MEDIA[:3])


def test_the_reference_page_lists_every_route(description):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([A-Z]+) (/[^`]*)`", page))
    routes = {(method.upper(), path) for path, methods in description["paths"].items() for method in methods}
    assert listed == routes


def test_every_error_response_and_every_schema_is_described(description):
    schemas = description["components"]["schemas"]
    assert {"ErrorResponse", "Inputs", "FieldsResponse", "EncodingResponse", "JobResponse"} <= set(schemas)
    for methods in description["paths"].values():
        for route in methods.values():
            for status in {"4XX", "5XX"} & set(route["responses"]):
                schema = route["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorResponse"}


def test_the_token_is_described_for_all_routes_but_health(description):
    assert description["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    for path, methods in description["paths"].items():
        for route in methods.values():
            assert route.get("security") == (None if path == "/health" else [{"token": []}])
            assert ("4XX" in route["responses"]) == (path != "/health")


def test_the_content_type_gives_the_upload_format(impatient):
    _, address = impatient
    with client(address) as one:
        for media in MEDIA:
            response = one.post("/models/work/predict", content=b"{}", headers={"Content-Type": media})
            assert response.status_code == 200, media
        assert one.post("/models/work/predict", content=b"{}").status_code == 415
        form = {"Content-Type": "multipart/form-data; boundary=b"}  # as curl -F sends it
        assert one.post("/models/work/predict?kind=csv", content=b"--b--", headers=form).status_code == 415


def test_a_result_that_cannot_be_sent_leaves_no_files(tmp_path):
    with running(tmp_path) as (pool, address):
        for route in ("codes", "predict"):
            with client(address) as one:  # an internal error closes the connection
                assert one.post(f"/models/nan/{route}?kind=json", content=b"{}").status_code == 500
        assert pool.open_jobs == 0
        assert not list(pool.folder.iterdir())


def test_a_full_disk_gets_503_and_uses_up_no_places_in_the_queue(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with running(tmp_path, queue=1) as (pool, address), client(address) as one:
        for method in ("mkdir", "open"):
            with monkeypatch.context() as patch:
                patch.setattr(Path, method, full)
                response = one.post("/models/work/predict?kind=json", content=b"{}")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "disk_full")
            assert pool.open_jobs == 0
        assert one.post("/models/work/predict?kind=json", content=b"{}").status_code == 200


def test_accepted_connections_send_small_packets_at_once():
    with listen("127.0.0.1", 0) as listener, closing(socket.create_connection(listener.getsockname())):
        connection, _ = listener.accept()
        with closing(connection):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
