"""The door of the server: without the token nothing is reached but /health, and every answer is counted."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.serve.refusal import Refused
from flare.utils.errors import ConfigError

if TYPE_CHECKING:
    from flare.serve.metrics import Metrics

VARIABLE = "FLARE_TOKEN"
SHORTEST_TOKEN = 16
OPEN = "/health"
LARGEST_HEADERS = 32 * 1024
LOCAL = ("localhost", "127.0.0.1", "[::1]")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """ASGI middleware.

    Args:
        token: that requests carry as `Authorization: Bearer TOKEN`, or a browser as its password. None: everyone may
            enter, by a local name and not from a page of another site, so that no page of the web can reach a server
            on its reader's machine.
    """

    def __init__(self, app: Any, *, token: str | None, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics
        self._digest = None if token is None else _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        began, status = time.perf_counter(), 500

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refused = None if scope["path"] == OPEN else self._refusal(scope)
            if refused is None:
                await self.app(scope, receive, counted)
            else:
                await _answer(counted, refused)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(scope["method"], route, status, time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Refused | None:
        if (
            sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["query_string"])
            > LARGEST_HEADERS
        ):
            return Refused(431, "too_large", f"the headers are larger than {LARGEST_HEADERS:,} bytes")
        headers = dict(scope["headers"])
        if self._digest is None:
            return _stranger(headers)
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"basic" and scope["method"] == "GET":  # a browser that looks asks its user for a password
            given = _password(given)
        elif kind.lower() != b"bearer":
            given = b""
        # Digests are of one length and compared in constant time: an answer does not tell how much was right.
        if hmac.compare_digest(_digest(given.strip()), self._digest):
            return None
        if given.strip():
            return Refused(401, "wrong_token", "this is not the token of this server; ask whoever started it")
        return Refused(401, "no_token", "send the token of this server as the header  Authorization: Bearer TOKEN")


def _stranger(headers: dict[bytes, bytes]) -> Refused | None:
    """Without a token, a page of the web is refused: one under a name of its own, and one that sends from elsewhere."""
    host = headers.get(b"host", b"").lower()
    if host.decode("latin-1").rsplit(":", 1)[0] not in LOCAL:
        return Refused(403, "wrong_host", f"this server answers to {', '.join(LOCAL)}")
    origin = headers.get(b"origin")
    if origin is not None and origin.lower().partition(b"://")[2] != host:
        return Refused(403, "wrong_origin", "a page from elsewhere may not ask this server; give the server a token")
    return None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


async def _answer(send: Send, refused: Refused) -> None:
    body = json.dumps(refused.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 401:
        # A header each: a browser does not look behind the comma for the one that it knows.
        headers += [(b"www-authenticate", b"Bearer"), (b"www-authenticate", b'Basic realm="flare"')]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def read_token(file: str | None, host: str) -> str | None:
    """The token from a file or the environment, never from the command line, which others can read.

    Raises:
        ConfigError: one too short to be a secret, or none where the server can be reached from elsewhere.
    """
    if file is not None:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {file} cannot be read: {error}") from None
    else:
        token = os.environ.get(VARIABLE, "").strip()
    if not token and file is None:
        if not is_loopback(host):
            raise ConfigError(
                f"--host {host} can be reached from other machines: put a token into {VARIABLE} or into --token-file, "
                f"for example of:  python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii():
        raise ConfigError(f"the token has {len(token)} letters; give at least {SHORTEST_TOKEN}, of ASCII")
    return token


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
