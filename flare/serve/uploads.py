"""Uploads: query parameters, file formats, and writing the body of a request to a file within the limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from flare.serve.limits import ServerLimits
from flare.serve.responses import ApiError

RESULT_MEDIA = {"vtu": "application/xml", "npz": "application/x-npz", "json": "application/json"}
"""Media type of every format of results."""
UPLOAD_MEDIA = {**RESULT_MEDIA, "csv": "text/csv", "stl": "model/stl"}
"""Media type of every format of uploads."""


class UploadQuery(BaseModel, extra="forbid"):
    """Query parameters of an upload. Others are rejected."""

    kind: Literal["vtu", "npz", "json", "csv", "stl"] | None = Field(
        default=None, description="format of the upload, if its Content-Type does not say it"
    )
    settings: list[str] = Field(
        default=[], alias="set", description="NAME=VALUE or NAME=V1,V2: a parameter, or a feature equal at all points"
    )

    def find_kind(self, request: Request) -> str:
        """Return the format of the upload, from `kind` or the Content-Type."""
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media == "multipart/form-data":
            raise ApiError(415, "a_form", "the upload is a form; send the file itself (curl --data-binary @FILE)")
        kind = self.kind or {known: kind for kind, known in UPLOAD_MEDIA.items()}.get(media)
        if kind is None:
            raise ApiError(415, "no_kind", f"give the format of the upload as ?kind= ({', '.join(UPLOAD_MEDIA)})")
        return kind

    def parse_settings(self) -> dict[str, list[float]]:
        """Return the values of `set` by name."""
        found: dict[str, list[float]] = {}
        for word in self.settings:
            name, _, text = word.partition("=")
            try:
                values = [float(number) for number in text.split(",")]
            except ValueError:
                raise ApiError(422, "unfit", f"set={word[:100]}: expected NAME=VALUE or NAME=V1,V2") from None
            if not name or name in found:
                raise ApiError(422, "unfit", f"set={word[:100]}: the name is empty or given twice")
            found[name] = values
        return found


class PredictQuery(UploadQuery):
    """Query parameters of a prediction."""

    answer: Literal["vtu", "npz", "json"] = Field(default="json", description="format of the result")


class JobQuery(UploadQuery):
    """Query parameters of a job."""

    answer: Literal["vtu", "npz", "json", "view"] = Field(
        default="vtu", description="format of the result; view: for the page at /view/"
    )


async def receive(request: Request, path: Path, limits: ServerLimits) -> int:
    """Write the body of a request to a file as it arrives.

    Returns:
        Number of bytes.

    Raises:
        ApiError: The body is empty, incomplete, too large or too slow.
    """
    too_large = ApiError(413, "too_large", f"the upload is larger than the limit of {limits.upload_mb:,} MB")
    if int(request.headers.get("content-length", 0)) > limits.upload_bytes:  # h11 has checked that it is a number
        raise too_large
    size = 0
    try:
        with path.open("xb") as file:
            async with asyncio.timeout(limits.receive_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limits.upload_bytes:
                        raise too_large
                    file.write(chunk)
    except TimeoutError:
        raise ApiError(408, "too_slow", f"the upload took longer than {limits.receive_seconds:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "cut_short", "the connection was closed before the upload was complete") from None
    if size == 0:
        raise ApiError(400, "empty", "the upload is empty")
    return size
