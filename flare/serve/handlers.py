"""What went wrong on the way of a request, as its answer: {"error": {"code": "...", "message": "..."}}."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from flare.serve.refusal import Refused


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """A query that is one of some words, and is another; nothing else is judged before a route is reached."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name, given = first["loc"][-1], str(first.get("input"))[:100]
    accepted = str(first.get("ctx", {}).get("expected", first["msg"])).replace("'", "")
    return await _refused(request, Refused(422, "unfit", f"there is no {name}={given}; accepted are {accepted}"))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = {404: "no_route", 405: "no_method"}.get(error.status_code, "refused")
    return await _refused(request, Refused(error.status_code, code, f"{error.detail}: see /openapi.json"))


async def _fault(request: Request, error: Exception) -> JSONResponse:
    """A fault of ours: the log has it all, the client its name."""
    return await _refused(request, Refused(500, "failed", f"a fault of the server: {type(error).__name__}"))


HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[JSONResponse]]] = {
    Refused: _refused,
    RequestValidationError: _invalid,
    HTTPException: _http,
    Exception: _fault,
}
