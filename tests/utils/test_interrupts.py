"""Interrupts are deferred while compiled code runs."""

import signal

import pytest

from flare.utils.interrupts import defer_interrupts


def test_an_interrupt_is_deferred_to_the_end_of_the_block():
    done = []

    def work():
        with defer_interrupts():
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
