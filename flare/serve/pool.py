"""Jobs and the worker processes that run them, bounded in number, time and memory.

Everything here runs on the event loop of the server, so no locks are needed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from flare.serve.limits import ServerLimits
from flare.serve.responses import ApiError
from flare.serve.worker import work
from flare.utils.errors import ConfigError

TIDY_SECONDS = 1.0
"""Time between two checks for old results and dead workers."""
START_SECONDS = 600.0
"""Time for a worker to load its models."""
RETRY_SECONDS = 30.0
"""Time between attempts to restart an idle worker whose models cannot be loaded."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class UploadJob:
    """One upload on its way to a result. Its files are in a folder of its own."""

    task: str
    """`predict`, `encode` or `query`."""
    model: str
    folder: Path
    request: dict[str, Any] = field(default_factory=dict)
    """What the worker needs besides: names of upload and result within the folder, settings."""
    kept: bool = False
    """Whether the result is kept for download; if not, the route that started the job removes it."""
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    state: str = "receiving"
    """Then `waiting`, `running`, and `done`, `failed` or `cancelled`."""
    progress: float = 0.0
    created: float = field(default_factory=time.monotonic)
    ended: float | None = None
    size: int = 0
    """Size of the result in bytes."""
    running: asyncio.Task[dict[str, Any]] | None = None
    error: ApiError | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    """What the worker reports about the result."""
    removed: bool = False

    @property
    def result(self) -> Path:
        """File or folder of the result."""
        return self.folder / self.request["result"]

    def get_summary(self) -> dict[str, Any]:
        """Return the summary of the result, or raise the error of a job that failed."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # it may be raised many times
        return self.summary

    def remove_files(self) -> None:
        """Remove the folder of the job."""
        shutil.rmtree(self.folder, ignore_errors=True)


class WorkerPool:
    """Worker processes and their jobs.

    Args:
        runs: Run folder of every model, by name.
        folder: Folder for the files of the jobs.
        limits: Limits of the server.
        on_end: Called with every job that ended.
    """

    def __init__(
        self,
        runs: dict[str, str],
        folder: Path,
        limits: ServerLimits,
        on_end: Callable[[UploadJob], None] = lambda job: None,
    ) -> None:
        self.runs, self.folder, self.limits, self.on_end = runs, folder, limits, on_end
        self.cards: dict[str, dict[str, Any]] = {}
        """Model cards by name, see `flare.serve.worker.describe_model`."""
        self.restarts = 0
        self.workers: list[WorkerProcess] = []
        self._idle: asyncio.Queue[WorkerProcess] = asyncio.Queue()
        self._open: dict[str, UploadJob] = {}
        self._kept: dict[str, UploadJob] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Start all workers and wait until they have loaded their models.

        Raises:
            ConfigError: A run cannot be loaded.
        """
        self.workers = [WorkerProcess(self.runs, self.folder, self.limits) for _ in range(self.limits.workers)]
        self.cards, *_ = await asyncio.gather(*(worker.start() for worker in self.workers))
        for worker in self.workers:
            self._idle.put_nowait(worker)
        self._spawn(self._tidy_regularly())

    async def close(self) -> None:
        """End all workers. Unfinished jobs are cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for worker in self.workers:
            worker.end()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether all workers are running and have loaded their models."""
        return bool(self.workers) and all(worker.ready for worker in self.workers)

    @property
    def open_jobs(self) -> int:
        """Number of jobs that are not finished."""
        return len(self._open)

    def admit(self, task: str, model: str, request: dict[str, Any], *, kept: bool = False) -> UploadJob:
        """Create a job with a folder for its upload. The caller must then `submit` or `remove` it.

        Raises:
            ApiError: Status 429, the queue is full.
            OSError: The folder cannot be created. The job then takes no place in the queue.
        """
        if len(self._open) >= self.limits.queue:
            raise ApiError(429, "busy", f"{len(self._open)} jobs are waiting or running", retry_after=2)
        job = UploadJob(task, model, self.folder / secrets.token_hex(16), request, kept)
        job.folder.mkdir(mode=0o700)
        self._open[job.id] = job
        return job

    def submit(self, job: UploadJob) -> asyncio.Task[dict[str, Any]]:
        """Queue a job whose upload is complete. Returns the task that runs it."""
        job.state = "waiting"
        job.running = self._spawn(self._run(job))
        job.running.add_done_callback(lambda task: self._finish(job, task))
        return job.running

    def remove(self, job: UploadJob) -> None:
        """Cancel a job if it is not finished, and remove its files."""
        job.removed = True
        self._kept.pop(job.id, None)
        if job.ended is None and job.running is not None:
            job.running.cancel()  # `_finish` removes the files
        else:
            self._open.pop(job.id, None)
            job.remove_files()

    def find(self, id: str) -> UploadJob:
        """Return a job by id.

        Raises:
            ApiError: Status 404, there is no such job.
        """
        job = self._open.get(id) or self._kept.get(id)
        if job is None or job.removed:
            raise ApiError(404, "no_job", "there is no such job, or its result has been removed")
        return job

    def position(self, job: UploadJob) -> int:
        """Return the number of earlier jobs that are not finished."""
        return sum(other.created < job.created for other in self._open.values())

    def tidy(self) -> None:
        """Remove results that are too old, too many or too large together."""
        jobs, now = list(self._kept.values()), time.monotonic()
        surplus = [job for job in jobs if now - (job.ended or now) > self.limits.keep_seconds]
        done = [job for job in jobs if job.state == "done"]
        failed = [job for job in jobs if job.state != "done"]  # counted apart: they must not displace results
        for group in (done, failed):
            surplus += group[: max(0, len(group) - self.limits.kept)]
        newest = done[::-1]
        used = list(accumulate(job.size for job in newest))
        surplus += [job for job, size in zip(newest[1:], used[1:], strict=True) if size > self.limits.kept_bytes]
        for job in dict.fromkeys(surplus):
            self.remove(job)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task and keep a reference to it until it ends."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _tidy_regularly(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.tidy()
            for _ in range(self._idle.qsize()):
                self._release(self._idle.get_nowait())

    def _release(self, worker: WorkerProcess) -> None:
        """Make a worker available for jobs, after a restart if its process has ended."""
        if worker.ready or time.monotonic() < worker.retry_at:
            self._idle.put_nowait(worker)
        else:
            self._spawn(self._restart(worker))

    async def _restart(self, worker: WorkerProcess) -> None:
        self.restarts += 1
        try:
            await worker.start()
        except ConfigError as error:
            logger.error("a worker process could not be restarted: %s", error)
            worker.retry_at = time.monotonic() + RETRY_SECONDS
        self._idle.put_nowait(worker)

    async def _run(self, job: UploadJob) -> dict[str, Any]:
        """Have the next idle worker run a job."""
        worker = await self._idle.get()
        finished = False
        try:
            if not worker.ready:  # its last restart failed
                await worker.start()
            job.state = "running"
            worker.send({"task": job.task, "model": job.model, "folder": str(job.folder), **job.request})
            async with asyncio.timeout(self.limits.seconds):
                while not ("done" in (message := await worker.receive()) or "error" in message):
                    job.progress = message["progress"]
            finished = True
        except TimeoutError:
            message = {"error": _error(504, "too_slow", f"the job exceeded the limit of {self.limits.seconds:g} s")}
        except (EOFError, OSError):
            message = {"error": _error(500, "failed", "the worker process ended during the job, perhaps out of memory")}
        finally:
            if not finished:
                worker.end()  # it may still be computing
            self._release(worker)
        if "error" in message:
            raise ApiError(**message["error"])
        return message["done"]

    def _finish(self, job: UploadJob, task: asyncio.Task[dict[str, Any]]) -> None:
        """Record the outcome of a job and remove the files that are no longer needed."""
        job.ended = time.monotonic()
        del self._open[job.id]
        if task.cancelled():
            job.state, job.error = "cancelled", ApiError(409, "cancelled", "the job was cancelled")
        elif (error := task.exception()) is not None:
            if not isinstance(error, ApiError):
                logger.error("job %s failed", job.id, exc_info=error)
                error = ApiError(500, "failed", f"{type(error).__name__}: {error}")
            job.state, job.error = "failed", error
        else:
            job.state, job.progress, job.summary = "done", 1.0, task.result()
            (job.folder / job.request["upload"]).unlink(missing_ok=True)
            job.size = sum(path.stat().st_size for path in job.folder.rglob("*") if path.is_file())
        if job.error is not None or job.removed:
            job.remove_files()
        if job.kept and not job.removed:
            self._kept[job.id] = job
        self.on_end(job)
        self.tidy()


def _error(status: int, code: str, message: str) -> dict[str, Any]:
    return {"status": status, "code": code, "message": f"{message}; try a smaller mesh"}


class WorkerProcess:
    """A worker process and the messages to and from it."""

    def __init__(self, runs: dict[str, str], folder: Path, limits: ServerLimits) -> None:
        self._arguments = runs, str(folder), limits
        self.process: Any = None
        self.loaded, self.retry_at = False, 0.0

    async def start(self) -> dict[str, Any]:
        """Start the process, in place of the previous one, and return the cards of its models once they are loaded.

        Raises:
            ConfigError: The models cannot be loaded.
        """
        self.end()
        context = multiprocessing.get_context("spawn")  # a fork would inherit the sockets of the server
        self._channel, channel = context.Pipe()
        self.process = context.Process(target=work, args=(channel, *self._arguments), daemon=True)
        self.process.start()
        channel.close()
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        reader = self._channel, self._messages, asyncio.get_running_loop()
        threading.Thread(target=_read_messages, args=reader, daemon=True).start()
        try:
            async with asyncio.timeout(START_SECONDS):
                message = await self.receive()
        except TimeoutError:
            message = {"failed": f"a worker did not start within {START_SECONDS:g} s"}
        except EOFError:
            message = {"failed": "a worker ended while loading its models, perhaps out of memory"}
        if "failed" in message:
            raise ConfigError(message["failed"])
        self.loaded = True
        return message["ready"]

    @property
    def ready(self) -> bool:
        """Whether the process is running and has loaded its models."""
        return self.loaded and bool(self.process.is_alive())

    def send(self, request: dict[str, Any]) -> None:
        """Send a job to the process."""
        self._channel.send_bytes(json.dumps(request).encode())

    async def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            EOFError: The process has ended.
        """
        message = await self._messages.get()
        if message is None:
            raise EOFError
        return message

    def end(self) -> None:
        """Kill the process if it is running."""
        self.loaded, self.retry_at = False, 0.0
        if self.process is not None:
            self.process.kill()
            self.process.join()


def _read_messages(channel: Any, messages: asyncio.Queue[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Pass the messages of a process to the event loop, and None when the process has ended."""
    with suppress(RuntimeError), channel:  # the loop may be closed
        with suppress(EOFError, OSError):
            while True:
                loop.call_soon_threadsafe(messages.put_nowait, json.loads(channel.recv_bytes()))
        loop.call_soon_threadsafe(messages.put_nowait, None)
