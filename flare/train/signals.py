"""Signals while training: Ctrl-C and SIGTERM finish the step, save and stop; a second Ctrl-C stops at once."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Interrupted(Exception):
    """A signal stopped the run early; the run is saved.

    Args:
        number: The signal.
        run: The run folder.
    """

    def __init__(self, number: int, run: str = "") -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.run, self.exit_code = number, run, 128 + number

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int, str]]:
        return Interrupted, (self.number, self.run)  # so that worker processes can send it


class SignalGuard:
    """Context that records SIGINT and SIGTERM instead of acting on them: `number` is the signal, or 0."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.number, self.quiet = 0, quiet
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        # Only the main thread can handle signals; in others (a notebook server, for example) nothing changes.
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
        self._before = {number: signal.signal(number, self._record) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Keep recording signals until the process ends."""
        self._before = {}

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        if not self.quiet:
            logger.info(f"{signal.Signals(number).name}: finishing this step, then saving ...")
