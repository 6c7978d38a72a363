"""The API for programs: bodies, answers and refusals of every route, as OpenAPI says them. Only words, no behaviour."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse, Response

MEDIA = {"vtu": "application/xml", "npz": "application/x-npz", "json": "application/json"}
"""Of answers."""
UPLOADS = {**MEDIA, "csv": "text/csv", "stl": "model/stl"}
"""Of uploads, which say by it what they are; where one is sent as anything else, `kind` does."""

Spec = dict[str, Any]
BINARY: Spec = {"type": "string", "format": "binary"}
TEXT: Spec = {"type": "string"}
NUMBER: Spec = {"type": "number"}


def _object(**properties: Spec) -> Spec:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(of: Spec) -> Spec:
    return {"type": "array", "items": of}


def _or_null(spec: Spec) -> Spec:
    return {"anyOf": [spec, {"type": "null"}]}


def _named(name: str) -> Spec:
    return {"$ref": f"#/components/schemas/{name}"}


VALUES = {"anyOf": [_list(NUMBER), _list(_list(NUMBER))]}
"""(N,), or (N, channels)."""
ABOUT = {
    "points": {"type": "integer"},
    "bars": _or_null(
        _object(
            level=NUMBER,
            coverage=_or_null({"type": "object", "additionalProperties": NUMBER}),
            hold={"type": "boolean", "description": "false: unlike the training set, or outside the encoded part"},
        )
    ),
    "familiarity": _or_null(_object(score=NUMBER, unlike={"type": "boolean"}, verdict=TEXT)),
    "remarks": _list(TEXT),
}
FIELD = _object(unit=TEXT, components=_list(TEXT), values=VALUES, bar=_or_null(VALUES))
SCHEMAS: Spec = {
    "Error": _object(error=_object(code=TEXT, message=TEXT)),
    "Inputs": {
        "description": "points, features and parameters by name, in physical units",
        "type": "object",
        "additionalProperties": {"anyOf": [NUMBER, VALUES]},
    },
    "Fields": _object(**ABOUT, inputs=_named("Inputs"), fields={"type": "object", "additionalProperties": FIELD}),
    "Code": _object(code=TEXT, model=TEXT, **ABOUT, box=_list(_list(NUMBER)), bytes={"type": "integer"}),
    "Job": {
        "type": "object",
        "required": ["job", "model", "state", "progress"],
        "properties": {
            "job": TEXT,
            "model": TEXT,
            "state": {"enum": ["receiving", "waiting", "running", "done", "failed", "cancelled"]},
            "progress": {"type": "number", "minimum": 0, "maximum": 1},
            "before": {"type": "integer", "description": "jobs that come first, while it is not done"},
            "result": {"type": "string", "description": "where its file is, once it is done"},
            "error": _object(code=TEXT, message=TEXT),
            **ABOUT,
        },
    },
}

REFUSALS = {
    400: "the upload is empty or cut short",
    401: "no token, or a wrong one",
    403: "without a token: not a local name, or asked by a page from elsewhere",
    404: "there is no such model, job or code",
    408: "the upload took too long to arrive",
    409: "the job is not done, or was cancelled",
    413: "larger than this server accepts, or than its memory",
    415: "it does not say what the upload is",
    422: "the upload, or a parameter of the address, does not fit",
    429: "too many jobs; come again after Retry-After seconds",
    431: "the headers are too large",
    500: "a fault of the server, or its worker died",
    503: "not ready, or too many connections; come again after Retry-After seconds",
    504: "the job took too long",
}
ALWAYS = (401, 403, 431, 500)
OF_UPLOADS = (400, 404, 408, 409, 413, 415, 422, 429, 503, 504)


def _answer(what: str, spec: Spec | None, **more: str) -> Spec:
    """A good answer: as JSON where `spec` describes it, and in `more` media types as bytes."""
    content = {} if spec is None else {"application/json": {"schema": spec}}
    return {"description": what, "content": content | {media: {"schema": BINARY} for media in more.values()}}


UPLOAD: Spec = {
    "requestBody": {
        "required": True,
        "description": "the file itself",
        "content": {
            media: {"schema": _named("Inputs") if kind == "json" else BINARY}
            for kind, media in {**UPLOADS, "any, said by `kind`": "application/octet-stream"}.items()
        },
    }
}
FILES = {kind: media for kind, media in MEDIA.items() if kind != "json"}
FIELDS = _answer("predicted fields, in physical units", _named("Fields"), **FILES)
JOB = _answer("the job", _named("Job"))

ROUTES: dict[tuple[str, str], tuple[int, Spec, tuple[int, ...]]] = {
    ("GET", "/"): (200, _answer("where to begin", _object(server=TEXT, models=_list(TEXT), cards=TEXT, api=TEXT)), ()),
    ("GET", "/health"): (200, _answer("alive", _object(status=TEXT)), ()),
    ("GET", "/ready"): (200, _answer("ready", _object(status=TEXT, open_jobs={"type": "integer"})), (503,)),
    ("GET", "/metrics"): (200, {"description": "Prometheus's text", "content": {"text/plain": {"schema": TEXT}}}, ()),
    ("GET", "/models"): (
        200,
        _answer("cards and limits", _object(models=_list({"type": "object"}), limits={"type": "object"})),
        (),
    ),
    ("GET", "/models/{name}"): (200, _answer("its card", {"type": "object"}), (404, 422)),
    ("POST", "/models/{name}/predict"): (200, FIELDS, OF_UPLOADS),
    ("POST", "/models/{name}/jobs"): (202, JOB, OF_UPLOADS),
    ("GET", "/jobs/{id}"): (200, JOB, (404, 422)),
    ("GET", "/jobs/{id}/result"): (200, FIELDS, (404, 409, 413, 422, 504)),
    ("GET", "/jobs/{id}/view/{question}"): (
        200,
        _answer("as docs/view.md says", {"type": "object"}, array="application/octet-stream"),
        (404, 409, 413, 422, 504),
    ),
    ("DELETE", "/jobs/{id}"): (200, _answer("removed", _object(job=TEXT, state=TEXT)), (404, 422)),
    ("GET", "/view/"): (200, _answer("the page", None, page="text/html"), (404, 422)),
    ("GET", "/view/{file}"): (200, _answer("a file of it", None, page="text/html", code="text/javascript"), (404, 422)),
    ("POST", "/models/{name}/codes"): (201, _answer("the code", _named("Code")), OF_UPLOADS),
    ("POST", "/models/{name}/codes/{code}/query"): (200, FIELDS, OF_UPLOADS),
    ("DELETE", "/models/{name}/codes/{code}"): (200, _answer("removed", _object(code=TEXT, state=TEXT)), (404, 422)),
}
"""Method and path -> status of a good answer, that answer, and refusals beside those that any route may give."""


def described(method: str, path: str) -> Spec:
    """What FastAPI's `add_api_route` is told of a route."""
    status, answer, refusals = ROUTES[method, path.replace(":path", "")]
    numbers = sorted({*refusals, *(() if path == "/health" else ALWAYS)})
    return {
        "status_code": status,
        "response_class": JSONResponse if "application/json" in answer["content"] else Response,
        "responses": {status: answer} | {number: _refusal(number) for number in numbers},
        "openapi_extra": UPLOAD if method == "POST" else None,
    }


def _refusal(status: int) -> Spec:
    return {"description": REFUSALS[status], "content": {"application/json": {"schema": _named("Error")}}}


def whole(plain: Spec, *, token: bool) -> Spec:
    """The description that FastAPI made, with the schemas it names and the token it takes."""
    components = {"schemas": SCHEMAS}
    if not token:
        return {**plain, "components": components}
    plain["paths"]["/health"]["get"]["security"] = []
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {**plain, "components": components, "security": [{"token": []}]}
