"""Workloads are measured by real trainings and predictions, in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from flare.models.flare import FLAREBlock
from flare.models.streaming import Stream
from flare.train import profiling
from flare.train import run as training_run
from flare.train.config import TrainConfig
from flare.train.distributed.fabric import lone_fabric
from flare.train.field_task import FieldTask
from flare.train.planning import largest_workloads
from flare.train.profiling import Usage, measure, profiling_run, run_isolated, usage_of_run
from flare.train.run_folder import RunFolder
from tests.train.test_workload import STEP


@pytest.mark.parametrize(
    "change", [{}, {"precision": "bf16"}, {"shared": "samples"}, {"kind": "evaluation", "shared": "points"}], ids=str
)
def test_a_step_is_measured_by_a_training_of_several(change, capsys, monkeypatch):
    seen, work_on = [], training_run.work_on

    def recorded(fabric, ranks, config, run, task):
        result = work_on(fabric, ranks, config, run, task)
        seen.append((type(fabric.strategy).__name__, ranks, config, run.records(), result))
        return result

    monkeypatch.setattr(profiling, "run_isolated", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(training_run, "work_on", recorded)
    monkeypatch.setenv("LOCAL_RANK", "0")  # otherwise Fabric would start ranks
    workload = replace(STEP, points=100, batch=2, in_dim=4, out_dim=2, **change)
    usage = measure(workload)
    ((strategy, ranks, config, records, result),) = seen
    assert not torch.distributed.is_initialized()
    assert capsys.readouterr() == ("", "")
    assert (strategy == "DDPStrategy") == bool(workload.shared)
    assert (ranks.group is not None) == (workload.shared == "points")
    assert config.precision == workload.precision
    assert usage.memory_mb == result["peak_memory_mb"]
    steps, evaluations = ([r for r in records if r["kind"] == kind] for kind in ("train", "evaluate"))
    assert {r["points"] for r in steps} == {200 if workload.is_training else profiling.FILLER_POINTS}
    assert (len(steps), len(evaluations)) == ((4, 1) if workload.is_training else (4, 4))
    assert 0 < usage.seconds < max(r["seconds"] for r in records)


@pytest.mark.parametrize("kind", ["whole", "stream", "scratch"])
def test_a_prediction_is_measured_at_all_points(monkeypatch, kind):
    seen, call = [], FLAREBlock.forward if kind == "whole" else Stream.forward
    patched = FLAREBlock if kind == "whole" else Stream
    monkeypatch.setattr(patched, "forward", lambda own, x, *rest: seen.append((own, x)) or call(own, x, *rest))
    monkeypatch.setattr(profiling, "run_isolated", lambda function, *arguments: function(*arguments))
    assert measure(replace(STEP, points=200, kind=kind, chunk=50)).memory_mb > 0
    if kind == "whole":
        assert {tuple(x.shape) for _, x in seen} == {(1, 64, 16), (1, 200, 16)}
    else:
        assert {(stream.points, stream.chunk) for stream, _ in seen} == {(64, 50), (200, 50)}
        assert {stream.in_memory for stream, _ in seen} == ({0} if kind == "scratch" else {None})


def test_a_lone_rank_keeps_its_threads_and_several_have_one_as_with_torchrun(tmp_path, monkeypatch):
    assert run_isolated(threads_of_a_lone_rank, tmp_path) == (3, 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert replace(STEP, shared="points").threads == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert (STEP.threads, replace(STEP, shared="points").threads) == (5, 1)


def threads_of_a_lone_rank(folder):
    os.environ.pop("OMP_NUM_THREADS", None)  # Lightning reads it
    torch.set_num_threads(3)
    config = profiling_run(replace(STEP, points=10, shared="points"), folder / "data")
    with lone_fabric(config, RunFolder(folder / "run"), shares=True):
        within = torch.get_num_threads()
    return within, torch.get_num_threads()


def test_every_rank_of_a_profiling_run_has_the_workload(tmp_path):
    for shared, points, samples in [("points", 30, 2), ("samples", 10, 6)]:
        workload = replace(STEP, points=10, batch=2, shared=shared)
        config = profiling_run(workload, tmp_path / shared, ranks=3, batches=2)
        task = FieldTask(config.data, config.loss)
        assert set(task.dataset.sizes) == {points}
        assert len(task.train) == 2 * samples
        assert largest_workloads(config, task, 3)[0] == workload


def test_the_first_step_and_the_other_kind_of_record_do_not_count(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(TrainConfig())
    (run.path / "result.json").write_text('{"peak_memory_mb": 321}')
    seconds = [("train", 9), ("train", 10), ("evaluate", 15), ("train", 18), ("evaluate", 25), ("train", 27)]
    for step, (kind, second) in enumerate(seconds):
        run.log({"kind": kind, "step": step, "seconds": float(second)})
    run.close()
    assert usage_of_run(run, STEP) == Usage(321, 2.0)  # median of 1, 3 and 2
    assert usage_of_run(run, replace(STEP, kind="evaluation")) == Usage(321, 7.0)  # of 5 and 7


def test_the_result_and_the_error_of_an_isolated_call_come_back():
    assert run_isolated(os.getpid) != os.getpid()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "this process still receives Ctrl-C"
    with pytest.raises(ZeroDivisionError):
        run_isolated(divmod, 1, 0)


SLEEPER = """
import signal
import sys
import time

if __name__ != "__main__":  # the child, before it has imported anything slow
    open(sys.argv[1] + ".starts", "w").close()

import flare.cli
from flare.train.profiling import run_isolated

def wait(mark):
    open(mark, "w").close()
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal: background jobs ignore it
    flare.cli._dispatch = lambda words: run_isolated(wait, words[0])
    raise SystemExit(flare.cli.main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of a terminal")
@pytest.mark.parametrize("early", [pytest.param(True, marks=pytest.mark.slow), False], ids=["starts", "works"])
def test_ctrl_c_ends_both_processes(tmp_path, early):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    words = [sys.executable, str(tmp_path / "sleeper.py"), str(tmp_path / "mark")]
    mark = tmp_path / ("mark.starts" if early else "mark")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            while not mark.exists():
                assert job.poll() is None
                time.sleep(0.02)
            os.killpg(job.pid, signal.SIGINT)
            printed = job.communicate(timeout=120)[1]  # ends when no process holds the pipe, long before 600 s
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    assert (len(printed.splitlines()), job.returncode) == (1, 130)
