"""Jobs, and workers that do as a test says: slow ones are ended, dead ones replaced, no job is forgotten."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flare.serve import pool as pools
from flare.serve.limits import Limits
from flare.serve.pool import Pool
from flare.serve.refusal import Refused
from flare.utils.errors import ConfigError
from tests.serve.uploads import npz


def obedient(channel, lifeline, runs, folder, limits):
    """In place of a worker: loads nothing, and does what the job's model is called. A `gate` that is there holds it."""
    while Path(runs.get("gate", "/nowhere")).exists():
        time.sleep(0.02)
    if "broken" in runs:
        channel.send_bytes(json.dumps({"failed": "runs/broken does not exist"}).encode())
        return
    channel.send_bytes(json.dumps({"ready": {name: {"name": name} for name in runs}}).encode())
    while True:
        order = json.loads(channel.recv_bytes())
        if order["model"] == "sleep":
            channel.send_bytes(json.dumps({"progress": 0.5}).encode())
            time.sleep(600)
        if order["model"] == "die":
            os._exit(3)
        if order["model"] == "refuse":
            refused = {"status": 422, "code": "unfit", "message": "no points"}
            channel.send_bytes(json.dumps({"refused": refused}).encode())
            continue
        (Path(order["folder"]) / order["result"]).write_text("answer")
        channel.send_bytes(json.dumps({"done": {"points": 5}}).encode())


@pytest.fixture
def make(monkeypatch, tmp_path):
    monkeypatch.setattr(pools, "work", obedient)
    made = []

    def start(**limits):
        runs = {"work": "", "sleep": "", "die": "", "refuse": "", "gate": str(tmp_path.with_suffix(".gate"))}
        made.append(Pool(runs, tmp_path, Limits(**limits)))
        made[-1].start()
        return made[-1]

    yield start
    for pool in made:
        pool.close()


def submit(pool, model):
    job = pool.admit("predict", model, {"upload": "upload.json", "result": "result.json", "settings": {}}, kept=True)
    (job.folder / "upload.json").write_text("{}")
    pool.submit(job)
    return job


def settled(condition):
    end = time.monotonic() + 600
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_a_job_that_takes_too_long_is_ended_and_the_next_is_served(make, tmp_path):
    pool = make(seconds=2)
    (before,) = pool.processes
    job = submit(pool, "sleep")
    with pytest.raises(Refused, match="longer than the 2 s") as refused:
        job.future.result(600)
    assert refused.value.status == 504
    assert job.progress == 0.5
    assert submit(pool, "work").future.result(600) == {"points": 5}
    assert pool.restarts == 1
    assert pool.processes != [before]
    assert not job.folder.exists()


def test_a_worker_that_dies_fails_its_job_alone(make):
    pool = make()
    job, after = submit(pool, "die"), submit(pool, "work")
    with pytest.raises(Refused, match="the worker ended") as refused:
        job.future.result(600)
    assert refused.value.status == 500
    assert after.future.result(600) == {"points": 5}
    assert after.result.read_text() == "answer"
    assert not (after.folder / "upload.json").exists()


def test_a_running_job_can_be_cancelled_and_a_waiting_one_is_never_begun(make):
    pool = make()
    running, waiting = submit(pool, "sleep"), submit(pool, "work")
    assert settled(lambda: running.progress == 0.5)
    assert (pool.position(running), pool.position(waiting)) == (0, 1)
    pool.forget(waiting)
    pool.forget(running)
    for job in (running, waiting):
        with pytest.raises(Refused, match="cancelled"):
            job.future.result(600)
        assert settled(lambda job=job: not job.folder.exists())
    assert waiting.progress == 0
    assert pool.open_jobs == 0


def test_more_jobs_than_the_queue_holds_are_told_to_come_again(make):
    pool = make(queue=2)
    jobs = [submit(pool, "sleep"), submit(pool, "work")]
    with pytest.raises(Refused) as refused:
        submit(pool, "work")
    assert (refused.value.status, refused.value.code) == (429, "busy")
    assert int(refused.value.headers["Retry-After"]) > 0
    pool.forget(jobs[0])
    assert jobs[1].future.result(600) == {"points": 5}
    assert submit(pool, "work").future.result(600) == {"points": 5}


def test_a_refusal_of_the_worker_reaches_the_client_as_it_was_said(make):
    pool = make()
    job = submit(pool, "refuse")
    with pytest.raises(Refused, match="no points") as refused:
        job.future.result(600)
    assert (refused.value.status, job.state) == (422, "failed")


def test_results_are_kept_for_a_while(make):
    pool = make(kept=2, keep_seconds=0.2)
    jobs = [submit(pool, "work") for _ in range(3)]
    for job in jobs:
        job.future.result(600)
    pool.tidy()
    assert settled(lambda: not jobs[0].folder.exists())  # two are kept at most; its worker's thread may be at it now
    time.sleep(0.25)
    pool.tidy()
    for job in jobs:
        assert settled(lambda job=job: not job.folder.exists())
        with pytest.raises(Refused, match="no such job"):
            pool.find(job.id)


def test_results_take_so_much_room_and_the_newest_stays(make, monkeypatch):
    monkeypatch.setattr(Limits, "kept_bytes", property(lambda limits: 2 * len("answer")))
    pool = make()
    jobs = [submit(pool, "work") for _ in range(4)]
    for job in jobs:
        job.future.result(600)
    assert settled(lambda: [job.folder.exists() for job in jobs] == [False, False, True, True])
    with pytest.raises(Refused, match="no such job"):
        pool.find(jobs[0].id)
    monkeypatch.setattr(Limits, "kept_bytes", property(lambda limits: 1))
    submit(pool, "work").future.result(600)
    assert settled(lambda: len(list(pool._ended)) == 1), "one that is larger alone can be fetched"


def test_failed_jobs_do_not_push_out_results(make):
    pool = make(kept=2)
    done = [submit(pool, "work") for _ in range(2)]
    failed = [submit(pool, "refuse") for _ in range(3)]
    for job in failed:
        with pytest.raises(Refused):
            job.future.result(600)
    pool.tidy()
    assert [job.result.read_text() for job in done] == ["answer"] * 2
    assert [job.id in pool._ended for job in failed] == [False, True, True]


def test_a_server_is_not_ready_while_a_new_worker_loads(make, tmp_path):
    pool = make()
    assert pool.ready
    gate = tmp_path.with_suffix(".gate")
    gate.touch()
    with pytest.raises(Refused):
        submit(pool, "die").future.result(600)
    assert settled(lambda: pool.restarts == 1 and pool._workers[0].alive)
    assert not pool.ready
    gate.unlink()
    assert settled(lambda: pool.ready)


def test_two_workers_work_at_the_same_time(make):
    pool = make(workers=2)
    assert len(set(pool.processes)) == 2
    sleeping = submit(pool, "sleep")
    assert settled(lambda: sleeping.progress == 0.5)
    assert submit(pool, "work").future.result(600) == {"points": 5}
    second = submit(pool, "sleep")
    assert settled(lambda: second.progress == 0.5)
    assert (sleeping.state, second.state) == ("running", "running")


def test_what_is_not_done_when_the_server_ends_is_refused(make, tmp_path):
    pool = make()
    running, waiting = submit(pool, "sleep"), submit(pool, "work")
    assert settled(lambda: running.progress == 0.5)
    pool.close()
    for job in (running, waiting):
        with pytest.raises(Refused, match="cancelled"):
            job.future.result(600)
    assert not pool.ready
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_be_loaded_stops_the_start(monkeypatch, tmp_path):
    monkeypatch.setattr(pools, "work", obedient)
    with pytest.raises(ConfigError, match="runs/broken does not exist"):
        Pool({"broken": ""}, tmp_path, Limits()).start()


def use_memory(megabytes):
    """In a process of its own: 0 where the limit let it have so much more, 7 where it did not."""
    import numpy as np

    from flare.serve.worker import _limit_memory

    _limit_memory(100)
    try:
        np.ones(megabytes * 10**6 // 8)
    except MemoryError:
        os._exit(7)
    os._exit(0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_a_job_that_needs_more_memory_is_refused_and_the_next_is_served(part_run, tmp_path):
    pool = Pool({"part": str(part_run)}, tmp_path, Limits(memory_mb=60, upload_mb=50))
    pool.start()

    def predict(content):
        job = pool.admit("predict", "part", {"upload": "upload.npz", "result": "result.json", "settings": {}})
        (job.folder / "upload.npz").write_bytes(content)
        pool.submit(job)
        return job.future.result(600)

    try:
        before = pool.processes
        many = 4_000_000
        with pytest.raises(Refused, match="60 MB of memory") as refused:
            predict(npz(position=np.zeros((many, 2), np.float32), thickness=np.ones(many, np.float32)))
        assert (refused.value.status, refused.value.code) == (413, "too_large")
        assert predict(npz())["points"] == 5
        assert pool.processes == before  # it was the job that failed, not the worker
    finally:
        pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
@pytest.mark.parametrize(("megabytes", "code"), [(50, 0), (150, 7)])
def test_a_worker_gets_so_much_memory_and_no_more(megabytes, code):
    process = multiprocessing.get_context("spawn").Process(target=use_memory, args=(megabytes,))
    process.start()
    process.join()
    assert process.exitcode == code
