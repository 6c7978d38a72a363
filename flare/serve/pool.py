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
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
    """

    def __init__(self, runs: dict[str, str], folder: Path, limits: ServerLimits) -> None:
        self.runs, self.folder, self.limits = runs, folder, limits
        self.on_end: Callable[[UploadJob], None] = lambda job: None
        """Called with every job that ended."""
        self.cards: dict[str, dict[str, Any]] = {}
        """Model cards by name, see `flare.serve.worker.describe_model`."""
        self.restarts = 0
        self.workers: list[WorkerProcess] = []
        self._idle: asyncio.Queue[WorkerProcess] = asyncio.Queue()
        self._jobs: dict[str, UploadJob] = {}
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
        for task in self._tasks:
            task.cancel()
        for worker in self.workers:
            worker.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def ready(self) -> bool:
        """Whether all workers are running and have loaded their models."""
        return bool(self.workers) and all(worker.ready for worker in self.workers)

    @property
    def open_jobs(self) -> int:
        """Number of jobs that are not finished."""
        return sum(job.ended is None for job in self._jobs.values())

    def admit(self, task: str, model: str, request: dict[str, Any], *, kept: bool = False) -> UploadJob:
        """Create a job with a folder for its upload. The caller must then `submit` or `remove` it.

        Raises:
            ApiError: Status 429, the queue is full.
            OSError: The folder cannot be created. The job then takes no place in the queue.
        """
        if self.open_jobs >= self.limits.queue:
            raise ApiError(429, "busy", f"{self.open_jobs} jobs are waiting or running", retry_after=2)
        job = UploadJob(task, model, self.folder / secrets.token_hex(16), request, kept)
        job.folder.mkdir(mode=0o700)
        self._jobs[job.id] = job
        return job

    def submit(self, job: UploadJob) -> None:
        """Queue a job whose upload is complete."""
        job.state = "waiting"
        job.running = self._spawn(self._run(job))
        job.running.add_done_callback(lambda task: self._finish(job, task))

    def remove(self, job: UploadJob) -> None:
        """Cancel a job if it is not finished, and remove its files."""
        self._jobs.pop(job.id, None)
        if job.ended is None and job.running is not None:
            job.running.cancel()  # `_finish` removes the files
        else:
            job.remove_files()

    def find(self, id: str) -> UploadJob:
        """Return a job by id.

        Raises:
            ApiError: Status 404, there is no such job.
        """
        if id not in self._jobs:
            raise ApiError(404, "no_job", "there is no such job, or its result has been removed")
        return self._jobs[id]

    def position(self, job: UploadJob) -> int:
        """Return the number of earlier jobs that are not finished."""
        return sum(other.ended is None and other.created < job.created for other in self._jobs.values())

    def tidy(self) -> None:
        """Remove results that are too old, too many or too large together."""
        count, used, now = Counter[str](), 0, time.monotonic()
        ended = {job: job.ended for job in self._jobs.values() if job.ended is not None}
        for job in sorted(ended, key=lambda job: -ended[job]):
            count[job.state] += 1  # failed jobs are counted apart: they must not displace results
            used += job.size
            too_large = used > 10**6 * self.limits.kept_mb and 0 < job.size < used  # the newest result is always kept
            if count[job.state] > self.limits.kept or too_large or now - ended[job] > self.limits.keep_seconds:
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
                while "progress" in (message := await worker.receive()):
                    job.progress = message["progress"]
            finished = True
        except TimeoutError:
            limit = f"the job exceeded the limit of {self.limits.seconds:g} s; try a smaller mesh"
            raise ApiError(504, "too_slow", limit) from None
        except (EOFError, OSError):
            raise ApiError(500, "failed", "the worker process ended; try a smaller mesh") from None
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
        if job.error is not None or job.id not in self._jobs:
            job.remove_files()
        if not job.kept:
            self._jobs.pop(job.id, None)
        self.on_end(job)
        self.tidy()


class WorkerProcess:
    """A worker process and the messages to and from it."""

    def __init__(self, runs: dict[str, str], folder: Path, limits: ServerLimits) -> None:
        self._arguments = runs, str(folder), limits
        self._thread = ThreadPoolExecutor(1)
        """Waits for messages."""
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
        try:
            async with asyncio.timeout(START_SECONDS):
                message = await self.receive()
        except TimeoutError:
            message = {"failed": f"a worker did not start within {START_SECONDS:g} s"}
        except (EOFError, OSError):
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
            EOFError | OSError: The process has ended.
        """
        message = await asyncio.get_running_loop().run_in_executor(self._thread, self._channel.recv_bytes)
        return json.loads(message)

    def end(self) -> None:
        """Kill the process if it is running."""
        self.loaded, self.retry_at = False, 0.0
        if self.process is not None:
            self.process.kill()
            self.process.join()
