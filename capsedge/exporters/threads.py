"""One thread for a module whose runs are short.

A module runs some thirty times during an export. Where a run takes milliseconds, PyTorch's threads wait for
each other longer than they compute, and on a busy machine a hundred times as long.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

import torch

_LONG = 0.1  # seconds of one run on one thread
_caller_threads: ContextVar[int | None] = ContextVar("_caller_threads", default=None)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within this context, PyTorch has one thread until a `watched` run is long; afterwards, those before."""
    before = torch.get_num_threads()
    token = _caller_threads.set(before)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _caller_threads.reset(token)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """A run of the module: one that is long brings back the threads that `one_thread` took."""
    started = time.thread_time()
    yield
    before = _caller_threads.get()
    if before is not None and time.thread_time() - started >= _LONG:
        torch.set_num_threads(before)
