"""Jobs, and the worker processes that do them: bounded in number, time and memory; nothing is lost or left behind."""

from __future__ import annotations

import json
import multiprocessing
import queue
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from flare.serve.limits import Limits
from flare.serve.refusal import Refused
from flare.serve.worker import work
from flare.utils.errors import ConfigError

POLL = 0.1
"""Seconds between looks at a clock or a wish to cancel, while a worker computes."""
START_SECONDS = 600.0
"""For a worker to load its models."""


@dataclass(eq=False)
class Job:
    """One upload on its way to an answer. Its files lie in a folder of its own."""

    task: str
    """`predict`, `encode` or `query`."""
    model: str
    folder: Path
    order: dict[str, Any] = field(default_factory=dict)
    """What the worker is told beside: names of the upload and the result within the folder, settings."""
    kept: bool = False
    """Whether the result waits to be fetched; if not, whoever began the job removes it."""
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    state: str = "receiving"
    """Then `waiting`, `running`, and `done`, `failed` or `cancelled`."""
    progress: float = 0.0
    created: float = field(default_factory=time.monotonic)
    ended: float | None = None
    size: int = 0
    """Bytes of its result."""
    future: Future[dict[str, Any]] = field(default_factory=Future)
    """What the worker says of the result, or `Refused`."""
    unwanted: threading.Event = field(default_factory=threading.Event)
    """Set to have it cancelled."""

    @property
    def result(self) -> Path:
        return self.folder / self.order["result"]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Pool:
    """Workers and their jobs.

    Args:
        runs: name of a model -> its run folder.
        folder: of the server's temporary files.
        observe: called with every job that ended.
    """

    def __init__(
        self, runs: dict[str, str], folder: Path, limits: Limits, observe: Callable[[Job], None] = lambda job: None
    ) -> None:
        self.runs, self.folder, self.limits, self.observe = runs, folder, limits, observe
        self.cards: dict[str, dict[str, Any]] = {}
        self.restarts = 0
        self._open: dict[str, Job] = {}
        self._ended: OrderedDict[str, Job] = OrderedDict()
        self._waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all workers and wait until they have loaded their models.

        Raises:
            ConfigError: a run that cannot be loaded.
        """
        self._workers = [_Worker(self.runs, self.folder, self.limits) for _ in range(self.limits.workers)]
        try:
            for worker in self._workers:
                self.cards = worker.ready()
        except ConfigError:
            self.close()
            raise
        self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all workers; jobs that are not done are refused."""
        self._closing.set()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join(timeout=10)
        for worker in self._workers:
            worker.end()

    @property
    def ready(self) -> bool:
        return bool(self._workers) and all(worker.alive and worker.loaded for worker in self._workers)

    @property
    def open_jobs(self) -> int:
        return len(self._open)

    @property
    def processes(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    def admit(self, task: str, model: str, order: dict[str, Any], *, kept: bool = False) -> Job:
        """A job whose upload may now be received; `submit` or `forget` it.

        Raises:
            Refused: 429, there are as many as are accepted.
        """
        with self._lock:
            if len(self._open) >= self.limits.queue:
                raise Refused(429, "busy", f"{len(self._open)} jobs are waiting or running; try again", retry_after=2)
            job = Job(task, model, self.folder / secrets.token_hex(16), order, kept)
            self._open[job.id] = job
        job.folder.mkdir(mode=0o700)
        return job

    def submit(self, job: Job) -> None:
        job.state = "waiting"
        self._waiting.put(job)

    def forget(self, job: Job) -> None:
        """Cancel it if it is not done, and remove what is left of it."""
        job.unwanted.set()
        with self._lock:
            self._ended.pop(job.id, None)
            if job.state == "receiving" and self._open.pop(job.id, None) is not None:
                job.ended = time.monotonic()  # it never began
        if job.ended is not None:
            job.remove()

    def find(self, id: str) -> Job:
        job = self._open.get(id) or self._ended.get(id)
        if job is None or job.unwanted.is_set():
            raise Refused(404, "no_job", "there is no such job, or its result has been removed")
        return job

    def position(self, job: Job) -> int:
        """Jobs that came before and are not done."""
        return sum(other.created < job.created for other in list(self._open.values()))

    def tidy(self) -> None:
        """Remove results that were kept long enough, or are too many or too large together."""
        now = time.monotonic()
        with self._lock:
            old = [job for job in self._ended.values() if now - (job.ended or now) > self.limits.keep_seconds]
            done = [job for job in self._ended.values() if job.state == "done"]
            rest = [job for job in self._ended.values() if job.state != "done"]  # which hold no result, only a reason
            spare = [job for jobs in (done, rest) for job in jobs[: max(0, len(jobs) - self.limits.kept)]]
            newest = done[::-1]
            taken = list(accumulate(job.size for job in newest))
            spare += [job for job, size in zip(newest[1:], taken[1:], strict=True) if size > self.limits.kept_bytes]
        for job in {*old, *spare}:
            self.forget(job)

    # ---- one thread for each worker ---------------------------------------------------------------------------------

    def _serve(self, worker: _Worker) -> None:
        while (job := self._waiting.get()) is not None:
            try:
                if not job.unwanted.is_set() and not self._closing.is_set():
                    job.state = "running"
                    self._end(job, "done", result=self._run(worker, job))
                else:
                    raise Refused(409, "cancelled", "the job was cancelled")
            except Refused as refused:
                self._end(job, "cancelled" if refused.code == "cancelled" else "failed", refused=refused)
            except Exception as error:  # a fault of ours: the job must hear of it, and the next one must be served
                self._end(job, "failed", refused=Refused(500, "failed", f"{type(error).__name__}: {error}"))
            with suppress(ConfigError):  # which the next job will hear of
                self._replace_if_dead(worker)

    def _run(self, worker: _Worker, job: Job) -> dict[str, Any]:
        self._replace_if_dead(worker)
        deadline = time.monotonic() + self.limits.seconds
        try:
            worker.tell({"task": job.task, "model": job.model, "folder": str(job.folder), **job.order})
            while True:
                message = worker.hear(POLL) or {}
                if "done" in message:
                    return message["done"]
                if "refused" in message:
                    raise Refused(**message["refused"])
                job.progress = message.get("progress", job.progress)
                self._check(worker, job, deadline)
        except (EOFError, OSError):
            worker.end()
            raise Refused(
                500, "failed", "the worker ended while computing, perhaps for lack of memory; try a smaller mesh"
            ) from None

    def _check(self, worker: _Worker, job: Job, deadline: float) -> None:
        if job.unwanted.is_set() or self._closing.is_set():
            worker.end()
            raise Refused(409, "cancelled", "the job was cancelled")
        if time.monotonic() > deadline:
            worker.end()
            limit = f"{self.limits.seconds:g} s"
            raise Refused(504, "too_slow", f"this took longer than the {limit} a job may take; try a smaller mesh")

    def _replace_if_dead(self, worker: _Worker) -> None:
        if not worker.alive and not self._closing.is_set():
            self.restarts += 1
            worker.start()
            worker.ready()

    def _end(
        self, job: Job, state: str, *, result: dict[str, Any] | None = None, refused: Refused | None = None
    ) -> None:
        with self._lock:
            job.state, job.ended = state, time.monotonic()
            self._open.pop(job.id, None)
            if job.kept and not job.unwanted.is_set():
                self._ended[job.id] = job
        if refused is not None or job.unwanted.is_set():
            job.remove()  # a result that nobody can fetch
        else:
            job.progress = 1.0
            (job.folder / job.order["upload"]).unlink(missing_ok=True)
            with suppress(OSError):  # removed meanwhile, by a client that is no longer interested
                job.size = sum(path.stat().st_size for path in job.folder.rglob("*") if path.is_file())
        self.observe(job)
        if refused is not None:
            job.future.set_exception(refused)
        else:
            job.future.set_result(result or {})
        self.tidy()  # now, not by and by: the room is taken already


class _Worker:
    """A worker process and the ways to it."""

    def __init__(self, runs: dict[str, str], folder: Path, limits: Limits) -> None:
        self._given = runs, str(folder), limits
        self.start()

    def start(self) -> None:
        self.loaded = False
        context = multiprocessing.get_context("spawn")  # a fork would carry the server's sockets and threads along
        self._channel, theirs = context.Pipe()
        listens, self._lifeline = context.Pipe(duplex=False)
        runs, folder, limits = self._given
        self.process = context.Process(target=work, args=(theirs, listens, runs, folder, limits), daemon=True)
        self.process.start()
        theirs.close()
        listens.close()

    def ready(self) -> dict[str, Any]:
        """Wait until it has loaded its models, and return their cards."""
        try:
            message = self.hear(START_SECONDS) or {"failed": f"a worker did not start in {START_SECONDS:g} s"}
        except (EOFError, OSError):
            message = {"failed": "a worker ended while it loaded its models; is there memory for them?"}
        if "failed" in message:
            raise ConfigError(message["failed"])
        self.loaded = True
        return message["ready"]

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def tell(self, order: dict[str, Any]) -> None:
        self._channel.send_bytes(json.dumps(order).encode())

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """The next message, or None where there is none in time; EOFError when the process has ended."""
        return json.loads(self._channel.recv_bytes()) if self._channel.poll(seconds) else None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        with suppress(OSError):
            self._channel.close()
        with suppress(OSError):
            self._lifeline.close()
