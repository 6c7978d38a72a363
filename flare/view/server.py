"""The viewer on this machine: a small HTTP server bound to the loopback address."""

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
MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


class ViewServer(ThreadingHTTPServer):
    """HTTP server of the viewer page and its data, for the browser of one person.

    Args:
        source: What to look at.
        port: Port to listen at; 0 chooses a free one.

    Raises:
        ConfigError: The port cannot be used.
    """

    daemon_threads = True

    def __init__(self, source: Source, *, port: int = 0) -> None:
        self.source, self.lock = source, threading.Lock()
        try:
            super().__init__((HOST, port), _RequestHandler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"port {port} cannot be used ({error}); choose another, or 0 for a free one") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, except if the browser closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"


class _RequestHandler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        # Another host name means that a web page directs its name to this machine (DNS rebinding).
        if (self.headers.get("Host") or "").rsplit(":", 1)[0] not in (HOST, "localhost"):
            return self._send_error(403, "this server accepts only the host names 127.0.0.1 and localhost")
        path = unquote(urlsplit(self.path).path).lstrip("/")
        try:
            if path.startswith("api/"):
                with self.server.lock:  # the model computes one answer at a time
                    media_type, body = answer(self.server.source, path.removeprefix("api/"))
            else:
                media_type, body = page_file(path or "index.html")
        except NotThere as error:
            return self._send_error(404, str(error))
        except FlareError as error:
            return self._send_error(422, str(error))
        return self._send(200, media_type, body)

    def _send_error(self, status: int, message: str) -> None:
        self._send(status, JSON, json.dumps({"error": message}).encode())

    def _send(self, status: int, media_type: str, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the browser closed the connection
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Do not print a line per request."""


def page_file(name: str) -> tuple[str, bytes]:
    """Return media type and content of one file of the page.

    Raises:
        NotThere: The page has no such file.
    """
    if name not in {file.name for file in PAGE.iterdir() if file.is_file()}:
        raise NotThere(f"the page has no file {name[:100]!r}")
    media_type = MEDIA_TYPES.get(name.rsplit(".", 1)[-1], "text/plain")
    return f"{media_type}; charset=utf-8", (PAGE / name).read_bytes()
