"""Limits of a server: what it accepts, and how long it keeps results."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flare.utils.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of a server. A request beyond one of them gets an error response that names it."""

    upload_mb: int = 256
    """Largest upload in MB. The unpacked arrays of an upload may take ten times as much."""
    points: int = 5_000_000
    """Most points of a mesh or a query."""
    connections: int = 512
    """Most open connections; further ones get status 503."""
    header_seconds: float = 20.0
    """Time for a connection to send the headers of a request."""
    receive_seconds: float = 120.0
    """Time for an upload to arrive."""
    seconds: float = 600.0
    """Time for a job to be computed; after it, the worker process is ended and replaced."""
    memory_mb: int = 8192
    """Memory of a worker process in MB, in addition to its models."""
    workers: int = 1
    """Number of worker processes; each holds all models."""
    queue: int = 16
    """Most jobs being received, waiting or running; further ones get status 429."""
    kept: int = 64
    """Most finished results kept for download; the oldest is removed first."""
    kept_mb: int = 4096
    """Disk space of the kept results in MB; the oldest is removed first, the newest is always kept."""
    keep_seconds: float = 900.0
    """Time for which a result is kept."""
    codes: int = 256
    """Most encodings kept; the least recently used is removed first."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise ConfigError(f"limits.{field.name} is {value}; it must be greater than 0")

    @property
    def upload_bytes(self) -> int:
        """Largest upload in bytes."""
        return self.upload_mb * 10**6
