"""Ctrl-C while sequences are made: what there is is kept, and one line says how to go on, compiled code or not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from flare.utils.interrupts import uninterrupted


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("task", ["pathfinder", "listops"])
def test_an_interrupted_job_says_what_it_keeps_and_goes_on(tmp_path, task, workers):
    sizes = ["--samples", "1000000", "--val-samples", "10", "--test-samples", "10", "--workers", workers]
    words = ["data", "make", task, *sizes, "--out", str(tmp_path / "d")]
    job = subprocess.Popen(
        [sys.executable, "-m", "flare", *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored, if run in background
    )
    log, until = tmp_path / "d.partial" / "samples.jsonl", time.monotonic() + 200
    while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does: to every process of the job
    said = job.communicate(timeout=100)[1]
    kept = log.read_bytes().count(b"\n")
    assert kept > 0
    told = f"{kept} of 1000000 samples are kept in {tmp_path / 'd'}.partial; run the same command to go on"
    lines = [line for line in said.splitlines() if not line.startswith(f"making {task}: ")]  # progress, if it took long
    assert (lines, job.returncode) == ([told, "stopped"], 130)


def test_an_interrupt_waits_for_compiled_code_and_comes_then():
    done = []

    def work():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("to the end")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["to the end"] * 2
