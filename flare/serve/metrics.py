"""Prometheus metrics of a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from flare.serve.pool import UploadJob, WorkerPool

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
METHODS = ("GET", "HEAD", "POST", "DELETE")


class ServerMetrics:
    """Metrics of one server in `registry`; all names begin with ``flare_``."""

    def __init__(self, pool: WorkerPool) -> None:
        self.registry = CollectorRegistry()
        here, timed = {"registry": self.registry}, {"registry": self.registry, "buckets": SECONDS}
        self.requests = Counter("flare_requests", "Responses by status.", ["method", "route", "status"], **here)
        self.seconds = Histogram("flare_request_seconds", "Time to a response.", ["route"], **timed)
        self.uploaded = Counter("flare_upload_bytes", "Bytes received.", **here)
        self._jobs = Counter("flare_jobs", "Finished jobs.", ["model", "task", "state"], **here)
        self._job_seconds = Histogram("flare_job_seconds", "Time from admission to end.", ["model", "task"], **timed)
        open_jobs = Gauge("flare_open_jobs", "Jobs being received, waiting or running.", **here)
        open_jobs.set_function(lambda: pool.open_jobs)
        restarts = Gauge("flare_worker_restarts", "Worker processes that were replaced.", **here)
        restarts.set_function(lambda: pool.restarts)
        pool.on_end = self._count_job

    def _count_job(self, job: UploadJob) -> None:
        self._jobs.labels(job.model, job.task, job.state).inc()
        self._job_seconds.labels(job.model, job.task).observe((job.ended or time.monotonic()) - job.created)


class RequestCounter:
    """ASGI middleware that counts every response, also those of middleware inside it."""

    def __init__(self, app: ASGIApp, *, metrics: ServerMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"  # clients may invent some
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - began)
