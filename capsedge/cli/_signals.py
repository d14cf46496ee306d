"""Interrupts and requests to end: the command cleans up and ends with 128 and the signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT  # as shells have it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_received = 0


class Terminated(KeyboardInterrupt):
    """Another process, or the terminal's end, asked this one to end."""


@contextmanager
def raising() -> Iterator[None]:
    """Signals raise in the block, so that temporary files are removed; afterwards they end the process.

    Those that whoever started the command has it ignore stay ignored.
    """
    ours = [
        number
        for number in _SIGNALS
        if signal.getsignal(number) not in (signal.SIG_IGN, None)  # None: a handler not of Python
    ]
    for number in ours:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _end)


def exit_code() -> int:
    """That of the signal that came; 0 if none did."""
    return 128 + _received if _received else 0


def _raise(number: int, _: FrameType | None) -> None:
    global _received
    _received = number
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _end(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)
