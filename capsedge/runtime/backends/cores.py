"""The cores that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def usable_cores() -> int:
    """Physical cores that this process may use; logical ones where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):
        return len({Path(_SIBLINGS.format(cpu)).read_text() for cpu in allowed})
    return len(allowed)
