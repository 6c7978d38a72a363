"""Connections of strangers, before any token is seen: so many at a time, and so long to say what they want."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from flare.serve.limits import Limits
from flare.serve.refusal import Refused

CROWDED = Refused(503, "crowded", "too many connections are open; try again", retry_after=2)


def bounded(limits: Limits) -> type[asyncio.Protocol]:
    """uvicorn's connection with these limits; uvicorn itself waits for headers without end."""

    class Connection(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.write(_raw(CROWDED))
                transport.close()
            else:
                self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_the_clock()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """The clock runs while headers come, and while the rest of a refused upload does; it is not set back."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_the_clock()
            elif self._patience is None:
                self._patience = self.loop.call_later(limits.header_seconds, self._lose_patience)

        def _lose_patience(self) -> None:
            self._patience = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

        def _stop_the_clock(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

    return Connection


def _raw(refused: Refused) -> bytes:
    """An answer without a request."""
    body = json.dumps(refused.body).encode()
    headers: dict[str, Any] = {"Content-Type": "application/json", "Content-Length": len(body), "Connection": "close"}
    lines = [f"HTTP/1.1 {refused.status} Service Unavailable"]
    lines += [f"{name}: {value}" for name, value in {**headers, **refused.headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
