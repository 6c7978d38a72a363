"""Access to a server: by token or, without one, from this machine only."""

from __future__ import annotations

import base64
import secrets
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from flare.serve.responses import ApiError
from flare.utils.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MIN_TOKEN_LENGTH = 16
MAX_HEADER_BYTES = 32 * 1024
PUBLIC_PATH = "/health"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class AccessGuard:
    """ASGI middleware that rejects requests without access before any route sees them.

    Args:
        app: Application to protect.
        token: Token that requests carry as ``Authorization: Bearer TOKEN``, or a browser as its password. Without one,
            only requests to a local host name are accepted, and none from a page of another site, so that no web page
            can reach a server on its reader's machine.
    """

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._find_error(scope) if scope["type"] == "http" and scope["path"] != PUBLIC_PATH else None
        if error is None:
            await self.app(scope, receive, send)
            return
        response = error.response()
        if error.status_code == 401:
            # One header per scheme: browsers ignore a scheme after a comma.
            response.headers.append("www-authenticate", "Bearer")
            response.headers.append("www-authenticate", 'Basic realm="flare"')
        await response(scope, receive, send)

    def _find_error(self, scope: Scope) -> ApiError | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"]) + len(scope["query_string"])
        if size > MAX_HEADER_BYTES:
            return ApiError(431, "too_large", f"the headers are larger than {MAX_HEADER_BYTES:,} bytes")
        headers = Headers(scope=scope)
        if self.token is None:
            return _find_foreign_origin(headers)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        token = given.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
        if scheme.lower() == "basic" and scope["method"] == "GET":  # a browser asks its user for a password
            with suppress(ValueError):
                token = base64.b64decode(given, validate=True).partition(b":")[2].strip()
        if secrets.compare_digest(token, self.token.encode()):
            return None
        if token:
            return ApiError(401, "wrong_token", "the token is wrong; ask the operator of this server for it")
        return ApiError(401, "no_token", "send the token of this server in the header  Authorization: Bearer TOKEN")


def _find_foreign_origin(headers: Headers) -> ApiError | None:
    """Reject a foreign host name (DNS rebinding) and a page of another origin."""
    host = headers.get("host", "").lower()
    if host.rsplit(":", 1)[0] not in LOCAL_NAMES:
        return ApiError(403, "wrong_host", f"without a token, this server accepts only {', '.join(LOCAL_NAMES)}")
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host:
        return ApiError(403, "wrong_origin", "pages of other sites need a server with a token")
    return None


def check_token(token: str | None, host: str) -> None:
    """Check that a token is long enough, and that there is one if other machines can reach `host`.

    Raises:
        ConfigError: The token is missing, shorter than 16 characters or not ASCII.
    """
    if token is None:
        with suppress(ValueError):
            if host == "localhost" or ip_address(host).is_loopback:
                return
        raise ConfigError(
            f"host {host} can be reached from other machines; a token is required (FLARE_TOKEN or --token-file)"
        )
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii():
        raise ConfigError(
            f"the token has {len(token)} characters; at least {MIN_TOKEN_LENGTH} ASCII characters are required"
        )
