"""Counters of a server in the format of Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from flare.serve.pool import Job, Pool

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Of one server; names begin with flare_."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        kinds = {"registry": self._registry}
        self._requests = Counter("flare_requests", "Answers by status.", ["method", "route", "status"], **kinds)
        self._seconds = Histogram("flare_request_seconds", "Time to an answer.", ["route"], buckets=SECONDS, **kinds)
        self._jobs = Counter("flare_jobs", "Jobs that ended.", ["model", "task", "state"], **kinds)
        self._job_seconds = Histogram(
            "flare_job_seconds", "From admission to the end of a job.", ["model", "task"], buckets=SECONDS, **kinds
        )
        self._open = Gauge("flare_open_jobs", "Jobs being received, waiting or computed.", **kinds)
        self._restarts = Gauge("flare_worker_restarts", "Workers that were ended or died, and replaced.", **kinds)
        self._uploaded = Counter("flare_upload_bytes", "Bytes received.", **kinds)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in ("GET", "HEAD", "POST", "DELETE") else "other"  # a stranger may invent some
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def job(self, job: Job) -> None:
        self._jobs.labels(job.model, job.task, job.state).inc()
        self._job_seconds.labels(job.model, job.task).observe((job.ended or time.monotonic()) - job.created)

    def uploaded(self, size: int) -> None:
        self._uploaded.inc(size)

    def text(self, pool: Pool) -> bytes:
        self._open.set(pool.open_jobs)
        self._restarts.set(pool.restarts)
        return generate_latest(self._registry)
