"""The HTTP side alone, with workers that do as a test says: slow and crowding clients, foreign pages, OpenAPI."""

import json
import math
import socket
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from flare.serve import pool as pools
from flare.serve.app import make_app
from flare.serve.limits import Limits
from flare.serve.metrics import Metrics
from flare.serve.pool import Pool
from flare.serve.start import _listen, http_config
from tests.serve.test_pool import obedient, settled

TOKEN = "a-token-of-the-tests-0123456789"


@contextmanager
def running(folder, token=None, **limits):
    """A pool and the address where it is served, from a thread."""
    limits = Limits(**limits)
    pool = Pool({"work": "", "sleep": ""}, folder, limits)
    pool.start()
    listener = _listen("127.0.0.1", 0)
    server = uvicorn.Server(http_config(make_app(pool, limits, Metrics(), token=token), limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield pool, listener.getsockname()
    finally:
        server.should_exit = True
        thread.join()
        pool.close()
        listener.close()


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "work", obedient)
        yield


@pytest.fixture(scope="module")
def short(patched, tmp_path_factory):
    """A server with little patience."""
    with running(tmp_path_factory.mktemp("short"), header_seconds=1, receive_seconds=1, connections=6) as found:
        yield found


def client(address, **options):
    return httpx.Client(base_url="http://{}:{}".format(*address), timeout=600, trust_env=False, **options)


def heard(connection):
    """All that comes until the other side closes."""
    connection.settimeout(600)
    said = b""
    while block := connection.recv(65536):
        said += block
    return said


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_that_does_not_say_what_it_wants_is_closed(begun, short):
    _, address = short
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(begun)
        assert heard(connection) == b""


def test_a_client_that_drips_headers_gets_no_more_time_for_it(short):
    _, address = short
    with closing(socket.create_connection(address)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(ConnectionError):
            _drip(connection)


def _drip(connection):
    """A byte every now and then, for minutes if it is let."""
    for _ in range(1000):
        time.sleep(0.1)
        connection.sendall(b"X")


def test_after_an_answer_the_clock_runs_anew_and_a_working_request_has_none(short):
    _, address = short
    with client(address) as patient:
        for _ in range(4):
            assert patient.get("/health").status_code == 200
            time.sleep(0.4)  # more than a second in all, on one connection
        with pytest.raises(httpx.ReadTimeout):  # nobody closes it, though the job takes longer than headers may
            patient.post("/models/sleep/predict?kind=json", content=b"{}", timeout=3)


def test_an_upload_that_drips_is_refused_in_time(short):
    pool, address = short

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


def test_connections_are_limited_before_any_token_is_seen(short):
    _, address = short
    assert settled(lambda: _welcome(address))
    idle = [socket.create_connection(address) for _ in range(6)]
    try:
        time.sleep(0.2)
        with closing(socket.create_connection(address)) as seventh:
            said = heard(seventh)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b'"code": "crowded"' in said
        assert b"Retry-After: 2" in said
    finally:
        for connection in idle:
            connection.close()
    assert settled(lambda: _welcome(address))


def _welcome(address):
    with client(address) as one:
        return one.get("/health").status_code == 200


def test_a_client_that_goes_away_has_its_job_cancelled(short):
    pool, address = short
    restarts = pool.restarts
    with client(address) as hasty, pytest.raises(httpx.ReadTimeout):
        hasty.post("/models/sleep/predict?kind=json", content=b"{}", timeout=0.5)
    assert settled(lambda: pool.open_jobs == 0)
    assert not list(pool.folder.iterdir())
    assert settled(lambda: pool.restarts > restarts and pool.ready)


def test_a_page_from_elsewhere_cannot_send_to_a_server_without_a_token(short):
    _, address = short
    own = "http://{}:{}".format(*address)
    for origin, status in (("https://evil.example", 403), ("null", 403), ("http://127.0.0.1:1", 403), (own, 200)):
        with client(address, headers={"Origin": origin}) as page:
            response = page.post("/models/work/predict?kind=json", content=b"{}")
            assert response.status_code == status, origin
            assert status == 200 or response.json()["error"]["code"] == "wrong_origin"


# ---- the description -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def description(patched, tmp_path_factory):
    with running(tmp_path_factory.mktemp("described"), token=TOKEN) as (_, address), client(address) as one:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        yield one.get("/openapi.json", headers=headers).json()


def test_the_description_says_what_to_upload_and_what_comes_back(description):
    for path in ("/models/{name}/predict", "/models/{name}/jobs", "/models/{name}/codes/{code}/query"):
        post = description["paths"][path]["post"]
        body = post["requestBody"]
        assert body["required"]
        assert {"application/json", "application/xml", "application/x-npz", "text/csv", "model/stl"} <= set(
            body["content"]
        )
        assert {"400", "401", "408", "413", "415", "422", "429", "503", "504"} <= set(post["responses"])
        kinds = {p["name"]: p for p in post["parameters"]}
        assert {"kind", "set"} <= set(kinds)
    answer = description["paths"]["/models/{name}/predict"]["post"]["responses"]["200"]["content"]
    assert set(answer) == {"application/json", "application/xml", "application/x-npz"}
    assert "202" in description["paths"]["/models/{name}/jobs"]["post"]["responses"]
    assert "201" in description["paths"]["/models/{name}/codes"]["post"]["responses"]


def test_every_refusal_is_described_as_ours_and_every_name_is_there(description):
    named = set()

    def walk(part):
        if isinstance(part, dict):
            named.update([part["$ref"]] if "$ref" in part else [])
            for inner in part.values():
                walk(inner)
        elif isinstance(part, list):
            for inner in part:
                walk(inner)

    walk(description["paths"])
    assert named == {f"#/components/schemas/{n}" for n in ("Error", "Inputs", "Fields", "Code", "Job")}
    assert {n.rpartition("/")[2] for n in named} == set(description["components"]["schemas"])
    for methods in description["paths"].values():
        for route in methods.values():
            for status, response in route["responses"].items():
                if int(status) >= 400:
                    schema = response["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Error"}


def test_the_token_is_described_for_all_but_health(description):
    assert description["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert description["security"] == [{"token": []}]
    assert description["paths"]["/health"]["get"]["security"] == []
    assert "401" not in description["paths"]["/health"]["get"]["responses"]


def test_a_content_type_says_what_an_upload_is(short):
    _, address = short
    with client(address) as one:
        for media in ("application/json", "application/xml", "application/x-npz", "text/csv", "model/stl"):
            response = one.post("/models/work/predict", content=b"{}", headers={"Content-Type": media})
            assert response.status_code == 200, media
        assert one.post("/models/work/predict", content=b"{}").status_code == 415


def test_slips_of_curl_are_told_with_the_way_to_do_it(short):
    _, address = short
    form = b"--boundary\r\nContent-Disposition: form-data; name=file\r\n\r\nx,y\r\n--boundary--\r\n"
    plain = "application/x-www-form-urlencoded"  # which curl says of --data-binary, too
    with client(address) as web:
        for content, kind, status, code in (
            (form, "multipart/form-data; boundary=boundary", 415, "a_form"),
            (form, plain, 400, "a_form"),
            (b"x,y,speed0,0,11,1,1", plain, 400, "one_line"),
        ):
            headers = {"Content-Type": kind}
            refused = web.post("/models/work/predict?kind=csv", content=content, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
            assert "as curl --data-binary @FILE does" in refused.json()["error"]["message"]


def speechless(channel, lifeline, runs, folder, limits):
    """In place of a worker: says of every part what JSON has no word for."""
    channel.send_bytes(json.dumps({"ready": {name: {"name": name, "can_encode": True} for name in runs}}).encode())
    while True:
        order = json.loads(channel.recv_bytes())
        (Path(order["folder"]) / order["result"]).write_text("answer")
        channel.send_bytes(json.dumps({"done": {"points": math.nan}}).encode())


def test_an_answer_that_cannot_be_written_leaves_no_part_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(pools, "work", speechless)
    with running(tmp_path) as (pool, address):
        for route in ("codes", "predict"):
            with client(address) as one:  # a fault ends the connection
                assert one.post(f"/models/work/{route}?kind=json", content=b"{}").status_code == 500
        assert pool.open_jobs == 0
        assert not list(pool.folder.iterdir())
