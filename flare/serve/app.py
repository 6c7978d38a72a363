"""The routes of the HTTP API."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import asyncio
import errno
import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest

from flare.serve.metrics import RequestCounter, ServerMetrics
from flare.serve.pool import UploadJob, WorkerPool
from flare.serve.responses import (
    ERRORS,
    ApiError,
    EncodingResponse,
    FieldsResponse,
    JobResponse,
    add_error_handlers,
    binary,
)
from flare.serve.security import AccessGuard
from flare.serve.uploads import RESULT_MEDIA, UPLOAD_MEDIA, JobQuery, PredictQuery, UploadQuery, receive
from flare.utils import __version__
from flare.view.server import page_file
from flare.view.source import NotThere
from flare.view.standalone import find_recorded

SUMMARY_HEADER = "X-Flare-About"
"""Header of a result file with the summary that a JSON result contains."""
ENCODING_FILE = "part.code"
BLOCK_BYTES = 1 << 18


class Service:
    """State and steps that the routes share."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool, self.limits, self.metrics = pool, pool.limits, ServerMetrics(pool)
        self.encodings: OrderedDict[str, UploadJob] = OrderedDict()

    def find_card(self, name: str) -> dict[str, Any]:
        """Return the card of a model."""
        if name not in self.pool.cards:
            raise ApiError(404, "no_model", f"unknown model {name[:100]!r}; known: {', '.join(self.pool.cards)}")
        return self.pool.cards[name]

    def find_encoding(self, model: str, id: str) -> UploadJob:
        """Return the job that made an encoding."""
        if id not in self.encodings or self.encodings[id].model != model:
            raise ApiError(404, "no_code", "there is no such encoding, or newer ones have replaced it")
        return self.encodings[id]

    def find_finished(self, id: str) -> UploadJob:
        """Return a job that is done; raises its error if it failed."""
        job = self.pool.find(id)
        if job.ended is None:
            raise ApiError(409, "not_done", f"the job is {job.state}", retry_after=1)
        job.get_summary()
        return job

    async def begin(
        self,
        request: Request,
        task: str,
        model: str,
        query: UploadQuery,
        answer: str,
        *,
        encoding: Path | None = None,
        kept: bool = False,
    ) -> UploadJob:
        """Receive an upload and queue its job. The file of an encoding to query is linked beside the upload."""
        self.find_card(model)
        upload = f"upload.{query.find_kind(request)}"
        settings = query.parse_settings()
        details = {"upload": upload, "result": f"result.{answer}", "settings": settings, "encoding": ENCODING_FILE}
        try:
            job = self.pool.admit(task, model, details, kept=kept)
            with self.removed_on_error(job):
                if encoding is not None:
                    (job.folder / ENCODING_FILE).hardlink_to(encoding)  # stays if the encoding is removed meanwhile
                self.metrics.uploaded.inc(await receive(request, job.folder / upload, self.limits))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            message = "the server has no disk space for the upload"
            raise ApiError(503, "disk_full", message, retry_after=60) from None
        self.pool.submit(job)
        return job

    @contextmanager
    def removed_on_error(self, job: UploadJob) -> Iterator[None]:
        """Remove a job if its request fails."""
        try:
            yield
        except BaseException:
            self.pool.remove(job)
            raise

    async def wait(self, request: Request, job: UploadJob) -> dict[str, Any]:
        """Wait for a job and return its summary, or raise its error or that the client has disconnected."""
        waiting: list[Any] = [job.running, gone := asyncio.create_task(_wait_for_disconnect(request))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if job.ended is None:
            raise ApiError(499, "gone", "the client closed the connection")
        return job.get_summary()

    async def respond(
        self, request: Request, task: str, model: str, query: PredictQuery, *, encoding: Path | None = None
    ) -> Response:
        """Run a job and return its result; the job is removed."""
        job = await self.begin(request, task, model, query, query.answer, encoding=encoding)
        try:
            summary = await self.wait(request, job)
            return stream_file(job.result, RESULT_MEDIA[query.answer], summary)
        finally:
            self.pool.remove(job)  # the response keeps the file open

    def describe_job(self, job: UploadJob) -> dict[str, Any]:
        """Return the JSON body about a job."""
        body = {"job": job.id, "model": job.model, "state": job.state, "progress": round(job.progress, 4)}
        if job.ended is None:
            return body | {"before": self.pool.position(job)}
        if job.error is not None:
            return body | job.error.body
        return body | {"result": f"/jobs/{job.id}/result", **job.summary}


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def stream_file(path: Path, media_type: str, summary: dict[str, Any] | None = None) -> StreamingResponse:
    """Return a file as a response that is complete even if the file is removed meanwhile."""
    headers = {"Content-Disposition": f'attachment; filename="{path.name}"'}
    if summary is not None:
        headers[SUMMARY_HEADER] = json.dumps(summary, allow_nan=False)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise ApiError(404, "no_job", "the result has been removed") from None
    headers["Content-Length"] = str(os.fstat(file.fileno()).st_size)

    def blocks() -> Iterator[bytes]:
        with file:
            while block := file.read(BLOCK_BYTES):
                yield block

    return StreamingResponse(blocks(), media_type=media_type, headers=headers)


# ---- routes ----------------------------------------------------------------------------------------------------------

public = APIRouter()
"""Routes without access control."""
router = APIRouter(responses=ERRORS)


async def _get_service(request: Request) -> Service:
    return request.app.state.service


Shared = Annotated[Service, Depends(_get_service)]
FIELDS = {
    "model": FieldsResponse,
    "description": "predicted fields",
    "content": binary(*(media for kind, media in RESULT_MEDIA.items() if kind != "json")),
}
PAGE = {200: {"content": binary("text/html", "text/javascript")}}
UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "description": "the file itself",
        "content": binary(*UPLOAD_MEDIA.values(), "application/octet-stream")
        | {"application/json": {"schema": {"$ref": "#/components/schemas/Inputs"}}},
    }
}


@public.get("/health")
async def health() -> dict[str, str]:
    """Report that the server is alive. This route needs no token."""
    return {"status": "ok"}


@router.get("/")
async def index(service: Shared) -> dict[str, Any]:
    """List the models and the addresses of their cards and of the API description."""
    models = list(service.pool.cards)
    return {"server": f"flare {__version__}", "models": models, "cards": "/models", "api": "/openapi.json"}


@router.get("/ready")
async def ready(service: Shared) -> dict[str, Any]:
    """Report whether all workers have loaded their models."""
    if not service.pool.ready:
        raise ApiError(503, "not_ready", "a worker is starting", retry_after=5)
    return {"status": "ready", "open_jobs": service.pool.open_jobs}


@router.get("/metrics", response_class=Response, responses={200: {"content": binary("text/plain")}})
async def show_metrics(service: Shared) -> Response:
    """Return metrics in the Prometheus text format."""
    return Response(generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4")


@router.get("/models")
async def list_models(service: Shared) -> dict[str, Any]:
    """Return the cards of all models and the limits of the server."""
    return {"models": list(service.pool.cards.values()), "limits": asdict(service.limits)}


@router.get("/models/{name}")
async def show_model(name: str, service: Shared) -> dict[str, Any]:
    """Return the card of a model: fields, units, size, calibration, evaluation."""
    return service.find_card(name)


@router.post("/models/{name}/predict", responses={200: FIELDS}, openapi_extra=UPLOAD_BODY)
async def predict(request: Request, name: str, query: Annotated[PredictQuery, Query()], service: Shared) -> Response:
    """Predict the fields of the mesh or the points in the body, in physical units."""
    return await service.respond(request, "predict", name, query)


@router.post("/models/{name}/jobs", status_code=202, responses={202: {"model": JobResponse}}, openapi_extra=UPLOAD_BODY)
async def start_job(request: Request, name: str, query: Annotated[JobQuery, Query()], service: Shared) -> JSONResponse:
    """Start a prediction and return the address at which its progress and result are found."""
    job = await service.begin(request, "predict", name, query, query.answer, kept=True)
    return JSONResponse(service.describe_job(job), status_code=202, headers={"Location": f"/jobs/{job.id}"})


@router.get("/jobs/{id}", responses={200: {"model": JobResponse}})
async def show_job(id: str, service: Shared) -> JSONResponse:
    """Return the state of a job, its progress from 0 to 1, and the number of jobs that are queued before it."""
    return JSONResponse(service.describe_job(service.pool.find(id)))


@router.get("/jobs/{id}/result", responses={200: FIELDS})
async def download_result(id: str, service: Shared) -> Response:
    """Return the result of a job. It can be downloaded repeatedly while it is kept."""
    job = service.find_finished(id)
    if job.result.suffix == ".view":
        address = f"/view/index.html?source=/jobs/{job.id}/view/"
        raise ApiError(409, "a_view", f"open this result in a browser at {address}")
    return stream_file(job.result, RESULT_MEDIA[job.result.suffix[1:]], job.summary)


@router.get("/jobs/{id}/view/{question:path}", responses={200: {"content": binary("application/octet-stream")}})
async def view_result(id: str, question: str, service: Shared) -> Response:
    """Return what the page of `flare view` requests about a result."""
    path = find_recorded(service.find_finished(id).result, question)
    if path is None:
        raise ApiError(404, "no_view", "not part of this result; start the job with answer=view to look at it")
    return stream_file(path, "application/json" if question == "catalogue" else "application/octet-stream")


@router.delete("/jobs/{id}")
async def remove_job(id: str, service: Shared) -> dict[str, str]:
    """Cancel a job, or remove its result."""
    service.pool.remove(service.pool.find(id))
    return {"job": id, "state": "removed"}


@router.get("/view/", response_class=Response, responses=PAGE)
@router.get("/view/{file}", response_class=Response, responses=PAGE)
async def view_page(file: str = "index.html") -> Response:
    """Return a file of the viewer page. Open /view/index.html?source=/jobs/ID/view/ in a browser."""
    try:
        media_type, body = page_file(file)
    except NotThere as error:
        raise ApiError(404, "no_page", str(error)) from None
    return Response(body, media_type=media_type, headers={"X-Content-Type-Options": "nosniff"})


@router.post(
    "/models/{name}/codes", status_code=201, responses={201: {"model": EncodingResponse}}, openapi_extra=UPLOAD_BODY
)
async def encode(request: Request, name: str, query: Annotated[UploadQuery, Query()], service: Shared) -> JSONResponse:
    """Encode a mesh and keep its latents, so that its fields can be queried at any points."""
    if not service.find_card(name)["can_encode"]:
        raise ApiError(422, "unfit", f"{name} cannot encode; only FLARE models can")
    job = await service.begin(request, "encode", name, query, "code")
    with service.removed_on_error(job):
        summary = await service.wait(request, job)
        response = JSONResponse({"code": job.id, "model": name, **summary}, status_code=201)
    service.encodings[job.id] = job
    while len(service.encodings) > service.limits.codes:
        service.encodings.popitem(last=False)[1].remove_files()
    return response


@router.post("/models/{name}/codes/{code}/query", responses={200: FIELDS}, openapi_extra=UPLOAD_BODY)
async def query_encoding(
    request: Request, name: str, code: str, query: Annotated[PredictQuery, Query()], service: Shared
) -> Response:
    """Predict the fields of an encoded mesh at the points in the body."""
    encoding = service.find_encoding(name, code).result
    service.encodings.move_to_end(code)
    return await service.respond(request, "query", name, query, encoding=encoding)


@router.delete("/models/{name}/codes/{code}")
async def remove_encoding(name: str, code: str, service: Shared) -> dict[str, str]:
    """Remove an encoding."""
    service.find_encoding(name, code).remove_files()
    del service.encodings[code]
    return {"code": code, "state": "removed"}


def make_app(pool: WorkerPool, *, token: str | None) -> FastAPI:
    """Return the application on top of a pool. Without a token it serves this machine only."""
    app = FastAPI(
        title="flare",
        version=__version__,
        description="Neural surrogates on meshes: upload a mesh and get its fields in physical units.",
        docs_url=None,  # these pages load scripts from other sites
        redoc_url=None,
    )
    app.state.service = service = Service(pool)
    scheme = HTTPBearer(scheme_name="token", auto_error=False)  # for the description only; AccessGuard checks the token
    app.include_router(public)
    app.include_router(router, dependencies=[Depends(scheme)] if token else [])
    add_error_handlers(app)
    app.add_middleware(AccessGuard, token=token)
    app.add_middleware(RequestCounter, metrics=service.metrics)
    return app
