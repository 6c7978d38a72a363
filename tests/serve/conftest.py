"""A small surrogate, and a server for it in a process of its own."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest

from flare.inference.calibration.calibrate import calibrate
from flare.serve import worker
from flare.serve.limits import ServerLimits
from flare.serve.server import FOLDER_PREFIX
from flare.serve.worker import ServedModel
from tests.factory import ragged_dataset, saved_run
from tests.inference.test_export import surrogate

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # for the module `browser`

TOKEN = "a-token-of-the-tests-0123456789"


def settled(condition, seconds=900):
    """Return whether a condition becomes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


@dataclass
class Server:
    process: subprocess.Popen
    client: httpx.Client
    address: str
    scratch: Path

    @property
    def workers(self):
        """Running worker processes, without the resource tracker of multiprocessing."""
        children = psutil.Process(self.process.pid).children()
        running = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return [child for child in running if "spawn_main" in " ".join(child.cmdline())]

    @property
    def folders(self):
        return list(self.scratch.glob(f"{FOLDER_PREFIX}*"))

    def files(self):
        return [path for folder in self.folders for path in folder.rglob("*")]


@pytest.fixture(scope="session")
def part_run(tmp_path_factory):
    return saved_run(surrogate(), tmp_path_factory.mktemp("runs") / "part")


@pytest.fixture(scope="module")
def server(part_run, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("scratch")
    words = [sys.executable, "-m", "flare", "serve", str(part_run), "--port", "0", "--scratch", str(scratch)]
    words += ["--limits.upload_mb", "1", "--limits.points", "20000", "--limits.queue", "8", "--limits.seconds", "900"]
    words += ["--limits.kept", "4", "--limits.codes", "2"]
    environment = {**os.environ, "FLARE_TOKEN": TOKEN, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True) as process:
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)[0]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=address, headers=headers, timeout=900, trust_env=False) as client:
            yield Server(process, client, address, scratch)
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A calibrated model."""
    data = ragged_dataset(tmp_path_factory.mktemp("data") / "ragged", sizes=[12] * 40, test=20)
    model = surrogate()
    return ServedModel(model, calibrate(model, data, range(20), range(20, 30), range(30, 40)))


@pytest.fixture
def do(tmp_path):
    """do(served, task, kind, content, answer) -> last message of the worker, earlier messages, result file."""
    count = iter(range(99))

    def run(served, task, kind, content, answer="json", limits=None, **more):
        folder, messages = tmp_path / str(next(count)), []
        folder.mkdir()
        (folder / f"upload.{kind}").write_bytes(content)
        order = {"task": task, "model": "part", "folder": str(folder), "upload": f"upload.{kind}"}
        order |= {"result": f"result.{answer}", "settings": {}} | more
        channel = SimpleNamespace(send_bytes=lambda message: messages.append(json.loads(message)))
        last = worker.run_job(channel, {"part": served}, order, limits or ServerLimits())
        return last, messages, folder / order["result"]

    return run
