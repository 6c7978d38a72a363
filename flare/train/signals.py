"""Ctrl-C and SIGTERM end the present step, save, and stop; a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from flare.terminal import say


class Interrupted(Exception):
    """A signal ended the run early; it is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class SignalNote:
    """Inside this context a signal is only noted: `number` is the one that came, or 0."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.number, self.quiet = 0, quiet

    def __enter__(self) -> SignalNote:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        if not self.quiet:
            say(f"{signal.Signals(number).name}: finishing this step, then saving ...")
