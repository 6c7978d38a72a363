"""Response bodies and errors: how they are sent and how OpenAPI describes them.

Every error is JSON: ``{"error": {"code": "...", "message": "..."}}``.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, RootModel
from starlette.exceptions import HTTPException


class ApiError(HTTPException):
    """An error response. It may be raised wherever a request is processed.

    Args:
        status: HTTP status.
        code: Identifier for programs; it stays the same when the message is reworded.
        message: Sentence for people.
        retry_after: Seconds after which the client may try again.
    """

    def __init__(self, status: int, code: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(status, message, None if retry_after is None else {"Retry-After": str(retry_after)})
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"code": self.code, "message": self.detail}}

    def response(self) -> JSONResponse:
        """Return the error as a response."""
        return JSONResponse(self.body, status_code=self.status_code, headers=self.headers)


def add_error_handlers(app: FastAPI) -> None:
    """Turn every error of an application, those of FastAPI included, into an `ApiError` response."""
    for kind, convert in {
        HTTPException: _convert_http,
        RequestValidationError: _convert_validation,
        # The traceback goes to the log, only the type of the exception to the client.
        Exception: lambda error: ApiError(500, "failed", f"internal server error: {type(error).__name__}"),
    }.items():
        app.add_exception_handler(kind, lambda _, error, convert=convert: convert(error).response())


def _convert_http(error: Any) -> ApiError:
    if isinstance(error, ApiError):
        return error
    code = {404: "no_route", 405: "no_method"}.get(error.status_code, "refused")
    return ApiError(error.status_code, code, f"{error.detail}; see /openapi.json for the API")


def _convert_validation(error: Any) -> ApiError:
    first = error.errors()[0]
    name, given = str(first["loc"][-1])[:100], str(first.get("input"))[:100]
    return ApiError(422, "unfit", f"{name}={given} is not accepted: {first['msg']}")


# ---- bodies, as OpenAPI describes them -------------------------------------------------------------------------------

Values = list[float] | list[list[float]]
"""Shape (N,) or (N, channels)."""


class ErrorDetail(BaseModel):
    """Code and message of an error."""

    code: str
    message: str


class ErrorResponse(BaseModel):
    """Body of every error response."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}}
"""Error responses, for the `responses` argument of a router."""


class Inputs(RootModel[dict[str, float | Values]]):
    """Points, features and parameters by name, in physical units."""


class ErrorBarsResponse(BaseModel):
    """Error bars of a prediction."""

    level: float
    coverage: dict[str, float] | None
    hold: bool = Field(description="false: out of distribution, or outside the box of the encoding")


class OODScore(BaseModel):
    """OOD score of a prediction."""

    score: float
    unlike: bool
    verdict: str


class Summary(BaseModel):
    """Facts that every prediction carries in addition to its fields."""

    points: int
    bars: ErrorBarsResponse | None
    familiarity: OODScore | None
    remarks: list[str]


class FieldValues(BaseModel):
    """One predicted field."""

    unit: str
    components: list[str]
    values: Values
    bar: Values | None


class FieldsResponse(Summary):
    """Predicted fields, in physical units."""

    inputs: Inputs
    fields: dict[str, FieldValues]


class EncodingResponse(Summary):
    """An encoding that the server keeps."""

    code: str
    model: str
    box: list[list[float]]
    bytes: int


class JobResponse(BaseModel, extra="allow"):
    """State of a job. A job that is done also has the facts of its prediction (points, bars, familiarity, remarks)."""

    job: str
    model: str
    state: str = Field(description="receiving, waiting, running, done, failed or cancelled")
    progress: float = Field(ge=0, le=1)
    before: int = Field(default=0, description="number of earlier jobs, while the job is not done")
    result: str = Field(default="", description="address of the file, once the job is done")
    error: ErrorDetail | None = None


def binary(*media_types: str) -> dict[str, Any]:
    """Describe files of these media types for the `content` of a request or a response."""
    return {media: {"schema": {"type": "string", "format": "binary"}} for media in media_types}
