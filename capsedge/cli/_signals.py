"""Interrupts and requests to end: the command cleans up and exits with 128 plus the signal's number."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT  # as in shells
_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    _SIGNALS.append(signal.SIGHUP)
_received = 0


class Terminated(KeyboardInterrupt):
    """Another process, or the closing of the terminal, asked this process to end."""


@contextmanager
def raising() -> Iterator[None]:
    """Make signals raise inside the block, so that temporary files are removed; later they end the process.

    Signals that are already ignored when the command starts stay ignored.
    """
    ours = [
        number
        for number in _SIGNALS
        if signal.getsignal(number)
        not in (signal.SIG_IGN, None)  # None: a handler not set by Python
    ]
    for number in ours:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _end)


def exit_code() -> int:
    """The exit code for the signal received; 0 if there was none."""
    return 128 + _received if _received else 0


def _raise(number: int, _: FrameType | None) -> None:
    global _received
    _received = number
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _end(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)
