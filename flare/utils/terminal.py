"""Terminal output of the command line: log messages and progress on standard error."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from flare.utils.progress import Update, displays
from flare.utils.text import duration


def print_status(message: str) -> None:
    """Print one line on standard error; standard output is for results."""
    print(message, file=sys.stderr, flush=True)


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_status(record.getMessage())


_handler = _StderrHandler()


def is_attached() -> bool:
    """Return whether log messages of the package are printed."""
    return _handler in logging.getLogger("flare").handlers


def attach() -> None:
    """Print log messages and progress of the package from now on."""
    logger = logging.getLogger("flare")
    logger.addHandler(_handler)
    logger.setLevel(logging.INFO)
    displays.append(_display)


@contextmanager
def attached() -> Iterator[None]:
    """Print log messages and progress of the package within this block."""
    if is_attached():
        yield
        return
    attach()
    try:
        yield
    finally:
        logging.getLogger("flare").removeHandler(_handler)
        displays.remove(_display)


def _display(label: str, total: int, done: int, unit: str) -> AbstractContextManager[Update]:
    """Show a live bar on a terminal, and plain lines elsewhere."""
    is_live = sys.stderr.isatty()
    return _live_bar(label, total, done, unit) if is_live else nullcontext(_line_log(label, total, done, unit))


@contextmanager
def _live_bar(label: str, total: int, done: int, unit: str) -> Iterator[Update]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(f"{unit}  {{task.fields[rate]}}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    ]
    with Progress(*columns, console=Console(stderr=True), expand=True, refresh_per_second=4) as bar:
        task = bar.add_task(label, total=total, completed=done, rate="", text="")
        clock = _Clock(total, done)

        def update(advance: int = 1, text: str = "") -> None:
            clock.advance(advance)
            bar.update(task, advance=advance, rate=clock.describe(unit), text=text)

        yield update


def _line_log(label: str, total: int, done: int, unit: str, every: float = 10.0) -> Update:
    """Print a line every ten seconds and at the end, for log files."""
    clock = _Clock(total, done)
    last = clock.start

    def update(advance: int = 1, text: str = "") -> None:
        nonlocal last
        clock.advance(advance)
        if time.monotonic() - last >= every or clock.count >= total:
            last = time.monotonic()
            parts = [f"{label}: {clock.count}/{total} {unit}", clock.describe(unit), text]
            print_status("  ".join(filter(None, parts)))

    return update


class _Clock:
    """Rate over about the last half minute, or the last units if they take long, so that it follows the machine."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.count = total, done
        self.start = time.monotonic()
        self.marks = deque([(self.start, done)], maxlen=60)

    def advance(self, by: int) -> None:
        self.count += by
        if time.monotonic() - self.marks[-1][0] > 0.5:
            self.marks.append((time.monotonic(), self.count))

    def describe(self, unit: str) -> str:
        then, count = self.marks[0]
        elapsed, fresh = time.monotonic() - then, self.count - count
        if fresh <= 0 or elapsed <= 0:
            return ""
        rate = fresh / elapsed
        speed = f"{rate:.1f} {unit}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
        return f"{speed}, {duration((self.total - self.count) / rate)} left"
