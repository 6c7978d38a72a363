"""What long work shows: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Update = Callable[..., None]
"""Called as `update(advance=1, text="loss 0.012")`."""


def say(message: str) -> None:
    """One line for the user, on standard error: standard output is for results."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int, *, done: int = 0, unit: str = "samples", quiet: bool = False) -> Iterator[Update]:
    """Show how far a job of `total` units is, its rate and the time left.

    Args:
        done: units finished in an earlier session; they count as progress but not for the rate.
        quiet: show nothing (other ranks, tests).
    """
    if quiet:
        yield lambda advance=1, text="": None
    elif sys.stderr.isatty():
        with _live_bar(label, total, done, unit) as update:
            yield update
    else:
        yield _line_log(label, total, done, unit)


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
    """A line every ten seconds and at the end: enough for a log file, not enough to drown it."""
    clock = _Clock(total, done)
    said = clock.start

    def update(advance: int = 1, text: str = "") -> None:
        nonlocal said
        clock.advance(advance)
        if time.monotonic() - said >= every or clock.count >= total:
            said = time.monotonic()
            say("  ".join(filter(None, [f"{label}: {clock.count}/{total} {unit}", clock.describe(unit), text])))

    return update


class _Clock:
    """Rate over the last half minute, so that the time left follows a machine that gets busy or free; over more where
    a unit takes long, since units that workers make side by side arrive in bursts."""

    WINDOW = 30.0
    UNITS = 20

    def __init__(self, total: int, done: int) -> None:
        self.total, self.count = total, done
        self.start = time.monotonic()
        self.marks = deque([(self.start, done)])

    def advance(self, by: int) -> None:
        self.count += by
        now = time.monotonic()
        if now - self.marks[-1][0] > 0.5:
            self.marks.append((now, self.count))
        while (
            len(self.marks) > 1 and now - self.marks[1][0] > self.WINDOW and self.count - self.marks[1][1] >= self.UNITS
        ):
            self.marks.popleft()

    def describe(self, unit: str) -> str:
        then, count = self.marks[0]
        elapsed, fresh = time.monotonic() - then, self.count - count
        if fresh <= 0 or elapsed <= 0:
            return ""
        rate = fresh / elapsed
        speed = f"{rate:.1f} {unit}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
        return f"{speed}, {duration((self.total - self.count) / rate)} left"


@contextmanager
def patience(message: str, after: float = 2.0) -> Iterator[None]:
    """Say why nothing happens, if it takes longer than that."""
    timer = threading.Timer(after, say, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def counted(count: int, what: str) -> str:
    """`1 layer group`, `1,200 layer groups`."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def plainly(value: object) -> str:
    """A value of a record as people read it, without the marks of JSON."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plainly(inner)}" for key, inner in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min` or `5 days`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 4 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole / 86400:,.0f} days"
