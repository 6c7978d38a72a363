"""Progress: lines in a log, a live bar on a terminal, and the time left from the recent rate."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest

from flare.utils import terminal
from flare.utils.progress import log_if_slow, progress
from flare.utils.text import duration, format_record


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances."""
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (185, "3 min 05 s"),
        (3600, "1 h 00 min"),
        (7850, "2 h 10 min"),
        (4 * 86400 - 60, "95 h 59 min"),
        (1343.75 * 86400, "1,344 days"),
    ],
)
def test_durations_have_suitable_units(seconds, text):
    assert duration(seconds) == text


def test_a_log_gets_a_line_every_ten_seconds_and_at_the_end(clock, capsys):
    with progress("making", 100) as update:
        for _ in range(100):
            clock[0] += 0.25
            update(text="loss 0.5")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0] == "making: 40/100 samples  4.0 samples/s, 15 s left  loss 0.5"
    assert lines[-1].startswith("making: 100/100 samples")


def test_time_left_follows_the_recent_rate_and_ignores_earlier_sessions(clock, capsys):
    with progress("making", 1000, done=500) as update:
        for step in (0.1,) * 100 + (1.0,) * 61:  # the machine gets busy: ten times slower
            clock[0] += step
            update()
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r"making: 6[56]\d/1000 samples  1\.0 (samples/s|s each), 5 min \d\d s left", last)


def test_time_left_is_steady_for_slow_units_in_bursts(clock, capsys):
    with progress("making", 200) as update:
        for _ in range(15):  # two workers: two samples at once, every 50 s
            clock[0] += 50
            update()
            update()
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("making: 29/200 samples  25")


def test_only_slow_work_is_logged(capsys):
    with log_if_slow("compiling ...", after=60):
        pass
    with log_if_slow("compiling ...", after=0):
        time.sleep(0.2)
    assert capsys.readouterr().err == "compiling ...\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"samples": 3, "options": {"grid": "node"}}, "samples: 3, options: grid: node"),
        (0.123456, "0.1235"),
        ([1], "[1]"),
    ],
)
def test_records_are_formatted_without_json_syntax(value, text):
    assert format_record(value) == text


def test_quiet_progress_prints_nothing(capsys):
    with progress("making", 3, quiet=True) as update:
        update()
    assert capsys.readouterr().err == ""


def test_the_library_prints_nothing():
    code = (
        "import logging; from flare.utils.progress import progress\n"
        "with progress('training', 1) as update: update()\n"
        "logging.getLogger('flare.train').info('epoch 1')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_terminal_gets_a_live_bar_with_rate_time_and_text():
    code = (
        "from flare.utils.progress import progress; from flare.utils.terminal import attached; import time\n"
        "with attached(), progress('training', 4, unit='steps') as update:\n"
        "    for _ in range(4): time.sleep(0.05); update(text='loss 0.25  1.5 GB')"
    )
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "140"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment) as job:
        job.wait(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    for text in ("training", "4/4", "steps/s", "left", "loss 0.25  1.5 GB"):
        assert text in shown
