"""The HTTP API: every route, thin. Errors are JSON: {"error": {"code": "...", "message": "..."}}."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

import flare
from flare.serve.description import MEDIA, UPLOADS, described, whole
from flare.serve.guard import Guard
from flare.serve.handlers import HANDLERS
from flare.serve.limits import Limits
from flare.serve.metrics import Metrics
from flare.serve.pool import Job, Pool
from flare.serve.receiving import FORM, HOW, receive, refuse_form
from flare.serve.refusal import Refused
from flare.serve.viewing import find_answer
from flare.utils.errors import nearest
from flare.view.server import page_file
from flare.view.source import NotThere

Kind = Literal["vtu", "npz", "json", "csv", "stl"]
Answer = Literal["vtu", "npz", "json"]
JobAnswer = Literal["vtu", "npz", "json", "view"]
KINDS = {media: kind for kind, media in UPLOADS.items()}
ABOUT = "X-Flare-About"
"""Header of an answer that is a file: what the JSON answer says beside the fields, familiarity for one."""
TIDY_EVERY = 1.0
BLOCK = 1 << 18

HELP = "NAME=VALUE or NAME=V1,V2: a parameter, or a feature alike everywhere"
Settings = Annotated[list[str], Query(alias="set", default_factory=list, description=HELP)]


QUERY = {"set", "kind", "answer"}
"""What an upload may have behind the question mark: a name that nobody reads would be a wish that nobody hears."""


class Api:
    """The routes and what they share."""

    def __init__(self, pool: Pool, limits: Limits, metrics: Metrics) -> None:
        self.pool, self.limits, self.metrics = pool, limits, metrics
        self.codes: OrderedDict[str, tuple[str, Job]] = OrderedDict()

    # ---- what is here -----------------------------------------------------------------------------------------------

    async def index(self) -> dict[str, Any]:
        """Where to begin: names of the models, and where the API is described."""
        models = list(self.pool.cards)
        return {"server": f"flare {flare.__version__}", "models": models, "cards": "/models", "api": "/openapi.json"}

    async def health(self) -> dict[str, str]:
        """The server is alive. The only route without a token."""
        return {"status": "ok"}

    async def ready(self) -> dict[str, Any]:
        """All workers have loaded their models."""
        if not self.pool.ready:
            raise Refused(503, "not_ready", "a worker is starting", retry_after=5)
        return {"status": "ready", "open_jobs": self.pool.open_jobs}

    async def show_metrics(self) -> Response:
        """Counters for Prometheus."""
        return Response(self.metrics.text(self.pool), media_type="text/plain; version=0.0.4")

    async def models(self) -> dict[str, Any]:
        """Every model with its fields and units, and the limits of this server."""
        return {"models": list(self.pool.cards.values()), "limits": asdict(self.limits)}

    async def model(self, name: str) -> dict[str, Any]:
        """The card of a model: fields, units, size, training."""
        return self._card(name)

    # ---- predictions ------------------------------------------------------------------------------------------------

    async def predict(
        self, request: Request, name: str, set_: Settings, kind: Kind | None = None, answer: Answer = "json"
    ) -> Response:
        """Upload a mesh or points as the body; the fields come back at once, in physical units."""
        job = await self._begin(request, "predict", name, kind, answer, set_)
        return await self._whole_answer(request, job, answer)

    async def start_job(
        self, request: Request, name: str, set_: Settings, kind: Kind | None = None, answer: JobAnswer = "vtu"
    ) -> JSONResponse:
        """The same for large meshes: answers at once with the address where progress and result are found.

        `answer=view` makes a result to look at, with the page at /view/.
        """
        job = await self._begin(request, "predict", name, kind, answer, set_, kept=True)
        return JSONResponse(self._about(job), status_code=202, headers={"Location": f"/jobs/{job.id}"})

    async def job(self, id: str) -> dict[str, Any]:
        """State, progress from 0 to 1, and how many jobs are before it."""
        return self._about(self.pool.find(id))

    async def job_result(self, id: str) -> Response:
        """The file, as often as it is asked for while it is kept."""
        job = self._done(id)
        if job.result.suffix == ".view":
            raise Refused(
                409, "a_view", f"this result is to be looked at: /view/index.html?source=/jobs/{job.id}/view/"
            )
        return _stream(job.result, MEDIA[job.result.suffix[1:]], _header(job.future.result()))

    async def view_job(self, id: str, question: str) -> Response:
        """What the page of `flare view` asks about the result; its errors are as that page reads them."""
        try:
            job = self._done(id)
            path = find_answer(job.result, question) if job.result.suffix == ".view" else None
            if path is None:
                raise Refused(404, "no_view", "there is no such thing to look at; begin the job with answer=view")
            return _stream(path, "application/json" if path.suffix == ".json" else "application/octet-stream")
        except FileNotFoundError:
            return JSONResponse({"error": "the result has been removed"}, status_code=404)
        except Refused as refused:
            return JSONResponse({"error": refused.message}, status_code=refused.status, headers=refused.headers)

    async def page(self, file: str = "index.html") -> Response:
        """A file of the page; open /view/index.html?source=/jobs/ID/view/ in a browser."""
        try:
            media, body = page_file(file)
        except NotThere as error:
            raise Refused(404, "no_page", str(error)) from None
        return Response(body, media_type=media, headers={"X-Content-Type-Options": "nosniff"})

    async def cancel(self, id: str) -> dict[str, str]:
        """Stop a job, or remove its result."""
        job = self.pool.find(id)
        self.pool.forget(job)
        return {"job": job.id, "state": "removed"}

    # ---- encoded parts ----------------------------------------------------------------------------------------------

    async def encode(self, request: Request, name: str, set_: Settings, kind: Kind | None = None) -> JSONResponse:
        """Keep a part as its latents, to be asked for its fields anywhere."""
        if not self._card(name)["can_encode"]:
            raise Refused(422, "unfit", f"{name} cannot encode parts; a FLARE model can")
        job = await self._begin(request, "encode", name, kind, "code", set_)
        try:
            about = await self._outcome(request, job)
            answer = JSONResponse({"code": job.id, "model": name, **about}, status_code=201)
        except BaseException:
            self.pool.forget(job)  # nobody would ever know its number
            raise
        self.codes[job.id] = name, job
        while len(self.codes) > self.limits.codes:
            _, (_, oldest) = self.codes.popitem(last=False)
            oldest.remove()
        return answer

    async def query(
        self,
        request: Request,
        name: str,
        code: str,
        set_: Settings,
        kind: Kind | None = None,
        answer: Answer = "json",
    ) -> Response:
        """The fields of an encoded part at the points of the body."""
        held = self._code(name, code)
        self.codes.move_to_end(code)
        job = await self._begin(request, "query", name, kind, answer, set_, code=held.result)
        return await self._whole_answer(request, job, answer)

    async def remove_code(self, name: str, code: str) -> dict[str, str]:
        """Forget an encoded part."""
        self._code(name, code).remove()
        del self.codes[code]
        return {"code": code, "state": "removed"}

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _card(self, name: str) -> dict[str, Any]:
        if name not in self.pool.cards:
            raise Refused(404, "no_model", f"there is no model {name[:100]!r}; known: {', '.join(self.pool.cards)}")
        return self.pool.cards[name]

    def _code(self, name: str, code: str) -> Job:
        if code not in self.codes or self.codes[code][0] != name:
            raise Refused(
                404, "no_code", "there is no such encoded part, or newer ones took its place; encode it again"
            )
        return self.codes[code][1]

    def _done(self, id: str) -> Job:
        job = self.pool.find(id)
        if job.ended is None:
            raise Refused(409, "not_done", f"the job is {job.state}", retry_after=1)
        job.future.result()  # a job that failed says here why
        return job

    async def _begin(
        self,
        request: Request,
        task: str,
        name: str,
        kind: Kind | None,
        answer: str,
        set_: list[str],
        *,
        code: Path | None = None,
        kept: bool = False,
    ) -> Job:
        """Receive the upload and put the job into the queue; a code that it asks lies beside the upload."""
        self._card(name)
        queries = QUERY - {"answer"} if task == "encode" else QUERY
        for unknown in request.query_params.keys() - queries:
            known = nearest(unknown[:100], queries)
            raise Refused(422, "unfit", f"there is no query {unknown[:100]!r}; {known}. Inputs are &set=NAME=VALUE")
        content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        upload_kind = kind or KINDS.get(content)
        if content == FORM:
            raise Refused(415, "a_form", f"the upload is a form, as curl -F sends it; {HOW}")
        if upload_kind is None:
            raise Refused(415, "no_kind", "say what the upload is, with ?kind=vtu, npz, json, csv or stl")
        upload = f"upload.{upload_kind}"
        order = {"upload": upload, "result": f"result.{answer}", "settings": _settings(set_), "code": "part.code"}
        job = self.pool.admit(task, name, order, kept=kept)
        try:
            if code is not None:
                (job.folder / "part.code").hardlink_to(code)  # stays, also if the code gives way meanwhile
            self.metrics.uploaded(await receive(request, job.folder / upload, self.limits))
            refuse_form(job.folder / upload)
        except BaseException:
            self.pool.forget(job)
            raise
        self.pool.submit(job)
        return job

    async def _outcome(self, request: Request, job: Job) -> dict[str, Any]:
        """What the worker says of the result. A client that goes away meanwhile has its job cancelled."""
        ended, gone = asyncio.wrap_future(job.future), asyncio.ensure_future(_disconnected(request))
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())  # heard, by someone or no one
        either: list[asyncio.Future[Any]] = [ended, gone]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                self.pool.forget(job)
                raise Refused(499, "gone", "the client went away")
            return ended.result()
        finally:
            gone.cancel()

    async def _whole_answer(self, request: Request, job: Job, answer: str) -> Response:
        try:
            about = await self._outcome(request, job)
            return _stream(job.result, MEDIA[answer], _header(about))
        finally:
            self.pool.forget(job)  # the file goes now; what is open can still be read

    def _about(self, job: Job) -> dict[str, Any]:
        about: dict[str, Any] = {"job": job.id, "model": job.model, "state": job.state}
        about["progress"] = round(job.progress, 4)
        if job.ended is None:
            about["before"] = self.pool.position(job)
        elif (error := job.future.exception()) is not None:
            about |= error.body if isinstance(error, Refused) else {}
        else:
            about |= {"result": f"/jobs/{job.id}/result", **job.future.result()}
        return about


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone, after its upload was received."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _settings(words: list[str]) -> dict[str, list[float]]:
    found = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            values = [float(number) for number in text.split(",")]
        except ValueError:
            raise Refused(422, "unfit", f"set={word[:100]} should be NAME=VALUE or NAME=V1,V2 of numbers") from None
        if not name or name in found:
            raise Refused(422, "unfit", f"set={word[:100]}: give every name once")
        found[name] = values
    return found


def _header(about: dict[str, Any]) -> dict[str, str]:
    return {ABOUT: json.dumps(about, allow_nan=False)}


def _stream(path: Path, media: str, more: dict[str, str] | None = None) -> StreamingResponse:
    """The file as it is now, also if it is removed while it is sent."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise Refused(404, "no_job", "the result has been removed") from None
    size = path.stat().st_size

    def blocks() -> Iterator[bytes]:
        with file:
            while block := file.read(BLOCK):
                yield block

    headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{path.name}"'}
    headers |= more or {}
    return StreamingResponse(blocks(), media_type=media, headers=headers)


def make_app(pool: Pool, limits: Limits, metrics: Metrics, *, token: str | None) -> Any:
    """The ASGI application over a pool that has been started."""
    api = Api(pool, limits, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async def tidy() -> None:
            while True:
                await asyncio.sleep(TIDY_EVERY)
                pool.tidy()

        task = asyncio.create_task(tidy())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app = FastAPI(
        title="flare",
        version=flare.__version__,
        description="Neural surrogates on meshes: upload a mesh, get its fields in physical units.",
        docs_url=None,  # that page loads its scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    for method, path, function in (
        ("GET", "/", api.index),
        ("GET", "/health", api.health),
        ("GET", "/ready", api.ready),
        ("GET", "/metrics", api.show_metrics),
        ("GET", "/models", api.models),
        ("GET", "/models/{name}", api.model),
        ("POST", "/models/{name}/predict", api.predict),
        ("POST", "/models/{name}/jobs", api.start_job),
        ("GET", "/jobs/{id}", api.job),
        ("GET", "/jobs/{id}/result", api.job_result),
        ("GET", "/jobs/{id}/view/{question:path}", api.view_job),
        ("DELETE", "/jobs/{id}", api.cancel),
        ("GET", "/view/", api.page),
        ("GET", "/view/{file}", api.page),
        ("POST", "/models/{name}/codes", api.encode),
        ("POST", "/models/{name}/codes/{code}/query", api.query),
        ("DELETE", "/models/{name}/codes/{code}", api.remove_code),
    ):
        app.add_api_route(
            path,
            function,
            methods=[method],
            response_model=None,
            **described(method, path),
        )
    make_description = app.openapi
    app.openapi = lambda: whole(make_description(), token=token is not None)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return Guard(app, token=token, metrics=metrics)
