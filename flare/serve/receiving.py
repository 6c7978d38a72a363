"""The body of a request as a file. Whether it is good for anything, a worker finds out, but for slips of curl."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from flare.serve.limits import Limits
from flare.serve.refusal import Refused

FORM = "multipart/form-data"
"""What curl -F sends."""
HOW = "send the file as the body, as curl --data-binary @FILE does"


async def receive(request: Request, path: Path, limits: Limits) -> int:
    """Write the body to a file as it comes, no more and no longer than the limits; returns its size."""
    too_large = Refused(413, "too_large", f"the upload is larger than {limits.upload_mb:,} MB, the most accepted here")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.upload_bytes:
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
        raise Refused(408, "too_slow", f"the upload took longer than {limits.receive_seconds:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "cut_short", "the connection ended before the upload did") from None
    if size == 0:
        raise Refused(400, "empty", f"the upload is empty; {HOW}")
    return size


def refuse_form(path: Path) -> None:
    """A form under another name, or a table that curl -d made one line of."""
    with path.open("rb") as file:
        start = file.readline(1 << 16)
    if start.startswith(b"--"):  # as no file of ours does
        raise Refused(400, "a_form", f"the upload is a form, as curl -F sends it; {HOW}")
    if path.suffix == ".csv" and b"," in start and not start.endswith(b"\n"):
        raise Refused(400, "one_line", f"the table is one line: curl -d removes the ends of lines; {HOW}")
