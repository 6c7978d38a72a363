"""A small surrogate, and a server of it in a process of its own."""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from flare.serve import worker
from flare.serve.limits import Limits
from flare.serve.worker import Served
from flare.trust.calibration import calibrate
from tests.factory import ragged_dataset, saved_run
from tests.test_export import surrogate

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # the browser is that of the measurements

TOKEN = "a-token-of-the-tests-0123456789"


@dataclass
class Server:
    process: subprocess.Popen
    client: httpx.Client
    address: str
    scratch: Path

    @property
    def workers(self):
        """Processes of the server that compute; a helper of Python's, which only tracks resources, is not one."""
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]

    @property
    def folders(self):
        return list(self.scratch.glob("flare-serve-*"))

    def files(self):
        """What lies in its private folder, but for the lock."""
        return [path for folder in self.folders for path in folder.rglob("*") if path.name != "lock"]

    def settled(self, condition, seconds=900):
        """Whether something becomes true in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.05)
        return bool(condition())


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
    return Served(model, calibrate(model, data, range(20), range(20, 30), range(30, 40), quiet=True))


@pytest.fixture
def do(tmp_path):
    """do(served, task, kind, content, answer) -> what the worker says last, what it said before, its result."""
    count = iter(range(99))

    def run(served, task, kind, content, answer="json", limits=None, **more):
        folder = tmp_path / str(next(count))
        folder.mkdir()
        (folder / f"upload.{kind}").write_bytes(content)
        order = {"task": task, "model": "part", "folder": str(folder), "upload": f"upload.{kind}"}
        order |= {"result": f"result.{answer}", "settings": {}} | more
        mine, theirs = multiprocessing.Pipe()
        last = worker._answer(theirs, {"part": served}, order, limits or Limits())
        theirs.close()
        heard = []
        while mine.poll():
            try:
                heard.append(json.loads(mine.recv_bytes()))
            except EOFError:
                break
        return last, heard, folder / order["result"]

    return run
