"""The page on this machine: Python's own HTTP server, bound to loopback, for one person's browser."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit

from flare.utils.errors import ConfigError, FlareError
from flare.view.answers import JSON, answer
from flare.view.source import NotThere, Source

HOST = "127.0.0.1"
PAGE = files("flare.view") / "page"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class ViewServer(ThreadingHTTPServer):
    """`serve_forever()` until `shutdown()`; port 0 takes a free one. `url` is where the page is."""

    daemon_threads = True

    def __init__(self, source: Source, *, port: int = 0) -> None:
        self.source, self.working = source, threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {port} cannot be used ({error}); leave --port out to take a free one") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser that leaves before it has read all is no fault of ours, and nothing to tell of.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # A name that some web page has led here (DNS rebinding) is not ours; its page must not read our data.
        if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in (HOST, "localhost"):
            return self._send(403, JSON, _error("this server answers to 127.0.0.1 and localhost only"))
        path = unquote(urlsplit(self.path).path).lstrip("/")
        try:
            if path.startswith("api/"):
                with self.server.working:  # one model, one question at a time
                    kind, body = answer(self.server.source, path.removeprefix("api/"))
            else:
                kind, body = page_file(path or "index.html")
        except NotThere as error:
            return self._send(404, JSON, _error(str(error)))
        except FlareError as error:
            return self._send(422, JSON, _error(str(error)))
        return self._send(200, kind, body)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the browser went away
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """A line per request would bury what the user was told."""


def page_file(name: str) -> tuple[str, bytes]:
    """Content type and bytes of one file of the page."""
    if name not in {file.name for file in PAGE.iterdir() if file.is_file()}:
        raise NotThere(f"there is no page {name[:100]!r}")
    return KINDS.get("." + name.rsplit(".", 1)[-1], "text/plain") + "; charset=utf-8", (PAGE / name).read_bytes()


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()
