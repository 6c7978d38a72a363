"""Prometheus metrics of a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from flare.serve.pool import UploadJob, WorkerPool

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
METHODS = ("GET", "HEAD", "POST", "DELETE")


class ServerMetrics:
    """Counters of one server; all names begin with ``flare_``."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "flare_requests", "Responses by status.", ["method", "route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "flare_request_seconds", "Time to a response.", ["route"], buckets=SECONDS, registry=registry
        )
        self._jobs = Counter("flare_jobs", "Finished jobs.", ["model", "task", "state"], registry=registry)
        self._job_seconds = Histogram(
            "flare_job_seconds", "Time from admission to end.", ["model", "task"], buckets=SECONDS, registry=registry
        )
        self._open = Gauge("flare_open_jobs", "Jobs being received, waiting or running.", registry=registry)
        self._restarts = Gauge("flare_worker_restarts", "Worker processes that were replaced.", registry=registry)
        self.uploaded = Counter("flare_upload_bytes", "Bytes received.", registry=registry)

    def count_job(self, job: UploadJob) -> None:
        """Count one finished job."""
        self._jobs.labels(job.model, job.task, job.state).inc()
        self._job_seconds.labels(job.model, job.task).observe((job.ended or time.monotonic()) - job.created)

    def render(self, pool: WorkerPool) -> bytes:
        """Return all metrics in the Prometheus text format."""
        self._open.set(pool.open_jobs)
        self._restarts.set(pool.restarts)
        return generate_latest(self.registry)


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
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"  # clients may invent some
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - began)
