"""A process that reads uploads and computes their fields, one at a time, until its server is gone.

It is told what to do in lines of JSON and answers with progress, then with a result or a refusal. The files of a job
lie in a folder of its own, which is also where it works: no message can name another place.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.serve.limits import Limits
from flare.utils.errors import DataError, FlareError, TooLarge, one_line, way_out

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch import Tensor

    from flare.data.sample import Sample
    from flare.serve.formats import Part
    from flare.surrogate import Surrogate
    from flare.trust.calibration import Calibration

MESSAGE = 600
"""Letters of a message, at most: some quote what was sent."""
PROGRESS_EVERY = 0.2
"""Seconds."""
LEAVING = 10.0
"""Seconds that the emptying of the server's folder may take after the server has gone."""


def work(channel: Connection, lifeline: Connection, runs: dict[str, str], folder: str, limits: Limits) -> None:
    """The whole life of a worker.

    Args:
        channel: to the server.
        lifeline: closed when the server ends, however it ends.
        runs: name of a model -> its run folder.
        folder: of the server's temporary files, which the last to leave removes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its workers
    leaving = threading.Thread(target=_leave_with_server, args=(lifeline, folder), daemon=True)
    leaving.start()
    try:
        models = {name: _load(run) for name, run in runs.items()}
        cards = {name: card(name, run, models[name]) for name, run in runs.items()}
    except (FlareError, OSError) as error:
        _send(channel, {"failed": str(error)})
        return
    _limit_memory(limits.memory_mb)
    _send(channel, {"ready": cards})
    with suppress(EOFError, OSError):
        while True:
            order = json.loads(channel.recv_bytes())
            _send(channel, _answer(channel, models, order, limits))
            _give_memory_back()
    leaving.join(LEAVING)  # the server is gone; the end of this thread would cut the emptying of the folder short


def _leave_with_server(lifeline: Connection, folder: str) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    for _ in range(100):  # a job that is still being done may write while the folder is emptied
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            break
        time.sleep(0.01)
    os._exit(1)


@dataclass(frozen=True)
class Served:
    """A model, and what is known of its errors."""

    surrogate: Surrogate
    calibration: Calibration | None


def _load(run: str) -> Served:
    from flare.surrogate import load
    from flare.trust.calibration import load_calibration

    surrogate = load(run, device="auto")
    return Served(surrogate, load_calibration(run, surrogate))


def card(name: str, run: str, served: Served) -> dict[str, Any]:
    """What a user of the model should know: its fields and units, its size, how it was trained and how it did."""
    from flare.code import fingerprint
    from flare.models import count_parameters
    from flare.models.flare import FLAREModel

    surrogate, calibration = served.surrogate, served.calibration
    record: dict[str, Any] = {
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
    with suppress(OSError, ValueError):
        lines = (Path(run) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        evaluated = [entry for entry in map(json.loads, lines) if entry.get("kind") == "evaluate"]
        record["evaluation"] = evaluated[-1] if evaluated else None
    return record


def _answer(channel: Connection, models: dict[str, Served], order: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The result of one job, or what was wrong with it and whose fault that is."""
    home = Path.cwd()
    try:
        os.chdir(order["folder"])  # names in messages are then those of the upload, not of our folders
        return {"done": _TASKS[order["task"]](channel, models[order["model"]], order, limits)}
    except TooLarge as error:
        return _refusal(413, "too_large", error)
    except FlareError as error:
        return _refusal(422, "unfit", error)
    except MemoryError:
        return _refusal(413, "too_large", f"this needs more than the {limits.memory_mb:,} MB of memory a job may take")
    except RuntimeError as error:
        if "alloc" in str(error):  # PyTorch's own word for it
            return _refusal(413, "too_large", f"this needs more than {limits.memory_mb:,} MB of memory")
        return _refusal(500, "failed", f"the model failed: {one_line(error)[:300]}")
    except Exception as error:  # a fault of ours must not end the server
        return _refusal(500, "failed", f"{type(error).__name__}: {one_line(error)[:300]}")
    finally:
        os.chdir(home)


def _predict(channel: Connection, served: Served, order: dict[str, Any], limits: Limits) -> dict[str, Any]:
    from flare.inference import as_fields, empty_outputs, passes, predict_into

    surrogate = served.surrogate
    part, sample, count = _read(served, order, limits)
    outputs, progress = empty_outputs(surrogate, count), _Progress(channel, count * passes(surrogate))
    latents = predict_into(surrogate, sample, outputs, scratch=".", done=progress)
    return _finish(served, order, part, sample, as_fields(outputs), latents)


def _encode(channel: Connection, served: Served, order: dict[str, Any], limits: Limits) -> dict[str, Any]:
    from flare.code import encode
    from flare.inference import passes
    from flare.serve.answers import about

    surrogate, calibration = served.surrogate, served.calibration
    part, sample, count = _read(served, order, limits)
    code = encode(surrogate, sample, scratch=".", done=_Progress(channel, count * (passes(surrogate) - 1)))
    code.save(order["result"])
    judgement = calibration.judge(surrogate, sample, latents=code.latents) if calibration else None
    said = about(count, judgement, calibration, part.remarks)
    return {**said, "box": code.box.tolist(), "bytes": code.nbytes}


def _query(channel: Connection, served: Served, order: dict[str, Any], limits: Limits) -> dict[str, Any]:
    from flare.code import load_code

    code = load_code(order["code"], served.surrogate)
    for name in order["settings"].keys() & code.parameters.keys():
        raise DataError(f"{name!r} is a parameter of the encoded part; it cannot be another at some points")
    part, sample, count = _read(served, order, limits, known=code.parameters)
    fields = code.query_sample(sample, done=_Progress(channel, count))
    outside = code.outside(sample.values[served.surrogate.schema.points])
    return _finish(served, order, part, sample, fields, code.latents, outside)


_TASKS = {"predict": _predict, "encode": _encode, "query": _query}


def _read(
    served: Served, order: dict[str, Any], limits: Limits, *, known: dict[str, Any] | None = None
) -> tuple[Part, Sample, int]:
    """The upload, as a sample for the model, and how many points it has; `known` are parameters of a code."""
    from flare.serve.formats import read_part

    schema, calibration = served.surrogate.schema, served.calibration
    spacing = calibration.spacing if calibration else None
    with way_out("&set={name}=VALUE"):
        part = read_part(Path(order["upload"]), schema, order["settings"], limits, known=known, spacing=spacing)
        inputs = dict(part.fields)
        sample = served.surrogate.sample(inputs.pop(schema.points), inputs)
    return part, sample, len(sample.values[schema.points])


def _finish(
    served: Served,
    order: dict[str, Any],
    part: Part,
    sample: Sample,
    fields: dict[str, Any],
    latents: list[Tensor] | None,
    outside: str = "",
) -> dict[str, Any]:
    """Judge the fields, write the result, and say what the server should know of it.

    Args:
        latents: None of a part of few points, which is encoded when it is judged.
        outside: as for `about`.
    """
    import numpy as np

    from flare.prediction import Prediction
    from flare.serve.answers import about, write_answer

    surrogate, calibration = served.surrogate, served.calibration
    judgement = calibration.judge(surrogate, sample, fields, latents) if calibration else None
    prediction = Prediction(
        name=order["upload"],
        mesh=None,
        schema=surrogate.schema,
        sample=sample,
        fields=fields,
        judgement=judgement,
        errors={},
        kept=part.kept,
        units=part.units,
        points=np.asarray(part.fields[surrogate.schema.points]),
    )
    count = len(sample.values[surrogate.schema.points])
    said = about(count, judgement, calibration, part.remarks, outside=outside)
    write_answer(Path(order["result"]), order["model"], prediction, part.grid, said)
    return said


class _Progress:
    """Called with points done, once a block; tells the server how far the job is."""

    def __init__(self, channel: Connection, total: int) -> None:
        self.channel, self.total = channel, total
        self.done, self.told = 0, time.monotonic()

    def __call__(self, points: int) -> None:
        self.done += points
        if time.monotonic() - self.told >= PROGRESS_EVERY:
            self.told = time.monotonic()
            _send(self.channel, {"progress": self.done / self.total})


def _refusal(status: int, code: str, message: object) -> dict[str, Any]:
    return {"refused": {"status": status, "code": code, "message": str(message)[:MESSAGE]}}


def _send(channel: Connection, message: dict[str, Any]) -> None:
    channel.send_bytes(json.dumps(message).encode())


def _limit_memory(megabytes: int) -> None:
    """Beyond what is in use now; an allocation that asks for more fails in this process alone."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: the limit of points is what there is
        return
    import resource

    used = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData"))
    most = used * 1024 + megabytes * 10**6
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _give_memory_back() -> None:
    """What C's allocator keeps for later goes back to the system, where it can be told to."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
