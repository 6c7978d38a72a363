"""What a server accepts, and for how long it keeps what it made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flare.utils.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every one is refused beyond with a status and a message that say so."""

    upload_mb: int = 256
    """Largest upload, in MB; also what its arrays may take once unpacked, ten times over."""
    points: int = 5_000_000
    """Points of a mesh, or of a query."""
    connections: int = 512
    """Open at a time; more are told to come again."""
    header_seconds: float = 20.0
    """For a connection to say what it wants, before the token is seen."""
    receive_seconds: float = 120.0
    """For an upload to arrive."""
    seconds: float = 600.0
    """For a job to be computed; the worker is ended then."""
    memory_mb: int = 8192
    """Memory of a worker beyond what its models take."""
    workers: int = 1
    """Processes that compute, each with all models."""
    queue: int = 16
    """Jobs being received, waiting or computed at a time; more are told to come again."""
    kept: int = 64
    """Results that wait to be fetched; the oldest gives way."""
    kept_mb: int = 4096
    """Room that they take on the disk, in MB; the oldest gives way, and only the newest may be larger alone."""
    keep_seconds: float = 900.0
    """For which a result can be fetched."""
    codes: int = 256
    """Encoded parts that can be asked; the one not asked for longest gives way."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise ConfigError(f"limits.{field.name}={value}; it must be more than 0")

    @property
    def upload_bytes(self) -> int:
        return self.upload_mb * 10**6

    @property
    def kept_bytes(self) -> int:
        return self.kept_mb * 10**6

    @property
    def array_bytes(self) -> int:
        return 10 * self.upload_bytes
