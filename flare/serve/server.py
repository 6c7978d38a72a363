"""Start a server: listening socket, private folder, worker pool and uvicorn."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from flare.serve.app import make_app
from flare.serve.limits import ServerLimits
from flare.serve.pool import WorkerPool
from flare.serve.security import MAX_HEADER_BYTES, check_token
from flare.utils.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: folders of killed servers stay
    fcntl = None  # type: ignore[assignment]

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FOLDER_PREFIX = "flare-server-"
CROWDED = b"""HTTP/1.1 503 Service Unavailable\r
content-type: application/json\r
retry-after: 2\r
connection: close\r
\r
{"error": {"code": "crowded", "message": "too many open connections"}}"""
"""Response to a connection beyond the limit, which has not sent a request yet."""


def serve(
    runs: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: ServerLimits | None = None,
    scratch: str | None = None,
    on_start: Callable[[str, list[str]], None] = lambda address, models: None,
) -> None:
    """Serve trained surrogates over HTTP until the process is interrupted.

    Args:
        runs: Run folders, or ``NAME=FOLDER``. Without a name, a model is called like its folder.
        host: Address to listen at.
        port: Port to listen at; 0 chooses a free one.
        token: Token that every request must carry. Without one, only this machine is served.
        limits: Limits of the server.
        scratch: Folder in which the private temporary folder is created; default the system's.
        on_start: Called with the address of the server and the names of its models once it accepts requests.

    Raises:
        ConfigError: A run cannot be loaded, the port is in use, or a token is required.
    """
    check_token(token, host)
    limits = limits or ServerLimits()
    models = name_runs(runs)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as on Ctrl-C
    with listen(host, port) as listener, private_folder(scratch) as folder:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"
        pool = WorkerPool(models, folder, limits)
        server = make_server(pool, token)
        with suppress(KeyboardInterrupt):
            asyncio.run(run_server(server, pool, listener, lambda: on_start(address, list(models))))


async def run_server(
    server: uvicorn.Server, pool: WorkerPool, listener: socket.socket, on_start: Callable[[], None] = lambda: None
) -> None:
    """Start the workers, then serve until the process is interrupted or `server.should_exit` is set."""
    try:
        await pool.start()
        on_start()
        await server.serve(sockets=[listener])
    finally:
        await pool.close()


def name_runs(runs: Sequence[str]) -> dict[str, str]:
    """Return the run folder of every model by its name in the API.

    Raises:
        ConfigError: A name is used twice or cannot be part of an address.
    """
    models: dict[str, str] = {}
    for word in runs:
        name, folder = word.split("=", 1) if "=" in word else (Path(word).resolve().name, word)
        if not MODEL_NAME.fullmatch(name) or name in models:
            raise ConfigError(f"{name!r} is taken or cannot be in an address; give another name: other={folder}")
        models[name] = folder
    return models


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. Clients that connect before the server runs wait.

    Raises:
        ConfigError: The address cannot be used.
    """
    ipv6 = ":" in host
    if not 0 <= port < 65536:
        raise ConfigError(f"port {port} is not between 0 and 65535")
    try:
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            dualstack_ipv6=ipv6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise ConfigError(f"cannot listen at host {host}, port {port}: {error}; choose another port") from None
    # Connections inherit it. asyncio sets it only for sockets made with an explicit protocol, which this one is not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextmanager
def private_folder(scratch: str | None = None) -> Iterator[Path]:
    """Create a folder that only this user can enter, and remove it at the end.

    Folders of servers that were killed are removed first. A running server holds a lock on its folder; the lock is on
    the folder itself, because a lock file could be removed by whatever cleans temporary folders.
    """
    parent = Path(scratch or tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    for orphan in parent.glob(FOLDER_PREFIX + "*") if fcntl else ():
        with suppress(OSError), _lock(orphan):
            shutil.rmtree(orphan, ignore_errors=True)
    unnamed = Path(tempfile.mkdtemp(dir=parent))
    with _lock(unnamed):
        folder = unnamed.rename(parent / f"{FOLDER_PREFIX}{unnamed.name}")  # locked before another server can find it
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock a folder, or raise OSError if another process holds the lock or another user owns the folder."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(handle).st_uid != os.getuid():
            raise PermissionError(folder)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def make_server(pool: WorkerPool, token: str | None) -> uvicorn.Server:
    """Return a server of the API on top of a pool; `run_server` starts both."""
    config = uvicorn.Config(
        make_app(pool, token=token),
        http=_limited_protocol(pool.limits),
        ws="none",
        h11_max_incomplete_event_size=8 * MAX_HEADER_BYTES,  # larger than ours, so that our error is sent
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )
    return uvicorn.Server(config)


def _limited_protocol(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with a limit of connections and of time for headers.

    uvicorn's own `limit_concurrency` counts requests, not idle connections, and it waits for headers without limit.
    """

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.write(CROWDED)
                transport.close()
            self._limit_wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._limit_wait()

        def _limit_wait(self) -> None:
            """Close the connection unless the headers of another request are complete in time."""
            self.loop.call_later(limits.header_seconds, self._time_out, self.cycle)

        def _time_out(self, previous: Any) -> None:
            if self.cycle is previous and (previous is None or previous.response_complete):
                self.transport.close()

    return LimitedProtocol
