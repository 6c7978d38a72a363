"""The server in its own process: correct results, clear errors, nothing lost and nothing left behind."""

import asyncio
import io
import json
import os
import signal
import sys
import threading

import httpx
import numpy as np
import psutil
import pytest
import safetensors.numpy

from flare.inference.surrogate import load
from flare.mesh import read_mesh
from tests.serve.conftest import TOKEN, settled
from tests.serve.uploads import FACES, KINDS, MISSING, POINTS, SPEED, THICKNESS, flipped, good, json_, malformed, npz

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inspects processes through /proc")


def post(server, path, content, **params):
    params = {name: value for name, value in params.items() if value is not None}
    return server.client.post(path, content=content, params=params)


def predict(server, kind, content, **params):
    return post(server, "/models/part/predict", content, kind=kind, **{"set": MISSING.get(kind)} | params)


def error_of(response, server):
    """Return the error of a response, which must be JSON and reveal nothing about the machine."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:500])
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"code", "message"}
    assert 10 < len(error["message"]) <= 700
    assert str(server.scratch) not in response.text
    assert "Traceback" not in response.text
    return error


@pytest.fixture(scope="module")
def truth(part_run):
    thickness = dict.fromkeys(("npz", "csv", "json", "vtu"), THICKNESS) | {"stl": np.ones(5)}
    model = load(part_run)
    return {
        kind: model.predict(POINTS, features={"thickness": thickness[kind]}, parameters={"speed": SPEED})
        for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_upload_format_gets_the_fields_of_the_model(kind, server, truth, tmp_path):
    response = predict(server, kind, good(kind, tmp_path), answer="json")
    assert response.status_code == 200, response.text
    fields = response.json()["fields"]
    assert fields["force"]["unit"] == "N"
    assert fields["force"]["components"] == ["x", "y"]
    for name, values in truth[kind].items():
        found = np.array(fields[name]["values"], dtype=np.float32)
        if kind == "stl":  # vertices are in the order in which the triangles use them
            values = values[list(dict.fromkeys(FACES.ravel().tolist()))]
        np.testing.assert_allclose(found, values, rtol=1e-6, atol=1e-9)


def test_a_mesh_is_returned_unchanged_with_the_fields_added(server, truth, tmp_path):
    sent = good("vtu", tmp_path)
    (tmp_path / "back.vtu").write_bytes(predict(server, "vtu", sent, answer="vtu").content)
    (tmp_path / "sent.vtu").write_bytes(sent)
    mine, back = read_mesh(tmp_path / "sent.vtu"), read_mesh(tmp_path / "back.vtu")
    for name in ("points", "connectivity", "offsets", "cell_types"):
        a, b = getattr(mine, name), getattr(back, name)
        assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes())
    assert list(back.point_data) == ["thickness", "force_predicted", "heat_predicted"]
    np.testing.assert_allclose(back.point_data["force_predicted"], truth["vtu"]["force"], rtol=1e-6)


def test_arrays_are_returned_as_arrays_and_points_as_a_cloud(server, truth, tmp_path):
    found = np.load(io.BytesIO(predict(server, "npz", npz(), answer="npz").content), allow_pickle=False)
    np.testing.assert_array_equal(found["position"], POINTS)
    np.testing.assert_allclose(found["heat_predicted"], truth["npz"]["heat"], rtol=1e-6, atol=1e-9)
    (tmp_path / "cloud.vtu").write_bytes(predict(server, "npz", npz(), answer="vtu").content)
    assert read_mesh(tmp_path / "cloud.vtu").cell_types.tolist() == [1] * 5


def test_without_the_token_only_health_is_served(server):
    paths = ["/", "/ready", "/metrics", "/models", "/models/part", "/openapi.json", "/docs", "/jobs/1", "//health"]
    for given in ("", "Bearer wrong", f"Basic {TOKEN}", TOKEN):
        headers = {"Authorization": given} if given else {}
        with httpx.Client(base_url=server.address, headers=headers, timeout=900, trust_env=False) as client:
            assert client.get("/health").json() == {"status": "ok"}
            for path in paths:
                response = client.get(path)
                assert response.status_code == 401, path
                code = "wrong_token" if given == "Bearer wrong" else "no_token"
                assert response.json()["error"]["code"] == code
                assert response.headers.get_list("www-authenticate") == ["Bearer", 'Basic realm="flare"']
            assert client.post("/models/part/predict?kind=json", content=json_()).status_code == 401


def test_a_browser_can_get_but_not_post_with_the_token_as_password(server):
    with httpx.Client(base_url=server.address, auth=("anyone", TOKEN), timeout=900, trust_env=False) as browser:
        assert browser.get("/models").status_code == 200
        assert browser.post("/models/part/predict?kind=json", content=json_()).status_code == 401


def job_in_state(server, content, state="done", **params):
    """Start a job, wait until it has a state, and return its address."""
    started = post(server, "/models/part/jobs", content, **params)
    assert started.status_code == 202
    address = started.headers["location"]
    assert settled(lambda: server.client.get(address).json()["state"] == state)
    return address


def test_a_view_result_answers_the_requests_of_the_page(server, truth, tmp_path):
    address = job_in_state(server, good("vtu", tmp_path), kind="vtu", answer="view", set=["speed=2"])
    catalogue = server.client.get(f"{address}/view/catalogue").json()
    assert [field["name"] for field in catalogue["fields"]] == ["force.x", "force.y", "heat"]
    assert (catalogue["version"], catalogue["dimension"], catalogue["length_unit"]) == (1, 2, "m")
    shape = safetensors.numpy.load(server.client.get(f"{address}/view/samples/0").content)
    np.testing.assert_array_equal(shape["points"], POINTS)
    assert shape["triangles"].tolist() == FACES.tolist()
    field = safetensors.numpy.load(server.client.get(f"{address}/view/samples/0/fields/force.y").content)
    np.testing.assert_allclose(field["prediction"], truth["vtu"]["force"][:, 1], rtol=1e-6)
    fields = "samples/0/fields"
    for unknown in ("samples/1", f"{fields}/../lock", f"{fields}/nothing", "../../lock", "..%2f..%2flock"):
        assert server.client.get(f"{address}/view/{unknown}").status_code == 404
    assert error_of(server.client.get(f"{address}/result"), server)["code"] == "a_view"
    server.client.delete(address)
    assert not server.files()


def test_the_page_works_in_a_browser_with_the_token_as_password(server, truth, tmp_path):
    browser = pytest.importorskip("browser", reason="benchmarks/ is not beside the tests")
    if browser.why_not() is not None:
        pytest.skip(f"no browser to test in: {browser.why_not()}")
    address = job_in_state(server, good("vtu", tmp_path), kind="vtu", answer="view", set=["speed=2"])
    problems = []
    with browser.browser() as chromium:
        client = chromium.new_page()
        with pytest.raises(Exception, match="ERR_INVALID_AUTH_CREDENTIALS"):
            client.goto(f"{server.address}/view/index.html?source={address}/view/")
        known = chromium.new_context(http_credentials={"username": "anyone", "password": TOKEN})
        page = known.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.add_init_script("delete Map.groupBy; delete Array.prototype.toSorted;")  # like browsers before 2024
        page.goto(f"{server.address}/view/index.html?source={address}/view/")
        page.wait_for_selector(browser.READY, timeout=120_000)
        assert problems == []
        assert page.locator("#message").is_hidden()
        assert page.title() == "part"
        assert page.locator("#sample optgroup").get_attribute("label") == "upload"
        assert page.locator("#field option").all_inner_texts() == ["force.x [N]", "force.y [N]", "heat [W]"]
        drawn = page.evaluate("() => flare.state.body.count")
        assert drawn == 5
    server.client.delete(address)


def test_models_have_cards_and_the_api_has_a_description(server):
    card = server.client.get("/models/part").json()
    assert card["fields"]["speed"] == {"role": "parameter", "components": ["speed"], "unit": "m/s", "description": ""}
    assert card["parameters"] > 100
    index = server.client.get("/").json()
    assert index["models"] == ["part"]
    assert all(server.client.get(index[where]).status_code == 200 for where in ("cards", "api"))
    assert server.client.get("/models").json()["limits"]["queue"] == 8
    routes = server.client.get("/openapi.json").json()["paths"]
    assert {"/models/{name}/predict", "/jobs/{id}/result", "/models/{name}/codes/{code}/query"} <= set(routes)
    assert server.client.get("/ready").json()["status"] == "ready"


def test_a_job_is_queued_polled_downloaded_and_removed(server, truth):
    address = job_in_state(server, npz(), kind="npz", answer="npz")
    about = server.client.get(address).json()
    assert (about["progress"], about["points"]) == (1.0, 5)
    for _ in range(2):
        found = np.load(io.BytesIO(server.client.get(about["result"]).content), allow_pickle=False)
        np.testing.assert_allclose(found["heat_predicted"], truth["npz"]["heat"], rtol=1e-6, atol=1e-9)
    assert server.client.delete(address).status_code == 200
    assert error_of(server.client.get(address), server)["code"] == "no_job"
    assert not server.files()


def test_a_failed_job_reports_its_error(server):
    address = job_in_state(server, b"{}", "failed", kind="json")
    assert server.client.get(address).json()["error"]["code"] == "unfit"
    assert error_of(server.client.get(f"{address}/result"), server)["code"] == "unfit"
    server.client.delete(address)


def test_an_encoding_is_queried_at_other_points(server, part_run):
    made = post(server, "/models/part/codes", npz(), kind="npz")
    assert made.status_code == 201
    assert made.json()["box"] == [[0, 0], [2, 1]]
    others = np.random.default_rng(0).uniform(0, 1, (7, 2)).astype(np.float32)
    asked = json.dumps({"position": others.tolist(), "thickness": [1.0] * 7}).encode()
    address = f"/models/part/codes/{made.json()['code']}"
    found = post(server, f"{address}/query", asked, kind="json").json()["fields"]
    code = load(part_run).encode(POINTS, features={"thickness": THICKNESS}, parameters={"speed": SPEED})
    expected = code.query(others, {"thickness": np.ones(7)})
    np.testing.assert_allclose(found["force"]["values"], expected["force"], rtol=1e-6)
    other_speed = post(server, f"{address}/query", json_(speed=SPEED + 1), kind="json")
    assert "'speed'" in error_of(other_speed, server)["message"]
    newer = [post(server, "/models/part/codes", npz(), kind="npz").json()["code"] for _ in range(2)]  # two are kept
    assert error_of(post(server, f"{address}/query", asked, kind="json"), server)["code"] == "no_code"
    for code in newer:
        assert server.client.delete(f"/models/part/codes/{code}").status_code == 200
    assert not server.files()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/models/..%2f..%2fetc%2fpasswd", 404, None),
        ("POST", "/models/other/predict?kind=json", 404, "no_model"),
        ("POST", "/models/part/predict", 415, "no_kind"),
        ("POST", "/models/part/predict?kind=..%2f..%2fx", 422, "unfit"),
        ("POST", "/models/part/predict?kind=json&answer=exe", 422, "unfit"),
        ("POST", "/models/part/codes?kind=json&answer=npz", 422, "unfit"),
        ("POST", "/models/part/predict?kind=json&sett=3", 422, "unfit"),
        ("POST", "/models/part/codes/../../x/query?kind=json", 404, None),
        ("GET", "/jobs/..%2f..%2flock/result", 404, None),
        ("PUT", "/models/part/predict", 405, "no_method"),
        ("POST", "/models/part/predict?kind=json&" + "set=a=1&" * 6000, 431, "too_large"),
    ],
)
def test_bad_addresses_and_query_parameters_get_an_error(method, path, status, code, server):
    response = server.client.request(method, path, content=json_() if method == "POST" else None)
    assert response.status_code == status
    error = error_of(response, server)
    assert code in (None, error["code"])
    if "answer=exe" in path:
        assert all(fact in error["message"] for fact in ("answer=exe", "vtu", "npz", "json"))


def test_a_large_upload_is_rejected_with_and_without_a_content_length(server):
    assert error_of(predict(server, "npz", bytes(10**6 + 1)), server)["code"] == "too_large"
    endless = (bytes(10_000) for _ in range(200))  # sent in pieces, without a length
    response = predict(server, "npz", endless)
    assert response.status_code == 413
    assert not server.files()


def bombard(server, numbers, tmp_path, make):
    """Send uploads from four threads and return the status of each."""
    statuses, failures = {}, []

    def send(mine):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        folder = tmp_path / str(mine[0])
        folder.mkdir()
        with httpx.Client(base_url=server.address, headers=headers, timeout=900, trust_env=False) as client:
            for number in mine:
                kind, content, settings = make(number, folder)
                response = client.post("/models/part/predict", content=content, params={"kind": kind, "set": settings})
                statuses[number] = response.status_code
                if response.status_code != 200:
                    try:
                        error_of(response, server)
                    except (AssertionError, KeyError, ValueError) as fault:
                        failures.append((number, kind, response.status_code, str(fault)[:300]))

    threads = [threading.Thread(target=send, args=(list(numbers)[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]
    assert len(statuses) == len(numbers)
    return statuses


def usage(server):
    """Return memory in MB and number of open files of the server and its worker."""
    processes = [psutil.Process(server.process.pid), *server.workers]
    return sum(p.memory_info().rss for p in processes) / 1e6, sum(p.num_fds() for p in processes)


def check_bombardment(server, count, extra, tmp_path):
    bombard(server, range(10**6, 10**6 + 40), tmp_path, malformed)  # warm
    workers, (memory, files) = [p.pid for p in server.workers], usage(server)
    statuses = bombard(server, range(count), tmp_path, malformed)
    assert not {number: status for number, status in statuses.items() if not 400 <= status < 500}
    changed = bombard(server, range(2 * 10**6, 2 * 10**6 + extra), tmp_path, flipped)
    assert set(changed.values()) <= {200, 413, 422}
    assert [p.pid for p in server.workers] == workers  # nothing crashed
    assert not server.files()
    assert server.client.get("/ready").json() == {"status": "ready", "open_jobs": 0}
    after_memory, after_files = usage(server)
    assert after_files <= files + 2
    assert after_memory < memory + 40
    return after_memory - memory


def test_malformed_uploads_get_a_4xx_and_leave_nothing_behind(server, tmp_path):
    check_bombardment(server, 200, 40, tmp_path)


@pytest.mark.slow
def test_ten_thousand_malformed_uploads_get_a_4xx_and_leave_nothing_behind(server, tmp_path):
    print("memory grew by", check_bombardment(server, 10_000, 1000, tmp_path), "MB")


def test_each_of_200_simultaneous_requests_gets_a_result_or_retry_after(server):
    memory, files = usage(server)

    async def everyone():
        limits = httpx.Limits(max_connections=200)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            base_url=server.address, headers=headers, timeout=900, limits=limits, trust_env=False
        ) as client:
            path = "/models/part/predict?kind=npz&answer=npz"
            return await asyncio.gather(*[client.post(path, content=npz()) for _ in range(200)])

    responses = asyncio.run(everyone())
    counts = {status: [r.status_code for r in responses].count(status) for status in {r.status_code for r in responses}}
    assert set(counts) <= {200, 429, 503}
    assert counts[200] >= 8
    assert sum(counts.values()) == 200
    for response in responses:
        if response.status_code == 200:
            arrays = {"position", "thickness", "speed", "force_predicted", "heat_predicted"}
            assert set(np.load(io.BytesIO(response.content))) == arrays
        else:
            assert int(response.headers["retry-after"]) > 0
            assert error_of(response, server)["code"] == "busy"
    assert settled(lambda: usage(server)[1] <= files + 4)
    assert usage(server)[0] < memory + 40
    assert not server.files()


def test_metrics_count_requests_and_jobs(server):
    text = server.client.get("/metrics").text
    assert 'flare_requests_total{method="POST",route="/models/{name}/predict",status="200"}' in text
    assert "flare_job_seconds_bucket" in text
    assert "flare_open_jobs 0.0" in text


def test_a_killed_server_leaves_no_process_and_no_file(server):
    (worker,) = server.workers
    worker.suspend()
    job_in_state(server, npz(), "running", kind="npz", answer="vtu")
    assert server.files()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    worker.resume()
    assert settled(lambda: not psutil.pid_exists(worker.pid) or worker.status() == psutil.STATUS_ZOMBIE)
    assert settled(lambda: not server.folders)
