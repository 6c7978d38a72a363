"""Ctrl-C and SIGTERM end the present step, save, and stop; a second Ctrl-C stops at once."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Interrupted(Exception):
    """A signal ended the run early; it is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.exit_code = number, 128 + number

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int]]:
        return Interrupted, (self.number,)  # it may come from a worker process


class SignalNote:
    """Inside this context a signal is only noted: `number` is the one that came, or 0."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.number, self.quiet = 0, quiet
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalNote:
        # Python lets only the main thread handle signals; elsewhere (a notebook server, say) they keep their meaning.
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Signals are noted to the end of this process, which has only one thing left to say."""
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        if not self.quiet:
            logger.info(f"{signal.Signals(number).name}: finishing this step, then saving ...")
