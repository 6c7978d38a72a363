"""What runs inside a worker process: read uploads, compute fields, write results, one job at a time.

Jobs and replies are JSON messages: progress, then a summary of the result or an error. The process works in the folder
of the job, so no message can name a file elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import re
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.serve.limits import ServerLimits
from flare.utils.errors import DataError, FlareError, TooLarge, one_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from flare.inference.calibration.calibrate import Calibration
    from flare.inference.surrogate import Surrogate

MAX_MESSAGE_LENGTH = 600
"""Most characters of an error message; some quote the upload."""
ARGUMENT = re.compile(r'\b(?:features|parameters)=\{"(\w+)": \.\.\.\}')
"""Arguments of the library in error messages, such as features={"wind": ...}."""
PROGRESS_SECONDS = 0.2
"""Time between two progress messages."""


def work(channel: Connection, runs: dict[str, str], folder: str, limits: ServerLimits) -> None:
    """Load the models and run jobs until the server ends.

    Args:
        channel: Two-way pipe to the server; it closes when the server process ends, in whatever way.
        runs: Run folder of every model, by name.
        folder: Folder with the files of the server; the worker removes it when the server has gone.
        limits: Limits of the server.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its workers
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    receiver = threading.Thread(target=_receive_requests, args=(channel, requests, folder), daemon=True)
    receiver.start()
    try:
        models = {name: _load_model(run) for name, run in runs.items()}
        cards = {name: describe_model(name, run, models[name]) for name, run in runs.items()}
    except (FlareError, OSError) as error:
        _send(channel, {"failed": str(error)})
        return
    _limit_memory(limits.memory_mb)
    with suppress(OSError):
        _send(channel, {"ready": cards})
        while True:
            _send(channel, run_job(channel, models, requests.get(), limits))
            _release_memory()
    receiver.join()  # the server has gone; returning would stop the removal of its folder half-way


def _receive_requests(channel: Connection, requests: queue.SimpleQueue[dict[str, Any]], folder: str) -> None:
    """Pass requests to the main thread. When the server has gone, remove its folder and end, also during a job."""
    with suppress(EOFError, OSError):
        while True:
            requests.put(json.loads(channel.recv_bytes()))
    for _ in range(100):  # a running job may still write while the folder is removed
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            break
        time.sleep(0.01)
    os._exit(1)


@dataclass(frozen=True)
class ServedModel:
    """A surrogate with its calibration."""

    surrogate: Surrogate
    calibration: Calibration | None


def _load_model(run: str) -> ServedModel:
    from flare.inference.calibration.calibrate import load_calibration
    from flare.inference.surrogate import load

    surrogate = load(run, device="auto")
    return ServedModel(surrogate, load_calibration(run, surrogate))


def describe_model(name: str, run: str, served: ServedModel) -> dict[str, Any]:
    """Return the card of a model: fields and units, size, calibration and evaluation."""
    from flare.inference.encoding import fingerprint
    from flare.models import count_parameters
    from flare.models.flare import FLAREModel
    from flare.train.run_folder import RunFolder

    surrogate, calibration = served.surrogate, served.calibration
    card: dict[str, Any] = {
        "name": name,
        "fields": surrogate.schema.to_json()["fields"],
        "dataset": surrogate.schema.name,
        "grid": surrogate.schema.grid,
        "model": surrogate.model,
        "parameters": count_parameters(surrogate.network),
        "fingerprint": fingerprint(surrogate),
        "can_encode": isinstance(surrogate.network, FLAREModel),
        "calibration": dict(calibration.report) if calibration else None,
    }
    evaluated = [record for record in RunFolder(run).records() if record["kind"] == "evaluate"]
    return card | {"evaluation": evaluated[-1] if evaluated else None}


def run_job(
    channel: Connection, models: dict[str, ServedModel], request: dict[str, Any], limits: ServerLimits
) -> dict[str, Any]:
    """Run one job in its folder and return the last message about it: ``done`` or ``error``."""
    home = Path.cwd()
    try:
        os.chdir(request["folder"])  # messages then name the upload without our folders
        return {"done": _compute(channel, models[request["model"]], request, limits)}
    except TooLarge as error:
        return _error(413, "too_large", error)
    except FlareError as error:
        return _error(422, "unfit", ARGUMENT.sub(r"&set=\1=VALUE", str(error)))
    except Exception as error:  # an internal error must not end the worker
        if isinstance(error, MemoryError) or "alloc" in str(error):  # PyTorch raises a RuntimeError
            return _error(413, "too_large", f"the job needs more than the limit of {limits.memory_mb:,} MB of memory")
        return _error(500, "failed", f"{type(error).__name__}: {one_line(error)[:300]}")
    finally:
        os.chdir(home)


def _compute(channel: Connection, served: ServedModel, request: dict[str, Any], limits: ServerLimits) -> dict[str, Any]:
    """Read the upload, write the result, and return its summary."""
    from flare.inference.chunked import passes
    from flare.inference.encoding import encode, load_encoding
    from flare.inference.mesh_inputs import mesh_inputs, split_settings
    from flare.inference.prediction import assess, fields_without_rows, predict
    from flare.mesh.io import ReadLimits
    from flare.serve.payloads import read_json, summarize, write_answer

    surrogate, calibration, task = served.surrogate, served.calibration, request["task"]
    schema, upload, result = surrogate.schema, Path(request["upload"]), Path(request["result"])
    encoding = load_encoding(request["encoding"], surrogate) if task == "query" else None
    for name in request["settings"].keys() & (encoding.parameters.keys() if encoding else ()):
        raise DataError(f"{name!r} is a parameter of the encoding; it cannot be set for a query")
    inputs = mesh_inputs(
        surrogate,
        read_json(upload, schema) if upload.suffix == ".json" else upload,
        **split_settings(schema, request["settings"]),
        training_spacing=calibration.spacing if calibration else None,
        known=encoding.parameters if encoding else None,
        limits=ReadLimits(limits.points, 10 * limits.upload_bytes),
    )
    points, notes = inputs.sample.values[schema.points], inputs.notes
    rounds = {"predict": passes(surrogate), "encode": passes(surrogate) - 1, "query": 1}[task]
    done = _ProgressSender(channel, len(points) * rounds)
    if task == "encode":
        made = encode(surrogate, inputs.sample, scratch=".", done=done)
        made.save(result)
        assessment = calibration.assess(surrogate, inputs.sample, latents=made.latents) if calibration else None
        summary = summarize(len(points), assessment, calibration, notes)
        return {**summary, "box": made.box.tolist(), "bytes": made.nbytes}
    if encoding is None:
        prediction, outside = predict(surrogate, inputs, calibration=calibration, scratch=".", done=done), ""
    else:
        fields, outside = encoding.query_sample(inputs.sample, done=done), encoding.outside(points)
        prediction = assess(surrogate, inputs, fields, calibration, encoding.latents)
    if inputs.mesh is not None and result.suffix == ".npz":
        notes = [*notes, *fields_without_rows(inputs.mesh, schema)]
    summary = summarize(len(points), prediction.assessment, calibration, notes, outside=outside)
    write_answer(result, request["model"], prediction, summary)
    return summary


class _ProgressSender:
    """Progress callback: takes the number of points done and sends the fraction to the server."""

    def __init__(self, channel: Connection, total: int) -> None:
        self.channel, self.total = channel, total
        self.done, self.sent = 0, time.monotonic()

    def __call__(self, points: int) -> None:
        self.done += points
        if time.monotonic() - self.sent >= PROGRESS_SECONDS:
            self.sent = time.monotonic()
            _send(self.channel, {"progress": self.done / self.total})


def _error(status: int, code: str, message: object) -> dict[str, Any]:
    return {"error": {"status": status, "code": code, "message": str(message)[:MAX_MESSAGE_LENGTH]}}


def _send(channel: Connection, message: dict[str, Any]) -> None:
    channel.send_bytes(json.dumps(message).encode())


def _limit_memory(megabytes: int) -> None:
    """Limit the memory of this process in addition to what it uses now."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: only the limit of points protects the machine
        return
    import resource

    used = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData"))
    most = used * 1024 + megabytes * 10**6
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _release_memory() -> None:
    """Return freed memory to the system, if the C library can do it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
