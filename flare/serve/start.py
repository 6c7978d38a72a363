"""A server from run folders to its last answer."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flare.serve.folder import private_folder
from flare.serve.guard import LARGEST_HEADERS
from flare.serve.limits import Limits
from flare.utils.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def serve(
    runs: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    scratch: str | None = None,
) -> None:
    """Serve until told to stop.

    Args:
        runs: run folders, or NAME=FOLDER; a folder serves under its own name.
        port: 0 takes a free one, and says which.
        token: that every request must carry; None: none, see `flare.serve.guard`.
        scratch: where the private temporary folder is made; None: the system's own place.
    """
    import uvicorn

    from flare.serve.app import make_app
    from flare.serve.metrics import Metrics
    from flare.serve.pool import Pool

    limits = limits or Limits()
    models = named_runs(runs)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, also while workers load: all is tidied
    listener = _listen(host, port)
    metrics = Metrics()
    with listener, private_folder(scratch) as folder:
        pool = Pool(models, folder, limits, observe=metrics.job)
        try:
            pool.start()
            app = make_app(pool, limits, metrics, token=token)
            address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
            with_token = "with the token" if token else "without a token, to this machine only"
            print(f"serving {', '.join(models)} at {address} {with_token}; Ctrl-C ends it", flush=True)
            _run(uvicorn.Server(http_config(app, limits)), listener)
        finally:
            pool.close()


def http_config(app: Any, limits: Limits) -> Any:
    """How uvicorn talks HTTP for this server."""
    import uvicorn

    from flare.serve.connection import bounded

    return uvicorn.Config(
        app,
        http=bounded(limits),
        ws="none",
        h11_max_incomplete_event_size=8 * LARGEST_HEADERS,  # so that our own refusal is the first to speak
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )


def _run(server: Any, listener: socket.socket) -> None:
    # uvicorn raises the signal that ended it once more when it has shut down; our own tidying is still to come.
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def named_runs(runs: Sequence[str]) -> dict[str, str]:
    """Name in the address -> run folder."""
    models: dict[str, str] = {}
    for word in runs:
        name, equals, folder = word.partition("=")
        if not equals:
            name, folder = Path(word).resolve().name, word
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name!r} cannot stand in an address; name the run, such as  bracket={folder}")
        if name in models:
            raise ConfigError(f"two runs are named {name!r}; name one of them otherwise, such as  other={folder}")
        models[name] = folder
    if not models:
        raise ConfigError("give at least one run folder")
    return models


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # who comes as soon as the address is printed waits, and is not refused
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"cannot listen at {host}, port {port}: {error}; choose another with --port") from None
    return listener
