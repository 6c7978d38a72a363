"""What a server says when it does not do what it is asked: a status, a word for programs, a sentence for people."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """Raised anywhere on the way of a request; becomes its answer.

    Args:
        status: of HTTP.
        code: a word that stays the same when the message is put better.
        retry_after: seconds after which it is worth trying again.
    """

    def __init__(self, status: int, code: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
