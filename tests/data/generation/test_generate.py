"""Generation: the same bytes for any number of workers, any scheduler and any number of kills."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.data import writer
from flare.data.dataset import Dataset
from flare.data.generation.generate import generate
from flare.data.sample import Sample
from flare.physics import generator_class
from flare.physics.darcy import Darcy
from flare.utils.errors import DataError, NotConverged
from tests.factory import content

SMALL = Darcy(resolution=8, stride=1, grid="node")
SMALL_CANONICAL = Darcy(resolution=8, stride=1)


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "d"
    return generate(SMALL, path, samples=9, seed=3, quiet=True)


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed")
    ERRORS["dask"] = distributed.comm.CommClosedError
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


def test_a_dask_scheduler_makes_the_same_bytes(one_worker, tmp_path, dask):
    generate(SMALL, tmp_path / "d", samples=9, seed=3, scheduler=dask, quiet=True)
    assert content(tmp_path / "d") == content(one_worker.path)


def test_a_sample_depends_on_seed_and_index_alone(one_worker, tmp_path):
    more = generate(SMALL, tmp_path / "d", samples=12, seed=3, quiet=True)
    for index in range(9):
        np.testing.assert_array_equal(more[index].values["pressure"], one_worker[index].values["pressure"])
    other = generate(SMALL, tmp_path / "other", samples=2, seed=4, quiet=True)
    assert not np.array_equal(other[0].values["coefficient"], one_worker[0].values["coefficient"])


def test_datasets_of_versions_without_an_option_are_opened_unless_it_is_used(tmp_path):
    made = generate(SMALL, tmp_path / "d", samples=2, quiet=True)
    manifest = made.path / "dataset.json"
    about = json.loads(manifest.read_text())
    del about["provenance"]["options"]["face_mean"]
    manifest.write_text(json.dumps(about))
    assert generate(SMALL, made.path, samples=2, quiet=True).fingerprint == made.fingerprint
    with pytest.raises(DataError, match=r"face_mean.*None.*'harmonic'"):
        generate(replace(SMALL, face_mean="harmonic"), made.path, samples=2, quiet=True)


def test_an_empty_folder_is_used_and_others_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    assert len(generate(SMALL, tmp_path / "empty", samples=3, quiet=True)) == 3
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="theirs"):
        generate(SMALL, tmp_path / "theirs", samples=3, quiet=True)
    with pytest.raises(DataError, match=r"thesis\.txt"):
        generate(SMALL, tmp_path / "theirs" / "thesis.txt", samples=3, quiet=True)
    assert (tmp_path / "theirs" / "thesis.txt").read_text() == "mine"


def test_a_finished_dataset_is_returned_and_another_is_refused(one_worker):
    before = one_worker.path.stat().st_mtime_ns
    assert len(generate(SMALL, one_worker.path, samples=9, seed=3, quiet=True)) == 9
    assert one_worker.path.stat().st_mtime_ns == before
    with pytest.raises(DataError, match=r"seed.*3.*5"):
        generate(SMALL, one_worker.path, samples=9, seed=5, quiet=True)
    with pytest.raises(DataError, match=r"face_mean.*'harmonic'"):
        generate(replace(SMALL, face_mean="harmonic"), one_worker.path, samples=9, seed=3, quiet=True)


DRIVER = """
import os, signal, sys
from flare.cli import main
from flare.data import writer

honest = writer.{function}
calls = 0

def fatal(*arguments, **options):
    global calls
    calls += 1
    if calls == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return honest(*arguments, **options)

if __name__ == "__main__":
    writer.{function} = fatal
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("workers", "function", "call"),
    [
        (1, "zlib.crc32", 2 * 3 + 5),
        (2, "DatasetWriter.append", 3),
    ],  # before the commit of a sample; between two samples
)
def test_killed_at_any_time_and_resumed_gives_the_same_bytes(workers, function, call, tmp_path):
    """kill -9 within a sample and after one, against a job that was never killed."""
    options = ["--samples", "12", "--resolution", "8", "--stride", "1", "--workers", str(workers)]
    command = ["data", "make", "darcy", *options, "--out", str(tmp_path / "d")]
    (tmp_path / "driver.py").write_text(DRIVER.format(function=function, call=call))
    killed = subprocess.run([sys.executable, str(tmp_path / "driver.py"), *command], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "d").exists()
    assert (tmp_path / "d.partial").exists()
    assert main(command) == 0
    generate(SMALL_CANONICAL, tmp_path / "whole", samples=12, quiet=True)
    assert content(tmp_path / "d") == content(tmp_path / "whole")


ERRORS = {"data": DataError, "memory": MemoryError, "cancelled": CancelledError}


@dataclass(frozen=True, kw_only=True)
class Fragile:
    """A generator whose worker dies, or which fails, at one sample."""

    fatal: int
    kill: bool = False
    healed: str = "nowhere"
    """A file that ends the trouble."""
    error: str = "data"

    def schema(self):
        return SMALL.schema()

    def sample(self, rng: np.random.Generator) -> Sample:
        _, index, *_ = rng.bit_generator.seed_seq.entropy
        if index == self.fatal and not Path(self.healed).exists():
            if self.kill:
                os._exit(1)
            raise ERRORS[self.error]("it is impossible")
        return SMALL.sample(rng)

    def provenance(self):
        return {"kind": "user"}


@dataclass(frozen=True, kw_only=True)
class Moody(Fragile):
    """Its solver fails for the first draws of one sample."""

    draws: int = 2

    def sample(self, rng: np.random.Generator) -> Sample:
        _, index, *draw = rng.bit_generator.seed_seq.entropy
        if index == self.fatal and (draw or [0])[0] < self.draws:
            raise NotConverged(f"residual 0.1 in draw {draw}")
        return replace(SMALL.sample(rng), notes={"residual": 1e-9})


def test_a_sample_that_does_not_converge_is_drawn_again_and_counted(one_worker, tmp_path):
    dataset = generate(Moody(fatal=4), tmp_path / "d", samples=9, seed=3, quiet=True)
    notes = [json.loads(line)["notes"] for line in (tmp_path / "d" / "samples.jsonl").read_text().splitlines()]
    assert notes[4] == {"residual": 1e-9, "redrawn": ["residual 0.1 in draw []", "residual 0.1 in draw [1]"]}
    assert all("redrawn" not in notes[i] for i in range(9) if i != 4)
    again = SMALL.sample(np.random.default_rng([3, 4, 2])).values["pressure"]
    np.testing.assert_array_equal(dataset[4].values["pressure"], again.astype(np.float32))
    np.testing.assert_array_equal(dataset[5].values["pressure"], one_worker[5].values["pressure"])
    assert dataset.about["provenance"]["redrawn"] == 1
    generate(Moody(fatal=4), tmp_path / "two", samples=9, seed=3, workers=2, quiet=True)
    assert content(tmp_path / "two") == content(tmp_path / "d")


@pytest.mark.parametrize(
    ("generator", "facts"),
    [
        (Fragile(fatal=4), "sample 4 .* 30 draws.*it is impossible"),
        (Moody(fatal=4, draws=99), r"sample 4 .* 30 draws.*residual 0.1 in draw \[29\]"),
        (Fragile(fatal=4, error="memory"), "sample 4 .*MemoryError"),
    ],
    ids=["error", "not converged", "memory"],
)
def test_finished_samples_are_kept_after_a_failure(generator, facts, tmp_path):
    with pytest.raises(DataError, match=f"{facts}.* 4 of 9 samples"):
        generate(generator, tmp_path / "d", samples=9, quiet=True)
    assert (tmp_path / "d.partial" / "samples.jsonl").read_text().count("\n") == 4


def test_a_dead_worker_ends_the_job_with_a_clear_message(tmp_path):
    generator = Fragile(fatal=1, kill=True, healed=str(tmp_path / "healed"))
    with pytest.raises(DataError, match=r"BrokenProcessPool.* of 2 samples"):
        generate(generator, tmp_path / "d", samples=2, workers=2, quiet=True)
    assert (tmp_path / "d.partial").exists()
    (tmp_path / "healed").touch()
    assert len(generate(generator, tmp_path / "d", samples=2, quiet=True)) == 2


@pytest.mark.parametrize(("function", "calls", "finished"), [("DatasetWriter.append", 5, 5), ("sha256", 0, 9)])
def test_a_full_disk_keeps_finished_samples(function, calls, finished, one_worker, tmp_path, monkeypatch):
    honest, left = attrgetter(function)(writer), iter(range(calls))

    def full(*arguments):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(f"flare.data.writer.{function}", full)
        with pytest.raises(DataError, match=rf"No space left on device. {finished} of 9 samples"):
            generate(SMALL, tmp_path / "d", samples=9, seed=3, quiet=True)
    generate(SMALL, tmp_path / "d", samples=9, seed=3, quiet=True)
    assert content(tmp_path / "d") == content(one_worker.path)


@pytest.mark.parametrize(("error", "fact"), [("cancelled", "CancelledError"), ("dask", "dask cluster")])
def test_a_failing_dask_cluster_is_named(tmp_path, dask, error, fact):
    with pytest.raises(DataError, match=rf"{fact}.* 2 of 9 samples"):
        generate(Fragile(fatal=2, error=error), tmp_path / error, samples=9, scheduler=dask, quiet=True)


def test_samples_after_a_bad_log_line_are_made_again(tmp_path):
    with pytest.raises(DataError):
        generate(Fragile(fatal=4, healed=str(tmp_path / "healed")), tmp_path / "d", samples=6, quiet=True)
    log = tmp_path / "d.partial" / "samples.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], b"{nonsense\n", *lines[3:]]))
    (tmp_path / "healed").touch()
    generate(Fragile(fatal=4, healed=str(tmp_path / "healed")), tmp_path / "d", samples=6, quiet=True)
    whole = generate(Fragile(fatal=4, healed=str(tmp_path / "healed")), tmp_path / "whole", samples=6, quiet=True)
    assert content(tmp_path / "d") == content(whole.path)


@pytest.mark.parametrize("path", [".", "", "/"])
def test_a_folder_that_cannot_be_a_dataset_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    with pytest.raises(DataError):
        generate(SMALL, path, samples=2, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["something"]


FORMS = {"darcy": {"resolution": 8, "stride": 1}, "airfoil": {"resolution": "half"}}


@pytest.mark.parametrize(("name", "options"), FORMS.items(), ids=list(FORMS))
def test_every_benchmark_has_the_same_bytes_for_any_number_of_workers(name, options, tmp_path):
    for workers in (1, 2):
        generate(generator_class(name)(**options), tmp_path / str(workers), samples=3, workers=workers, quiet=True)
    assert content(tmp_path / "1") == content(tmp_path / "2")
    provenance = Dataset(tmp_path / "1").about["provenance"]
    assert provenance["departures"] == options
    assert provenance["redrawn"] == 0


def test_workers_end_with_their_parent(tmp_path):
    command = [sys.executable, "-m", "flare", "data", "make", "darcy", "--samples", "5000", "--workers", "2"]
    job = subprocess.Popen([*command, "--resolution", "60", "--out", str(tmp_path / "d")], stderr=subprocess.DEVNULL)
    import psutil

    deadline = time.monotonic() + 60
    while not (tmp_path / "d.partial" / "samples.jsonl").exists() or len(psutil.Process(job.pid).children()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    job.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive


def test_an_unreachable_scheduler_is_named(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("flare.data.generation.parallel.SCHEDULER_TIMEOUT", 1)
    with pytest.raises(DataError, match=r"tcp://127\.0\.0\.1:9"):
        generate(SMALL, tmp_path / "d", samples=2, scheduler="tcp://127.0.0.1:9", quiet=True)


@pytest.mark.parametrize("change", [{"samples": 0}, {"test_samples": 11}, {"workers": 0}, {"seed": -1}])
def test_impossible_jobs_are_refused_by_the_name_of_the_setting(tmp_path, change):
    (name,) = change
    with pytest.raises(DataError, match=f"{name}={change[name]}"):
        generate(SMALL, tmp_path / "d", **{"samples": 10, "quiet": True} | change)
    assert not list(tmp_path.iterdir())


def test_a_sixth_is_for_testing_and_at_least_one_of_two(tmp_path):
    for samples, test in ((1, 0), (2, 1), (12, 2)):
        dataset = generate(SMALL, tmp_path / str(samples), samples=samples, quiet=True)
        assert (len(dataset.split("train")), len(dataset.split("test"))) == (samples - test, test)


def test_loops_are_compiled_before_workers_start(tmp_path, monkeypatch):
    prepared = []
    monkeypatch.setattr(type(SMALL), "prepare", lambda self: prepared.append(self), raising=False)
    generate(SMALL, tmp_path / "d", samples=2, quiet=True)
    assert prepared == [SMALL]
