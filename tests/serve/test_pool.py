"""Jobs and worker processes: slow workers are ended, dead ones replaced, and no job is lost."""

import asyncio
import sys
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from flare.serve import pool as pools
from flare.serve.limits import ServerLimits
from flare.serve.pool import WorkerPool
from flare.serve.responses import ApiError
from tests.serve.fake_worker import RUNS, fake_work
from tests.serve.uploads import npz


@pytest.fixture
def start(monkeypatch, tmp_path):
    """start(**limits) -> asynchronous context of a pool of fake workers."""
    monkeypatch.setattr(pools, "work", fake_work)

    @asynccontextmanager
    async def started(**limits):
        pool = WorkerPool({**RUNS, "gate": str(tmp_path.with_suffix(".gate"))}, tmp_path, ServerLimits(**limits))
        await pool.start()
        try:
            yield pool
        finally:
            await pool.close()

    return started


def run_async(test):
    """Run an asynchronous test in an event loop of its own, for ten minutes at most."""

    def run(start, tmp_path):
        asyncio.run(asyncio.wait_for(test(start, tmp_path), 600))

    run.__name__ = test.__name__
    return run


def submit(pool, model):
    job = pool.admit("predict", model, {"upload": "upload.json", "result": "result.json", "settings": {}}, kept=True)
    (job.folder / "upload.json").write_text("{}")
    pool.submit(job)
    return job


async def finish(job):
    """Wait for a job and return its summary or raise its error."""
    await asyncio.wait([job.running])
    return job.get_summary()


async def fail(job):
    """Wait for a job and return its error."""
    with pytest.raises(ApiError) as error:
        await finish(job)
    return error.value


async def until(condition):
    while not condition():
        await asyncio.sleep(0.02)


def process_ids(pool):
    return [worker.process.pid for worker in pool.workers]


@run_async
async def test_a_job_that_takes_too_long_is_ended_and_the_next_one_runs(start, tmp_path):
    async with start(seconds=1) as pool:
        before, job = process_ids(pool), submit(pool, "sleep")
        assert (await fail(job)).status_code == 504
        assert job.progress == 0.5
        assert await finish(submit(pool, "work")) == {"points": 5}
        assert pool.restarts == 1
        assert process_ids(pool) != before
        assert not job.folder.exists()


@run_async
async def test_a_worker_that_dies_fails_only_its_job(start, tmp_path):
    async with start() as pool:
        job, after = submit(pool, "die"), submit(pool, "work")
        assert (await fail(job)).status_code == 500
        assert await finish(after) == {"points": 5}
        assert after.result.read_text() == "answer"
        assert not (after.folder / "upload.json").exists()


@run_async
async def test_a_worker_killed_while_idle_is_replaced(start, tmp_path):
    async with start() as pool:
        before = process_ids(pool)
        pool.workers[0].process.kill()
        await until(lambda: pool.restarts == 1 and pool.ready)
        assert process_ids(pool) != before
        assert await finish(submit(pool, "work")) == {"points": 5}


@run_async
async def test_a_worker_that_cannot_be_restarted_fails_jobs_and_recovers(start, tmp_path):
    async with start() as pool:
        pool.runs["broken"] = ""
        assert (await fail(submit(pool, "die"))).status_code == 500
        assert (await fail(submit(pool, "work"))).status_code == 500
        del pool.runs["broken"]
        assert await finish(submit(pool, "work")) == {"points": 5}


@run_async
async def test_running_and_waiting_jobs_can_be_cancelled(start, tmp_path):
    async with start() as pool:
        running, waiting = submit(pool, "sleep"), submit(pool, "work")
        await until(lambda: running.progress == 0.5)
        assert (pool.position(running), pool.position(waiting)) == (0, 1)
        for job in (waiting, running):
            pool.remove(job)
            assert (await fail(job)).code == "cancelled"
            assert not job.folder.exists()
        assert waiting.progress == 0
        assert pool.open_jobs == 0


@run_async
async def test_a_full_queue_rejects_jobs_with_retry_after(start, tmp_path):
    async with start(queue=2) as pool:
        jobs = [submit(pool, "sleep"), submit(pool, "work")]
        with pytest.raises(ApiError) as error:
            submit(pool, "work")
        assert (error.value.status_code, error.value.code) == (429, "busy")
        assert int(error.value.headers["Retry-After"]) > 0
        pool.remove(jobs[0])
        assert await finish(jobs[1]) == {"points": 5}
        assert await finish(submit(pool, "work")) == {"points": 5}


@run_async
async def test_results_are_kept_up_to_a_number_and_an_age(start, tmp_path):
    async with start(kept=2, keep_seconds=0.2) as pool:
        jobs = [submit(pool, "work") for _ in range(3)]
        for job in jobs:
            await finish(job)
        assert not jobs[0].folder.exists()
        await until(lambda: not any(job.folder.exists() for job in jobs))
        for job in jobs:
            with pytest.raises(ApiError) as error:
                pool.find(job.id)
            assert error.value.code == "no_job"


@run_async
async def test_results_are_kept_up_to_a_size_and_the_newest_always(start, tmp_path):
    async with start(kept_mb=13e-6) as pool:  # two results
        jobs = [submit(pool, "work") for _ in range(4)]
        for job in jobs:
            await finish(job)
        assert [job.folder.exists() for job in jobs] == [False, False, True, True]
        pool.limits = ServerLimits(kept_mb=1e-6)
        newest = submit(pool, "work")
        await finish(newest)
        assert [job.folder.exists() for job in [*jobs, newest]] == [False] * 4 + [True]


def is_known(pool, job):
    with suppress(ApiError):
        return pool.find(job.id) is job
    return False


@run_async
async def test_failed_jobs_do_not_displace_results(start, tmp_path):
    async with start(kept=2) as pool:
        done = [submit(pool, "work") for _ in range(2)]
        failed = [submit(pool, "refuse") for _ in range(3)]
        for job in failed:
            error = await fail(job)
            assert (error.status_code, error.code, error.detail, job.state) == (422, "unfit", "no points", "failed")
        assert [job.result.read_text() for job in done] == ["answer"] * 2
        assert [is_known(pool, job) for job in failed] == [False, True, True]


@run_async
async def test_a_server_is_not_ready_while_a_worker_loads(start, tmp_path):
    async with start() as pool:
        assert pool.ready
        gate = tmp_path.with_suffix(".gate")
        gate.touch()
        await fail(submit(pool, "die"))
        await until(lambda: pool.restarts == 1)
        assert not pool.ready
        gate.unlink()
        await until(lambda: pool.ready)


@run_async
async def test_two_workers_run_at_the_same_time(start, tmp_path):
    async with start(workers=2) as pool:
        assert len(set(process_ids(pool))) == 2
        first = submit(pool, "sleep")
        await until(lambda: first.progress == 0.5)
        assert await finish(submit(pool, "work")) == {"points": 5}
        second = submit(pool, "sleep")
        await until(lambda: second.progress == 0.5)
        assert (first.state, second.state) == ("running", "running")


@run_async
async def test_jobs_that_are_unfinished_when_the_server_ends_are_cancelled(start, tmp_path):
    async with start() as pool:
        jobs = [submit(pool, "sleep"), submit(pool, "work")]
        await until(lambda: jobs[0].progress == 0.5)
    assert [job.error.code for job in jobs] == ["cancelled"] * 2
    assert not pool.ready
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_a_job_that_needs_too_much_memory_fails_and_the_next_one_runs(part_run, tmp_path):
    async def predict(pool, content):
        job = pool.admit("predict", "part", {"upload": "upload.npz", "result": "result.json", "settings": {}})
        (job.folder / "upload.npz").write_bytes(content)
        pool.submit(job)
        return await finish(job)

    async def run():
        pool = WorkerPool({"part": str(part_run)}, tmp_path, ServerLimits(memory_mb=60, upload_mb=50))
        await pool.start()
        try:
            before, many = process_ids(pool), 4_000_000
            with pytest.raises(ApiError) as error:
                await predict(pool, npz(position=np.zeros((many, 2), np.float32), thickness=np.ones(many, np.float32)))
            assert (error.value.status_code, error.value.code) == (413, "too_large")
            assert (await predict(pool, npz()))["points"] == 5
            assert process_ids(pool) == before
        finally:
            await pool.close()

    asyncio.run(run())
